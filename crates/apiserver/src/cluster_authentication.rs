//! How extension API servers and kubelets authenticate clients: the ConfigMap
//! `kube-system/extension-apiserver-authentication`, as kube-apiserver publishes it, and the API server's permissions at
//! kubelets. Written at every start.
//!
//! Nodes read the ConfigMap too: it has the CA of client certificates, which is not the CA of the API server's own.

use knarr_api::registry;
use knarr_apimachinery::Error;
use serde_json::{Value, json};

use crate::loopback::LoopbackClient;
use crate::pki::{FRONT_PROXY_CLIENT, KUBELET_CLIENT_USER};

/// The namespace of the ConfigMap.
pub const NAMESPACE: &str = "kube-system";
/// The name of the ConfigMap.
pub const NAME: &str = "extension-apiserver-authentication";
/// The key with the CAs of client certificates, in PEM.
pub const CLIENT_CA: &str = "client-ca-file";

const RBAC: &str = "rbac.authorization.k8s.io";
/// The default Role that may read the ConfigMap.
const READER: &str = "extension-apiserver-authentication-reader";

/// Publishes the CA of client certificates for kubelets, and the CA of the front proxy for extension API servers.
pub(crate) async fn publish_client_authorities(
    client: &LoopbackClient,
    client_ca_pem: &str,
    front_proxy_ca_pem: &str,
) -> Result<(), Error> {
    client
        .replace(
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
    client.ensure(&registry::ROLE_BINDING, readers).await?;
    let kubelets = binding(
        "kube-apiserver-kubelet-admin",
        "ClusterRole",
        "system:kubelet-api-admin",
        "User",
        KUBELET_CLIENT_USER,
    );
    client.ensure(&registry::CLUSTER_ROLE_BINDING, kubelets).await
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
