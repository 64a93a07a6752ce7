//! Fencing of a node, with agents that succeed, and agents that report false results, hang and partly succeed.

mod bounds;
mod node_state;
mod unfencing;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::kinds::{Custom, FencingPolicy, NodeFencing, Phase, definitions};
use super::*;
use crate::world::{World, at, lines};

fn from<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A cluster of three nodes, of which n1 is lost since second 0, with a StatefulSet's pod on it.
fn world(policy: Value) -> World {
    let mut world = World::default();
    for name in ["n1", "n2", "n3"] {
        world.put(node(name, if name == "n1" { "Unknown" } else { "True" }, 0));
    }
    world.put(stateful("p", "n1"));
    if !policy.is_null() {
        world.put_custom(&FencingPolicy {
            metadata: serde_json::from_value(json!({"name": "power"})).unwrap(),
            spec: serde_json::from_value(policy).unwrap(),
            ..FencingPolicy::default()
        });
    }
    world
}

fn node(name: &str, ready: &str, since: i64) -> Node {
    let mut node: Node = from(json!({
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }));
    for c in node
        .status
        .iter_mut()
        .flat_map(|s| s.conditions.iter_mut().flatten())
    {
        c.last_transition_time = Some(Time(at(since)));
        c.last_heartbeat_time = Some(Time(at(since)));
    }
    node
}

fn stateful(name: &str, node: &str) -> Pod {
    from(json!({
        "metadata": {"namespace": "a", "name": name, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true},
        ]},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running"},
    }))
}

fn one_agent() -> Value {
    json!({"levels": [{"agents": [{"agent": "fence_a", "retries": 1}]}]})
}

/// The result of an agent by a keyword.
fn result(word: &str) -> AgentResult {
    let exited = |code| AgentResult::Exited {
        code,
        output: String::new(),
    };
    match word {
        "ok" | "on" => exited(0),
        "off" => exited(2),
        "fails" => exited(1),
        "hangs" => AgentResult::TimedOut,
        other => AgentResult::Broken { why: other.into() },
    }
}

struct Story {
    world: World,
    fencing: Fencing,
    /// `agent action` of every run, in order.
    runs: Vec<String>,
}

impl Story {
    fn new(world: World) -> Self {
        Story {
            world,
            fencing: Fencing::new(
                Allowed::parse("fence_a:ip,port fence_disk fence_path fence_plug").unwrap(),
            ),
            runs: Vec::new(),
        }
    }

    /// Syncs until nothing changes any more; `say` returns the agents' results.
    fn settle(&mut self, second: i64, mut say: impl FnMut(&Run) -> &'static str) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..60 {
            let decision = self.fencing.sync(&self.world, at(second));
            if decision.actions.is_empty() && decision.runs.is_empty() {
                return done;
            }
            for list in &decision.actions {
                self.world.take(list);
                done.extend(lines(list));
            }
            for run in decision.runs.into_iter().filter(|run| run.action != METADATA) {
                self.runs.push(format!("{} {}", run.agent, run.action));
                let result = result(say(&run));
                self.fencing.record_result(&run, result, at(second));
            }
        }
        panic!("it does not settle: {done:?}");
    }

    fn the_fencing(&self) -> Option<NodeFencing> {
        let view: &dyn View = &self.world;
        let all = view.list(NodeFencing::kind(), "");
        assert!(all.len() <= 1);
        all.first().and_then(|o| NodeFencing::of(o))
    }

    fn phase(&self) -> Option<Phase> {
        self.the_fencing().map(|f| f.status.phase)
    }

    /// The node with the status that it reports from then on, and with what other components wrote.
    fn ready_since(&self, second: i64) -> Node {
        let view: &dyn View = &self.world;
        Node {
            spec: view.get_as::<Node>("", "n1").unwrap().spec.clone(),
            ..node("n1", "True", second)
        }
    }

    fn is_tainted(&self) -> bool {
        let view: &dyn View = &self.world;
        has_out_of_service_taint(&view.get_as::<Node>("", "n1").unwrap())
    }
}

