//! Whether a node admits a pod that is bound to it, by v1.36's rules: checks that the scheduler could not do, or was not
//! involved in (SPEC L1, S3). The phase of a rejected pod becomes Failed, and nothing of it runs.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, Node, Pod, Taint, Toleration};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_mirror;
use knarr_api::kinds::pod::resources::{is_dra_extended, is_extended};
use knarr_api::well_known::CONFIG_SOURCE;

use crate::node_affinity::matches_affinity;
use crate::resources::{self, Amounts};

const NODE_AFFINITY: &str = "NodeAffinity";
const TAINT_TOLERATION: &str = "TaintToleration";

/// Why a pod is rejected: `status.reason`, and the part of `status.message` after `Pod was rejected: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Rejection {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Whether the reason is a label or a taint of the Node object, which other components write.
    pub fn is_for_labels_or_taints(&self) -> bool {
        matches!(self.reason.as_str(), NODE_AFFINITY | TAINT_TOLERATION)
    }

    fn predicate(name: &str, why: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {why}"))
    }
}

/// A resource of which the node has too little left (upstream: `InsufficientResourceError`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsufficientResource {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl InsufficientResource {
    /// The amount that has to be released.
    pub fn missing(&self) -> i64 {
        self.requested
            .saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

impl From<InsufficientResource> for Rejection {
    fn from(short: InsufficientResource) -> Self {
        let InsufficientResource {
            resource,
            requested,
            used,
            capacity,
        } = short;
        Self::new(
            format!("OutOf{resource}"),
            format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        )
    }
}

/// The resource of which every pod takes one.
pub const PODS: &str = "pods";

/// Pods with this priority or a higher one are system pods (upstream: `SystemCriticalPriority`).
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Whether the pod is critical: static, a mirror pod, or of a system priority (upstream: `IsCriticalPod`).
pub fn is_critical(pod: &Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|s| s.priority);
    is_static(pod) || is_mirror(pod) || priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

/// Whether the pod is a static pod.
pub fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let source = annotations.and_then(|a| a.get(CONFIG_SOURCE));
    source.is_some_and(|source| source != "api")
}

/// Whether the node admits the pod in addition to the others, which are those that run or will run.
pub fn admit(pod: &Pod, node: &Node, others: &[&Pod]) -> Result<(), Rejection> {
    check_node_properties(pod, node)?;
    match shortages(pod, node, others).into_iter().next() {
        Some(short) => Err(short.into()),
        None => matches_node(pod, node, others),
    }
}

