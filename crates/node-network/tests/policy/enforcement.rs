//! The whole of it: objects in the API, packets between pods.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry::{NETWORK_POLICY, POD};
use knarr_client::api::TypedApi;
use knarr_client::fake::FakeApi;
use knarr_client::{Api, DeleteOptions, TokioClock};
use knarr_network::catalog::Protocol;
use knarr_network::policy::{Endpoint, Outcome};
use knarr_nftables::{Conntrack, Family, Nftables};
use knarr_node_network::policy::{Attachment, Config, NetworkPolicies, PodKey, TABLE, remove_all};
use knarr_node_network::routes::Unreachable;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::network::{Pod, Transport, answers, in_namespace, serve_dns};

const NODE: &str = "node-1";
/// After which a test has failed.
const LIMIT: Duration = Duration::from_secs(90);

struct Cluster {
    api: Arc<FakeApi>,
    pods: BTreeMap<(&'static str, &'static str), Pod>,
}

fn config() -> Config {
    Config {
        table: TABLE.into(),
        node_name: NODE.into(),
        dns: vec!["10.96.0.10".parse().unwrap(), "fd96::a".parse().unwrap()],
        events: None,
    }
}

impl Cluster {
    /// The namespaces x, y, z and kube-system; the pods x/a, x/b, y/a and z/a.
    async fn new() -> Self {
        let clock = TokioClock::new(Timestamp::UNIX_EPOCH);
        let api = Arc::new(FakeApi::new(Arc::new(clock)));
        for name in ["x", "y", "z", "kube-system"] {
            let labels = json!({"ns": name, "kubernetes.io/metadata.name": name});
            let namespace = json!({"metadata": {"name": name, "labels": labels}});
            let namespace: core::Namespace = serde_json::from_value(namespace).unwrap();
            api.create_as(namespace).await.unwrap();
        }
        let mut cluster = Cluster {
            api,
            pods: BTreeMap::new(),
        };
        for (index, of) in [("x", "a"), ("x", "b"), ("y", "a"), ("z", "a")]
            .into_iter()
            .enumerate()
        {
            let last = u8::try_from(index).unwrap() + 1;
            let [v4, v6] = [format!("10.0.0.{last}"), format!("fd00::{last}")];
            cluster.create_pod(of.0, of.1, NODE, &[&v4, &v6]).await;
            cluster.pods.insert(of, Pod::new(last, [&v4, &v6]));
        }
        cluster
    }

    async fn create_pod(&self, namespace: &str, name: &str, node: &str, addresses: &[&str]) {
        let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let pod = json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"pod": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "ports": [
                {"name": "web", "containerPort": 80}, {"name": "web-udp", "containerPort": 81, "protocol": "UDP"}]}]},
            "status": {"phase": "Running", "podIPs": ips, "podIP": addresses[0]},
        });
        let pod: core::Pod = serde_json::from_value(pod).unwrap();
        let status = pod.status.clone();
        let created = self.api.create_as(pod).await.unwrap();
        let mut pod = (*created).clone();
        pod.status = status;
        self.api.update_status_as(pod).await.unwrap();
    }

    fn attachment(&self, namespace: &'static str, name: &'static str) -> Attachment {
        Attachment {
            sandbox: format!("{namespace}-{name}").into(),
            pod: Some(PodKey::new(namespace, name)),
            uid: None,
            addresses: self.pods[&(namespace, name)].addresses.clone(),
        }
    }

    fn attachments(&self) -> Vec<Attachment> {
        self.pods
            .keys()
            .map(|(ns, name)| self.attachment(ns, name))
            .collect()
    }

    async fn put_policy(&self, namespace: &str, name: &str, spec: Value) {
        let policy = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
        let policy: networking::NetworkPolicy = serde_json::from_value(policy).unwrap();
        self.api.create_as(policy).await.unwrap();
    }

    async fn remove_policy(&self, namespace: &str, name: &str) {
        let options = DeleteOptions::default();
        self.api
            .delete(&NETWORK_POLICY, namespace, name, options)
            .await
            .unwrap();
    }

    fn pod(&self, namespace: &'static str, name: &'static str) -> &Pod {
        &self.pods[&(namespace, name)]
    }

    /// Every pod to every other one on the ports 80 and 81, in both families; how many answer. What is explained is what
    /// happens.
    fn check(&self, policies: &NetworkPolicies, case: &str) -> usize {
        let mut open = 0;
        for (from, pod) in &self.pods {
            let mut targets = Vec::new();
            let mut expected = Vec::new();
            for (to, other) in self.pods.iter().filter(|(to, _)| *to != from) {
                for address in &other.addresses {
                    for port in [80, 81] {
                        for (transport, protocol) in
                            [(Transport::Tcp, Protocol::Tcp), (Transport::Udp, Protocol::Udp)]
                        {
                            let source = pod.addresses.iter().find(|a| a.is_ipv4() == address.is_ipv4());
                            let ends = [*source.unwrap(), *address].map(Endpoint::Address);
                            let explained = policies.explain(&ends[0], &ends[1], protocol, port);
                            targets.push((transport, SocketAddr::new(*address, port)));
                            expected.push((to, explained.outcome == Outcome::Allowed));
                        }
                    }
                }
            }
            let results = pod.probe(targets.clone());
            for ((result, target), (to, expected)) in results.iter().zip(&targets).zip(&expected) {
                assert_eq!(result, expected, "{case}: {from:?} to {to:?} {target:?}");
                open += usize::from(*result);
            }
        }
        open
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = runtime.unwrap().block_on(async { timeout(LIMIT, test()).await });
        result.expect("a test of seconds");
    });
}

