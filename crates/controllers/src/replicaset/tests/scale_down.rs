//! Scaling down by spread (SPEC B3), from the Deployment to the deletions.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ReplicationController;
use knarr_api::registry::Registered;
use knarr_api::scale_down::SCALE_DOWN;
use serde_json::{Value, json};

use super::*;
use crate::deployment::Deployments;
use crate::replicationcontroller::ReplicationControllers;

const ZONE: &str = "topology.kubernetes.io/zone";
const SPREAD: ReplicaSets = ReplicaSets {
    scale_down: Policy::Spread,
};

fn read<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The nodes `a1`, `a2`, `b1`, … of zones a, b and c.
fn with_zones() -> World {
    let mut world = World::default();
    for name in ["a1", "a2", "b1", "b2", "c1", "c2"] {
        let zone = &name[..1];
        world.put(read::<Node>(
            json!({"metadata": {"name": name, "labels": {ZONE: zone}}}),
        ));
    }
    world
}

fn constraint() -> Value {
    json!({"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}})
}

fn on(mut pod: Pod, node: &str) -> Pod {
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.into());
    spec.topology_spread_constraints = Some(vec![serde_json::from_value(constraint()).unwrap()]);
    pod
}

/// The set's ready pods, named for their nodes: `a1-0`, ….
fn put_pods(world: &mut World, nodes: &[&str]) {
    for (i, node) in nodes.iter().enumerate() {
        world.put(ready(owned(on(bare_pod(&format!("{node}-{i}")), node)), 0));
    }
}

fn annotated(mut set: ReplicaSet, value: &str) -> ReplicaSet {
    set.metadata.annotations = Some(labels(&[(SCALE_DOWN, value)]));
    set
}

/// The names of the pods that one sync deletes.
fn deleted(world: &World, controller: &dyn Controller) -> Vec<String> {
    let actions = world.run(controller, KEY, at(1000));
    let deletes = actions.iter().find_map(|action| match action {
        Action::DeleteMany(deletes) => Some(deletes),
        _ => None,
    });
    let deletes = deletes.into_iter().flatten();
    deletes.map(|delete| delete.key.name.clone()).collect()
}

/// Runs the Deployment controller and the ReplicaSet controller until they do nothing more, as the API server and a scheduler would
/// let them: `place` gives each new pod its node.
fn sync_all(world: &mut World, second: i64, place: &mut dyn Iterator<Item = &str>) {
    for _ in 0..20 {
        let mut done = world.run(&Deployments, KEY, at(second));
        world.take(&done);
        let view: &dyn View = world;
        for set in view.list_as::<ReplicaSet>(KEY.0) {
            let actions = world.run(&ReplicaSets::default(), (KEY.0, set.object().name()), at(second));
            world.take(&actions);
            done.extend(actions);
        }
        let view: &dyn View = world;
        for pod in view.list_as::<Pod>(KEY.0) {
            if pod::node_name(&pod).is_empty() {
                let mut placed = (*pod).clone();
                placed.spec.get_or_insert_default().node_name = Some(place.next().unwrap().into());
                placed.status.get_or_insert_default().phase = Some("Running".into());
                placed.metadata.creation_timestamp = Some(seconds(at(second)));
                world.put(ready(placed, second));
            }
        }
        if done
            .iter()
            .all(|a| matches!(a, Action::RequeueAfter(_) | Action::Event { .. }))
        {
            return;
        }
    }
    panic!("the controllers never finish");
}

/// How many active pods each zone has.
fn by_zone(world: &World) -> [usize; 3] {
    let view: &dyn View = world;
    let pods = view.list_as::<Pod>(KEY.0);
    ["a", "b", "c"].map(|zone| {
        let there = pods.iter().filter(|p| pod::is_active(p));
        there.filter(|p| pod::node_name(p).starts_with(zone)).count()
    })
}

/// "There's no guarantee that the constraints remain satisfied when Pods are removed. For example, scaling down a Deployment may
/// result in imbalanced Pods distribution." (Pod Topology Spread Constraints, known limitations.) The example is that of the page for
/// maxSkew: "3 zones with 2, 2 and 1 matching pods respectively, maxSkew is set to 1".
#[test]
fn b3_d1_scaling_a_deployment_down_from_2_2_1_leaves_1_1_1_where_v1_36_gives_no_guarantee() {
    let deployment = |replicas: i32, policy: Option<&str>| -> Deployment {
        let annotations = policy.map(|policy| json!({SCALE_DOWN: policy}));
        read(json!({
            "metadata": {"namespace": "default", "name": "web", "generation": replicas, "annotations": annotations},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}], "topologySpreadConstraints": [constraint()]}}},
        }))
    };
    let scaled = |policy: Option<&str>| {
        let mut world = with_zones();
        world.put(deployment(3, policy));
        sync_all(&mut world, 0, &mut ["a1", "c1", "b1"].into_iter());
        world.put(deployment(5, policy));
        sync_all(&mut world, 500, &mut ["a2", "b2"].into_iter());
        assert_eq!(by_zone(&world), [2, 2, 1]);
        (world, deployment(3, policy))
    };
    // v1.36 deletes the pods that became ready last.
    let young_c = |world: &mut World| {
        let view: &dyn View = &*world;
        for pod in view.list_as::<Pod>(KEY.0) {
            let since = if ["c1", "a1"].contains(&pod::node_name(&pod)) {
                998
            } else {
                0
            };
            world.put(ready((*pod).clone(), since));
        }
    };
    let (mut world, smaller) = scaled(None);
    young_c(&mut world);
    world.put(smaller);
    sync_all(&mut world, 1000, &mut std::iter::empty());
    assert_eq!(by_zone(&world), [1, 2, 0], "v1.36's order");

    let (mut world, smaller) = scaled(Some("spread"));
    young_c(&mut world);
    world.put(smaller);
    sync_all(&mut world, 1000, &mut std::iter::empty());
    assert_eq!(by_zone(&world), [1, 1, 1]);
    let view: &dyn View = &world;
    let sets = view.list_as::<ReplicaSet>(KEY.0);
    let copied = sets[0].metadata.annotations.as_ref().unwrap();
    assert_eq!(copied.get(SCALE_DOWN).map(String::as_str), Some("spread"));
}

