//! Events waiting for the audit log: a queue that is bounded in events and in bytes.
//!
//! Requests wait for room, so a slow disk slows them down and no event is lost. A log that cannot be written (a file
//! system that hangs) does not stop the API server: a request waits for [`WAIT_MAX`], then events are dropped and
//! counted until the log can be written again. kube-apiserver's modes do one or the other: `blocking` stops, `batch`
//! drops at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Events that wait to be written.
const EVENTS_MAX: usize = 10_000;
/// Bytes of these events. One event with request and response may have some megabytes.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Events that are written in one batch.
const BATCH: usize = 400;
/// How long a request waits for room in the queue.
const WAIT_MAX: Duration = Duration::from_millis(500);

struct Line {
    text: String,
    _room: OwnedSemaphorePermit,
}

/// The sending end of the queue.
#[derive(Clone, Debug)]
pub struct Queue {
    lines: mpsc::Sender<Line>,
    room: Arc<Semaphore>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing was written while a request waited.
    stalled: AtomicBool,
    dropped: AtomicU64,
}

/// The receiving end of the queue.
pub struct Lines {
    lines: mpsc::Receiver<Line>,
    state: Arc<State>,
}

/// Creates an empty queue.
pub fn queue() -> (Queue, Lines) {
    let (sender, lines) = mpsc::channel(EVENTS_MAX);
    let state = Arc::<State>::default();
    let queue = Queue {
        lines: sender,
        room: Arc::new(Semaphore::new(BYTES_MAX)),
        state: state.clone(),
    };
    (queue, Lines { lines, state })
}

impl Queue {
    /// Adds an event, once there is room for it.
    pub async fn push(&self, text: String) {
        if self.state.stalled.load(Ordering::Relaxed) {
            return self.try_push(text);
        }
        let waits = async {
            // Both fail only after the receiver was dropped, when the server stops.
            if let Ok(room) = self.room.clone().acquire_many_owned(size(&text)).await {
                let _ = self.lines.send(Line { text, _room: room }).await;
            }
        };
        if tokio::time::timeout(WAIT_MAX, waits).await.is_err() {
            if !self.state.stalled.swap(true, Ordering::Relaxed) {
                tracing::error!("the audit log cannot be written: audit events are dropped");
            }
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds an event if there is room for it.
    pub fn try_push(&self, text: String) {
        let room = self.room.clone().try_acquire_many_owned(size(&text));
        let pushed = room.is_ok_and(|room| self.lines.try_send(Line { text, _room: room }).is_ok());
        if !pushed {
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Events that were dropped.
    pub fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }
}

/// The bytes that an event counts; one that is larger than the queue counts the whole queue.
fn size(text: &str) -> u32 {
    u32::try_from(text.len().min(BYTES_MAX)).unwrap_or(u32::MAX)
}

impl Lines {
    /// Waits for events and takes some of them, each with a line break; `None` once the queue is closed. Blocks the thread.
    pub fn blocking_take(&mut self) -> Option<String> {
        let mut batch = Vec::new();
        if self.lines.blocking_recv_many(&mut batch, BATCH) == 0 {
            return None;
        }
        let mut text = String::with_capacity(batch.iter().map(|l| l.text.len() + 1).sum());
        for line in batch {
            text.push_str(&line.text);
            text.push('\n');
        }
        Some(text)
    }

    /// The events that were taken have been written: requests wait for room again.
    pub fn written(&self) {
        self.state.stalled.store(false, Ordering::Relaxed);
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// If there is none yet, or none any more.
    pub fn try_recv(&mut self) -> Result<String, TryRecvError> {
        self.lines.try_recv().map(|line| line.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a6_a_log_that_is_not_written_delays_one_request_and_no_more() {
        let (queue, mut lines) = queue();
        for n in 0..EVENTS_MAX {
            queue.push(n.to_string()).await;
        }
        assert_eq!(queue.dropped(), 0);
        let begun = Instant::now();
        queue.push("late".into()).await;
        assert_eq!(begun.elapsed(), WAIT_MAX);
        for _ in 0..1000 {
            queue.push("lost".into()).await;
        }
        assert_eq!(begun.elapsed(), WAIT_MAX);
        assert_eq!(queue.dropped(), 1001);
        // It is written again.
        assert_eq!(lines.try_recv().as_deref(), Ok("0"));
        lines.written();
        queue.push("kept".into()).await;
        assert_eq!(queue.dropped(), 1001);
        let mut last = String::new();
        while let Ok(line) = lines.try_recv() {
            last = line;
        }
        assert_eq!(last, "kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a6_large_events_are_bounded_in_bytes() {
        let (queue, mut lines) = queue();
        let event = "x".repeat(BYTES_MAX / 4);
        for _ in 0..4 {
            queue.push(event.clone()).await;
        }
        queue.push(event.clone()).await;
        assert_eq!(queue.dropped(), 1);
        // A waiting request gets the room of the events that are taken.
        lines.written();
        let (_, taken) = tokio::join!(queue.push(event.clone()), async { lines.try_recv().is_ok() });
        assert!(taken);
        assert_eq!(queue.dropped(), 1);
        while lines.try_recv().is_ok() {}
        lines.written();
        queue.push("x".repeat(BYTES_MAX + 1)).await;
        assert!(lines.try_recv().is_ok());
    }
}
