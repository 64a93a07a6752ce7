//! PodDisruptionBudgets: how many of the pods they select are healthy, are to be, and may be evicted now.
//!
//! The eviction API writes an evicted pod into `status.disruptedPods`; it counts as gone from then on, for two minutes or
//! until it is. What cannot be worked out allows no disruption.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::selector::label::Selector;
use knarr_api::time::seconds;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use crate::action::{Action, reference};
use crate::controller::{Changed, Context, Controller, View};
use crate::deployment::scaling::scaled;
use crate::owner::controller_of;
use crate::pod;
use crate::replicaset::count;

/// How long an evicted pod may take until its deletion shows.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
/// After a budget could not be worked out.
const RETRY: Duration = Duration::from_secs(30);
const CONDITION: &str = "DisruptionAllowed";

/// See the module.
pub struct Disruptions;

/// What the budget selects; `None` selects nothing.
fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector> {
    let selector = budget.spec.as_ref()?.selector.as_ref()?;
    Selector::from_label_selector(selector).ok()
}

impl Controller for Disruptions {
    fn name(&self) -> &'static str {
        "controllermanager"
    }

    fn account(&self) -> &'static str {
        "disruption-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::POD_DISRUPTION_BUDGET,
            &registry::POD,
            &registry::REPLICA_SET,
            &registry::DEPLOYMENT,
            &registry::STATEFUL_SET,
            &registry::REPLICATION_CONTROLLER,
        ]
    }

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::POD_DISRUPTION_BUDGET) {
            return vec![key];
        }
        let is_pod = changed.kind == &registry::POD;
        let generation = |o: Option<&Object>| o.map(|o| (o.uid().to_string(), o.metadata().generation));
        if !is_pod && generation(changed.old) == generation(changed.new) {
            return Vec::new();
        }
        let Some(object) = changed.object() else {
            return Vec::new();
        };
        let mut budgets = view.list_as::<PodDisruptionBudget>(object.namespace());
        if is_pod {
            budgets.retain(|budget| {
                let selector = selector_of(budget);
                let matches = |o: &Object| {
                    selector
                        .as_ref()
                        .is_some_and(|s| s.matches(o.metadata().labels.as_ref()))
                };
                changed.states().any(matches)
            });
        }
        budgets.iter().map(|b| ObjectKey::of(b.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let view = context.view;
        let Some(budget) = view.get_as::<PodDisruptionBudget>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let about = reference(budget.object());
        let mut pods: Vec<Shared<Pod>> = view.list_as(&key.namespace);
        let selector = selector_of(&budget);
        pods.retain(|p| {
            selector
                .as_ref()
                .is_some_and(|s| s.matches(p.metadata.labels.as_ref()))
        });
        let mut actions = Vec::new();
        if pods.is_empty() {
            actions.push(Action::event(&about, "NoPods", "No matching pods found"));
        }
        let mut status = budget.status.clone().unwrap_or_default();
        match expected(view, &budget, &pods) {
            Err(why) => {
                let message = format!("Failed to calculate the number of expected pods: {why}");
                actions.push(Action::warning(
                    &about,
                    "CalculateExpectedPodCountFailed",
                    message,
                ));
                status.disruptions_allowed = Some(0);
                say(&mut status, "False", "SyncFailed", why, context.now);
                actions.extend(write(&budget, status));
                actions.push(Action::RequeueAfter(RETRY));
            }
            Ok(expected) => {
                if expected.has_unmanaged {
                    actions.push(Action::warning(&about, "UnmanagedPods", unmanaged(&budget)));
                }
                let (evicted, recheck) = disrupted(&status, &pods, context.now, &budget, &mut actions);
                let healthy = pods.iter().filter(|p| {
                    !pod::is_deleting(p) && !evicted.contains_key(p.object().name()) && pod::is_ready(p)
                });
                let healthy = count(healthy.count());
                let allowed = if expected.pods <= 0 {
                    0
                } else {
                    (healthy - expected.healthy).max(0)
                };
                status = PodDisruptionBudgetStatus {
                    current_healthy: Some(healthy),
                    desired_healthy: Some(expected.healthy),
                    expected_pods: Some(expected.pods),
                    disruptions_allowed: Some(allowed),
                    disrupted_pods: (!evicted.is_empty()).then_some(evicted),
                    observed_generation: budget.metadata.generation,
                    conditions: status.conditions,
                };
                let (is, reason) = if allowed > 0 {
                    ("True", "SufficientPods")
                } else {
                    ("False", "InsufficientPods")
                };
                say(&mut status, is, reason, String::new(), context.now);
                actions.extend(write(&budget, status));
                actions.extend(recheck.map(Action::RequeueAfter));
            }
        }
        actions
    }
}

