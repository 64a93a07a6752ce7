//! The controller's steps on a cluster in JSON: what it evicts, what it waits for, when it stops, and what it says.

#![allow(clippy::unwrap_used)]

use knarr_api::Object;
use knarr_api::k8s_openapi::api::apps::v1::ReplicaSet;
use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_rebalance::controller::kinds::RebalancePolicy;
use knarr_rebalance::controller::{EvictionResult, Input, Outcome, Policies, record_results, step};
use knarr_rebalance::snapshot::Usage;
use knarr_scheduler::Profile;
use serde_json::{Value, json};

use crate::world::{World, now, overlay, shared, spread};

/// What becomes of an evicted pod's replacement.
#[derive(Clone, Copy, PartialEq)]
enum Replaced {
    /// It runs where the plan saw it.
    Ready,
    /// It runs on the node that the pod was evicted from.
    SameNode,
    Pending,
    Failed,
    /// The pod is gone, and there is no other yet.
    No,
}

struct Story {
    world: World,
    policies: Vec<RebalancePolicy>,
    now: Timestamp,
    replaced: Replaced,
    /// The outcomes of evictions, if not all succeed.
    outcome: fn(&str) -> Outcome,
    /// The evicted pods, with their policy.
    evicted: Vec<String>,
    events: Vec<String>,
    next: SignedDuration,
}

fn ready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// So many Ready pods of the ReplicaSet `app` on node n1 of zone a, which are to be spread over zones; n2 is in zone b.
fn crowded(apps: &[(&str, usize)]) -> World {
    let mut world = World::of(&["n1 a", "n2 b"]);
    for (app, pods) in apps {
        let mut with = json!({"spec": {"topologySpreadConstraints": [spread("zone", 1, app)]}});
        overlay(&mut with, &ready());
        world.pods(*pods, app, "n1", &with);
        world.others.push(
            shared::<ReplicaSet>(&json!({
                "metadata": {"name": app, "namespace": "default"},
                "spec": {"replicas": pods, "selector": {"matchLabels": {"app": app}}},
            }))
            .object()
            .clone(),
        );
    }
    world
}

fn policy(name: &str, with: Value) -> RebalancePolicy {
    let mut json = json!({
        "metadata": {"name": name, "uid": name, "generation": 1},
        "spec": {"dryRun": false, "strategies": {"topologySpread": {}}},
    });
    overlay(&mut json, &with);
    serde_json::from_value(json).unwrap()
}

impl Story {
    fn new(world: World, policies: Vec<RebalancePolicy>) -> Self {
        Story {
            world,
            policies,
            now: now(),
            replaced: Replaced::Ready,
            outcome: |_| Outcome::Evicted,
            evicted: Vec::new(),
            events: Vec::new(),
            next: SignedDuration::ZERO,
        }
    }

    /// Takes a step after so many seconds, and carries it out. Returns how many pods it has evicted.
    fn step(&mut self, after: i64) -> usize {
        self.now += SignedDuration::from_secs(after);
        let step = step(Input {
            policies: Policies::read(self.policies.clone()),
            profiles: &[Profile::default()],
            objects: &self.world.objects(),
            usage: &Usage::default(),
            now: self.now,
            turn: 0,
        });
        self.next = step.next;
        for event in &step.events {
            self.events.push(format!("{}: {}", event.reason, event.message));
        }
        for update in step.updates {
            self.write(update);
        }
        let Some(wave) = step.wave else { return 0 };
        let policy = wave.policy.name().to_string();
        self.write(wave.policy);
        let before = self.evicted.len();
        let mut results = Vec::new();
        for request in &wave.evictions {
            let outcome = (self.outcome)(&request.pod.name);
            if outcome == Outcome::Evicted {
                self.evicted.push(format!("{policy} {}", request.pod.name));
                self.evict(&request.pod.name);
            }
            results.push(EvictionResult {
                pod: request.pod.clone(),
                outcome,
            });
        }
        let written = self.policies.iter().find(|p| p.name() == policy).unwrap();
        if let Some(update) = record_results(written, &results, self.now) {
            self.write(update);
        }
        self.evicted.len() - before
    }

    fn write(&mut self, update: RebalancePolicy) {
        // As through the API: what the schema does not have is pruned.
        let kind = update.kind();
        let stored = Object::from_typed(kind, update.to_object().unwrap());
        let stored = RebalancePolicy::of(&stored).unwrap();
        let at = self
            .policies
            .iter()
            .position(|p| p.name() == update.name())
            .unwrap();
        self.policies[at] = stored;
    }

