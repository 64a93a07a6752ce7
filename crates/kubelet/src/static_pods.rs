//! Static pods, which a node runs from files in a directory, and their mirror pods in the API.
//!
//! A static pod's UID is a hash of its file's content: a changed file is another pod. The mirror pod has a UID from the API
//! server and names the static pod by that hash. Changes of a mirror pod have no effect: only the file decides what runs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod;
use knarr_api::kinds::pod::resources::qos_class;
use knarr_api::well_known::{CONFIG_SOURCE, MIRROR_ANNOTATION};
use knarr_apimachinery::codec::{DecodeError, StrictError};
use knarr_apimachinery::field::ErrorList;
use knarr_apimachinery::ids::NodeName;
use serde_json::Value;

const HASH: &str = "kubernetes.io/config.hash";
const SEEN: &str = "kubernetes.io/config.seen";

/// Why a file defines no pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("{field}: {found:?}: expected {expected}")]
    Unexpected {
        field: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("{0}")]
    Encode(String),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("{0}: unknown field")]
    UnknownField(String),
    #[error("metadata.name: Required value: name is needed for the pod")]
    NameRequired,
    /// The errors of the fields.
    #[error("{}", .0.join(", "))]
    Invalid(Vec<String>),
}

/// The rules of pods: the API server's, which does not see a static pod before it runs.
#[derive(Clone, Copy, Debug)]
pub struct PodRules {
    pub set_defaults: fn(&mut Pod),
    pub validate: fn(&Pod) -> ErrorList,
}

/// The pod that a file defines.
pub fn read(
    document: &Value,
    file: &str,
    node_name: &NodeName,
    now: Timestamp,
    rules: PodRules,
) -> Result<Pod, ManifestError> {
    for (field, expected) in [("apiVersion", "v1"), ("kind", "Pod")] {
        let found = document.get(field).and_then(Value::as_str).unwrap_or("");
        if found != expected {
            return Err(ManifestError::Unexpected {
                field,
                found: found.into(),
                expected,
            });
        }
    }
    let json = serde_json::to_vec(document).map_err(|e| ManifestError::Encode(e.to_string()))?;
    let (mut pod, strict_errors) = pod::read(&json)?;
    let mut unknown = strict_errors.iter().filter_map(|error| match error {
        StrictError::UnknownField(field) => Some(field),
        StrictError::DuplicateField(_) => None,
    });
    if let Some(field) = unknown.next() {
        return Err(ManifestError::UnknownField(field.clone()));
    }
    let meta = &mut pod.metadata;
    let name = meta.name.clone().filter(|name| !name.is_empty());
    let name = name.ok_or(ManifestError::NameRequired)?;
    if meta.uid.as_deref().is_none_or(str::is_empty) {
        meta.uid = Some(hash(&[
            &json,
            b"host:",
            node_name.as_bytes(),
            b"file:",
            file.as_bytes(),
        ]));
    }
    meta.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    if meta.namespace.as_deref().is_none_or(str::is_empty) {
        meta.namespace = Some("default".into());
    }
    // Only the mirror pod has a generation, and its spec never changes; a static pod's status has no observedGeneration.
    meta.generation = None;
    let uid = meta.uid.clone().unwrap_or_default();
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(HASH.into(), uid);
    annotations.insert(SEEN.into(), now.to_string());
    annotations.insert(CONFIG_SOURCE.into(), "file".into());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.into());
    let everything = Toleration {
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&everything) {
        tolerations.push(everything);
    }
    (rules.set_defaults)(&mut pod);
    pod.status = None;
    let errors = (rules.validate)(&pod);
    if !errors.is_empty() {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        return Err(ManifestError::Invalid(texts));
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".into()),
        qos_class: pod.spec.as_ref().map(|spec| qos_class(spec).into()),
        ..PodStatus::default()
    });
    Ok(pod)
}

