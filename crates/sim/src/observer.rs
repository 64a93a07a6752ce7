//! Sees everything that happens, writes the trace, and checks every rule.
//!
//! It is called in the same step in which something happens (a commit, a process's start or exit), so no component
//! acts before the rules are checked.

pub(crate) mod about;
mod commits;
mod network;
mod pod_writes;
mod runtime;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{Clock, DeleteOptions};
use knarr_kubelet::self_fencing::SelfFencing;
use parking_lot::Mutex;

use self::pod_writes::PodWrites;
use crate::clocks::Rate;
use crate::coverage::{Coverage, Ends, Scope};
use crate::finding::Finding;
use crate::history::History;
use crate::placement::Placement;
use crate::rules;
use crate::switches::Switch;
use crate::world::{Kubelet, LeaseRenewal, Life, Observation, World, is_ready, owner};
pub(crate) use network::SettledPod;

/// A violation of a rule, and when it was.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its number in the specification.
    pub rule: &'static str,
    pub what: String,
    pub at: Timestamp,
    /// Names of the objects it is about: pods and prefixes of their UIDs, their owners, nodes, disks.
    pub about: BTreeSet<String>,
}

pub(crate) struct Observer {
    clock: Arc<dyn Clock>,
    /// Also record what components see and request.
    story: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    world: World,
    history: History,
    violation: Option<Violation>,
    coverage: Coverage,
    ends: Ends,
    pod_writes: PodWrites,
}

impl Inner {
    fn check_rules(&mut self, seen: &Observation<'_>) {
        if self.violation.is_some() {
            return;
        }
        for (rule, check) in rules::ALL {
            if let Err(Finding(what)) = check(seen, &self.world) {
                self.violate(rule, what, Some(seen));
                return;
            }
        }
    }

    fn violate(&mut self, rule: &'static str, what: String, seen: Option<&Observation<'_>>) {
        let about = about::concerned(seen, &what, &self.world);
        let at = self.world.now;
        self.history.add(at, &format!("VIOLATION {rule}: {what}"), b"");
        self.violation.get_or_insert(Violation {
            rule,
            what,
            at,
            about,
        });
    }
}

impl Observer {
    pub fn new(clock: Arc<dyn Clock>, whole: bool, story: bool, directory: &Path) -> Self {
        let world = World {
            now: clock.now(),
            ..World::default()
        };
        Observer {
            clock,
            story,
            inner: Mutex::new(Inner {
                world,
                history: History::new(whole, directory),
                violation: None,
                coverage: Coverage::default(),
                ends: Ends::new(),
                pod_writes: PodWrites::default(),
            }),
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        inner.world.now = self.clock.now();
        inner
    }

    /// A line of the trace without a rule.
    pub fn note(&self, line: &str) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.history.add(now, line, b"");
    }

