//! Properties: after every history the kernel's tables match the catalog, and every change fits the kernel's content.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Node, config, facts};
use crate::nft::{Data, Table};
use crate::proxy::slots::{self, LOCAL_OFFSET};
use crate::proxy::{Change, Family, NodeFacts, Proxy, layout, packet};

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Service {
        name: u8,
        kind: u8,
        flags: u8,
    },
    Remove {
        name: u8,
    },
    Endpoints {
        name: u8,
        slice: u8,
        endpoints: Vec<(u8, u8)>,
    },
    RemoveSlice {
        name: u8,
        slice: u8,
    },
    Node {
        zone: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..4u8;
    let step = prop_oneof![
        3 => (name.clone(), 0..4u8, any::<u8>()).prop_map(|(name, kind, flags)| Step::Service { name, kind, flags }),
        1 => name.clone().prop_map(|name| Step::Remove { name }),
        6 => (name.clone(), 0..2u8, prop::collection::vec((0..40u8, 0..6u8), 0..24))
            .prop_map(|(name, slice, endpoints)| Step::Endpoints { name, slice, endpoints }),
        1 => (name, 0..2u8).prop_map(|(name, slice)| Step::RemoveSlice { name, slice }),
        1 => any::<bool>().prop_map(|zone| Step::Node { zone }),
    ];
    prop::collection::vec(step, 1..40)
}

fn service(name: u8, kind: u8, flags: u8) -> Value {
    let bit = |n: u8| flags & (1 << n) != 0;
    let kinds = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    let policy = |local| if local { "Local" } else { "Cluster" };
    let mut spec = json!({
        "type": kinds[usize::from(kind)],
        // Two names share addresses now and then.
        "clusterIPs": [format!("172.30.0.{}", name / 2 + 1), format!("fd00:96::{}", name + 1)],
        "clusterIP": format!("172.30.0.{}", name / 2 + 1),
        "internalTrafficPolicy": policy(bit(0)), "externalTrafficPolicy": policy(bit(1)),
        "ports": [{"name": "t", "port": 80}, {"name": "u", "port": 80, "protocol": "UDP"}],
    });
    if bit(2) {
        spec["sessionAffinity"] = json!("ClientIP");
    }
    if bit(3) {
        spec["externalIPs"] = json!(["192.0.2.1", "172.30.0.1", "2001:db8::77"]);
    }
    if bit(4) {
        spec["loadBalancerSourceRanges"] = json!(["192.168.0.0/16", "192.168.3.0/24", "2001:db8::/32"]);
    }
    if kind == 1 || kind == 2 {
        spec["ports"][0]["nodePort"] = json!(30_000 + u16::from(name));
        spec["ports"][1]["nodePort"] = json!(30_000 + u16::from(name));
    }
    if bit(5) {
        spec["ports"].as_array_mut().unwrap().pop();
    }
    json!({"metadata": {"namespace": "ns", "name": format!("s{name}")}, "spec": spec,
           "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.100.{}", name / 2)}]}}})
}

fn slice(name: u8, slice: u8, endpoints: &[(u8, u8)]) -> Value {
    let one = |(last, state): &(u8, u8)| {
        let conditions = match state {
            0..=3 => json!({"ready": true}),
            4 => json!({"ready": false, "serving": true, "terminating": true}),
            _ => json!({"ready": false}),
        };
        let address = match slice {
            0 => format!("10.1.0.{last}"),
            _ => format!("fd00:10::{last}"),
        };
        json!({"addresses": [address], "conditions": conditions,
               "nodeName": if last % 3 == 0 { "here" } else { "there" },
               "hints": {"forZones": [{"name": if last % 2 == 0 { "a" } else { "b" }}]}})
    };
    json!({
        "metadata": {"namespace": "ns", "name": format!("s{name}-{slice}"),
                     "labels": {"kubernetes.io/service-name": format!("s{name}")}},
        "addressType": if slice == 0 { "IPv4" } else { "IPv6" },
        "ports": [{"name": "t", "port": 8080}, {"name": "u", "port": 5353, "protocol": "UDP"}],
        "endpoints": endpoints.iter().map(one).collect::<Vec<_>>(),
    })
}