#[test]
fn both_definitions_are_served_as_they_are_read() {
    for crd in definitions() {
        assert_eq!(crd.spec.group, kinds::GROUP);
        let names = [FencingPolicy::kind().plural(), NodeFencing::kind().plural()];
        assert!(names.contains(&crd.spec.names.plural.as_str()));
    }
    let policy: FencingPolicy = serde_json::from_value(json!({"spec": one_agent()})).unwrap();
    assert_eq!(
        (
            policy.spec.max_concurrent,
            policy.spec.levels[0].agents[0].timeout_seconds
        ),
        (1, 60)
    );
}

#[test]
fn s6_a_lost_node_is_fenced_and_only_then_tainted_as_out_of_service() {
    let mut story = Story::new(world(one_agent()));
    assert_eq!(story.settle(59, |_| "ok"), [""; 0], "not lost for long enough");
    let done = story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(story.runs, ["fence_a off", "fence_a status"]);
    let read = done.iter().position(|l| l == "require node n1 unreachable");
    let starts = done.iter().position(|l| l.starts_with("event FencingStarted"));
    assert!(
        read.is_some() && read < starts,
        "the node may report its status again: {done:?}"
    );
    assert_eq!(story.phase(), Some(Phase::Fenced));
    assert!(story.is_tainted());
    let evidence = done
        .iter()
        .position(|l| l.starts_with("event NodeFenced"))
        .unwrap();
    let taint = done.iter().position(|l| l == "update nodes n1").unwrap();
    assert!(
        evidence < taint,
        "the evidence is written before the taint: {done:?}"
    );
    let fencing = story.the_fencing().unwrap();
    let outcomes: Vec<&str> = fencing
        .status
        .evidence
        .iter()
        .map(|e| e.outcome.as_str())
        .collect();
    assert_eq!(outcomes, ["succeeded", "says off"]);
    assert_eq!(fencing.status.conditions[0].status, "True");
    assert_eq!(fencing.status.message, "releasing 1 pods and 0 volumes");
}

#[test]
fn s6_without_evidence_nothing_is_released_and_the_status_says_so() {
    for (off, status, word) in [
        ("fails", "off", "fence_a off: failed with code 1"),
        ("hangs", "off", "fence_a off: timed out after 60 s"),
        ("no such program", "off", "fence_a off: no such program"),
        // A false result: it has done nothing.
        ("ok", "on", "fence_a status: says on"),
        ("ok", "hangs", "fence_a status: timed out after 60 s"),
        ("ok", "fails", "fence_a status: failed with code 1"),
    ] {
        let mut story = Story::new(world(one_agent()));
        story.settle(60, |run| if run.action == "status" { status } else { off });
        let fencing = story.the_fencing().unwrap();
        assert_eq!(fencing.status.phase, Phase::Failed);
        assert!(
            fencing.status.message.starts_with(word),
            "{}",
            fencing.status.message
        );
        assert!(fencing.status.message.contains("nothing is released"));
        assert!(!story.is_tainted());
        let offs = story.runs.iter().filter(|r| r.ends_with(" off")).count();
        assert_eq!(offs, 2, "one retry");
        // Later it is attempted again, from the beginning.
        assert_eq!(story.settle(359, |_| "fails"), [""; 0]);
        story.settle(360, |run| if run.action == "status" { "off" } else { "ok" });
        assert_eq!(story.phase(), Some(Phase::Fenced));
    }
}

