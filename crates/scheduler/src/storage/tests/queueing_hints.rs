//! Which changes of storage requeue a pod that the plugins on volumes have rejected.

use super::*;

/// Events after a pod was rejected, and their name in the metrics if they requeue it.
#[test]
fn only_events_that_may_help_requeue_a_pod() {
    let rejected_by_limit: Setup = |w| {
        limited(w, "a", 0);
        limited(w, "b", 0);
        w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
        w.put::<PersistentVolumeClaim>(bound("c", "v"));
    };
    let no_volume: Setup = |w| {
        w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
    };
    let in_use: Setup = |w| {
        let mut exclusive = bound("c", "v");
        exclusive["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
        w.put::<PersistentVolumeClaim>(exclusive);
        w.run("a", pod("other", of_claims(&["c"])));
    };
    let no_room: Setup = |w| capacities(w, "1", "1Gi");
    let no_claim: Setup = |_| {};
    let cases: &[(&str, Setup, Setup, Option<&'static str>)] = &[
        (
            "a node attaches more",
            rejected_by_limit,
            |w| {
                w.change::<CSINode>(Some(csi_node("a", 0)), Some(csi_node("a", 1)));
            },
            Some("storage.k8s.io/CSINodeUpdate"),
        ),
        (
            "a node says the same again",
            rejected_by_limit,
            |w| {
                w.change::<CSINode>(Some(csi_node("a", 0)), Some(csi_node("a", 0)));
            },
            None,
        ),
        (
            "a volume comes",
            no_volume,
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
            },
            Some("PersistentVolumeAdd"),
        ),
        (
            "another claim comes",
            no_volume,
            |w| {
                w.put::<PersistentVolumeClaim>(claim("d", "local", "1Gi"));
            },
            None,
        ),
        (
            "the claim comes",
            no_claim,
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            Some("PersistentVolumeClaimAdd"),
        ),
        (
            "the pod that used the claim is deleted",
            in_use,
            |w| w.remove("a", pod("other", of_claims(&["c"]))),
            Some("AssignedPodDelete"),
        ),
        (
            "another pod is deleted",
            in_use,
            |w| {
                let other = pod("another", of_claims(&["e"]));
                w.run("a", other.clone());
                w.remove("a", other);
            },
            None,
        ),
        (
            "the driver finds room",
            no_room,
            |w| {
                let before = json!({
                    "metadata": {"name": "x", "namespace": "kube-system"}, "storageClassName": "made",
                    "capacity": "1Gi", "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": "1"}},
                });
                let mut after = before.clone();
                after["capacity"] = "9Gi".into();
                w.change::<CSIStorageCapacity>(Some(before), Some(after));
            },
            Some("storage.k8s.io/CSIStorageCapacityUpdate"),
        ),
    ];
    for (name, before, event, label) in cases {
        let mut world = World::new();
        before(&mut world);
        world.submit(pod("p", of_claims(&["c"])));
        assert!(matches!(world.step(), Some(Action::Report { .. })), "{name}");
        world.later(20);
        event(&mut world);
        let next = world.next();
        assert_eq!(next != "nothing", label.is_some(), "{name}: {next}");
        let labels = world.scheduler.incoming_pods();
        assert!(
            label.is_none_or(|l| labels.contains_key(&(l, "active"))),
            "{name}"
        );
    }
}