/// Waits until the agent has seen earlier writes, by a policy written after them.
async fn settle(cluster: &Cluster, policies: &NetworkPolicies) {
    let count = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with("knarr_network_policy_policies "));
        line.and_then(|line| line.split(' ').nth(1)?.parse::<f64>().ok())
    };
    cluster
        .put_policy("kube-system", "marker", json!({"podSelector": {}}))
        .await;
    let expected = cluster
        .api
        .list(&NETWORK_POLICY, knarr_client::ListOptions::default())
        .await;
    let expected = expected.unwrap().items.len() as f64;
    while count(&policies.metrics()) != Some(expected) {
        tokio::task::yield_now().await;
    }
    policies.synced().await;
    cluster.remove_policy("kube-system", "marker").await;
    while count(&policies.metrics()) != Some(expected - 1.0) {
        tokio::task::yield_now().await;
    }
    policies.synced().await;
}

#[test]
fn n6_packets_pass_as_policies_say_in_both_families() {
    run(|| async {
        let cluster = Cluster::new().await;
        let policies = NetworkPolicies::start(cluster.api.clone(), config(), cluster.attachments()).unwrap();
        settle(&cluster, &policies).await;
        // 12 pairs, 2 families, 2 ports, 2 protocols.
        assert_eq!(cluster.check(&policies, "no policies"), 96);
        let b = json!({"podSelector": {"matchLabels": {"pod": "b"}}});
        let y = json!({"namespaceSelector": {"matchLabels": {"ns": "y"}}});
        for (case, namespace, spec, open) in [
            ("deny ingress", "x", json!({"podSelector": {}}), 48),
            (
                "deny egress",
                "x",
                json!({"podSelector": {}, "policyTypes": ["Egress"]}),
                48,
            ),
            (
                "pods and namespaces",
                "x",
                json!({"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": [{"from": [b, y]}]}),
                96 - 8,
            ),
            (
                "ports",
                "x",
                json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}, {"port": 81, "endPort": 90, "protocol": "UDP"}]}]}),
                48 + 24,
            ),
            (
                "named ports of peers",
                "x",
                json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
                    {"to": [y], "ports": [{"port": "web"}, {"port": "web-udp", "protocol": "UDP"}]}]}),
                48 + 2 * 4,
            ),
            (
                "blocks",
                "x",
                json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [
                    {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.3/32"]}},
                    {"ipBlock": {"cidr": "fd00::4/128"}}]}]}),
                48 + 4 + 4 + 8 + 8,
            ),
        ] {
            cluster.put_policy(namespace, "policy", spec).await;
            settle(&cluster, &policies).await;
            assert_eq!(cluster.check(&policies, case), open, "{case}");
            cluster.remove_policy(namespace, "policy").await;
        }
        settle(&cluster, &policies).await;
        let mut nftables = Nftables::open().unwrap();
        let chains = nftables.chains(Family::Inet, TABLE).unwrap();
        let sets = nftables.sets(Family::Inet, TABLE).unwrap();
        assert_eq!((chains.len(), sets.len()), (2, 6), "nothing is left over");
        remove_all(TABLE).await.unwrap();
        assert!(nftables.tables().unwrap().is_empty());
        remove_all(TABLE).await.unwrap();
    });
}

