//! Binds a pod's ResourceClaims before the pod is bound: writes what was allocated to them and that they are reserved for
//! the pod, and waits for the conditions of devices that are to be met before.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use knarr_api::well_known::CLAIM_DELETE_PROTECTION;
use knarr_api::{Kind, k8s_openapi, registry};
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_apimachinery::time::seconds;
use knarr_client::{Caches, DeleteOptions, Error, EventType, Patch, Preconditions, Shared, TypedApi};
use knarr_scheduler::dynamic_resources::claims::{Change, allocation};
use knarr_scheduler::dynamic_resources::extended::{ExtendedClaim, is_for_extended_resources};
use knarr_scheduler::plugins::dynamic_resources::{BINDING_TIMEOUT, ClaimsToBind, is_ready, is_reserved_for};
use knarr_scheduler::pre_bind::PreBindError;
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

use super::Driver;

/// The kinds that allocation reads.
pub(crate) const KINDS: [&Kind; 3] = [
    &registry::DEVICE_CLASS,
    &registry::RESOURCE_SLICE,
    &registry::RESOURCE_CLAIM,
];
/// How often a conflict on a claim is retried.
const ATTEMPTS: usize = 5;

/// Why the claims of a pod are not bound, with its cause, as kube-scheduler's plugin words it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimBindingError {
    #[error("create claim for extended resources {namespace}/: {source}")]
    Create { namespace: String, source: Error },
    #[error("update pod {pod} ExtendedResourceClaimStatus: {message}")]
    PodStatus { pod: String, message: String },
    #[error("add {what} to claim {claim}: {source}")]
    Add {
        what: &'static str,
        claim: String,
        source: Error,
    },
    #[error("get updated claim {claim} after conflict: {source}")]
    Read { claim: String, source: Error },
    #[error("claim {claim} got deleted in the meantime")]
    Deleted { claim: String },
    #[error("claim {claim} got allocated elsewhere in the meantime")]
    Allocated { claim: String },
    #[error("claim {claim} got deallocated elsewhere in the meantime")]
    Deallocated { claim: String },
    #[error(transparent)]
    NotReady(#[from] PreBindError),
    #[error("device binding timeout: context deadline exceeded")]
    Timeout,
}

impl ClaimBindingError {
    fn is_conflict(&self) -> bool {
        matches!(self, ClaimBindingError::Add { source, .. } if source.is_conflict())
    }
}

impl Driver {
    /// Follows devices, classes and claims.
    pub(super) async fn follow_devices(&self, caches: &Arc<Caches>) {
        for kind in KINDS {
            let store = caches.store(kind);
            let driver = self.clone();
            store.add_event_handler(move |change| {
                if let Some(change) = Change::of(change.before(), change.after()) {
                    let now = driver.clock.now();
                    driver.scheduler.lock().devices_changed(&change, now);
                    driver.storage_changed.notify_waiters();
                    driver.wake.notify_one();
                }
            });
            store.synced().await;
        }
    }

    pub(super) async fn bind_claims(
        &self,
        pod: &Shared<Pod>,
        node: &NodeName,
        claims: &ClaimsToBind,
    ) -> Result<(), ClaimBindingError> {
        for (claim, new) in &claims.claims {
            if !is_reserved_for(claim, pod.object().uid()) {
                self.bind_claim(pod, claim, new.as_ref()).await?;
            }
        }
        let mut claims = claims.clone();
        if let Some((extended, new)) = claims.extended.take() {
            let made = self.bind_extended_claim(pod, &extended, &new).await?;
            claims.claims.push((made, None));
        }
        self.wait_for_devices(pod, node, &claims).await
    }

