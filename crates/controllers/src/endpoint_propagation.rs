//! The revision of EndpointSlices that the kernels of all nodes have at least (the endpoint barrier, SPEC B7).
//!
//! The network agent of each node reports the revision that its kernel has in a Lease in `knarr-network`. This controller
//! aggregates the reports of all reporting nodes in one ConfigMap, `knarr-network/endpoint-propagation`, which is all that a
//! kubelet has to watch before it terminates a pod's processes: N reports are read once, not by every node. A node without a
//! Lease runs no service proxy of knarr's and is not waited for. A node whose Ready condition is False still forwards what its
//! kernel has; one whose Ready condition is Unknown has not reported for the grace period and is not waited for.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::propagation::{CONFIG_MAP, Propagation, REVISION};
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use crate::action::{Action, Create};
use crate::controller::{Context, Controller, ObjectChange, View};

/// The namespace of the Leases and of the ConfigMap.
const NAMESPACE: &str = "knarr-network";

/// See the module. Its only key is the ConfigMap.
pub struct EndpointPropagation;

fn key() -> ObjectKey {
    ObjectKey::new(NAMESPACE, CONFIG_MAP)
}

/// Whether the node reports its status: the node lifecycle controller sets Ready to Unknown when it does not.
fn is_reporting(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|c| c.type_ == "Ready" && matches!(c.status.as_str(), "True" | "False"))
}

/// Whether a change of a node matters here; everything else changes far more often.
fn node_concerns(changed: &ObjectChange<'_>) -> bool {
    let reporting = |object: Option<&knarr_api::Object>| object.map(|o| o.get().is_some_and(is_reporting));
    reporting(changed.old) != reporting(changed.new)
}

