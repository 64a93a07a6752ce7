//! ReplicationController: as ReplicaSet, with a map of labels as selector. It prefers availability as well (SPEC S8).

use k8s_openapi::api::core::v1::{
    Pod, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::scale_down::Policy;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::labels::Selector;
use knarr_apimachinery::time;

use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::{claim, controller_of, non_empty_selector};
use crate::pod::{self, Availability};
use crate::replicaset::{Desired, count, failed, manage};

/// See the module.
#[derive(Default)]
pub struct ReplicationControllers {
    /// The cluster's scale-down policy.
    pub scale_down: Policy,
}

fn selector_of(controller: &ReplicationController) -> Option<Selector> {
    let selector = LabelSelector {
        match_labels: controller.spec.as_ref()?.selector.clone(),
        match_expressions: None,
    };
    non_empty_selector(&selector)
}

impl Controller for ReplicationControllers {
    fn name(&self) -> &'static str {
        "replication-controller"
    }

    fn account(&self) -> &'static str {
        "replication-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::REPLICATION_CONTROLLER, &registry::POD, &registry::NODE]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        // Nodes are read only when pods are deleted: a change of a node is no reason to delete any.
        if *changed.kind == registry::NODE {
            return Vec::new();
        }
        if let Some(key) = changed.key_of(&registry::REPLICATION_CONTROLLER) {
            return vec![key];
        }
        let mut keys: Vec<ObjectKey> = Vec::new();
        for object in changed.states() {
            let owner = controller_of(object.metadata()).filter(|o| o.kind == "ReplicationController");
            keys.extend(owner.map(|o| ObjectKey::new(object.namespace(), &o.name)));
        }
        if let Some(new) = changed.new
            && controller_of(new.metadata()).is_none()
        {
            let labels = new.metadata().labels.as_ref();
            let mut all = view.list_as::<ReplicationController>(new.namespace());
            all.retain(|c| selector_of(c).is_some_and(|s| s.matches(labels)));
            keys.extend(all.iter().map(|c| ObjectKey::of(c.object())));
        }
        keys.sort();
        keys.dedup();
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let set = context
            .view
            .get_as::<ReplicationController>(&key.namespace, &key.name);
        let Some(set) = set else { return Vec::new() };
        let (Some(spec), Some(selector)) = (&set.spec, selector_of(&set)) else {
            return Vec::new();
        };
        let owner = set.object();
        let mut known: Vec<Shared<Pod>> = context.view.controlled_by_as(owner.uid());
        known.extend(context.view.orphans_as(owner.namespace()));
        known.retain(|p| pod::is_active(p));
        let claimed = claim(owner, &selector, known);
        let pods = claimed.objects;
        let mut actions = Vec::new();
        if context.failure.is_none() && set.metadata.deletion_timestamp.is_none() {
            actions = claimed.actions;
            let desired = Desired {
                replicas: spec.replicas.unwrap_or(1),
                template: spec.template.as_ref(),
                scale_down: Policy::of(&set.metadata, self.scale_down),
            };
            actions.extend(manage(context, owner, &desired, &pods));
        }
        let status = status(&set, &pods, context);
        if set.status.as_ref() != Some(&status) {
            let mut changed = (*set).clone();
            changed.status = Some(status);
            actions.push(Action::update_status(changed));
        }
        let seconds = spec.min_ready_seconds.unwrap_or(0);
        let next = pods
            .iter()
            .filter_map(|p| match pod::availability(p, seconds, context.now) {
                Availability::In(wait) => Some(wait),
                Availability::Available | Availability::NotReady => None,
            });
        actions.extend(next.min().map(Action::RequeueAfter));
        actions
    }
}

fn status(
    set: &ReplicationController,
    pods: &[Shared<Pod>],
    context: &Context<'_>,
) -> ReplicationControllerStatus {
    let spec = set.spec.clone().unwrap_or_default();
    let labels = spec
        .template
        .and_then(|t| t.metadata)
        .and_then(|m| m.labels)
        .unwrap_or_default();
    let seconds = spec.min_ready_seconds.unwrap_or(0);
    let number = |is: &dyn Fn(&Pod) -> bool| {
        let n = pods.iter().filter(|p| is(p)).count();
        (n > 0).then(|| count(n))
    };
    let old = set
        .status
        .as_ref()
        .and_then(|s| s.conditions.clone())
        .unwrap_or_default();
    let (failures, mut conditions): (Vec<_>, Vec<_>) =
        old.into_iter().partition(|c| c.type_ == "ReplicaFailure");
    if let Some((reason, failure)) = context.failure.and_then(failed) {
        // The first failure is kept while it lasts.
        conditions.push(
            failures
                .into_iter()
                .next()
                .unwrap_or_else(|| ReplicationControllerCondition {
                    type_: "ReplicaFailure".into(),
                    status: "True".into(),
                    reason: Some(reason.into()),
                    message: Some(failure.error.message().to_string()),
                    last_transition_time: Some(time::seconds(context.now)),
                }),
        );
    }
    ReplicationControllerStatus {
        replicas: count(pods.len()),
        fully_labeled_replicas: number(&|p| {
            let has = p.metadata.labels.as_ref();
            labels.iter().all(|(k, v)| has.and_then(|h| h.get(k)) == Some(v))
        }),
        ready_replicas: number(&pod::is_ready),
        available_replicas: number(&|p| {
            pod::availability(p, seconds, context.now) == Availability::Available
        }),
        observed_generation: set.metadata.generation,
        conditions: (!conditions.is_empty()).then_some(conditions),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines, updated};

    #[test]
    fn s8_a_terminating_pod_is_replaced_while_it_still_runs() {
        let mut world = World::default();
        let set: ReplicationController = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "rc", "generation": 1},
            "spec": {"replicas": 2, "selector": {"app": "x"}, "template": {"metadata": {"labels": {"app": "x"}}}},
        }))
        .unwrap();
        world.put(set);
        let sync = |world: &mut World| {
            let actions = world.run(&ReplicationControllers::default(), ("a", "rc"), at(0));
            world.take(&actions);
            (
                updated::<ReplicationController>(&actions, "status"),
                lines(&actions),
            )
        };
        assert_eq!(sync(&mut world).1[0], "create 2 pods a/rc-*");
        let (status, done) = sync(&mut world);
        assert_eq!(done, ["update replicationcontrollers/status a/rc"]);
        let status = status.unwrap().status.unwrap();
        assert_eq!(
            (
                status.replicas,
                status.fully_labeled_replicas,
                status.ready_replicas
            ),
            (2, Some(2), None)
        );
        let view: &dyn View = &world;
        let mut ending = (*view.list_as::<Pod>("a")[0]).clone();
        ending.metadata.deletion_timestamp = Some(time::seconds(at(30)));
        world.put(ending);
        assert_eq!(sync(&mut world).1[0], "create 1 pods a/rc-*");
    }
}
