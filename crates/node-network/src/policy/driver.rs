//! Has the kernel follow the state.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use knarr_api::k8s_openapi;
use knarr_api::registry::NETWORK_POLICY;
use knarr_client::events::EventRecorder;
use knarr_client::workqueue::Backoff;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tracing::{debug, info, warn};

use super::State;
use super::events::Reporter;
use super::informers::{self, forget_peers};

/// Between two questions whether the table is still there.
const GLANCE_EVERY: Duration = Duration::from_secs(5);
/// Between two comparisons of everything.
const COMPARE_EVERY: Duration = Duration::from_secs(300);
/// Between two attempts to install policies that did not fit.
const REREAD_EVERY: Duration = Duration::from_secs(30);
/// So many of them at once.
const REREAD: usize = 100;
/// How long pods of other nodes are watched after the last policy that needs them.
const KEEP_PEERS: Duration = Duration::from_secs(60);
/// Before everything is compared again after an error.
const RETRY: Backoff = Backoff {
    base: Duration::from_millis(10),
    max: Duration::from_secs(30),
};

/// The watch of other nodes' pods, while it is needed.
#[derive(Default)]
struct Peers {
    tasks: JoinSet<()>,
    watch: Option<AbortHandle>,
    unneeded_since: Option<Instant>,
}

impl Peers {
    fn adjust(&mut self, state: &Arc<State>) {
        let is_needed = state.policies.lock().needs_pods();
        match (&self.watch, is_needed) {
            (None, true) => self.watch = Some(self.tasks.spawn(informers::peers(state))),
            (Some(_), true) => self.unneeded_since = None,
            (Some(watch), false) => {
                let since = *self.unneeded_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= KEEP_PEERS {
                    watch.abort();
                    self.watch = None;
                    self.unneeded_since = None;
                    forget_peers(state);
                }
            }
            (None, false) => {}
        }
        // Tasks that were aborted are collected here.
        while self.tasks.try_join_next().is_some() {}
    }
}

pub(super) async fn run(state: Arc<State>, events: Option<EventRecorder>) {
    let mut peers = Peers::default();
    let mut reporter = Reporter::new(events);
    state.reached.wait_for(|reached| reached.is_synced()).await;
    // What the kernel has was made with peers, so they are known before it is replaced.
    state.policies.lock().ruleset();
    peers.adjust(&state);
    if peers.watch.is_some() {
        state.reached.wait_for(|reached| reached.peers.is_some()).await;
    }
    let mut glance = ticks(GLANCE_EVERY);
    let mut compare = ticks(COMPARE_EVERY);
    let mut reread = ticks(REREAD_EVERY);
    loop {
        sync(&state).await;
        peers.adjust(&state);
        reporter.report(&state.policies.lock().problems());
        // In this order, so that continuous changes block nothing else.
        tokio::select! {
            biased;
            _ = glance.tick() => check(&state).await,
            _ = compare.tick() => state.table.forget(),
            _ = reread.tick() => reread_policies(&state).await,
            () = state.wake.notified() => {}
        }
    }
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns when the kernel has what was known at the beginning. After an error everything is compared, as often as
/// necessary.
async fn sync(state: &Arc<State>) {
    let mut failures = 0;
    loop {
        let version = {
            let _consistent = state.policies.lock();
            *state.version.lock()
        };
        let begun = Instant::now();
        match state.table.sync(&state.policies).await {
            Ok(is_full) => {
                state.metrics.synced(begun.elapsed(), is_full);
                state.committed.set(Some(version));
                return;
            }
            Err(error) if failures == 0 && error.is_not_found() => {
                info!(%error, "the table of NetworkPolicies is not as it was, everything is compared");
            }
            Err(error) => {
                warn!(%error, "cannot program NetworkPolicies, everything is compared again");
            }
        }
        state.metrics.failed();
        sleep(RETRY.after(failures)).await;
        failures = (failures + 1).min(16);
    }
}

async fn check(state: &Arc<State>) {
    match state.table.is_intact(&state.policies).await {
        Ok(true) => {}
        Ok(false) => {
            warn!("sets or chains of NetworkPolicies were deleted, everything is compared");
            state.table.forget();
        }
        Err(error) => {
            warn!(%error, "cannot read the table of NetworkPolicies, everything is compared");
            state.table.forget();
        }
    }
}

/// Policies whose rules were left out may fit by now.
async fn reread_policies(state: &Arc<State>) {
    let reduced = state.policies.lock().reduced_policies();
    for key in reduced.into_iter().take(REREAD) {
        match state.api.get(&NETWORK_POLICY, &key.namespace, &key.name).await {
            Ok(object) => {
                if let Some(policy) = object.to_typed::<NetworkPolicy>() {
                    state.change(|policies| policies.apply_policy(&policy));
                }
            }
            Err(error) => debug!(%error, policy = %key, "cannot read a policy again"),
        }
    }
}