fn write(budget: &Shared<PodDisruptionBudget>, status: PodDisruptionBudgetStatus) -> Option<Action> {
    let mut changed = (**budget).clone();
    changed.status = Some(status);
    (changed != **budget).then(|| Action::update_status(changed))
}

fn unmanaged(budget: &PodDisruptionBudget) -> String {
    let selector = budget
        .spec
        .as_ref()
        .and_then(|s| s.selector.clone())
        .unwrap_or_default();
    let labels: Vec<String> = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(k, v)| format!("{k}:{v}"))
        .collect();
    format!(
        "Pods selected by this PodDisruptionBudget (selector: &LabelSelector{{MatchLabels:map[string]string{{{}}},\
         MatchExpressions:[]LabelSelectorRequirement{{}},}}) were found to be unmanaged. As a result, the status of the PDB \
         cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \
         \".spec.minAvailable\" field of the PDB to an integer value.",
        labels
            .iter()
            .map(|l| format!("{l},"))
            .collect::<Vec<_>>()
            .join("")
    )
}

/// Sets the condition; its time moves only with its status.
fn say(status: &mut PodDisruptionBudgetStatus, is: &str, reason: &str, message: String, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    let new = Condition {
        type_: CONDITION.into(),
        status: is.into(),
        reason: reason.into(),
        message,
        observed_generation: status.observed_generation,
        last_transition_time: seconds(now),
    };
    match conditions.iter_mut().find(|c| c.type_ == CONDITION) {
        Some(old) => {
            let since = if old.status == is {
                old.last_transition_time.clone()
            } else {
                seconds(now)
            };
            *old = Condition {
                last_transition_time: since,
                ..new
            };
        }
        None => conditions.push(new),
    }
}

/// Evicted pods that are still to be deleted, and when the first of them is given up on.
fn disrupted(
    status: &PodDisruptionBudgetStatus,
    pods: &[Shared<Pod>],
    now: Timestamp,
    budget: &Shared<PodDisruptionBudget>,
    actions: &mut Vec<Action>,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let mut evicted = BTreeMap::new();
    let mut recheck: Option<Duration> = None;
    for pod in pods.iter().filter(|p| !pod::is_deleting(p)) {
        let name = pod.object().name();
        let Some(at) = status.disrupted_pods.as_ref().and_then(|d| d.get(name)) else {
            continue;
        };
        match Duration::try_from(DELETION_TIMEOUT - now.duration_since(at.0)) {
            Ok(left) => {
                recheck = Some(recheck.map_or(left, |r| r.min(left)));
                evicted.insert(name.to_string(), at.clone());
            }
            Err(_) => {
                let namespace = budget.object().namespace();
                let message =
                    format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
                actions.push(Action::warning(&reference(pod.object()), "NotDeleted", message));
            }
        }
    }
    (evicted, recheck)
}

struct Expected {
    pods: i32,
    healthy: i32,
    has_unmanaged: bool,
}

