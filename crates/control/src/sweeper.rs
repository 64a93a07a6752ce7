//! Runs one [`Sweep`]: evaluates the caches periodically and carries out its decisions.

use knarr_client::Component;
use knarr_controllers::sweep::Sweep;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::executor::Executor;
use crate::runner::Base;
use crate::view::CacheView;

/// Runs until dropped.
pub async fn run(base: Base, mut sweep: Box<dyn Sweep>) {
    // Requested before the first is awaited, so that they fill concurrently.
    let stores: Vec<_> = sweep
        .watches()
        .into_iter()
        .map(|kind| base.caches.store(kind))
        .collect();
    for store in stores {
        store.synced().await;
    }
    let (api, events) = base.acting_as(&Component::Controller(sweep.account()), sweep.name());
    let executor = Executor::new(api, events);
    let view = CacheView(base.caches);
    loop {
        for actions in sweep.sweep(&view, base.clock.now()) {
            let Some(failure) = executor.run(actions).await.failure else {
                continue;
            };
            // The next sweep decides again.
            let (controller, name, error) = (sweep.name(), &failure.name, &failure.error);
            if error.is_conflict() || error.is_not_found() {
                debug!(controller, kind = failure.kind.plural(), name, %error, "again");
            } else {
                warn!(controller, kind = failure.kind.plural(), name, %error, "failed");
            }
        }
        sleep(sweep.period()).await;
    }
}
