//! Deletes finished Jobs when their `ttlSecondsAfterFinished` is over, their pods first (foreground).

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use crate::action::{Action, Delete, Dependents};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::job::finished;

/// See the module.
pub struct TtlAfterFinished;

impl Controller for TtlAfterFinished {
    fn name(&self) -> &'static str {
        "ttl-after-finished-controller"
    }

    fn account(&self) -> &'static str {
        "ttl-after-finished-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::JOB]
    }

    fn keys(&self, _: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        changed.key_of(&registry::JOB).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(job) = context.view.get_as::<Job>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        let ttl = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished);
        let finish_time = finished(&job).and_then(|c| c.last_transition_time.as_ref());
        let (Some(ttl), Some(finish_time)) = (ttl, finish_time) else {
            return Vec::new();
        };
        if job.metadata.deletion_timestamp.is_some() || context.failure.is_some() {
            return Vec::new();
        }
        let left = SignedDuration::from_secs(i64::from(ttl)) - context.now.duration_since(finish_time.0);
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => vec![Action::RequeueAfter(left)],
            // Only at the observed resourceVersion: its TTL may have been changed.
            _ => vec![Action::Delete(Delete {
                resource_version: job.metadata.resource_version.clone(),
                dependents: Dependents::Foreground,
                ..Delete::of(job.object())
            })],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines};

    #[test]
    fn a_finished_job_is_deleted_after_its_ttl() {
        // ttl, is_finished, second -> what is done
        let table = [
            (Some(100), true, 99, vec!["requeue after 1s"]),
            (Some(100), true, 100, vec!["delete jobs a/j"]),
            (Some(0), true, 0, vec!["delete jobs a/j"]),
            (None, true, 1000, vec![]),
            (Some(0), false, 1000, vec![]),
        ];
        for (ttl, is_finished, second, expected) in table {
            let mut world = World::default();
            let status = if is_finished { "True" } else { "False" };
            let job: Job = serde_json::from_value(json!({
                "metadata": {"namespace": "a", "name": "j"},
                "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
                "status": {"conditions": [
                    {"type": "Complete", "status": status, "lastTransitionTime": at(0).to_string()}]},
            }))
            .unwrap();
            world.put(job);
            let actions = world.run(&TtlAfterFinished, ("a", "j"), at(second));
            assert_eq!(lines(&actions), expected, "{ttl:?} {is_finished} {second}");
            if let Some(Action::Delete(delete)) = actions.first() {
                assert_eq!(
                    (delete.uid.as_str(), delete.dependents),
                    ("uid-j", Dependents::Foreground)
                );
                assert_eq!(delete.resource_version.as_deref(), Some("1"));
            }
        }
    }
}
