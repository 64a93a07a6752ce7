//! The doing half of the controllers and the scheduler: caches in, actions out.
//!
//! What is decided is decided in `knarr-controllers` and `knarr-scheduler`; here are loops, queues and requests only.

pub mod executor;
pub mod runner;
pub mod scheduler;
pub mod view;

use std::sync::Arc;

use knarr_client::{Api, Caches, Clock, EventRecorder};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use knarr_controllers::Config;
pub use runner::Base;

/// Runs every controller and the scheduler until `cancel`; nothing of it is left running when this returns.
pub async fn run(api: Arc<dyn Api>, config: Config, clock: Arc<dyn Clock>, cancel: CancellationToken) {
    let caches = Arc::new(Caches::new(api.clone()));
    let events = EventRecorder::new(api.clone(), "controller-manager", "", clock.clone());
    let base = Base {
        api,
        caches: caches.clone(),
        events,
        clock,
    };
    let mut running = JoinSet::new();
    for controller in knarr_controllers::all(&config) {
        running.spawn(runner::run(base.clone(), controller));
    }
    running.spawn(scheduler::run(base, knarr_scheduler::Scheduler::default()));
    tokio::select! {
        () = cancel.cancelled() => {}
        () = watch_over(&mut running) => {}
    }
    running.shutdown().await;
    caches.stop();
}

async fn watch_over(running: &mut JoinSet<()>) {
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended {
            warn!(%error, "a controller ended");
        }
    }
}
