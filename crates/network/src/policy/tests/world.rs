//! A cluster as it is written into the API, and connections in it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use crate::catalog::Protocol;
use crate::policy::{Attachment, Config, PodKey, Policies};

#[derive(Clone, Debug)]
pub struct TestPod {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub addresses: Vec<IpAddr>,
    pub host_network: bool,
    /// Name, protocol and number.
    pub ports: Vec<(String, Protocol, u16)>,
    /// Index into [`World::nodes`].
    pub node: usize,
}

#[derive(Clone, Debug)]
pub struct Connection {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pub pods: BTreeMap<(String, String), TestPod>,
    pub policies: BTreeMap<(String, String), NetworkPolicy>,
}

pub fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

pub fn config() -> Config {
    Config {
        table: "knarr-policy".into(),
        dns: vec!["10.96.0.10".parse().unwrap(), "fd96::a".parse().unwrap()],
    }
}

impl TestPod {
    pub fn object(&self) -> core::Pod {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|(name, protocol, number)| {
                json!({"name": name, "protocol": protocol.name(), "containerPort": number})
            })
            .collect();
        let (regular, sidecar) = ports.split_at(ports.len() / 2);
        let ips: Vec<Value> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": self.namespace, "name": self.name, "labels": self.labels,
                "uid": format!("uid-{}", self.name)},
            "spec": {
                "hostNetwork": self.host_network,
                "initContainers": [
                    {"name": "init", "ports": [{"name": "serve-80-tcp", "containerPort": 9}]},
                    {"name": "sidecar", "restartPolicy": "Always", "ports": sidecar},
                ],
                "containers": [{"name": "main", "ports": regular}],
            },
            "status": {"phase": "Running", "podIP": self.addresses.first(), "podIPs": ips},
        }))
        .unwrap()
    }

    pub fn attachment(&self) -> Attachment {
        Attachment {
            sandbox: format!("{}-{}", self.namespace, self.name).into(),
            pod: Some(PodKey::new(&self.namespace, &self.name)),
            uid: Some(format!("uid-{}", self.name).into()),
            addresses: self.addresses.clone(),
        }
    }
}

impl World {
    /// The namespaces x, y and z with the pods a, b and c each, as in upstream's tests: they serve the ports 80 and 81,
    /// x/b and all of y run on another node.
    pub fn grid() -> Self {
        let mut world = World::default();
        for (n, namespace) in ["x", "y", "z"].into_iter().enumerate() {
            let of = labels(&[("ns", namespace), ("kubernetes.io/metadata.name", namespace)]);
            world.namespaces.insert(namespace.into(), of);
            for (p, name) in ["a", "b", "c"].into_iter().enumerate() {
                world.put_pod(TestPod {
                    namespace: namespace.into(),
                    name: name.into(),
                    labels: labels(&[("pod", name)]),
                    addresses: vec![
                        format!("10.0.{n}.{}", p + 1).parse().unwrap(),
                        format!("fd00::{n}:{}", p + 1).parse().unwrap(),
                    ],
                    host_network: false,
                    ports: [80, 81]
                        .into_iter()
                        .flat_map(|port| {
                            [Protocol::Tcp, Protocol::Udp].map(|protocol| {
                                let name = protocol.name().to_lowercase();
                                (format!("serve-{port}-{name}"), protocol, port)
                            })
                        })
                        .collect(),
                    node: usize::from(namespace == "y" || (namespace == "x" && name == "b")),
                });
            }
        }
        let system = labels(&[("kubernetes.io/metadata.name", "kube-system")]);
        world.namespaces.insert("kube-system".into(), system);
        world
    }

    pub fn put_pod(&mut self, pod: TestPod) {
        self.pods.insert((pod.namespace.clone(), pod.name.clone()), pod);
    }

    pub fn pod(&self, namespace: &str, name: &str) -> &TestPod {
        &self.pods[&(namespace.to_string(), name.to_string())]
    }

    pub fn put_policy(&mut self, namespace: &str, name: &str, spec: Value) -> NetworkPolicy {
        let policy = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
        let policy: NetworkPolicy = serde_json::from_value(policy).unwrap();
        self.policies
            .insert((namespace.into(), name.into()), policy.clone());
        policy
    }

    pub fn pod_at(&self, address: IpAddr) -> Option<&TestPod> {
        self.pods.values().find(|pod| pod.addresses.contains(&address))
    }

    pub fn namespace_object(&self, name: &str) -> core::Namespace {
        let labels = &self.namespaces[name];
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    /// The state of a node's agent that has just been started.
    pub fn load(&self, node: usize) -> Policies {
        let mut policies = Policies::new(config(), 0);
        for pod in self
            .pods
            .values()
            .filter(|pod| pod.node == node && !pod.host_network)
        {
            policies.attach(pod.attachment());
            policies.release(&pod.attachment().sandbox);
        }
        for policy in self.policies.values() {
            policies.apply_policy(policy);
        }
        for pod in self.pods.values() {
            policies.apply_pod(&pod.object());
        }
        for namespace in self.namespaces.keys() {
            policies.apply_namespace(&self.namespace_object(namespace));
        }
        policies
    }

    /// All pairs of pods and addresses outside, both families, TCP and UDP to 80, 81 and 8080.
    pub fn connections(&self) -> Vec<Connection> {
        let outside: [IpAddr; 4] = ["192.0.2.1", "198.51.100.7", "2001:db8::1", "2001:db8:1::7"]
            .map(|address| address.parse().unwrap());
        let pods = self.pods.values().flat_map(|pod| pod.addresses.iter().copied());
        let ends: Vec<IpAddr> = pods.chain(outside).collect();
        let mut all = Vec::new();
        for from in &ends {
            for to in ends.iter().filter(|to| to.is_ipv4() == from.is_ipv4()) {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    all.extend([80, 81, 8080].map(|port| Connection {
                        from: *from,
                        to: *to,
                        protocol,
                        port,
                    }));
                }
            }
        }
        all
    }
}
