//! What a connection and its streams share: the table of the streams, and the frames that wait to be written.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::frame::Reset;
use super::outbox::{Outbox, OutgoingFrame};

/// Pieces that wait for a stream's reader before the connection stops reading: 8 × 32 KiB.
const MAX_PIECES: usize = 8;
/// Bytes that wait for readers on one connection, all streams together, before it stops reading.
const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// The dialling side opens streams with odd numbers, the answering one with even ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

impl Role {
    /// Is this a number that we give out?
    pub(super) fn owns(self, number: u32) -> bool {
        number % 2 == u32::from(self == Role::Client)
    }
}

/// The state of the peer's side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Fin,
    Reset,
}

/// Bytes that wait for a stream's reader, and their part of [`MAX_UNREAD_BYTES`].
pub(super) struct Piece {
    pub(super) bytes: Bytes,
    pub(super) _permit: OwnedSemaphorePermit,
}

pub(super) struct Entry {
    /// `None` once the peer's side has ended.
    pub(super) inbound: Option<mpsc::Sender<Piece>>,
    pub(super) end: End,
    /// The peer accepts nothing more. After its FIN this does not affect what it sent.
    pub(super) reset: Option<Reset>,
    /// Waits for the peer's answer to our opening.
    pub(super) reply: Option<oneshot::Sender<()>>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) streams: HashMap<u32, Entry>,
    pub(super) last_own: u32,
    pub(super) last_peer: u32,
    pub(super) broken: bool,
}

pub(super) struct Shared {
    pub(super) outbox: Outbox,
    pub(super) table: Mutex<Table>,
    pub(super) role: Role,
    /// What is left of [`MAX_UNREAD_BYTES`].
    pub(super) unread: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn new(role: Role) -> Self {
        Shared {
            outbox: Outbox::default(),
            table: Mutex::default(),
            role,
            unread: Arc::new(Semaphore::new(MAX_UNREAD_BYTES)),
        }
    }

    pub(super) fn end(&self, stream: u32) -> End {
        self.table
            .lock()
            .streams
            .get(&stream)
            .map_or(End::Open, |entry| entry.end)
    }

    /// Whether the peer has torn the stream down.
    pub(super) fn reset(&self, stream: u32) -> Option<Reset> {
        self.table
            .lock()
            .streams
            .get(&stream)
            .and_then(|entry| entry.reset)
    }

    /// Takes a stream out of the table and, unless the peer already did, resets it.
    pub(super) fn forget(&self, stream: u32, reset: Option<Reset>) {
        let Some(entry) = self.table.lock().streams.remove(&stream) else {
            return;
        };
        if let (Some(reset), None) = (reset, entry.reset) {
            // A closed connection has informed the peer already.
            let _ = self.outbox.push(OutgoingFrame::Reset { stream, reset });
        }
    }

    pub(super) fn add(
        &self,
        table: &mut Table,
        stream: u32,
        end: End,
        reply: Option<oneshot::Sender<()>>,
    ) -> mpsc::Receiver<Piece> {
        let (tx, rx) = mpsc::channel(MAX_PIECES);
        let inbound = (end == End::Open).then_some(tx);
        table.streams.insert(
            stream,
            Entry {
                inbound,
                end,
                reset: None,
                reply,
            },
        );
        match self.role.owns(stream) {
            true => table.last_own = stream,
            false => table.last_peer = stream,
        }
        rx
    }

    pub(super) fn fin(&self, stream: u32) {
        if let Some(entry) = self.table.lock().streams.get_mut(&stream) {
            entry.end = End::Fin;
            entry.inbound = None;
        }
    }

    pub(super) fn torn_down(&self, stream: u32, reset: Reset) {
        if let Some(entry) = self.table.lock().streams.get_mut(&stream) {
            if entry.end == End::Open {
                entry.end = End::Reset;
            }
            entry.reset = Some(reset);
            entry.inbound = None;
            entry.reply = None;
        }
    }

    /// Nothing comes any more: readers get what is queued, then the error.
    pub(super) fn fail(&self) {
        let mut table = self.table.lock();
        table.broken = true;
        for entry in table.streams.values_mut() {
            entry.inbound = None;
            entry.reply = None;
        }
        drop(table);
        self.outbox.close(true);
    }
}