#[test]
fn s6_results_of_an_attempt_that_another_controller_finished_are_no_evidence() {
    let reboot = json!({"levels": [{"action": "reboot", "agents": [{"agent": "fence_a", "retries": 0}]}]});
    // The result comes before the next attempt starts, or after.
    for late in [false, true] {
        let mut story = Story::new(world(reboot.clone()));
        let mut other = Story::new(world(reboot.clone()));
        let mut reboot = None;
        for second in 60..64 {
            let decision = story.fencing.sync(&story.world, at(second));
            decision.actions.iter().for_each(|list| story.world.take(list));
            reboot = reboot.or(decision.runs.into_iter().find(|run| run.action == "reboot"));
        }
        let reboot = reboot.unwrap();
        // The other controller's agent fails at once, which that writes to the status.
        std::mem::swap(&mut story.world, &mut other.world);
        other.settle(64, |_| "fails");
        assert_eq!(other.phase(), Some(Phase::Failed));
        std::mem::swap(&mut story.world, &mut other.world);
        assert!(story.fencing.sync(&story.world, at(65)).runs.is_empty());
        if !late {
            story.fencing.record_result(&reboot, result("ok"), at(66));
        }
        // The other controller starts the next attempt.
        let decision = other.fencing.sync(&story.world, at(400));
        decision.actions.iter().for_each(|list| story.world.take(list));
        let mut runs = Vec::new();
        for second in 401..404 {
            let decision = story.fencing.sync(&story.world, at(second));
            decision.actions.iter().for_each(|list| story.world.take(list));
            runs.extend(decision.runs.into_iter().filter(|run| run.action != METADATA));
        }
        if late {
            story.fencing.record_result(&reboot, result("ok"), at(404));
            assert!(story.fencing.sync(&story.world, at(405)).actions.is_empty());
        }
        assert_eq!(story.phase(), Some(Phase::Fencing), "late: {late}");
        // The agents run again, and their results count.
        story.fencing.record_result(&runs[0], result("ok"), at(406));
        story.settle(407, |_| "fails");
        assert_eq!(story.phase(), Some(Phase::Fenced));
    }
}

#[test]
fn s6_a_level_needs_all_its_agents_and_the_next_level_starts_from_the_beginning() {
    let levels = json!({"levels": [
        {"agents": [{"agent": "fence_disk", "retries": 0}, {"agent": "fence_path", "retries": 0}]},
        {"action": "reboot", "agents": [{"agent": "fence_plug", "retries": 0}]},
    ]});
    let mut story = Story::new(world(levels.clone()));
    story.settle(60, |run| match (run.agent.as_str(), run.action) {
        ("fence_path", _) => "fails",
        (_, "status") => "off",
        _ => "ok",
    });
    assert_eq!(
        story.runs,
        [
            "fence_disk off",
            "fence_disk status",
            "fence_path off",
            "fence_plug reboot"
        ],
        "half of a level is not enough"
    );
    assert_eq!(story.the_fencing().unwrap().status.level, Some(1));
    let mut story = Story::new(world(levels));
    story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(story.runs.len(), 4);
    assert_eq!(story.the_fencing().unwrap().status.level, Some(0));
}

#[test]
fn s6_fencing_waits_while_too_many_nodes_are_lost() {
    let lost = |world: &mut World, names: &[&str]| {
        names.iter().for_each(|n| drop(world.put(node(n, "Unknown", 0))));
    };
    // Two of three nodes lost: more than half.
    let mut storm = world(one_agent());
    lost(&mut storm, &["n2"]);
    let mut story = Story::new(storm);
    story.settle(60, |_| "ok");
    let fencing = story.the_fencing().unwrap();
    assert_eq!(fencing.status.phase, Phase::Pending);
    assert!(
        fencing.status.message.contains("2 of 3 nodes are lost"),
        "{}",
        fencing.status.message
    );
    assert!(story.runs.is_empty());
    // The nodes report again.
    story.world.put(node("n2", "True", 70));
    story.world.put(node("n1", "True", 70));
    story.settle(70, |_| "ok");
    assert_eq!(story.phase(), Some(Phase::Cancelled));
    assert!(story.runs.is_empty());
    // A user's request does not wait for that.
    let mut requested = world(one_agent());
    lost(&mut requested, &["n2"]);
    let mut n1 = node("n1", "Unknown", 0);
    n1.metadata.annotations = Some(BTreeMap::from([(
        FENCE_ANNOTATION.to_string(),
        "fire in the rack".to_string(),
    )]));
    requested.put(n1);
    let mut story = Story::new(requested);
    story.settle(10, |run| if run.action == "status" { "off" } else { "ok" });
    let fencing = story.the_fencing().unwrap();
    assert_eq!(
        (fencing.status.phase, fencing.spec.reason.as_str()),
        (Phase::Fenced, "fire in the rack")
    );
}

