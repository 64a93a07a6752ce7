//! Revisions of a pod template as ControllerRevisions, for `kubectl rollout undo` of StatefulSets and DaemonSets.
//!
//! A revision's data is a patch that restores the template; its name is the owner's name and a hash of the data, so that
//! the same template is the same revision after a restart.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use knarr_api::k8s_openapi;
use knarr_api::kinds::template;
use knarr_api::registry;
use knarr_api::{Object, Shared};
use knarr_apimachinery::labels::Selector;
use serde_json::{Value, json};

use crate::action::{Action, Create, Delete};
use crate::controller::View;
use crate::deployment::template::encode_safely;
use crate::owner::{Claimed, claim_if, controller_of, controller_reference};

/// The label of pods and revisions with the hash of their template.
pub const REVISION_HASH: &str = "controller-revision-hash";
/// The length of the owner's name in a revision's name, so that name and hash stay under 253 bytes.
const NAME_BYTES: usize = 223;

/// The data of a revision: the patch for the template.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = match template::to_value(template) {
        Ok(value) => value,
        Err(e) => unreachable!("a typed template always encodes: {e}"),
    };
    if let Value::Object(map) = &mut template {
        map.insert("$patch".into(), "replace".into());
    }
    json!({"spec": {"template": template}})
}

/// The template of a revision; `None` if its data is not that of a template.
pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    if let Value::Object(map) = &mut template {
        map.remove("$patch");
    }
    template::from_value(template).ok()
}

/// FNV-1, 32 bits, of the data and the number of collisions, in letters that form no words (SafeEncodeString).
fn hash(data: &Value, collisions: i32) -> String {
    let text = data.to_string();
    let mut hash: u32 = 0x811c_9dc5;
    for byte in text.bytes().chain(collisions.to_string().bytes()) {
        hash = hash.wrapping_mul(0x0100_0193) ^ u32::from(byte);
    }
    encode_safely(hash)
}

fn name(owner: &str, hash: &str) -> String {
    // Names are ASCII; another one is left whole, and the API server rejects it.
    let prefix = owner.get(..NAME_BYTES).unwrap_or(owner);
    format!("{prefix}-{hash}")
}

/// The history of an owner: the revisions that it controls and those that it adopts, oldest first.
pub fn list(view: &dyn View, owner: &Object, selector: &Selector) -> Claimed<ControllerRevision> {
    let mut known: Vec<Shared<ControllerRevision>> = view.controlled_by_as(owner.uid());
    known.extend(view.orphans_as(owner.namespace()));
    known.retain(|r| selector.matches(r.metadata.labels.as_ref()));
    let mut claimed = claim_if(owner, known, |_| true);
    claimed.objects.sort_by(|a, b| {
        let key = |r: &Shared<ControllerRevision>| {
            (
                r.revision,
                r.metadata.creation_timestamp.clone(),
                r.metadata.name.clone(),
            )
        };
        key(a).cmp(&key(b))
    });
    claimed
}

/// The revision of the owner's template, and the write that it needs.
pub struct Update {
    pub revision: ControllerRevision,
    pub collisions: i32,
    pub action: Option<Action>,
}

