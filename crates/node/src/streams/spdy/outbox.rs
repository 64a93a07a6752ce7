//! What waits to be written to a connection, in the order of the wire.
//!
//! Data waits for room ([`Outbox::poll_data`]), so a slow peer slows the writers down. Everything else is put in at
//! once, so that the reading half never waits for the writing half: each stream has at most one reply, one FIN and
//! one reset, and pings are counted.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::frame::Reset;
use super::headers::Headers;

/// Data waiting on one connection, all streams together.
const MAX_DATA_BYTES: usize = 256 * 1024;
/// Ping answers waiting. client-go pings every five seconds; a peer that floods is disconnected.
const MAX_PINGS: usize = 64;

#[derive(Debug)]
pub(super) enum OutgoingFrame {
    Open {
        stream: u32,
        headers: Headers,
    },
    Reply {
        stream: u32,
    },
    Data {
        stream: u32,
        bytes: Bytes,
        fin: bool,
    },
    Reset {
        stream: u32,
        reset: Reset,
    },
    /// The answer to the peer's.
    Ping(u32),
    OwnPing(u32),
    GoAway {
        last_stream: u32,
    },
}

#[derive(Default)]
struct State {
    queue: VecDeque<OutgoingFrame>,
    data_bytes: usize,
    pings: usize,
    writers: Vec<Waker>,
    /// Nothing more is accepted; what is queued is still sent.
    closed: bool,
}

#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    ready: Notify,
}

/// The connection accepts nothing more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl Outbox {
    /// Queues data once there is room for it.
    pub(super) fn poll_data(
        &self,
        cx: &mut Context<'_>,
        stream: u32,
        data: &[u8],
    ) -> Poll<Result<(), Closed>> {
        let mut state = self.state.lock();
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        if state.data_bytes >= MAX_DATA_BYTES {
            if !state.writers.iter().any(|w| w.will_wake(cx.waker())) {
                state.writers.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        state.data_bytes += data.len();
        state.queue.push_back(OutgoingFrame::Data {
            stream,
            bytes: Bytes::copy_from_slice(data),
            fin: false,
        });
        drop(state);
        self.ready.notify_one();
        Poll::Ready(Ok(()))
    }

    /// Queues anything but data. Data with `fin` carries no bytes.
    pub(super) fn push(&self, out: OutgoingFrame) -> Result<(), Closed> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Closed);
        }
        if matches!(out, OutgoingFrame::Ping(_)) {
            if state.pings >= MAX_PINGS {
                return Err(Closed);
            }
            state.pings += 1;
        }
        state.queue.push_back(out);
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// The next to be written; `None` when closed and empty. One caller only.
    pub(super) async fn pop(&self) -> Option<OutgoingFrame> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(out) = state.queue.pop_front() {
                    match &out {
                        OutgoingFrame::Data { bytes, .. } => state.data_bytes -= bytes.len(),
                        OutgoingFrame::Ping(_) => state.pings -= 1,
                        _ => {}
                    }
                    if state.data_bytes < MAX_DATA_BYTES {
                        state.writers.drain(..).for_each(Waker::wake);
                    }
                    return Some(out);
                }
                if state.closed {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Accepts nothing more. What is queued is sent, unless the connection is broken.
    pub(super) fn close(&self, broken: bool) {
        let mut state = self.state.lock();
        state.closed = true;
        if broken {
            state.queue.clear();
            state.data_bytes = 0;
        }
        state.writers.drain(..).for_each(Waker::wake);
        drop(state);
        self.ready.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn data_waits_for_room_and_control_does_not() {
        let outbox = Outbox::default();
        let mut cx = Context::from_waker(Waker::noop());
        let half = vec![0; MAX_DATA_BYTES / 2];
        assert!(outbox.poll_data(&mut cx, 1, &half).is_ready());
        assert!(outbox.poll_data(&mut cx, 1, &half).is_ready());
        assert!(outbox.poll_data(&mut cx, 1, b"x").is_pending());
        assert_eq!(
            outbox.push(OutgoingFrame::Reset {
                stream: 1,
                reset: Reset::Cancel
            }),
            Ok(())
        );
        assert!(matches!(outbox.pop().await, Some(OutgoingFrame::Data { .. })));
        assert!(outbox.poll_data(&mut cx, 1, b"x").is_ready());
        outbox.close(false);
        assert_eq!(outbox.push(OutgoingFrame::Ping(1)), Err(Closed));
        assert!(matches!(outbox.pop().await, Some(OutgoingFrame::Data { .. })));
        assert!(matches!(outbox.pop().await, Some(OutgoingFrame::Reset { .. })));
        assert!(matches!(outbox.pop().await, Some(OutgoingFrame::Data { .. })));
        assert!(outbox.pop().await.is_none());
    }

    #[test]
    fn a_flood_of_pings_is_rejected() {
        let outbox = Outbox::default();
        let taken = (0..1000)
            .take_while(|id| outbox.push(OutgoingFrame::Ping(*id)).is_ok())
            .count();
        assert_eq!(taken, MAX_PINGS);
    }
}
