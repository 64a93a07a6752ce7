//! N5: DNS on each node answers a query for a Service's name with its cluster IP, for a headless Service with the
//! addresses of its ready endpoints, each once. It continues when its node is cut off from the API. At rest its
//! answers match the objects in the API; before that, no address is answered for long after its last pod has gone,
//! where the node receives the change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{DnsResponse, Observation, World, addresses_of};

/// From the termination of a pod to its removal from the answers, if all components involved have been free of faults
/// for as long (see `n4_ends`): once for the controllers, once for the agent.
const FOLLOWS_WITHIN: SignedDuration = SignedDuration::from_secs(120);
/// The name of no Service.
const UNKNOWN: &str = "unknown.default.svc.cluster.local";

fn name_of(service: &Service) -> String {
    let meta = &service.metadata;
    let (name, namespace) = (meta.name.as_deref(), meta.namespace.as_deref());
    format!(
        "{}.{}.svc.cluster.local",
        name.unwrap_or_default(),
        namespace.unwrap_or_default()
    )
}

/// The names that are queried.
pub(crate) fn questions(world: &World) -> Vec<String> {
    let names = world.services.values().map(name_of);
    names.chain(std::iter::once(UNKNOWN.to_string())).collect()
}

fn cluster_ip(service: &Service) -> Option<IpAddr> {
    service.spec.as_ref()?.cluster_ip.as_ref()?.parse().ok()
}

/// The expected response for a Service's name, by the objects in the API.
fn expected(world: &World, service: &Service) -> DnsResponse {
    if let Some(address) = cluster_ip(service) {
        return DnsResponse::Addresses([address].into());
    }
    let meta = &service.metadata;
    let mut addresses = BTreeSet::new();
    for slice in world.slices.values() {
        let labels = slice.metadata.labels.as_ref();
        let of = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
        if of != meta.name.as_ref() || slice.metadata.namespace != meta.namespace {
            continue;
        }
        let endpoints = slice.endpoints.iter().flatten();
        let ready = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) != Some(false)
        });
        let first = ready.filter_map(|endpoint| endpoint.addresses.first());
        addresses.extend(first.filter_map(|address| address.parse::<IpAddr>().ok()));
    }
    match addresses.is_empty() {
        // As CoreDNS: the name of a headless Service exists from its first ready endpoint on.
        true => DnsResponse::NoName,
        false => DnsResponse::Addresses(addresses),
    }
}

/// At rest: whether every node's answers match the objects in the API.
pub(crate) fn at_rest(world: &World) -> Result<(), Finding> {
    for ((node, question), answer) in &world.answers {
        let mut services = world.services.values();
        let service = services.find(|service| name_of(service) == *question);
        let expected = service.map_or(DnsResponse::NoName, |service| expected(world, service));
        if *answer != expected {
            return Err(Finding(format!(
                "{node} answers {question} with {answer:?}, expected {expected:?}"
            )));
        }
    }
    Ok(())
}