/// Finds the template among the revisions, oldest first, or creates a new one. An existing one that is not the newest gets the next
/// number: that is a rollback.
pub fn update(
    view: &dyn View,
    owner: &Object,
    template: &PodTemplateSpec,
    revisions: &[Shared<ControllerRevision>],
    mut collisions: i32,
) -> Update {
    let data = data(template);
    let next = revisions.last().map_or(1, |r| r.revision.saturating_add(1));
    let is_equal = |r: &&Shared<ControllerRevision>| {
        r.data.as_ref().is_some_and(|d| d.0 == data) || template_of(r).as_ref() == Some(template)
    };
    if let Some(equal) = revisions.iter().rev().find(is_equal) {
        let mut revision = (**equal).clone();
        let is_newest = revisions
            .last()
            .is_some_and(|l| l.object().uid() == equal.object().uid());
        let action = (!is_newest).then(|| {
            revision.revision = next;
            Action::update(revision.clone())
        });
        return Update {
            revision,
            collisions,
            action,
        };
    }
    loop {
        let hash = hash(&data, collisions);
        let name = name(owner.name(), &hash);
        if let Some(taken) = view.get(&registry::CONTROLLER_REVISION, owner.namespace(), &name)
            && controller_of(taken.metadata()).is_none_or(|c| c.uid != owner.uid())
        {
            // It belongs to another owner, or to a former one of this name and is not garbage-collected yet.
            collisions = collisions.saturating_add(1);
            continue;
        }
        let mut labels = template
            .metadata
            .as_ref()
            .and_then(|m| m.labels.clone())
            .unwrap_or_default();
        labels.insert(REVISION_HASH.into(), hash);
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(owner.namespace().to_string()),
                labels: Some(labels),
                annotations: owner.metadata().annotations.clone(),
                owner_references: Some(vec![controller_reference(owner)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: next,
        };
        let action = Some(Action::Create(Create::new(revision.clone())));
        return Update {
            revision,
            collisions,
            action,
        };
    }
}

/// Deletes the oldest revisions beyond the limit that are not live: that no pod and no status names. Each has its resourceVersion as
/// precondition: a rollback that is not in the cache yet has changed the number of the revision that is live again.
pub fn truncate(
    revisions: &[Shared<ControllerRevision>],
    live: &BTreeSet<String>,
    limit: Option<i32>,
) -> Vec<Action> {
    let Some(limit) = limit.and_then(|l| usize::try_from(l).ok()) else {
        return Vec::new();
    };
    let old: Vec<_> = revisions
        .iter()
        .filter(|r| !live.contains(r.object().name()))
        .collect();
    let surplus = old.len().saturating_sub(limit);
    let surplus_revisions = old.into_iter().take(surplus);
    surplus_revisions
        .map(|r| {
            Action::Delete(Delete {
                resource_version: r.metadata.resource_version.clone(),
                ..Delete::of(r.object())
            })
        })
        .collect()
}

/// The value of a label, or `""`.
pub fn label<'a>(labels: Option<&'a BTreeMap<String, String>>, key: &str) -> &'a str {
    labels.and_then(|l| l.get(key)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::object;

    #[test]
    fn revisions_are_deleted_only_at_the_version_that_is_not_live() {
        let revision = |name: &str, version: &str| {
            let meta = json!({"namespace": "a", "name": name, "resourceVersion": version});
            let object = object::<ControllerRevision>(json!({"metadata": meta, "revision": 1}));
            Shared::<ControllerRevision>::new(object).unwrap()
        };
        let all = [revision("r1", "7"), revision("r2", "8"), revision("r3", "9")];
        let live = BTreeSet::from(["r2".to_string()]);
        let deleted: Vec<_> = truncate(&all, &live, Some(1))
            .into_iter()
            .map(|action| match action {
                Action::Delete(delete) => (delete.key.name, delete.resource_version),
                other => panic!("expected a deletion: {other}"),
            })
            .collect();
        assert_eq!(deleted, [("r1".to_string(), Some("7".to_string()))]);
    }

    #[test]
    fn a_revision_restores_the_template_that_it_was_created_from() {
        let template: PodTemplateSpec = serde_json::from_value(json!({
            "metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap();
        let revision = ControllerRevision {
            data: Some(RawExtension(data(&template))),
            ..ControllerRevision::default()
        };
        assert_eq!(template_of(&revision), Some(template.clone()));
        assert_ne!(hash(&data(&template), 0), hash(&data(&template), 1));
        let broken = ControllerRevision {
            data: Some(RawExtension(json!({"spec": 1}))),
            ..ControllerRevision::default()
        };
        assert_eq!(template_of(&broken), None);
    }
}