#[test]
fn n6_default_deny_holds_from_the_first_packet() {
    run(|| async {
        let cluster = Cluster::new().await;
        let policies = NetworkPolicies::start(cluster.api.clone(), config(), []).unwrap();
        let to: IpAddr = "10.0.0.1".parse().unwrap();
        let unknown = Attachment {
            pod: Some(PodKey::new("x", "unknown")),
            ..cluster.attachment("x", "a")
        };
        policies.synced().await;
        // An object that does not come: isolated, and an error in the end.
        let error = policies.attach(unknown).await.unwrap_err();
        assert!(error.to_string().contains("x/unknown"), "{error}");
        assert!(!cluster.pod("y", "a").reaches(Transport::Tcp, to, 80));
        policies.detach("x-a");
        policies.synced().await;
        assert!(cluster.pod("y", "a").reaches(Transport::Tcp, to, 80));
        // A flow that an earlier pod with the address had does not pass on.
        let flow = cluster.pod("y", "a").open_flow(SocketAddr::new(to, 80));
        assert!(answers(&flow));
        cluster.put_policy("x", "deny", json!({"podSelector": {}})).await;
        policies.attach(cluster.attachment("x", "a")).await.unwrap();
        assert!(!answers(&flow));
        assert!(!cluster.pod("y", "a").reaches(Transport::Tcp, to, 80));
        // The node itself always reaches its pods, and they reach themselves.
        assert!(std::net::TcpStream::connect((to, 80)).is_ok());
        assert!(cluster.pod("x", "a").reaches(Transport::Tcp, to, 80));
        // Without policies it is open.
        policies.attach(cluster.attachment("y", "a")).await.unwrap();
        let other = cluster.pod("y", "a").addresses[1];
        assert!(cluster.pod("z", "a").reaches(Transport::Tcp, other, 80));
    });
}

/// How many UDP flows to the address connection tracking has.
fn flows_to(address: IpAddr) -> usize {
    let mut count = 0;
    let mut conntrack = Conntrack::open().unwrap();
    let read = conntrack.delete(Family::Ip, 17, |flow| {
        count += usize::from(flow.original.destination.ip() == address);
        false
    });
    assert_eq!(read.unwrap(), 0);
    count
}

#[test]
fn n6_flows_of_removed_pods_are_deleted_before_the_next_pod_comes() {
    run(|| async {
        let cluster = Cluster::new().await;
        let policies = NetworkPolicies::start(cluster.api.clone(), config(), cluster.attachments()).unwrap();
        policies.synced().await;
        let [removed, unused, running]: [IpAddr; 3] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| ip.parse().unwrap());
        policies.detach("x-b");
        for (from, to) in [(("x", "b"), removed), (("y", "a"), unused), (("z", "a"), running)] {
            let flow = cluster.pod(from.0, from.1).open_flow(SocketAddr::new(to, 80));
            assert!(answers(&flow), "{to}");
            assert_eq!(flows_to(to), 1);
        }
        policies.set_unreachable(&Unreachable {
            ranges: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()],
            set: 1,
        });
        policies.detach("x-a");
        while flows_to(removed) + flows_to(unused) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(flows_to(running), 1, "both of its pods run");
    });
}

