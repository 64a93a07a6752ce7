//! The node's lease, its heartbeat: renewed every ten seconds (SPEC S4).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::registry::Registered;
use knarr_api::well_known::NODE_LEASE_NAMESPACE;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::time::microseconds;
use knarr_client::{Api, Clock, TypedApi};
use tracing::debug;

use super::config::Config;
use super::lease_trust::LeaseTrust;

/// Renews the lease, and notes that in the node's [`LeaseTrust`].
pub(super) struct LeaseRenewal {
    config: Arc<Config>,
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    trust: Arc<LeaseTrust>,
    /// As it was written last.
    written: Option<Shared<Lease>>,
}

impl LeaseRenewal {
    pub fn new(
        config: Arc<Config>,
        api: Arc<dyn Api>,
        clock: Arc<dyn Clock>,
        trust: Arc<LeaseTrust>,
    ) -> Self {
        LeaseRenewal {
            config,
            api,
            clock,
            trust,
            written: None,
        }
    }

    /// Returns how long ago the accepted write was sent.
    pub async fn renew(&mut self, node_uid: Option<&str>) -> Result<Duration, Error> {
        let sent = self.write(node_uid).await?;
        self.trust.renewed(sent);
        Ok(self.trust.since(sent))
    }

    /// Acquires or renews the node's lease: first as it was last written, since nothing else should have changed it; after
    /// a failed write it is read first. Returns when the successful write was sent, by the clock of [`LeaseTrust`], not when
    /// an earlier failed one was.
    async fn write(&mut self, node_uid: Option<&str>) -> Result<Duration, Error> {
        if let Some(last) = self.written.take() {
            let sent = self.trust.now();
            match self.api.update_as(self.held(&last, node_uid)).await {
                Ok(lease) => {
                    self.written = Some(lease);
                    return Ok(sent);
                }
                Err(error) => debug!(%error, "the node's lease is not as it was written"),
            }
        }
        let name = &self.config.node_name;
        let before = self.api.get_as::<Lease>(NODE_LEASE_NAMESPACE, name).await;
        let sent = self.trust.now();
        let lease = match before {
            Ok(lease) => self.api.update_as(self.held(&lease, node_uid)).await?,
            Err(error) if error.is_not_found() => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(name.to_string()),
                        namespace: Some(NODE_LEASE_NAMESPACE.into()),
                        ..ObjectMeta::default()
                    },
                    spec: None,
                };
                self.api.create_as(self.held(&lease, node_uid)).await?
            }
            Err(error) => return Err(error),
        };
        self.written = Some(lease);
        Ok(sent)
    }

    /// The lease, renewed now.
    fn held(&self, lease: &Lease, node_uid: Option<&str>) -> Lease {
        let name = &self.config.node_name;
        let mut lease = lease.clone();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(name.to_string()),
            lease_duration_seconds: Some(self.config.configuration.node_lease_duration_seconds),
            renew_time: Some(microseconds(self.clock.now())),
            ..lease.spec.unwrap_or_default()
        });
        own(&mut lease, name, node_uid);
        lease
    }
}

/// The lease is owned by its node and deleted with it.
fn own(lease: &mut Lease, name: &NodeName, node_uid: Option<&str>) {
    let Some(uid) = node_uid else { return };
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: core::Node::kind_of().api_version(),
        kind: core::Node::kind_of().kind().into(),
        name: name.into(),
        uid: uid.into(),
        ..OwnerReference::default()
    }]);
}
