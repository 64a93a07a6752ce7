//! What nodes need to join, under the names that kubeadm gives it: `kube-public/cluster-info` (where the API is and which
//! CA vouches for it; a controller signs it with each token), and who may ask for a node's certificate. Made where
//! missing, at every start.
//!
//! `kube-system/knarr-config` has the settings that all nodes share, such as the ranges of addresses, as kubeadm's
//! `kubeadm-config` has; nodes read it when they join.
//!
//! kubeadm lets anonymous users read `cluster-info`. Here nothing is open to them: holders of a bootstrap token may, and
//! who has but a pin takes the CA from the TLS handshake, in which the server sends it along.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::{Error, k8s_openapi, registry};
use serde_json::{Value, json};

use crate::server::Server;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
/// The namespace and name of the ConfigMap with the settings that all nodes share.
pub const SHARED_SETTINGS: (&str, &str) = ("kube-system", "knarr-config");
const RBAC: &str = "rbac.authorization.k8s.io";

/// The group of those who join with a token that is made for it.
pub const JOINERS: &str = "system:bootstrappers:kubeadm:default-node-token";
/// The group of all holders of bootstrap tokens.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const NODES: &str = "system:nodes";
/// The role of those who may read the settings that all nodes share.
const SETTINGS_READER: &str = "knarr:config-reader";
/// Who may read where the cluster is.
const INFO_READER: &str = "kubeadm:bootstrap-signer-clusterinfo";

impl Server {
    /// From now on nodes can join at `server` (an URL), which this CA vouches for, and take over these settings.
    pub async fn let_nodes_join(
        &self,
        server: &str,
        ca_pem: &str,
        settings: BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let info = BTreeMap::from([(KUBECONFIG.to_string(), cluster_info(server, ca_pem))]);
        self.publish((PUBLIC, CLUSTER_INFO), info, INFO_READER, BOOTSTRAPPERS)
            .await?;
        self.publish(SHARED_SETTINGS, settings, SETTINGS_READER, NODES)
            .await?;
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
            self.ensure(
                &registry::CLUSTER_ROLE_BINDING,
                binding(name, "ClusterRole", role, group),
            )
            .await?;
        }
        Ok(())
    }

    /// A ConfigMap with this data, which this group may read by a role of this name.
    async fn publish(
        &self,
        (namespace, name): (&str, &str),
        data: BTreeMap<String, String>,
        role: &str,
        group: &str,
    ) -> Result<(), Error> {
        let published = self.cache.get(&registry::CONFIG_MAP, namespace, name);
        let published = published
            .as_ref()
            .and_then(|o| o.get::<ConfigMap>()?.data.as_ref());
        if published != Some(&data) {
            let config_map = json!({"metadata": {"name": name, "namespace": namespace}, "data": data});
            self.replace(&registry::CONFIG_MAP, config_map).await?;
        }
        let reader = json!({
            "metadata": {"name": role, "namespace": namespace},
            "rules": [{
                "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"],
            }],
        });
        self.ensure(&registry::ROLE, reader).await?;
        let mut readers = binding(role, "Role", role, group);
        readers["metadata"]["namespace"] = namespace.into();
        self.ensure(&registry::ROLE_BINDING, readers).await
    }
}

fn binding(name: &str, kind: &str, role: &str, group: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
    })
}

/// A kubeconfig with a cluster and nobody in it.
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
