//! The scheduler's deciding core alone: no API, no store, no network.

use std::sync::Arc;

use knarr_api::k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use knarr_scheduler::{Action, Scheduler};
use serde_json::Value;

use super::{Workload, node, stuck};
use crate::process::Result;

/// What one workload came to.
pub struct Found {
    pub pods: usize,
    pub seconds: f64,
}

impl Found {
    pub fn per_second(&self) -> f64 {
        self.pods as f64 / self.seconds.max(1e-9)
    }
}

pub(super) fn shared<T: Registered>(value: Value) -> Result<Shared<T>> {
    let typed: T = serde_json::from_value(value)?;
    let object = Object::from_typed(T::kind_of(), Box::new(typed));
    Ok(Shared::new(Arc::new(object))?)
}

/// After so many reports the scheduler does not make progress.
const TOO_MANY: usize = 1_000_000;

/// Carries out the scheduler's decisions at once: pods are bound, victims deleted. Returns how many pods were bound.
fn drain(scheduler: &mut Scheduler, clock: &mut Timestamp) -> Result<usize> {
    let (mut bound, mut reports) = (0, 0);
    loop {
        let Some(action) = scheduler.schedule_one(*clock) else {
            // What is in back-off because of its victims comes when that is over.
            match scheduler.next_due() {
                Some(due) if reports < TOO_MANY => {
                    *clock = due;
                    continue;
                }
                _ => return Ok(bound),
            }
        };
        match action {
            Action::Bind { pod, node, .. } => {
                scheduler.bound(&pod);
                let mut object = Pod::clone(&pod);
                object.spec.get_or_insert_default().node_name = Some(node.into());
                let object = Object::from_typed(Pod::kind_of(), Box::new(object));
                let now = Shared::new(Arc::new(object))?;
                scheduler.pod_changed(Some(&pod), Some(&now), *clock);
                bound += 1;
            }
            Action::Report { .. } => reports += 1,
            Action::Preempt { pod, victims, .. } => {
                scheduler.preempted(&pod, false, *clock);
                for victim in &victims {
                    scheduler.pod_changed(Some(victim), None, *clock);
                }
            }
        }
    }
}

/// Runs one; `seconds` is a clock.
pub fn run(workload: &Workload, seconds: &dyn Fn() -> f64) -> Result<Found> {
    let mut scheduler = Scheduler::default();
    let mut clock = Timestamp::UNIX_EPOCH;
    for n in 0..workload.nodes {
        let node = shared::<Node>(node(n))?;
        scheduler.node_changed(node.object().name(), Some(node.clone()), clock);
    }
    let pods = |of: fn(usize) -> Value, from: usize, count: usize| -> Result<Vec<Shared<Pod>>> {
        (from..from + count).map(|n| shared(of(n))).collect()
    };
    for pod in pods(stuck, 0, workload.stuck)? {
        scheduler.pod_changed(None, Some(&pod), clock);
    }
    let (count, of) = workload.initial;
    for pod in pods(of, 0, count)? {
        scheduler.pod_changed(None, Some(&pod), clock);
    }
    drain(&mut scheduler, &mut clock)?;
    let (count, of) = workload.measured;
    let measured = pods(of, workload.initial.0, count)?;
    let start = seconds();
    for pod in &measured {
        scheduler.pod_changed(None, Some(pod), clock);
    }
    let bound = drain(&mut scheduler, &mut clock)?;
    if bound != count {
        return Err(format!("{}: {bound} of {count} pods were bound", workload.name).into());
    }
    Ok(Found {
        pods: count,
        seconds: seconds() - start,
    })
}
