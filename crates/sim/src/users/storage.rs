//! What users do with disks that only one node, or one pod, may use: they create PersistentVolumes, mount them in
//! pods of StatefulSets, in Deployments of one pod and in bare pods, and delete pods on lost nodes by force.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Error, ListOptions};
use serde_json::{Value, json};

use super::workloads::{GeneratedWorkload, exit_behavior, pod_spec, stateful_set_of, template};
use super::{NAMESPACE, Users, Workload};
use crate::disks::SERVER;
use crate::finding::Finding;
use crate::random::Stream;
use crate::world::node_of;

const CLASS: &str = "shared";
/// The most StatefulSets with a claim for each pod, and Deployments of one pod.
const SETS: u64 = 2;
const SINGLES: u64 = 2;
/// Bare pods with a disk, every second for that pod alone.
const DATA_PODS: u64 = 4;
/// Disks for one node, and for one pod: as many as there can be claims.
const FOR_A_NODE: u64 = SETS * super::workloads::REPLICAS + SINGLES / 2 + DATA_PODS / 2;
const FOR_A_POD: u64 = SINGLES / 2 + DATA_PODS / 2;

/// The claim of a Deployment or bare pod of this name, and whether it is for one pod.
fn claim_of(name: &str) -> Option<(String, bool)> {
    let number: u64 = name
        .strip_prefix("data")
        .or(name.strip_prefix("single"))?
        .parse()
        .ok()?;
    Some((format!("of-{name}"), number.is_multiple_of(2)))
}

fn mode(one_pod: bool) -> &'static str {
    match one_pod {
        true => "ReadWriteOncePod",
        false => "ReadWriteOnce",
    }
}

