//! Processes of the previous version, and their upgrade: in the order of Kubernetes' version skew policy, first API
//! servers, then controllers, then nodes, each restarted as this version and never back as the previous one.
//!
//! What the previous version does not do:
//! - its kubelets write neither `knarr.io/started-by` nor `knarr.io/used-by`, declare no features of their node, and make containers
//!   without the annotation `knarr.io/self-fenced`;
//! - its API servers store pods without `metadata.generation`, and what components observed of it is not reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::USED_BY;
use knarr_api::{AnyObject, k8s_openapi};
use knarr_client::Patch;
use knarr_store::{Op, Txn};
use serde_json::Value;
use tokio::time::sleep;

use crate::coverage::Scope;
use crate::faults::Faults;
use crate::random::Stream;
use crate::switches::Switch;

/// The kubelet that started a pod last, which the kubelet writes before it does.
pub(crate) const STARTED_BY: &str = "knarr.io/started-by";
/// On a container: how its node terminates it when it is cut off.
const SELF_FENCED: &str = "knarr.io/self-fenced";
/// The longest time that a process is stopped while it is replaced: an image has to be pulled, a node drained.
const AWAY_MILLIS: u64 = 20_000;
const PODS: &[u8] = b"/registry/core/pods/";

/// Whether a process is of the previous version.
#[derive(Debug, Default)]
pub(crate) struct Version(AtomicBool);

impl Version {
    pub fn is_former(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set_former(&self, is_former: bool) {
        self.0.store(is_former, Ordering::Relaxed);
    }
}

/// What a kubelet or a controller of the previous version does not write.
pub(crate) fn as_former_writes(object: &mut dyn AnyObject) {
    let any = object.as_any_mut();
    if let Some(node) = any.downcast_mut::<ApiNode>() {
        if let Some(status) = &mut node.status {
            status.declared_features = None;
        }
    } else if let Some(attachment) = any.downcast_mut::<VolumeAttachment>()
        && let Some(annotations) = &mut attachment.metadata.annotations
    {
        annotations.remove(USED_BY);
    }
}

/// Whether a patch only announces that a pod is going to be started.
pub(crate) fn is_announcement(patch: &Patch) -> bool {
    let Patch::Merge(patch) = patch else { return false };
    let announced = patch
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(STARTED_BY));
    announced.is_some()
}

/// The annotations of a container that a kubelet of the previous version creates.
pub(crate) fn as_former_makes(config: &mut knarr_node::runtime::ContainerConfig) {
    config.annotations.remove(SELF_FENCED);
}

/// A transaction as an API server of the previous version requests it.
pub(crate) fn as_former_stores(mut txn: Txn) -> Txn {
    for op in &mut txn.ops {
        if let Op::Put { key, value } = op
            && key.starts_with(PODS)
            && let Some(changed) = without_generation(value)
        {
            *value = changed;
        }
    }
    txn
}

fn without_generation(json: &Bytes) -> Option<Bytes> {
    let mut pod: Value = serde_json::from_slice(json).ok()?;
    pod.get_mut("metadata")?.as_object_mut()?.remove("generation")?;
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("observedGeneration");
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
            condition.remove("observedGeneration");
        }
    }
    serde_json::to_vec(&pod).ok().map(Bytes::from)
}

/// The kubelet that started the pod last, by its annotation.
pub(crate) fn started_by(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(STARTED_BY).map(String::as_str)
}

impl Faults {
    /// All processes but the users' own API server, in the order in which they are upgraded.
    fn versions(&self) -> Vec<Arc<Version>> {
        let servers = self.servers.iter().skip(1).map(|server| server.version.clone());
        let controls = self.controls.iter().map(|control| control.version.clone());
        let nodes = self.nodes.iter().map(|node| node.version.clone());
        servers.chain(controls).chain(nodes).collect()
    }

    /// Some of the last of them are of the previous version. Call it before they are started.
    pub fn begin_with_former(&self, chance: &mut Stream) {
        let versions = self.versions();
        let last = u64::try_from(versions.len()).unwrap_or_default();
        let upgraded = usize::try_from(chance.between(0, last / 2)).unwrap_or_default();
        for version in versions.iter().skip(upgraded) {
            version.set_former(true);
        }
        self.observer.note(&format!(
            "{} processes are of the version before",
            versions.len() - upgraded
        ));
    }

    /// Restarts the next one as this version.
    pub fn upgrade_next(&self, chance: &mut Stream) {
        let away = chance.millis(100, AWAY_MILLIS);
        if let Some(next) = self.versions().iter().position(|version| version.is_former()) {
            self.upgrade(next, away);
            self.report_health();
        }
    }

    /// Restarts all that are left.
    pub fn upgrade_all(&self) {
        for (number, version) in self.versions().iter().enumerate() {
            if version.is_former() {
                self.upgrade(number, Duration::ZERO);
            }
        }
    }

    fn upgrade(&self, number: usize, away: Duration) {
        let servers = self.servers.len().saturating_sub(1);
        let note = |name: &str| {
            self.observer
                .note(&format!("{name} is upgraded within {} ms", away.as_millis()));
        };
        if let Some(server) = self.servers.get(number + 1).cloned() {
            self.observer.strikes(Switch::Upgrade, Scope::Cluster);
            note(&server.name);
            server.crash();
            server.version.set_former(false);
            tokio::spawn(async move {
                sleep(away).await;
                server.revive().await;
            });
        } else if let Some(control) = self.controls.get(number - servers).cloned() {
            self.observer.strikes(Switch::Upgrade, Scope::Cluster);
            note(&control.network.name);
            control.crash();
            control.version.set_former(false);
            tokio::spawn(async move {
                sleep(away).await;
                control.start();
            });
        } else if let Some(node) = self.nodes.get(number - servers - self.controls.len()).cloned() {
            self.observer.strikes(Switch::Upgrade, Scope::Node(&node.name));
            note(&node.name);
            node.crash();
            node.version.set_former(false);
            tokio::spawn(async move {
                sleep(away).await;
                node.start();
            });
        }
    }
}
