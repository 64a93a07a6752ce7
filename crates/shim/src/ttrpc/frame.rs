//! Frames of ttrpc: a header of ten bytes and a message, read from and written to a socket that does not block.

use std::io;
use std::os::fd::AsFd;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::ttrpc::MessageHeader;
use containerd_shim_protos::ttrpc::proto::{MESSAGE_HEADER_LENGTH, MESSAGE_LENGTH_MAX};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Bytes read at once; most messages are smaller.
const CHUNK_BYTES: usize = 4096;
/// What may wait for a peer that does not read. It holds the largest message, and then some.
const MAX_PENDING_BYTES: usize = 2 * MESSAGE_LENGTH_MAX;

/// A received message.
pub struct Frame {
    pub header: MessageHeader,
    /// Nothing if the message was too long; it has been skipped.
    pub payload: Option<Vec<u8>>,
}

/// Whether the peer may send more.
#[derive(Debug, PartialEq, Eq)]
pub enum Peer {
    Open,
    Closed,
}

/// Bytes that arrived and are not a whole frame yet.
#[derive(Default)]
pub struct Reader {
    buffer: Vec<u8>,
    /// Bytes of a message that is too long.
    skip: usize,
}

impl Reader {
    /// Takes what has arrived, until there is no more.
    pub fn fill(&mut self, socket: impl AsFd, frames: &mut Vec<Frame>) -> io::Result<Peer> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            match rustix::io::read(&socket, &mut chunk) {
                Ok(0) => return Ok(Peer::Closed),
                Ok(length) => self.take(&chunk[..length], frames),
                Err(Errno::AGAIN) => return Ok(Peer::Open),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(Peer::Closed),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn take(&mut self, bytes: &[u8], frames: &mut Vec<Frame>) {
        let skipped = bytes.len().min(self.skip);
        self.skip -= skipped;
        self.buffer.extend_from_slice(&bytes[skipped..]);
        while let Some(frame) = self.next() {
            frames.push(frame);
        }
        if self.buffer.is_empty() {
            // A large message does not cost memory for ever.
            self.buffer = Vec::new();
        }
    }

    fn next(&mut self) -> Option<Frame> {
        let header = MessageHeader::from(self.buffer.get(..MESSAGE_HEADER_LENGTH)?);
        let length = header.length as usize;
        if length > MESSAGE_LENGTH_MAX {
            self.buffer.drain(..MESSAGE_HEADER_LENGTH);
            let skipped = length.min(self.buffer.len());
            self.buffer.drain(..skipped);
            self.skip = length - skipped;
            return Some(Frame {
                header,
                payload: None,
            });
        }
        let payload = self
            .buffer
            .get(MESSAGE_HEADER_LENGTH..MESSAGE_HEADER_LENGTH + length)?
            .to_vec();
        self.buffer.drain(..MESSAGE_HEADER_LENGTH + length);
        Some(Frame {
            header,
            payload: Some(payload),
        })
    }
}

/// Bytes that wait until the peer reads.
#[derive(Default)]
pub struct Writer {
    buffer: Vec<u8>,
    sent: usize,
}

impl Writer {
    /// Queues a message. `header` gets its length.
    pub fn queue(&mut self, header: MessageHeader, message: &impl Message) -> io::Result<()> {
        let payload = message.write_to_bytes()?;
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        if self.buffer.len() - self.sent + payload.len() > MAX_PENDING_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "the peer does not read",
            ));
        }
        self.buffer
            .extend_from_slice(&Vec::from(MessageHeader { length, ..header }));
        self.buffer.extend_from_slice(&payload);
        Ok(())
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self, socket: impl AsFd) -> io::Result<()> {
        while self.sent < self.buffer.len() {
            match send(&socket, &self.buffer[self.sent..], SendFlags::NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        self.buffer = Vec::new();
        self.sent = 0;
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::ttrpc::Request;

    use super::*;

    fn encoded(stream: u32, method: &str) -> Vec<u8> {
        let mut writer = Writer::default();
        let request = Request {
            method: method.into(),
            ..Request::default()
        };
        writer
            .queue(MessageHeader::new_request(stream, 0), &request)
            .unwrap();
        writer.buffer
    }

    fn read(reader: &mut Reader, bytes: &[u8]) -> Vec<(u32, Option<String>)> {
        let mut frames = Vec::new();
        reader.take(bytes, &mut frames);
        frames
            .into_iter()
            .map(|frame| {
                let method = frame
                    .payload
                    .map(|payload| Request::parse_from_bytes(&payload).unwrap().method);
                (frame.header.stream_id, method)
            })
            .collect()
    }

    #[test]
    fn frames_are_found_wherever_the_stream_is_cut() {
        let stream = [encoded(1, "Create"), encoded(3, ""), encoded(5, "Start")].concat();
        let whole = vec![
            (1, Some("Create".to_owned())),
            (3, Some(String::new())),
            (5, Some("Start".to_owned())),
        ];
        assert_eq!(read(&mut Reader::default(), &stream), whole);
        for size in 1..stream.len() {
            let mut reader = Reader::default();
            let frames: Vec<_> = stream
                .chunks(size)
                .flat_map(|chunk| read(&mut reader, chunk))
                .collect();
            assert_eq!(frames, whole, "in pieces of {size}");
            assert_eq!(reader.buffer.capacity(), 0);
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_skipped_and_the_next_one_read() {
        let length = u32::try_from(MESSAGE_LENGTH_MAX + 1).unwrap();
        let mut stream = Vec::from(MessageHeader::new_request(1, length));
        stream.resize(stream.len() + MESSAGE_LENGTH_MAX + 1, 0xff);
        stream.extend(encoded(3, "State"));
        let mut reader = Reader::default();
        let mut frames = Vec::new();
        for chunk in stream.chunks(CHUNK_BYTES) {
            frames.extend(read(&mut reader, chunk));
            assert!(reader.buffer.len() <= 2 * CHUNK_BYTES, "nothing of it is kept");
        }
        assert_eq!(frames, [(1, None), (3, Some("State".to_owned()))]);
    }
}