/// A kernel that is as strict as the real one.
fn commit(kernel: &mut BTreeMap<Family, Table>, change: &Change) {
    for family in Family::ALL {
        let table = kernel.entry(family).or_default();
        let change = change.table(family);
        for element in &change.remove {
            let removed = table
                .get_mut(element.set)
                .and_then(|set| set.remove(&element.key));
            assert!(removed.is_some(), "ENOENT: {element:?}");
        }
        for element in &change.add {
            let set = table.entry(element.set).or_default();
            let before = set.insert(element.key.clone(), element.data.clone());
            assert!(before.is_none(), "EEXIST: {element:?}");
        }
        table.retain(|_, set| !set.is_empty());
    }
}

/// Keys, those of slots without the number, and data.
type Unordered = BTreeSet<(Vec<u8>, Option<Data>)>;

/// Slots without their numbers: the endpoints of each frontend, and that there is no gap.
fn without_order(table: &Table) -> BTreeMap<&'static str, Unordered> {
    let mut result: BTreeMap<&'static str, BTreeSet<_>> = BTreeMap::new();
    for (set, elements) in table {
        let is_slots = [layout::ENDPOINTS, layout::NODE_PORT_ENDPOINTS].contains(set);
        let mut lists: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
        for (key, data) in elements {
            let mut bytes = key.start.to_vec();
            if is_slots {
                let slot = u32::from_ne_bytes(bytes.split_off(bytes.len() - 4).try_into().unwrap());
                bytes.push(u8::from(slot >= LOCAL_OFFSET));
                lists.entry(bytes.clone()).or_default().push(slot % LOCAL_OFFSET);
            } else {
                bytes.extend(key.end.iter().flatten());
            }
            assert!(
                result.entry(set).or_default().insert((bytes, data.clone())),
                "twice: {key:?}"
            );
        }
        for (frontend, mut list) in lists {
            list.sort_unstable();
            assert!(
                list.iter().zip(0..).all(|(slot, n)| *slot == n),
                "gap: {frontend:?} {list:?}"
            );
        }
    }
    result
}

fn run(node: &mut Node, step: &Step) -> Vec<Change> {
    match step {
        Step::Service { name, kind, flags } => {
            let service = serde_json::from_value(service(*name, *kind, *flags)).unwrap();
            node.catalog.apply_service(&service);
            vec![node.sync(&format!("s{name}"))]
        }
        Step::Remove { name } => {
            node.catalog.remove_service("ns", &format!("s{name}"));
            vec![node.sync(&format!("s{name}"))]
        }
        Step::Endpoints {
            name,
            slice: number,
            endpoints,
        } => {
            let slice = serde_json::from_value(slice(*name, *number, endpoints)).unwrap();
            node.catalog.apply_slice(&slice);
            vec![node.sync(&format!("s{name}"))]
        }
        Step::RemoveSlice { name, slice } => {
            node.catalog.remove_slice("ns", &format!("s{name}-{slice}"));
            vec![node.sync(&format!("s{name}"))]
        }
        Step::Node { zone } => {
            let zone = if *zone { "a" } else { "b" };
            let changed = node.proxy.set_node(NodeFacts {
                zone: Some(zone.into()),
                ..facts()
            });
            let keys: Vec<_> = node.catalog.services().map(|(key, _)| key.clone()).collect();
            let all = keys.iter().filter(|_| changed);
            all.map(|key| node.proxy.apply(&node.catalog, key)).collect()
        }
    }
}

