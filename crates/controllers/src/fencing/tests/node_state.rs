//! What fencing reads and writes of a node, its volumes and its taints.

use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::ATTACHER;

use super::*;
use crate::fencing::node_state::TAINT_VALUE;
use crate::world::object;

#[test]
fn s6_a_node_is_released_when_neither_pods_nor_its_volumes_are_left() {
    let mut story = Story::new(world(one_agent()));
    for (name, attacher, node) in [
        ("mine", ATTACHER, "n1"),
        ("of-a-driver", "csi.example.com", "n1"),
        ("of-another-node", ATTACHER, "n2"),
    ] {
        story
            .world
            .put::<VolumeAttachment>(from(json!({"metadata": {"name": name}, "spec": {
            "attacher": attacher, "nodeName": node, "source": {"persistentVolumeName": "v"}}})));
    }
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    let message = |story: &Story| story.the_fencing().unwrap().status.message;
    story.settle(60, good);
    assert_eq!(message(&story), "releasing 1 pods and 1 volumes");
    story.world.remove(&registry::POD, "a", "p");
    story.settle(61, good);
    assert_eq!(message(&story), "releasing 0 pods and 1 volumes");
    story.world.remove(&registry::VOLUME_ATTACHMENT, "", "mine");
    story.settle(62, good);
    assert!(
        message(&story).starts_with("all pods and volumes are released"),
        "{}",
        message(&story)
    );
}

#[test]
fn s6_only_fencings_own_taint_is_removed() {
    let taints = json!([
        {"key": "mine", "effect": "NoExecute"},
        {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"},
        {"key": OUT_OF_SERVICE, "value": TAINT_VALUE, "effect": "NoExecute"},
    ]);
    let before: Node = from(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}}));
    let after = tainted(&before, false, at(0)).spec.unwrap().taints.unwrap();
    let found: Vec<Option<&str>> = after.iter().map(|t| t.value.as_deref()).collect();
    assert_eq!(found, [None, Some("nodeshutdown")]);
}

#[test]
fn s6_a_plug_is_given_only_to_agents_that_have_no_port() {
    for (parameters, plug) in [
        (json!({"ip": "192.0.2.9"}), Some("n1")),
        (json!({"port": "7"}), None),
    ] {
        let policy = json!({"levels": [{"agents": [{"agent": "fence_a", "parameters": parameters}]}]});
        let mut story = Story::new(world(policy));
        let mut seen = Vec::new();
        story.settle(60, |run| {
            seen.push(run.parameters.get("plug").cloned());
            if run.action == "status" { "off" } else { "ok" }
        });
        assert_eq!(seen[0].as_deref(), plug, "{parameters}");
    }
}

#[test]
fn s6_fencing_is_synced_for_its_own_kinds_and_for_nodes_that_are_lost_annotated_or_tainted() {
    let node = |ready: &str, annotated: bool, tainted: bool, beat: i64| {
        let mut node = node("n", ready, beat);
        node.metadata.annotations =
            annotated.then(|| BTreeMap::from([(FENCE_ANNOTATION.to_string(), "why".to_string())]));
        if tainted {
            node = super::tainted(&node, true, at(0));
        }
        World::default().put(node)
    };
    let plain = || node("True", false, false, 0);
    for (what, new, wakes) in [
        ("a heartbeat", node("True", false, false, 10), false),
        ("a lost node", node("Unknown", false, false, 0), true),
        ("a request", node("True", true, false, 0), true),
        ("a taint", node("True", false, true, 0), true),
    ] {
        assert_eq!(is_relevant(Some(&plain()), Some(&new)), wakes, "{what}");
    }
    assert!(is_relevant(None, Some(&plain())) && is_relevant(Some(&plain()), None));
    let pod = object::<Pod>(json!({"metadata": {"namespace": "a", "name": "p"}}));
    assert!(!is_relevant(None, Some(&pod)) && !is_relevant(None, None));
    for kind in [FencingPolicy::kind(), NodeFencing::kind()] {
        let own = World::default().put_json(kind, r#"{"metadata": {"name": "x"}, "spec": {}}"#);
        assert!(is_relevant(None, Some(&own)), "{}", kind.plural());
    }
}

#[test]
fn s6_fencing_watches_all_kinds_that_it_decides_from() {
    let watched: Vec<&str> = watches().iter().map(|kind| kind.plural()).collect();
    for read in [
        FencingPolicy::kind().plural(),
        NodeFencing::kind().plural(),
        "nodes",
        "pods",
        "persistentvolumeclaims",
        "volumeattachments",
    ] {
        assert!(watched.contains(&read), "{read}: {watched:?}");
    }
}

#[test]
fn s6_a_policys_status_is_written_when_its_agents_have_described_themselves_and_once() {
    let mut world = world(one_agent());
    let mut fencing = Fencing::new(Allowed::parse("fence_a:ip,port").unwrap());
    let mut writes = Vec::new();
    for second in 0..5 {
        let decision = fencing.sync(&world, at(second));
        for list in &decision.actions {
            writes.extend(lines(list));
            world.take(list);
        }
        for run in decision.runs.iter().filter(|run| run.action == METADATA) {
            let why = "no such program".to_string();
            fencing.record_result(run, AgentResult::Broken { why }, at(second));
        }
    }
    let of_policy: Vec<_> = writes
        .iter()
        .filter(|l| l.contains("fencingpolicies/status"))
        .collect();
    assert_eq!(of_policy.len(), 1, "{writes:?}");
}

#[test]
fn s6_the_status_of_an_unfenced_node_names_the_volumes_that_it_still_uses() {
    for (used, named) in [
        (None, None),
        (Some("exclusive.knarr.io/v"), Some("(exclusive.knarr.io/v)")),
    ] {
        let mut policy = one_agent();
        policy["automaticReturn"] = true.into();
        let mut story = Story::new(world(policy));
        let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
        story.settle(60, good);
        story.world.remove(&registry::POD, "a", "p");
        let mut there = story.ready_since(0);
        there.status.as_mut().unwrap().volumes_in_use = used.map(|v| vec![v.to_string()]);
        story.world.put(there);
        story.settle(80, good);
        assert_eq!(story.phase(), Some(Phase::Returning));
        let message = story.the_fencing().unwrap().status.message;
        assert!(message.contains("waiting for the node to be Ready"), "{message}");
        assert_eq!(
            message.contains("to use no volume from before"),
            used.is_some(),
            "{message}"
        );
        assert!(named.is_none_or(|n| message.contains(n)), "{message}");
    }
}
