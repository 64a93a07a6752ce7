//! What every cluster has from the start: its namespaces, the `kubernetes` Service with its endpoints and its range, the
//! APIServices of built-in groups, the system's priority classes, and the default roles. Made where missing, at every
//! start; the first of these also when somebody deletes them.

use std::sync::Weak;
use std::time::Duration;

use futures::future::join_all;
use knarr_api::{AnyObject, Error, Kind, registry};
use knarr_client::{Component, NETWORK_NAMESPACE};
use serde_json::{Value, json};

use crate::authz::default_roles::{self, Repair};
use crate::endpoint_leases::RENEW;
use crate::flow_control;
use crate::pipeline::delete::DeleteRequest;
use crate::pipeline::{Ctx, Target};
use crate::server::Server;
use crate::user::User;

/// Kubernetes' own, the one whose Secrets fence agents are given (only those), and the one of network agents' Leases.
const NAMESPACES: [&str; 6] = [
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    FENCING,
    NETWORK_NAMESPACE,
];
/// Unlike Kubernetes' own it can be deleted, and with it go the role by which its Secrets are read, and the binding.
const FENCING: &str = "knarr-fencing";
const FENCING_ROLE: &str = "system:controller:knarr-fencing-controller";

impl Server {
    pub(crate) async fn bootstrap(&self) -> Result<(), Error> {
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
            self.ensure(&registry::PRIORITY_CLASS, class).await?;
        }
        for (kind, document) in flow_control::objects() {
            self.ensure(kind, document).await?;
        }
        // All at once, so that they share the store's commits.
        let roles = default_roles::objects().into_iter().map(|d| self.reconcile(d));
        for outcome in join_all(roles).await {
            // The server is of use without one of them.
            if let Err(e) = outcome {
                tracing::error!("passed over a default role: {e}");
            }
        }
        self.kubernetes_service().await?;
        self.reconcile_endpoints().await?;
        self.default_service_cidr().await?;
        self.settle_api_services().await
    }

    async fn namespaces(&self) -> Result<(), Error> {
        for name in NAMESPACES {
            self.ensure(&registry::NAMESPACE, json!({"metadata": {"name": name}}))
                .await?;
        }
        Ok(())
    }

    /// The range of addresses of Services, as an object; ready, unless somebody has said otherwise.
    async fn default_service_cidr(&self) -> Result<(), Error> {
        let (kind, name) = (&registry::SERVICE_CIDR, "kubernetes");
        let cidrs = json!(
            self.allocations
                .range()
                .ranges()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        );
        let wanted = json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        self.ensure(kind, wanted).await?;
        let Some(there) = self.cache.get(kind, "", name) else {
            return Ok(());
        };
        let mut document: Value = serde_json::from_slice(there.json()).map_err(Error::internal)?;
        if document["spec"]["cidrs"] != cidrs {
            let found = &document["spec"]["cidrs"];
            tracing::warn!("ServiceCIDR {name:?} is {found}, but Services have addresses of {cidrs}");
            return Ok(());
        }
        let conditions = document["status"]["conditions"].as_array();
        if conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready")) {
            return Ok(());
        }
        document["status"] = json!({"conditions": [{
            "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]});
        let target = Target {
            subresource: "status",
            ..Target::main(kind, "", name)
        };
        match self
            .put(&mut self.myself(), &target, decode(kind, &document)?)
            .await
        {
            // Another server of the same cluster may have been faster.
            Err(e) if !e.is_conflict() => Err(e),
            _ => Ok(()),
        }
    }

    /// The Service by which pods reach the API server.
    async fn kubernetes_service(&self) -> Result<(), Error> {
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        self.ensure(
            &registry::SERVICE,
            json!({
                "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
                "spec": {
                    "clusterIP": self.allocations.range().first().to_string(),
                    "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.config.port}],
                    "sessionAffinity": "None",
                    "type": "ClusterIP",
                },
            }),
        )
        .await
    }

    /// Makes again what users have deleted and Kubernetes makes again while it runs.
    async fn make_missing(&self) -> Result<(), Error> {
        self.namespaces().await?;
        self.fencing_role().await?;
        self.kubernetes_service().await?;
        self.reconcile_endpoints().await?;
        match self.cache.get(&registry::SERVICE_CIDR, "", "kubernetes") {
            Some(_) => Ok(()),
            None => self.default_service_cidr().await,
        }
    }

    /// The role of the fencing controller in the namespace of its Secrets, where that was made again.
    async fn fencing_role(&self) -> Result<(), Error> {
        let kinds = [&registry::ROLE, &registry::ROLE_BINDING];
        let is_missing = |kind| self.cache.get(kind, FENCING, FENCING_ROLE).is_none();
        if !kinds.into_iter().any(is_missing) {
            return Ok(());
        }
        let namespace = self.cache.get(&registry::NAMESPACE, "", FENCING);
        if namespace.is_none_or(|n| n.metadata().deletion_timestamp.is_some()) {
            return Ok(());
        }
        for default in default_roles::objects() {
            if default.object.metadata().namespace.as_deref() == Some(FENCING) {
                self.reconcile(default).await?;
            }
        }
        Ok(())
    }

    /// Puts back what is missing of a default role or binding.
    async fn reconcile(&self, wanted: default_roles::Default) -> Result<(), Error> {
        let kind = wanted.kind;
        let (namespace, name) = place(&*wanted.object);
        let Some(there) = self.cache.get(kind, &namespace, &name) else {
            return self.make(kind, wanted.object).await;
        };
        let target = Target::main(kind, &namespace, &name);
        match default_roles::repair(&*wanted.object, there.typed()) {
            Repair::Nothing => Ok(()),
            Repair::Update(object) => self.put(&mut self.myself(), &target, object).await.map(drop),
            Repair::Replace => {
                let request = DeleteRequest::default();
                self.delete(&mut self.myself(), &target, &request).await?;
                let made = Target::main(kind, &namespace, "");
                let created = self.create(&mut self.myself(), &made, wanted.object).await;
                created.map(drop)
            }
        }
    }

    /// Makes it where there is none of its name.
    pub(crate) async fn ensure(&self, kind: &Kind, document: Value) -> Result<(), Error> {
        let of = |field| document["metadata"][field].as_str().unwrap_or_default();
        match self.cache.get(kind, of("namespace"), of("name")) {
            Some(_) => Ok(()),
            None => self.make(kind, decode(kind, &document)?).await,
        }
    }

    async fn make(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<(), Error> {
        let (namespace, _) = place(&*object);
        match self
            .create(&mut self.myself(), &Target::main(kind, &namespace, ""), object)
            .await
        {
            // Another server of the same cluster may have been faster.
            Err(e) if !e.is_already_exists() => Err(e),
            _ => Ok(()),
        }
    }

    /// Makes it so, whatever was there.
    pub(crate) async fn replace(&self, kind: &Kind, document: Value) -> Result<(), Error> {
        let object = decode(kind, &document)?;
        let (namespace, name) = place(&*object);
        if self.cache.get(kind, &namespace, &name).is_none() {
            return self.make(kind, object).await;
        }
        let target = Target::main(kind, &namespace, &name);
        self.put(&mut self.myself(), &target, object).await.map(drop)
    }

    /// The server itself, whose writes are below authorization: no request makes them.
    pub(crate) fn myself(&self) -> Ctx {
        let user = User::new(Component::ApiServer.user(), [""; 0]).authenticated();
        Ctx {
            by_server: true,
            manager: Some(FIELD_MANAGER.into()),
            ..Ctx::new(user, self.clock.now())
        }
    }
}

/// The manager of the fields that the server itself writes, as kube-apiserver's user agent names it.
const FIELD_MANAGER: &str = "kube-apiserver";

/// How often is looked whether something is missing that every cluster has, as kube-apiserver does; with it this server's
/// endpoint is renewed.
const LOOKS_EVERY: Duration = RENEW;

/// Sees to it that what every cluster has is there again when somebody has deleted it.
pub(crate) async fn look_after_basics(server: Weak<Server>) {
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        let Some(server) = server.upgrade() else { return };
        if let Err(e) = server.make_missing().await {
            tracing::warn!("cannot make what every cluster has, trying again: {e}");
        }
    }
}

fn decode(kind: &Kind, document: &Value) -> Result<Box<dyn AnyObject>, Error> {
    let decoded = kind.ops.decode(document.to_string().as_bytes());
    Ok(decoded.map_err(|e| Error::internal(e.message))?.object)
}

fn place(object: &dyn AnyObject) -> (String, String) {
    let meta = object.metadata();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}
