//! Clients that use up the server's time and memory on purpose: each is disconnected or gets an error, and other clients are
//! served during and after it.
//!
//! Timeouts are short in these tests, and waited for; nothing depends on the speed of the host.

mod frames;
mod requests;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use self::frames::*;
use crate::cluster::{ADMIN, Cluster, Credentials};
use crate::memory::{in_own_process, resident_bytes};

const H1: &[&[u8]] = &[b"http/1.1"];
const H2: &[&[u8]] = &[b"h2"];

/// A timeout that is never reached.
const EVENTUALLY: Duration = Duration::from_secs(120);
/// The timeouts of a client that tests shorten.
const SHORT: Duration = Duration::from_secs(1);

async fn eventually<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(EVENTUALLY, future).await {
        Ok(done) => done,
        Err(_) => panic!("never: {what}"),
    }
}

/// Connects as often as necessary: limits that apply to all clients are short in some tests.
async fn connected(cluster: &Cluster, protocols: &[&[u8]]) -> TlsStream<TcpStream> {
    let connect = async {
        loop {
            let stream = TcpStream::connect(cluster.address).await.unwrap();
            if let Ok(stream) = cluster.tls(&Credentials::default(), protocols, stream).await {
                return stream;
            }
        }
    };
    eventually("a connection", connect).await
}

/// Another client is served.
async fn serves(cluster: &Cluster) {
    let served = async {
        loop {
            let mut client = connected(cluster, H1).await;
            let request = "GET /api/v1/namespaces/default HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ann-token\r\nconnection: close\r\n\r\n";
            let mut answer = Vec::new();
            if client.write_all(request.as_bytes()).await.is_ok()
                && client.read_to_end(&mut answer).await.is_ok()
                && answer.starts_with(b"HTTP/1.1 403 ")
            {
                return;
            }
        }
    };
    eventually("a response to another client", served).await;
}

/// Reads until the connection is closed; returns what was received.
async fn read_to_end(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        all.extend_from_slice(&buffer[..n]);
    }
    all
}

