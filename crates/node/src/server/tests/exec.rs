//! Exec and attach in every protocol that clients have.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::*;
use crate::streams::spdy::{Connection, Headers, Role, Stream};

const CAT: &str = "/exec/ns/p/c?command=cat&input=1&output=1&error=1";
const EXIT: &str = "/exec/ns/p/c?command=exit&command=3&output=1&error=1";

struct Channels {
    socket: WebSocketStream<DuplexStream>,
    base64: bool,
    /// The first message is an empty one.
    is_greeted: bool,
}

impl Channels {
    async fn open(path: &str, protocol: Option<&str>) -> Self {
        let mut io = dial(stream_server::start().await, "/nowhere".into()).await;
        let mut headers = WEBSOCKET.to_vec();
        headers.extend(protocol.map(|protocol| ("Sec-WebSocket-Protocol", protocol)));
        let head = ask(&mut io, &format!("GET {path}"), &headers).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        if let Some(protocol) = protocol {
            assert!(
                head.contains(&format!("sec-websocket-protocol: {protocol}\r\n")),
                "{head}"
            );
        }
        let client = tokio_tungstenite::tungstenite::protocol::Role::Client;
        let socket = WebSocketStream::from_raw_socket(io, client, None).await;
        Channels {
            socket,
            base64: protocol.is_some_and(|protocol| protocol.contains("base64")),
            is_greeted: protocol != Some("v5.channel.k8s.io"),
        }
    }

    async fn send(&mut self, channel: u8, data: &[u8]) {
        let message = match self.base64 {
            true => Message::Text(format!("{channel}{}", BASE64_STANDARD.encode(data)).into()),
            false => Message::Binary([&[channel], data].concat().into()),
        };
        self.socket.send(message).await.unwrap();
    }

    /// Channel and data of the next message; none after a proper close.
    async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let next = timeout(Duration::from_secs(5), self.socket.next())
            .await
            .expect("no message");
        match next.expect("no goodbye").unwrap() {
            Message::Close(frame) => {
                assert_eq!(frame.map(|frame| frame.code), Some(CloseCode::Normal));
                None
            }
            Message::Text(text) if self.base64 => {
                let channel = text.as_bytes()[0] - b'0';
                Some((channel, BASE64_STANDARD.decode(&text[1..]).unwrap()))
            }
            Message::Binary(bytes) if !self.base64 => Some((bytes[0], bytes[1..].to_vec())),
            other => panic!("{other:?}"),
        }
    }

    /// Everything on channels 1, 2 and 3, up to the close.
    async fn rest(&mut self) -> [String; 3] {
        let mut channels = [const { Vec::new() }; 3];
        let mut first = true;
        while let Some((channel, data)) = self.receive().await {
            // Output after the status would be lost by clients that stop there.
            assert!(channels[2].is_empty(), "something after the status");
            if first {
                assert_eq!(data.is_empty(), self.is_greeted, "greeting");
            }
            first = false;
            channels[usize::from(channel) - 1].extend(data);
        }
        channels.map(|data| String::from_utf8(data).unwrap())
    }
}

const EXIT_MESSAGE: &str = "command terminated with non-zero exit code: exit status 3";

fn exit_code(status: &str) -> Value {
    let status: Value = serde_json::from_str(status).unwrap();
    assert_eq!(
        (&status["status"], &status["reason"]),
        (&json!("Failure"), &json!("NonZeroExitCode"))
    );
    status["details"]["causes"][0]["message"].clone()
}

