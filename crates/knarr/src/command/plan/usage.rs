//! Measured usage for policies that count it: from metrics.k8s.io, or the NodeMetrics and PodMetrics of a file.

use knarr_apimachinery::quantity::{Quantity, QuantityError};
use knarr_rebalance::policy::{Policy, Rule};
use knarr_rebalance::snapshot::Usage;
use knarr_scheduler::resources::{ResourceList, Resources};
use serde::Deserialize;
use serde_json::Value;

use crate::command::snapshot::{DocumentKind, ObjectReader};

const API_VERSION: &str = "metrics.k8s.io/v1beta1";
pub const NODE_METRICS: DocumentKind = DocumentKind {
    api_version: API_VERSION,
    kind: "NodeMetrics",
    path: "/apis/metrics.k8s.io/v1beta1/nodes",
};
pub const POD_METRICS: DocumentKind = DocumentKind {
    api_version: API_VERSION,
    kind: "PodMetrics",
    path: "/apis/metrics.k8s.io/v1beta1/pods",
};

/// NodeMetrics, or PodMetrics.
#[derive(Deserialize)]
struct Metrics {
    metadata: Metadata,
    /// Of a node.
    #[serde(default)]
    usage: ResourceList,
    /// Of a pod.
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    usage: ResourceList,
}

/// Why metrics are not used.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{of}: usage[{resource}]: {quantity:?} is not a quantity: {source}")]
    Quantity {
        of: String,
        resource: String,
        quantity: String,
        source: QuantityError,
    },
}

pub fn is_needed<'a>(policies: impl Iterator<Item = &'a Policy>) -> bool {
    let mut strategies = policies.flat_map(Policy::strategies);
    strategies.any(|(_, strategy)| match &strategy.rule {
        Rule::LowNodeUtilization(rule) => rule.measured,
        _ => false,
    })
}

/// The usage that is known. What is missing is a warning: the pods without it stay, and the plan says why.
pub async fn read(reader: &ObjectReader) -> Usage {
    let mut usage = Usage::default();
    for kind in [&NODE_METRICS, &POD_METRICS] {
        let documents = match reader.documents(kind).await {
            Ok(documents) => documents,
            Err(failure) => {
                eprintln!("knarr: warning: {failure}");
                continue;
            }
        };
        if documents.is_empty() {
            eprintln!(
                "knarr: warning: there are no {}: the policy's measured usage is not known",
                kind.kind
            );
        }
        for document in documents {
            if let Err(error) = add(&mut usage, kind, &document) {
                eprintln!("knarr: warning: skipping a {}: {error}", kind.kind);
            }
        }
    }
    usage
}

fn add(usage: &mut Usage, kind: &DocumentKind, document: &Value) -> Result<(), UsageError> {
    let Metrics {
        metadata: Metadata { name, namespace },
        usage: of_node,
        containers,
    } = Metrics::deserialize(document)?;
    if *kind == NODE_METRICS {
        usage
            .nodes
            .insert(name.as_str().into(), resources(&name, &of_node)?);
        return Ok(());
    }
    let mut sum = Resources::default();
    for container in &containers {
        sum.add(&resources(&format!("{namespace}/{name}"), &container.usage)?);
    }
    usage.pods.insert((namespace, name), sum);
    Ok(())
}

fn resources(of: &str, list: &ResourceList) -> Result<Resources, UsageError> {
    for (resource, quantity) in list {
        Quantity::parse(&quantity.0).map_err(|source| UsageError::Quantity {
            of: of.to_string(),
            resource: resource.clone(),
            quantity: quantity.0.clone(),
            source,
        })?;
    }
    Ok(Resources::from_list(list))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b3_the_usage_of_a_pod_is_the_sum_of_its_containers() {
        let mut usage = Usage::default();
        let node = json!({"metadata": {"name": "n1"}, "usage": {"cpu": "1500m", "memory": "2Gi"}});
        add(&mut usage, &NODE_METRICS, &node).unwrap();
        let containers = json!([{"name": "a", "usage": {"cpu": "250m"}}, {"name": "b", "usage": {"cpu": "1", "memory": "1Mi"}}]);
        let pod = json!({"metadata": {"name": "p", "namespace": "shop"}, "containers": containers});
        add(&mut usage, &POD_METRICS, &pod).unwrap();
        assert_eq!(usage.nodes["n1"].milli_cpu, 1500);
        let pod = &usage.pods[&("shop".to_string(), "p".to_string())];
        assert_eq!((pod.milli_cpu, pod.memory_bytes), (1250, 1 << 20));
    }

    #[test]
    fn b3_metrics_that_are_not_quantities_are_rejected_with_their_resource() {
        let mut usage = Usage::default();
        let node = json!({"metadata": {"name": "n1"}, "usage": {"cpu": "much"}});
        let error = add(&mut usage, &NODE_METRICS, &node).unwrap_err().to_string();
        assert!(
            error.starts_with("n1: usage[cpu]: \"much\" is not a quantity"),
            "{error}"
        );
        assert!(add(&mut usage, &NODE_METRICS, &json!({"usage": {}})).is_err());
        assert!(usage.nodes.is_empty());
    }
}