/// Checks that do not depend on other pods.
pub(crate) fn check_node_properties(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let os_label = pod
        .metadata
        .labels
        .as_ref()
        .and_then(|l| l.get("kubernetes.io/os"));
    if os_label.is_some_and(|os| os != "linux") {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let spec = pod.spec.as_ref();
    if spec
        .and_then(|s| s.os.as_ref())
        .is_some_and(|os| os.name != "linux")
    {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    let policy = spec
        .and_then(|s| s.security_context.as_ref())
        .and_then(|c| c.supplemental_groups_policy.as_deref());
    let features = node.status.as_ref().and_then(|s| s.features.as_ref());
    if policy == Some("Strict") && features.and_then(|f| f.supplemental_groups_policy) != Some(true) {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// Whether the pod matches the node, resources apart.
pub(crate) fn matches_node(pod: &Pod, node: &Node, others: &[&Pod]) -> Result<(), Rejection> {
    let spec = pod.spec.clone().unwrap_or_default();
    if !matches_affinity(pod, node) {
        let why = "node(s) didn't match Pod's node affinity/selector";
        return Err(Rejection::predicate(NODE_AFFINITY, why));
    }
    if spec.node_name.is_some() && spec.node_name != node.metadata.name {
        let why = "node(s) didn't match the requested node name";
        return Err(Rejection::predicate("NodeName", why));
    }
    if others.iter().any(|other| ports_clash(pod, other)) {
        let why = "node(s) didn't have free ports for the requested pod ports";
        return Err(Rejection::predicate("NodePorts", why));
    }
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let tolerations = spec.tolerations.unwrap_or_default();
    let untolerated = taints
        .filter(|t| t.effect == "NoExecute")
        .any(|taint| !tolerations.iter().any(|t| tolerates(t, taint)));
    if untolerated && !is_static(pod) {
        let why = "node(s) had taints that the pod didn't tolerate";
        return Err(Rejection::predicate(TAINT_TOLERATION, why));
    }
    Ok(())
}

/// The pod without the extended resources that a ResourceClaim provides (KEP 5004).
fn without_claimed_resources(pod: &Pod) -> Cow<'_, Pod> {
    let status = pod.status.as_ref();
    let Some(claim) = status.and_then(|s| s.extended_resource_claim_status.as_ref()) else {
        return Cow::Borrowed(pod);
    };
    let mut rest = pod.clone();
    let spec = rest.spec.get_or_insert_default();
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        let name = container.name.clone();
        let Some(requests) = container.resources.as_mut().and_then(|r| r.requests.as_mut()) else {
            continue;
        };
        requests.retain(|resource, _| {
            let mut mappings = claim.request_mappings.iter();
            let claimed = mappings.any(|m| m.container_name == name && m.resource_name == *resource);
            !(claimed && is_dra_extended(resource))
        });
    }
    Cow::Owned(rest)
}

/// The resources of which the node has too little.
pub(crate) fn shortages(pod: &Pod, node: &Node, others: &[&Pod]) -> Vec<InsufficientResource> {
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
    let allocatable = resources::amounts(allocatable);
    let mut requests = resources::requests(&without_claimed_resources(pod));
    let mut used = Amounts::new();
    for other in others {
        resources::add(&mut used, &resources::requests(other));
    }
    requests.insert(PODS.into(), 1);
    used.insert(PODS.into(), i64::try_from(others.len()).unwrap_or(i64::MAX));
    let first = [PODS, "cpu", "memory", "ephemeral-storage"];
    let extended = requests.keys().map(String::as_str).filter(|n| !first.contains(n));
    // Extended resources that the node does not have are counted by another component.
    let extended = extended.filter(|name| !is_extended(name) || allocatable.contains_key(*name));
    let amount = |of: &Amounts, name: &str| of.get(name).copied().unwrap_or(0);
    first
        .into_iter()
        .chain(extended)
        .map(|name| InsufficientResource {
            resource: name.into(),
            requested: amount(&requests, name),
            used: amount(&used, name),
            capacity: amount(&allocatable, name),
        })
        .filter(|short| short.requested > 0 && short.missing() > 0)
        .collect()
}

/// Address, protocol and number of each host port.
fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(sidecar);
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|p| {
            let address = p.host_ip.clone().filter(|ip| !ip.is_empty());
            let address = address.unwrap_or_else(|| "0.0.0.0".into());
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some((address, protocol, p.host_port.filter(|port| *port > 0)?))
        })
        .collect()
}

fn ports_clash(one: &Pod, other: &Pod) -> bool {
    let taken = host_ports(other);
    host_ports(one).iter().any(|(address, protocol, port)| {
        taken.iter().any(|(a, p, n)| {
            let anywhere = address == "0.0.0.0" || a == "0.0.0.0";
            p == protocol && n == port && (anywhere || a == address)
        })
    })
}