#[test]
fn b3_the_annotation_overrides_the_clusters_policy() {
    let default = ReplicaSets::default();
    // v1.36 takes the youngest, c1; the spread one of zone a.
    let world = |set: ReplicaSet| {
        let mut world = with_zones();
        world.put(set);
        put_pods(&mut world, &["a1", "a2", "b1"]);
        world.put(ready(owned(on(bare_pod("c1-3"), "c1")), 990));
        world
    };
    let table: [(ReplicaSet, &ReplicaSets, &str); 7] = [
        (set(3), &default, "c"),
        (set(3), &SPREAD, "a"),
        (annotated(set(3), "spread"), &default, "a"),
        (annotated(set(3), "default"), &SPREAD, "c"),
        (annotated(set(3), "spread"), &SPREAD, "a"),
        (annotated(set(3), "fullest"), &default, "c"),
        (annotated(set(3), "fullest"), &SPREAD, "a"),
    ];
    for (set, controller, zone) in table {
        let annotations = set.metadata.annotations.clone();
        let deleted = deleted(&world(set), controller);
        assert_eq!(deleted.len(), 1);
        assert!(
            deleted[0].starts_with(zone),
            "{annotations:?} with {:?}: {deleted:?}",
            controller.scale_down
        );
    }
}

#[test]
fn b3_a_replication_controller_scales_down_by_spread_as_well() {
    let controller = ReplicationControllers {
        scale_down: Policy::Spread,
    };
    let mut world = with_zones();
    world.put(read::<ReplicationController>(json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"replicas": 3, "selector": {"app": "web"}},
    })));
    for (name, node, since) in [("a", "a1", 0), ("b", "a2", 0), ("c", "b1", 0), ("d", "c1", 990)] {
        let mut pod = owned(on(bare_pod(name), node));
        let owner = &mut pod.metadata.owner_references.as_mut().unwrap()[0];
        owner.api_version = "v1".into();
        owner.kind = "ReplicationController".into();
        world.put(ready(pod, since));
    }
    assert_eq!(deleted(&world, &ReplicationControllers::default()), ["d"]);
    assert_eq!(deleted(&world, &controller), ["a"]);
}

