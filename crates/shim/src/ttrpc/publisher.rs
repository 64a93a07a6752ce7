//! Events for containerd, over ttrpc to its events service, in the order in which they happened.
//!
//! One event is under way at a time, because containerd handles concurrent calls in any order. An event stays in the
//! queue until containerd has acknowledged it: it survives containerd's restart and may then arrive twice.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use containerd_shim_protos::api::ForwardRequest;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::ttrpc::proto::{KeyValue, MESSAGE_TYPE_RESPONSE};
use containerd_shim_protos::ttrpc::{Code, MessageHeader, Request, Response};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::frame::{Peer, Reader, Writer};
use crate::clock::{Instant, WallTime};
use crate::poll::{Interest, Poll, Source};

const SERVICE: &str = "containerd.services.events.ttrpc.v1.Events";
const METHOD: &str = "Forward";
/// The header by which containerd's services know the namespace.
const NAMESPACE_HEADER: &str = "containerd-namespace-ttrpc";
/// Events kept while containerd is away, some 300 bytes each; the oldest are dropped beyond. Exits are not lost with
/// them: containerd asks for states when it is back.
const MAX_QUEUE: usize = 1024;
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// Without an acknowledgement for so long, the connection is made again.
const ACKNOWLEDGE: Duration = Duration::from_secs(10);

struct Link {
    socket: OwnedFd,
    reader: Reader,
    writer: Writer,
    /// The stream of the event under way.
    waiting: Option<u32>,
    last_stream: u32,
}

pub struct Publisher {
    address: Option<SocketAddrUnix>,
    namespace: String,
    queue: VecDeque<Vec<u8>>,
    link: Option<Link>,
}

impl Publisher {
    /// `address` is the path of containerd's ttrpc socket; without one, events go nowhere.
    pub fn new(address: Option<&str>, namespace: &str) -> Self {
        let address = address.and_then(|path| SocketAddrUnix::new(path).ok());
        Publisher {
            address,
            namespace: namespace.to_owned(),
            queue: VecDeque::new(),
            link: None,
        }
    }

    /// Whether all events have been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues an event. `kind` is its protobuf name.
    pub fn publish(&mut self, topic: &str, kind: &str, event: &impl Message) -> io::Result<()> {
        if self.address.is_none() {
            return Ok(());
        }
        let envelope = Envelope {
            timestamp: WallTime::now().to_message(),
            namespace: self.namespace.clone(),
            topic: topic.to_owned(),
            event: MessageField::some(Any {
                type_url: kind.to_owned(),
                value: event.write_to_bytes()?,
                ..Any::default()
            }),
            ..Envelope::default()
        };
        let request = ForwardRequest {
            envelope: MessageField::some(envelope),
            ..ForwardRequest::default()
        };
        if self.queue.len() >= MAX_QUEUE {
            // The first one may be under way.
            self.queue.remove(1);
            crate::log::error("containerd takes no events: the oldest one is dropped", "");
        }
        self.queue.push_back(request.write_to_bytes()?);
        Ok(())
    }

    /// Continues: takes acknowledgements, sends the next event, connects. Returns when to be called again even if nothing
    /// arrives.
    pub fn run(&mut self, poll: &Poll, now: Instant) -> Option<Instant> {
        if let Err(e) = self.receive() {
            crate::log::warn(
                format_args!("the connection to containerd's events service: {e}"),
                "",
            );
            self.link = None;
        }
        if self.queue.is_empty() {
            return None;
        }
        match self.send(poll) {
            Ok(()) => Some(now.after(ACKNOWLEDGE)),
            Err(_) => {
                self.link = None;
                Some(now.after(RETRY))
            }
        }
    }

    /// The time that [`run`](Self::run) returned has passed.
    pub fn expired(&mut self) {
        self.link = None;
    }

    fn receive(&mut self) -> io::Result<()> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        link.writer.flush(&link.socket)?;
        let mut frames = Vec::new();
        let peer = link.reader.fill(&link.socket, &mut frames)?;
        for frame in frames {
            let (header, Some(payload)) = (frame.header, frame.payload) else {
                continue;
            };
            if header.type_ != MESSAGE_TYPE_RESPONSE || link.waiting != Some(header.stream_id) {
                continue;
            }
            link.waiting = None;
            self.queue.pop_front();
            let response = Response::parse_from_bytes(&payload)?;
            if let Some(status) = response
                .status
                .as_ref()
                .filter(|status| status.code != Code::OK.into())
            {
                // Not a matter of time: containerd does not like the event.
                crate::log::error(
                    format_args!("containerd rejects an event: {}", status.message),
                    "",
                );
            }
        }
        if peer == Peer::Closed {
            self.link = None;
        }
        Ok(())
    }

    fn send(&mut self, poll: &Poll) -> io::Result<()> {
        let link = match &mut self.link {
            Some(link) => link,
            None => {
                let socket = self.connect()?;
                poll.add(&socket, Source::Publisher, Interest::Both)?;
                self.link.insert(Link {
                    socket,
                    reader: Reader::default(),
                    writer: Writer::default(),
                    waiting: None,
                    last_stream: 0,
                })
            }
        };
        if link.waiting.is_some() {
            return Ok(());
        }
        let Some(event) = self.queue.front() else {
            return Ok(());
        };
        let request = Request {
            service: SERVICE.to_owned(),
            method: METHOD.to_owned(),
            payload: event.clone(),
            metadata: vec![KeyValue {
                key: NAMESPACE_HEADER.to_owned(),
                value: self.namespace.clone(),
                ..KeyValue::default()
            }],
            ..Request::default()
        };
        // A client's streams are odd.
        let stream = if link.last_stream == 0 {
            1
        } else {
            link.last_stream.wrapping_add(2)
        };
        link.last_stream = stream;
        link.writer
            .queue(MessageHeader::new_request(stream, 0), &request)?;
        link.waiting = Some(stream);
        link.writer.flush(&link.socket)
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let address = self.address.as_ref().ok_or(Errno::NOTCONN)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // A Unix socket is connected at once, or not at all.
        connect(&socket, address)?;
        Ok(socket)
    }
}
