//! A node's way out of the cluster and back, with agents that do their work, and agents that lie, hang and half succeed.

mod bounds;
mod node_state;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use serde_json::{Value, json};

use super::kinds::{Custom, FencingPolicy, NodeFencing, Phase, definitions};
use super::*;
use crate::world::{World, at, lines};

fn from<T: Registered>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A cluster of three nodes, of which n1 fell silent at second 0 with a StatefulSet's pod on it.
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

/// What an agent answers, in words.
fn answer(word: &str) -> Answer {
    let exited = |code| Answer::Exited {
        code,
        output: String::new(),
    };
    match word {
        "ok" | "on" => exited(0),
        "off" => exited(2),
        "fails" => exited(1),
        "hangs" => Answer::TimedOut,
        other => Answer::Broken { why: other.into() },
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

    /// Looks until nothing changes any more; agents answer as `say` has it.
    fn settle(&mut self, second: i64, mut say: impl FnMut(&Run) -> &'static str) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..60 {
            let todo = self.fencing.look(&self.world, at(second));
            if todo.actions.is_empty() && todo.runs.is_empty() {
                return done;
            }
            for list in &todo.actions {
                self.world.take(list);
                done.extend(lines(list));
            }
            for run in todo.runs.into_iter().filter(|run| run.action != METADATA) {
                self.runs.push(format!("{} {}", run.agent, run.action));
                let answer = answer(say(&run));
                self.fencing.answered(&run, answer, at(second));
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

    /// The node as it says of itself from then on, with what others wrote into it.
    fn ready_since(&self, second: i64) -> Node {
        let view: &dyn View = &self.world;
        Node {
            spec: view.get_as::<Node>("", "n1").unwrap().spec.clone(),
            ..node("n1", "True", second)
        }
    }

    fn is_tainted(&self) -> bool {
        let view: &dyn View = &self.world;
        has_taint(&view.get_as::<Node>("", "n1").unwrap())
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
fn s6_a_lost_node_is_fenced_and_only_then_vouched_for() {
    let mut story = Story::new(world(one_agent()));
    assert_eq!(story.settle(59, |_| "ok"), [""; 0], "not lost for long enough");
    let done = story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(story.runs, ["fence_a off", "fence_a status"]);
    assert_eq!(story.phase(), Some(Phase::Fenced));
    assert!(story.is_tainted());
    let evidence = done
        .iter()
        .position(|l| l.starts_with("event NodeFenced"))
        .unwrap();
    let taint = done.iter().position(|l| l == "update nodes n1").unwrap();
    assert!(
        evidence < taint,
        "the evidence is written before anything follows: {done:?}"
    );
    let fencing = story.the_fencing().unwrap();
    let said: Vec<&str> = fencing
        .status
        .evidence
        .iter()
        .map(|e| e.outcome.as_str())
        .collect();
    assert_eq!(said, ["succeeded", "says off"]);
    assert_eq!(fencing.status.conditions[0].status, "True");
    assert_eq!(fencing.status.message, "releasing 1 pods and 0 volumes");
}

#[test]
fn s6_without_evidence_nothing_is_released_and_the_status_says_so() {
    for (off, status, word) in [
        ("fails", "off", "fence_a off: failed with code 1"),
        ("hangs", "off", "fence_a off: timed out after 60 s"),
        ("no such program", "off", "fence_a off: no such program"),
        // It lies: it has done nothing.
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
        // Later it is tried again, from the beginning.
        assert_eq!(story.settle(359, |_| "fails"), [""; 0]);
        story.settle(360, |run| if run.action == "status" { "off" } else { "ok" });
        assert_eq!(story.phase(), Some(Phase::Fenced));
    }
}

#[test]
fn s6_what_agents_answer_to_an_attempt_that_another_controller_ended_is_no_evidence() {
    let reboot = json!({"levels": [{"action": "reboot", "agents": [{"agent": "fence_a", "retries": 0}]}]});
    // The answer comes before the next attempt begins, or after.
    for late in [false, true] {
        let mut story = Story::new(world(reboot.clone()));
        let mut other = Story::new(world(reboot.clone()));
        let mut asked = None;
        for second in 60..64 {
            let todo = story.fencing.look(&story.world, at(second));
            todo.actions.iter().for_each(|list| story.world.take(list));
            asked = asked.or(todo.runs.into_iter().find(|run| run.action == "reboot"));
        }
        let asked = asked.unwrap();
        // The other one's agent fails at once, and it says so in the status.
        std::mem::swap(&mut story.world, &mut other.world);
        other.settle(64, |_| "fails");
        assert_eq!(other.phase(), Some(Phase::Failed));
        std::mem::swap(&mut story.world, &mut other.world);
        assert!(story.fencing.look(&story.world, at(65)).runs.is_empty());
        if !late {
            story.fencing.answered(&asked, answer("ok"), at(66));
        }
        // The other one begins the next attempt.
        let todo = other.fencing.look(&story.world, at(400));
        todo.actions.iter().for_each(|list| story.world.take(list));
        let mut runs = Vec::new();
        for second in 401..404 {
            let todo = story.fencing.look(&story.world, at(second));
            todo.actions.iter().for_each(|list| story.world.take(list));
            runs.extend(todo.runs.into_iter().filter(|run| run.action != METADATA));
        }
        if late {
            story.fencing.answered(&asked, answer("ok"), at(404));
            assert!(story.fencing.look(&story.world, at(405)).actions.is_empty());
        }
        assert_eq!(story.phase(), Some(Phase::Fencing), "late: {late}");
        // Asked anew, and believed.
        story.fencing.answered(&runs[0], answer("ok"), at(406));
        story.settle(407, |_| "fails");
        assert_eq!(story.phase(), Some(Phase::Fenced));
    }
}

#[test]
fn s6_a_level_needs_all_its_agents_and_the_next_level_begins_anew() {
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
        "half of a level is none"
    );
    assert_eq!(story.the_fencing().unwrap().status.level, Some(1));
    let mut story = Story::new(world(levels));
    story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(story.runs.len(), 4);
    assert_eq!(story.the_fencing().unwrap().status.level, Some(0));
}

#[test]
fn s6_a_storm_is_waited_out() {
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
    // It passes, and the node with it.
    story.world.put(node("n2", "True", 70));
    story.world.put(node("n1", "True", 70));
    story.settle(70, |_| "ok");
    assert_eq!(story.phase(), Some(Phase::Cancelled));
    assert!(story.runs.is_empty());
    // What a user asks for does not wait for the weather.
    let mut asked = world(one_agent());
    lost(&mut asked, &["n2"]);
    let mut n1 = node("n1", "Unknown", 0);
    n1.metadata.annotations = Some(BTreeMap::from([(
        ASKED.to_string(),
        "the rack burns".to_string(),
    )]));
    asked.put(n1);
    let mut story = Story::new(asked);
    story.settle(10, |run| if run.action == "status" { "off" } else { "ok" });
    let fencing = story.the_fencing().unwrap();
    assert_eq!(
        (fencing.status.phase, fencing.spec.reason.as_str()),
        (Phase::Fenced, "the rack burns")
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
        let todo = fencing.look(&many, at(second));
        todo.actions.iter().for_each(|list| many.take(list));
        for run in todo.runs.into_iter().filter(|run| run.action != METADATA) {
            working += 1;
            assert_eq!(working, 1, "one at a time");
            if run.action == "off" {
                offs.push(run.fencing.clone());
            }
            let answer = answer(if run.action == "status" { "off" } else { "ok" });
            fencing.answered(&run, answer, at(second));
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
fn s6_nobody_is_fenced_for_pods_that_may_run_twice_unless_the_policy_says_so() {
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
fn s6_a_fenced_node_comes_back_by_its_agents_and_is_trusted_when_it_is_well() {
    let mut story = Story::new(world(one_agent()));
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    story.settle(60, good);
    story.world.remove(&registry::POD, "a", "p");
    story.settle(80, good);
    let message = story.the_fencing().unwrap().status.message;
    assert!(message.contains("switch the node on again"), "{message}");
    story.runs.clear();
    // Somebody has.
    let mut back = story.ready_since(100);
    // What it ran has to end first, by its own kubelet.
    story.world.put(stateful("p", "n1"));
    story.world.put(back.clone());
    story.settle(110, good);
    assert!(story.runs.is_empty() && story.phase() == Some(Phase::Fenced));
    story.world.remove(&registry::POD, "a", "p");
    back.status.as_mut().unwrap().volumes_in_use = Some(vec!["exclusive.knarr.io/v".into()]);
    story.world.put(back.clone());
    story.settle(120, good);
    assert_eq!(story.runs, ["fence_a on"]);
    assert!(
        story.is_tainted() && story.phase() == Some(Phase::Returning),
        "it still uses a volume"
    );
    back.status.as_mut().unwrap().volumes_in_use = None;
    story.world.put(back);
    story.settle(130, good);
    assert_eq!(story.phase(), Some(Phase::Returned));
    assert!(!story.is_tainted());
}

#[test]
fn s6_what_a_node_is_given_after_its_return_does_not_keep_it_out() {
    let mut policy = one_agent();
    policy["automaticReturn"] = true.into();
    let mut story = Story::new(world(policy));
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    story.settle(60, good);
    story.world.remove(&registry::POD, "a", "p");
    story.settle(80, good);
    assert_eq!(story.phase(), Some(Phase::Returning));
    // Its taint was taken off by a controller that died before it wrote that it is back, and it has a volume again.
    let mut back = node("n1", "True", 90);
    back.spec = Some(Default::default());
    back.status.as_mut().unwrap().volumes_in_use = Some(vec!["exclusive.knarr.io/v".into()]);
    story.world.put(back);
    story.fencing = Fencing::default();
    story.settle(100, good);
    story.settle(110, good);
    assert_eq!(story.phase(), Some(Phase::Returned));
}

#[test]
fn s6_a_node_that_does_not_come_up_is_switched_on_again() {
    let mut policy = one_agent();
    policy["automaticReturn"] = true.into();
    policy["retrySeconds"] = 30.into();
    let mut story = Story::new(world(policy));
    // Its `on` says that it succeeded, and nothing comes of it.
    let lies = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    story.settle(60, lies);
    story.world.remove(&registry::POD, "a", "p");
    let mut ons = Vec::new();
    for second in (80..200).step_by(10) {
        story.runs.clear();
        story.settle(second, lies);
        ons.extend(story.runs.iter().map(|run| format!("{second}: {run}")));
    }
    let wanted = [80, 110, 140, 170].map(|second| format!("{second}: fence_a on"));
    assert_eq!(ons, wanted);
    assert!(story.is_tainted() && story.phase() == Some(Phase::Returning));
    // One that has shown itself since is waited for, and left alone.
    let back = story.ready_since(195);
    story.world.put(back);
    story.runs.clear();
    story.settle(196, lies);
    story.settle(205, lies);
    assert_eq!(story.phase(), Some(Phase::Returning));
    story.settle(206, lies);
    assert_eq!(story.phase(), Some(Phase::Returned));
    assert!(story.runs.is_empty() && !story.is_tainted());
}

#[test]
fn s6_a_node_that_was_well_when_it_was_switched_off_is_not_back_because_of_that() {
    let mut world = world(one_agent());
    let mut well = node("n1", "True", 50);
    well.metadata.annotations = Some(BTreeMap::from([(ASKED.to_string(), "a test".to_string())]));
    world.put(well);
    world.remove(&registry::POD, "a", "p");
    let mut story = Story::new(world);
    story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(story.runs, ["fence_a off", "fence_a status"]);
    assert!(story.is_tainted() && story.phase() == Some(Phase::Fenced));
}

#[test]
fn s6_a_controller_whose_clock_was_ahead_keeps_no_node_out() {
    let mut policy = one_agent();
    policy["automaticReturn"] = true.into();
    let mut story = Story::new(world(policy));
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    // Fenced, and its way back failed, by a clock that is hours ahead of what comes then.
    story.settle(9000, good);
    story.world.remove(&registry::POD, "a", "p");
    story.settle(9010, |_| "fails");
    assert_eq!(story.phase(), Some(Phase::Fenced));
    let back = story.ready_since(100);
    story.world.put(back);
    story.settle(110, good);
    story.settle(120, good);
    assert_eq!(story.phase(), Some(Phase::Returned));
    assert!(!story.is_tainted());
}

#[test]
fn s6_a_node_of_the_same_name_is_another_node() {
    let mut story = Story::new(world(one_agent()));
    let todo = story.fencing.look(&story.world, at(60));
    todo.actions.iter().for_each(|list| story.world.take(list));
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

/// Somebody switches the node on while its agents' answers are on their way, or before anything has followed from them.
#[test]
fn s6_what_agents_said_of_a_node_that_was_heard_since_releases_nothing() {
    for (heard_after, fenced_before) in [("status", false), ("fenced", true)] {
        let mut story = Story::new(world(one_agent()));
        let mut actions = Vec::new();
        for _ in 0..20 {
            let todo = story.fencing.look(&story.world, at(60));
            for list in &todo.actions {
                // The taint is not written yet.
                let lines = lines(list);
                if lines.iter().any(|l| l == "update nodes n1") {
                    continue;
                }
                story.world.take(list);
                actions.extend(lines);
            }
            let is_fenced = story.phase() == Some(Phase::Fenced);
            if is_fenced && heard_after == "fenced" {
                story.world.put(node("n1", "False", 61));
            }
            for run in todo.runs.into_iter().filter(|run| run.action != METADATA) {
                story.runs.push(run.action.to_string());
                if run.action == "status" && heard_after == "status" {
                    story.world.put(node("n1", "False", 61));
                }
                let said = if run.action == "status" { "off" } else { "ok" };
                story.fencing.answered(&run, answer(said), at(60));
            }
            if story.phase() == Some(Phase::Failed) {
                break;
            }
        }
        assert_eq!(story.runs, ["off", "status"], "{heard_after}");
        assert_eq!(story.phase(), Some(Phase::Failed), "{heard_after}: {actions:?}");
        assert!(!story.is_tainted(), "{heard_after}");
        let message = story.the_fencing().unwrap().status.message;
        assert!(message.ends_with("nothing is released"), "{message}");
        let was_fenced = actions.iter().any(|l| l.starts_with("event NodeFenced"));
        assert_eq!(was_fenced, fenced_before, "{actions:?}");
        // It is not silent, so nobody fences it by himself.
        story.settle(61, |_| "ok");
        assert_eq!(story.phase(), Some(Phase::Cancelled), "{heard_after}");
    }
}

/// Told by where its text lies: what is parsed once more lies elsewhere.
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
    let place = |all: Vec<&NodeFencing>| all.first().map(|f| f.status.message.as_ptr());
    let first = place(parsed.parse(&world));
    assert_eq!(place(parsed.parse(&world)), first);
    world.put_custom(&fencing("b", "two"));
    assert_eq!(texts(parsed.parse(&world)), ["one", "two"]);
    assert_eq!(place(parsed.parse(&world)), first);
    world.put_custom(&fencing("a", "three"));
    assert_eq!(texts(parsed.parse(&world)), ["three", "two"]);
    assert!(parsed.parse(&World::default()).is_empty());
}
