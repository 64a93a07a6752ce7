//! What nodes need to join, under the names that kubeadm gives it: `kube-public/cluster-info` (where the API is and which
//! CA vouches for it; a controller signs it with each token), and who may ask for a node's certificate. Made where
//! missing, at every start.
//!
//! kubeadm lets anonymous users read `cluster-info`. Here nothing is open to them: holders of a bootstrap token may, and
//! who has but a pin takes the CA from the TLS handshake, in which the server sends it along.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::{Error, k8s_openapi, registry};
use serde_json::{Value, json};

use crate::server::Server;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The group of those who join with a token that is made for it.
pub const JOINERS: &str = "system:bootstrappers:kubeadm:default-node-token";
/// The group of all holders of bootstrap tokens.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// Who may read where the cluster is.
const INFO_READER: &str = "kubeadm:bootstrap-signer-clusterinfo";

impl Server {
    /// From now on nodes can join at `server` (an URL), which this CA vouches for.
    pub async fn let_nodes_join(&self, server: &str, ca_pem: &str) -> Result<(), Error> {
        let kubeconfig = cluster_info(server, ca_pem);
        let there = self.cache.get(&registry::CONFIG_MAP, PUBLIC, CLUSTER_INFO);
        let said = there.as_ref().and_then(|o| {
            let data = o.get::<ConfigMap>()?.data.as_ref()?;
            data.get(KUBECONFIG)
        });
        if said != Some(&kubeconfig) {
            self.replace(
                &registry::CONFIG_MAP,
                json!({
                    "metadata": {"name": CLUSTER_INFO, "namespace": PUBLIC},
                    "data": {KUBECONFIG: kubeconfig},
                }),
            )
            .await?;
        }
        let reader = json!({
            "metadata": {"name": INFO_READER, "namespace": PUBLIC},
            "rules": [{
                "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CLUSTER_INFO], "verbs": ["get"],
            }],
        });
        self.ensure(&registry::ROLE, reader).await?;
        let mut readers = binding(INFO_READER, "Role", INFO_READER, BOOTSTRAPPERS);
        readers["metadata"]["namespace"] = PUBLIC.into();
        self.ensure(&registry::ROLE_BINDING, readers).await?;
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
                "system:nodes",
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