    /// Creates the claim for the pod's extended resources, and records it in the pod's status.
    async fn bind_extended_claim(
        &self,
        pod: &Shared<Pod>,
        extended: &ExtendedClaim,
        new: &AllocationResult,
    ) -> Result<Shared<ResourceClaim>, ClaimBindingError> {
        let (namespace, name) = (pod.object().namespace(), pod.object().name());
        let mut claim = extended.claim.clone();
        claim.metadata.uid = None;
        let made = self.api.create_as(claim).await;
        self.metrics.claim_created(made.is_ok());
        let made = made.map_err(|source| ClaimBindingError::Create {
            namespace: namespace.to_string(),
            source,
        })?;
        let uid = PodUid::from(pod.object().uid());
        let is_on_its_way = self.scheduler.lock().extended_claim_created(&uid, &made);
        if !is_on_its_way {
            return Err(PreBindError::PodGone.into());
        }
        let made = self.bind_claim(pod, &made, Some(new)).await?;
        let pod_status = |error: &dyn std::fmt::Display| ClaimBindingError::PodStatus {
            pod: format!("{namespace}/{name}"),
            message: error.to_string(),
        };
        let mappings = serde_json::to_value(&extended.mappings).map_err(|e| pod_status(&e))?;
        let patch = json!({
            "metadata": {"uid": uid},
            "status": {"extendedResourceClaimStatus": {
                "requestMappings": mappings,
                "resourceClaimName": made.object().name(),
            }},
        });
        let kind = &registry::POD;
        let patched = self
            .api
            .patch(kind, namespace, name, "status", Patch::Strategic(patch))
            .await;
        patched.map_err(|e| pod_status(&e))?;
        Ok(made)
    }

