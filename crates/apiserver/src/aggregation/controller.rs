//! The APIService controller: one task for each APIService that names a Service. It checks the availability when the Service,
//! its endpoints or the APIService change and at intervals, and downloads the discovery and OpenAPI documents.
//!
//! A server that hangs blocks only its own task. Each API server of a cluster checks for itself, as kube-apiservers do.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::registry::Registered;
use knarr_api::well_known::SERVICE_NAME;
use knarr_api::{Object, k8s_openapi, registry};
use knarr_apimachinery::Error;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::ExtensionServers;
use super::availability::AvailableCondition;
use super::backend::{Backend, available};
use super::spec::Spec;
use crate::cache::change::{Change, Filter};
use crate::loopback::LoopbackClient;
use crate::request::{Ctx, Target};

/// The interval of checks without a change, and the first retry delay after a failure; it doubles up to the interval.
const CHECK_EVERY: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The interval of downloads of a server's discovery and OpenAPI documents.
const DOWNLOAD_EVERY: Duration = Duration::from_secs(60);
/// Pods may not be reachable at once after a start: during this time a server that does not respond is not reported.
const STARTUP_GRACE: Duration = Duration::from_secs(10);
/// The retry delay after an error of the controller itself.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Runs until the server is dropped.
pub(crate) async fn run_api_service_controller(controller: Weak<ApiServiceController>) {
    let mut workers: BTreeMap<String, (Arc<Backend>, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let Some(strong) = controller.upgrade() else {
            return;
        };
        let everything = Filter::everything(&registry::API_SERVICE, "");
        let subscription = strong
            .client
            .cache()
            .of(&registry::API_SERVICE)
            .and_then(|cache| cache.subscribe(&everything, None));
        let mut changes = match subscription {
            Ok(subscription) => subscription.changes,
            Err(e) => {
                warn!("cannot watch APIServices, trying again: {e}");
                drop(strong);
                sleep(RETRY_DELAY).await;
                continue;
            }
        };
        drop(strong);
        loop {
            let Some(strong) = controller.upgrade() else {
                return;
            };
            let backends = strong.sync_backends();
            workers.retain(|_, (backend, _)| backends.iter().any(|b| Arc::ptr_eq(b, backend)));
            for backend in backends.iter() {
                workers.entry(backend.name.clone()).or_insert_with(|| {
                    let task = tokio::spawn(run_backend(controller.clone(), backend.clone()));
                    (backend.clone(), AbortOnDropHandle::new(task))
                });
            }
            strong.report_local().await;
            drop(strong);
            if changes.recv().await.is_none() {
                break;
            }
            while changes.try_recv().is_ok() {}
        }
    }
}

/// Checks one APIService until its spec changes or it is deleted.
async fn run_backend(controller: Weak<ApiServiceController>, backend: Arc<Backend>) {
    let mut retry = RETRY_FIRST;
    let mut downloaded: Option<Instant> = None;
    loop {
        let Some(strong) = controller.upgrade() else {
            return;
        };
        let mut events = match strong.watch_service(&backend) {
            Ok(events) => events,
            Err(e) => {
                warn!(
                    apiservice = backend.name,
                    "cannot watch a Service, trying again: {e}"
                );
                drop(strong);
                sleep(RETRY_DELAY).await;
                continue;
            }
        };
        drop(strong);
        loop {
            let Some(strong) = controller.upgrade() else {
                return;
            };
            let condition = strong.servers.check_availability(&backend).await;
            let mut wait = CHECK_EVERY;
            match strong.report(&backend, &condition).await {
                Ok(()) if condition.available => retry = RETRY_FIRST,
                outcome => {
                    if let Err(e) = outcome {
                        warn!(
                            apiservice = backend.name,
                            "cannot update the condition Available: {e}"
                        );
                    }
                    wait = retry;
                    retry = CHECK_EVERY.min(retry * 2);
                }
            }
            if !condition.available {
                downloaded = None;
            } else if downloaded.is_none_or(|at| at.elapsed() >= DOWNLOAD_EVERY) {
                let complete = strong.servers.download(&backend).await;
                downloaded = Some(Instant::now()).filter(|_| complete);
                if !complete {
                    wait = wait.min(RETRY_DELAY * 5);
                }
            }
            drop(strong);
            match timeout(wait, events.changed()).await {
                Err(_) => {}
                Ok(true) => retry = RETRY_FIRST,
                Ok(false) => break,
            }
        }
    }
}

/// Watches of a Service and its EndpointSlices.
struct ServiceEvents {
    service: String,
    services: Receiver<Arc<Change>>,
    slices: Receiver<Arc<Change>>,
}

impl ServiceEvents {
    /// Waits for the next event. False if a watch has ended.
    async fn changed(&mut self) -> bool {
        loop {
            tokio::select! {
                biased;
                change = self.services.recv() => match change {
                    None => return false,
                    Some(change) if change.object.name() == self.service => break,
                    Some(_) => {}
                },
                change = self.slices.recv() => match change {
                    None => return false,
                    Some(change) if is_of(&change.object, &self.service)
                        || change.prev.as_ref().is_some_and(|o| is_of(o, &self.service)) => break,
                    Some(_) => {}
                },
            }
        }
        while self.services.try_recv().is_ok() || self.slices.try_recv().is_ok() {}
        true
    }
}

