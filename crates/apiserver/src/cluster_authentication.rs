//! Who speaks to kubelets and extension API servers, and by which CAs they know it: the ConfigMap
//! `kube-system/extension-apiserver-authentication`, as kube-apiserver publishes it, and what the API server may do at
//! kubelets. Written at every start.
//!
//! Nodes read the ConfigMap too: the CA of clients is not the CA that they know the API server by, and they learn it there.

use knarr_api::{Error, registry};
use serde_json::{Value, json};

use crate::pki::{FRONT_PROXY_CLIENT, KUBELET_CLIENT_USER};
use crate::server::Server;

/// Where the ConfigMap is.
pub const NAMESPACE: &str = "kube-system";
/// What it is called.
pub const NAME: &str = "extension-apiserver-authentication";
/// Under which key it has the CAs of clients, in PEM.
pub const CLIENT_CA: &str = "client-ca-file";

const RBAC: &str = "rbac.authorization.k8s.io";
/// The default Role of those who may read the ConfigMap.
const READER: &str = "extension-apiserver-authentication-reader";

impl Server {
    /// From now on kubelets know clients of this CA, and extension API servers the front proxy by the other.
    pub async fn publish_client_authorities(
        &self,
        client_ca_pem: &str,
        front_proxy_ca_pem: &str,
    ) -> Result<(), Error> {
        self.replace(
            &registry::CONFIG_MAP,
            config_map(client_ca_pem, front_proxy_ca_pem),
        )
        .await?;
        let mut readers = binding(
            "knarr:nodes-read-client-ca",
            "Role",
            READER,
            "Group",
            "system:nodes",
        );
        readers["metadata"]["namespace"] = NAMESPACE.into();
        self.ensure(&registry::ROLE_BINDING, readers).await?;
        let kubelets = binding(
            "kube-apiserver-kubelet-admin",
            "ClusterRole",
            "system:kubelet-api-admin",
            "User",
            KUBELET_CLIENT_USER,
        );
        self.ensure(&registry::CLUSTER_ROLE_BINDING, kubelets).await
    }
}

fn config_map(client_ca_pem: &str, front_proxy_ca_pem: &str) -> Value {
    let list = |names: &[&str]| json!(names).to_string();
    json!({
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {
            CLIENT_CA: client_ca_pem,
            "requestheader-client-ca-file": front_proxy_ca_pem,
            "requestheader-allowed-names": list(&[FRONT_PROXY_CLIENT]),
            "requestheader-username-headers": list(&["X-Remote-User"]),
            "requestheader-uid-headers": list(&["X-Remote-Uid"]),
            "requestheader-group-headers": list(&["X-Remote-Group"]),
            "requestheader-extra-headers-prefix": list(&["X-Remote-Extra-"]),
        },
    })
}

fn binding(name: &str, role_kind: &str, role: &str, kind: &str, subject: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject}],
    })
}