#[test]
fn s6_only_so_many_at_once_and_in_an_hour() {
    let mut policy = one_agent();
    policy["maxLostPercent"] = 100.into();
    policy["maxPerHour"] = 2.into();
    let mut many = world(policy);
    for n in 1..=4 {
        many.put(node(&format!("n{n}"), "Unknown", 0));
        many.put(stateful(&format!("p{n}"), &format!("n{n}")));
    }
    let mut fencing = Fencing::default();
    let mut working = 0;
    let mut offs = Vec::new();
    for second in 60..90 {
        let decision = fencing.sync(&many, at(second));
        decision.actions.iter().for_each(|list| many.take(list));
        for run in decision.runs.into_iter().filter(|run| run.action != METADATA) {
            working += 1;
            assert_eq!(working, 1, "one at a time");
            if run.action == "off" {
                offs.push(run.fencing.clone());
            }
            let result = result(if run.action == "status" { "off" } else { "ok" });
            fencing.record_result(&run, result, at(second));
            working -= 1;
        }
    }
    assert_eq!(offs.len(), 2, "{offs:?}");
    let view: &dyn View = &many;
    let waits = view
        .list(NodeFencing::kind(), "")
        .iter()
        .filter_map(|o| NodeFencing::of(o))
        .filter(|f| f.status.phase == Phase::Pending && f.status.message.contains("maxPerHour 2"))
        .count();
    assert_eq!(waits, 2);
}

#[test]
fn s6_no_node_is_fenced_for_pods_that_may_run_twice_unless_the_policy_is_for_any() {
    for (workloads, fenced) in [("AtMostOne", false), ("Any", true)] {
        let mut policy = one_agent();
        policy["workloads"] = workloads.into();
        let mut world = world(policy);
        let mut plain = stateful("p", "n1");
        plain.metadata.owner_references = None;
        world.put(plain);
        let mut story = Story::new(world);
        story.settle(600, |run| if run.action == "status" { "off" } else { "ok" });
        assert_eq!(story.phase().is_some(), fenced, "{workloads}");
    }
    let mut story = Story::new(world(Value::Null));
    assert_eq!(story.settle(600, |_| "ok"), [""; 0], "no policy, no fencing");
}

#[test]
fn s6_a_node_of_the_same_name_is_another_node() {
    let mut story = Story::new(world(one_agent()));
    let decision = story.fencing.sync(&story.world, at(60));
    decision.actions.iter().for_each(|list| story.world.take(list));
    let mut other = node("n1", "Unknown", 61);
    other.metadata.uid = Some("other".into());
    story.world.put(other);
    story.settle(61, |_| "ok");
    assert!(story.runs.is_empty());
    assert_eq!(story.phase(), Some(Phase::Cancelled));
}

#[test]
fn s6_agents_get_their_parameters_one_nodes_apart_from_anothers() {
    let policy = json!({"levels": [{"agents": [{
        "agent": "fence_a", "parameters": {"ip": "192.0.2.9"},
        "nodeParameters": {"n1": {"port": "7"}}, "secretRef": {"namespace": "knarr-fencing", "name": "login"},
        "timeoutSeconds": 5,
    }]}]});
    let mut story = Story::new(world(policy));
    let mut seen = None;
    story.settle(60, |run| {
        seen.get_or_insert(run.clone());
        if run.action == "status" { "off" } else { "ok" }
    });
    let run = seen.unwrap();
    let given: Vec<(&str, &str)> = run
        .parameters
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(given, [("ip", "192.0.2.9"), ("port", "7")]);
    assert_eq!(
        (run.secret.unwrap().name.as_str(), run.timeout.as_secs()),
        ("login", 5)
    );
    let mut plain = Story::new(world(one_agent()));
    plain.settle(60, |run| {
        assert_eq!(run.parameters["plug"], "n1");
        if run.action == "status" { "off" } else { "ok" }
    });
}

