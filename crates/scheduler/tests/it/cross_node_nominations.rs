//! What a pod keeps that was nominated by a preemption across nodes (SPEC B5): its place in the domains of its rules, and
//! its claim, against replacements of its victims, until it is bound or gives up.

#![allow(clippy::unwrap_used)]

use knarr_scheduler::{Action, Scheduler};
use serde_json::{Value, json};

use crate::cluster::{add_claim, add_node, add_pod, at, scheduler, shared};

fn pod(name: &str, node: &str, priority: i32, app: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
        "spec": spec,
    });
    pod["spec"]["priority"] = priority.into();
    pod["spec"]["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

/// The preemptor: it asks for 2 CPUs, so that a2, with 3 CPUs of important pods, is never possible.
fn high(app: &str, spec: Value) -> Value {
    let mut pod = pod("high", "", 10, app, spec);
    pod["metadata"]["annotations"] = json!({"knarr.io/cross-node-preemption": "true"});
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
    pod
}

fn anti_affinity(app: &str) -> Value {
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}});
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
}

fn spread(app: &str) -> Value {
    json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}}}]})
}

fn claim() -> Value {
    json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]})
}

/// Zone `a` has the nodes a1, which is empty, and a2, where the victims are next to important pods. Zone `b` has b1, which
/// is full of important pods.
struct World {
    scheduler: Scheduler,
    victims: Vec<Value>,
}