/// What is sent before the client stops sending, and over what: TCP alone, or TLS with these protocols.
type PartialRequest = (&'static str, Option<&'static [&'static [u8]]>, Vec<u8>);

#[tokio::test]
async fn clients_that_send_nothing_or_half_a_request_are_dropped() {
    let cluster = Cluster::with(|options, _| {
        options.timeouts.handshake = SHORT;
        options.timeouts.head = SHORT;
        options.timeouts.keep_alive = SHORT;
    })
    .await;
    let no_end = [hello(65_535), frame(HEADERS, 0, 1, &head("GET", "/livez", ADMIN))].concat();
    let cases: [PartialRequest; 10] = [
        ("no handshake", None, vec![]),
        ("half a handshake", None, b"\x16\x03\x01\x02\x00\x01".to_vec()),
        (
            "HTTP where TLS is spoken",
            None,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        ),
        ("no request", Some(H1), vec![]),
        ("half a line", Some(H1), b"GET /livez HT".to_vec()),
        (
            "half a head",
            Some(H1),
            b"GET /livez HTTP/1.1\r\nhost: localhost\r\n".to_vec(),
        ),
        ("no preface", Some(H2), vec![]),
        ("half a preface", Some(H2), PREFACE[..12].to_vec()),
        ("no sign of life", Some(H2), hello(65_535)),
        ("a head without end", Some(H2), no_end),
    ];
    let mut open = Vec::new();
    for (what, protocols, says) in &cases {
        for _ in 0..20 {
            let mut stream: Box<dyn knarr_client::Conn> = match protocols {
                None => Box::new(TcpStream::connect(cluster.address).await.unwrap()),
                Some(protocols) => Box::new(connected(&cluster, protocols).await),
            };
            // The server may have closed the connection by now.
            let _ = stream.write_all(says).await;
            open.push((*what, stream));
        }
    }
    serves(&cluster).await;
    for (what, stream) in open {
        eventually(what, read_to_end(stream)).await;
    }
    serves(&cluster).await;
}

#[tokio::test]
async fn a_request_head_sent_byte_by_byte_times_out() {
    let cluster = Cluster::with(|options, _| options.timeouts.head = SHORT).await;
    let (read, mut write) = tokio::io::split(connected(&cluster, H1).await);
    let drips = tokio::spawn(async move {
        let begun = write.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await;
        while begun.is_ok() && write.write_all(b"x").await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let answer = eventually("the end of a dripping head", read_to_end(read)).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
    drips.abort();
    serves(&cluster).await;
}

#[tokio::test]
async fn a_body_that_is_not_completed_is_rejected_and_its_seat_is_free() {
    let cluster = Cluster::with(|options, _| {
        options.timeouts.body = SHORT;
        options.max_in_flight = (8, 8);
    })
    .await;
    let path = "/api/v1/namespaces/default/configmaps";
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut stream = connected(&cluster, H1).await;
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN}\r\n\
             content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{\"metadata\""
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    let (mut read, mut write) = tokio::io::split(connected(&cluster, H2).await);
    let fields = [
        head("POST", path, ADMIN),
        header("content-type", b"application/json"),
    ]
    .concat();
    let says = [
        hello(65_535),
        request(1, &fields, 0),
        frame(DATA, 0, 1, b"{\"metadata\""),
    ]
    .concat();
    write.write_all(&says).await.unwrap();
    serves(&cluster).await;
    for stream in stalled {
        let answer = eventually("an error response", read_to_end(stream)).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        assert!(text.contains(r#""reason":"Timeout""#), "{text}");
        assert!(
            text.contains("the rest of the request body was not received in time"),
            "{text}"
        );
    }
    let rejected = async {
        while let Some(frame) = next(&mut read).await {
            if frame.kind == HEADERS {
                return frame.is_status(408);
            }
        }
        false
    };
    assert!(eventually("an error response over HTTP/2", rejected).await);
    let metrics = cluster.admin("GET", "/metrics", None).await.text;
    let free = "apiserver_current_inflight_requests{request_kind=\"mutating\"} 0\n";
    assert!(metrics.contains(free), "{metrics}");
}

const MEGABYTE: usize = 1 << 20;
const LARGE: &str = "/api/v1/namespaces/default/configmaps";

/// Creates objects whose list fits into no buffer between server and client.
async fn with_large_objects(cluster: &Cluster) {
    for n in 0..16 {
        let map = json!({"metadata": {"name": format!("m{n}")}, "data": {"k": "x".repeat(MEGABYTE - 1000)}});
        cluster.create(LARGE, map).await;
    }
}

/// Whether the server has closed its side of this connection, by the kernel's table; a connection that is not read does not show it
/// otherwise.
fn ended(server: SocketAddr, client: SocketAddr) -> bool {
    const ESTABLISHED: &str = "01";
    let port = |text: &str| u16::from_str_radix(text.rsplit(':').next().unwrap(), 16).unwrap();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    !table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        port(fields[1]) == server.port() && port(fields[2]) == client.port() && fields[3] == ESTABLISHED
    })
}

#[tokio::test]
async fn a_client_that_never_reads_over_http1_is_dropped_and_others_read_on() {
    let cluster = Cluster::with(|options, _| options.timeouts.response = SHORT).await;
    with_large_objects(&cluster).await;
    let mut deaf = Vec::new();
    for query in ["", "?watch=1", "?limit=500"] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(cluster.address).await.unwrap();
        let client = stream.local_addr().unwrap();
        let mut stream = cluster.tls(&Credentials::default(), H1, stream).await.unwrap();
        let request = format!(
            "GET {LARGE}{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        deaf.push((query, client, stream));
    }
    serves(&cluster).await;
    for (query, client, _kept_open) in &deaf {
        let gone = async {
            while !ended(cluster.address, *client) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        eventually(query, gone).await;
    }
    serves(&cluster).await;
}

#[tokio::test]
async fn a_client_that_never_reads_over_http2_is_dropped_and_costs_little() {
    if !in_own_process("hostile::a_client_that_never_reads_over_http2_is_dropped_and_costs_little") {
        return;
    }
    // Long enough that all streams are open before the first is aborted.
    let cluster = Cluster::with(|options, _| options.timeouts.response = 5 * SHORT).await;
    with_large_objects(&cluster).await;
    let before = resident_bytes();
    let (mut read, mut write) = tokio::io::split(connected(&cluster, H2).await);
    let mut says = hello(1);
    for n in 0..100 {
        let query = if n % 2 == 0 { "" } else { "?watch=1" };
        let fields = head("GET", &format!("{LARGE}{query}"), ADMIN);
        says.extend(request(2 * n + 1, &fields, END_STREAM));
    }
    write.write_all(&says).await.unwrap();
    let answered = async {
        let mut heads = 0;
        while heads < 100 {
            heads += usize::from(next(&mut read).await.unwrap().kind == HEADERS);
        }
    };
    eventually("100 answers' beginnings", answered).await;
    let grown = resident_bytes().saturating_sub(before);
    // All of them complete would be 1600 MB.
    assert!(grown < 400 << 20, "{grown} bytes more");
    serves(&cluster).await;
    eventually("the end", read_to_end(read)).await;
    serves(&cluster).await;
}

#[tokio::test]
async fn a_response_to_head_over_http2_has_no_body() {
    let cluster = Cluster::start().await;
    for (method, path, body) in [
        ("HEAD", "/livez", false),
        ("HEAD", "/openapi/v2", false),
        ("HEAD", "/apis", false),
        ("HEAD", "/version", false),
        ("HEAD", "/api/v1/namespaces/default", false),
        ("HEAD", "/api/v1/namespaces/default/pods/none/proxy", false),
        ("HEAD", "/nothing/at/all", false),
        ("OPTIONS", "/api/v1/namespaces/default", true),
        ("GET", "/livez", true),
    ] {
        let (mut read, mut write) = tokio::io::split(connected(&cluster, H2).await);
        let says = [hello(65_535), request(1, &head(method, path, ADMIN), END_STREAM)].concat();
        write.write_all(&says).await.unwrap();
        let mut frames = Vec::new();
        let answered = async {
            while frames.last().is_none_or(|(_, flags)| flags & END_STREAM == 0) {
                let frame = next(&mut read).await.unwrap();
                if matches!(frame.kind, HEADERS | DATA) {
                    frames.push((frame.kind, frame.flags));
                }
            }
        };
        eventually(path, answered).await;
        let has_body = frames.iter().any(|(kind, _)| *kind == DATA);
        assert_eq!(has_body, body, "{method} {path}: {frames:?}");
    }
}

/// The result of a flood.
enum Outcome {
    /// The connection is closed with one of these errors.
    Ends(&'static [u32]),
    /// This status, and the connection stays open.
    Status(u16),
    /// Nothing that others would notice: the connection is closed, or it still responds.
    Nothing,
}

async fn flood(mut write: WriteHalf<TlsStream<TcpStream>>, opening: Vec<u8>, again: Vec<u8>, times: usize) {
    // A client that was disconnected cannot send the rest.
    if write.write_all(&opening).await.is_err() {
        return;
    }
    for _ in 0..times {
        if write.write_all(&again).await.is_err() {
            return;
        }
    }
    // Nothing else sends this.
    let asks = frame(PING, 0, 0, b"all said");
    if write.write_all(&asks).await.is_ok() {
        let _ = write.flush().await;
    }
    // Kept open: the server has to close it.
    std::future::pending::<()>().await;
}

/// The frames that are received until the result of the flood is known or the connection is closed.
async fn read_frames(mut read: ReadHalf<TlsStream<TcpStream>>, outcome: &Outcome) -> Vec<Frame> {
    let mut all = Vec::new();
    while let Some(frame) = next(&mut read).await {
        let known = match outcome {
            Outcome::Ends(_) => frame.kind == GOAWAY,
            Outcome::Status(_) => frame.kind == HEADERS,
            Outcome::Nothing => frame.kind == PING && frame.flags == ACK && frame.payload == b"all said",
        };
        if matches!(frame.kind, HEADERS | GOAWAY | RST_STREAM) {
            all.push(frame);
        }
        if known {
            break;
        }
    }
    all
}

#[tokio::test]
async fn floods_of_frames_are_ended_or_cost_nothing() {
    let cluster = Cluster::start().await;
    let get = |stream| request(stream, &head("GET", "/api/v1/pods", ADMIN), END_STREAM);
    let post = request(1, &head("POST", LARGE, ADMIN), 0);
    let cancel = 8_u32.to_be_bytes();
    let resets: Vec<u8> = (0..20_000)
        .flat_map(|n| [get(2 * n + 1), frame(RST_STREAM, 0, 2 * n + 1, &cancel)].concat())
        .collect();
    let streams: Vec<u8> = (0..20_000).flat_map(|n| get(2 * n + 1)).collect();
    // Each counts 32 bytes more than it has on the wire: the limit of bytes is reached before that of frames.
    let many = (0..30_000).map(|n| header(&format!("x-{n}"), b"x"));
    let long = [head("GET", "/api", ADMIN), many.flatten().collect()].concat();
    let endless = [header("x", &[b'x'; 5000]), header("y", &[b'y'; 5000])].concat();
    let cases = [
        (
            "streams opened and reset",
            resets,
            vec![],
            0,
            Outcome::Ends(&[ENHANCE_YOUR_CALM]),
        ),
        (
            "streams beyond their number",
            streams,
            vec![],
            0,
            Outcome::Nothing,
        ),
        (
            "a head without end",
            frame(HEADERS, 0, 1, &head("GET", "/api", ADMIN)),
            frame(CONTINUATION, 0, 1, &endless),
            2000,
            Outcome::Ends(&[ENHANCE_YOUR_CALM]),
        ),
        (
            "a head without end in empty frames",
            frame(HEADERS, 0, 1, &head("GET", "/api", ADMIN)),
            frame(CONTINUATION, 0, 1, &[]),
            20_000,
            Outcome::Ends(&[ENHANCE_YOUR_CALM]),
        ),
        (
            "a head too large",
            request(1, &long, END_STREAM),
            vec![],
            0,
            Outcome::Status(431),
        ),
        (
            "no code",
            frame(HEADERS, END_HEADERS, 1, &[0xff; 20]),
            vec![],
            0,
            Outcome::Ends(&[COMPRESSION_ERROR, PROTOCOL_ERROR]),
        ),
        (
            "settings",
            vec![],
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]),
            50_000,
            Outcome::Nothing,
        ),
        (
            "pings",
            vec![],
            frame(PING, 0, 0, b"and now?"),
            50_000,
            Outcome::Nothing,
        ),
        (
            "priorities",
            vec![],
            frame(PRIORITY, 0, 9, &[0, 0, 0, 1, 7]),
            50_000,
            Outcome::Nothing,
        ),
        (
            "frames of no kind",
            vec![],
            frame(99, 0, 0, &[7; 100]),
            50_000,
            Outcome::Nothing,
        ),
        (
            "windows",
            vec![],
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]),
            2,
            Outcome::Ends(&[FLOW_CONTROL_ERROR]),
        ),
        (
            "data of no length",
            post,
            frame(DATA, 0, 1, &[]),
            50_000,
            Outcome::Ends(&[ENHANCE_YOUR_CALM]),
        ),
    ];
    for (what, opening, again, times, outcome) in cases {
        let (read, write) = tokio::io::split(connected(&cluster, H2).await);
        let says = [hello(65_535), opening].concat();
        let flood = tokio::spawn(flood(write, says, again, times));
        let frames = eventually(what, read_frames(read, &outcome)).await;
        flood.abort();
        let ends: Vec<u32> = frames
            .iter()
            .filter(|f| f.kind == GOAWAY)
            .filter_map(Frame::error_code)
            .collect();
        match outcome {
            Outcome::Ends(codes) => {
                assert!(ends.iter().any(|code| codes.contains(code)), "{what}: {frames:?}")
            }
            Outcome::Status(code) => assert!(frames.iter().any(|f| f.is_status(code)), "{what}: {frames:?}"),
            Outcome::Nothing => {}
        }
        serves(&cluster).await;
    }
}
