//! A socket of nfnetlink. The kernel works while a message is sent: afterwards its answers are there, or there are none.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};

use crate::error::{Error, Operation};
use crate::protocol::{attribute, flag, message};
use crate::wire::{Attributes, HEADER, Malformed, Message, Messages, Writer, u32_at};

/// The kernel's datagrams are of 32 KiB at most; answers to single messages are shorter.
const RECEIVE_BYTES: usize = 64 << 10;
/// Room for the answers to one batch, of which there is one for each rejected message.
const RECEIVE_QUEUE_BYTES: usize = 1 << 20;
/// The kernel charges its own administration to the send buffer, too.
const SEND_OVERHEAD_BYTES: usize = 4 << 10;
/// How often a dump is made again because what it shows has changed meanwhile.
const DUMP_TRIES: usize = 20;

#[derive(Debug)]
pub(crate) struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    send_bytes: usize,
    buffer: Vec<u8>,
}

/// The kernel's answer to one message: `Ok` is an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub sequence: u32,
    pub result: Result<(), Errno>,
    /// Where in the message, its header included, the attribute is that was the reason.
    pub offset: Option<usize>,
}

impl Answer {
    pub fn of(message: &Message<'_>) -> Result<Self, Malformed> {
        let code = u32_at(message.body, 0).ok_or(Malformed("an error without its number"))?;
        let offset = match message.flags & flag::ACK_TLVS {
            0 => None,
            // Behind the error: the header of the request, and all of it unless the answer is capped.
            _ => {
                let length = u32_at(message.body, 4).ok_or(Malformed("an error without its request"))?;
                let length = match message.flags & flag::CAPPED {
                    0 => length as usize,
                    _ => HEADER,
                };
                let start = length.checked_add(4).map(crate::wire::padded);
                let attributes = start.and_then(|start| message.body.get(start..));
                let attributes = attributes.ok_or(Malformed("an error is shorter than its request"))?;
                let offset = Attributes(attributes).find(attribute::ACK_OFFSET)?;
                offset
                    .and_then(|value| u32_at(value, 0))
                    .map(|offset| offset as usize)
            }
        };
        Ok(Answer {
            sequence: message.sequence,
            result: match code.cast_signed() {
                0 => Ok(()),
                code => Err(Errno::from_raw(code.saturating_neg())),
            },
            offset,
        })
    }
}

/// What a request is about, for errors.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub operation: Operation,
    pub target: Arc<str>,
}

impl About {
    pub fn new(operation: Operation, target: impl Into<Arc<str>>) -> Self {
        About {
            operation,
            target: target.into(),
        }
    }

    fn send(&self, source: Errno) -> Error {
        Error::Send {
            operation: self.operation,
            target: self.target.clone(),
            source,
        }
    }

    pub fn receive(&self, source: Errno) -> Error {
        Error::Receive {
            operation: self.operation,
            target: self.target.clone(),
            source,
        }
    }

    pub fn malformed(&self, source: Malformed) -> Error {
        Error::Malformed {
            operation: self.operation,
            target: self.target.clone(),
            source,
        }
    }

    fn request(&self, source: Errno) -> Error {
        Error::Request {
            operation: self.operation,
            target: self.target.clone(),
            source,
        }
    }
}

