//! A signal ends the benchmark after what it has started on this host is removed.
//!
//! SIGINT, SIGTERM and SIGHUP drop the measurement, and with it its clusters and network namespaces, which remove what they have on the
//! host. Once there is none of them, or after another signal, the process exits at once: a measurement may compute for a minute
//! without a pause. Signals that were ignored at the start, as with nohup, stay ignored.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::{Notify, oneshot};

/// How many [`Started`] there are.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// There is none any more.
static ALL_REMOVED: Notify = Notify::const_new();

/// Something on this host that its owner removes when it is dropped; the owner drops this afterwards.
#[derive(Debug)]
pub struct Started(());

impl Started {
    /// Before anything is started.
    pub fn begin() -> Self {
        STARTED.fetch_add(1, Ordering::SeqCst);
        Started(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if STARTED.fetch_sub(1, Ordering::SeqCst) == 1 {
            ALL_REMOVED.notify_one();
        }
    }
}

/// A signal was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(Signal);

impl Interrupted {
    /// The exit code: that of a shell whose command was killed by the signal.
    pub fn code(self) -> u8 {
        u8::try_from(128 + self.0 as i32).unwrap_or(u8::MAX)
    }
}

/// Runs the measurement, or drops it after a signal. `exit_at_once` ends the process: it is called on another thread, as this one
/// may be busy.
pub async fn unless_interrupted<T>(
    run: impl Future<Output = T>,
    exit_at_once: impl FnOnce(Interrupted) + Send + 'static,
) -> io::Result<Result<T, Interrupted>> {
    let mut received = Received::listen()?;
    let (send, first) = oneshot::channel();
    let waiting = tokio::spawn(async move {
        let interrupted = received.next().await;
        eprintln!("interrupted: removing what the benchmark has started");
        // The measurement may have ended by now.
        let _ = send.send(interrupted);
        exit_at_once(received.until_all_is_removed(interrupted).await);
    });
    let ended = tokio::select! {
        ended = run => Ok(ended),
        Ok(interrupted) = first => Err(interrupted),
    };
    waiting.abort();
    Ok(ended)
}

/// The signals that end the benchmark.
struct Received(Vec<(Signal, unix::Signal)>);

impl Received {
    fn listen() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let mut streams = Vec::new();
        for (signal, kind) in [
            (Signal::SIGINT, SignalKind::interrupt()),
            (Signal::SIGTERM, SignalKind::terminate()),
            (Signal::SIGHUP, SignalKind::hangup()),
        ] {
            if !is_ignored(&status, signal) {
                streams.push((signal, unix::signal(kind)?));
            }
        }
        Ok(Received(streams))
    }

    async fn next(&mut self) -> Interrupted {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context) == Poll::Ready(Some(())) {
                    return Poll::Ready(Interrupted(*signal));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for that, or for another signal.
    async fn until_all_is_removed(&mut self, first: Interrupted) -> Interrupted {
        loop {
            let removed = ALL_REMOVED.notified();
            if STARTED.load(Ordering::SeqCst) == 0 {
                return first;
            }
            tokio::select! {
                () = removed => {}
                another = self.next() => return another,
            }
        }
    }
}

/// `status` is /proc/PID/status: bit n - 1 of `SigIgn` is signal n (proc(5)).
fn is_ignored(status: &str, signal: Signal) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = ignored.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set >> (signal as i32 - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Cluster {
        is_removed: Arc<AtomicBool>,
        _started: Started,
    }

    impl Drop for Cluster {
        fn drop(&mut self) {
            self.is_removed.store(true, Ordering::SeqCst);
        }
    }

    /// One test sends signals: all listeners of a process receive them. Those that are ignored here (SIGHUP under nohup, SIGINT in the
    /// background of a script) are left out.
    #[tokio::test]
    async fn a_signal_removes_what_was_started_and_is_the_exit_code() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let signals = [
            (Signal::SIGINT, 130),
            (Signal::SIGTERM, 143),
            (Signal::SIGHUP, 129),
        ];
        for (signal, code) in signals
            .into_iter()
            .filter(|(signal, _)| !is_ignored(&status, *signal))
        {
            let is_removed = Arc::new(AtomicBool::new(false));
            let cluster = Cluster {
                is_removed: is_removed.clone(),
                _started: Started::begin(),
            };
            let run = async move {
                let _cluster = cluster;
                nix::sys::signal::raise(signal).unwrap();
                std::future::pending::<()>().await;
            };
            let ended = unless_interrupted(run, |_| {}).await.unwrap();
            assert_eq!(ended.unwrap_err().code(), code);
            assert!(is_removed.load(Ordering::SeqCst), "{signal}");
        }
        let ended = unless_interrupted(async { 7 }, |_| {}).await.unwrap();
        assert_eq!(ended, Ok(7));
    }

    #[test]
    fn signals_that_nohup_ignores_stay_ignored() {
        let status = "SigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\tffffffffffffffff\n";
        assert!(is_ignored(status, Signal::SIGHUP));
        assert!(!is_ignored(status, Signal::SIGINT));
        assert!(!is_ignored(status, Signal::SIGTERM));
        assert!(!is_ignored("", Signal::SIGHUP));
    }
}