#[test]
fn n6_established_connections_go_on_and_rules_outlive_the_agent() {
    run(|| async {
        let cluster = Cluster::new().await;
        let to: IpAddr = "10.0.0.1".parse().unwrap();
        let start = || NetworkPolicies::start(cluster.api.clone(), config(), cluster.attachments()).unwrap();
        let policies = start();
        policies.synced().await;
        let flow = cluster.pod("y", "a").open_flow(SocketAddr::new(to, 80));
        assert!(answers(&flow));
        let peers = json!([{"namespaceSelector": {"matchLabels": {"ns": "z"}}}]);
        cluster
            .put_policy(
                "x",
                "z-only",
                json!({"podSelector": {}, "ingress": [{"from": peers}]}),
            )
            .await;
        settle(&cluster, &policies).await;
        assert!(answers(&flow));
        let closed = cluster.check(&policies, "before");
        drop(policies);
        assert!(!cluster.pod("y", "a").reaches(Transport::Tcp, to, 80));
        assert!(cluster.pod("z", "a").reaches(Transport::Tcp, to, 80));
        let policies = start();
        settle(&cluster, &policies).await;
        assert_eq!(cluster.check(&policies, "after"), closed);
        let mut nftables = Nftables::open().unwrap();
        let chains = nftables.chains(Family::Inet, TABLE).unwrap();
        assert_eq!(chains.len(), 3, "{chains:?}");
        // A peer on another node is created and deleted.
        cluster.create_pod("z", "b", "node-2", &["10.9.9.9"]).await;
        settle(&cluster, &policies).await;
        let members = || {
            let mut nftables = Nftables::open().unwrap();
            let sets = nftables.sets(Family::Inet, TABLE).unwrap();
            let of = sets
                .iter()
                .filter(|set| set.name.starts_with("peers") && set.name.ends_with("v4"));
            let mut count = 0;
            for set in of {
                count += nftables.elements(set).unwrap().len();
            }
            count
        };
        while members() != 2 {
            tokio::task::yield_now().await;
        }
        let at_once = DeleteOptions {
            grace_period_seconds: Some(0),
            ..DeleteOptions::default()
        };
        cluster.api.delete(&POD, "z", "b", at_once).await.unwrap();
        while members() != 1 {
            tokio::task::yield_now().await;
        }
        // Another program deletes what is in the way of the next change.
        knarr_nftables::script::run(&format!("flush map inet {TABLE} ingress4")).unwrap();
        assert!(cluster.pod("y", "a").reaches(Transport::Tcp, to, 80));
        cluster.remove_policy("x", "z-only").await;
        cluster.put_policy("x", "none", json!({"podSelector": {}})).await;
        settle(&cluster, &policies).await;
        assert!(!cluster.pod("z", "a").reaches(Transport::Tcp, to, 80));
        // And even everything.
        remove_all(TABLE).await.unwrap();
        while cluster.pod("z", "a").reaches(Transport::Tcp, to, 80) {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn n6_the_nodes_dns_is_reached_as_a_pod_of_cluster_dns_would_be() {
    run(|| async {
        serve_dns();
        let cluster = Cluster::new().await;
        let policies = NetworkPolicies::start(cluster.api.clone(), config(), cluster.attachments()).unwrap();
        settle(&cluster, &policies).await;
        let resolves = || {
            ["10.96.0.10", "fd96::a"].map(|server| {
                let server: IpAddr = server.parse().unwrap();
                cluster.pod("x", "a").reaches(Transport::Udp, server, 53)
            })
        };
        assert_eq!(resolves(), [true; 2]);
        let dns = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}});
        let ports = json!([{"port": 53, "protocol": "UDP"}]);
        for (egress, expected) in [
            (json!([]), [false; 2]),
            (json!([{"to": [dns], "ports": ports}]), [true; 2]),
            (json!([{"to": [{"podSelector": {}}], "ports": ports}]), [false; 2]),
            (
                json!([{"to": [{"ipBlock": {"cidr": "10.96.0.0/16"}}]}]),
                [true, false],
            ),
            (json!([{"ports": ports}]), [true; 2]),
        ] {
            let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress});
            cluster.put_policy("x", "policy", spec.clone()).await;
            settle(&cluster, &policies).await;
            assert_eq!(resolves(), expected, "{spec}");
            cluster.remove_policy("x", "policy").await;
        }
    });
}
