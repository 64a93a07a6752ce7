//! The states are distinguished, and sums count what occurred.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::world::Process;

fn pod(value: serde_json::Value) -> Life {
    let mut pod = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": "Pending"},
    });
    for (key, part) in value.as_object().unwrap() {
        for (field, value) in part.as_object().unwrap() {
            pod[key][field] = value.clone();
        }
    }
    Life::new(
        Arc::new(serde_json::from_value(pod).unwrap()),
        Timestamp::UNIX_EPOCH,
    )
}

fn process(container: &str, stop_requested: bool) -> Process {
    Process {
        id: container.into(),
        stop_requested: stop_requested.then_some(Timestamp::UNIX_EPOCH),
        ..Process::example(container)
    }
}

/// A cluster of one node, which reports its status or not, with one pod.
fn world(life: Life, processes: &[Process], reporting: bool) -> World {
    let mut world = World::default();
    let ready = if reporting { "True" } else { "Unknown" };
    let node =
        json!({"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
    world
        .nodes
        .insert("n1".into(), serde_json::from_value(node).unwrap());
    world.pods.insert("u".into(), life);
    for process in processes {
        let key = (process.node.clone(), process.id.clone());
        world.processes.insert(key, process.clone());
    }
    world
}

#[test]
fn each_state_of_a_pods_life_is_distinguished() {
    use State::*;
    let started = json!({"startTime": "2026-01-01T00:00:00Z"});
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let claim = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]);
    let (main, init, stop_requested) = (process("c", false), process("i", false), process("c", true));
    let one = std::slice::from_ref;
    for (life, processes, end, reporting, expect) in [
        (
            json!({"spec": {"nodeName": ""}}),
            &[][..],
            None,
            true,
            vec![Unscheduled],
        ),
        (json!({}), &[], None, true, vec![Unseen]),
        (json!({"status": started}), &[], None, true, vec![Starting]),
        (
            json!({"spec": {"volumes": claim}}),
            &[],
            None,
            true,
            vec![Unseen, Attaching],
        ),
        (
            json!({"spec": {"volumes": claim}}),
            one(&main),
            None,
            true,
            vec![Unready],
        ),
        (
            json!({"status": started}),
            one(&init),
            None,
            true,
            vec![InitRunning],
        ),
        (json!({"status": started}), one(&main), None, true, vec![Unready]),
        (json!({"status": ready}), one(&main), None, true, vec![Ready]),
        (
            json!({"status": ready}),
            one(&main),
            None,
            false,
            vec![Ready, NodeLost],
        ),
        (
            json!({"status": ready, "metadata": deleted}),
            one(&main),
            None,
            true,
            vec![Deleted],
        ),
        (
            json!({"status": ready, "metadata": deleted}),
            one(&stop_requested),
            None,
            true,
            vec![TermSent],
        ),
        (
            json!({"status": ready}),
            &[],
            Some(End::Killed),
            true,
            vec![KillSent],
        ),
        (
            json!({"status": ready}),
            &[],
            Some(End::ByItself),
            true,
            vec![Unreported],
        ),
        (
            json!({"status": {"phase": "Failed"}}),
            &[],
            Some(End::Killed),
            false,
            vec![Finished],
        ),
    ] {
        let case = format!("{life} {processes:?} {end:?} {reporting}");
        let world = world(pod(life), processes, reporting);
        let ends: Ends = end.map(|end| ("u".to_string(), end)).into_iter().collect();
        assert_eq!(states(&world, &ends, "u", &world.pods["u"]), expect, "{case}");
    }
    let mut released = pod(json!({"status": ready}));
    released.released = true;
    let world = world(released, one(&main), true);
    assert_eq!(
        states(&world, &Ends::new(), "u", &world.pods["u"]),
        [Ready, Released]
    );
}

#[test]
fn a_fault_meets_the_pods_of_its_node_and_sums_say_what_was_never_met() {
    let life = pod(json!({"status": {"phase": "Running"}}));
    let world = world(life, &[process("c", false)], true);
    let mut coverage = Coverage::default();
    coverage.struck(Switch::Reboot, Scope::Node("n1"), &world, &Ends::new());
    coverage.struck(Switch::KubeletCrash, Scope::Node("n2"), &world, &Ends::new());
    coverage.struck(Switch::ControllerCrash, Scope::Cluster, &world, &Ends::new());
    let one = coverage.of_one(Switches::NONE.with(Switch::Jobs));
    let mut two = one.clone();
    two.add(&one);
    assert_eq!(two.histories, 2);
    assert_eq!(two.met(Switch::Reboot, State::Unready), 2);
    assert_eq!(two.met(Switch::ControllerCrash, State::Unready), 2);
    assert_eq!(two.met(Switch::KubeletCrash, State::Unready), 0);
    assert_eq!(two.histories_with(Switch::Jobs, State::Unready), (2, 2));
    assert_eq!(two.never().len(), Coverage::all_pairs().count() - 2);
    assert!(
        !two.never().contains(&(Switch::Reboot, State::Unscheduled)),
        "it cannot be"
    );
    assert_eq!(Coverage::read(&two.to_json().unwrap()).unwrap(), two);
    assert!(Coverage::read("{\"pairs\": 3}").is_err());
    let table = two.to_string();
    assert!(
        table.contains("2 of ") && table.contains("kubelet-crash+unready"),
        "{table}"
    );
}
