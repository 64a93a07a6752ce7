//! The process that preempts across nodes dies, or is cut off from the API, between the record of its decision and the end of the last
//! victim (SPEC B5).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Faults, cut_for, leads};
use crate::components::Control;
use crate::coverage::Scope;
use crate::later::later;
use crate::observer::Observer;
use crate::random::Stream;
use crate::rules::b5_cross_node::{blocked_on, preemptors};
use crate::switches::Switch;
use crate::world::WITHOUT_LEASE;

/// A fault that waits for a preemption gives up after that.
const WAITS_FOR_RECORD: Duration = Duration::from_secs(60);
/// Faults that cut the process off and do not kill it, per mille.
const CUTS_PER_MILLE: u32 = 350;
/// The time in which the requests for all evictions are sent: each takes a few milliseconds.
const SENT_WITHIN_MILLIS: u64 = 12;
/// The time in which victims terminate.
const ENDED_WITHIN_MILLIS: u64 = 5_000;

/// Returns when a preemption with victims on several nodes is recorded.
async fn recorded(observer: &Observer) {
    let nomination = observer.world(|world| world.placement.nomination.clone());
    loop {
        nomination.notified().await;
        if observer.world(|world| blocked_on(world).len()) > 1 {
            return;
        }
    }
}

impl Faults {
    /// Waits for the next preemption with victims on several nodes and interrupts it: at once, while its evictions are requested, or while
    /// its victims terminate.
    pub fn interrupt_preemption(&self, chance: &mut Stream) {
        let length = self.lengths.draw(chance);
        let is_cut = chance.per_mille(CUTS_PER_MILLE);
        let after = match chance.between(0, 2) {
            0 => Duration::ZERO,
            1 => chance.millis(1, SENT_WITHIN_MILLIS),
            _ => chance.millis(SENT_WITHIN_MILLIS, ENDED_WITHIN_MILLIS),
        };
        let shared = self.interruptions.clone();
        if shared.waits.swap(true, Ordering::Relaxed) {
            return;
        }
        let (observer, controls) = (self.observer.clone(), self.controls.clone());
        tokio::spawn(async move {
            let is_recorded = timeout(WAITS_FOR_RECORD, recorded(&observer)).await.is_ok();
            shared.waits.store(false, Ordering::Relaxed);
            if !is_recorded {
                return;
            }
            if !after.is_zero() {
                sleep(after).await;
            }
            let has_victims = observer.world(|world| !blocked_on(world).is_empty());
            if has_victims && !shared.healed.load(Ordering::Relaxed) {
                interrupt(&observer, &controls, length, is_cut);
            }
        });
    }
}

/// Strikes the replicas whose scheduler may preempt: the leader, and the one that ignores the lease.
fn interrupt(observer: &Observer, controls: &[Arc<Control>], length: Duration, is_cut: bool) {
    let leader = observer.leader().unwrap_or_default();
    let preempts = |control: &&Arc<Control>| {
        leads(&leader, &control.network.name) || control.network.name == WITHOUT_LEASE
    };
    let struck: Vec<Arc<Control>> = controls.iter().filter(preempts).cloned().collect();
    if struck.is_empty() {
        return;
    }
    let names: Vec<&str> = struck
        .iter()
        .map(|control| control.network.name.as_str())
        .collect();
    observer.strikes(Switch::PreemptionCrash, Scope::Cluster);
    observer.note(&format!(
        "fault: {} of {} in the middle of a preemption across nodes for {} ms",
        if is_cut { "partition" } else { "crash" },
        names.join(", "),
        length.as_millis()
    ));
    let uids = observer.world(|world| preemptors(world).map(|(uid, _)| uid.clone()).collect::<Vec<_>>());
    observer.change_placement(|placement, _| placement.interrupted.extend(uids));
    for control in &struck {
        // The rules on what is decided without faults must know it before the next second.
        observer.set_well(&control.network.name, false);
    }
    if is_cut {
        cut_for(
            struck.iter().map(|control| control.network.clone()).collect(),
            length,
        );
        return;
    }
    struck.iter().for_each(|control| control.crash());
    later(length, move || struck.iter().for_each(|control| control.start()));
}
