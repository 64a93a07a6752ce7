//! Clients that speak as kubectl does: WebSocket channels, SPDY, SPDY in a WebSocket.

use futures::{SinkExt, StreamExt};
use knarr_node::streams::spdy::{Connection, Headers, Role, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role as WebSocketRole;

use crate::LIMIT;
use crate::pod::{Node, ask};

type Socket = WebSocketStream<DuplexStream>;

async fn websocket(node: &Node, path: &str, protocol: &str) -> Socket {
    let mut io = node.dial();
    let headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", protocol),
    ];
    let head = ask(&mut io, &format!("GET {path}"), "1.1", &headers).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    WebSocketStream::from_raw_socket(io, WebSocketRole::Client, None).await
}

/// All that came, up to the goodbye.
#[derive(Debug, Default)]
pub struct Ended {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub status: String,
}

pub struct Channels(Socket);

impl Channels {
    pub async fn open(node: &Node, path: &str, protocol: &str) -> Self {
        Channels(websocket(node, path, protocol).await)
    }

    pub async fn send(&mut self, channel: u8, data: &[u8]) {
        self.0
            .send(Message::Binary([&[channel], data].concat().into()))
            .await
            .unwrap();
    }

    pub async fn rest(&mut self) -> Ended {
        let mut ended = Ended::default();
        loop {
            let message = timeout(LIMIT, self.0.next()).await;
            let message =
                message.unwrap_or_else(|_| panic!("still running; status so far: {:?}", ended.status));
            if !ended.take(message.expect("no goodbye").unwrap()) {
                return ended;
            }
        }
    }

    /// Sends all and ends the channel, reading at the same time.
    pub async fn send_file_and_end(&mut self, channel: u8, file: &[u8]) -> Ended {
        let (mut sink, mut stream) = (&mut self.0).split();
        let send = async {
            for piece in file.chunks(32 * 1024) {
                let message = Message::Binary([&[channel], piece].concat().into());
                if sink.send(message).await.is_err() {
                    return; // the command has ended
                }
            }
            // Likewise.
            let _ = sink.send(Message::Binary(vec![255, channel].into())).await;
        };
        let receive = async {
            let mut ended = Ended::default();
            while let Some(message) = timeout(LIMIT, stream.next()).await.expect("nothing comes") {
                if !ended.take(message.unwrap()) {
                    break;
                }
            }
            ended
        };
        tokio::join!(send, receive).1
    }
}

impl Ended {
    /// False at the goodbye.
    fn take(&mut self, message: Message) -> bool {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Close(_) => return false,
            other => panic!("{other:?}"),
        };
        match bytes[0] {
            1 => self.stdout.extend_from_slice(&bytes[1..]),
            2 => self.stderr.extend_from_slice(&bytes[1..]),
            3 => self.status += std::str::from_utf8(&bytes[1..]).unwrap(),
            other => panic!("channel {other}"),
        }
        true
    }
}

pub struct Spdy {
    _connection: Connection,
    streams: Vec<(String, Stream)>,
}

impl Spdy {
    pub async fn open(node: &Node, path: &str, kinds: &[&str]) -> Self {
        let mut io = node.dial();
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
        ];
        let head = ask(&mut io, &format!("POST {path}"), "1.1", &headers).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let (connection, _) = Connection::start(io, Role::Client).unwrap();
        let mut streams = Vec::new();
        for kind in kinds {
            let stream = connection
                .open(Headers::from_iter([("streamType", *kind)]))
                .await
                .unwrap();
            streams.push((kind.to_string(), stream));
        }
        Spdy {
            _connection: connection,
            streams,
        }
    }

    pub fn take(&mut self, kind: &str) -> Stream {
        let at = self.streams.iter().position(|(k, _)| k == kind).unwrap();
        self.streams.remove(at).1
    }

    pub async fn read(&mut self, kind: &str) -> Vec<u8> {
        let (mut stream, mut bytes) = (self.take(kind), Vec::new());
        let read = timeout(LIMIT, stream.read_to_end(&mut bytes)).await;
        read.unwrap_or_else(|_| panic!("{kind} is still running"))
            .unwrap();
        bytes
    }
}

pub struct Forward(Connection);

/// As kubectl since 1.31: SPDY in a WebSocket.
pub async fn port_forward(node: &Node) -> Forward {
    let path = format!("/portForward/default/{}", crate::NAME);
    let socket = websocket(node, &path, "SPDY/3.1+portforward.k8s.io").await;
    let (mut sink, mut stream) = socket.split();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (mut read, mut write) = tokio::io::split(theirs);
    tokio::spawn(async move {
        while let Some(Ok(Message::Binary(bytes))) = stream.next().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 4096];
        while let Ok(length @ 1..) = read.read(&mut buffer).await {
            if sink
                .send(Message::Binary(buffer[..length].to_vec().into()))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    Forward(Connection::start(ours, Role::Client).unwrap().0)
}

impl Forward {
    /// Data and error stream of a new connection.
    pub async fn pair(&self, port: u16, request: usize) -> (Stream, Stream) {
        let (port, request) = (port.to_string(), request.to_string());
        let open = async |kind| {
            let headers = [("port", &*port), ("requestID", &*request), ("streamType", kind)];
            self.0.open(Headers::from_iter(headers)).await.unwrap()
        };
        let error = open("error").await;
        (open("data").await, error)
    }
}
