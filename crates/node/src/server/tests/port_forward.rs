//! Port-forward in every protocol that clients have, to a server on this host.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role as WebSocketRole;

use super::*;
use crate::streams::spdy::{Connection, Headers, Role, Stream};

/// Answers each connection, once it is half closed, with what it got, backwards. Its port.
async fn backwards() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut got = Vec::new();
                socket.read_to_end(&mut got).await.unwrap();
                got.reverse();
                socket.write_all(&got).await.unwrap();
            });
        }
    });
    port
}

/// A port without a listener.
async fn silent() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

async fn pair(connection: &Connection, port: u16, request: Option<&str>) -> (Stream, Stream) {
    let port = port.to_string();
    let mut headers = vec![("port", port.as_str()), ("streamType", "error")];
    headers.extend(request.map(|request| ("requestID", request)));
    let error = connection.open(headers.iter().copied().collect()).await.unwrap();
    headers[1] = ("streamType", "data");
    let data = connection.open(headers.into_iter().collect()).await.unwrap();
    (data, error)
}

async fn all(mut stream: Stream) -> String {
    let mut text = String::new();
    let read = timeout(Duration::from_secs(5), stream.read_to_string(&mut text)).await;
    read.expect("continues").unwrap();
    text
}

async fn forwards(connection: Connection) {
    let port = backwards().await;
    // Two at once, one with the numbers of old clients.
    let (mut first, first_error) = pair(&connection, port, Some("0")).await;
    let (mut second, second_error) = pair(&connection, port, None).await;
    second.write_all(b"olleh").await.unwrap();
    second.shutdown().await.unwrap();
    assert_eq!(all(second).await, "hello");
    first.write_all(b"cba").await.unwrap();
    first.shutdown().await.unwrap();
    assert_eq!(all(first).await, "abc");
    assert_eq!(
        (all(first_error).await, all(second_error).await),
        (String::new(), String::new())
    );

    let silent = silent().await;
    let (mut data, error) = pair(&connection, silent, Some("2")).await;
    let text = all(error).await;
    let expected = format!(
        "error forwarding port {silent} to pod p_ns, uid {UID}: failed to connect to localhost:{silent}"
    );
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(
        data.read_u8().await.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );

    for bad in [
        vec![("streamType", "data")],
        vec![("port", "0"), ("streamType", "data")],
        vec![("port", "1")],
    ] {
        assert!(
            connection.open(Headers::from_iter(bad.clone())).await.is_err(),
            "{bad:?}"
        );
    }
    // The failure of one does not affect the others.
    let (mut last, _) = pair(&connection, port, Some("3")).await;
    last.shutdown().await.unwrap();
    assert_eq!(all(last).await, "");
}

#[tokio::test]
async fn l13_port_forward_over_spdy() {
    let mut io = dial(String::new(), PathBuf::new()).await;
    let mut headers = SPDY.to_vec();
    headers.push(("X-Stream-Protocol-Version", "portforward.k8s.io"));
    let head = ask(&mut io, "POST /portForward/ns/p", &headers).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    forwards(Connection::start(io, Role::Client).unwrap().0).await;
}

/// The client's side of a tunnel: messages in, messages out.
async fn tunnel(io: DuplexStream) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (mut sink, mut stream) = WebSocketStream::from_raw_socket(io, WebSocketRole::Client, None)
        .await
        .split();
    let (mut read, mut write) = tokio::io::split(theirs);
    tokio::spawn(async move {
        while let Some(Ok(Message::Binary(bytes))) = stream.next().await {
            write.write_all(&bytes).await.unwrap();
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 1000];
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
    ours
}

#[tokio::test]
async fn l13_port_forward_over_spdy_in_a_websocket() {
    let mut io = dial(String::new(), PathBuf::new()).await;
    let mut headers = WEBSOCKET.to_vec();
    headers.push(("Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io"));
    let head = ask(&mut io, "GET /portForward/ns/p", &headers).await;
    assert!(
        head.contains("sec-websocket-protocol: SPDY/3.1+portforward.k8s.io\r\n"),
        "{head}"
    );
    forwards(Connection::start(tunnel(io).await, Role::Client).unwrap().0).await;
}

#[tokio::test]
async fn l13_port_forward_over_websocket_channels() {
    let greeter = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, silent) = (greeter.local_addr().unwrap().port(), silent().await);
    tokio::spawn(async move {
        let (mut socket, _) = greeter.accept().await.unwrap();
        let mut question = [0; 3];
        socket.read_exact(&mut question).await.unwrap();
        question.reverse();
        socket.write_all(&question).await.unwrap();
    });
    let mut io = dial(String::new(), PathBuf::new()).await;
    let mut headers = WEBSOCKET.to_vec();
    headers.push(("Sec-WebSocket-Protocol", "v5.channel.k8s.io, v4.channel.k8s.io"));
    let path = format!("GET /portForward/ns/p?ports={port}&ports={silent}");
    let head = ask(&mut io, &path, &headers).await;
    assert!(
        head.contains("sec-websocket-protocol: v4.channel.k8s.io\r\n"),
        "{head}"
    );
    let mut socket = WebSocketStream::from_raw_socket(io, WebSocketRole::Client, None).await;
    socket
        .send(Message::Binary(b"\x00abc".to_vec().into()))
        .await
        .unwrap();
    let mut channels = [const { Vec::new() }; 4];
    while channels[0].len() < 5 || channels[3].len() < 3 {
        let message = timeout(Duration::from_secs(5), socket.next())
            .await
            .expect("no message");
        let Message::Binary(bytes) = message.unwrap().unwrap() else {
            panic!("not binary")
        };
        channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
    }
    let [data, error, silent_data, silent_error] = channels;
    let (port, silent_port) = (port.to_le_bytes(), silent.to_le_bytes());
    assert_eq!((data, error), ([&port, &b"cba"[..]].concat(), port.to_vec()));
    assert_eq!(silent_data, silent_port);
    assert_eq!(silent_error[..2], silent_port);
    let text = String::from_utf8_lossy(&silent_error[2..]);
    assert!(
        text.starts_with(&format!("error forwarding port {silent} to pod p_ns")),
        "{text}"
    );
}
