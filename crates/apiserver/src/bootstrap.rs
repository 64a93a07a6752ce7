//! The objects that every cluster has: system namespaces, the `kubernetes` Service with its endpoints and ServiceCIDR, the
//! APIServices of built-in groups, the system priority classes, and the default roles. Missing ones are created at every
//! start; namespaces, Service and ServiceCIDR also when they are deleted while the server runs.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use knarr_api::registry;
use knarr_apimachinery::Error;
use knarr_client::NETWORK_NAMESPACE;
use serde_json::{Value, json};

use crate::allocation::ServiceRange;
use crate::api_services::ApiServiceRegistration;
use crate::authz::default_roles::{self, Reconciliation};
use crate::endpoint_leases::{EndpointReconciler, RENEW};
use crate::flow_control;
use crate::loopback::{LoopbackClient, decode, namespace_and_name};
use crate::request::Target;

/// Kubernetes' system namespaces, the namespace whose Secrets are available to fence agents, and the one of network agents'
/// Leases.
const NAMESPACES: [&str; 6] = [
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    FENCING_NAMESPACE,
    NETWORK_NAMESPACE,
];
/// Unlike Kubernetes' system namespaces it can be deleted, together with the role that allows reading its Secrets, and the
/// binding.
const FENCING_NAMESPACE: &str = "knarr-fencing";
const FENCING_ROLE: &str = "system:controller:knarr-fencing-controller";

/// Creates and recreates the objects. See the module.
pub(crate) struct BootstrapController {
    pub client: LoopbackClient,
    pub endpoints: Arc<EndpointReconciler>,
    pub api_services: ApiServiceRegistration,
    pub service_range: ServiceRange,
    /// The port on which the server listens.
    pub port: u16,
}

impl BootstrapController {
    pub async fn bootstrap(&self) -> Result<(), Error> {
        self.namespaces().await?;
        let classes = [
            (
                "system-cluster-critical",
                2_000_000_000,
                "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
            ),
            (
                "system-node-critical",
                2_000_001_000,
                "Used for system critical pods that must not be moved from their current node.",
            ),
        ];
        for (name, value, description) in classes {
            let class = json!({"metadata": {"name": name}, "value": value, "description": description});
            self.client.ensure(&registry::PRIORITY_CLASS, class).await?;
        }
        for (kind, document) in flow_control::objects() {
            self.client.ensure(kind, document).await?;
        }
        // Concurrently, so that they share the store's commits.
        let roles = default_roles::objects()
            .into_iter()
            .map(|d| self.reconcile_role(d));
        for outcome in join_all(roles).await {
            // The server works without one of them.
            if let Err(e) = outcome {
                tracing::error!("cannot reconcile a default role: {e}");
            }
        }
        self.kubernetes_service().await?;
        self.endpoints.reconcile().await?;
        self.default_service_cidr().await?;
        self.api_services.reconcile().await
    }

    async fn namespaces(&self) -> Result<(), Error> {
        for name in NAMESPACES {
            self.client
                .ensure(&registry::NAMESPACE, json!({"metadata": {"name": name}}))
                .await?;
        }
        Ok(())
    }

    /// The ServiceCIDR of the configured range, with the condition Ready unless it has one.
    async fn default_service_cidr(&self) -> Result<(), Error> {
        let (kind, name) = (&registry::SERVICE_CIDR, "kubernetes");
        let cidrs = json!(
            self.service_range
                .ranges()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        );
        let desired = json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        self.client.ensure(kind, desired).await?;
        let Some(existing) = self.client.get(kind, "", name) else {
            return Ok(());
        };
        let mut document: Value = serde_json::from_slice(existing.json()).map_err(Error::internal)?;
        if document["spec"]["cidrs"] != cidrs {
            let found = &document["spec"]["cidrs"];
            tracing::warn!(
                "ServiceCIDR {name:?} has cidrs {found}, but the configured service CIDRs are {cidrs}"
            );
            return Ok(());
        }
        let conditions = document["status"]["conditions"].as_array();
        if conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready")) {
            return Ok(());
        }
        document["status"] = json!({"conditions": [{
            "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": self.client.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]});
        let target = Target {
            subresource: "status",
            ..Target::main(kind, "", name)
        };
        match self.client.put(&target, decode(kind, &document)?).await {
            // Another server of the same cluster may have been faster.
            Err(e) if !e.is_conflict() => Err(e),
            _ => Ok(()),
        }
    }

    /// The Service by which pods reach the API server.
    async fn kubernetes_service(&self) -> Result<(), Error> {
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        self.client
            .ensure(
                &registry::SERVICE,
                json!({
                    "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
                    "spec": {
                        "clusterIP": self.service_range.first().to_string(),
                        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.port}],
                        "sessionAffinity": "None",
                        "type": "ClusterIP",
                    },
                }),
            )
            .await
    }

    /// Recreates what users have deleted and Kubernetes recreates while it runs.
    async fn recreate_missing(&self) -> Result<(), Error> {
        self.namespaces().await?;
        self.fencing_role().await?;
        self.kubernetes_service().await?;
        self.endpoints.reconcile().await?;
        match self.client.get(&registry::SERVICE_CIDR, "", "kubernetes") {
            Some(_) => Ok(()),
            None => self.default_service_cidr().await,
        }
    }

    /// Recreates the role of the fencing controller in the namespace of its Secrets.
    async fn fencing_role(&self) -> Result<(), Error> {
        let kinds = [&registry::ROLE, &registry::ROLE_BINDING];
        let is_missing = |kind| self.client.get(kind, FENCING_NAMESPACE, FENCING_ROLE).is_none();
        if !kinds.into_iter().any(is_missing) {
            return Ok(());
        }
        let namespace = self.client.get(&registry::NAMESPACE, "", FENCING_NAMESPACE);
        if namespace.is_none_or(|n| n.metadata().deletion_timestamp.is_some()) {
            return Ok(());
        }
        for default in default_roles::objects() {
            if default.object.metadata().namespace.as_deref() == Some(FENCING_NAMESPACE) {
                self.reconcile_role(default).await?;
            }
        }
        Ok(())
    }

    /// Reconciles a default role or binding.
    async fn reconcile_role(&self, desired: default_roles::DefaultObject) -> Result<(), Error> {
        let kind = desired.kind;
        let (namespace, name) = namespace_and_name(&*desired.object);
        let Some(existing) = self.client.get(kind, &namespace, &name) else {
            return self.client.create_unless_exists(kind, desired.object).await;
        };
        let target = Target::main(kind, &namespace, &name);
        match default_roles::reconcile(&*desired.object, existing.typed()) {
            Reconciliation::Nothing => Ok(()),
            Reconciliation::Update(object) => self.client.put(&target, object).await,
            Reconciliation::Recreate => {
                self.client.delete(&target).await?;
                self.client.create(kind, desired.object).await
            }
        }
    }
}

/// How often missing objects are recreated, as in kube-apiserver; with it this server's endpoint lease is renewed.
const SYNC_INTERVAL: Duration = RENEW;

/// Recreates the objects that every cluster has after they were deleted.
pub(crate) async fn run_bootstrap_controller(controller: Weak<BootstrapController>) {
    loop {
        tokio::time::sleep(SYNC_INTERVAL).await;
        let Some(controller) = controller.upgrade() else {
            return;
        };
        if let Err(e) = controller.recreate_missing().await {
            tracing::warn!("cannot recreate missing system objects, trying again: {e}");
        }
    }
}