fn claim(name: &str, one_pod: bool) -> Value {
    json!({
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "storageClassName": CLASS,
            "accessModes": [mode(one_pod)],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// All containers of a pod mount the volume.
pub(super) fn mount(spec: &mut Value) {
    for containers in ["containers", "initContainers"] {
        for container in spec[containers].as_array_mut().into_iter().flatten() {
            container["volumeMounts"] = json!([{"name": "disk", "mountPath": "/disk"}]);
        }
    }
}

/// Adds the disk to a pod whose name has a claim.
pub(super) fn give_disk(name: &str, spec: &mut Value) {
    if let Some((claim, _)) = claim_of(name) {
        mount(spec);
        spec["volumes"] = json!([{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]);
    }
}

fn set(chance: &mut Stream) -> GeneratedWorkload {
    let mut drawn = stateful_set_of(format!("vol{}", chance.between(1, SETS)), chance);
    mount(&mut drawn.object["spec"]["template"]["spec"]);
    let mut template = claim("disk", false);
    template["metadata"] = json!({"name": "disk"});
    drawn.object["spec"]["volumeClaimTemplates"] = json!([template]);
    drawn
}

fn single(chance: &mut Stream) -> GeneratedWorkload {
    let name = format!("single{}", chance.between(1, SINGLES));
    let exit_behavior = exit_behavior(chance);
    let mut spec = pod_spec(chance, exit_behavior, "Always", false);
    give_disk(&name, &mut spec);
    GeneratedWorkload {
        workload: Workload::Single,
        object: json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {
                "replicas": 1,
                // Another pod at the same time would wait for its disk.
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": {"app": name}},
                "template": template(&name, spec),
            },
        }),
        summary: format!("one pod with a disk that {exit_behavior}"),
        pods: 1,
        name,
    }
}

impl Users {
    /// Creates the disks, and the claims that are not made from a template.
    pub async fn create_disks(&mut self) -> Result<(), Error> {
        let class = json!({
            "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
        });
        self.create(&registry::STORAGE_CLASS, class).await?;
        for number in 1..=FOR_A_NODE + FOR_A_POD {
            let (name, one_pod) = (format!("disk{number}"), number > FOR_A_NODE);
            let path = format!("/{name}");
            self.observer.add_disk(&path, one_pod);
            let volume = json!({
                "metadata": {"name": name},
                "spec": {
                    "storageClassName": CLASS,
                    "accessModes": [mode(one_pod)],
                    "capacity": {"storage": "1Gi"},
                    "nfs": {"server": SERVER, "path": path},
                },
            });
            self.create(&registry::PERSISTENT_VOLUME, volume).await?;
        }
        let pods = (1..=DATA_PODS).map(|n| format!("data{n}"));
        for name in pods.chain((1..=SINGLES).map(|n| format!("single{n}"))) {
            if let Some((name, one_pod)) = claim_of(&name) {
                self.create(&registry::PERSISTENT_VOLUME_CLAIM, claim(&name, one_pod))
                    .await?;
            }
        }
        Ok(())
    }

    /// One user action with a disk.
    pub async fn act_with_disks(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let done = match chance.between(0, 9) {
            0..3 => self.create_drawn(set(chance)).await,
            3 => self.create_drawn(single(chance)).await,
            4..6 => {
                let name = format!("data{}", chance.between(1, DATA_PODS));
                self.create_named(name).await
            }
            6 => self.move_away(chance, None).await,
            _ => self.move_away(chance, Some(0)).await,
        };
        match done {
            // Another request was faster, or it exists.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    /// Deletes a pod with a disk, one of a lost node if there is one, and creates another in its place at once.
    async fn move_away(&mut self, chance: &mut Stream, grace: Option<i64>) -> Result<(), Error> {
        let mut pods = self.pods().await?;
        pods.retain(|pod| {
            pod.get::<Pod>()
                .is_some_and(|p| has_disk(p) && !node_of(p).is_empty())
        });
        let lost: Vec<_> = pods
            .iter()
            .filter(|pod| {
                pod.get::<Pod>()
                    .is_some_and(|p| self.observer.is_silent(node_of(p)))
            })
            .cloned()
            .collect();
        let of = if lost.is_empty() { &pods } else { &lost };
        let Some(pod) = chance.pick(of).cloned() else {
            return Ok(());
        };
        self.delete(&pod, grace).await?;
        if grace == Some(0) && claim_of(pod.name()).is_some() {
            return self.create_named(pod.name().to_string()).await;
        }
        Ok(())
    }

    /// At rest: an attachment of a volume that no pod of its node uses.
    pub async fn stray_attachment(&self) -> Result<Option<Finding>, Error> {
        let attachments = self
            .api
            .list(&registry::VOLUME_ATTACHMENT, ListOptions::default());
        let attachments = attachments.await?.items;
        if attachments.is_empty() {
            return Ok(None);
        }
        let claims = self
            .api
            .list(&registry::PERSISTENT_VOLUME_CLAIM, ListOptions::default());
        let claims = claims.await?.items;
        let volume_of = |name: &str| {
            let claim = claims.iter().find(|c| c.name() == name)?;
            claim
                .get::<PersistentVolumeClaim>()?
                .spec
                .as_ref()?
                .volume_name
                .clone()
        };
        let mut used = BTreeSet::new();
        for pod in self.pods().await? {
            let Some(pod) = pod.get::<Pod>().filter(|pod| !is_terminal(pod)) else {
                continue;
            };
            let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
            let claims = volumes.filter_map(|v| v.persistent_volume_claim.as_ref());
            let node = node_of(pod).to_string();
            used.extend(claims.filter_map(|c| Some((node.clone(), volume_of(&c.claim_name)?))));
        }
        Ok(attachments.iter().find_map(|object| {
            let attachment = object.get::<VolumeAttachment>()?;
            let volume = attachment.spec.source.persistent_volume_name.clone()?;
            let node = attachment.spec.node_name.clone();
            let stray = !used.contains(&(node.clone(), volume.clone()));
            stray.then(|| Finding(format!("{volume} is still attached to {node}, for no pod")))
        }))
    }
}

fn has_disk(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.any(|v| v.persistent_volume_claim.is_some())
}