fn revision(lease: &Lease) -> u64 {
    let reported = lease.metadata.annotations.as_ref().and_then(|a| a.get(REVISION));
    // A value that does not parse is no evidence.
    reported.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn propagation(view: &dyn View) -> Propagation {
    let leases = view.list_as::<Lease>(NAMESPACE);
    let counted = leases.iter().filter_map(|lease| {
        let name = lease.object().name();
        let node = view.get_as::<Node>("", name)?;
        is_reporting(&node).then(|| (revision(lease), name))
    });
    let mut all = Propagation::default();
    let mut slowest: Option<(u64, &str)> = None;
    for (revision, name) in counted {
        all.nodes += 1;
        if slowest.is_none_or(|(least, _)| revision < least) {
            slowest = Some((revision, name));
        }
    }
    if let Some((revision, name)) = slowest {
        all.revision = revision;
        all.slowest = name.to_string();
    }
    all
}

impl Controller for EndpointPropagation {
    fn name(&self) -> &'static str {
        "endpoint-propagation-controller"
    }

    fn account(&self) -> &'static str {
        "knarr-endpoint-propagation"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::LEASE, &registry::NODE, &registry::CONFIG_MAP]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let Some(object) = changed.object() else {
            return Vec::new();
        };
        let concerns = if changed.kind == &registry::LEASE {
            object.namespace() == NAMESPACE
        } else if changed.kind == &registry::NODE {
            node_concerns(&changed)
        } else {
            ObjectKey::of(object) == key()
        };
        concerns.then(key).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let desired = propagation(context.view).to_data();
        let Some(old) = context.view.get_as::<ConfigMap>(NAMESPACE, CONFIG_MAP) else {
            // Without the namespace there are no reports.
            if context.view.get(&registry::NAMESPACE, "", NAMESPACE).is_none() || context.failure.is_some() {
                return Vec::new();
            }
            return vec![Action::Create(Create {
                ignore_already_exists: true,
                ..Create::new(ConfigMap {
                    metadata: ObjectMeta {
                        namespace: Some(NAMESPACE.into()),
                        name: Some(CONFIG_MAP.into()),
                        ..ObjectMeta::default()
                    },
                    data: Some(desired),
                    ..ConfigMap::default()
                })
            })];
        };
        if old.data.as_ref() == Some(&desired) {
            return Vec::new();
        }
        let mut new = (*old).clone();
        new.data = Some(desired);
        vec![Action::update(new)]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, failure, lines, object, updated};

    fn put_node(world: &mut World, name: &str, ready: &str) {
        let node = json!({
            "metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        world.put(serde_json::from_value::<Node>(node).unwrap());
    }

    fn put_report(world: &mut World, name: &str, revision: &str) {
        let lease = json!({
            "metadata": {"namespace": NAMESPACE, "name": name, "annotations": {REVISION: revision}},
        });
        world.put(serde_json::from_value::<Lease>(lease).unwrap());
    }

    fn put_map(world: &mut World) {
        let map = json!({"metadata": {"namespace": NAMESPACE, "name": CONFIG_MAP}});
        world.put(serde_json::from_value::<ConfigMap>(map).unwrap());
    }

    #[test]
    fn b7_the_slowest_of_the_reporting_nodes_counts() {
        for (what, reports, nodes, revision, slowest) in [
            ("no node", vec![], 0, 0, ""),
            ("one", vec![("a", "True", "7")], 1, 7, "a"),
            (
                "the slower one",
                vec![("a", "True", "9"), ("b", "True", "10")],
                2,
                9,
                "a",
            ),
            (
                "as numbers, not as text",
                vec![("a", "True", "9"), ("b", "True", "100")],
                2,
                9,
                "a",
            ),
            (
                "one that is not ready, whose kernel still forwards",
                vec![("a", "True", "9"), ("b", "False", "1")],
                2,
                1,
                "b",
            ),
            (
                "not a lost one",
                vec![("a", "True", "9"), ("b", "Unknown", "1")],
                1,
                9,
                "a",
            ),
            (
                "a value that does not parse",
                vec![("a", "True", "9"), ("b", "True", "x")],
                2,
                0,
                "b",
            ),
        ] {
            let mut world = World::default();
            put_map(&mut world);
            for (name, ready, revision) in reports {
                put_node(&mut world, name, ready);
                put_report(&mut world, name, revision);
            }
            // The node of another proxy, and a report whose node was deleted.
            put_node(&mut world, "foreign", "True");
            put_report(&mut world, "gone", "1");
            let actions = world.run(&EndpointPropagation, (NAMESPACE, CONFIG_MAP), at(0));
            let map: ConfigMap = updated(&actions, "").unwrap();
            let found = Propagation::of(&map).unwrap();
            assert_eq!(
                (found.nodes, found.revision, &*found.slowest),
                (nodes, revision, slowest),
                "{what}"
            );
            world.take(&actions);
            assert!(
                world
                    .run(&EndpointPropagation, (NAMESPACE, CONFIG_MAP), at(0))
                    .is_empty(),
                "{what}"
            );
        }
    }

    #[test]
    fn b7_of_nodes_with_the_same_revision_the_first_is_named() {
        let mut world = World::default();
        put_map(&mut world);
        for name in ["a", "b"] {
            put_node(&mut world, name, "True");
            put_report(&mut world, name, "4");
        }
        assert_eq!(propagation(&world).slowest, "a");
    }

    #[test]
    fn b7_the_config_map_is_created_if_its_namespace_exists_and_no_write_was_rejected() {
        let key = (NAMESPACE, CONFIG_MAP);
        let mut world = World::default();
        assert_eq!(lines(&world.run(&EndpointPropagation, key, at(0))), [""; 0]);
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        world.put::<k8s_openapi::api::core::v1::Namespace>(serde_json::from_value(namespace).unwrap());
        assert_eq!(
            lines(&world.run(&EndpointPropagation, key, at(0))),
            ["create configmaps knarr-network/endpoint-propagation"]
        );
        let rejected = failure(&registry::CONFIG_MAP);
        let after = world.run_after(&EndpointPropagation, key, at(0), Some(&rejected));
        assert_eq!(lines(&after), [""; 0]);
    }

    #[test]
    fn b7_reports_and_nodes_that_are_lost_or_ready_again_enqueue_it() {
        let world = World::default();
        let meta = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let own = vec!["knarr-network/endpoint-propagation"];
        for (changed, keys) in [
            (object::<Lease>(meta(NAMESPACE, "n")), own.clone()),
            (object::<Lease>(meta("kube-node-lease", "n")), vec![]),
            (object::<ConfigMap>(meta(NAMESPACE, CONFIG_MAP)), own.clone()),
            (object::<ConfigMap>(meta(NAMESPACE, "other")), vec![]),
        ] {
            let found = world.keys(&EndpointPropagation, None, Some(&changed));
            assert_eq!(found, keys, "{}", ObjectKey::of(&changed));
        }
        let node = |ready: &str| {
            (!ready.is_empty()).then(|| {
                object::<Node>(json!({"metadata": {"name": "n"},
                    "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            })
        };
        for (old, new, keys) in [
            ("True", "False", vec![]),
            ("True", "True", vec![]),
            ("False", "Unknown", own.clone()),
            ("Unknown", "True", own.clone()),
            ("", "True", own.clone()),
            ("True", "", own),
        ] {
            let found = world.keys(&EndpointPropagation, node(old).as_ref(), node(new).as_ref());
            assert_eq!(found, keys, "{old:?} {new:?}");
        }
    }
}