    /// Writes one claim; again, if it has changed meanwhile and that is nothing against it.
    async fn bind_claim(
        &self,
        pod: &Shared<Pod>,
        claim: &Shared<ResourceClaim>,
        new: Option<&AllocationResult>,
    ) -> Result<Shared<ResourceClaim>, ClaimBindingError> {
        let (namespace, name) = (claim.object().namespace(), claim.object().name());
        let id = format!("{namespace}/{name}");
        let mut claim = claim.clone();
        let mut attempt = 1;
        loop {
            match self.write_claim(pod, &claim, new, &id).await {
                Ok(written) => {
                    self.scheduler.lock().claim_written(&written);
                    return Ok(written);
                }
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
            let read = self.api.get_as::<ResourceClaim>(namespace, name).await;
            let read = read.map_err(|source| ClaimBindingError::Read {
                claim: id.clone(),
                source,
            })?;
            if read.object().uid() != claim.object().uid() {
                return Err(ClaimBindingError::Deleted { claim: id });
            }
            claim = read;
        }
    }

    async fn write_claim(
        &self,
        pod: &Shared<Pod>,
        claim: &Shared<ResourceClaim>,
        new: Option<&AllocationResult>,
        id: &str,
    ) -> Result<Shared<ResourceClaim>, ClaimBindingError> {
        let id = || id.to_string();
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(ClaimBindingError::Deleted { claim: id() });
        }
        let mut changed: ResourceClaim = (**claim).clone();
        if let Some(new) = new {
            if allocation(claim).is_some() {
                return Err(ClaimBindingError::Allocated { claim: id() });
            }
            let finalizers = changed.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|f| f == CLAIM_DELETE_PROTECTION) {
                finalizers.push(CLAIM_DELETE_PROTECTION.into());
                let written = self.api.update_as(changed).await;
                let written = written.map_err(|source| ClaimBindingError::Add {
                    what: "finalizer",
                    claim: id(),
                    source,
                })?;
                changed = (*written).clone();
            }
            changed.status.get_or_insert_default().allocation = Some(new.clone());
        }
        let status = changed.status.get_or_insert_default();
        let Some(allocation) = &mut status.allocation else {
            return Err(ClaimBindingError::Deallocated { claim: id() });
        };
        if allocation.allocation_timestamp.is_none() {
            allocation.allocation_timestamp = Some(seconds(self.clock.now()));
        }
        let users = status.reserved_for.get_or_insert_default();
        if !users.iter().any(|user| user.uid == pod.object().uid()) {
            users.push(ResourceClaimConsumerReference {
                api_group: None,
                resource: "pods".into(),
                name: pod.object().name().to_string(),
                uid: pod.object().uid().to_string(),
            });
        }
        let what = if new.is_some() {
            "allocation and reservation"
        } else {
            "reservation"
        };
        let written = self.api.update_status_as(changed).await;
        written.map_err(|source| ClaimBindingError::Add {
            what,
            claim: id(),
            source,
        })
    }

    async fn wait_for_devices(
        &self,
        pod: &Shared<Pod>,
        node: &NodeName,
        claims: &ClaimsToBind,
    ) -> Result<(), ClaimBindingError> {
        let waits = |of: &AllocationResult| {
            let results = of.devices.as_ref().and_then(|d| d.results.as_ref());
            let mut results = results.into_iter().flatten();
            results.any(|r| r.binding_conditions.as_ref().is_some_and(|c| !c.is_empty()))
        };
        let mut all = claims.claims.iter();
        let needs_nothing = all.all(|(claim, new)| match new.as_ref().or(allocation(claim)) {
            Some(of) => !waits(of) || is_ready(claim) == Ok(true),
            None => true,
        });
        if needs_nothing {
            return Ok(());
        }
        let message = format!("waiting for binding conditions for device on node {node}");
        self.event(pod, EventType::Normal, "BindingConditionsPending", message);
        let ready = async {
            loop {
                // Before reading, so that no change in between is missed.
                let changed = self.storage_changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let now = self.clock.now();
                if self.scheduler.lock().claims_ready(pod, claims, now)? {
                    return Ok(());
                }
                changed.await;
            }
        };
        let within = Duration::try_from(BINDING_TIMEOUT).unwrap_or_default();
        let ready = timeout(within, ready).await;
        ready.unwrap_or(Err(ClaimBindingError::Timeout))
    }

    /// Unreserves the claims of a pod that is not bound. Their allocations are kept.
    pub(super) async fn unreserve_claims(&self, pod: &Shared<Pod>, claims: &ClaimsToBind) {
        for (claim, _) in &claims.claims {
            let (namespace, name) = (claim.object().namespace(), claim.object().name());
            let known = self
                .scheduler
                .lock()
                .cluster()
                .devices()
                .claim(namespace, name)
                .cloned();
            if !known.is_some_and(|known| is_reserved_for(&known, pod.object().uid())) {
                continue;
            }
            let users = json!([{"$patch": "delete", "uid": pod.object().uid()}]);
            let patch = json!({
                "metadata": {"uid": claim.object().uid()},
                "status": {"reservedFor": users},
            });
            let kind = &registry::RESOURCE_CLAIM;
            let patched = self
                .api
                .patch(kind, namespace, name, "status", Patch::Strategic(patch))
                .await;
            if let Err(error) = patched
                && !error.is_not_found()
                && !error.is_conflict()
            {
                warn!(claim = ?claim.object(), %error, "cannot unreserve a ResourceClaim");
            }
        }
        if claims.extended.is_some() {
            let (namespace, uid) = (pod.object().namespace(), PodUid::from(pod.object().uid()));
            let made = self
                .scheduler
                .lock()
                .cluster()
                .devices()
                .extended_claim(namespace, &uid)
                .cloned();
            if let Some(made) = made {
                self.delete_extended_claim(made).await;
            }
        }
    }

    /// Deletes a claim for extended resources that no pod uses, with its finalizer.
    async fn delete_extended_claim(&self, mut claim: Shared<ResourceClaim>) {
        let (namespace, name) = (
            claim.object().namespace().to_string(),
            claim.object().name().to_string(),
        );
        for attempt in 1..=ATTEMPTS {
            let mut changed: ResourceClaim = (*claim).clone();
            let finalizers = changed.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|f| f != CLAIM_DELETE_PROTECTION);
            let error = match self.api.update_as(changed).await {
                Ok(_) => break,
                Err(error) if error.is_not_found() => return,
                Err(error) => error,
            };
            let again = error.is_conflict() && attempt < ATTEMPTS;
            match self.api.get_as::<ResourceClaim>(&namespace, &name).await {
                Ok(read) if again && read.object().uid() == claim.object().uid() => claim = read,
                _ => {
                    warn!(claim = ?claim.object(), %error, "cannot delete a ResourceClaim");
                    return;
                }
            }
        }
        let delete = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(claim.object().uid().to_string()),
                ..Preconditions::default()
            },
            ..DeleteOptions::default()
        };
        let kind = &registry::RESOURCE_CLAIM;
        let deleted = self.api.delete(kind, &namespace, &name, delete).await;
        if let Err(error) = deleted
            && !error.is_not_found()
            && !error.is_conflict()
        {
            warn!(claim = ?claim.object(), %error, "cannot delete a ResourceClaim");
        }
    }

    /// Other pods may then get the claim elsewhere. One for extended resources is created again.
    pub(super) async fn deallocate(&self, pod: &Shared<Pod>, claim: &Shared<ResourceClaim>) {
        if is_for_extended_resources(claim, &pod.object().uid().into()) {
            return self.delete_extended_claim(claim.clone()).await;
        }
        let mut changed: ResourceClaim = (**claim).clone();
        changed.status = Some(Default::default());
        match self.api.update_status_as(changed).await {
            Ok(written) => self.scheduler.lock().claim_written(&written),
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => warn!(claim = ?claim.object(), %error, "cannot deallocate a ResourceClaim"),
        }
    }
}
