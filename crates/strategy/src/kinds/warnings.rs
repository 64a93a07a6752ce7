//! Warnings of several kinds about values that are valid but deprecated or not in canonical form.

use std::net::Ipv6Addr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::scale_down::{Policy, SCALE_DOWN};
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::field::Path;
use knarr_apimachinery::names;

const DEPRECATED_NODE_LABELS: [(&str, &str); 8] = [
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        "use \"node-role.kubernetes.io/control-plane\" instead",
    ),
];

/// The warning about a deprecated node label; `None` if the label is not deprecated.
pub fn deprecated_label(key: &str) -> Option<&'static str> {
    DEPRECATED_NODE_LABELS
        .iter()
        .find(|(label, _)| *label == key)
        .map(|(_, deprecation)| *deprecation)
}

/// Warns about a name that is no DNS label, for kinds whose names become names and hostnames of pods.
pub fn name_warning(name: &str) -> Option<String> {
    let errors = names::dns1123_label(name);
    (!errors.is_empty() && !name.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label \
             is recommended: [{}]",
            errors.join(" ")
        )
    })
}

/// Warns about a scale-down policy (SPEC B3) that does not exist: its annotation is ignored.
pub fn scale_down_warning(metadata: &ObjectMeta) -> Option<String> {
    let error = Policy::annotated(metadata)?.err()?;
    let path = Path::new("metadata").child("annotations").key(SCALE_DOWN);
    Some(format!("{path}: {error}; it is ignored"))
}

/// The same on an update: only if the annotation has changed.
pub fn scale_down_warning_on_update(new: &ObjectMeta, old: &ObjectMeta) -> Option<String> {
    let warning = scale_down_warning(new)?;
    (Policy::annotated(new) != Policy::annotated(old)).then_some(warning)
}

/// Warns about an IPv6 address that is not in the canonical form of RFC 5952.
pub fn ip_warning(path: &Path, value: &str) -> Option<String> {
    let parsed: Ipv6Addr = value.parse().ok()?;
    let canonical = parsed.to_string();
    (parsed.to_ipv4_mapped().is_none() && canonical != value).then(|| {
        format!("{path}: IPv6 address {value:?} should be in RFC 5952 canonical format ({canonical:?})")
    })
}

/// Warns about a valid CIDR with bits beyond its prefix length, or an IPv6 one that is not in the canonical form of RFC 5952.
pub fn cidr_warning(path: &Path, value: &str) -> Option<String> {
    let range = Cidr::parse(value)?;
    if range.has_host_bits() {
        let (address, _) = value.split_once('/')?;
        let bits = if range.is_ipv6() { 128 } else { 32 };
        let masked = range.masked();
        return Some(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be \"{masked}\" or \"{address}/{bits}\"?)"
        ));
    }
    let canonical = range.to_string();
    (range.is_ipv6() && canonical != value).then(|| {
        format!("{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({canonical:?})")
    })
}

#[cfg(test)]
mod tests {
    use knarr_api::{AnyObject, Kind, registry};
    use serde_json::{Value, json};

    use crate::KindStrategy;

    fn decode(object: &Value) -> (Kind, Box<dyn AnyObject>) {
        let string = |field: &str| object[field].as_str().unwrap().to_string();
        let kind = registry::by_kind(&string("apiVersion"), &string("kind")).unwrap();
        let decoded = kind.ops.decode(object.to_string().as_bytes()).unwrap();
        (kind.clone(), decoded.object)
    }

    fn on_create(object: &Value) -> Vec<String> {
        let (kind, object) = decode(object);
        kind.strategy().warnings(&*object).unwrap()
    }

    fn on_update(old: &Value, new: &Value) -> Vec<String> {
        let (kind, new) = decode(new);
        kind.strategy()
            .warnings_on_update(&*new, &*decode(old).1)
            .unwrap()
    }

