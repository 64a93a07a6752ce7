//! Follows the APIServices: one task for each that names a Service, which checks it when the Service, its endpoints or
//! the APIService change and at intervals, and downloads what discovery and OpenAPI show of it.
//!
//! A server that hangs holds up its own task only. Each API server of a cluster checks for itself, as kube-apiservers do.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::{AnyObject, Error, Object, k8s_openapi, registry};
use knarr_client::Preconditions;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::availability::Verdict;
use super::backend::{Backend, Spec, available};
use super::endpoint::SERVICE_LABEL;
use crate::cache::change::{Change, Filter};
use crate::pipeline::{Ctx, Target};
use crate::server::Server;

/// An APIService is checked again so often without any change, and after the first of several failures so soon.
const CHECK_EVERY: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// What discovery and OpenAPI show of a server is downloaded again so often.
const DOWNLOAD_EVERY: Duration = Duration::from_secs(60);
/// Pods are not reached at once after a start: that a server does not answer any more is not reported before.
const STARTING: Duration = Duration::from_secs(10);
/// How soon something that failed here is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the server goes.
pub(crate) async fn look_after_extension_servers(server: Weak<Server>) {
    let mut workers: BTreeMap<String, (Arc<Backend>, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let Some(strong) = server.upgrade() else { return };
        let everything = Filter::everything(&registry::API_SERVICE, "");
        let subscription = strong
            .cache
            .of(&registry::API_SERVICE)
            .and_then(|cache| cache.subscribe(&everything, None));
        let mut changes = match subscription {
            Ok(subscription) => subscription.changes,
            Err(e) => {
                warn!("cannot watch APIServices, trying again: {e}");
                drop(strong);
                sleep(AGAIN).await;
                continue;
            }
        };
        drop(strong);
        loop {
            let Some(strong) = server.upgrade() else { return };
            let backends = strong.follow_api_services();
            workers.retain(|_, (backend, _)| backends.iter().any(|b| Arc::ptr_eq(b, backend)));
            for backend in backends.iter() {
                workers.entry(backend.name.clone()).or_insert_with(|| {
                    let task = tokio::spawn(look_after(server.clone(), backend.clone()));
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

/// Looks after one APIService as long as it is what it is.
async fn look_after(server: Weak<Server>, backend: Arc<Backend>) {
    let mut retry = RETRY_FIRST;
    let mut downloaded: Option<Instant> = None;
    loop {
        let Some(strong) = server.upgrade() else { return };
        let mut around = match strong.around(&backend) {
            Ok(around) => around,
            Err(e) => {
                warn!(
                    apiservice = backend.name,
                    "cannot watch a Service, trying again: {e}"
                );
                drop(strong);
                sleep(AGAIN).await;
                continue;
            }
        };
        drop(strong);
        loop {
            let Some(strong) = server.upgrade() else { return };
            let verdict = strong.check_availability(&backend).await;
            let mut wait = CHECK_EVERY;
            match strong.report(&backend, &verdict).await {
                Ok(()) if verdict.available => retry = RETRY_FIRST,
                outcome => {
                    if let Err(e) = outcome {
                        warn!(apiservice = backend.name, "its condition cannot be written: {e}");
                    }
                    wait = retry;
                    retry = CHECK_EVERY.min(retry * 2);
                }
            }
            if !verdict.available {
                downloaded = None;
            } else if downloaded.is_none_or(|at| at.elapsed() >= DOWNLOAD_EVERY) {
                let complete = strong.download(&backend).await;
                downloaded = Some(Instant::now()).filter(|_| complete);
                if !complete {
                    wait = wait.min(AGAIN * 5);
                }
            }
            drop(strong);
            match timeout(wait, around.changed()).await {
                Err(_) => {}
                Ok(true) => retry = RETRY_FIRST,
                Ok(false) => break,
            }
        }
    }
}

/// Changes of a Service and its EndpointSlices.
struct Around {
    service: String,
    services: Receiver<Arc<Change>>,
    slices: Receiver<Arc<Change>>,
}

impl Around {
    /// Returns with the next one; false if they cannot be followed any more.
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
        .and_then(|l| l.get(SERVICE_LABEL))
        .is_some_and(|of| of == service)
}

impl Server {
    /// Brings the table of backends up to date with the APIServices there are.
    pub(crate) fn follow_api_services(&self) -> Arc<[Arc<Backend>]> {
        let before = self.aggregation.backends();
        let everything = Filter::everything(&registry::API_SERVICE, "");
        let cache = self.cache.of(&registry::API_SERVICE);
        let objects = cache.map(|c| c.list(&everything)).unwrap_or_default();
        let mut changed = false;
        let mut backends = Vec::new();
        for object in &objects {
            let Some(api_service) = object.get::<APIService>() else {
                continue;
            };
            // The core group is this server's own, whatever an object says: without it there is no cluster.
            let Some(spec) = Spec::of(api_service).filter(|s| !s.group.is_empty()) else {
                continue;
            };
            let kept = before
                .iter()
                .find(|b| b.name == object.name() && b.spec == spec)
                .cloned();
            let backend = kept.unwrap_or_else(|| {
                changed = true;
                let identity = self.aggregation.identity.as_ref();
                Arc::new(Backend::new(object.name(), spec, identity, &self.nodes))
            });
            changed |= backend.follow(api_service);
            backends.push(backend);
        }
        changed |= backends.len() != before.len();
        let backends: Arc<[Arc<Backend>]> = backends.into();
        *self.aggregation.backends.write() = backends.clone();
        if changed {
            self.aggregation.changed();
        }
        backends
    }

    fn around(&self, backend: &Backend) -> Result<Around, Error> {
        let follow = |kind| {
            let filter = Filter::everything(kind, &backend.spec.namespace);
            self.cache.of(kind)?.subscribe(&filter, None)
        };
        Ok(Around {
            service: backend.spec.service.clone(),
            services: follow(&registry::SERVICE)?.changes,
            slices: follow(&registry::ENDPOINT_SLICE)?.changes,
        })
    }

    /// Those that name no Service any more are served here, and available.
    async fn report_local(&self) {
        let everything = Filter::everything(&registry::API_SERVICE, "");
        let cache = self.cache.of(&registry::API_SERVICE);
        for object in cache.map(|c| c.list(&everything)).unwrap_or_default() {
            let Some(api_service) = object.get::<APIService>() else {
                continue;
            };
            let local = api_service.spec.as_ref().is_some_and(|s| s.service.is_none());
            let changes = || Verdict::local().write(&mut api_service.clone(), self.clock.now());
            if !local || !changes() {
                continue;
            }
            if let Err(e) = self.write_verdict(object.name(), None, &Verdict::local()).await {
                debug!(apiservice = object.name(), "its condition cannot be written: {e}");
            }
        }
    }

    async fn report(&self, backend: &Backend, verdict: &Verdict) -> Result<(), Error> {
        let before = self.cache.get(&registry::API_SERVICE, "", &backend.name);
        let before = before.as_ref().and_then(|o| o.get::<APIService>());
        let Some(before) = before else { return Ok(()) };
        let starting = self.aggregation.started.elapsed() < STARTING;
        if starting && available(before) && verdict.reason == "FailedDiscoveryCheck" {
            debug!(apiservice = backend.name, "not reported yet: {}", verdict.message);
            return Ok(());
        }
        if !verdict.write(&mut before.clone(), self.clock.now()) {
            return Ok(());
        }
        if available(before) != verdict.available {
            info!(
                apiservice = backend.name,
                available = verdict.available,
                reason = verdict.reason,
                "an APIService's availability has changed: {}",
                verdict.message
            );
            if !verdict.available {
                self.aggregation.became_unavailable(&backend.name, verdict.reason);
            }
        }
        self.write_verdict(&backend.name, Some(&backend.spec), verdict)
            .await
    }

    /// Writes the condition, if the APIService is still the one that was checked.
    async fn write_verdict(
        &self,
        name: &str,
        checked: Option<&Spec>,
        verdict: &Verdict,
    ) -> Result<(), Error> {
        let target = Target {
            subresource: "status",
            ..Target::main(&registry::API_SERVICE, "", name)
        };
        let none = Preconditions::default();
        let now = self.clock.now();
        let mut step = |_: &mut Ctx, current: &Arc<Object>| {
            let mut next = current
                .to_typed::<APIService>()
                .ok_or_else(|| Error::internal("an APIService that is none"))?;
            if Spec::of(&next).as_ref() == checked {
                verdict.write(&mut next, now);
            }
            Ok(Box::new(next) as Box<dyn AnyObject>)
        };
        let written = self.update(&mut self.myself(), &target, &none, &mut step).await;
        match written {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}