/// A user switches the node on while its agents' results are being returned, or before anything has followed from them.
#[test]
fn s6_results_of_agents_release_nothing_of_a_node_that_has_reported_since() {
    for (reported_after, fenced_before) in [("status", false), ("fenced", true)] {
        let mut story = Story::new(world(one_agent()));
        let mut actions = Vec::new();
        for _ in 0..20 {
            let decision = story.fencing.sync(&story.world, at(60));
            for list in &decision.actions {
                // The taint is not written yet.
                let lines = lines(list);
                if lines.iter().any(|l| l == "update nodes n1") {
                    continue;
                }
                story.world.take(list);
                actions.extend(lines);
            }
            let is_fenced = story.phase() == Some(Phase::Fenced);
            if is_fenced && reported_after == "fenced" {
                story.world.put(node("n1", "False", 61));
            }
            for run in decision.runs.into_iter().filter(|run| run.action != METADATA) {
                story.runs.push(run.action.to_string());
                if run.action == "status" && reported_after == "status" {
                    story.world.put(node("n1", "False", 61));
                }
                let outcome = if run.action == "status" { "off" } else { "ok" };
                story.fencing.record_result(&run, result(outcome), at(60));
            }
            if story.phase() == Some(Phase::Failed) {
                break;
            }
        }
        assert_eq!(story.runs, ["off", "status"], "{reported_after}");
        assert_eq!(
            story.phase(),
            Some(Phase::Failed),
            "{reported_after}: {actions:?}"
        );
        assert!(!story.is_tainted(), "{reported_after}");
        let message = story.the_fencing().unwrap().status.message;
        assert!(message.ends_with("nothing is released"), "{message}");
        let was_fenced = actions.iter().any(|l| l.starts_with("event NodeFenced"));
        assert_eq!(was_fenced, fenced_before, "{actions:?}");
        // It reports its status, so no policy fences it.
        story.settle(61, |_| "ok");
        assert_eq!(story.phase(), Some(Phase::Cancelled), "{reported_after}");
    }
}

/// Compares addresses of the strings: an object that is parsed again has its strings elsewhere.
#[test]
fn what_has_not_changed_is_not_parsed_again_and_what_has_is() {
    let fencing = |name: &str, message: &str| NodeFencing {
        metadata: serde_json::from_value(json!({"name": name})).unwrap(),
        status: kinds::FencingStatus {
            message: message.into(),
            ..kinds::FencingStatus::default()
        },
        ..NodeFencing::default()
    };
    let mut world = World::default();
    world.put_custom(&fencing("a", "one"));
    world.put_custom(&fencing("b", "one"));
    let mut parsed = Parsed::<NodeFencing>::default();
    let texts = |all: Vec<&NodeFencing>| -> Vec<_> {
        let texts = all.into_iter().map(|f| f.status.message.clone());
        texts.collect()
    };
    let message_address = |all: Vec<&NodeFencing>| all.first().map(|f| f.status.message.as_ptr());
    let first = message_address(parsed.parse(&world));
    assert_eq!(message_address(parsed.parse(&world)), first);
    world.put_custom(&fencing("b", "two"));
    assert_eq!(texts(parsed.parse(&world)), ["one", "two"]);
    assert_eq!(message_address(parsed.parse(&world)), first);
    world.put_custom(&fencing("a", "three"));
    assert_eq!(texts(parsed.parse(&world)), ["three", "two"]);
    assert!(parsed.parse(&World::default()).is_empty());
}