    fn evict(&mut self, name: &str) {
        let mut pod = self.world.pods.remove(name).unwrap();
        if self.replaced == Replaced::No {
            return;
        }
        let number = self.evicted.len();
        let name = format!("new-{number}");
        pod["metadata"]["name"] = name.clone().into();
        pod["metadata"]["uid"] = format!("uid-{name}").into();
        pod["metadata"]["creationTimestamp"] = self.now.to_string().into();
        match self.replaced {
            Replaced::Ready => pod["spec"]["nodeName"] = "n2".into(),
            Replaced::SameNode => {}
            Replaced::Failed => pod["status"] = json!({"phase": "Failed"}),
            Replaced::Pending | Replaced::No => {
                pod["spec"]["nodeName"] = Value::Null;
                pod["status"] = json!({"phase": "Pending"});
            }
        }
        self.world.pods.insert(name, pod);
    }

    /// The status and the reason of a condition of the first policy.
    fn condition(&self, of: &str) -> String {
        self.condition_of(0, of)
    }

    fn condition_of(&self, policy: usize, of: &str) -> String {
        let conditions = &self.policies[policy].status.conditions;
        match conditions.iter().find(|c| c.type_ == of) {
            Some(found) => format!("{} {}", found.status, found.reason),
            None => String::new(),
        }
    }

    fn message(&self, of: &str) -> &str {
        let conditions = &self.policies[0].status.conditions;
        &conditions.iter().find(|c| c.type_ == of).unwrap().message
    }
}

#[test]
fn b3_dry_run_is_the_default_and_only_shows_the_plan() {
    let with = json!({"spec": {"dryRun": null}});
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", with)]);
    assert_eq!(story.step(0), 0);
    let status = story.policies[0].status.clone();
    assert_eq!((status.moves, status.planned_moves.len()), (2, 2));
    let planned = &status.planned_moves[0];
    assert_eq!((planned.from.as_str(), planned.to.as_str()), ("n1", "n2"));
    assert!(
        planned.why.starts_with("TopologySpread: spread of app=app"),
        "{}",
        planned.why
    );
    assert_eq!(story.condition("Ready"), "True Accepted");
    assert_eq!(story.condition("Progressing"), "False DryRun");
    assert_eq!(story.events.len(), 1);
    assert!(
        story.events[0].starts_with("RebalancePlanned: 2 moves: default/app-n1-"),
        "{:?}",
        story.events
    );
    // Nothing changes, so nothing is written or recorded again.
    story.step(30);
    assert_eq!((&story.policies[0].status, story.events.len()), (&status, 1));
    assert_eq!(story.next, SignedDuration::from_secs(30));
}

#[test]
fn b3_a_wave_waits_until_the_replacements_of_the_one_before_are_ready() {
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", json!({}))]);
    story.replaced = Replaced::Pending;
    assert_eq!(story.step(0), 1, "one pod of a workload at a time");
    assert_eq!(story.condition("Progressing"), "True Evicting");
    for _ in 0..3 {
        assert_eq!(story.step(2), 0);
        assert_eq!(story.condition("Progressing"), "True WaitingForReplacements");
    }
    assert!(story.next < SignedDuration::from_secs(30));
    let replacement = story.world.pods.get_mut("new-1").unwrap();
    overlay(replacement, &ready());
    overlay(
        replacement,
        &json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}),
    );
    story.replaced = Replaced::Ready;
    assert_eq!(story.step(2), 1);
    assert_eq!(story.step(2), 0);
    assert_eq!(story.condition("Progressing"), "False NothingToDo");
    assert_eq!(story.world.sizes("app"), [2, 2]);
    assert_eq!(story.policies[0].status.moves_last_hour, 2);
}

#[test]
fn b3_a_wave_waits_while_the_pod_terminates_and_has_no_replacement_yet() {
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", json!({}))]);
    story.replaced = Replaced::No;
    assert_eq!(story.step(0), 1);
    assert_eq!(story.step(60), 0);
    assert_eq!(story.condition("Progressing"), "True WaitingForReplacements");
    // Its owner wants fewer pods now: no replacement will come.
    let objects = std::mem::take(&mut story.world.others);
    assert_eq!(objects.len(), 1);
    story.world.others = crowded(&[("app", 3)]).others;
    story.step(2);
    assert_ne!(story.condition("Progressing"), "True WaitingForReplacements");
}

#[test]
fn b3_the_budget_per_hour_survives_a_restart() {
    let with = json!({"spec": {"budgets": {"perHour": 1}}});
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", with)]);
    assert_eq!(story.step(0), 1);
    for _ in 0..5 {
        // Each step starts from what is stored: there is no other memory.
        assert_eq!(story.step(600), 0);
        assert_eq!(story.condition("Progressing"), "False BudgetExhausted");
    }
    assert_eq!(story.step(600), 1, "an hour later");
    assert_eq!(story.policies[0].status.recent_moves.len(), 1);
}

