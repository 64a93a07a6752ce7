//! The downward API: a pod's own fields and resources as text, for variables and files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;
use knarr_kubelet::pod::TERMINATION_HISTORY_ANNOTATION;

use super::pod_object::STARTED_BY;

/// What the downward API exposes of the node.
#[derive(Clone, Debug, Default)]
pub struct DownwardValues {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
    /// What the node gives to pods: the limit of a container that has none, in a pod that has none.
    pub allocatable: BTreeMap<String, Text>,
}

/// Why the downward API has no such value; shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("fieldPath \"{path}\" does not support subscript")]
    Subscript { path: String },
    #[error("unsupported fieldPath: {path}")]
    FieldPath { path: String },
    #[error("container {name} not found")]
    NoContainer { name: String },
    #[error("unsupported container resource : {resource}")]
    Resource { resource: String },
    #[error("{why}")]
    Quantity { why: String },
}

/// The value of a `fieldRef`'s path.
pub fn field(pod: &core::Pod, path: &str, values: &DownwardValues) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(DownwardError::Subscript { path: path.into() }),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => {
            // What the kubelet itself remembers there is none of the pod's own.
            let mut own = meta.annotations.clone().unwrap_or_default();
            own.remove(TERMINATION_HISTORY_ANNOTATION);
            own.remove(STARTED_BY);
            lines(Some(&own))
        }
        "spec.nodeName" => spec.map(|s| text(&s.node_name)).unwrap_or_default(),
        "spec.serviceAccountName" => spec.map(|s| text(&s.service_account_name)).unwrap_or_default(),
        "status.hostIP" => values.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => values.host_ips.join(","),
        "status.podIP" => values.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => values.pod_ips.join(","),
        _ => return Err(DownwardError::FieldPath { path: path.into() }),
    })
}

/// `key="value"`, a line each.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(k, v)| format!("{k}={v:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The value of a `resourceFieldRef`: in units of its divisor, rounded up.
pub fn resource(
    pod: &core::Pod,
    own: Option<&core::Container>,
    selector: &core::ResourceFieldSelector,
    values: &DownwardValues,
) -> Result<String, DownwardError> {
    let spec = pod.spec.as_ref();
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let found = named.and_then(|n| knarr_kubelet::pod::find_spec(spec?, n));
    let container = match (found.as_deref(), named, own) {
        (Some(container), ..) => container,
        (None, None, Some(own)) => own,
        (None, named, _) => {
            let name = named.unwrap_or("").to_string();
            return Err(DownwardError::NoContainer { name });
        }
    };
    let unsupported = || DownwardError::Resource {
        resource: selector.resource.clone(),
    };
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let resources = container.resources.as_ref();
    let of = |list: Option<&BTreeMap<String, Text>>| list.and_then(|l| l.get(name)).cloned();
    let limit = of(resources.and_then(|r| r.limits.as_ref()));
    let value = match kind {
        "limits" => {
            let own = limit.clone().filter(|l| !is_zero(l));
            own.or_else(|| of(limit_around(pod, name, values))).or(limit)
        }
        "requests" => of(resources.and_then(|r| r.requests.as_ref())).or(limit),
        _ => return Err(unsupported()),
    };
    let Some(value) = value else { return Ok("0".into()) };
    let parsed =
        |text: &str| Quantity::parse(text).map_err(|e| DownwardError::Quantity { why: e.to_string() });
    let value = parsed(&value.0)?;
    let divisor = selector.divisor.as_ref().map_or("1", |d| d.0.as_str());
    let divisor = match divisor {
        "" | "0" => parsed("1")?,
        text => parsed(text)?,
    };
    // CPU is counted in thousandths, so that a divisor of 1m is exact.
    let (value, divisor) = match name {
        "cpu" => (value.milli_value(), divisor.milli_value()),
        _ => (value.value(), divisor.value()),
    };
    let divisor = divisor.max(1);
    Ok(((value + divisor - 1) / divisor).to_string())
}

fn is_zero(amount: &Text) -> bool {
    Quantity::parse(&amount.0).is_ok_and(|amount| amount.is_zero())
}

/// What limits a container that sets no limit of its own: its pod, else its node.
fn limit_around<'a>(
    pod: &'a core::Pod,
    name: &str,
    values: &'a DownwardValues,
) -> Option<&'a BTreeMap<String, Text>> {
    let whole = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let limits = whole.and_then(|r| r.limits.as_ref());
    let limits = limits.filter(|limits| limits.get(name).is_some_and(|l| !is_zero(l)));
    match name {
        "cpu" | "memory" => limits.or(Some(&values.allocatable)),
        "ephemeral-storage" => Some(&values.allocatable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod() -> core::Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1", "b": "say \"x\""}},
            "spec": {"nodeName": "node", "serviceAccountName": "sa", "containers": [{"name": "c"}]},
        }))
        .unwrap()
    }

    #[test]
    fn fields_are_read_as_the_api_names_them() {
        let values = DownwardValues {
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            host_ips: vec!["192.168.0.1".into()],
            ..DownwardValues::default()
        };
        for (path, want) in [
            ("metadata.name", "p"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "a=\"1\"\nb=\"say \\\"x\\\"\""),
            ("spec.serviceAccountName", "sa"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
            ("status.hostIP", "192.168.0.1"),
        ] {
            assert_eq!(field(&pod(), path, &values).as_deref(), Ok(want), "{path}");
        }
        assert!(field(&pod(), "spec.bogus", &values).is_err());
    }

    #[test]
    fn l4_a_limit_that_is_not_set_is_the_pods_and_else_the_nodes() {
        let allocatable = [
            ("cpu", "4"),
            ("memory", "8Gi"),
            ("ephemeral-storage", "100Gi"),
            ("hugepages-2Mi", "2Mi"),
        ];
        let values = DownwardValues {
            allocatable: allocatable
                .map(|(name, amount)| (name.to_string(), Text(amount.into())))
                .into(),
            ..DownwardValues::default()
        };
        let resource = |own: Value, whole: Value, name: &str| {
            let mut pod = pod();
            let spec = pod.spec.as_mut().unwrap();
            spec.resources = serde_json::from_value(whole).unwrap();
            let mut container = spec.containers[0].clone();
            container.resources = serde_json::from_value(own).unwrap();
            let selector = core::ResourceFieldSelector {
                resource: name.into(),
                ..core::ResourceFieldSelector::default()
            };
            super::resource(&pod, Some(&container), &selector, &values).unwrap()
        };
        let whole = json!({"limits": {"cpu": "1250m", "memory": "64Mi"}});
        let own = json!({"limits": {"memory": "32Mi"}});
        for (own, whole, name, want) in [
            (&json!({}), &whole, "limits.cpu", "2"),
            (&json!({}), &whole, "limits.memory", "67108864"),
            (&own, &whole, "limits.memory", "33554432"),
            (
                &json!({"limits": {"memory": "0"}}),
                &whole,
                "limits.memory",
                "67108864",
            ),
            (&json!({}), &json!({"limits": {"cpu": "0"}}), "limits.cpu", "4"),
            (&json!({}), &json!({}), "limits.memory", "8589934592"),
            (&json!({}), &whole, "limits.ephemeral-storage", "107374182400"),
            (&json!({}), &whole, "limits.hugepages-2Mi", "0"),
            (&json!({}), &whole, "requests.memory", "0"),
        ] {
            assert_eq!(
                resource(own.clone(), whole.clone(), name),
                want,
                "{name} {own} {whole}"
            );
        }
    }
}
