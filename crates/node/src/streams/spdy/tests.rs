//! Two ends over a pipe, and one end against random bytes.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use super::*;

fn ends() -> ((Connection, Incoming), (Connection, Incoming)) {
    let (a, b) = tokio::io::duplex(1024);
    (
        Connection::start(a, Role::Client).unwrap(),
        Connection::start(b, Role::Server).unwrap(),
    )
}

fn named(name: &str) -> Headers {
    Headers::from_iter([("streamType", name)])
}

async fn pair(client: &Connection, incoming: &mut Incoming, name: &str) -> (Stream, Stream) {
    let accept = async { incoming.next().await.unwrap().accept().unwrap() };
    let (ours, theirs) = tokio::join!(client.open(named(name)), accept);
    (ours.unwrap(), theirs)
}

#[tokio::test]
async fn half_a_stream_closes_while_the_other_stays_open() {
    let ((client, _c), (_server, mut incoming)) = ends();
    let (mut ours, mut theirs) = pair(&client, &mut incoming, "stdin").await;
    assert_eq!(
        (theirs.id(), theirs.headers().get("streamType")),
        (1, Some("stdin"))
    );

    ours.write_all(b"to the server").await.unwrap();
    ours.shutdown().await.unwrap();
    let mut read = String::new();
    theirs.read_to_string(&mut read).await.unwrap();
    assert_eq!(read, "to the server");

    theirs.write_all(b"and back").await.unwrap();
    theirs.shutdown().await.unwrap();
    let mut read = String::new();
    ours.read_to_string(&mut read).await.unwrap();
    assert_eq!(read, "and back");
    assert!(ours.write_all(b"x").await.is_err(), "written after its end");
}

#[tokio::test]
async fn megabytes_arrive_whole_on_streams_side_by_side() {
    let ((client, _c), (_server, mut incoming)) = ends();
    let mut both = tokio::task::JoinSet::new();
    for n in 0..4u8 {
        let (mut ours, mut theirs) = pair(&client, &mut incoming, "data").await;
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8 ^ n).collect();
        let expected = sent.clone();
        both.spawn(async move {
            ours.write_all(&sent).await.unwrap();
            ours.shutdown().await.unwrap();
            // Keeps the stream until the other end has read it.
            ours.read_u8().await.unwrap_err();
        });
        both.spawn(async move {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).await.unwrap();
            assert!(read == expected, "stream {n}: {} bytes", read.len());
        });
    }
    both.join_all().await;
}

#[tokio::test]
async fn what_was_written_is_read_before_a_reset() {
    let ((client, _c), (_server, mut incoming)) = ends();
    let (mut ours, mut theirs) = pair(&client, &mut incoming, "data").await;
    ours.write_all(b"last words").await.unwrap();
    drop(ours);
    let mut read = vec![0; 10];
    theirs.read_exact(&mut read).await.unwrap();
    assert_eq!(read, b"last words");
    assert_eq!(
        theirs.read_u8().await.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
    assert_eq!(
        theirs.write_all(b"x").await.unwrap_err().kind(),
        std::io::ErrorKind::BrokenPipe
    );
}

#[tokio::test]
async fn closing_a_connection_sends_what_is_queued() {
    let ((client, _c), (server, mut incoming)) = ends();
    let (ours, mut theirs) = pair(&client, &mut incoming, "data").await;
    let data = vec![7; 100_000];
    theirs.write_all(&data).await.unwrap();
    theirs.shutdown().await.unwrap();
    let read = tokio::spawn(async move {
        let (mut ours, mut read) = (ours, Vec::new());
        ours.read_to_end(&mut read).await.map(|_| read)
    });
    server.close().await;
    assert_eq!(read.await.unwrap().unwrap(), data);
    client.closed().await;
    assert!(matches!(client.open(named("late")).await, Err(SpdyError::Closed)));
}

#[tokio::test]
async fn a_lost_connection_differs_from_a_finished_stream() {
    let ((client, _c), (server, mut incoming)) = ends();
    let (mut ours, _theirs) = pair(&client, &mut incoming, "data").await;
    drop(server);
    drop(incoming);
    let error = ours.read_u8().await.unwrap_err();
    assert_ne!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
}

#[tokio::test]
async fn a_stream_that_is_not_accepted_is_reset() {
    let ((client, _c), (_server, mut incoming)) = ends();
    let drop_stream = async { drop(incoming.next().await.unwrap()) };
    let (first_error, ()) = tokio::join!(client.open(named("data")), drop_stream);
    assert!(matches!(first_error, Err(SpdyError::Reset(Reset::RefusedStream))));
}

#[tokio::test]
async fn a_dropped_reader_does_not_hold_the_connection_up() {
    let ((client, _c), (_server, mut incoming)) = ends();
    let (mut unread, theirs) = pair(&client, &mut incoming, "data").await;
    drop(theirs);
    // Much more than all the queues hold.
    let flood = async {
        for _ in 0..64 {
            if unread.write_all(&[0; 65536]).await.is_err() {
                return;
            }
        }
    };
    timeout(Duration::from_secs(10), flood).await.unwrap();
    pair(&client, &mut incoming, "another").await;
}

async fn answer_to(sent: &[u8], length: usize) -> (Vec<u8>, DuplexStream, Connection) {
    let (mut raw, io) = tokio::io::duplex(1 << 16);
    let (server, _incoming) = Connection::start(io, Role::Server).unwrap();
    raw.write_all(sent).await.unwrap();
    let mut answer = vec![0; length];
    raw.read_exact(&mut answer).await.unwrap();
    (answer, raw, server)
}

#[tokio::test]
async fn a_ping_comes_back_as_it_was() {
    let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9];
    assert_eq!(answer_to(&ping, 12).await.0, ping);
}

#[tokio::test]
async fn a_peer_that_violates_the_protocol_is_disconnected() {
    for (what, bytes) in [
        ("another version", vec![0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9]),
        (
            "a control frame of 16 MB",
            vec![0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
        ),
        (
            "headers that are no zlib",
            [&[0x80, 3, 0, 1, 0, 0, 0, 14, 0, 0, 0, 1][..], &[9; 10]].concat(),
        ),
    ] {
        let (mut raw, io) = tokio::io::duplex(1 << 16);
        let (server, _incoming) = Connection::start(io, Role::Server).unwrap();
        raw.write_all(&bytes).await.unwrap();
        timeout(Duration::from_secs(5), server.closed())
            .await
            .unwrap_or_else(|_| panic!("{what}: still there"));
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 64, ..Default::default() })]

    /// Random bytes, and random bytes after a well-formed head, end a connection without panic.
    #[test]
    fn random_bytes_cause_an_error_and_no_panic(kind in 0u8..12, flags: u8, noise: Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut raw, io) = tokio::io::duplex(1 << 16);
            let (server, mut incoming) = Connection::start(io, Role::Server).unwrap();
            raw.write_all(&[0x80, 3, 0, kind, flags, 0, 0, noise.len() as u8]).await.unwrap();
            let _ = raw.write_all(&noise).await;
            drop(raw);
            timeout(Duration::from_secs(5), server.closed()).await.unwrap();
            while incoming.next().await.is_some() {}
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_pinged_and_nothing_echoes_for_ever() {
    let (mut raw, io) = tokio::io::duplex(1 << 16);
    let (_server, _incoming) = Connection::start(io, Role::Server).unwrap();
    for id in [2, 4] {
        let mut ping = [0; 12];
        raw.read_exact(&mut ping).await.unwrap();
        assert_eq!(ping, [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, id]);
        raw.write_all(&ping).await.unwrap();
    }
}