    fn deployment(name: &str, generation: i64) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "generation": generation},
            "spec": {
                "selector": {"matchLabels": {"app": "a"}},
                "template": {
                    "metadata": {"labels": {"app": "a"}},
                    "spec": {
                        "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                        "containers": [{"name": "c", "image": "i"}],
                    },
                },
            },
        })
    }

    #[test]
    fn b3_an_unknown_scale_down_policy_is_reported_when_it_is_set() {
        let set = |kind: &str, version: &str, value: &str| {
            let mut object = deployment("web", 1);
            object["kind"] = kind.into();
            object["apiVersion"] = version.into();
            object["metadata"]["annotations"] = json!({"knarr.io/scale-down": value});
            object["spec"]["template"]["spec"]["nodeSelector"] = json!({});
            if kind == "ReplicationController" {
                object["spec"]["selector"] = json!({"app": "a"});
            }
            object
        };
        let expected = [
            "metadata.annotations[knarr.io/scale-down]: unknown scale-down policy \"fullest\": expected default or spread; \
             it is ignored",
        ];
        for (kind, version) in [
            ("Deployment", "apps/v1"),
            ("ReplicaSet", "apps/v1"),
            ("ReplicationController", "v1"),
        ] {
            let set = |value: &str| set(kind, version, value);
            assert_eq!(on_create(&set("fullest")), expected, "{kind}");
            assert_eq!(on_update(&set("spread"), &set("fullest")), expected, "{kind}");
            assert_eq!(on_update(&set("fullest"), &set("fullest")), [""; 0], "{kind}");
            for known in ["spread", "default"] {
                assert_eq!(on_create(&set(known)), [""; 0], "{kind}");
                assert_eq!(on_update(&set("fullest"), &set(known)), [""; 0], "{kind}");
            }
        }
    }

    #[test]
    fn template_warnings_need_a_changed_spec_and_name_warnings_a_creation() {
        let label = "spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \
                     \"kubernetes.io/os\" instead";
        let created = on_create(&deployment("a.b", 1));
        assert_eq!(created.len(), 2, "{created:?}");
        assert!(
            created[0].starts_with("metadata.name: this is used in Pod names and hostnames"),
            "{created:?}"
        );
        assert_eq!(created[1], label);
        assert_eq!(on_update(&deployment("a.b", 1), &deployment("a.b", 2)), [label]);
        assert_eq!(on_update(&deployment("a.b", 2), &deployment("a.b", 2)), [""; 0]);
    }

    #[test]
    fn deprecated_and_non_canonical_values_cause_warnings() {
        let cases = [
            (
                json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                       "metadata": {"annotations": {"kubernetes.io/ingress.class": "a"}}, "spec": {}}),
                vec![
                    "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead",
                ],
                vec![],
            ),
            (
                json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                       "metadata": {"annotations": {"kubernetes.io/ingress.class": "a"}},
                       "spec": {"ingressClassName": "a"}}),
                vec![],
                vec![],
            ),
            (
                json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
                       "spec": {"hard": {"cpu": "2", "limits.cpu": "1", "requests.memory": "1Gi", "limits.memory": "1Gi"}}}),
                vec!["ResourceQuota cpu (2) should be less than limits.cpu (1)"],
                vec![],
            ),
            (
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
                       "spec": {"podCIDRs": ["10.0.0.1/24", "fd00:0::/64", "10.1.0.0/24"]}}),
                vec![
                    "spec.podCIDRs[0]: CIDR value \"10.0.0.1/24\" is ambiguous in this context (should be \"10.0.0.0/24\" or \"10.0.0.1/32\"?)",
                    "spec.podCIDRs[1]: IPv6 CIDR value \"fd00:0::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")",
                ],
                vec![
                    "spec.podCIDRs[0]: CIDR value \"10.0.0.1/24\" is ambiguous in this context (should be \"10.0.0.0/24\" or \"10.0.0.1/32\"?)",
                    "spec.podCIDRs[1]: IPv6 CIDR value \"fd00:0::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")",
                ],
            ),
            (
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
                       "addressType": "IPv6", "endpoints": [{"addresses": ["fd00::0:1"]}]}),
                vec![
                    "endpoints[0].addresses[0]: IPv6 address \"fd00::0:1\" should be in RFC 5952 canonical format (\"fd00::1\")",
                ],
                vec![
                    "endpoints[0].addresses[0]: IPv6 address \"fd00::0:1\" should be in RFC 5952 canonical format (\"fd00::1\")",
                ],
            ),
            (
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                       "metadata": {"name": "s", "labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
                       "addressType": "IPv6", "endpoints": [{"addresses": ["fd00::0:1"]}]}),
                vec![],
                vec![],
            ),
            (
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
                       "spec": {"resources": {"requests": {"storage": "500m"}}}}),
                vec![
                    "spec.resources.requests[storage]: fractional byte value \"500m\" is invalid, must be an integer",
                ],
                vec![
                    "spec.resources.requests[storage]: fractional byte value \"500m\" is invalid, must be an integer",
                ],
            ),
            (
                json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
                       "spec": {"persistentVolumeReclaimPolicy": "Recycle", "cephfs": {"monitors": ["m"]}}}),
                vec![
                    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                    "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
                ],
                vec![
                    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                    "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
                ],
            ),
            (
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "s"}, "provisioner": "p",
                       "allowedTopologies": [{"matchLabelExpressions": [{"key": "failure-domain.beta.kubernetes.io/zone", "values": ["z"]}]}]}),
                vec![
                    "allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
                ],
                vec![
                    "allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
                ],
            ),
        ];
        for (object, created, updated) in cases {
            assert_eq!(on_create(&object), created, "{object}");
            assert_eq!(on_update(&object, &object), updated, "{object}");
        }
    }
}
