//! The downward API: a pod's own fields and resources as text, for variables and files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::is_hugepages;
use knarr_api::quantity::Quantity;
use knarr_kubelet::pod::ENDS_ANNOTATION;

/// What a pod may learn about where it runs.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
    /// What the node gives to pods: the limit of a container that has none, but of huge pages.
    pub allocatable: BTreeMap<String, Text>,
}

/// The value of a `fieldRef`'s path.
pub fn field(pod: &core::Pod, path: &str, place: &Place) -> Result<String, String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(format!("fieldPath \"{path}\" does not support subscript")),
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
            own.remove(ENDS_ANNOTATION);
            lines(Some(&own))
        }
        "spec.nodeName" => spec.map(|s| text(&s.node_name)).unwrap_or_default(),
        "spec.serviceAccountName" => spec.map(|s| text(&s.service_account_name)).unwrap_or_default(),
        "status.hostIP" => place.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => place.host_ips.join(","),
        "status.podIP" => place.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => place.pod_ips.join(","),
        _ => return Err(format!("unsupported fieldPath: {path}")),
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
    place: &Place,
) -> Result<String, String> {
    let spec = pod.spec.as_ref();
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let found = named.and_then(|n| knarr_kubelet::pod::find_spec(spec?, n));
    let container = match (found.as_deref(), named, own) {
        (Some(container), ..) => container,
        (None, None, Some(own)) => own,
        (None, named, _) => {
            return Err(format!("container {} not found", named.unwrap_or("")));
        }
    };
    let (kind, name) = selector
        .resource
        .split_once('.')
        .ok_or_else(|| format!("unsupported container resource : {}", selector.resource))?;
    let resources = container.resources.as_ref();
    let of = |list: Option<&BTreeMap<String, Text>>| list.and_then(|l| l.get(name)).cloned();
    let limit = of(resources.and_then(|r| r.limits.as_ref()));
    let value = match kind {
        "limits" => {
            let limit = limit.filter(|l| Quantity::of(l).is_ok_and(|q| !q.is_zero()));
            limit.or_else(|| {
                place
                    .allocatable
                    .get(name)
                    .filter(|_| !is_hugepages(name))
                    .cloned()
            })
        }
        "requests" => of(resources.and_then(|r| r.requests.as_ref())).or(limit),
        _ => return Err(format!("unsupported container resource : {}", selector.resource)),
    };
    let Some(value) = value else { return Ok("0".into()) };
    let value = Quantity::parse(&value.0)?;
    let divisor = selector.divisor.as_ref().map_or("1", |d| d.0.as_str());
    let divisor = match divisor {
        "" | "0" => Quantity::parse("1")?,
        text => Quantity::parse(text)?,
    };
    // CPU is counted in thousandths, so that a divisor of 1m is exact.
    let (value, divisor) = match name {
        "cpu" => (value.milli_value(), divisor.milli_value()),
        _ => (value.value(), divisor.value()),
    };
    let divisor = divisor.max(1);
    Ok(((value + divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> core::Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1", "b": "say \"x\""}},
            "spec": {"nodeName": "node", "serviceAccountName": "sa", "containers": [{"name": "c"}]},
        }))
        .unwrap()
    }

    #[test]
    fn fields_are_read_as_the_api_names_them() {
        let place = Place {
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            host_ips: vec!["192.168.0.1".into()],
            ..Place::default()
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
            assert_eq!(field(&pod(), path, &place).as_deref(), Ok(want), "{path}");
        }
        assert!(field(&pod(), "spec.bogus", &place).is_err());
    }

    #[test]
    fn the_nodes_amounts_stand_in_for_limits_but_of_huge_pages() {
        let amount = |name: &str, text: &str| (name.to_string(), Text(text.into()));
        let place = Place {
            allocatable: [
                amount("cpu", "2"),
                amount("memory", "1Gi"),
                amount("hugepages-2Mi", "8Mi"),
            ]
            .into(),
            ..Place::default()
        };
        let limited = serde_json::json!({"limits": {"cpu": "0", "memory": "4Mi", "hugepages-2Mi": "4Mi"}});
        for (resources, name, want) in [
            (serde_json::json!({}), "limits.cpu", "2"),
            (serde_json::json!({}), "limits.memory", "1024"),
            (serde_json::json!({}), "limits.hugepages-2Mi", "0"),
            (serde_json::json!({}), "requests.hugepages-2Mi", "0"),
            (limited.clone(), "limits.cpu", "2"),
            (limited.clone(), "limits.memory", "4"),
            (limited.clone(), "limits.hugepages-2Mi", "4"),
            (limited, "requests.hugepages-2Mi", "4"),
        ] {
            let own: core::Container =
                serde_json::from_value(serde_json::json!({"name": "c", "resources": resources})).unwrap();
            let selector = core::ResourceFieldSelector {
                resource: name.into(),
                divisor: (!name.ends_with("cpu")).then(|| Text("1Mi".into())),
                ..core::ResourceFieldSelector::default()
            };
            let got = resource(&pod(), Some(&own), &selector, &place);
            assert_eq!(got.as_deref(), Ok(want), "{name} of {resources}");
        }
    }
}
