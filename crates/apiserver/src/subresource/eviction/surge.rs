//! Surge-first eviction (SPEC B6): decides whether the eviction of a pod that has opted in waits for a replacement.
//!
//! The first request is recorded on the pod, and the ReplicaSet controller creates one more pod. The eviction is granted once the set
//! has `spec.replicas` available pods without those that are replaced. A grant always follows a record, so that two evictions at the same time, by two
//! servers, know of each other: neither counts the other's pod. PodDisruptionBudgets are checked after the grant.

use std::fmt;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::surge_first::{
    EVICTION, SURGE_FIRST, SurgeWindow, eviction_requested, replaced_first, surge_limit, surge_window,
};
use knarr_api::kinds::pod::{DISRUPTION_TARGET, at_most_one, condition, is_active};

/// What the annotation of a pod means for its eviction.
#[derive(Debug, PartialEq)]
pub(super) enum OptIn<'a> {
    No,
    /// The pod is evicted without a replacement, with this warning.
    NotSupported(String),
    /// It is replaced by this ReplicaSet.
    By(&'a OwnerReference),
}

/// Reads the pod alone, so that a pod without the annotation costs nothing.
pub(super) fn opt_in(pod: &Pod) -> OptIn<'_> {
    let annotations = pod.metadata.annotations.as_ref();
    let Some(value) = annotations.and_then(|a| a.get(EVICTION)) else {
        return OptIn::No;
    };
    let name = pod.metadata.name.as_deref().unwrap_or("");
    if value != SURGE_FIRST {
        return OptIn::NotSupported(format!(
            "metadata.annotations[{EVICTION}] of pod {name:?} is {value:?}, expected {SURGE_FIRST:?}: it is evicted without a replacement"
        ));
    }
    if at_most_one(pod) == Some(true) {
        return OptIn::NotSupported(format!(
            "{EVICTION}: {SURGE_FIRST} has no effect on pod {name:?}, which must never run twice"
        ));
    }
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    match owners.iter().find(|owner| owner.controller == Some(true)) {
        Some(owner) if owner.kind == "ReplicaSet" && owner.api_version.starts_with("apps/") => {
            OptIn::By(owner)
        }
        Some(owner) => OptIn::NotSupported(format!(
            "{EVICTION}: {SURGE_FIRST} has no effect on pod {name:?}: only a ReplicaSet creates a replacement first, and its controller \
             is the {} {:?}",
            owner.kind, owner.name
        )),
        None => OptIn::NotSupported(format!(
            "{EVICTION}: {SURGE_FIRST} has no effect on pod {name:?}, which has no controller"
        )),
    }
}

/// What the decision follows from.
pub(super) struct Known<'a> {
    pub pod: &'a Pod,
    pub set: &'a ReplicaSet,
    /// All pods of the set.
    pub pods: &'a [&'a Pod],
    /// Why a pod's Services do not have it as an endpoint yet.
    pub unserved: &'a dyn Fn(&Pod) -> Option<String>,
    pub now: Timestamp,
}

#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// The eviction continues with the budgets.
    Proceed,
    /// The request has to be recorded; the eviction waits.
    Record(Wait),
    /// The eviction waits.
    Wait(Wait),
}

/// What an eviction waits for.
#[derive(Debug, PartialEq)]
pub(super) enum Wait {
    Requested {
        set: String,
        counted: Counted,
    },
    /// As many of the set's pods as may be are replaced already.
    Turn {
        set: String,
        replaced: usize,
        limit: usize,
    },
    NotCreated {
        set: String,
        why: Option<String>,
        counted: Counted,
    },
    NotAvailable {
        /// Whether it was created since the request.
        is_replacement: bool,
        pod: String,
        why: NotAvailable,
        counted: Counted,
    },
}

/// Why a pod does not count as available.
#[derive(Debug, PartialEq)]
pub(super) enum NotAvailable {
    NotScheduled(String),
    NotReady,
    /// Ready for fewer than `minReadySeconds`.
    ReadyFor {
        seconds: i64,
        of: i32,
    },
    NotServed(String),
}

/// The available pods without those that are replaced, and how many there must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub available: usize,
    pub of: usize,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} of {} Ready)", self.available, self.of)
    }
}

impl fmt::Display for NotAvailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAvailable::NotScheduled(why) => write!(f, "is not scheduled: {why}"),
            NotAvailable::NotReady => f.write_str("is not Ready yet"),
            NotAvailable::ReadyFor { seconds, of } => {
                write!(f, "has been Ready for {seconds} s of {of} (minReadySeconds)")
            }
            NotAvailable::NotServed(why) => write!(f, "is Ready but not an endpoint yet: {why}"),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Requested { set, counted } => {
                write!(f, "a replacement was requested from ReplicaSet {set} {counted}")
            }
            Wait::Turn { set, replaced, limit } => write!(
                f,
                "ReplicaSet {set} replaces {limit} of its pods at the same time at most, and {replaced} are being replaced"
            ),
            Wait::NotCreated { set, why, counted } => {
                write!(f, "ReplicaSet {set} has not created the replacement yet")?;
                if let Some(why) = why {
                    write!(f, ": {why}")?;
                }
                write!(f, " {counted}")
            }
            Wait::NotAvailable {
                is_replacement,
                pod,
                why,
                counted,
            } => {
                let what = if *is_replacement { "replacement" } else { "pod" };
                write!(f, "{what} {pod} {why} {counted}")
            }
        }
    }
}

