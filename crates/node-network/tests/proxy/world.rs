//! A network namespace with an API server next to it, in which Services and their endpoints are on the loopback device.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::SERVICE;
use knarr_api::{Object, k8s_openapi};
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, TokioClock, TypedApi};
use knarr_network::proxy::{self, Family, layout};
use knarr_nftables::Nftables;
use knarr_node_network::catalog::Shared;
use knarr_node_network::proxy::{Config, ServiceProxy};
use knarr_node_network::table::Table;
use serde_json::{Value, json};

/// Runs in a thread, and so in a network namespace, of its own.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        for command in [
            "ip link set lo up",
            "ip address add 10.1.0.1/32 dev lo",
            "ip address add 10.1.0.2/32 dev lo",
            "ip address add fd00:1::1/128 dev lo nodad",
            "ip route add 10.96.0.0/16 dev lo",
            "ip -6 route add fd00:96::/112 dev lo",
        ] {
            run(command);
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The same, with a runtime whose threads are in the namespace.
pub fn in_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Send + 'static) {
    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { test(World::new().await).await });
    });
}

pub fn run(command: &str) -> String {
    let arguments: Vec<&str> = command.split(' ').collect();
    let output = Command::new(arguments[0]).args(&arguments[1..]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// See the module.
#[derive(Clone)]
pub struct World {
    pub api: Arc<FakeApi>,
    pub clock: Arc<TokioClock>,
    /// Of the newest Service or slice.
    written: Arc<AtomicU64>,
}

pub const NODE: &str = "n1";
pub const TABLE: &str = "knarr-proxy-test";

impl World {
    async fn new() -> Self {
        let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let api = Arc::new(FakeApi::new(clock.clone()));
        let node = json!({"metadata": {"name": NODE}, "status": {"addresses": [{"type": "InternalIP", "address": "10.1.0.1"}]}});
        api.create_as(serde_json::from_value::<Node>(node).unwrap())
            .await
            .unwrap();
        World {
            api,
            clock,
            written: Arc::default(),
        }
    }

    /// A new process.
    pub fn start(&self) -> (Arc<Shared>, ServiceProxy) {
        let catalog = Arc::new(Shared::start(self.api.clone()));
        let config = Config {
            proxy: proxy::Config {
                table: TABLE.into(),
                ..proxy::Config::default()
            },
            node_name: NODE.into(),
            conntrack_sysctls: false,
            conntrack_tcp_be_liberal: false,
            healthz_address: Some("127.0.0.1:10256".parse().unwrap()),
        };
        let proxy = ServiceProxy::start(config, self.api.clone(), catalog.clone(), self.clock.clone());
        (catalog, proxy)
    }

    pub async fn create(&self, name: &str, spec: Value) {
        let service = json!({"metadata": {"namespace": "ns", "name": name}, "spec": spec});
        let service = serde_json::from_value::<Service>(service).unwrap();
        let written = self.api.create_as(service).await.unwrap();
        self.note(written.object());
    }

    pub async fn delete(&self, name: &str) {
        let deleted = self.api.delete(&SERVICE, "ns", name, DeleteOptions::default());
        self.note(&deleted.await.unwrap());
    }

    pub fn note(&self, written: &Object) {
        self.written.store(written.revision(), Ordering::Relaxed);
    }

    /// With these addresses, or with others than before.
    pub async fn set_endpoints(&self, service: &str, family: &str, port: u16, addresses: &[&str]) {
        let slice = endpoints(service, family, port, addresses);
        let name = slice.metadata.name.clone().unwrap();
        if self.api.get_as::<EndpointSlice>("ns", &name).await.is_err() {
            let written = self.api.create_as(slice).await.unwrap();
            self.note(written.object());
            return;
        }
        let edited = self.api.edit::<EndpointSlice>("ns", &name, "", |s| {
            s.endpoints = slice.endpoints.clone();
        });
        self.note(&edited.await.unwrap());
    }
}

pub fn endpoints(service: &str, family: &str, port: u16, addresses: &[&str]) -> EndpointSlice {
    let protocol = if port == 53 { "UDP" } else { "TCP" };
    let addresses = addresses.iter();
    let endpoints = addresses.map(|address| json!({"addresses": [address], "nodeName": NODE}));
    let slice = json!({
        "metadata": {
            "namespace": "ns",
            "name": format!("{service}-{}", family.to_lowercase()),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family,
        "ports": [{"name": "", "port": port, "protocol": protocol}],
        "endpoints": endpoints.collect::<Vec<_>>(),
    });
    serde_json::from_value(slice).unwrap()
}

/// The kernel has the newest of Services and slices.
pub async fn settled(catalog: &Shared, proxy: &ServiceProxy, world: &World) {
    let revision = world.written.load(Ordering::Relaxed);
    let reached = proxy.reached();
    let has_all = |at: Option<u64>| at.is_some_and(|at| at >= revision);
    tokio::time::timeout(Duration::from_secs(20), async {
        catalog
            .wait_for(|_, reached| has_all(reached.services) || has_all(reached.slices))
            .await;
        let now = catalog.reached();
        reached.wait_for(|kernel| *kernel == now).await;
    })
    .await
    .unwrap();
}

/// Endpoints in the kernel, as many as there are slots.
pub fn in_kernel(family: Family) -> Vec<SocketAddr> {
    let mut nftables = Nftables::open().unwrap();
    let of = match family {
        Family::V4 => knarr_nftables::Family::Ip,
        Family::V6 => knarr_nftables::Family::Ip6,
    };
    let table = Table::read(&mut nftables, of, TABLE).unwrap();
    let elements = table.elements(&mut nftables, layout::ENDPOINTS).unwrap();
    let mut all: Vec<SocketAddr> = elements
        .values()
        .map(|data| {
            let Some(knarr_network::nft::Data::Value(value)) = data else {
                panic!("{data:?}")
            };
            let (address, port) = value.split_at(value.len() - 4);
            let address: IpAddr = match family {
                Family::V4 => <[u8; 4]>::try_from(address).unwrap().into(),
                Family::V6 => <[u8; 16]>::try_from(address).unwrap().into(),
            };
            SocketAddr::new(address, u16::from_be_bytes([port[0], port[1]]))
        })
        .collect();
    all.sort();
    all
}