/// Whether a toleration matches this taint. An empty effect matches every effect; an empty key with Exists every key.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("") {
        "Exists" => true,
        "" | "Equal" => key == taint.key && text(&toleration.value) == text(&taint.value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"disk": "ssd", "cores": "8"}},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3", "example.com/gpu": "1"}},
        }))
        .unwrap()
    }

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["nodeName"] = json!("n1");
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "c"}]);
        }
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn requesting(name: &str, amount: &str) -> Pod {
        pod(json!({"containers": [{"name": "c", "resources": {"requests": {name: amount}}}]}))
    }

    #[test]
    fn l1_a_node_rejects_what_it_has_no_room_for() {
        let busy = requesting("cpu", "1500m");
        let message = |name: &str, requested: i64, used: i64, capacity: i64| {
            format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
            )
        };
        for (pod, others, want) in [
            (requesting("cpu", "500m"), vec![&busy], None),
            (
                requesting("cpu", "501m"),
                vec![&busy],
                Some(("OutOfcpu", message("cpu", 501, 1500, 2000))),
            ),
            (
                requesting("memory", "2Gi"),
                vec![],
                Some(("OutOfmemory", message("memory", 2 << 30, 0, 1 << 30))),
            ),
            (
                requesting("cpu", "1m"),
                vec![&busy, &busy, &busy],
                Some(("OutOfpods", message("pods", 1, 3, 3))),
            ),
            (requesting("example.com/gpu", "1"), vec![], None),
            (
                requesting("example.com/gpu", "2"),
                vec![],
                Some(("OutOfexample.com/gpu", message("example.com/gpu", 2, 0, 1))),
            ),
            // The node does not have this resource, so it is not counted.
            (requesting("example.com/licence", "5"), vec![], None),
        ] {
            let got = admit(&pod, &node(), &others).err();
            assert_eq!(got, want.map(|(reason, message)| Rejection::new(reason, message)));
        }
    }

    #[test]
    fn l1_resources_of_a_claim_need_not_be_the_nodes() {
        let implicit = "deviceclass.resource.kubernetes.io/gpu";
        for (resource, amount) in [(implicit, "1"), ("example.com/gpu", "2")] {
            let mut pod = requesting(resource, amount);
            let reason = admit(&pod, &node(), &[]).err().map(|r| r.reason);
            assert_eq!(reason, Some(format!("OutOf{resource}")));
            let status = |container: &str| {
                let mapping =
                    json!({"containerName": container, "resourceName": resource, "requestName": "r"});
                let claim = json!({"resourceClaimName": "claim", "requestMappings": [mapping]});
                serde_json::from_value(json!({"extendedResourceClaimStatus": claim})).unwrap()
            };
            pod.status = status("another");
            assert!(admit(&pod, &node(), &[]).is_err());
            pod.status = status("c");
            assert_eq!(admit(&pod, &node(), &[]), Ok(()));
        }
    }

    #[test]
    fn l1_a_node_rejects_pods_that_do_not_match_it() {
        let affinity = |expression: Value| {
            pod(
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}),
            )
        };
        let none_of_it = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        for (pod, want) in [
            (pod(json!({"nodeSelector": {"disk": "ssd"}})), None),
            (
                pod(json!({"nodeSelector": {"disk": "hdd"}})),
                Some(("NodeAffinity", none_of_it)),
            ),
            (
                affinity(json!({"key": "disk", "operator": "In", "values": ["ssd", "nvme"]})),
                None,
            ),
            (
                affinity(json!({"key": "cores", "operator": "Gt", "values": ["4"]})),
                None,
            ),
            (
                affinity(json!({"key": "cores", "operator": "Lt", "values": ["8"]})),
                Some(("NodeAffinity", none_of_it)),
            ),
            (
                affinity(json!({"key": "disk", "operator": "DoesNotExist"})),
                Some(("NodeAffinity", none_of_it)),
            ),
            (
                pod(json!({"os": {"name": "windows"}})),
                Some((
                    "PodOSNotSupported",
                    "Failed to admit pod as the OS field doesn't match node OS",
                )),
            ),
        ] {
            let got = admit(&pod, &node(), &[]).err();
            assert_eq!(got, want.map(|(reason, message)| Rejection::new(reason, message)));
        }
    }

    #[test]
    fn l1_host_ports_and_taints_that_evict_keep_pods_out() {
        let with_port = |port: i32, ip: &str| {
            pod(
                json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": port, "hostIP": ip}]}]}),
            )
        };
        let there = with_port(80, "127.0.0.1");
        let admits = |pod: &Pod, node: &Node| admit(pod, node, &[&there]).map_err(|r| r.reason);
        assert_eq!(admits(&with_port(80, ""), &node()), Err("NodePorts".into()));
        assert_eq!(admits(&with_port(80, "127.0.0.2"), &node()), Ok(()));
        let mut tainted = node();
        let taint = json!({"taints": [{"key": "gone", "effect": "NoExecute"}]});
        tainted.spec = serde_json::from_value(taint).unwrap();
        assert_eq!(admits(&pod(json!({})), &tainted), Err("TaintToleration".into()));
        let tolerant = json!({"tolerations": [{"key": "gone", "operator": "Exists"}]});
        assert_eq!(admits(&pod(tolerant), &tainted), Ok(()));
    }

    #[test]
    fn l1_a_toleration_is_of_key_value_and_effect() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoExecute"})).unwrap();
        for (toleration, tolerated) in [
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "v", "operator": "Equal"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "j", "value": "v"}), false),
            (json!({"value": "v"}), false),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "j", "operator": "Exists"}), false),
            (json!({"operator": "Exists", "effect": "NoExecute"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "k", "value": "v", "operator": "Gt"}), false),
        ] {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), tolerated, "{toleration}");
        }
    }

    #[test]
    fn l1_a_nodes_name_and_labels_are_matched_by_every_operator() {
        let one = |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
        for (kind, requirement, matches) in [
            ("matchFields", one("metadata.name", "In", json!(["n1"])), true),
            ("matchFields", one("metadata.name", "In", json!(["n2"])), false),
            ("matchFields", one("metadata.uid", "In", json!(["n1"])), false),
            ("matchExpressions", one("disk", "NotIn", json!(["hdd"])), true),
            ("matchExpressions", one("disk", "NotIn", json!(["ssd"])), false),
            ("matchExpressions", one("zone", "NotIn", json!(["a"])), true),
            ("matchExpressions", one("disk", "Exists", json!([])), true),
            ("matchExpressions", one("zone", "Exists", json!([])), false),
            ("matchExpressions", one("zone", "DoesNotExist", json!([])), true),
            ("matchExpressions", one("cores", "Lt", json!(["9"])), true),
            ("matchExpressions", one("cores", "Gt", json!(["8"])), false),
            ("matchExpressions", one("disk", "Near", json!(["ssd"])), false),
        ] {
            let terms = json!({"nodeSelectorTerms": [{kind: [requirement]}]});
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
            let pod = pod(json!({"affinity": affinity}));
            assert_eq!(admit(&pod, &node(), &[]).is_ok(), matches, "{requirement}");
        }
    }

    #[test]
    fn l1_host_ports_conflict_by_address_protocol_and_number_of_containers_that_keep_running() {
        let ports = |port: Value| json!({"name": "c", "ports": [port]});
        let http = json!({"containerPort": 1, "hostPort": 80});
        let there = pod(json!({"containers": [ports(http.clone())]}));
        let sidecar = |policy: Value| {
            let mut init = ports(http.clone());
            init["restartPolicy"] = policy;
            pod(json!({"initContainers": [init]}))
        };
        for (what, new, clashes) in [
            (
                "the same",
                pod(json!({"containers": [ports(http.clone())]})),
                true,
            ),
            ("a sidecar", sidecar(json!("Always")), true),
            ("an init container that ends", sidecar(Value::Null), false),
            (
                "another protocol",
                pod(
                    json!({"containers": [ports(json!({"containerPort": 1, "hostPort": 80, "protocol": "UDP"}))]}),
                ),
                false,
            ),
            (
                "another number",
                pod(json!({"containers": [ports(json!({"containerPort": 80, "hostPort": 81}))]})),
                false,
            ),
        ] {
            assert_eq!(admit(&new, &node(), &[&there]).is_err(), clashes, "{what}");
        }
        let none = pod(json!({"containers": [ports(json!({"containerPort": 80, "hostPort": 0}))]}));
        assert_eq!(admit(&none, &node(), &[&none]), Ok(()));
    }

    #[test]
    fn l1_what_the_node_does_not_support_is_rejected_with_its_own_reason() {
        let mut labelled = pod(json!({}));
        let strict = pod(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}));
        for (os, reason) in [
            ("linux", None),
            ("windows", Some("PodOSSelectorNodeLabelDoesNotMatch")),
        ] {
            labelled.metadata.labels = Some([("kubernetes.io/os".to_string(), os.to_string())].into());
            let rejected = admit(&labelled, &node(), &[]).err().map(|r| r.reason);
            assert_eq!(rejected.as_deref(), reason, "{os}");
        }
        for (supported, admitted) in [(json!(null), false), (json!(false), false), (json!(true), true)] {
            let mut node = node();
            let features = json!({"supplementalGroupsPolicy": supported});
            node.status.as_mut().unwrap().features = serde_json::from_value(features).unwrap();
            assert_eq!(admit(&strict, &node, &[]).is_ok(), admitted, "{supported}");
        }
    }

    #[test]
    fn l1_a_pod_is_not_rejected_for_a_resource_that_it_does_not_request() {
        // The allocatable CPU has shrunk below the sum of requests.
        let busy = requesting("cpu", "3");
        assert_eq!(admit(&requesting("memory", "1Mi"), &node(), &[&busy]), Ok(()));
    }

    #[test]
    fn l1_only_labels_and_taints_of_the_node_object_may_change_a_rejection() {
        for (pod, may_change) in [
            (pod(json!({"nodeSelector": {"disk": "hdd"}})), true),
            (requesting("cpu", "9"), false),
        ] {
            let rejection = admit(&pod, &node(), &[]).unwrap_err();
            assert_eq!(
                rejection.is_for_labels_or_taints(),
                may_change,
                "{}",
                rejection.reason
            );
        }
    }
}
