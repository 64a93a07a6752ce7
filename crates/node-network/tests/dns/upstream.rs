//! An upstream name server, which has a few names and counts its queries.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, TXT};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// Where it listens.
pub const UPSTREAM: &str = "127.0.0.53:5353";

pub struct Upstream {
    pub over_udp: Arc<AtomicUsize>,
    pub over_tcp: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// Knows `www.example.com`, `long.example.com` (only over TCP) and nothing else.
fn answer(bytes: &[u8], is_tcp: bool) -> Vec<u8> {
    let query = Message::from_vec(bytes).unwrap();
    let name = query.queries[0].name().clone();
    let queries = query.queries[0].query_type();
    let mut answer = query.into_response();
    match name.to_string().as_str() {
        "www.example.com." if queries == RecordType::A => {
            let address = RData::A(A(Ipv4Addr::new(192, 0, 2, 80)));
            answer.add_answer(Record::from_rdata(name, 60, address));
        }
        "www.example.com." => {}
        "long.example.com." if !is_tcp => answer.metadata.truncation = true,
        "long.example.com." => {
            for n in 0..30 {
                let text = RData::TXT(TXT::new(vec![format!("{n:0>60}")]));
                answer.add_answer(Record::from_rdata(name.clone(), 60, text));
            }
        }
        _ => answer.metadata.response_code = ResponseCode::NXDomain,
    }
    answer.to_vec().unwrap()
}

impl Upstream {
    pub async fn start() -> Self {
        let (over_udp, over_tcp) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let socket = UdpSocket::bind(UPSTREAM).await.unwrap();
        let listener = TcpListener::bind(UPSTREAM).await.unwrap();
        let mut tasks = JoinSet::new();
        let count = over_udp.clone();
        tasks.spawn(async move {
            let mut buffer = vec![0; 4096];
            loop {
                let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
                // Probes for loops are none of a test's questions.
                if Message::from_vec(&buffer[..length]).unwrap().queries[0].query_type() != RecordType::HINFO
                {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                socket
                    .send_to(&answer(&buffer[..length], false), client)
                    .await
                    .unwrap();
            }
        });
        let count = over_tcp.clone();
        tasks.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut bytes).await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let bytes = answer(&bytes, true);
                stream
                    .write_u16(u16::try_from(bytes.len()).unwrap())
                    .await
                    .unwrap();
                stream.write_all(&bytes).await.unwrap();
            }
        });
        Upstream {
            over_udp,
            over_tcp,
            _tasks: tasks,
        }
    }

    pub fn queries(&self) -> usize {
        self.over_udp.load(Ordering::SeqCst)
    }
}