    /// A line that is shown but is not a part of the trace.
    pub fn remark(&self, line: &str) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.history.remark(now, line);
    }

    /// Whether a story is recorded.
    pub fn has_story(&self) -> bool {
        self.story
    }

    /// A line of the story, if one is recorded. It is called for each object of each list and each event of each watch: without a story it
    /// does not lock, and reads no clock.
    pub fn record(&self, line: impl FnOnce() -> String) {
        if self.story {
            let mut inner = self.lock();
            let now = inner.world.now;
            inner.history.remark(now, &line());
        }
    }

    /// A fault strikes: counts the pods that it hits.
    pub fn strikes(&self, fault: Switch, scope: Scope<'_>) {
        let inner = &mut *self.lock();
        inner.coverage.struck(fault, scope, &inner.world, &inner.ends);
    }

    /// The coverage so far.
    pub fn coverage(&self) -> Coverage {
        self.inner.lock().coverage.clone()
    }

    /// Which pods self-fencing terminates, in this history.
    pub fn set_self_fencing(&self, mode: SelfFencing) {
        self.lock().world.self_fencing = mode;
    }

    pub fn kubelet_starts(&self, node: &str, is_former: bool) {
        let mut inner = self.lock();
        let kubelet = Kubelet {
            began: inner.world.now,
            is_former,
        };
        inner.world.kubelets.insert(node.into(), kubelet);
        inner.world.received.remove(node);
    }

    /// The node's kubelet receives a pod by its watch.
    pub fn pod_received(&self, component: &str, uid: &str) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let node = component.trim_start_matches("node/");
        let received = inner.world.received.entry(node.into()).or_default();
        received.entry(uid.into()).or_insert(now);
    }

    /// A kubelet of the previous version has created this container.
    pub fn made_by_former(&self, node: &str, container: &str) {
        let made = (node.to_string(), container.to_string());
        self.lock().world.made_by_former.insert(made);
    }

    /// The rate of a node's clock, in histories with different rates.
    pub fn set_rate(&self, node: &str, rate: Rate) {
        self.note(&format!("the clock of {node} counts {rate}"));
        self.lock().world.rates.insert(node.into(), rate);
    }

    /// The longest duration of a call of this node's runtime.
    pub fn set_slowest(&self, node: &str, millis: u64) {
        let slowest = SignedDuration::from_millis(i64::try_from(millis).unwrap_or(i64::MAX));
        self.lock().world.slowest.insert(node.into(), slowest);
    }

    pub fn violation(&self) -> Option<Violation> {
        self.inner.lock().violation.clone()
    }

    pub fn violate(&self, rule: &'static str, what: String) {
        self.lock().violate(rule, what, None);
    }

    pub fn digest(&self) -> (String, u64) {
        let inner = self.inner.lock();
        (inner.history.digest(), inner.history.lines())
    }

    pub fn last_lines(&self) -> Vec<String> {
        self.inner.lock().history.last_lines()
    }

    pub fn world<T>(&self, read: impl FnOnce(&World) -> T) -> T {
        read(&self.lock().world)
    }

    /// The pod is released: from now on its node is not waited for.
    pub fn release(&self, uid: &str) {
        if let Some(life) = self.lock().world.pods.get_mut(uid) {
            life.released = true;
        }
    }

    /// From now on the cluster is at rest.
    pub fn rest(&self) {
        self.note("nothing is left to be done");
        self.lock().world.resting = true;
    }

    /// The holder of the controllers' lease.
    pub fn leader(&self) -> Option<String> {
        let (namespace, name) = knarr_control::LEASE;
        self.world(|world| {
            world
                .terms
                .get(&format!("{namespace}/{name}"))
                .map(|term| term.holder.clone())
        })
    }

    /// Whether a component is free of faults from now on.
    pub fn set_well(&self, component: &str, well: bool) {
        let mut inner = self.lock();
        let world = &mut inner.world;
        let now = world.now;
        if !world.well_since.contains_key(component) {
            world.well_since.insert(component.to_string(), None);
        }
        let Some(since) = world.well_since.get_mut(component) else {
            return;
        };
        match well {
            true => drop(since.get_or_insert(now)),
            false => {
                if let Some(began) = since.take() {
                    let spans = world.well_spans.entry(component.to_string()).or_default();
                    spans.push((began, now));
                }
            }
        }
    }

    /// A node gets the answer to the renewal of its lease that it sent then.
    pub fn renewal_answered(&self, component: &str, sent: Timestamp) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let silent = inner
            .world
            .may_fence_itself_after(component.trim_start_matches("node/"));
        let renewal = inner
            .world
            .lease_renewals
            .entry(component.into())
            .or_insert(LeaseRenewal {
                sent,
                silent_until: None,
            });
        if now.duration_since(renewal.sent) >= silent {
            renewal.silent_until = Some(now);
        }
        renewal.sent = renewal.sent.max(sent);
    }

    /// The processes of a sandbox that broke.
    pub fn sandbox_broke(&self, node: &str, sandbox: &str) {
        let mut inner = self.lock();
        let all = inner.world.processes.values_mut();
        all.filter(|p| p.node == node && p.sandbox == sandbox)
            .for_each(|p| p.is_sandbox_broken = true);
    }

    /// Time passes: checks what has taken too long.
    pub fn tick(&self) {
        self.lock().check_rules(&Observation::Tick);
    }

    /// Whether the newest pod of this name was deleted by a component, not by a user.
    pub fn was_evicted_by_component(&self, namespace: &str, name: &str) -> bool {
        self.world(|world| {
            let named = |life: &&Life| {
                let meta = &life.pod.metadata;
                meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
            };
            let newest = world
                .pods
                .values()
                .filter(named)
                // A user deletes and creates one of the same name at the same instant.
                .max_by_key(|life| (life.first_seen, life.removed_at.unwrap_or(Timestamp::MAX)));
            newest.is_some_and(|life| life.removed() && (life.released || life.deletion_requested))
        })
    }

    /// Whether this node is not ready, in the store.
    pub fn is_silent(&self, node: &str) -> bool {
        self.world(|world| world.nodes.get(node).is_some_and(|node| !is_ready(node)))
    }

    /// Whether this is a StatefulSet's pod on a node that is not ready, in the store.
    pub fn is_lost_set_pod(&self, namespace: &str, name: &str) -> bool {
        self.world(|world| {
            let mut lives = world.pods.values().filter(|life| !life.removed());
            lives.any(|life| {
                let meta = &life.pod.metadata;
                meta.namespace.as_deref() == Some(namespace)
                    && meta.name.as_deref() == Some(name)
                    && owner(&life.pod, "StatefulSet").is_some()
                    && world.nodes.get(life.node()).is_some_and(|node| !is_ready(node))
            })
        })
    }

    pub fn delete_asked(&self, by: &str, name: &str, options: &DeleteOptions) {
        let mut inner = self.lock();
        let uid = options.preconditions.uid.clone().unwrap_or_default();
        if let Some(life) = inner.world.pods.get_mut(&uid) {
            life.deletion_requested |= !by.starts_with("node/");
        }
        inner.check_rules(&Observation::DeleteAsked { by, name, options });
    }

    /// Changes what is known of the namespace of knarr's own placement.
    pub fn change_placement(&self, change: impl FnOnce(&mut Placement, Timestamp)) {
        let world = &mut self.lock().world;
        change(&mut world.placement, world.now);
    }

    /// The rebalancer requests the eviction of a pod.
    pub fn move_asked(&self, name: &str, uid: &str) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.world.placement.requested.insert(uid.into(), now);
        inner.world.placement.last_requested = Some(now);
        inner.check_rules(&Observation::MoveAsked { name });
    }

    /// That request was rejected.
    pub fn move_rejected(&self, uid: &str) {
        self.lock().world.placement.requested.remove(uid);
    }

    /// A host is powered off or on.
    pub fn switched(&self, node: &str, off: bool) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("{node} is switched {}", if off { "off" } else { "on" });
        inner.history.add(now, &line, b"");
        let switch = inner.world.switches.entry(node.into()).or_default();
        if off || switch.off {
            switch.last_off = Some(now);
        }
        switch.off = off;
    }
}
