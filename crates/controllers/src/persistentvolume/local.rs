//! Volumes that are directories of a node: the provisioner of the default class `local`.
//!
//! A claim of a class with this provisioner waits for its first consumer. When the scheduler has selected the pod's node, the
//! claim gets a volume there: a directory in the directory that an annotation of the node names. The node creates it when a pod
//! first needs it. When the volume is deleted, a finalizer keeps it until the node has removed the directory; if the node does
//! not exist any more there is nothing to clean up.
//!
//! A directory has no size: the requested size is recorded, and increased on request, but not enforced.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    LocalVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::{LOCAL_FINALIZER, LOCAL_NODE, LOCAL_PATH, LOCAL_PROVISIONER};
use knarr_api::registry;
use knarr_api::well_known::{HOSTNAME, SELECTED_NODE};
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::finalizer;

use super::{PROVISIONED_BY, STORAGE, annotation, class_of_claim, matching, volume_name};
use crate::action::{Action, Create, LiveCheck, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};

pub const PROVISIONER: &str = LOCAL_PROVISIONER;
/// The access modes that a directory of one node supports.
const MODES: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];

/// The StorageClass that is created in every cluster.
pub fn default_class() -> StorageClass {
    StorageClass {
        metadata: ObjectMeta {
            name: Some("local".into()),
            annotations: Some(BTreeMap::from([(
                "storageclass.kubernetes.io/is-default-class".to_string(),
                "true".to_string(),
            )])),
            ..ObjectMeta::default()
        },
        provisioner: PROVISIONER.into(),
        reclaim_policy: Some("Delete".into()),
        volume_binding_mode: Some("WaitForFirstConsumer".into()),
        allow_volume_expansion: Some(true),
        ..StorageClass::default()
    }
}

/// Provisions volumes for claims. Its keys are claims.
pub struct LocalProvisioner;

impl Controller for LocalProvisioner {
    fn name(&self) -> &'static str {
        PROVISIONER
    }

    fn account(&self) -> &'static str {
        "knarr-local-provisioner"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::PERSISTENT_VOLUME_CLAIM,
            &registry::PERSISTENT_VOLUME,
            &registry::STORAGE_CLASS,
            &registry::NODE,
        ]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        changed
            .key_of(&registry::PERSISTENT_VOLUME_CLAIM)
            .into_iter()
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (view, key) = (context.view, context.key);
        let Some(claim) = view.get_as::<PersistentVolumeClaim>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if claim.metadata.deletion_timestamp.is_some() || context.failure.is_some() {
            return Vec::new();
        }
        let name = volume_name(&claim);
        if !name.is_empty() {
            let volume = view.get_as::<PersistentVolume>("", name);
            return volume.and_then(|v| expanded(&v, &claim)).into_iter().collect();
        }
        let is_requested = super::PROVISIONER
            .iter()
            .any(|key| annotation(&claim.metadata, key) == Some(PROVISIONER));
        let Some(class) = view.get_as::<StorageClass>("", class_of_claim(&claim)) else {
            return Vec::new();
        };
        if !is_requested || class.provisioner != PROVISIONER {
            return Vec::new();
        }
        match provision_volume(view, &claim, &class) {
            Ok(volume) => vec![Action::Create(volume)],
            Err(ProvisionError::Never(why)) => {
                let about = reference(claim.object());
                vec![Action::warning(&about, "ProvisioningFailed", why)]
            }
            Err(ProvisionError::OtherNode(why)) => {
                // The scheduler has to select a node again.
                let mut again = (*claim).clone();
                super::remove_annotation(&mut again.metadata, SELECTED_NODE);
                let about = reference(claim.object());
                vec![
                    Action::warning(&about, "ProvisioningFailed", why),
                    Action::update(again),
                ]
            }
        }
    }
}

enum ProvisionError {
    Never(String),
    /// Another node may be able to provide the volume.
    OtherNode(String),
}