fn expected(view: &dyn View, budget: &PodDisruptionBudget, pods: &[Shared<Pod>]) -> Result<Expected, String> {
    let spec = budget.spec.clone().unwrap_or_default();
    if let Some(max_unavailable) = &spec.max_unavailable {
        let (pods, has_unmanaged) = scale(view, pods)?;
        let healthy = (pods - scaled(max_unavailable, pods, true)).max(0);
        return Ok(Expected {
            pods,
            healthy,
            has_unmanaged,
        });
    }
    match &spec.min_available {
        Some(IntOrString::Int(healthy)) => Ok(Expected {
            pods: count(pods.len()),
            healthy: *healthy,
            has_unmanaged: false,
        }),
        Some(percentage) => {
            let (pods, has_unmanaged) = scale(view, pods)?;
            let healthy = scaled(percentage, pods, true);
            Ok(Expected {
                pods,
                healthy,
                has_unmanaged,
            })
        }
        None => Ok(Expected {
            pods: 0,
            healthy: 0,
            has_unmanaged: false,
        }),
    }
}

/// How many pods the owners of these want in all, and whether some have no owner.
fn scale(view: &dyn View, pods: &[Shared<Pod>]) -> Result<(i32, bool), String> {
    let mut scales: BTreeMap<String, i32> = BTreeMap::new();
    let mut has_unmanaged = false;
    for pod in pods {
        let Some(owner) = controller_of(&pod.metadata) else {
            has_unmanaged = true;
            continue;
        };
        let namespace = pod.object().namespace();
        let (uid, replicas) = scale_of(view, namespace, owner)?
            .ok_or_else(|| format!("found no controllers for pod {:?}", pod.object().name()))?;
        scales.insert(uid, replicas);
    }
    Ok((
        scales.values().fold(0, |sum, n| sum.saturating_add(*n)),
        has_unmanaged,
    ))
}

