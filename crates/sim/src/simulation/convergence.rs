//! The end of a history: all faults end, and the cluster has to reach the desired state and come to rest (SPEC S9).

use std::sync::Arc;
use std::time::Duration;

use knarr_api::kinds::pod::is_terminal;
use tokio::time::Instant;

use super::running_tolerations;
use crate::components::Node;
use crate::faults::Faults;
use crate::fence_agents::Agents;
use crate::finding::Finding;
use crate::observer::Observer;
use crate::readers::Reader;
use crate::rules::{custom, n3_at_rest, n5_names, n6_policy, quota};
use crate::switches::Switch;
use crate::trouble::{TICK, denied, pass_until};
use crate::users::Users;
use crate::users::staging::stray_volume;

/// The time from the last fault until the desired state is reached: twice the longest backoff (300 s), and the
/// quarter of an hour after which a controller resyncs without an event.
const CONVERGE_WITHIN: Duration = Duration::from_secs(25 * 60);
/// A cluster that has reached the desired state may still have leftovers to remove: until the longest backoff is
/// over.
const COMES_TO_REST_WITHIN: Duration = Duration::from_secs(6 * 60);
/// How much longer that may take because of tolerations that begin meanwhile: 300 s (the admission plugin DefaultTolerationSeconds), and
/// until the pods are replaced.
const TOLERATED_WITHIN: Duration = Duration::from_secs(8 * 60);
/// A pod that was created for an eviction that no client requests any more is kept for eleven minutes after the first request.
const SURGE_ENDS_WITHIN: Duration = Duration::from_secs(14 * 60);
/// Whether the rebalancer moves pods for ever, or an interrupted preemption leaves something, shows at rest only: these histories always
/// have one.
const RESTS: Duration = Duration::from_secs(10 * 60);

/// When the faults ended, and when the desired state was reached.
pub(super) struct Convergence {
    pub(super) healed: Instant,
    pub(super) settled: Instant,
}

impl Convergence {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Convergence {
            healed: now,
            settled: now,
        }
    }

    /// Ends all faults, waits for the desired state, and then for so long, in which the cluster has to be at rest.
    pub(super) async fn run(
        &mut self,
        faults: &Faults,
        users: &mut Users,
        agents: &Arc<Agents>,
        readers: &[Arc<Reader>],
        rest: Duration,
    ) -> std::io::Result<()> {
        let observer = &faults.observer;
        faults.heal().await;
        agents.heal();
        self.healed = Instant::now();
        let committed = observer.world(|world| world.commits.newest_of_pods());
        while observer.violation().is_none() {
            pass_until(Instant::now() + TICK, faults).await;
            end_of_use(users, agents).await.map_err(denied)?;
            let missing = match users.satisfied(&faults.servers).await.map_err(denied)? {
                Ok(()) => strays(observer, &faults.nodes),
                missing => missing,
            };
            let missing = missing
                .and_then(|()| observer.world(stray_volume))
                .and_then(|()| readers.iter().try_for_each(|reader| reader.is_behind(committed)))
                .map_err(|missing| ("S9", missing));
            let missing = missing.and_then(|()| network_differs(observer));
            let Err((rule, missing)) = missing else { break };
            if self.healed.elapsed() > CONVERGE_WITHIN {
                observer.violate(
                    rule,
                    format!("{} s after the last fault: {missing}", CONVERGE_WITHIN.as_secs()),
                );
            }
        }
        self.settled = Instant::now();
        let surges = faults.on.has(Switch::SurgeFirst);
        let is_observed = [Switch::Rebalancing, Switch::PreemptionCrash];
        let rest = match surges || is_observed.iter().any(|switch| faults.on.has(*switch)) {
            true => rest.max(RESTS),
            false => rest,
        };
        let comes_to_rest = if surges {
            SURGE_ENDS_WITHIN
        } else {
            COMES_TO_REST_WITHIN
        };
        if !rest.is_zero() && observer.violation().is_none() {
            let rests_at = until_at_rest(self.settled + comes_to_rest, faults).await;
            observer.rest();
            pass_until(rests_at + rest, faults).await;
        }
        Ok(())
    }
}

/// Lets time pass until the cluster has to be at rest: this moment, unless a toleration runs, which evicts pods when it ends. Returns the
/// moment. A node that is lost again and again delays it no further than [`TOLERATED_WITHIN`], and breaks S9.
async fn until_at_rest(earliest: Instant, faults: &Faults) -> Instant {
    let observer = &faults.observer;
    let latest = earliest + TOLERATED_WITHIN;
    let mut rests_at = earliest;
    while Instant::now() < rests_at && observer.violation().is_none() {
        pass_until(rests_at.min(Instant::now() + TICK), faults).await;
        if let Some(left) = observer.world(running_tolerations::ends_within) {
            rests_at = rests_at.max(latest.min(Instant::now() + left));
        }
    }
    rests_at
}

/// What only users can undo.
async fn end_of_use(users: &mut Users, agents: &Arc<Agents>) -> knarr_client::Result<()> {
    users.drop_finalizers().await?;
    users.make_room().await?;
    users.raise_quotas().await?;
    users.make_placed_room().await?;
    users.give_nodes_back().await?;
    users.switch_on(agents).await
}

/// Processes without a pod, and pods without their processes.
fn strays(observer: &Observer, nodes: &[Arc<Node>]) -> Result<(), Finding> {
    for node in nodes {
        for (id, whose) in node.runtime.running() {
            let uid = whose.split('/').next().unwrap_or_default();
            let accounted = observer.world(|w| {
                w.pods.get(uid).is_some_and(|life| {
                    !life.removed() && life.node() == node.name && !is_terminal(&life.pod)
                })
            });
            if !accounted {
                return Err(Finding(format!(
                    "{id} ({whose}) runs on {} for no pod",
                    node.name
                )));
            }
        }
    }
    Ok(())
}

/// What the kernels of the nodes have and the objects in the API do not say.
fn network_differs(observer: &Observer) -> Result<(), (&'static str, Finding)> {
    observer.world(|world| {
        n6_policy::at_rest(world).map_err(|what| ("N6", what))?;
        n3_at_rest::at_rest(world).map_err(|what| ("N3", what))?;
        n5_names::at_rest(world).map_err(|what| ("N5", what))?;
        quota::at_rest(world).map_err(|what| ("quota", what))?;
        custom::at_rest(world).map_err(|what| ("custom", what))
    })
}