/// The volume for this claim.
fn provision_volume(
    view: &dyn View,
    claim: &Shared<PersistentVolumeClaim>,
    class: &StorageClass,
) -> Result<Create, ProvisionError> {
    let never = |why: String| Err(ProvisionError::Never(why));
    let spec = claim.spec.clone().unwrap_or_default();
    let Some(node_name) = annotation(&claim.metadata, SELECTED_NODE) else {
        return never(format!(
            "{PROVISIONER} provisions volumes on the node of the claim's first pod: the StorageClass must have volumeBindingMode WaitForFirstConsumer"
        ));
    };
    if spec.volume_mode.as_deref() == Some("Block") {
        return never(format!(
            "{PROVISIONER} provisions directories: volumeMode Block is not supported"
        ));
    }
    let modes = spec.access_modes.unwrap_or_default();
    if let Some(mode) = modes.iter().find(|m| !MODES.contains(&m.as_str())) {
        return never(format!(
            "{PROVISIONER} provisions volumes of one node: access mode {mode} is not supported, expected one of {}",
            MODES.join(", ")
        ));
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return never(format!(
            "{PROVISIONER} provisions empty volumes: dataSource is not supported"
        ));
    }
    let Some(node) = view.get_as::<Node>("", node_name) else {
        return Err(ProvisionError::OtherNode(format!("node {node_name:?} not found")));
    };
    let Some(directory) = annotation(&node.metadata, LOCAL_PATH) else {
        return never(format!(
            "node {node_name:?} has no directory for local volumes (annotation {LOCAL_PATH})"
        ));
    };
    let labels = node.metadata.labels.as_ref();
    let host = labels.and_then(|l| l.get(HOSTNAME)).cloned();
    let name = format!("pvc-{}", claim.object().uid());
    let capacity = matching::requested(claim).to_wire();
    let volume = PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([(LOCAL_NODE.to_string(), node_name.to_string())])),
            annotations: Some(BTreeMap::from([(
                PROVISIONED_BY.to_string(),
                PROVISIONER.to_string(),
            )])),
            finalizers: Some(vec![LOCAL_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(modes),
            capacity: Some(BTreeMap::from([(STORAGE.to_string(), capacity)])),
            claim_ref: Some(reference(claim.object())),
            local: Some(LocalVolumeSource {
                path: format!("{}/{name}", directory.trim_end_matches('/')),
                fs_type: None,
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector {
                    node_selector_terms: vec![NodeSelectorTerm {
                        match_expressions: Some(vec![NodeSelectorRequirement {
                            key: HOSTNAME.into(),
                            operator: "In".into(),
                            values: Some(vec![host.unwrap_or_else(|| node_name.to_string())]),
                        }]),
                        match_fields: None,
                    }],
                }),
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: Some("Filesystem".into()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    Ok(Create {
        ignore_already_exists: true,
        report: Some(Report {
            about: reference(claim.object()),
            done: Some(("ProvisioningSucceeded", "Successfully provisioned volume ".into())),
            failed: ("ProvisioningFailed", "failed to provision volume: ".into()),
        }),
        ..Create::new(volume)
    })
}

/// The volume with the size that its claim now requests.
fn expanded(volume: &Shared<PersistentVolume>, claim: &PersistentVolumeClaim) -> Option<Action> {
    let ours = annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER);
    if !ours || matching::capacity(volume) >= matching::requested(claim) {
        return None;
    }
    let mut changed = (**volume).clone();
    let capacity = changed
        .spec
        .get_or_insert_default()
        .capacity
        .get_or_insert_default();
    capacity.insert(STORAGE.into(), matching::requested(claim).to_wire());
    Some(Action::update(changed))
}

/// Removes the finalizer from deleted volumes whose node does not exist. Its keys are volumes.
pub struct LocalVolumeCleanup;

impl Controller for LocalVolumeCleanup {
    fn name(&self) -> &'static str {
        PROVISIONER
    }

    fn queue(&self) -> &'static str {
        "knarr.io/local-cleanup"
    }

    fn account(&self) -> &'static str {
        "knarr-local-provisioner"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::PERSISTENT_VOLUME, &registry::NODE]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::PERSISTENT_VOLUME) {
            return vec![key];
        }
        let (Some(node), None) = (changed.old, changed.new) else {
            return Vec::new();
        };
        let volumes = view.list_as::<PersistentVolume>("");
        let there = volumes.iter().filter(|v| node_of(v) == Some(node.name()));
        there.map(|v| ObjectKey::of(v.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(volume) = context.view.get_as::<PersistentVolume>("", &context.key.name) else {
            return Vec::new();
        };
        let held = finalizer::contains(&volume.metadata, LOCAL_FINALIZER);
        let Some(node) = node_of(&volume) else {
            return Vec::new();
        };
        let there = context.view.get(&registry::NODE, "", node).is_some();
        if volume.metadata.deletion_timestamp.is_none() || !held || there || context.failure.is_some() {
            return Vec::new();
        }
        let mut changed = (*volume).clone();
        finalizer::remove(&mut changed.metadata, LOCAL_FINALIZER);
        let absent = Action::Require(LiveCheck::Absent {
            kind: registry::NODE.clone(),
            key: ObjectKey::new("", node),
        });
        vec![absent, Action::update(changed)]
    }
}

/// The node that has a volume's directory.
fn node_of(volume: &PersistentVolume) -> Option<&str> {
    let labels = volume.metadata.labels.as_ref()?;
    labels.get(LOCAL_NODE).map(String::as_str)
}