/// The owner that says how many there are to be, with that number.
fn scale_of(
    view: &dyn View,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<Option<(String, i32)>, String> {
    let is_this = |o: &Object| o.uid() == owner.uid;
    match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("apps/v1", "ReplicaSet") => {
            let Some(set) = view
                .get_as::<ReplicaSet>(namespace, &owner.name)
                .filter(|s| is_this(s.object()))
            else {
                return Ok(None);
            };
            if let Some(above) = controller_of(&set.metadata).filter(|o| o.kind == "Deployment") {
                let deployment = view.get_as::<Deployment>(namespace, &above.name);
                let deployment = deployment.filter(|d| d.object().uid() == above.uid);
                return Ok(deployment.map(|d| {
                    let replicas = d.spec.as_ref().and_then(|s| s.replicas);
                    (above.uid.clone(), replicas.unwrap_or(1))
                }));
            }
            let replicas = set.spec.as_ref().and_then(|s| s.replicas);
            Ok(Some((owner.uid.clone(), replicas.unwrap_or(1))))
        }
        ("apps/v1", "StatefulSet") => {
            let set = view
                .get_as::<StatefulSet>(namespace, &owner.name)
                .filter(|s| is_this(s.object()));
            Ok(set.map(|s| {
                let replicas = s.spec.as_ref().and_then(|s| s.replicas);
                (owner.uid.clone(), replicas.unwrap_or(1))
            }))
        }
        ("v1", "ReplicationController") => {
            let set = view.get_as::<ReplicationController>(namespace, &owner.name);
            Ok(set.filter(|s| is_this(s.object())).map(|s| {
                let replicas = s.spec.as_ref().and_then(|s| s.replicas);
                (owner.uid.clone(), replicas.unwrap_or(1))
            }))
        }
        ("apps/v1", "DaemonSet") => Err("daemonsets.apps does not implement the scale subresource".into()),
        ("batch/v1", "Job") => Err("jobs.batch does not implement the scale subresource".into()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines, object, updated};

    fn world(spec: Value, ready: usize, unready: usize, owner: Option<&str>) -> World {
        let mut world = World::default();
        let mut budget_spec = spec;
        budget_spec["selector"] = json!({"matchLabels": {"app": "x"}});
        let budget: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "b", "generation": 2}, "spec": budget_spec,
        }))
        .unwrap();
        world.put(budget);
        let set: ReplicaSet = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "s"}, "spec": {"replicas": 10, "selector": {}},
        }))
        .unwrap();
        world.put(set);
        for n in 0..ready + unready {
            let is = if n < ready { "True" } else { "False" };
            let mut pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "a", "name": format!("p{n}"), "labels": {"app": "x"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": is}]},
            }))
            .unwrap();
            pod.metadata.owner_references = owner.map(|kind| {
                let api_version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
                vec![OwnerReference {
                    api_version: api_version.into(),
                    kind: kind.into(),
                    name: "s".into(),
                    uid: "uid-s".into(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]
            });
            world.put(pod);
        }
        world
    }

    fn sync(world: &World, second: i64) -> (PodDisruptionBudgetStatus, Vec<String>) {
        let actions = world.run(&Disruptions, ("a", "b"), at(second));
        let status = updated::<PodDisruptionBudget>(&actions, "status")
            .unwrap()
            .status
            .unwrap();
        (status, lines(&actions))
    }

    #[test]
    fn a_budget_allows_what_is_healthy_beyond_what_is_wanted() {
        let set = Some("ReplicaSet");
        // spec, ready, not ready, owner -> healthy, wanted, expected, allowed
        let table = [
            (json!({"minAvailable": 2}), 3, 0, None, (3, 2, 3, 1)),
            (json!({"minAvailable": 2}), 1, 2, None, (1, 2, 3, 0)),
            (json!({"minAvailable": 0}), 0, 0, None, (0, 0, 0, 0)),
            (json!({"minAvailable": "55%"}), 9, 0, set, (9, 6, 10, 3)),
            (json!({"maxUnavailable": 1}), 10, 0, set, (10, 9, 10, 1)),
            (json!({"maxUnavailable": "25%"}), 10, 0, set, (10, 7, 10, 3)),
            (json!({"maxUnavailable": 1}), 2, 0, None, (2, 0, 0, 0)),
        ];
        for (spec, ready, unready, owner, wanted) in table {
            let (status, _) = sync(&world(spec.clone(), ready, unready, owner), 0);
            let is = (
                status.current_healthy.unwrap(),
                status.desired_healthy.unwrap(),
                status.expected_pods.unwrap(),
                status.disruptions_allowed.unwrap(),
            );
            assert_eq!(is, wanted, "{spec} {ready} {unready} {owner:?}");
            let condition = &status.conditions.unwrap()[0];
            let (is, reason) = if wanted.3 > 0 {
                ("True", "SufficientPods")
            } else {
                ("False", "InsufficientPods")
            };
            assert_eq!(
                (condition.status.as_str(), condition.reason.as_str()),
                (is, reason)
            );
            assert_eq!(status.observed_generation, Some(2));
        }
    }

    #[test]
    fn an_evicted_pod_counts_as_gone_for_two_minutes() {
        let mut world = world(json!({"minAvailable": 1}), 2, 0, None);
        let view: &dyn View = &world;
        let mut budget = (*view.get_as::<PodDisruptionBudget>("a", "b").unwrap()).clone();
        budget.status.get_or_insert_default().disrupted_pods = Some([("p0".to_string(), Time(at(0)))].into());
        world.put(budget);
        let (status, lines) = sync(&world, 20);
        assert_eq!(
            (status.current_healthy, status.disruptions_allowed),
            (Some(1), Some(0))
        );
        assert!(lines.contains(&"requeue after 100s".to_string()), "{lines:?}");
        let (status, lines) = sync(&world, 121);
        assert_eq!((status.current_healthy, status.disrupted_pods), (Some(2), None));
        assert!(lines[0].starts_with("event NotDeleted: "), "{lines:?}");
    }

    #[test]
    fn what_cannot_be_worked_out_allows_nothing() {
        let (status, lines) = sync(&world(json!({"maxUnavailable": 1}), 3, 0, Some("Job")), 0);
        assert_eq!(status.disruptions_allowed, Some(0));
        assert_eq!(status.conditions.unwrap()[0].reason, "SyncFailed");
        assert_eq!(
            lines[0],
            "event CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: jobs.batch does not \
             implement the scale subresource"
        );
    }

    fn with_scale(api_version: &str, kind: &str, owner_uid: &str) -> World {
        let mut world = world(json!({"maxUnavailable": 0}), 1, 0, None);
        let view: &dyn View = &world;
        let mut pod = (*view.get_as::<Pod>("a", "p0").unwrap()).clone();
        pod.metadata.owner_references = serde_json::from_value(json!([
            {"apiVersion": api_version, "kind": kind, "name": "s", "uid": owner_uid, "controller": true},
        ]))
        .unwrap();
        world.put(pod);
        world
    }

    fn put<T: knarr_api::registry::Registered>(world: &mut World, value: Value) {
        world.put::<T>(serde_json::from_value(value).unwrap());
    }

    #[test]
    fn the_expected_pods_are_the_scale_of_their_controller() {
        let meta = json!({"namespace": "a", "name": "s"});
        let of_deployment = |uid: &str| {
            let owners = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": uid, "controller": true}]);
            json!({"metadata": {"namespace": "a", "name": "s", "ownerReferences": owners},
                "spec": {"replicas": 10, "selector": {}}})
        };
        // The pod's controller, its uid, the ReplicaSet's owner -> expected pods; `None` is what cannot be calculated.
        for (api_version, kind, uid, deployment, pods) in [
            ("apps/v1", "ReplicaSet", "uid-s", None, Some(10)),
            ("apps/v1", "ReplicaSet", "another", None, None),
            ("apps/v1", "ReplicaSet", "uid-s", Some("uid-d"), Some(7)),
            ("apps/v1", "ReplicaSet", "uid-s", Some("another"), None),
            ("apps/v1", "StatefulSet", "uid-s", None, Some(4)),
            ("apps/v1", "StatefulSet", "another", None, None),
            ("v1", "ReplicationController", "uid-s", None, Some(6)),
            ("v1", "ReplicationController", "another", None, None),
            ("apps/v1", "DaemonSet", "uid-s", None, None),
            ("example.com/v1", "Widget", "uid-s", None, None),
        ] {
            let mut world = with_scale(api_version, kind, uid);
            put::<StatefulSet>(
                &mut world,
                json!({"metadata": meta, "spec": {"replicas": 4, "selector": {}, "template": {}}}),
            );
            put::<ReplicationController>(&mut world, json!({"metadata": meta, "spec": {"replicas": 6}}));
            put::<Deployment>(
                &mut world,
                json!({"metadata": {"namespace": "a", "name": "d"}, "spec": {"replicas": 7, "selector": {}, "template": {}}}),
            );
            if let Some(uid) = deployment {
                put::<ReplicaSet>(&mut world, of_deployment(uid));
            }
            let (status, lines) = sync(&world, 0);
            assert_eq!(status.expected_pods, pods, "{kind} {uid} {deployment:?}");
            if kind == "DaemonSet" {
                assert!(
                    lines[0].ends_with("daemonsets.apps does not implement the scale subresource"),
                    "{lines:?}"
                );
            }
        }
    }

    #[test]
    fn pods_that_a_budget_does_not_select_do_not_count() {
        let mut world = world(json!({"minAvailable": 1}), 2, 0, None);
        put::<Pod>(
            &mut world,
            json!({"metadata": {"namespace": "a", "name": "other", "labels": {"app": "y"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
        );
        let (status, _) = sync(&world, 0);
        assert_eq!((status.expected_pods, status.current_healthy), (Some(2), Some(2)));
    }

    #[test]
    fn pods_without_a_controller_are_reported_with_the_selector() {
        let (_, lines) = sync(&world(json!({"maxUnavailable": 1}), 1, 0, None), 0);
        let begin = "event UnmanagedPods: Pods selected by this PodDisruptionBudget \
            (selector: &LabelSelector{MatchLabels:map[string]string{app:x,},";
        assert!(lines[0].starts_with(begin), "{lines:?}");
    }

    #[test]
    fn a_conditions_time_moves_with_its_status_only_and_others_conditions_stay() {
        let mut world = world(json!({"minAvailable": 1}), 2, 0, None);
        let view: &dyn View = &world;
        let mut budget = (*view.get_as::<PodDisruptionBudget>("a", "b").unwrap()).clone();
        let time = |second| serde_json::to_value(Time(at(second))).unwrap();
        budget.status = serde_json::from_value(json!({"conditions": [
            {"type": "Audited", "status": "True", "reason": "ByHand", "message": "", "lastTransitionTime": time(0)},
        ]}))
        .unwrap();
        world.put(budget);
        let mut step = |ready: &[bool], second: i64| -> Vec<(String, String, i64)> {
            for (n, ready) in ready.iter().enumerate() {
                let is = if *ready { "True" } else { "False" };
                put::<Pod>(
                    &mut world,
                    json!({"metadata": {"namespace": "a", "name": format!("p{n}"), "labels": {"app": "x"}},
                        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": is}]}}),
                );
            }
            let (status, _) = sync(&world, second);
            let actions = world.run(&Disruptions, ("a", "b"), at(second));
            world.take_updates(&actions);
            let conditions = status.conditions.unwrap().into_iter();
            let second = |c: &Condition| c.last_transition_time.0.duration_since(at(0)).as_secs();
            conditions
                .map(|c| (c.type_.clone(), c.status.clone(), second(&c)))
                .collect()
        };
        let audited = ("Audited".to_string(), "True".to_string(), 0);
        let allowed = |is: &str, second| ("DisruptionAllowed".to_string(), is.to_string(), second);
        assert_eq!(step(&[true, true], 5), [audited.clone(), allowed("True", 5)]);
        assert_eq!(
            step(&[true, true, true], 10),
            [audited.clone(), allowed("True", 5)]
        );
        assert_eq!(step(&[true, false, false], 20), [audited, allowed("False", 20)]);
    }

    #[test]
    fn a_budget_is_reconciled_for_its_pods_and_for_controllers_whose_spec_changes() {
        let world = world(json!({"minAvailable": 1}), 0, 0, None);
        let pod = |app: &str| {
            object::<Pod>(json!({"metadata": {"namespace": "a", "name": "p", "labels": {"app": app}}}))
        };
        let set = |uid: &str, generation: i64| {
            let meta = json!({"namespace": "a", "name": "s", "uid": uid, "generation": generation});
            object::<ReplicaSet>(json!({"metadata": meta, "spec": {"selector": {}}}))
        };
        let budget = object::<PodDisruptionBudget>(json!({"metadata": {"namespace": "a", "name": "new"}}));
        for (what, old, new, keys) in [
            ("the budget", None, Some(budget), vec!["a/new"]),
            ("a pod of it", None, Some(pod("x")), vec!["a/b"]),
            (
                "a pod that was of it",
                Some(pod("x")),
                Some(pod("y")),
                vec!["a/b"],
            ),
            ("another pod", None, Some(pod("y")), vec![]),
            ("a new set", None, Some(set("u", 1)), vec!["a/b"]),
            ("a deleted set", Some(set("u", 1)), None, vec!["a/b"]),
            ("a scaled set", Some(set("u", 1)), Some(set("u", 2)), vec!["a/b"]),
            (
                "another set of the name",
                Some(set("u", 1)),
                Some(set("v", 1)),
                vec!["a/b"],
            ),
            ("a set's status", Some(set("u", 1)), Some(set("u", 1)), vec![]),
        ] {
            assert_eq!(
                world.keys(&Disruptions, old.as_ref(), new.as_ref()),
                keys,
                "{what}"
            );
        }
    }
}