#[test]
fn b3_the_pods_of_an_older_replica_set_count() {
    let mut world = with_zones();
    world.put(annotated(set(2), "spread"));
    put_pods(&mut world, &["a1", "b1", "c1"]);
    // A rollout's old set, and a terminating pod, which does not count.
    let mut old = ready(on(bare_pod("old"), "b2"), 0);
    old.metadata.owner_references = owned(bare_pod("x")).metadata.owner_references.map(|mut owners| {
        owners[0].name = "web-old".into();
        owners[0].uid = "uid-web-old".into();
        owners
    });
    let mut ending = old.clone();
    ending.metadata.name = Some("ending".into());
    ending.metadata.deletion_timestamp = Some(seconds(at(5)));
    ending.spec.as_mut().unwrap().node_name = Some("c2".into());
    world.put(old);
    world.put(ending);
    assert_eq!(deleted(&world, &ReplicaSets::default()), ["b1-1"]);
}

#[test]
fn b3_one_sync_deletes_burst_replicas_and_the_next_ones_keep_the_spread() {
    let mut world = with_zones();
    world.put(annotated(set(9), "spread"));
    let nodes = ["a1", "a2", "a1", "a2", "b1", "c1"];
    let on: Vec<&str> = (0..1200).map(|i| nodes[i % nodes.len()]).collect();
    put_pods(&mut world, &on);
    assert_eq!(by_zone(&world), [800, 200, 200]);
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let actions = world.run(&ReplicaSets::default(), KEY, at(1000));
        assert!(
            lines(&actions)[1].starts_with("delete pods"),
            "{:?}",
            lines(&actions)[1]
        );
        world.take(&actions);
        sizes.push(by_zone(&world));
    }
    // All of the first 500 are of zone a, 800 to 300.
    assert_eq!(sizes[0], [300, 200, 200]);
    assert_eq!(sizes[1].iter().sum::<usize>(), 1200 - 2 * BURST_REPLICAS);
    assert!(sizes[1].iter().all(|n| [66, 67].contains(n)), "{sizes:?}");
    assert_eq!(sizes[2], [3, 3, 3]);
}

#[test]
fn b3_a_change_of_a_node_enqueues_no_set() {
    let mut world = with_zones();
    world.put(annotated(set(1), "spread"));
    put_pods(&mut world, &["a1", "b1"]);
    let view: &dyn View = &world;
    let node = view.get(&registry::NODE, "", "a1").unwrap();
    for controller in [&SPREAD as &dyn Controller, &ReplicationControllers::default()] {
        assert_eq!(world.keys(controller, Some(&node), None), [""; 0]);
        assert_eq!(world.keys(controller, None, Some(&node)), [""; 0]);
        assert_eq!(world.keys(controller, Some(&node), Some(&node)), [""; 0]);
    }
    let pod = view.get(&registry::POD, "default", "a1-0").unwrap();
    assert_eq!(world.keys(&SPREAD, None, Some(&pod)), ["default/web"]);
}

/// A view that has no nodes, and fails the test if they are read.
struct WithoutNodes(World);

impl View for WithoutNodes {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<std::sync::Arc<Object>> {
        self.0.get(kind, namespace, name)
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<std::sync::Arc<Object>> {
        panic!("{} of {namespace:?} are listed", kind.plural())
    }

    fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<std::sync::Arc<Object>> {
        self.0.controlled_by(kind, uid)
    }

    fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<std::sync::Arc<Object>> {
        self.0.orphans(kind, namespace)
    }

    fn pods_on(&self, node: &str) -> Vec<std::sync::Arc<Object>> {
        self.0.pods_on(node)
    }
}

#[test]
fn b3_neither_nodes_nor_other_pods_are_read_unless_they_may_decide() {
    let run = |set: ReplicaSet, constrained: bool, controller: &ReplicaSets| {
        let mut world = with_zones();
        world.put(set);
        put_pods(&mut world, &["a1", "a2"]);
        if !constrained {
            for name in ["a1-0", "a2-1"] {
                world.put(ready(owned(bare_pod(name)), 0));
            }
        }
        let actions = controller.reconcile(&Context {
            view: &WithoutNodes(world),
            key: &ObjectKey::new(KEY.0, KEY.1),
            now: at(1000),
            failure: None,
        });
        actions.len()
    };
    // No opt-in, no constraints, no surplus, no choice.
    let all = [
        run(set(1), true, &ReplicaSets::default()),
        run(annotated(set(1), "default"), true, &SPREAD),
        run(set(1), false, &SPREAD),
        run(set(2), true, &SPREAD),
        run(set(0), true, &SPREAD),
    ];
    assert_eq!(all, [3, 3, 3, 1, 3]);
}