impl Socket {
    /// In the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let mut inner = netlink_sys::Socket::new(NETLINK_NETFILTER)?;
            inner.bind_auto()?;
            // Of a connected socket the kernel lets nothing through but its own messages.
            inner.connect(&netlink_sys::SocketAddr::new(0, 0))?;
            inner.set_cap_ack(true)?;
            inner.set_ext_ack(true)?;
            setsockopt(&inner, sockopt::RcvBufForce, &RECEIVE_QUEUE_BYTES)?;
            Ok(inner)
        };
        Ok(Socket {
            inner: open().map_err(Error::Open)?,
            sequence: 0,
            send_bytes: 0,
            buffer: vec![0; RECEIVE_BYTES],
        })
    }

    /// The first of as many numbers for messages.
    pub fn sequence(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    /// Sends messages and gives the answers to them, as far as any came.
    pub fn exchange(&mut self, messages: &[u8], about: &About) -> Result<Vec<Answer>, Error> {
        self.send(messages, about)?;
        let mut answers = Vec::new();
        while let Some(datagram) = self.receive().map_err(|e| about.receive(e))? {
            for message in Messages(datagram) {
                let message = message.map_err(|e| about.malformed(e))?;
                if message.kind == message::ERROR {
                    answers.push(Answer::of(&message).map_err(|e| about.malformed(e))?);
                }
            }
        }
        Ok(answers)
    }

    /// Makes a request and hands each message of the answer to `each`. `begin` is called before the first, once more if
    /// the kernel says that what it dumped has changed meanwhile.
    pub fn request<T>(
        &mut self,
        about: &About,
        flags: u16,
        write: impl Fn(&mut Writer, u16, u32),
        mut begin: impl FnMut() -> T,
        mut each: impl FnMut(&mut T, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        let is_dump = flags & flag::DUMP == flag::DUMP;
        for _ in 0..DUMP_TRIES {
            let sequence = self.sequence(1);
            let mut writer = Writer::default();
            write(&mut writer, flags | flag::REQUEST, sequence);
            self.send(&writer.buffer, about)?;
            let mut collected = begin();
            match self.collect(sequence, is_dump, about, &mut collected, &mut each) {
                Ok(Dump::Complete) => return Ok(collected),
                Ok(Dump::Interrupted) => (),
                Err(error) => {
                    // A dump that is under way would reject the next one.
                    self.drain();
                    return Err(error);
                }
            }
        }
        Err(Error::Interrupted {
            operation: about.operation,
            target: about.target.clone(),
        })
    }

    fn collect<T>(
        &mut self,
        sequence: u32,
        is_dump: bool,
        about: &About,
        collected: &mut T,
        each: &mut impl FnMut(&mut T, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<Dump, Error> {
        let mut is_interrupted = false;
        loop {
            let datagram = self.receive().map_err(|e| about.receive(e))?;
            let Some(datagram) = datagram else {
                return Err(about.receive(Errno::EAGAIN));
            };
            for message in Messages(datagram) {
                let message = message.map_err(|e| about.malformed(e))?;
                if message.sequence != sequence {
                    continue;
                }
                is_interrupted |= message.flags & flag::DUMP_INTR != 0;
                match message.kind {
                    message::ERROR => {
                        let answer = Answer::of(&message).map_err(|e| about.malformed(e))?;
                        match answer.result {
                            Err(Errno::EINTR) => is_interrupted = true,
                            Err(errno) => return Err(about.request(errno)),
                            Ok(()) => (),
                        }
                        return Ok(Dump::of(is_interrupted));
                    }
                    message::DONE => {
                        // A dump that ended early has an error code.
                        let code = u32_at(message.body, 0).unwrap_or(0).cast_signed();
                        match Errno::from_raw(code.saturating_neg()) {
                            _ if code >= 0 => (),
                            Errno::EINTR => is_interrupted = true,
                            errno => return Err(about.request(errno)),
                        }
                        return Ok(Dump::of(is_interrupted));
                    }
                    _ => each(collected, &message).map_err(|e| about.malformed(e))?,
                }
                if !is_dump {
                    return Ok(Dump::Complete);
                }
            }
        }
    }

    fn send(&mut self, messages: &[u8], about: &About) -> Result<(), Error> {
        self.drain();
        let needed = messages.len() + SEND_OVERHEAD_BYTES;
        if needed > self.send_bytes {
            setsockopt(&self.inner, sockopt::SndBufForce, &needed).map_err(|e| about.send(e))?;
            self.send_bytes = needed;
        }
        loop {
            match send(self.inner.as_raw_fd(), messages, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => (),
                Err(errno) => return Err(about.send(errno)),
            }
        }
    }

    /// The next datagram; `None` when there is none.
    fn receive(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            match recv(self.inner.as_raw_fd(), &mut self.buffer, flags) {
                // With MSG_TRUNC this is the datagram's length, received in whole or not.
                Ok(length) => return self.buffer.get(..length).map(Some).ok_or(Errno::EMSGSIZE),
                Err(Errno::EINTR) => (),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Reads what an earlier call left behind after an error.
    fn drain(&mut self) {
        loop {
            match self.receive() {
                Ok(Some(_)) | Err(Errno::ENOBUFS | Errno::EMSGSIZE) => (),
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// Whether what was dumped is what was there at one moment.
enum Dump {
    Complete,
    Interrupted,
}

impl Dump {
    fn of(is_interrupted: bool) -> Self {
        match is_interrupted {
            true => Dump::Interrupted,
            false => Dump::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_answers_are_read_without_a_panic(
            flags in any::<u16>(),
            body in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let message = Message { kind: message::ERROR, flags, sequence: 1, body: &body };
            let _ = Answer::of(&message);
        }
    }
}
