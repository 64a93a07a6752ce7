//! Requests to rtnetlink: many in one message to the kernel, each with its own answer.

use std::io;
use std::os::fd::AsFd;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// The kernel answers at once; this only bounds what must not happen.
const ANSWER_SECONDS: i64 = 10;
/// How often a dump is begun again that was interrupted by changes.
const DUMP_ATTEMPTS: usize = 8;
const ALIGNMENT: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    #[error("cannot send to the kernel")]
    Send(#[source] io::Error),
    #[error("cannot receive the kernel's answer")]
    Receive(#[source] io::Error),
    #[error("cannot read the kernel's answer")]
    Malformed(#[source] DecodeError),
    #[error("cannot {operation}")]
    Rejected {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot {operation}: it changes all the time")]
    Interrupted { operation: &'static str },
}

impl Error {
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Rejected { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// The link, or what was to be removed from it, does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENODEV | libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL)
        )
    }
}

/// One change.
#[derive(Debug)]
pub struct Request {
    /// For errors: `add the route`.
    pub operation: &'static str,
    pub message: RouteNetlinkMessage,
    /// In addition to `REQUEST` and `ACK`.
    pub flags: u16,
}

/// A socket in the network namespace of the thread that opened it.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// A socket of this protocol of netlink, in the network namespace of the calling thread, that waits a limited time for an
/// answer.
pub(super) fn open(protocol: isize) -> Result<Socket, Error> {
    let mut socket = Socket::new(protocol).map_err(Error::Open)?;
    socket.bind_auto().map_err(Error::Open)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(Error::Open)?;
    socket.set_cap_ack(true).map_err(Error::Open)?;
    let bound = TimeVal::seconds(ANSWER_SECONDS);
    setsockopt(&socket.as_fd(), sockopt::ReceiveTimeout, &bound)
        .map_err(|errno| Error::Open(errno.into()))?;
    Ok(socket)
}

impl Netlink {
    pub fn open() -> Result<Self, Error> {
        let socket = open(NETLINK_ROUTE)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Makes all changes in order; the error is that of the first one that failed, those behind it were tried.
    pub fn execute(&mut self, requests: Vec<Request>) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        let first = self.sequence.wrapping_add(1);
        let mut buffer = Vec::new();
        let mut operations = Vec::with_capacity(requests.len());
        for request in requests {
            operations.push(request.operation);
            let flags = NLM_F_REQUEST | NLM_F_ACK | request.flags;
            self.write(&mut buffer, request.message, flags);
        }
        self.socket.send(&buffer, 0).map_err(Error::Send)?;
        let mut answered = 0;
        let mut failed: Option<(usize, Error)> = None;
        while answered < operations.len() {
            self.receive(|header, payload| {
                let index = header.sequence_number.wrapping_sub(first) as usize;
                let Some(operation) = operations.get(index).copied() else {
                    return;
                };
                if let NetlinkPayload::Error(answer) = payload {
                    answered += 1;
                    if answer.code.is_some() && failed.as_ref().is_none_or(|(before, _)| index < *before) {
                        let source = answer.to_io();
                        failed = Some((index, Error::Rejected { operation, source }));
                    }
                }
            })?;
        }
        match failed {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    pub fn one(
        &mut self,
        operation: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), Error> {
        self.execute(vec![Request {
            operation,
            message,
            flags,
        }])
    }

    /// All objects that the message requests, as one dump.
    pub fn dump(
        &mut self,
        operation: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(all) = self.dump_once(operation, message.clone())? {
                return Ok(all);
            }
        }
        Err(Error::Interrupted { operation })
    }

    /// One object by what the message names.
    pub fn get(
        &mut self,
        operation: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<Option<RouteNetlinkMessage>, Error> {
        let mut buffer = Vec::new();
        self.write(&mut buffer, message, NLM_F_REQUEST | NLM_F_ACK);
        let sequence = self.sequence;
        self.socket.send(&buffer, 0).map_err(Error::Send)?;
        let (mut found, mut answer) = (None, None);
        while answer.is_none() {
            self.receive(|header, payload| match payload {
                _ if header.sequence_number != sequence => (),
                NetlinkPayload::InnerMessage(message) => found = Some(message),
                NetlinkPayload::Error(error) => answer = Some(error),
                _ => (),
            })?;
        }
        match answer.filter(|answer| answer.code.is_some()) {
            Some(error) => Err(Error::Rejected {
                operation,
                source: error.to_io(),
            }),
            None => Ok(found),
        }
    }

    fn dump_once(
        &mut self,
        operation: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<Option<Vec<RouteNetlinkMessage>>, Error> {
        let mut buffer = Vec::new();
        self.write(&mut buffer, message, NLM_F_REQUEST | NLM_F_DUMP);
        let sequence = self.sequence;
        self.socket.send(&buffer, 0).map_err(Error::Send)?;
        let (mut all, mut is_done, mut is_whole) = (Vec::new(), false, true);
        let mut failed = None;
        while !is_done {
            self.receive(|header, payload| {
                if header.sequence_number != sequence {
                    return;
                }
                is_whole &= header.flags & netlink_packet_core::NLM_F_DUMP_INTR == 0;
                match payload {
                    NetlinkPayload::InnerMessage(message) => all.push(message),
                    NetlinkPayload::Done(_) => is_done = true,
                    NetlinkPayload::Error(error) => {
                        is_done = true;
                        failed = error.code.is_some().then(|| error.to_io());
                    }
                    _ => (),
                }
            })?;
        }
        match failed {
            Some(source) => Err(Error::Rejected { operation, source }),
            None => Ok(is_whole.then_some(all)),
        }
    }

    fn write(&mut self, buffer: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let start = buffer.len();
        buffer.resize(start + message.buffer_len().next_multiple_of(ALIGNMENT), 0);
        if let Some(place) = buffer.get_mut(start..) {
            message.serialize(place);
        }
    }

    fn receive(
        &mut self,
        mut take: impl FnMut(NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>),
    ) -> Result<(), Error> {
        let (bytes, _) = self.socket.recv_from_full().map_err(Error::Receive)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let length = NetlinkBuffer::new_checked(rest)
                .map_err(Error::Malformed)?
                .length() as usize;
            let message =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(Error::Malformed)?;
            let (header, payload) = message.into_parts();
            take(header, payload);
            rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        Ok(())
    }
}
