//! What nodes need to join, under kubeadm's names: `kube-public/cluster-info` (the API server's address and CA, which a controller signs with each
//! token), and the bindings for who may request a node's certificate. Missing objects are created at every start.
//!
//! `kube-system/knarr-config` has the settings that all nodes share, such as address ranges, like kubeadm's `kubeadm-config`; nodes read it when
//! they join.
//!
//! kubeadm lets anonymous users read `cluster-info`. knarr does not: holders of a bootstrap token may read it, and a node that has only a pin
//! takes the CA from the TLS handshake, in which the server sends it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use serde_json::{Value, json};

use crate::loopback::LoopbackClient;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
/// The namespace and name of the ConfigMap with the settings that all nodes share.
pub const SHARED_SETTINGS: (&str, &str) = ("kube-system", "knarr-config");
const RBAC: &str = "rbac.authorization.k8s.io";

/// The group of the bootstrap tokens with which nodes join.
pub const JOINERS: &str = "system:bootstrappers:kubeadm:default-node-token";
/// The group of all holders of bootstrap tokens.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const NODES: &str = "system:nodes";
/// The role that may read the settings that all nodes share.
const SETTINGS_READER: &str = "knarr:config-reader";
/// The role that may read `cluster-info`.
const INFO_READER: &str = "kubeadm:bootstrap-signer-clusterinfo";

/// Lets nodes join at `server` (a URL) with this CA and these settings.
pub(crate) async fn let_nodes_join(
    client: &LoopbackClient,
    server: &str,
    ca_pem: &str,
    settings: BTreeMap<String, String>,
) -> Result<(), Error> {
    let info = BTreeMap::from([(KUBECONFIG.to_string(), cluster_info(server, ca_pem))]);
    publish(client, (PUBLIC, CLUSTER_INFO), info, INFO_READER, BOOTSTRAPPERS).await?;
    publish(client, SHARED_SETTINGS, settings, SETTINGS_READER, NODES).await?;
    let requests = "system:certificates.k8s.io:certificatesigningrequests";
    for (name, role, group) in [
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINERS),
        (
            "kubeadm:node-autoapprove-bootstrap",
            &format!("{requests}:nodeclient"),
            JOINERS,
        ),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            &format!("{requests}:selfnodeclient"),
            NODES,
        ),
    ] {
        client
            .ensure(
                &registry::CLUSTER_ROLE_BINDING,
                binding(name, "ClusterRole", role, group),
            )
            .await?;
    }
    Ok(())
}

/// Publishes a ConfigMap with this data, which the group may read by a role of this name.
async fn publish(
    client: &LoopbackClient,
    (namespace, name): (&str, &str),
    data: BTreeMap<String, String>,
    role: &str,
    group: &str,
) -> Result<(), Error> {
    let published = client.get(&registry::CONFIG_MAP, namespace, name);
    let published = published
        .as_ref()
        .and_then(|o| o.get::<ConfigMap>()?.data.as_ref());
    if published != Some(&data) {
        let config_map = json!({"metadata": {"name": name, "namespace": namespace}, "data": data});
        client.replace(&registry::CONFIG_MAP, config_map).await?;
    }
    let reader = json!({
        "metadata": {"name": role, "namespace": namespace},
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"],
        }],
    });
    client.ensure(&registry::ROLE, reader).await?;
    let mut readers = binding(role, "Role", role, group);
    readers["metadata"]["namespace"] = namespace.into();
    client.ensure(&registry::ROLE_BINDING, readers).await
}

fn binding(name: &str, kind: &str, role: &str, group: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
    })
}

/// A kubeconfig with a cluster and no user.
fn cluster_info(server: &str, ca_pem: &str) -> String {
    format!(
        "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {}
    server: {server}
  name: \"\"
contexts: null
current-context: \"\"
kind: Config
users: null
",
        STANDARD.encode(ca_pem)
    )
}
