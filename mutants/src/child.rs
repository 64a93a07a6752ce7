//! Child processes that do not outlive this one: each leads a process group of its own, which ends when the child is dropped. A signal
//! of the terminal reaches this process alone; then each wait for a child returns.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool that runs in real time, never in the simulation"
)]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, sigaction};
use nix::unistd::Pid;

/// How soon after a signal the waits return.
const SIGNAL_DELAY: Duration = Duration::from_millis(200);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP do not end this process: they end its children. A signal that is ignored (`nohup`) stays
/// ignored.
///
/// # Errors
/// The system rejects the handler.
pub fn handle_signals() -> Result<(), String> {
    let action = SigAction::new(
        SigHandler::Handler(interrupt),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let failed = |error: Errno| format!("{signal}: {error}");
        // SAFETY: the handler stores one atomic, which a signal handler may do.
        let before = unsafe { sigaction(signal, &action) }.map_err(failed)?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // SAFETY: there is no handler.
            unsafe { sigaction(signal, &before) }.map_err(failed)?;
        }
    }
    Ok(())
}

/// One of these signals was received.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Why there is no further line, although the child runs.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    Deadline,
    Signal,
}

/// A running child process, with the lines of its standard output.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    ended: bool,
}

impl Child {
    /// Starts the command. Its standard input is empty.
    ///
    /// # Errors
    /// It does not start.
    pub fn spawn(command: &mut Command) -> Result<Self, String> {
        let mut process = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let (send, lines) = mpsc::channel();
        let output = process.stdout.take().map(BufReader::new);
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| output.split(b'\n'));
            for line in lines.map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            process,
            lines,
            ended: false,
        })
    }

    /// The next line; none at the end of the output.
    ///
    /// # Errors
    /// The deadline passed, or a signal was received.
    pub fn line(&self, deadline: Option<Instant>) -> Result<Option<String>, Stopped> {
        loop {
            if interrupted() {
                return Err(Stopped::Signal);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err(Stopped::Deadline);
            }
            let left = deadline.map_or(SIGNAL_DELAY, |deadline| deadline.saturating_duration_since(now));
            match self.lines.recv_timeout(left.min(SIGNAL_DELAY)) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for the end, after that of the output.
    ///
    /// # Errors
    /// The system does not know the process.
    pub fn wait(mut self) -> Result<ExitStatus, String> {
        self.ended = true;
        self.process.wait().map_err(|error| error.to_string())
    }

    /// All output, and how the child ended.
    ///
    /// # Errors
    /// A signal was received.
    pub fn output(self) -> Result<(ExitStatus, String), String> {
        let mut output = String::new();
        while let Some(line) = self.line(None).map_err(|_| "interrupted")? {
            output.push_str(&line);
            output.push('\n');
        }
        Ok((self.wait()?, output))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The group cannot be another's: its leader was not waited for.
        if let Ok(leader) = i32::try_from(self.process.id()) {
            let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
        }
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn the_output_is_read_to_its_end() {
        let (status, output) = shell("printf 'a\\nb\\377'; exit 3").output().unwrap();
        assert_eq!(output, "a\nb\u{fffd}\n");
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_child_that_is_dropped_ends_with_its_children() {
        // The inner shell holds the outer one's output: only its end is the output's.
        let mut child = shell("sh -c 'echo started; sleep 1000' & wait");
        assert_eq!(child.line(None), Ok(Some("started".to_owned())));
        let deadline = Instant::now() + Duration::from_millis(1);
        assert_eq!(child.line(Some(deadline)), Err(Stopped::Deadline));
        let (_, empty) = mpsc::channel();
        let lines = std::mem::replace(&mut child.lines, empty);
        drop(child);
        let end = lines.recv_timeout(Duration::from_secs(60));
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_signal_ends_the_wait() {
        // The signal is that of a whole process: the one that receives it runs the test below.
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "child::tests::a_process_that_waits_for_a_signal";
        let child = Child::spawn(command.args(["--exact", test, "--ignored", "--nocapture"])).unwrap();
        loop {
            let line = child.line(None).unwrap();
            if line.expect("it waits").ends_with("ready") {
                break;
            }
        }
        let process = i32::try_from(child.process.id()).unwrap();
        nix::sys::signal::kill(Pid::from_raw(process), Signal::SIGTERM).unwrap();
        let (status, output) = child.output().unwrap();
        assert!(status.success(), "{output}");
    }

    #[test]
    #[ignore = "a part of a_signal_ends_the_wait"]
    fn a_process_that_waits_for_a_signal() {
        handle_signals().unwrap();
        let child = shell("sleep 1000");
        println!("ready");
        assert_eq!(child.line(None), Err(Stopped::Signal));
    }
}