#[test]
fn b3_a_budget_of_0_pauses_the_policy() {
    let with = json!({"spec": {"budgets": {"perHour": 0}}});
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", with)]);
    assert_eq!(story.step(0), 0);
    assert_eq!(story.condition("Progressing"), "False Paused");
}

#[test]
fn b3_an_eviction_that_a_disruption_budget_rejects_waits_and_does_not_count() {
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", json!({}))]);
    story.outcome = |_| Outcome::DisruptionBudget {
        message: "The disruption budget b needs 4 healthy pods and has 4 currently".into(),
    };
    assert_eq!(story.step(0), 0);
    let status = &story.policies[0].status;
    assert_eq!((status.moves_last_hour, status.recent_moves.len()), (0, 0));
    assert_eq!(story.condition("Progressing"), "False DisruptionBudget");
    assert!(
        story.message("Progressing").contains("pod default/app-n1-"),
        "{}",
        story.message("Progressing")
    );
    assert!(story.message("Progressing").contains("needs 4 healthy pods"));
    story.outcome = |_| Outcome::Evicted;
    assert_eq!(story.step(30), 0, "not at once");
    assert_eq!(story.condition("Progressing"), "False DisruptionBudget");
    assert_eq!(story.step(31), 1);
}

#[test]
fn b3_b6_a_move_waits_until_surge_first_eviction_has_replaced_its_pod() {
    let waits: fn(&str) -> Outcome = |_| Outcome::SurgeFirst {
        message: "Cannot evict pod before it is replaced: replacement x is not Ready yet.".into(),
    };
    let counted = |story: &Story| {
        let status = &story.policies[0].status;
        (status.moves_last_hour, status.recent_moves.len())
    };
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", json!({}))]);
    story.outcome = waits;
    assert_eq!(story.step(0), 0);
    assert_eq!(story.condition("Progressing"), "True SurgeFirst");
    assert!(
        story
            .message("Progressing")
            .contains("replacement x is not Ready yet")
    );
    let pod = story.policies[0].status.recent_moves[0].pod.clone();
    assert_eq!(counted(&story), (1, 1));
    story.outcome = |_| Outcome::Evicted;
    assert_eq!(story.step(2), 0, "not before the time of Retry-After");
    story.outcome = waits;
    for after in [4, 60, 60] {
        assert_eq!(story.step(after), 0);
        assert_eq!(story.condition("Progressing"), "True SurgeFirst");
        assert_eq!(counted(&story), (1, 1), "it is counted once");
    }
    story.outcome = |_| Outcome::Evicted;
    assert_eq!(story.step(6), 1);
    assert_eq!(
        story.evicted,
        [format!("p {pod}")],
        "the same pod, without a new plan"
    );
    assert_eq!(counted(&story), (1, 1));
    assert!(!story.policies[0].status.recent_moves[0].surging);
}

#[test]
fn b3_b6_a_pod_that_is_not_replaced_in_time_stops_the_policy_and_stays() {
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", json!({}))]);
    story.outcome = |_| Outcome::SurgeFirst {
        message: "Cannot evict pod before it is replaced: exceeded quota.".into(),
    };
    assert_eq!(story.step(0), 0);
    assert_eq!(story.step(530), 0);
    assert_eq!(story.condition("Degraded"), "False AsExpected");
    // After 10 minutes the API server would evict it without a replacement.
    story.outcome = |_| Outcome::Evicted;
    for after in [30, 60, 600] {
        assert_eq!(story.step(after), 0);
        assert_eq!(story.condition("Degraded"), "True ReplacementNotReady");
    }
    assert_eq!(story.evicted.len(), 0);
}

#[test]
fn b3_pods_whose_disruption_budget_allows_no_disruption_are_not_tried() {
    let mut world = crowded(&[("app", 4)]);
    world.disruption_budget("b", "app", 0);
    let mut story = Story::new(world, vec![policy("p", json!({}))]);
    assert_eq!(story.step(0), 0);
    assert_eq!(story.condition("Progressing"), "False DisruptionBudget");
}