/// When the last pod with an address terminated, or got another one with another sandbox; none if a pod has it, or none ever had.
fn left_at(world: &World, address: IpAddr) -> Option<Timestamp> {
    let mut last = None;
    for life in world.ever_with_address(address) {
        let left = match addresses_of(&life.pod).any(|its| its == address) {
            true => Some(life.removed_at?),
            false => life.former_addresses.get(&address).copied(),
        };
        last = last.max(left);
    }
    last
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Resolved {
        node,
        question,
        answer,
    } = seen
    else {
        return Ok(());
    };
    let addresses = match answer {
        DnsResponse::NoName => return Ok(()),
        DnsResponse::NotReady if world.has_answered.contains(*node) => {
            return Err(Finding(format!("{node} does not answer {question} any more")));
        }
        DnsResponse::NotReady => return Ok(()),
        DnsResponse::Addresses(addresses) => addresses,
    };
    let agent = format!("node/{node}");
    let well = world.all_well_since(|name| name == agent || name.starts_with("control"));
    let Some(well) = well else { return Ok(()) };
    for address in addresses {
        let Some(left) = left_at(world, *address) else {
            continue;
        };
        let since = world.now.duration_since(left.max(well));
        if since > FOLLOWS_WITHIN {
            return Err(Finding(format!(
                "{node} answers {question} with {address}, which no pod has had for {since:#}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::world::Life;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn addresses(all: &[&str]) -> DnsResponse {
        DnsResponse::Addresses(all.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn world() -> World {
        let mut world = World {
            now: at(1_000),
            ..World::default()
        };
        for (name, cluster_ip) in [("web", "10.96.0.7"), ("db", "None")] {
            let service = json!({
                "metadata": {"name": name, "namespace": "default"}, "spec": {"clusterIP": cluster_ip},
            });
            world
                .services
                .insert(name.into(), serde_json::from_value(service).unwrap());
        }
        let slice = json!({
            "metadata": {
                "name": "db-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "db"},
            },
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            ],
        });
        world
            .slices
            .insert("db-1".into(), serde_json::from_value(slice).unwrap());
        for name in ["control-a", "node/n1"] {
            world.well_since.insert(name.into(), Some(at(0)));
        }
        world
    }

    #[test]
    fn n5_answers_that_are_not_what_the_objects_say_are_seen_at_rest() {
        for (question, answer, is_right) in [
            ("web.default.svc.cluster.local", addresses(&["10.96.0.7"]), true),
            ("db.default.svc.cluster.local", addresses(&["10.0.0.1"]), true),
            (UNKNOWN, DnsResponse::NoName, true),
            ("web.default.svc.cluster.local", DnsResponse::NoName, false),
            (
                "db.default.svc.cluster.local",
                addresses(&["10.0.0.1", "10.0.0.2"]),
                false,
            ),
            ("db.default.svc.cluster.local", DnsResponse::NotReady, false),
            (UNKNOWN, addresses(&[]), false),
        ] {
            let mut world = world();
            world
                .answers
                .insert(("n1".into(), question.into()), answer.clone());
            assert_eq!(at_rest(&world).is_ok(), is_right, "{question} {answer:?}");
        }
    }

    #[test]
    fn n5_silence_after_an_answer_and_addresses_of_the_long_gone_are_seen() {
        // When the pod was removed, when another pod got another address in place of this one, since when the agent is well.
        for (answer, has_answered, removed_at, changed_at, well_since, is_right) in [
            (addresses(&["10.0.0.1"]), true, None, None, 0, true),
            (addresses(&["10.0.0.1"]), true, Some(950), None, 0, true),
            (addresses(&["10.0.0.1"]), true, Some(500), None, 950, true),
            (addresses(&["10.0.0.1"]), true, Some(500), None, 0, false),
            (addresses(&["10.0.0.1"]), true, Some(500), Some(950), 0, true),
            (addresses(&["10.0.0.1"]), true, Some(500), Some(600), 0, false),
            (DnsResponse::NotReady, false, None, None, 0, true),
            (DnsResponse::NotReady, true, None, None, 0, false),
        ] {
            let mut world = world();
            let pod = json!({"metadata": {"name": "a"}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}});
            let life = Life {
                removed_at: removed_at.map(at),
                ..Life::new(Arc::new(serde_json::from_value(pod).unwrap()), at(0))
            };
            world.note_addresses("u", &life.pod);
            world.note_addresses("v", &life.pod);
            world.pods.insert("u".into(), life);
            let other = json!({"metadata": {"name": "b"}, "status": {"podIPs": [{"ip": "10.0.0.9"}]}});
            let mut other = Life::new(Arc::new(serde_json::from_value(other).unwrap()), at(0));
            let former = changed_at.map(|second| ("10.0.0.1".parse().unwrap(), at(second)));
            other.former_addresses.extend(former);
            world.pods.insert("v".into(), other);
            world.well_since.insert("node/n1".into(), Some(at(well_since)));
            if has_answered {
                world.has_answered.insert("n1".into());
            }
            let seen = Observation::Resolved {
                node: "n1",
                question: "db.default.svc.cluster.local",
                answer: &answer,
            };
            let found = check(&seen, &world);
            assert_eq!(
                found.is_ok(),
                is_right,
                "{answer:?} {removed_at:?} {changed_at:?} {well_since}: {found:?}"
            );
        }
    }

    #[test]
    fn n5_an_address_is_of_the_pods_whose_last_status_has_it() {
        let with = |ips: &[&str]| {
            let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            let pod = json!({"metadata": {"name": "a"}, "status": {"podIPs": ips}});
            Arc::new(serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(pod).unwrap())
        };
        let (v4, v6) = ("10.0.0.1", "fd00::1");
        for (writes, removed_at, expected) in [
            (vec![with(&[v4])], Some(500), [Some(500), None]),
            (vec![with(&[v4])], None, [None, None]),
            (
                vec![with(&[]), with(&[v4, "fd00:0::1"])],
                Some(500),
                [Some(500), Some(500)],
            ),
            (
                vec![with(&[v4]), with(&["10.0.0.2", v6])],
                Some(500),
                [None, Some(500)],
            ),
        ] {
            let mut world = world();
            for pod in &writes {
                world.note_addresses("u", pod);
                let life = Life {
                    removed_at: removed_at.map(at),
                    ..Life::new(pod.clone(), at(0))
                };
                world.pods.insert("u".into(), life);
            }
            let found = [v4, v6].map(|address| left_at(&world, address.parse().unwrap()));
            assert_eq!(
                found,
                expected.map(|second| second.map(at)),
                "{writes:?} {removed_at:?}"
            );
        }
    }
}