fn is_of(slice: &Object, service: &str) -> bool {
    let labels = slice.metadata().labels.as_ref();
    labels
        .and_then(|l| l.get(SERVICE_NAME))
        .is_some_and(|of| of == service)
}

/// Checks and downloads, and sets the conditions of APIServices. See the module.
pub(crate) struct ApiServiceController {
    pub servers: Arc<ExtensionServers>,
    pub client: LoopbackClient,
}

impl ApiServiceController {
    /// Updates the backends from the existing APIServices.
    pub fn sync_backends(&self) -> Arc<[Arc<Backend>]> {
        let before = self.servers.aggregation.backends();
        let mut changed = false;
        let mut backends = Vec::new();
        for object in self.client.list(&registry::API_SERVICE) {
            let Some(api_service) = object.get::<APIService>() else {
                continue;
            };
            // The core group is always served by this server, whatever an APIService says: without it the cluster does not work.
            let Some(spec) = Spec::of(api_service).filter(|s| !s.group.is_empty()) else {
                continue;
            };
            let kept = before
                .iter()
                .find(|b| b.name == object.name() && b.spec == spec)
                .cloned();
            let backend = kept.unwrap_or_else(|| {
                changed = true;
                let identity = self.servers.aggregation.identity.as_ref();
                Arc::new(Backend::new(object.name(), spec, identity, &self.servers.nodes))
            });
            changed |= backend.update(api_service);
            backends.push(backend);
        }
        changed |= backends.len() != before.len();
        let backends: Arc<[Arc<Backend>]> = backends.into();
        *self.servers.aggregation.backends.write() = backends.clone();
        if changed {
            self.servers.aggregation.changed();
        }
        backends
    }

    fn watch_service(&self, backend: &Backend) -> Result<ServiceEvents, Error> {
        let watch = |kind| {
            let filter = Filter::everything(kind, &backend.spec.namespace);
            self.client.cache().of(kind)?.subscribe(&filter, None)
        };
        Ok(ServiceEvents {
            service: backend.spec.service.clone(),
            services: watch(&registry::SERVICE)?.changes,
            slices: watch(&registry::ENDPOINT_SLICE)?.changes,
        })
    }

    /// Reports APIServices without a Service as available: this server serves them.
    async fn report_local(&self) {
        for object in self.client.list(&registry::API_SERVICE) {
            let Some(api_service) = object.get::<APIService>() else {
                continue;
            };
            let local = api_service.spec.as_ref().is_some_and(|s| s.service.is_none());
            let changes = || AvailableCondition::local().write(&mut api_service.clone(), self.client.now());
            if !local || !changes() {
                continue;
            }
            if let Err(e) = self
                .write_condition(object.name(), None, &AvailableCondition::local())
                .await
            {
                debug!(
                    apiservice = object.name(),
                    "cannot update the condition Available: {e}"
                );
            }
        }
    }

    async fn report(&self, backend: &Backend, condition: &AvailableCondition) -> Result<(), Error> {
        let before = self.client.get(&registry::API_SERVICE, "", &backend.name);
        let before = before.as_ref().and_then(|o| o.get::<APIService>());
        let Some(before) = before else { return Ok(()) };
        let starting = self.servers.aggregation.started.elapsed() < STARTUP_GRACE;
        if starting && available(before) && condition.reason == "FailedDiscoveryCheck" {
            debug!(
                apiservice = backend.name,
                "not available, not reported during startup: {}", condition.message
            );
            return Ok(());
        }
        if !condition.write(&mut before.clone(), self.client.now()) {
            return Ok(());
        }
        if available(before) != condition.available {
            info!(
                apiservice = backend.name,
                available = condition.available,
                reason = condition.reason,
                "an APIService's availability has changed: {}",
                condition.message
            );
            if !condition.available {
                self.servers
                    .aggregation
                    .became_unavailable(&backend.name, condition.reason);
            }
        }
        self.write_condition(&backend.name, Some(&backend.spec), condition)
            .await
    }

    /// Writes the condition, if the APIService is still the one that was checked.
    async fn write_condition(
        &self,
        name: &str,
        checked: Option<&Spec>,
        condition: &AvailableCondition,
    ) -> Result<(), Error> {
        let target = Target {
            subresource: "status",
            ..Target::main(&registry::API_SERVICE, "", name)
        };
        let now = self.client.now();
        let mut set_condition = |_: &mut Ctx, current: &Arc<Object>| {
            let mut next = current
                .to_typed::<APIService>()
                .ok_or_else(|| Error::internal("an object stored as an APIService does not decode as one"))?;
            if Spec::of(&next).as_ref() == checked {
                condition.write(&mut next, now);
            }
            Ok(next.into_object())
        };
        match self.client.update(&target, &mut set_condition).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}