fn tables(proxy: &Proxy) -> BTreeMap<Family, Table> {
    let all = Family::ALL.map(|family| (family, packet::table(proxy, family)));
    all.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn n3_changes_add_up_to_what_is_decided_from_scratch_and_leave_nothing(steps in steps()) {
        let mut node = Node::new(config());
        let mut kernel = BTreeMap::new();
        for step in &steps {
            for change in run(&mut node, step) {
                commit(&mut kernel, &change);
            }
        }
        let visible = tables(&node.proxy);
        for family in Family::ALL {
            let committed = kernel.get(&family).cloned().unwrap_or_default();
            prop_assert_eq!(&committed, &visible[&family]);
        }
        // From scratch, in the order of names, nothing known of slots.
        let mut scratch = Proxy::new(config(), node.proxy.node().clone());
        // With what the kernel has.
        let mut restarted = Proxy::new(config(), node.proxy.node().clone());
        for family in Family::ALL {
            let of = |map| visible[&family].get(map).cloned().unwrap_or_default();
            restarted.adopt(family, &of(layout::ENDPOINTS), &of(layout::NODE_PORT_ENDPOINTS));
        }
        let keys: Vec<_> = node.catalog.services().map(|(key, _)| key.clone()).collect();
        for key in &keys {
            scratch.apply(&node.catalog, key);
            restarted.apply(&node.catalog, key);
            prop_assert!(node.proxy.apply(&node.catalog, key).is_empty(), "nothing has changed");
        }
        restarted.finish_adoption();
        let from_scratch = tables(&scratch);
        for family in Family::ALL {
            prop_assert_eq!(without_order(&visible[&family]), without_order(&from_scratch[&family]));
        }
        let after_restart = tables(&restarted);
        for family in Family::ALL {
            prop_assert_eq!(without_order(&visible[&family]), without_order(&after_restart[&family]));
        }
        // All are deleted, in any order of services and slices.
        for key in &keys {
            node.catalog.remove_service(&key.namespace, &key.name);
            let change = node.proxy.apply(&node.catalog, key);
            commit(&mut kernel, &change);
        }
        prop_assert!(kernel.values().all(BTreeMap::is_empty), "{:?}", kernel);
    }
}

#[test]
fn n3_a_restart_leaves_every_slot_as_it_is() {
    // Each combination of the traffic policies, and affinity.
    for flags in [0b000, 0b001, 0b010, 0b011, 0b111] {
        let mut node = Node::new(config());
        let mut apply = |name: u8, last: &[u8]| {
            let endpoints: Vec<(u8, u8)> = last.iter().map(|n| (*n, 0)).collect();
            for family in 0..2 {
                let slice = slice(name, family, &endpoints);
                node.catalog.apply_slice(&serde_json::from_value(slice).unwrap());
            }
            let service = serde_json::from_value(service(name, 2, flags)).unwrap();
            node.catalog.apply_service(&service);
            node.sync(&format!("s{name}"));
        };
        for name in [0, 2] {
            let all: Vec<u8> = (0..36).collect();
            apply(name, &all);
            let fewer: Vec<u8> = all.iter().copied().filter(|n| !(3..9).contains(n)).collect();
            apply(name, &fewer);
        }
        let before = tables(&node.proxy);
        let mut restarted = Proxy::new(config(), facts());
        for family in Family::ALL {
            let of = |map| before[&family].get(map).cloned().unwrap_or_default();
            restarted.adopt(family, &of(layout::ENDPOINTS), &of(layout::NODE_PORT_ENDPOINTS));
        }
        let mut scratch = Proxy::new(config(), facts());
        for name in ["s0", "s2"] {
            let key = crate::catalog::ServiceKey::new("ns", name);
            restarted.apply(&node.catalog, &key);
            scratch.apply(&node.catalog, &key);
        }
        assert!(tables(&scratch) != before, "the order has a history");
        assert!(tables(&restarted) == before, "{flags:b}");
    }
}

#[test]
fn n3_one_endpoint_more_or_less_is_a_handful_of_elements() {
    let mut node = Node::new(config());
    let mut spec = service(0, 0, 1 << 5);
    spec["spec"]["internalTrafficPolicy"] = json!("Cluster");
    node.catalog.apply_service(&serde_json::from_value(spec).unwrap());
    let mut apply = |last: &[u8]| {
        let endpoints: Vec<(u8, u8)> = last.iter().map(|n| (n * 2, 0)).collect();
        // Not of this node, and no zone is preferred.
        let mut value = slice(0, 0, &endpoints);
        for endpoint in value["endpoints"].as_array_mut().unwrap() {
            endpoint["nodeName"] = json!("there");
        }
        node.catalog.apply_slice(&serde_json::from_value(value).unwrap());
        node.sync("s0").v4.len()
    };
    let all: Vec<u8> = (1..=60).collect();
    assert!(apply(&all) > 60);
    let without: Vec<u8> = all.iter().copied().filter(|n| *n != 7).collect();
    assert_eq!(
        apply(&without),
        3,
        "its slot, twice for the new data, and the last slot"
    );
    assert_eq!(apply(&all), 1);
    assert_eq!(apply(&all), 0);
    assert_eq!(slots::size_class(60), slots::size_class(59));
}