pub(super) fn decide(known: &Known<'_>) -> Decision {
    let Known { pod, set, now, .. } = *known;
    let replicas = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
    let limit = surge_limit(replicas);
    // A set that creates no pods replaces none.
    if limit == 0 || set.metadata.deletion_timestamp.is_some() {
        return Decision::Proceed;
    }
    let is_same = |a: &Pod, b: &Pod| a.metadata.uid == b.metadata.uid;
    let pods = known.pods.iter().copied();
    let active: Vec<&Pod> = pods.filter(|p| is_same(p, pod) || is_left(p)).collect();
    let replaced = replaced_first(active.iter().copied(), replicas, now);
    let is_replaced = |p: &Pod| replaced.iter().any(|r| is_same(r, p));
    let mut others = active;
    others.retain(|p| !is_same(p, pod) && !is_replaced(p));
    let turn = || Wait::Turn {
        set: name(&set.metadata.name),
        replaced: replaced.len(),
        limit,
    };
    match surge_window(pod, now) {
        SurgeWindow::Closed => Decision::Proceed,
        SurgeWindow::Unrequested if replaced.len() >= limit => Decision::Wait(turn()),
        SurgeWindow::Unrequested => Decision::Record(Wait::Requested {
            set: name(&set.metadata.name),
            counted: Availability::of(known, &others, replicas).counted,
        }),
        SurgeWindow::Open if !is_replaced(pod) => Decision::Wait(turn()),
        SurgeWindow::Open => {
            let found = Availability::of(known, &others, replicas);
            found.waits_for(known).map_or(Decision::Proceed, Decision::Wait)
        }
    }
}

/// The availability of the pods that are not replaced.
struct Availability<'a> {
    counted: Counted,
    missing: Vec<(&'a Pod, NotAvailable)>,
}

impl<'a> Availability<'a> {
    fn of(known: &Known<'_>, others: &[&'a Pod], replicas: i32) -> Self {
        let min_ready_seconds = known.set.spec.as_ref().and_then(|s| s.min_ready_seconds);
        let min_ready_seconds = min_ready_seconds.unwrap_or(0);
        let missing: Vec<_> = others
            .iter()
            .filter_map(|pod| Some((*pod, not_available(pod, min_ready_seconds, known)?)))
            .collect();
        Availability {
            counted: Counted {
                available: others.len() - missing.len(),
                of: usize::try_from(replicas).unwrap_or(0),
            },
            missing,
        }
    }

    fn waits_for(self, known: &Known<'_>) -> Option<Wait> {
        let counted = self.counted;
        if counted.available >= counted.of {
            return None;
        }
        let newest = self
            .missing
            .into_iter()
            .max_by_key(|(p, _)| (created(p), p.metadata.uid.as_deref()));
        Some(match newest {
            None => Wait::NotCreated {
                set: name(&known.set.metadata.name),
                why: create_failure(known.set),
                counted,
            },
            Some((newest, why)) => Wait::NotAvailable {
                is_replacement: created(newest) >= eviction_requested(known.pod),
                pod: name(&newest.metadata.name),
                why,
                counted,
            },
        })
    }
}

fn not_available(pod: &Pod, min_ready_seconds: i32, known: &Known<'_>) -> Option<NotAvailable> {
    let Some(ready) = condition(pod, "Ready").filter(|c| c.status == "True") else {
        let unscheduled = condition(pod, "PodScheduled").filter(|c| c.status == "False");
        let why = unscheduled.and_then(|c| c.message.clone().or_else(|| c.reason.clone()));
        return Some(why.map_or(NotAvailable::NotReady, NotAvailable::NotScheduled));
    };
    if min_ready_seconds > 0 {
        let since = ready.last_transition_time.as_ref().map_or(known.now, |t| t.0);
        let ready_for = known.now.duration_since(since);
        if ready_for < SignedDuration::from_secs(i64::from(min_ready_seconds)) {
            return Some(NotAvailable::ReadyFor {
                seconds: ready_for.as_secs().max(0),
                of: min_ready_seconds,
            });
        }
    }
    (known.unserved)(pod).map(NotAvailable::NotServed)
}

/// Whether it counts as a replica, and was not granted an eviction a moment ago.
fn is_left(pod: &Pod) -> bool {
    let is_evicted = condition(pod, DISRUPTION_TARGET).is_some_and(|c| c.status == "True");
    is_active(pod) && !is_evicted
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|t| t.0)
}

fn create_failure(set: &ReplicaSet) -> Option<String> {
    let conditions = set.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions
        .iter()
        .find(|c| c.type_ == "ReplicaFailure" && c.status == "True")?;
    failure.message.clone()
}

fn name(of: &Option<String>) -> String {
    of.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests;
