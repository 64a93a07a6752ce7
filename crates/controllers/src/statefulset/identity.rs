//! The identity of a StatefulSet's pod: its ordinal, name and labels, and the new pod.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};
use knarr_api::Shared;
use knarr_api::k8s_openapi;

use crate::history::{REVISION_HASH, label};
use crate::pod;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The first ordinal.
pub fn start(spec: &StatefulSetSpec) -> i64 {
    let start = spec.ordinals.as_ref().and_then(|o| o.start);
    i64::from(start.unwrap_or(0))
}

pub fn replicas(spec: &StatefulSetSpec) -> i64 {
    i64::from(spec.replicas.unwrap_or(1).max(0))
}

/// Whether the set should have a pod of this ordinal (upstream: podInOrdinalRange).
pub fn is_in_ordinal_range(spec: &StatefulSetSpec, ordinal: i64) -> bool {
    (start(spec)..start(spec) + replicas(spec)).contains(&ordinal)
}

/// The ordinal in a pod's name, if the name belongs to this set: 3 for `db-3` of `db`.
pub fn ordinal(set: &str, pod: &str) -> Option<i64> {
    let digits = pod.strip_prefix(set)?.strip_prefix('-')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<i32>().ok().map(i64::from)
}

/// The revision of the template that a pod was created from.
pub fn revision(pod: &Pod) -> &str {
    label(pod.metadata.labels.as_ref(), REVISION_HASH)
}

/// Whether the pod has the labels of its identity.
pub fn is_labelled(pod: &Pod) -> bool {
    label(pod.metadata.labels.as_ref(), POD_NAME) == pod.metadata.name.as_deref().unwrap_or("")
}

/// Sets the labels of the pod's identity.
pub fn set_labels(pod: &mut Pod, ordinal: i64) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.into(), name);
    labels.insert(POD_INDEX.into(), ordinal.to_string());
}

/// The name of the claim of this template for this pod; zone spreading of volumes uses it, too.
pub fn claim_name(set: &str, template: &str, ordinal: i64) -> String {
    format!("{template}-{set}-{ordinal}")
}

/// The pod of this ordinal from a template.
pub fn new_pod(set: &Shared<StatefulSet>, template: &PodTemplateSpec, revision: &str, ordinal: i64) -> Pod {
    let owner = set.object();
    let mut pod = pod::from_template(owner, template);
    let name = format!("{}-{ordinal}", owner.name());
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    set_labels(&mut pod, ordinal);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(REVISION_HASH.into(), revision.into());

    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    let set_spec = set.spec.as_ref();
    spec.subdomain = set_spec
        .and_then(|s| s.service_name.clone())
        .filter(|s| !s.is_empty());
    let templates = set_spec.and_then(|s| s.volume_claim_templates.as_deref());
    let mut volumes: Vec<Volume> = Vec::new();
    for claim in templates.unwrap_or_default() {
        let template = claim.metadata.name.clone().unwrap_or_default();
        volumes.push(Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(owner.name(), &template, ordinal),
                read_only: None,
            }),
            name: template,
            ..Volume::default()
        });
    }
    if !volumes.is_empty() {
        // A claim's volume replaces the template's volume of the same name.
        let of_template = spec.volumes.take().unwrap_or_default();
        let others = of_template
            .into_iter()
            .filter(|v| !volumes.iter().any(|claimed| claimed.name == v.name))
            .collect::<Vec<_>>();
        volumes.extend(others);
        spec.volumes = Some(volumes);
    }
    pod
}
