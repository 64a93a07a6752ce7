//! Runs the controller of TopologyDomains (SPEC B3), and has the scheduler follow its objects. Without objects it waits for one.
//!
//! MachineDeployments are read from the caches of custom kinds, which are those of the garbage collector: they are watched in whichever version
//! the cluster prefers, when their CustomResourceDefinition exists, and the controller's own account needs no role for them.

use std::sync::Arc;
use std::time::Duration;

use knarr_api::{Kind, Object, registry};
use knarr_client::custom_kinds::KindChange;
use knarr_client::{Caches, Component, Store};
use knarr_controllers::topology_domains::kinds::definition;
use knarr_controllers::topology_domains::{
    self as controller, MachineDeployments, has_objects, is_machine_deployment,
};
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
/// How long the start waits for the objects of a custom kind: the scheduler decides without them then, as without a declaration.
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
        wake_on_changes(&store, &wake);
        store.synced().await;
    }
    let changed = wake.clone();
    follow_kind(&base.caches, is_machine_deployment, move |change| {
        if let KindChange::Added(store) = change {
            wake_on_changes(store, &changed);
        }
        changed.notify_one();
    })
    .await;
    let executor = Executor::new(api, events);
    let view = CacheView(base.caches);
    loop {
        let machine_deployments = machine_deployments(&view.0);
        for actions in controller::sync(&view, &machine_deployments, base.clock.now()) {
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

fn wake_on_changes(store: &Store, wake: &Arc<Notify>) {
    let wake = wake.clone();
    store.add_event_handler(move |change| {
        let (old, new) = (change.before(), change.after());
        if controller::is_relevant(old.map(|o| &**o), new.map(|o| &**o)) {
            wake.notify_one();
        }
    });
}

/// The MachineDeployments as the caches have them.
fn machine_deployments(caches: &Caches) -> MachineDeployments {
    let Some(kind) = caches.custom_kinds().into_iter().find(is_machine_deployment) else {
        return MachineDeployments::NotServed;
    };
    let store = caches.existing(&kind);
    match store.filter(|store| store.last_sync_revision().is_some()) {
        Some(store) => MachineDeployments::Listed(store.list("")),
        None => MachineDeployments::NotSynced,
    }
}

/// Calls `handler` when the custom kind is served, or no longer, and waits until its objects are listed: a cluster without the kind has no
/// informer for it.
async fn follow_kind(
    caches: &Arc<Caches>,
    is_kind: fn(&Kind) -> bool,
    handler: impl Fn(&KindChange<'_>) + Send + Sync + 'static,
) {
    caches.add_custom_kind_handler(move |change| {
        let is_it = match change {
            KindChange::Added(store) => is_kind(store.kind()),
            KindChange::Removed(kind) => is_kind(kind),
        };
        if is_it {
            handler(change);
        }
    });
    caches.store(&registry::CUSTOM_RESOURCE_DEFINITION).synced().await;
    for kind in caches.custom_kinds().iter().filter(|kind| is_kind(kind)) {
        if let Some(store) = caches.existing(kind)
            && timeout(SYNC, store.synced()).await.is_err()
        {
            warn!(
                kind = kind.plural(),
                "its objects cannot be listed yet; topology domains are counted without them"
            );
        }
    }
}

/// Calls `set` with the name and the state (`None`: it is deleted) of each object that there is, and of each that changes.
pub(crate) async fn follow(
    caches: &Arc<Caches>,
    set: impl Fn(&str, Option<&Object>) + Send + Sync + 'static,
) {
    let set = Arc::new(set);
    let handler = move |change: &KindChange<'_>| {
        let KindChange::Added(store) = change else { return };
        let set = set.clone();
        store.add_event_handler(move |change| {
            set(change.object().name(), change.after().map(|o| &**o));
        });
    };
    follow_kind(caches, is_kind, handler).await;
}
