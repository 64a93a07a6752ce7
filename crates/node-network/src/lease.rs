//! The Lease of a node's network agent in `knarr-network`, the only one it may write.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use knarr_client::{Api, ListOptions, NETWORK_NAMESPACE, TypedApi};

/// As it is, or a new one, to be written.
pub async fn own(api: &dyn Api, node_name: &NodeName) -> Result<Lease, Error> {
    match api.get_as::<Lease>(NETWORK_NAMESPACE, node_name).await {
        Ok(lease) => Ok((*lease).clone()),
        Err(error) if error.is_not_found() => new(api, node_name).await,
        Err(error) => Err(error),
    }
}

/// It is owned by its Node and deleted with it, as the kubelet's own Lease is.
async fn new(api: &dyn Api, node_name: &NodeName) -> Result<Lease, Error> {
    let scope = ListOptions {
        field_selector: format!("metadata.name={node_name}"),
        ..ListOptions::default()
    };
    let nodes = api.list(&registry::NODE, scope).await?;
    let node = nodes.items.iter().find(|node| node.name() == node_name);
    let node = node.ok_or_else(|| Error::not_found(registry::NODE.resource_ref(node_name)))?;
    let mut lease = Lease {
        metadata: ObjectMeta {
            namespace: Some(NETWORK_NAMESPACE.into()),
            name: Some(node_name.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node_name.into()),
            ..LeaseSpec::default()
        }),
    };
    set_owner(&mut lease, node_name, node.uid());
    Ok(lease)
}

/// The UID of the owning Node; empty if there is none.
pub fn owner(lease: &Lease) -> &str {
    let owners = lease.metadata.owner_references.as_deref().unwrap_or_default();
    owners.first().map_or("", |owner| &owner.uid)
}

/// Lets it go with the Node of this name and UID.
pub fn set_owner(lease: &mut Lease, node_name: &NodeName, node_uid: &str) {
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node_name.into(),
        uid: node_uid.into(),
        ..OwnerReference::default()
    }]);
}

/// As it was written. It fails if another of this agent's tasks has written it since it was read.
pub async fn write(api: &dyn Api, lease: Lease) -> Result<Lease, Error> {
    let written = match lease.metadata.resource_version {
        None => api.create_as(lease).await?,
        Some(_) => api.update_as(lease).await?,
    };
    Ok((*written).clone())
}
