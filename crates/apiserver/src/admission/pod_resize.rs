//! PodResizeValidator and NodeDeclaredFeatureValidator: an assigned pod is resized only if its node has enough allocatable
//! resources and declares the features that the resize needs.

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::kinds::pod::resources::{Amounts, RequirementKind, amounts, is_sidecar, pod_resources};
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::quantity::Quantity;

use super::{Admission, Attributes};

pub(super) fn validate(
    admission: &Admission,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let Some(pod) = object.as_any().downcast_ref::<Pod>() else {
        return Ok(());
    };
    let old = attributes.old.and_then(|old| old.get::<Pod>());
    let (Some(spec), Some(Some(was))) = (&pod.spec, old.map(|old| &old.spec)) else {
        return Ok(());
    };
    let node_name = spec.node_name.as_deref().unwrap_or("");
    if node_name.is_empty() || spec == was {
        return Ok(());
    }
    let is_resize = attributes.target.subresource == "resize";
    let features = required_features(was, spec);
    if features.is_empty() && !is_resize {
        return Ok(());
    }
    let denied = |why: &str| attributes.forbidden(&pod.metadata, why);
    let found = admission.cache.get(&registry::NODE, "", node_name);
    let Some(node) = found.as_ref().and_then(|node| node.get::<Node>()) else {
        return Err(denied(&format!("node \"{node_name}\" not found")));
    };
    let declared = node
        .status
        .as_ref()
        .and_then(|s| s.declared_features.as_deref())
        .unwrap_or(&[]);
    let missing: Vec<&str> = features
        .into_iter()
        .filter(|feature| !declared.iter().any(|d| d == feature))
        .collect();
    if !missing.is_empty() {
        return Err(denied(&format!(
            "pod update requires features {} which are not available on node \"{node_name}\"",
            missing.join(", ")
        )));
    }
    if !is_resize {
        return Ok(());
    }
    match infeasible(pod, node) {
        None => Ok(()),
        Some((reason, why)) => {
            let mut error = denied(&why);
            let details = error.status_mut().details.get_or_insert_default();
            details.causes.get_or_insert_default().push(StatusCause {
                reason: Some(reason.into()),
                ..StatusCause::default()
            });
            Err(error)
        }
    }
}

/// The features that the node must declare (`status.declaredFeatures`) for this change.
fn required_features(was: &PodSpec, is: &PodSpec) -> Vec<&'static str> {
    let mut features = Vec::new();
    if was.resources != is.resources {
        features.push("InPlacePodLevelResourcesVerticalScaling");
    }
    let init = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
    let changed = init(was)
        .iter()
        .zip(&init(is))
        .any(|(was, is)| !is_sidecar(was) && was.resources != is.resources);
    if changed {
        features.push("InPlacePodVerticalScalingInitContainers");
    }
    features
}

/// The reason and message why the resize can never succeed on this node.
fn infeasible(pod: &Pod, node: &Node) -> Option<(&'static str, String)> {
    let name = node.metadata.name.as_deref().unwrap_or("");
    let os = node
        .metadata
        .labels
        .as_ref()
        .and_then(|l| l.get("kubernetes.io/os"));
    if let Some(os) = os.filter(|os| *os != "linux") {
        let why = format!("pod resize is only supported on linux nodes, node \"{name}\" is \"{os}\"");
        return Some(("UnsupportedPlatform", why));
    }
    let allocatable = amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
    let requested = pod
        .spec
        .as_ref()
        .map(|spec| pod_resources(spec, RequirementKind::Requests))
        .unwrap_or_default();
    let mut short = Vec::new();
    for (resource, milli) in [("cpu", true), ("memory", false)] {
        let of = |list: &Amounts| list.get(resource).copied().unwrap_or_default();
        let (requested, allocatable) = (of(&requested), of(&allocatable));
        if requested > allocatable {
            let shown = |q: Quantity| if milli { q.milli_value() } else { q.value() };
            short.push(format!(
                "{resource}, requested: {}, allocatable: {}",
                shown(requested),
                shown(allocatable)
            ));
        }
    }
    let why = || {
        format!(
            "node didn't have enough allocatable resources: {}",
            short.join("; ")
        )
    };
    (!short.is_empty()).then(|| ("NodeCapacity", why()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_resize_beyond_the_nodes_allocatable_or_off_linux_is_denied() {
        let pod = |requests: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {}, "spec": {
                "containers": [{"name": "c", "resources": {"requests": requests}}], "overhead": {"cpu": "100m"},
            }}))
            .unwrap()
        };
        let node = |os: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "n", "labels": {"kubernetes.io/os": os}},
                "status": {"allocatable": {"cpu": "1", "memory": "1Ki"}},
            }))
            .unwrap()
        };
        for (pod, node, expected) in [
            (pod(json!({"cpu": "900m", "memory": "1Ki"})), node("linux"), None),
            (
                pod(json!({"cpu": "1", "memory": "2Ki"})),
                node("linux"),
                Some((
                    "NodeCapacity",
                    "node didn't have enough allocatable resources: cpu, requested: 1100, allocatable: 1000; memory, \
requested: 2048, allocatable: 1024",
                )),
            ),
            (
                pod(json!({})),
                node("windows"),
                Some((
                    "UnsupportedPlatform",
                    "pod resize is only supported on linux nodes, node \"n\" is \"windows\"",
                )),
            ),
        ] {
            let found = infeasible(&pod, &node);
            assert_eq!(
                found.as_ref().map(|(reason, why)| (*reason, why.as_str())),
                expected
            );
        }
    }

    #[test]
    fn the_required_features_depend_on_the_changed_containers() {
        let spec = |pod: Value, init: Value, sidecar: Value| -> PodSpec {
            serde_json::from_value(
                json!({"containers": [], "resources": {"requests": pod}, "initContainers": [
                    {"name": "i", "resources": {"requests": init}},
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": sidecar}},
                ]}),
            )
            .unwrap()
        };
        let (one, two) = (json!({"cpu": "1"}), json!({"cpu": "2"}));
        let was = spec(one.clone(), one.clone(), one.clone());
        for (is, expected) in [
            (was.clone(), vec![]),
            (spec(one.clone(), one.clone(), two.clone()), vec![]),
            (
                spec(two.clone(), two, one),
                vec![
                    "InPlacePodLevelResourcesVerticalScaling",
                    "InPlacePodVerticalScalingInitContainers",
                ],
            ),
        ] {
            assert_eq!(required_features(&was, &is), expected);
        }
    }
}