impl World {
    fn new(victims: &[Value]) -> Self {
        let mut scheduler = scheduler("{crossNode: true}");
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            add_node(&mut scheduler, name, zone);
        }
        add_claim(&mut scheduler);
        let mut world = World {
            scheduler,
            victims: victims.to_vec(),
        };
        let mut important = vec![("a2", 3), ("b1", 4)];
        for (node, count) in important.drain(..) {
            for i in 0..count {
                world.add(&pod(&format!("full-{node}-{i}"), node, 100, "full", json!({})));
            }
        }
        for victim in victims {
            world.add(victim);
        }
        world
    }

    fn add(&mut self, pod: &Value) {
        add_pod(&mut self.scheduler, pod);
    }

    /// Everything that is decided until no pod is due: `pod -> node`, `pod preempts victims for node`, or `pod: message`.
    fn steps(&mut self, second: i64) -> Vec<String> {
        let mut steps = Vec::new();
        while let Some(action) = self.scheduler.schedule_one(at(second)) {
            steps.push(match action {
                Action::Bind { pod, node, .. } => {
                    self.scheduler.bound(&pod);
                    format!("{} -> {node}", pod.object().name())
                }
                Action::Report { pod, message, .. } => format!("{}: {message}", pod.object().name()),
                Action::Preempt {
                    pod, node, victims, ..
                } => {
                    self.scheduler.preempted(&pod, false, at(second));
                    let mut names: Vec<&str> = victims.iter().map(|v| v.object().name()).collect();
                    names.sort_unstable();
                    format!("{} preempts {} for {node}", pod.object().name(), names.join(", "))
                }
            });
            assert!(steps.len() < 100, "{steps:?}");
        }
        steps
    }

    fn terminating(victim: &Value) -> Value {
        let mut victim = victim.clone();
        victim["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:30Z".into();
        victim["status"] = json!({"conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]});
        victim
    }

    fn victims_terminate(&mut self) {
        for victim in &self.victims {
            let (old, new) = (shared(victim), shared(&Self::terminating(victim)));
            self.scheduler.pod_changed(Some(&old), Some(&new), at(0));
        }
    }

    fn victims_are_gone(&mut self) {
        for victim in std::mem::take(&mut self.victims) {
            let old = shared(&Self::terminating(&victim));
            self.scheduler.pod_changed(Some(&old), None, at(0));
        }
    }

    /// The preemption, then a replacement, while the victims terminate. What is decided about the replacement.
    fn replaced(&mut self, preemptor: &Value, replacement: &Value) -> String {
        self.add(preemptor);
        let steps = self.steps(0);
        assert!(
            steps.len() == 1 && steps[0].starts_with("high preempts"),
            "{steps:?}"
        );
        self.victims_terminate();
        self.add(replacement);
        self.steps(0).join("; ")
    }
}

const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";
const SKEWED: &str = "node(s) didn't match pod topology spread constraints";

#[test]
fn b5_a_replacement_does_not_take_the_domain_from_the_preemptor() {
    let mut world = World::new(&[pod("low", "a2", 0, "web", json!({}))]);
    let preemptor = high("high", anti_affinity("web"));
    let waits = world.replaced(&preemptor, &pod("new", "", 0, "web", json!({})));
    assert!(waits.starts_with("new: ") && waits.contains(EXISTING), "{waits}");
    world.victims_are_gone();
    let steps = world.steps(20);
    let bound: Vec<&String> = steps.iter().filter(|s| s.contains(" -> ")).collect();
    assert_eq!(bound, ["high -> a1"], "{steps:?}");
    // It stays out: the preemptor is there now.
    let steps = world.steps(60);
    assert!(steps.iter().all(|s| !s.contains(" -> ")), "{steps:?}");
}

#[test]
fn b5_a_replacement_does_not_take_the_place_that_a_spread_constraint_gives() {
    // The replacement has no constraint of its own: it may not be where it violates that of the preemptor.
    let victims = [
        pod("web-0", "a2", 0, "web", json!({})),
        pod("web-1", "a1", 1, "web", json!({})),
    ];
    let mut world = World::new(&victims);
    let waits = world.replaced(&high("web", spread("web")), &pod("new", "", 0, "web", json!({})));
    assert!(waits.starts_with("new: ") && waits.contains(SKEWED), "{waits}");
    world.victims_are_gone();
    // Once the preemptor is bound, its constraint does not hold others off, as in Kubernetes.
    let steps = world.steps(20);
    let bound: Vec<&String> = steps.iter().filter(|s| s.contains(" -> ")).collect();
    assert_eq!(bound.first().map(|s| s.as_str()), Some("high -> a1"), "{steps:?}");

    // The replacement has the constraint, and the preemptor counts for it.
    let mut world = World::new(&victims);
    let waits = world.replaced(
        &high("web", spread("web")),
        &pod("new", "", 0, "web", spread("web")),
    );
    assert!(waits.starts_with("new: ") && waits.contains(SKEWED), "{waits}");
}

#[test]
fn b5_a_replacement_does_not_take_the_claim() {
    let mut world = World::new(&[pod("user", "a2", 0, "web", claim())]);
    let waits = world.replaced(&high("high", claim()), &pod("new", "", 0, "web", claim()));
    assert!(
        waits.contains("ReadWriteOncePod access mode already in-use"),
        "{waits}"
    );
    // No pod uses the claim now, and the preemptor is in its backoff.
    world.victims_are_gone();
    let steps = [world.steps(0), world.steps(20), world.steps(60)].concat();
    let bound: Vec<&String> = steps.iter().filter(|s| s.contains(" -> ")).collect();
    assert_eq!(bound, ["high -> a1"], "{steps:?}");
}

#[test]
fn b5_only_pods_of_equal_or_lower_priority_that_a_rule_names_are_held_off() {
    let preemptor = high("high", anti_affinity("web"));
    let replaced = |replacement: Value| {
        let mut world = World::new(&[pod("low", "a2", 0, "web", json!({}))]);
        world.replaced(&preemptor, &replacement)
    };
    assert_eq!(replaced(pod("new", "", 0, "other", json!({}))), "new -> a1");
    assert_eq!(replaced(pod("new", "", 11, "web", json!({}))), "new -> a1");
    for priority in [10, 9] {
        let waits = replaced(pod("new", "", priority, "web", json!({})));
        assert!(waits.contains(EXISTING), "{waits}");
    }
}

#[test]
fn b5_a_nomination_holds_after_a_restart_and_ends_with_the_pod() {
    // The scheduler reads the nomination from the status, before the victim is gone.
    let mut nominated = high("high", anti_affinity("web"));
    nominated["status"] = json!({"nominatedNodeName": "a1"});
    let low = World::terminating(&pod("low", "a2", 0, "web", json!({})));
    let mut world = World::new(&[low]);
    world.add(&nominated);
    world.add(&pod("new", "", 0, "web", json!({})));
    let steps = world.steps(0);
    assert!(steps.iter().all(|s| !s.contains(" -> ")), "{steps:?}");
    assert!(
        steps
            .iter()
            .any(|s| s.starts_with("new: ") && s.contains(EXISTING)),
        "{steps:?}"
    );
    // Another node name in the status of a pod that does not request it keeps its node only.
    let mut plain = nominated.clone();
    plain["metadata"]["annotations"] = json!({});
    let mut other = World::new(&[]);
    other.add(&pod("low", "a2", 0, "web", json!({})));
    other.add(&plain);
    other.add(&pod("new", "", 0, "web", json!({})));
    let steps = other.steps(0);
    assert!(steps.contains(&"new -> a1".to_string()), "{steps:?}");
    // The preemptor is deleted: nothing is kept for it.
    world
        .scheduler
        .pod_changed(Some(&shared(&nominated)), None, at(0));
    let steps = world.steps(20);
    assert_eq!(steps, ["new -> a1"]);
}