#[tokio::test]
async fn l13_websocket_v5_ends_stdin_and_the_command_with_it() {
    let mut client = Channels::open(CAT, Some("v5.channel.k8s.io")).await;
    let text = "some input ".repeat(10_000);
    for piece in text.as_bytes().chunks(32 * 1024) {
        client.send(0, piece).await;
    }
    client
        .socket
        .send(Message::Binary(vec![255, 0].into()))
        .await
        .unwrap();
    let [stdout, _, status] = client.rest().await;
    assert!(
        stdout == text,
        "{} of {} bytes came back",
        stdout.len(),
        text.len()
    );
    assert_eq!(status, r#"{"status":"Success"}"#);
}

#[tokio::test]
async fn l13_the_exit_code_reaches_clients_of_every_websocket_protocol() {
    for protocol in [
        "v5.channel.k8s.io",
        "v4.channel.k8s.io",
        "v4.base64.channel.k8s.io",
    ] {
        let mut client = Channels::open(EXIT, Some(protocol)).await;
        let [stdout, stderr, status] = client.rest().await;
        assert_eq!((stdout.as_str(), stderr.as_str()), ("out", "err"), "{protocol}");
        assert_eq!(exit_code(&status), "3", "{protocol}");
    }
    for protocol in [
        Some("channel.k8s.io"),
        Some("base64.channel.k8s.io"),
        Some("v3.channel.k8s.io"),
        None,
    ] {
        let mut client = Channels::open(EXIT, protocol).await;
        assert_eq!(client.rest().await, ["out", "err", EXIT_MESSAGE], "{protocol:?}");
    }
}

#[tokio::test]
async fn l13_a_terminal_learns_its_sizes() {
    let exec = "/exec/ns/p/c?command=sizes&input=1&output=1&tty=1";
    let attach = "/attach/ns/p/terminal?input=1&output=1&tty=1";
    for path in [exec, attach] {
        let mut client = Channels::open(path, Some("v4.channel.k8s.io")).await;
        client.send(4, br#"{"Width":80,"Height":24}"#).await;
        client.send(4, br#"{"Width":90,"Height":30}"#).await;
        let [stdout, _, status] = client.rest().await;
        assert_eq!(
            stdout, r#"{"Width":80,"Height":24}{"Width":90,"Height":30}"#,
            "{path}"
        );
        assert_eq!(status, r#"{"status":"Success"}"#);
    }
}

#[tokio::test]
async fn a_runtime_that_breaks_off_is_an_internal_error() {
    let path = "/exec/ns/p/c?command=die&output=1";
    let mut client = Channels::open(path, Some("v4.channel.k8s.io")).await;
    let [_, _, status] = client.rest().await;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(
        (&status["reason"], &status["code"]),
        (&json!("InternalError"), &json!(500))
    );
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("Internal error occurred: error executing command in container: "),
        "{message}"
    );
}

#[tokio::test]
async fn a_client_that_leaves_takes_the_runtimes_connection_along() {
    let node = Arc::new(Node {
        streams: stream_server::start().await,
        log: PathBuf::new(),
    });
    let server = Server::new(node.clone(), node, Arc::new(|| Timestamp::UNIX_EPOCH));
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(theirs).await });
    let path = "GET /exec/ns/p/c?command=sleep&input=1&output=1";
    let head = ask(&mut io, path, &WEBSOCKET).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    drop(io);
    server.streams.close();
    let limit = Duration::from_secs(5);
    timeout(limit, server.streams.wait())
        .await
        .expect("runs on without its client");
}

struct Spdy {
    connection: Connection,
    streams: Vec<(&'static str, Stream)>,
}

impl Spdy {
    async fn open(path: &str, protocol: Option<&str>, kinds: &[&'static str]) -> Self {
        let mut io = dial(stream_server::start().await, "/nowhere".into()).await;
        let mut headers = SPDY.to_vec();
        headers.extend(protocol.map(|protocol| ("X-Stream-Protocol-Version", protocol)));
        let head = ask(&mut io, &format!("POST {path}"), &headers).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let (connection, _) = Connection::start(io, Role::Client).unwrap();
        let mut streams = Vec::new();
        for kind in kinds {
            let stream = connection
                .open(Headers::from_iter([("streamType", *kind)]))
                .await
                .unwrap();
            streams.push((*kind, stream));
        }
        Spdy { connection, streams }
    }

    fn take(&mut self, kind: &str) -> Stream {
        let at = self.streams.iter().position(|(k, _)| *k == kind).unwrap();
        self.streams.remove(at).1
    }

    async fn read(&mut self, kind: &str) -> String {
        let (mut stream, mut text) = (self.take(kind), String::new());
        let read = timeout(Duration::from_secs(5), stream.read_to_string(&mut text)).await;
        read.unwrap_or_else(|_| panic!("{kind} continues after {text:?}"))
            .unwrap();
        text
    }
}

#[tokio::test]
async fn l13_spdy_ends_stdin_and_the_command_with_it() {
    let kinds = ["error", "stdin", "stdout", "stderr"];
    let mut client = Spdy::open(CAT, Some("v4.channel.k8s.io"), &kinds).await;
    let mut stdin = client.take("stdin");
    stdin.write_all(b"through and back").await.unwrap();
    stdin.shutdown().await.unwrap();
    assert_eq!(client.read("stdout").await, "through and back");
    assert_eq!(client.read("error").await, r#"{"status":"Success"}"#);
    timeout(Duration::from_secs(5), client.connection.closed())
        .await
        .expect("not closed");
}

#[tokio::test]
async fn l13_the_exit_code_reaches_clients_of_every_spdy_protocol() {
    let kinds = ["error", "stdout", "stderr"];
    for protocol in [
        Some("v4.channel.k8s.io"),
        Some("v3.channel.k8s.io"),
        Some("channel.k8s.io"),
        None,
    ] {
        let mut client = Spdy::open(EXIT, protocol, &kinds).await;
        assert_eq!(client.read("stdout").await, "out", "{protocol:?}");
        assert_eq!(client.read("stderr").await, "err", "{protocol:?}");
        let status = client.read("error").await;
        match protocol {
            Some("v4.channel.k8s.io") => assert_eq!(exit_code(&status), "3"),
            _ => assert_eq!(status, EXIT_MESSAGE, "{protocol:?}"),
        }
    }
}

#[tokio::test]
async fn l13_spdy_resizes_a_terminal() {
    let path = "/exec/ns/p/c?command=sizes&output=1&tty=1";
    let mut client = Spdy::open(path, Some("v4.channel.k8s.io"), &["error", "stdout", "resize"]).await;
    let mut resize = client.take("resize");
    resize
        .write_all(br#"{"Width":80,"Height":24}{"Width":90,"Height":30}"#)
        .await
        .unwrap();
    assert_eq!(
        client.read("stdout").await,
        r#"{"Width":80,"Height":24}{"Width":90,"Height":30}"#
    );
}
