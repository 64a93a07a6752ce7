//! The Lease of a node's network agent in `knarr-network`, the only one it may write.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_api::{Error, registry};
use knarr_client::{Api, ListOptions, NETWORK_NAMESPACE, TypedApi};

/// As it is, or a new one, to be written.
pub async fn own(api: &dyn Api, node_name: &str) -> Result<Lease, Error> {
    match api.get_as::<Lease>(NETWORK_NAMESPACE, node_name).await {
        Ok(lease) => Ok((*lease).clone()),
        Err(error) if error.is_not_found() => new(api, node_name).await,
        Err(error) => Err(error),
    }
}

/// It goes with its Node, as the kubelet's own Lease does.
async fn new(api: &dyn Api, node_name: &str) -> Result<Lease, Error> {
    let scope = ListOptions {
        field_selector: format!("metadata.name={node_name}"),
        ..ListOptions::default()
    };
    let nodes = api.list(&registry::NODE, scope).await?;
    let node = nodes.items.iter().find(|node| node.name() == node_name);
    let node = node.ok_or_else(|| Error::not_found(registry::NODE.about(node_name)))?;
    Ok(Lease {
        metadata: ObjectMeta {
            namespace: Some(NETWORK_NAMESPACE.into()),
            name: Some(node_name.into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: node_name.into(),
                uid: node.uid().to_string(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node_name.into()),
            ..LeaseSpec::default()
        }),
    })
}

/// As it was written. It fails if another of this agent's tasks has written it since it was read.
pub async fn write(api: &dyn Api, lease: Lease) -> Result<Lease, Error> {
    let written = match lease.metadata.resource_version {
        None => api.create_as(lease).await?,
        Some(_) => api.update_as(lease).await?,
    };
    Ok((*written).clone())
}