#[test]
fn b3_a_replacement_that_stays_pending_stops_the_policy_until_it_is_ready() {
    let mut story = Story::new(crowded(&[("app", 6)]), vec![policy("p", json!({}))]);
    story.replaced = Replaced::Pending;
    assert_eq!(story.step(0), 1);
    assert_eq!(story.step(590), 0);
    assert_eq!(story.condition("Degraded"), "False AsExpected");
    for after in [20, 3600, 3600 * 24] {
        assert_eq!(story.step(after), 0);
        assert_eq!(story.condition("Degraded"), "True ReplacementNotReady");
        assert_eq!(story.condition("Progressing"), "False Degraded");
    }
    let degraded = story.events.iter().filter(|e| e.starts_with("RebalanceDegraded"));
    assert_eq!(degraded.count(), 1, "{:?}", story.events);
    let replacement = story.world.pods.get_mut("new-1").unwrap();
    overlay(replacement, &ready());
    overlay(
        replacement,
        &json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}),
    );
    assert_eq!(story.step(30), 1);
    assert_eq!(story.condition("Degraded"), "False AsExpected");
}

#[test]
fn b3_a_replacement_that_fails_stops_the_policy_until_its_spec_is_changed() {
    let mut story = Story::new(crowded(&[("app", 6)]), vec![policy("p", json!({}))]);
    story.replaced = Replaced::Failed;
    assert_eq!(story.step(0), 1);
    for _ in 0..3 {
        assert_eq!(story.step(3600), 0);
        assert_eq!(story.condition("Degraded"), "True ReplacementNotReady");
    }
    assert!(
        story.message("Degraded").contains("failed"),
        "{}",
        story.message("Degraded")
    );
    story.policies[0].metadata.generation = Some(2);
    story.replaced = Replaced::Ready;
    assert_eq!(story.step(30), 1);
}

#[test]
fn b3_a_policy_that_is_deleted_in_the_middle_evicts_no_further_pod() {
    let mut story = Story::new(crowded(&[("app", 6)]), vec![policy("p", json!({}))]);
    assert_eq!(story.step(0), 1);
    let with_finalizer = json!({"metadata": {"deletionTimestamp": now().to_string(), "finalizers": ["a/b"]}});
    story.policies = vec![policy("p", with_finalizer)];
    assert_eq!(story.step(30), 0);
    story.policies.clear();
    assert_eq!(story.step(30), 0);
    assert_eq!(story.evicted.len(), 1);
}

#[test]
fn b3_an_invalid_policy_gets_a_condition_with_the_path_and_moves_nothing() {
    let with = json!({"spec": {"strategies": {"lowNodeUtilization": {"thresholds": {"cpu": 20}, "targetThresholds": {"memory": 50}}}}});
    let valid = policy("q", json!({}));
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", with), valid]);
    assert_eq!(story.step(0), 1, "the other policy is carried out");
    assert_eq!(story.condition("Ready"), "False Invalid");
    let message = story.message("Ready");
    assert!(
        message.contains("spec.strategies.lowNodeUtilization.targetThresholds[cpu]"),
        "{message}"
    );
    assert!(
        story.events[0].starts_with("RebalancePolicyInvalid: "),
        "{:?}",
        story.events
    );
    story.step(30);
    let invalid = story
        .events
        .iter()
        .filter(|e| e.starts_with("RebalancePolicyInvalid"));
    assert_eq!(invalid.count(), 1);
}

#[test]
fn b3_two_policies_take_turns_and_never_move_pods_of_one_workload() {
    let all = || vec![policy("q", json!({})), policy("p", json!({}))];
    let mut story = Story::new(crowded(&[("app", 4)]), all());
    story.replaced = Replaced::Pending;
    for _ in 0..10 {
        story.step(5);
    }
    assert_eq!(story.evicted.len(), 1, "{:?}", story.evicted);
    assert!(
        story.evicted[0].starts_with("p "),
        "the first by name: {:?}",
        story.evicted
    );
    assert_eq!(story.condition_of(0, "Progressing"), "False NothingToDo");

    let mut story = Story::new(crowded(&[("app", 4), ("web", 4)]), all());
    story.replaced = Replaced::Pending;
    // A wave ends where a workload comes a second time; `p` then waits, and `q` moves a pod of the other workload.
    assert_eq!(
        (story.step(0), story.step(2), story.step(2)),
        (1, 1, 0),
        "{:?}",
        story.evicted
    );
    assert!(story.evicted[0].starts_with("p app") && story.evicted[1].starts_with("q web"));
    // A policy that waits for its replacements does not hold back another policy's workloads.
    let world = crowded(&[("app", 4), ("web", 4)]);
    let only = |name: &str, app: &str| {
        let labels = json!({"matchLabels": {"app": app}});
        policy(
            name,
            json!({"spec": {"strategies": {"topologySpread": {"labelSelector": labels}}}}),
        )
    };
    let mut story = Story::new(world, vec![only("p", "app"), only("q", "web")]);
    story.replaced = Replaced::Pending;
    assert_eq!(
        (story.step(0), story.step(2), story.step(2)),
        (1, 1, 0),
        "{:?}",
        story.evicted
    );
    assert!(story.evicted[0].starts_with("p app") && story.evicted[1].starts_with("q web"));
}

