//! Which nodes each plugin on volumes rejects, and its message.

use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::*;

#[test]
fn every_volume_plugin_has_kube_schedulers_verdicts() {
    let one = || pod("p", of_claims(&["c"]));
    let cases: &[(&str, Setup, Value, &str)] = &[
        (
            "no such claim",
            |_| {},
            one(),
            "persistentvolumeclaim \"c\" not found",
        ),
        (
            "the claim is deleted",
            |w| {
                let mut claim = claim("c", "local", "1Gi");
                claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "persistentvolumeclaim \"c\" is being deleted",
        ),
        (
            "the claim has lost its volume",
            |w| {
                let mut claim = bound("c", "v");
                claim["status"]["phase"] = "Lost".into();
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"",
        ),
        (
            "an ephemeral claim is not made yet",
            |_| {},
            pod("p", json!([{"name": "e", "ephemeral": {}}])),
            "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-e\"",
        ),
        (
            "an ephemeral claim has another owner",
            |w| {
                w.put::<PersistentVolumeClaim>(claim("p-e", "local", "1Gi"));
            },
            pod("p", json!([{"name": "e", "ephemeral": {}}])),
            "PVC default/p-e was not created for pod default/p (pod is not owner)",
        ),
        (
            "an immediate claim is not bound",
            |w| {
                w.put::<StorageClass>(class("now", "disks", "Immediate"));
                w.put::<PersistentVolumeClaim>(claim("c", "now", "1Gi"));
            },
            one(),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "a claim without class is not bound",
            |w| {
                w.put::<PersistentVolumeClaim>(claim("c", "", "1Gi"));
            },
            one(),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "the bound volume is on b",
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", "b"));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "b",
        ),
        (
            "the bound volume is nowhere",
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", "z"));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "2 node(s) didn't match PersistentVolume's node affinity",
        ),
        (
            "the bound volume is not there",
            |w| {
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "persistentvolume \"v\" not found",
        ),
        (
            "no volume to bind",
            |w| {
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            one(),
            "2 node(s) didn't find available persistent volumes to bind",
        ),
        (
            "the smallest that is large enough",
            |w| {
                for (name, size) in [("huge", "9Gi"), ("small", "1Gi"), ("fits", "3Gi")] {
                    w.put::<PersistentVolume>(volume(name, "local", size, "b"));
                }
                w.put::<PersistentVolumeClaim>(claim("c", "local", "2Gi"));
            },
            one(),
            "b fits=c",
        ),
        (
            "two claims, each the smallest",
            |w| {
                for (name, size, node) in [("v1", "1Gi", "a"), ("v2", "9Gi", "b"), ("v3", "3Gi", "b")] {
                    w.put::<PersistentVolume>(volume(name, "local", size, node));
                }
                w.put::<PersistentVolumeClaim>(claim("c", "local", "5Gi"));
                w.put::<PersistentVolumeClaim>(claim("d", "local", "1Gi"));
            },
            pod("p", of_claims(&["c", "d"])),
            "b v3=d v2=c",
        ),
        (
            "a volume that is not available, one of another mode, one of other access",
            |w| {
                let mut released = volume("v1", "local", "1Gi", "");
                released["status"]["phase"] = "Released".into();
                w.put::<PersistentVolume>(released);
                let mut block = volume("v2", "local", "1Gi", "");
                block["spec"]["volumeMode"] = "Block".into();
                w.put::<PersistentVolume>(block);
                let mut many = volume("v3", "local", "1Gi", "");
                many["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
                w.put::<PersistentVolume>(many);
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            one(),
            "2 node(s) didn't find available persistent volumes to bind",
        ),
        (
            "the volume that is reserved for the claim precedes a smaller one",
            |w| {
                w.put::<PersistentVolume>(volume("v1", "local", "1Gi", ""));
                let mut kept = volume("v2", "local", "5Gi", "a");
                kept["spec"]["claimRef"] = json!({"namespace": "default", "name": "c"});
                w.put::<PersistentVolume>(kept);
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            one(),
            "a v2=c",
        ),
        (
            "the claim selects by label",
            |w| {
                w.put::<PersistentVolume>(volume("v1", "local", "1Gi", ""));
                let mut fast = volume("v2", "local", "1Gi", "b");
                fast["metadata"]["labels"] = json!({"disk": "fast"});
                w.put::<PersistentVolume>(fast);
                let mut claim = claim("c", "local", "1Gi");
                claim["spec"]["selector"] = json!({"matchLabels": {"disk": "fast"}});
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "b v2=c",
        ),
        (
            "a volume is made where the class allows",
            |w| {
                let mut class = class("made", "disks", WAITS);
                class["allowedTopologies"] = json!([{"matchLabelExpressions":
                    [{"key": "topology.kubernetes.io/zone", "values": ["2"]}]}]);
                w.put::<StorageClass>(class);
                w.put::<PersistentVolumeClaim>(claim("c", "made", "1Gi"));
            },
            one(),
            "b c@b",
        ),
        (
            "a volume is being made for b",
            |w| {
                w.put::<StorageClass>(class("made", "disks", WAITS));
                let mut claim = claim("c", "made", "1Gi");
                claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "b"});
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "b c@b",
        ),
        (
            "the driver has room in zone 1",
            |w| {
                capacities(w, "1", "5Gi");
            },
            one(),
            "a c@a",
        ),
        (
            "the driver has too little room",
            |w| {
                capacities(w, "1", "1Gi");
            },
            one(),
            "2 node(s) did not have enough free storage",
        ),
        (
            "the volume's label says zone 2",
            |w| {
                let mut labelled = volume("v", "local", "1Gi", "");
                labelled["metadata"]["labels"] = json!({"failure-domain.beta.kubernetes.io/zone": "2__3"});
                w.put::<PersistentVolume>(labelled);
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "b",
        ),
        (
            "the volume's label says zone 3",
            |w| {
                let mut labelled = volume("v", "local", "1Gi", "");
                labelled["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "3"});
                w.put::<PersistentVolume>(labelled);
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "2 node(s) had no available volume zone",
        ),
        (
            "one pod at a time",
            |w| {
                let mut claim = bound("c", "v");
                claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(claim);
                w.run("a", pod("other", of_claims(&["c"])));
            },
            one(),
            "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
        ),
        (
            "a disk is written on a",
            |w| {
                w.run(
                    "a",
                    pod(
                        "other",
                        json!([{"name": "d", "gcePersistentDisk": {"pdName": "x"}}]),
                    ),
                );
            },
            pod(
                "p",
                json!([{"name": "d", "gcePersistentDisk": {"pdName": "x", "readOnly": true}}]),
            ),
            "b",
        ),
        (
            "a disk is written everywhere",
            |w| {
                for n in ["a", "b"] {
                    w.run(
                        n,
                        pod(
                            n,
                            json!([{"name": "d", "rbd": {"monitors": ["m", "n"], "image": "i"}}]),
                        ),
                    );
                }
            },
            pod(
                "p",
                json!([{"name": "d", "rbd": {"monitors": ["n"], "image": "i"}}]),
            ),
            "2 node(s) had no available disk",
        ),
        (
            "a attaches one volume, and has it",
            |w| {
                limited(w, "a", 1);
                w.put::<PersistentVolume>(volume("v0", "local", "1Gi", "a"));
                w.put::<PersistentVolumeClaim>(bound("c0", "v0"));
                w.run("a", pod("other", of_claims(&["c0"])));
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "b",
        ),
        (
            "a volume that is attached anyway is not counted twice",
            |w| {
                limited(w, "a", 1);
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", "a"));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
                w.run("a", pod("other", of_claims(&["c"])));
            },
            one(),
            "a",
        ),
        (
            "an attachment without a pod counts",
            |w| {
                limited(w, "a", 1);
                limited(w, "b", 0);
                w.put::<PersistentVolume>(volume("v0", "local", "1Gi", ""));
                w.put::<VolumeAttachment>(json!({"metadata": {"name": "x"}, "spec":
                    {"attacher": "disks", "nodeName": "a", "source": {"persistentVolumeName": "v0"}}}));
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "2 node(s) exceed max volume count",
        ),
    ];
    for (name, setup, pod, expected) in cases {
        let mut world = World::new();
        setup(&mut world);
        world.submit(pod.clone());
        assert_eq!(world.next(), *expected, "{name}");
    }
}
