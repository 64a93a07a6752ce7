//! Runs the controller of TopologyDomains (SPEC B3), and has the scheduler follow its objects. Without objects it waits for one.

use std::sync::Arc;
use std::time::Duration;

use knarr_api::{Object, registry};
use knarr_client::custom_kinds::KindChange;
use knarr_client::{Caches, Component};
use knarr_controllers::topology_domains::kinds::definition;
use knarr_controllers::topology_domains::{self as controller, has_objects};
use knarr_scheduler::topology_domains::is_kind;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::definitions::establish;
use crate::executor::Executor;
use crate::runner::{Base, contain_writes};
use crate::view::CacheView;

/// The service account it acts as.
pub const ACCOUNT: &str = "knarr-topology-domains-controller";
/// The resync period while there are objects: domains are lost without any change.
const PERIOD: Duration = Duration::from_secs(5);
/// Changes within this time are handled by one sync.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The time between two attempts to create the CustomResourceDefinition.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the scheduler waits for the objects when it starts. Later it decides without them, as without a declaration.
const SYNC: Duration = Duration::from_secs(10);

/// Runs until dropped.
pub async fn run(base: Base) {
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), "topology-domains-controller");
    while let Err(error) = establish(&*api, [definition()]).await {
        debug!(%error, "the CustomResourceDefinition of TopologyDomains is not established yet");
        sleep(RETRY_INTERVAL).await;
    }
    let wake = Arc::new(Notify::new());
    for kind in controller::watches() {
        let store = base.caches.store(kind);
        let changed = wake.clone();
        store.add_event_handler(move |change| {
            let (old, new) = (change.before(), change.after());
            if controller::is_relevant(old.map(|o| &**o), new.map(|o| &**o)) {
                changed.notify_one();
            }
        });
        store.synced().await;
    }
    let executor = Executor::new(api, events);
    let view = CacheView(base.caches);
    loop {
        for actions in controller::sync(&view, base.clock.now()) {
            let outcome = executor.run(actions).await;
            // The next sync decides on the state of that time.
            if !contain_writes(&view, &controller::watches(), &outcome.written).await {
                warn!("the caches do not show the status of TopologyDomains that was written");
            }
            if let Some(failure) = outcome.failure {
                let (name, error) = (&failure.name, &failure.error);
                if error.is_conflict() || error.is_not_found() {
                    debug!(name, %error, "TopologyDomains: again");
                } else {
                    warn!(name, %error, "the status of TopologyDomains was not written");
                }
            }
        }
        let changed = async {
            wake.notified().await;
            sleep(DEBOUNCE).await;
        };
        if has_objects(&view) {
            // Whether it is the time or a change: the next sync decides.
            let _ = timeout(PERIOD, changed).await;
        } else {
            changed.await;
        }
    }
}

/// Calls `set` with the name and the state (`None`: it is deleted) of each object that there is, and of each that changes, from the
/// caches of custom kinds: a cluster without the kind has no informer for it.
pub(crate) async fn follow(
    caches: &Arc<Caches>,
    set: impl Fn(&str, Option<&Object>) + Send + Sync + 'static,
) {
    let set = Arc::new(set);
    caches.add_custom_kind_handler(move |change| {
        let KindChange::Added(store) = change else { return };
        if is_kind(store.kind()) {
            let set = set.clone();
            store.add_event_handler(move |change| {
                set(change.object().name(), change.after().map(|o| &**o));
            });
        }
    });
    caches.store(&registry::CUSTOM_RESOURCE_DEFINITION).synced().await;
    for kind in caches.custom_kinds().iter().filter(|kind| is_kind(kind)) {
        if let Some(store) = caches.existing(kind)
            && timeout(SYNC, store.synced()).await.is_err()
        {
            warn!("TopologyDomains cannot be listed; scheduling without them");
        }
    }
}