#[test]
fn b3_pods_that_must_never_run_twice_are_not_evicted_without_consent() {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "app", "uid": "o", "controller": true}]);
    for (annotations, expected) in [(json!({}), 0), (json!({"knarr.io/rebalance": "true"}), 1)] {
        let mut world = crowded(&[("app", 4)]);
        for pod in world.pods.values_mut() {
            overlay(
                pod,
                &json!({"metadata": {"ownerReferences": owner, "annotations": annotations}}),
            );
        }
        let mut story = Story::new(world, vec![policy("p", json!({}))]);
        assert_eq!(story.step(0), expected, "{annotations}");
        assert_eq!(story.policies[0].status.pods_not_moved > 0, expected == 0);
    }
}

#[test]
fn b3_a_workload_whose_moves_do_not_help_is_not_moved_again_and_again() {
    let mut story = Story::new(crowded(&[("app", 2), ("web", 2)]), vec![policy("p", json!({}))]);
    // A scheduler that decides otherwise than the plan: the replacements come back.
    story.replaced = Replaced::SameNode;
    let mut moved = 0;
    for _ in 0..50 {
        moved += story.step(30);
    }
    assert_eq!(moved, 4, "twice each: {:?}", story.evicted);
    assert_eq!(story.condition("Progressing"), "False RepeatedMoves");
    let held = &story.policies[0].status.held_workloads;
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(
        held[0].starts_with("ReplicaSet default/app was moved 2 times for TopologySpread"),
        "{held:?}"
    );
    let said = story
        .events
        .iter()
        .filter(|e| e.starts_with("RebalanceRepeatedMoves"));
    assert_eq!(said.count(), 2, "{:?}", story.events);
    assert!(
        (1..=4).contains(&story.step(3600)),
        "an hour later it is tried again"
    );
}

#[test]
fn b3_a_move_that_was_recorded_and_not_made_is_made_later() {
    let mut story = Story::new(crowded(&[("app", 4)]), vec![policy("p", json!({}))]);
    // The controller was stopped after it had written the status.
    let objects = story.world.objects();
    let step = step(Input {
        policies: Policies::read(story.policies.clone()),
        profiles: &[Profile::default()],
        objects: &objects,
        usage: &Usage::default(),
        now: story.now,
        turn: 0,
    });
    let recorded = step.wave.unwrap().policy;
    assert_eq!(recorded.status.recent_moves.len(), 1);
    story.write(recorded);
    assert_eq!(story.step(30), 0);
    assert_eq!(story.step(31), 1);
    assert_eq!(story.policies[0].status.recent_moves.len(), 1);
}

#[test]
fn b3_a_namespaced_policy_moves_pods_of_its_namespace_only() {
    let own = |namespace: &str| {
        policy(
            "p",
            json!({"metadata": {"namespace": namespace}, "spec": {"gracePeriodSeconds": 0}}),
        )
    };
    let mut story = Story::new(crowded(&[("app", 4)]), vec![own("other")]);
    assert_eq!((story.step(0), story.step(30)), (0, 0));
    assert_eq!(story.condition("Progressing"), "False NothingToDo");
    let world = crowded(&[("app", 4)]);
    let step = step(Input {
        policies: Policies::read(vec![own("default")]),
        profiles: &[Profile::default()],
        objects: &world.objects(),
        usage: &Usage::default(),
        now: now(),
        turn: 0,
    });
    let wave = step.wave.unwrap();
    assert_eq!(
        wave.evictions[0].grace_period_seconds,
        Some(1),
        "the kubelet completes every deletion"
    );
    let why = &wave.policy.status.planned_moves[0].why;
    assert_eq!(
        why, "TopologySpread: 3 -> 1",
        "no selector of another namespace is shown"
    );
}

#[test]
fn b3_more_policies_than_a_namespace_may_have_are_not_used() {
    let policies = (0..9).map(|n| policy(&format!("p{n}"), json!({"spec": {"dryRun": true}})));
    let mut story = Story::new(crowded(&[("app", 4)]), policies.collect());
    story.step(0);
    assert_eq!(story.condition_of(7, "Ready"), "True Accepted");
    assert_eq!(story.condition_of(8, "Ready"), "False TooManyPolicies");
    assert_eq!(story.policies[8].status.moves, 0);
}
