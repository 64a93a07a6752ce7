//! Which faults have hit which states of pods' lives, how often, and which never.
//!
//! A fault hits the pods on its node when it strikes, or all pods if it affects what they all depend on (a replica of
//! the controllers, an API server, several components at once).

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{is_ready, is_terminal};
use knarr_node::runtime::fake::End;
use serde::{Deserialize, Serialize};

use crate::switches::{Class, Switch, Switches};
use crate::world::{Life, World, is_reporting};

/// A state of a pod's life. The last three may be true in addition to one of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Unscheduled,
    /// Bound to a node whose kubelet has not reported it yet.
    Unseen,
    /// Reported by its kubelet, and no container of it has run.
    Starting,
    InitRunning,
    Unready,
    Ready,
    /// Deleted, and its processes have not got TERM yet.
    Deleted,
    TermSent,
    /// Killed, and that is not reported yet.
    KillSent,
    /// All processes exited by themselves or at TERM, which is not reported yet; or one is to be restarted.
    Unreported,
    /// Reported as Succeeded or Failed.
    Finished,
    /// It has a claim, and its volume is not mounted yet.
    Attaching,
    /// It was released (its node's answer is not waited for), and a process of it still runs.
    Released,
    /// Its node is lost, or has no Node object.
    NodeLost,
}

impl State {
    pub const ALL: [State; 14] = [
        State::Unscheduled,
        State::Unseen,
        State::Starting,
        State::InitRunning,
        State::Unready,
        State::Ready,
        State::Deleted,
        State::TermSent,
        State::KillSent,
        State::Unreported,
        State::Finished,
        State::Attaching,
        State::Released,
        State::NodeLost,
    ];

    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Unscheduled => "unsched",
            State::Unseen => "unseen",
            State::Starting => "starting",
            State::InitRunning => "init",
            State::Unready => "unready",
            State::Ready => "ready",
            State::Deleted => "deleted",
            State::TermSent => "TERM",
            State::KillSent => "KILL",
            State::Unreported => "unrep",
            State::Finished => "finished",
            State::Attaching => "attach",
            State::Released => "released",
            State::NodeLost => "lost",
        }
    }
}

/// What a fault affects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    Node(&'a str),
    Cluster,
}

/// How pods' last processes exited, by UID, while no process of them runs again.
pub(crate) type Ends = BTreeMap<String, End>;

fn has_claim(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.any(|v| v.persistent_volume_claim.is_some())
}

fn is_init(pod: &Pod, container: &str) -> bool {
    let spec = pod.spec.iter();
    let mut inits = spec.flat_map(|s| s.init_containers.iter().flatten());
    inits.any(|c| c.name == container)
}

/// The states that a pod is in.
fn states(world: &World, ends: &Ends, uid: &str, life: &Life) -> Vec<State> {
    let pod = &*life.pod;
    let processes: Vec<_> = world.of_pod(uid).collect();
    let seen = pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
    let main = if life.node().is_empty() {
        State::Unscheduled
    } else if processes.iter().any(|p| p.stop_requested.is_some()) {
        State::TermSent
    } else if !processes.is_empty() && pod.metadata.deletion_timestamp.is_some() {
        State::Deleted
    } else if processes.iter().any(|p| is_init(pod, &p.container)) {
        State::InitRunning
    } else if !processes.is_empty() {
        if is_ready(pod) {
            State::Ready
        } else {
            State::Unready
        }
    } else if is_terminal(pod) {
        State::Finished
    } else {
        match ends.get(uid) {
            Some(End::Killed) => State::KillSent,
            Some(_) => State::Unreported,
            None if seen => State::Starting,
            None => State::Unseen,
        }
    };
    let mut all = vec![main];
    if life.released && !processes.is_empty() {
        all.push(State::Released);
    }
    let bound = main != State::Unscheduled && main != State::Finished;
    if bound
        && world
            .nodes
            .get(life.node())
            .is_none_or(|node| !is_reporting(node))
    {
        all.push(State::NodeLost);
    }
    let open = || {
        world
            .disks
            .values()
            .any(|disk| disk.open.keys().any(|h| h.uid == uid))
    };
    if bound && processes.is_empty() && has_claim(pod) && !open() {
        all.push(State::Attaching);
    }
    all
}

type Counts = BTreeMap<String, u64>;

/// The coverage of one history, or of many. Names are those of [`Switch`] and [`State`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    pub histories: u64,
    /// How often a fault has hit a pod in a state, by both.
    pub pairs: BTreeMap<String, Counts>,
    /// In how many histories each switch was on.
    pub switches: Counts,
    /// In how many of these a fault has hit a state, by both.
    pub states: BTreeMap<String, Counts>,
}

fn add(all: &mut BTreeMap<String, Counts>, row: &str, column: &str, count: u64) {
    let row = all.entry(row.into()).or_default();
    let cell = row.entry(column.into()).or_default();
    *cell = cell.saturating_add(count);
}

