//! The Service of the cluster's DNS server, `kube-system/kube-dns`, by the name and with the labels that clients and
//! manifests know.
//!
//! It has no selector: the network agent of each node answers DNS queries. The Service is created where it is missing, and changes
//! by users are kept, so that a user who runs another DNS server can give it a selector.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Namespace, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use crate::action::{Action, Create};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::namespace::is_terminating;
use crate::serviceaccount::in_namespace;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "kube-dns";
/// CoreDNS' metrics port.
const METRICS: i32 = 9153;

/// See the module. Its key is the namespace.
pub struct ClusterDns {
    /// The cluster DNS addresses, at most one of each family, the primary first.
    pub addresses: Vec<IpAddr>,
}

impl Controller for ClusterDns {
    fn name(&self) -> &'static str {
        "knarr-cluster-dns"
    }

    fn account(&self) -> &'static str {
        "knarr-cluster-dns"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NAMESPACE, &registry::SERVICE]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let mut keys = in_namespace(changed, NAME);
        keys.retain(|key| key.name == NAMESPACE);
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let view = context.view;
        let namespace = view.get_as::<Namespace>("", NAMESPACE);
        let lives = namespace.is_some_and(|n| !is_terminating(&n));
        let is_there = view.get_as::<Service>(NAMESPACE, NAME).is_some();
        if context.failure.is_some() || !lives || is_there || self.addresses.is_empty() {
            return Vec::new();
        }
        vec![Action::Create(Create {
            ignore_already_exists: true,
            ..Create::new(self.service())
        })]
    }
}

impl ClusterDns {
    fn service(&self) -> Service {
        let labels = [
            ("k8s-app", "kube-dns"),
            ("kubernetes.io/cluster-service", "true"),
            ("kubernetes.io/name", "CoreDNS"),
        ];
        let port = |name: &str, number: i32, protocol: &str| ServicePort {
            name: Some(name.into()),
            port: number,
            protocol: Some(protocol.into()),
            target_port: Some(IntOrString::Int(number)),
            ..ServicePort::default()
        };
        let family = |address: &IpAddr| match address {
            IpAddr::V4(_) => "IPv4".to_string(),
            IpAddr::V6(_) => "IPv6".to_string(),
        };
        let policy = match self.addresses.len() {
            1 => "SingleStack",
            _ => "RequireDualStack",
        };
        let texts: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        Service {
            metadata: ObjectMeta {
                namespace: Some(NAMESPACE.into()),
                name: Some(NAME.into()),
                labels: Some(
                    labels
                        .into_iter()
                        .map(|(k, v)| (k.to_string(), v.to_string()))
                        .collect(),
                ),
                annotations: Some(
                    [
                        ("prometheus.io/port".to_string(), METRICS.to_string()),
                        ("prometheus.io/scrape".to_string(), "true".to_string()),
                    ]
                    .into(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                cluster_ip: texts.first().cloned(),
                cluster_ips: Some(texts),
                ip_families: Some(self.addresses.iter().map(family).collect()),
                ip_family_policy: Some(policy.into()),
                ports: Some(vec![
                    port("dns", 53, "UDP"),
                    port("dns-tcp", 53, "TCP"),
                    port("metrics", METRICS, "TCP"),
                ]),
                ..ServiceSpec::default()
            }),
            status: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, at, lines};

    #[test]
    fn n5_the_service_of_cluster_dns_is_there_and_stays_as_its_user_changes_it() {
        let controller = ClusterDns {
            addresses: vec!["10.96.0.10".parse().unwrap(), "fd00::a".parse().unwrap()],
        };
        let mut world = World::default();
        let run = |world: &World| world.run(&controller, ("", NAMESPACE), at(0));
        assert_eq!(lines(&run(&world)), [""; 0]);
        let namespace: Namespace =
            serde_json::from_value(serde_json::json!({"metadata": {"name": NAMESPACE}})).unwrap();
        world.put(namespace);
        let actions = run(&world);
        assert_eq!(lines(&actions), ["create services kube-system/kube-dns"]);
        let Action::Create(create) = &actions[0] else {
            panic!("it is created")
        };
        let service: &Service = create.object.as_any().downcast_ref().unwrap();
        let spec = serde_json::to_value(&service.spec).unwrap();
        assert_eq!(
            spec,
            serde_json::json!({
                "clusterIP": "10.96.0.10",
                "clusterIPs": ["10.96.0.10", "fd00::a"],
                "ipFamilies": ["IPv4", "IPv6"],
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                    {"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": 9153},
                ],
            })
        );
        let mut own = service.clone();
        own.spec.as_mut().unwrap().selector = Some([("k8s-app".to_string(), "kube-dns".to_string())].into());
        world.put(own);
        assert_eq!(lines(&run(&world)), [""; 0]);
        world.remove(&registry::SERVICE, NAMESPACE, NAME);
        assert_eq!(lines(&run(&world)), ["create services kube-system/kube-dns"]);
    }
}