/// The pod with its previous status when it starts again: its containers' last states, or else their numbers of runs. The
/// restart counts continue from there, as in upstream's kubelet, which finds the exited containers.
pub fn with_previous_status(pod: &Pod, last: Option<&PodStatus>, runs: &BTreeMap<String, i32>) -> Pod {
    let counted = |containers: &[Container]| {
        let ran = containers.iter().filter_map(|c| {
            let restart_count = runs.get(&c.name).copied().filter(|count| *count > 0)?;
            Some(ContainerStatus {
                name: c.name.clone(),
                restart_count,
                ..ContainerStatus::default()
            })
        });
        Some(ran.collect::<Vec<_>>()).filter(|known| !known.is_empty())
    };
    let spec = pod.spec.as_ref();
    let mut pod_again = pod.clone();
    let status = pod_again.status.get_or_insert_default();
    if let Some(last) = last {
        status.container_statuses.clone_from(&last.container_statuses);
        status
            .init_container_statuses
            .clone_from(&last.init_container_statuses);
    } else {
        status.container_statuses = spec.and_then(|s| counted(&s.containers));
        let init = spec.and_then(|s| s.init_containers.as_deref());
        status.init_container_statuses = init.and_then(counted);
    }
    pod_again
}

/// FNV-1a, 128 bits: the same on every platform.
fn hash(parts: &[&[u8]]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter());
    let hash = bytes.fold(OFFSET, |h, b| (h ^ u128::from(*b)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

/// The mirror pod of a static pod. Its owner is the node, with which it is deleted.
pub fn mirror(pod: &Pod, node_uid: Option<&str>) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let hash = annotations.get(HASH).cloned().unwrap_or_default();
    annotations.insert(MIRROR_ANNOTATION.into(), hash);
    let spec = pod.spec.clone();
    let node = spec.as_ref().and_then(|s| s.node_name.clone());
    let owner = node.zip(node_uid).map(|(name, uid)| OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name,
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    });
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: owner.map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The hash of a mirror pod's static pod; `None` for other pods.
pub fn mirrored_hash(pod: &Pod) -> Option<&str> {
    annotation(pod.metadata.annotations.as_ref(), MIRROR_ANNOTATION)
}

fn annotation<'a>(annotations: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    annotations?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use knarr_strategy::Strategy;

    use super::*;

    const RULES: PodRules = PodRules {
        set_defaults: Strategy::set_defaults,
        validate: Strategy::validate,
    };
    use serde_json::json;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn file() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "app"}]}})
    }

    #[test]
    fn l1_a_file_is_the_same_pod_until_its_content_changes() {
        let pod = read(&file(), "/a/web.yaml", &"n1".into(), now(), RULES).unwrap();
        let meta = &pod.metadata;
        assert_eq!(meta.name.as_deref(), Some("web-n1"));
        assert_eq!(meta.namespace.as_deref(), Some("default"));
        assert_eq!(meta.generation, None);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Always"), "defaults are set");
        assert_eq!(spec.node_name.as_deref(), Some("n1"));
        let tolerated = &spec.tolerations.as_ref().unwrap()[0];
        assert_eq!(tolerated.effect.as_deref(), Some("NoExecute"));
        let uid = |document: &Value, file: &str| {
            read(document, file, &"n1".into(), now(), RULES)
                .unwrap()
                .metadata
                .uid
        };
        assert_eq!(uid(&file(), "/a/web.yaml"), meta.uid);
        assert_ne!(uid(&file(), "/a/other.yaml"), meta.uid);
        let mut changed = file();
        changed["spec"]["containers"][0]["image"] = json!("app:2");
        assert_ne!(uid(&changed, "/a/web.yaml"), meta.uid);
        assert!(crate::admission::is_critical(&pod), "it is not evicted");
        // A published test vector of FNV-1a: an upgrade changes no UID.
        assert_eq!(hash(&[b"foo", b"bar"]), "343e1662793c64bf6f0d3597ba446f18");
    }

    #[test]
    fn l1_a_static_pod_has_the_qos_class_of_its_resources() {
        let all = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!({"requests": all, "limits": all});
        for (of_container, of_pod, want) in [
            (json!({}), None, "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), None, "Burstable"),
            (guaranteed.clone(), None, "Guaranteed"),
            (json!({}), Some(guaranteed), "Guaranteed"),
        ] {
            let mut document = file();
            document["spec"]["containers"][0]["resources"] = of_container;
            if let Some(resources) = of_pod {
                document["spec"]["resources"] = resources;
            }
            let pod = read(&document, "f", &"n1".into(), now(), RULES).unwrap();
            let class = pod.status.unwrap().qos_class;
            assert_eq!(class.as_deref(), Some(want), "{document}");
        }
    }

    #[test]
    fn l1_errors_of_a_file_are_named() {
        let with = |path: &str, value: Value| {
            let mut document = file();
            *document.pointer_mut(path).unwrap() = value;
            read(&document, "f", &"n1".into(), now(), RULES)
                .unwrap_err()
                .to_string()
        };
        for (path, value, want) in [
            ("/kind", json!("Job"), "kind: \"Job\": expected Pod"),
            ("/metadata/name", json!(""), "metadata.name: Required value"),
            ("/spec/containers", json!([]), "spec.containers: Required value"),
            (
                "/metadata",
                json!({"name": "web", "labelz": {}}),
                "metadata.labelz: unknown field",
            ),
            ("/spec/containers/0/name", json!(3), "cannot unmarshal number"),
        ] {
            let why = with(path, value);
            assert!(why.contains(want), "{path}: {why}");
        }
    }

    #[test]
    fn l4_a_static_pod_starts_again_with_its_previous_status() {
        let mut document = file();
        document["spec"]["initContainers"] = json!([{"name": "i", "image": "app"}]);
        let pod = read(&document, "f", &"n1".into(), now(), RULES).unwrap();
        let counts = |pod: &Pod| {
            let status = pod.status.as_ref().unwrap();
            let of = |list: &Option<Vec<ContainerStatus>>| list.as_ref().map(|l| l[0].restart_count);
            (
                of(&status.init_container_statuses),
                of(&status.container_statuses),
            )
        };
        assert_eq!(with_previous_status(&pod, None, &BTreeMap::new()), pod);
        let runs = [
            ("c".to_string(), 3),
            ("i".to_string(), 0),
            ("gone".to_string(), 9),
        ]
        .into();
        let counted = with_previous_status(&pod, None, &runs);
        assert_eq!(counts(&counted), (None, Some(3)));
        let named = counted.status.unwrap().container_statuses.unwrap();
        assert_eq!(named[0].name, "c");
        let last: PodStatus = serde_json::from_value(json!({
            "phase": "Failed", "reason": "Evicted",
            "containerStatuses": [{"name": "c", "restartCount": 1}],
            "initContainerStatuses": [{"name": "i", "restartCount": 2}],
        }))
        .unwrap();
        let again = with_previous_status(&pod, Some(&last), &runs);
        assert_eq!(counts(&again), (Some(2), Some(1)));
        let status = again.status.unwrap();
        assert_eq!((status.phase.as_deref(), status.reason), (Some("Pending"), None));
    }

    #[test]
    fn l13_a_mirror_names_its_pod_and_belongs_to_its_node() {
        let pod = read(&file(), "f", &"n1".into(), now(), RULES).unwrap();
        let mirror = mirror(&pod, Some("node-uid"));
        assert_eq!(mirrored_hash(&mirror), pod.metadata.uid.as_deref());
        assert_eq!(mirrored_hash(&pod), None);
        let names = |pod: &Pod| {
            let meta = pod.metadata.clone();
            (meta.name, meta.namespace, meta.labels)
        };
        assert_eq!(names(&mirror), names(&pod));
        assert_eq!(mirror.metadata.uid, None, "the API server sets it");
        assert_eq!(mirror.metadata.owner_references.unwrap()[0].uid, "node-uid");
        assert_eq!(mirror.spec, pod.spec);
    }
}
