//! Publishes this node's CSI drivers: in the CSINode object, and in the Node's annotation and labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::{Error, Result};
use knarr_client::{Api, TypedApi};

use super::wire::NodeInfo;

/// Each driver's own name for this node, as JSON.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// How often a conflict is retried.
const ATTEMPTS: usize = 10;

/// Publishes a driver; without `info` it is removed.
pub async fn publish_driver(
    api: &dyn Api,
    node: &NodeName,
    driver: &str,
    info: Option<&NodeInfo>,
) -> Result<()> {
    again(|| update_node(api, node, driver, info)).await?;
    again(|| update_csi_node(api, node, driver, info)).await
}

/// Creates the object if it does not exist, also on a node without any driver.
pub async fn make(api: &dyn Api, node: &NodeName) -> Result<()> {
    match api.get_as::<CSINode>("", node).await {
        Err(error) if error.is_not_found() => create(api, node, Vec::new()).await,
        other => other.map(drop),
    }
}

async fn again<F: Future<Output = Result<()>>>(attempt: impl Fn() -> F) -> Result<()> {
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(error) if error.is_conflict() || error.is_already_exists() => {}
            done => return done,
        }
    }
    attempt().await
}

async fn update_node(api: &dyn Api, node: &NodeName, driver: &str, info: Option<&NodeInfo>) -> Result<()> {
    let old = api.get_as::<Node>("", node).await?;
    let mut new = (*old).clone();
    let annotations = new.metadata.annotations.get_or_insert_default();
    let mut ids: BTreeMap<String, String> = match annotations.get(NODE_IDS) {
        Some(text) => serde_json::from_str(text)
            .map_err(|e| Error::internal(format!("annotation {NODE_IDS} of node {node}: {e}")))?,
        None => BTreeMap::new(),
    };
    match info {
        Some(info) => drop(ids.insert(driver.into(), info.node_id.clone())),
        None => drop(ids.remove(driver)),
    }
    match ids.is_empty() {
        true => drop(annotations.remove(NODE_IDS)),
        false => {
            let text = serde_json::to_string(&ids).map_err(Error::internal)?;
            annotations.insert(NODE_IDS.into(), text);
        }
    }
    let labels = new.metadata.labels.get_or_insert_default();
    for (key, value) in info
        .iter()
        .flat_map(|i| i.accessible_topology.iter())
        .flat_map(|t| &t.segments)
    {
        if let Some(other) = labels.get(key).filter(|other| *other != value) {
            return Err(Error::internal(format!(
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{other:?}"
            )));
        }
        labels.insert(key.clone(), value.clone());
    }
    if new == *old {
        return Ok(());
    }
    api.update_as(new).await.map(drop)
}

fn entry(driver: &str, info: &NodeInfo) -> CSINodeDriver {
    let topology = info.accessible_topology.iter().flat_map(|t| t.segments.keys());
    let mut keys: Vec<String> = topology.cloned().collect();
    keys.sort_unstable();
    // Beyond what the field holds there is no limit in practice.
    let limit = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
    CSINodeDriver {
        name: driver.into(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: (limit > 0).then_some(VolumeNodeResources { count: Some(limit) }),
    }
}

async fn update_csi_node(
    api: &dyn Api,
    node: &NodeName,
    driver: &str,
    info: Option<&NodeInfo>,
) -> Result<()> {
    let now = info.map(|info| entry(driver, info));
    let old = match api.get_as::<CSINode>("", node).await {
        Err(error) if error.is_not_found() => return create(api, node, now.into_iter().collect()).await,
        other => other?,
    };
    if old.spec.drivers.iter().find(|d| d.name == driver) == now.as_ref() {
        return Ok(());
    }
    let mut new = (*old).clone();
    new.spec.drivers.retain(|d| d.name != driver);
    new.spec.drivers.extend(now);
    api.update_as(new).await.map(drop)
}

async fn create(api: &dyn Api, node: &NodeName, drivers: Vec<CSINodeDriver>) -> Result<()> {
    let owner = api.get_as::<Node>("", node).await?;
    let made = CSINode {
        metadata: ObjectMeta {
            name: Some(node.into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: node.into(),
                uid: owner.object().uid().into(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers },
    };
    api.create_as(made).await.map(drop)
}
