//! What hostile clients send.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::cluster::{Cluster, TIMEOUT, address, in_namespace, question};

const NAME: &str = "10-1-2-3.ns.pod.cluster.local";

#[test]
fn n5_invalid_messages_neither_stop_the_server_nor_get_long_answers() {
    in_namespace(async {
        let cluster = Cluster::start(|_| None).await;
        cluster.until(NAME, "10.1.2.3").await;
        let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        socket.connect((address(), 53)).await.unwrap();
        let good = question(NAME, RecordType::A).to_vec().unwrap();
        for cut in 0..good.len() {
            socket.send(&good[..cut]).await.unwrap();
        }
        let mut answer = good.clone();
        answer[2] |= 0x80;
        socket.send(&answer).await.unwrap();
        for length in [1usize, 13, 511, 1232, 1233, 9000] {
            socket.send(&vec![0xff; length]).await.unwrap();
            socket.send(&vec![0; length]).await.unwrap();
        }
        for _ in 0..5000 {
            socket.send(&good[..20]).await.unwrap();
        }
        assert_eq!(cluster.ask(NAME, RecordType::A).await.answers.len(), 1);
        let mut buffer = [0; 2048];
        let (mut answers, mut bytes) = (0, 0);
        while let Ok(length) = socket.try_recv(&mut buffer) {
            answers += 1;
            bytes += length;
        }
        assert!(
            answers <= 2000 && bytes <= 12 * answers,
            "{answers} answers, {bytes} bytes"
        );
        let any = cluster.ask(NAME, RecordType::ANY).await;
        assert_eq!(any.answers.len(), 1);
        assert_eq!(any.answers[0].record_type(), RecordType::HINFO);
        let any = cluster.ask("example.com", RecordType::ANY).await;
        assert_eq!(any.answers[0].record_type(), RecordType::HINFO);
        let transfer = cluster.ask("cluster.local", RecordType::AXFR).await;
        assert_eq!(transfer.metadata.response_code, ResponseCode::Refused);
    });
}

#[test]
fn n5_tcp_connections_that_stop_within_a_message_do_not_affect_other_clients() {
    in_namespace(async {
        let cluster = Cluster::start(|_| None).await;
        cluster.until(NAME, "10.1.2.3").await;
        let mut held = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect((address(), 53)).await.unwrap();
            stream.write_all(&[0, 40, 1, 2]).await.unwrap();
            held.push(stream);
        }
        // One client has only so many; from another address all is well.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
        let mut other = socket.connect((address(), 53).into()).await.unwrap();
        let bytes = question(NAME, RecordType::A).to_vec().unwrap();
        for _ in 0..3 {
            other
                .write_u16(u16::try_from(bytes.len()).unwrap())
                .await
                .unwrap();
            for half in bytes.chunks(10) {
                other.write_all(half).await.unwrap();
            }
            let length = timeout(TIMEOUT, other.read_u16()).await.unwrap().unwrap();
            other.read_exact(&mut vec![0; usize::from(length)]).await.unwrap();
        }
        let mut closed = 0;
        for mut stream in held {
            let mut rest = Vec::new();
            // Closed at once, or when no question has come in time.
            let closed_by_peer = timeout(TIMEOUT, stream.read_to_end(&mut rest))
                .await
                .expect("closed");
            closed += usize::from(closed_by_peer.is_ok() || closed_by_peer.is_err());
            assert!(rest.is_empty());
        }
        assert_eq!(closed, 100);
        let mut stream = TcpStream::connect((address(), 53)).await.unwrap();
        stream.write_all(&[0xff, 0xff, 1]).await.unwrap();
        let mut rest = Vec::new();
        let closed_by_peer = timeout(TIMEOUT, stream.read_to_end(&mut rest))
            .await
            .expect("closed");
        assert!(closed_by_peer.is_err() || rest.is_empty());
    });
}
