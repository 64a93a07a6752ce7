//! Measured usage of nodes and pods (metrics.k8s.io), for policies that read it.

use std::collections::BTreeMap;
use std::time::Duration;

use knarr_client::Api;
use knarr_rebalance::snapshot::Usage;
use knarr_scheduler::resources::{ResourceList, Resources};
use serde_json::Value;
use tokio::time::timeout;
use tracing::debug;

/// The timeout of reading one list.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Without what cannot be read: pods whose usage is not known are not moved for it.
pub(super) async fn read(api: &dyn Api) -> Usage {
    let (nodes, pods) = tokio::join!(items(api, "nodes"), items(api, "pods"));
    parse(&nodes, &pods)
}

async fn items(api: &dyn Api, plural: &str) -> Vec<Value> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/{plural}");
    match timeout(TIMEOUT, api.get_raw(&path)).await {
        Ok(Ok(mut list)) => match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        Ok(Err(error)) => {
            debug!(%error, path, "no usage");
            Vec::new()
        }
        Err(_) => {
            debug!(path, "no usage in time");
            Vec::new()
        }
    }
}

/// The amounts in a list of quantities; `None` if it is none.
fn amounts(usage: &Value) -> Option<Resources> {
    let list: ResourceList = serde_json::from_value(usage.clone()).ok()?;
    Some(Resources::from_list(&list))
}

fn parse(nodes: &[Value], pods: &[Value]) -> Usage {
    let name = |item: &Value, field: &str| item["metadata"][field].as_str().unwrap_or_default().to_string();
    let nodes = nodes
        .iter()
        .filter_map(|node| Some((name(node, "name").into(), amounts(&node["usage"])?)));
    let pods = pods.iter().filter_map(|pod| {
        let mut sum = Resources::default();
        for container in pod["containers"].as_array()? {
            sum.add(&amounts(&container["usage"])?);
        }
        Some(((name(pod, "namespace"), name(pod, "name")), sum))
    });
    Usage {
        nodes: nodes.collect(),
        pods: pods.collect::<BTreeMap<_, _>>(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b3_usage_is_the_sum_of_containers_and_what_does_not_parse_is_unknown() {
        let usage = |cpu: &str| json!({"cpu": cpu, "memory": "1Ki"});
        let nodes = [
            json!({"metadata": {"name": "n1"}, "usage": usage("1500m")}),
            json!({"metadata": {"name": "n2"}, "usage": "much"}),
        ];
        let pods = [
            json!({"metadata": {"name": "p", "namespace": "a"}, "containers": [{"usage": usage("1")}, {"usage": usage("250m")}]}),
            json!({"metadata": {"name": "q", "namespace": "a"}}),
        ];
        let found = parse(&nodes, &pods);
        let cpu: Vec<_> = found
            .nodes
            .iter()
            .map(|(name, of)| (name.as_str(), of.milli_cpu))
            .collect();
        assert_eq!(cpu, [("n1", 1500)]);
        let sums: Vec<_> = found
            .pods
            .values()
            .map(|of| (of.milli_cpu, of.memory_bytes))
            .collect();
        assert_eq!(sums, [(1250, 2048)]);
    }
}