impl Coverage {
    /// Counts a fault.
    pub(crate) fn struck(&mut self, fault: Switch, scope: Scope<'_>, world: &World, ends: &Ends) {
        for (uid, life) in world.pods.iter().filter(|(_, life)| !life.removed()) {
            let met = match scope {
                Scope::Node(node) => life.node() == node,
                Scope::Cluster => true,
            };
            if !met {
                continue;
            }
            for state in states(world, ends, uid, life) {
                add(&mut self.pairs, fault.name(), state.name(), 1);
            }
        }
    }

    /// Counts one history, with these switches on.
    pub(crate) fn of_one(mut self, on: Switches) -> Self {
        self.histories = 1;
        self.switches = on.iter().map(|switch| (switch.name().into(), 1)).collect();
        let met: Vec<_> = State::ALL
            .into_iter()
            .filter(|state| self.pairs.values().any(|row| row.contains_key(state.name())))
            .collect();
        for switch in on.iter() {
            for state in &met {
                add(&mut self.states, switch.name(), state.name(), 1);
            }
        }
        self
    }

    pub fn add(&mut self, other: &Coverage) {
        self.histories = self.histories.saturating_add(other.histories);
        for (name, count) in &other.switches {
            let sum = self.switches.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        for (mine, others) in [(&mut self.pairs, &other.pairs), (&mut self.states, &other.states)] {
            for (row, counts) in others {
                counts
                    .iter()
                    .for_each(|(column, count)| add(mine, row, column, *count));
            }
        }
    }

    /// How often this fault has hit this state.
    pub fn met(&self, fault: Switch, state: State) -> u64 {
        let row = self.pairs.get(fault.name());
        row.and_then(|row| row.get(state.name()))
            .copied()
            .unwrap_or_default()
    }

    /// In how many histories with this switch some fault has hit this state, and how many there were.
    pub(crate) fn histories_with(&self, switch: Switch, state: State) -> (u64, u64) {
        let row = self.states.get(switch.name());
        let with = row.and_then(|row| row.get(state.name())).copied();
        let all = self.switches.get(switch.name()).copied();
        (with.unwrap_or_default(), all.unwrap_or_default())
    }

    /// All pairs that are possible.
    pub fn all_pairs() -> impl Iterator<Item = (Switch, State)> {
        let faults = Switch::ALL.iter().filter(|s| s.class() == Class::Fault);
        let pairs = faults.flat_map(|fault| State::ALL.into_iter().map(move |state| (*fault, state)));
        pairs.filter(|(fault, state)| can_meet(*fault, *state))
    }

    /// The pairs that have never occurred.
    pub fn never(&self) -> Vec<(Switch, State)> {
        Self::all_pairs()
            .filter(|(fault, state)| self.met(*fault, *state) == 0)
            .collect()
    }

    /// As JSON, with the pairs that have never occurred; [`Coverage::read`] parses it.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        let never = self.never();
        let never = never.iter().map(|(fault, state)| [fault.name(), state.name()]);
        value["never"] = serde_json::json!(never.collect::<Vec<_>>());
        serde_json::to_string_pretty(&value)
    }

    /// Parses the output of [`Coverage::to_json`].
    pub fn read(text: &str) -> serde_json::Result<Self> {
        let mut value: serde_json::Value = serde_json::from_str(text)?;
        if let Some(object) = value.as_object_mut() {
            object.remove("never");
        }
        serde_json::from_value(value)
    }
}

/// A pod without a node is on none.
fn can_meet(fault: Switch, state: State) -> bool {
    let of_a_node = matches!(
        fault,
        Switch::KubeletCrash
            | Switch::RuntimeDown
            | Switch::BrokenSandbox
            | Switch::ContainerExit
            | Switch::Reboot
            | Switch::ReplacedMachine
            | Switch::LostNode
            | Switch::DeletedNode
            | Switch::Drain
            | Switch::OutOfService
            | Switch::AskForFencing
    );
    !(of_a_node && state == State::Unscheduled)
}

/// A row per fault, a column per state; `.` is never, `-` is impossible.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = format!("{:<17}", "");
        for state in State::ALL {
            write!(head, "{:>9}", state.name())?;
        }
        writeln!(f, "{head}")?;
        for fault in Switch::ALL.iter().filter(|s| s.class() == Class::Fault) {
            write!(f, "{:<17}", fault.name())?;
            for state in State::ALL {
                let cell = match self.met(*fault, state) {
                    0 if !can_meet(*fault, state) => "-".into(),
                    0 => ".".into(),
                    count => count.to_string(),
                };
                write!(f, "{cell:>9}")?;
            }
            writeln!(f)?;
        }
        let (all, never) = (Self::all_pairs().count(), self.never());
        write!(
            f,
            "{} of {all} pairs of a fault and a pod's state were met in {} histories",
            all - never.len(),
            self.histories
        )?;
        if !never.is_empty() {
            let never = never
                .iter()
                .map(|(fault, state)| format!("{fault}+{}", state.name()));
            write!(f, "; never: {}", never.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
