//! A cluster with a DNS server, and clients that query it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::TokioClock;
use knarr_client::api::TypedApi;
use knarr_client::fake::FakeApi;
use knarr_node_network::catalog::Shared;
use knarr_node_network::dns;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

pub const ADDRESS: &str = "10.96.0.10";
/// For what must come; nothing waits so long where all is well.
pub const TIMEOUT: Duration = Duration::from_secs(20);

const ATTEMPTS: usize = 3;
/// Longer than the server waits for upstream servers.
const ATTEMPT: Duration = Duration::from_secs(7);

pub fn address() -> IpAddr {
    ADDRESS.parse().unwrap()
}

/// Runs in a thread, and so in a network namespace, of its own.
pub fn in_namespace(test: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub struct Cluster {
    pub api: Arc<FakeApi>,
    pub server: dns::Server,
}

pub fn question(name: &str, record_type: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(
        Name::from_ascii(format!("{name}.")).unwrap(),
        record_type,
    ));
    message
}

impl Cluster {
    pub async fn start(namespace_of: impl Fn(IpAddr) -> Option<Arc<str>> + Send + Sync + 'static) -> Self {
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "ns"}})).unwrap();
        api.create_as(namespace).await.unwrap();
        let config = dns::Config {
            addresses: vec![address(), "fd00:96::a".parse().unwrap()],
            port: 53,
            cluster_domain: "cluster.local".to_string(),
            ttl_seconds: dns::TTL_SECONDS,
            resolv_conf: "/dev/null".into(),
            namespace_of: Some(Arc::new(namespace_of)),
            serial: 1,
        };
        let catalog = Arc::new(Shared::start(api.clone()));
        let server = dns::start(config, api.clone(), catalog).await.unwrap();
        Cluster { api, server }
    }

    pub async fn service(&self, name: &str, spec: Value) {
        let service: Service =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": name}, "spec": spec}))
                .unwrap();
        self.api.create_as(service).await.unwrap();
    }

    pub async fn slice(&self, service: &str, addresses: Vec<String>) {
        let endpoints: Vec<Value> = addresses.iter().map(|a| json!({"addresses": [a]})).collect();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": service, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "endpoints": endpoints,
        }))
        .unwrap();
        self.api.create_as(slice).await.unwrap();
    }

    pub async fn configure(&self, data: Value) {
        let map: ConfigMap = serde_json::from_value(
            json!({"metadata": {"namespace": "kube-system", "name": "knarr-dns"}, "data": data}),
        )
        .unwrap();
        self.api.create_as(map).await.unwrap();
    }

    pub async fn ask(&self, name: &str, record_type: RecordType) -> Message {
        self.ask_at(address(), name, record_type).await
    }

    pub async fn ask_at(&self, ip: IpAddr, name: &str, record_type: RecordType) -> Message {
        self.send_at(ip, &question(name, record_type).to_vec().unwrap())
            .await
            .expect("an answer")
    }

    /// The answer to these bytes, if there is one within patience.
    pub async fn send_at(&self, ip: IpAddr, bytes: &[u8]) -> Option<Message> {
        let any: SocketAddr = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let socket = UdpSocket::bind(any).await.unwrap();
        socket.connect((ip, 53)).await.unwrap();
        let mut buffer = vec![0; 65_535];
        // As resolvers do: datagrams may be lost.
        for _ in 0..ATTEMPTS {
            socket.send(bytes).await.unwrap();
            let Ok(length) = timeout(ATTEMPT, socket.recv(&mut buffer)).await else {
                continue;
            };
            let length = length.unwrap();
            assert!(length <= 1232);
            let answer = Message::from_vec(&buffer[..length]).unwrap();
            assert_eq!(answer.metadata.id.to_be_bytes(), bytes[..2]);
            return Some(answer);
        }
        None
    }

    pub async fn ask_tcp(&self, name: &str, record_type: RecordType) -> Message {
        let bytes = question(name, record_type).to_vec().unwrap();
        let mut stream = TcpStream::connect((address(), 53)).await.unwrap();
        stream
            .write_u16(u16::try_from(bytes.len()).unwrap())
            .await
            .unwrap();
        stream.write_all(&bytes).await.unwrap();
        let length = timeout(TIMEOUT, stream.read_u16()).await.unwrap().unwrap();
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await.unwrap();
        Message::from_vec(&answer).unwrap()
    }

    /// Asks until the first answer ends with this.
    pub async fn until(&self, name: &str, data: &str) {
        self.until_it(name, |answer| {
            answer.answers.last().is_some_and(|r| r.data.to_string() == data)
        })
        .await;
    }

    pub async fn until_truncated(&self, name: &str) {
        self.until_it(name, |answer| answer.metadata.truncation).await;
    }

    pub async fn until_it(&self, name: &str, is_it: impl Fn(&Message) -> bool) {
        let wait = async {
            loop {
                let answer = self.ask(name, RecordType::A).await;
                let denied = answer.metadata.response_code == ResponseCode::NXDomain;
                assert!(
                    self.server.is_ready() || !denied,
                    "nothing is denied before all is listed"
                );
                if is_it(&answer) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, wait)
            .await
            .expect("the answer that is waited for");
    }
}
