//! A connection of containerd to the shim: requests in, answers out, in any order.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::ttrpc::proto::MESSAGE_TYPE_REQUEST;
use containerd_shim_protos::ttrpc::{MessageHeader, Request, Response, Status};
use rustix::net::SocketFlags;
use rustix::net::sockopt::socket_peercred;

use super::frame::{Peer, Reader, Writer};
use crate::error::Failure;

/// Which request an answer is for. Its connection may be closed by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    pub connection: u32,
    pub stream: u32,
}

/// A request, or why it cannot be carried out.
pub struct Incoming {
    pub stream: u32,
    pub request: Result<Request, Failure>,
}

pub struct Connection {
    socket: OwnedFd,
    reader: Reader,
    writer: Writer,
}

impl Connection {
    /// Takes a waiting connection; none if there is no more, or its peer is not root.
    pub fn accept(listener: impl AsFd) -> io::Result<Option<Self>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(listener, flags)?;
        let peer = socket_peercred(&socket)?;
        if peer.uid != rustix::process::geteuid() {
            return Ok(None);
        }
        Ok(Some(Connection {
            socket,
            reader: Reader::default(),
            writer: Writer::default(),
        }))
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Takes the requests that have arrived.
    pub fn receive(&mut self) -> io::Result<(Vec<Incoming>, Peer)> {
        let mut frames = Vec::new();
        let peer = self.reader.fill(&self.socket, &mut frames)?;
        let requests = frames
            .into_iter()
            // Other types are of protocols to come; ttrpc says to ignore them.
            .filter(|frame| frame.header.type_ == MESSAGE_TYPE_REQUEST)
            .map(|frame| {
                let stream = frame.header.stream_id;
                let request = match frame.payload {
                    None => Err(Failure::invalid("the message is too long")),
                    Some(_) if stream % 2 == 0 => Err(Failure::invalid("stream id must be odd")),
                    Some(payload) => Request::parse_from_bytes(&payload)
                        .map_err(|e| Failure::invalid(format!("unmarshal request error: {e}"))),
                };
                Incoming { stream, request }
            })
            .collect();
        Ok((requests, peer))
    }

    /// Answers a request and sends what the socket takes.
    pub fn answer(&mut self, stream: u32, answer: Result<Vec<u8>, Failure>) -> io::Result<()> {
        let mut response = Response::new();
        match answer {
            Ok(payload) => response.payload = payload,
            Err(failure) => {
                response.status = MessageField::some(Status {
                    code: failure.code.into(),
                    message: failure.message,
                    ..Status::default()
                });
            }
        }
        self.writer
            .queue(MessageHeader::new_response(stream, 0), &response)?;
        self.flush()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush(&self.socket)
    }

    pub fn is_flushed(&self) -> bool {
        self.writer.is_empty()
    }
}
