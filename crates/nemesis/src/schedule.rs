//! The faults of a round, with their targets, times and durations: a function of the seed, the round and the cluster only.
//!
//! A process has one fault at a time (killed, paused, with a wrong clock or a full disk); cuts overlap with all faults. How
//! faults are injected is in [`crate::cluster`].

use std::fmt;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// Between the beginnings of two faults, in milliseconds: about fifteen faults a minute, some of them at once.
const GAP_MILLIS: std::ops::Range<u64> = 500..7_000;
/// How long a killed process is down. Short times are restarts by an init system, long ones a failed host.
const DOWN_MILLIS: std::ops::Range<u64> = 200..15_000;
/// How long a process is paused. Leases of leaders last 15 s: some pauses are longer.
const PAUSE_MILLIS: std::ops::Range<u64> = 1_000..25_000;
const CUT_MILLIS: std::ops::Range<u64> = 2_000..30_000;
/// A node is lost after 40 s: some cuts of agents last longer.
const LONG_CUT_MILLIS: std::ops::Range<u64> = 48_000..58_000;
const CLOCK_MILLIS: std::ops::Range<u64> = 10_000..40_000;
/// Offsets in seconds, in either direction: some are longer than the pods' grace periods and the leases' durations.
const CLOCK_STEPS: [i64; 5] = [7, 20, 65, 300, 900];
const FULL_MILLIS: std::ops::Range<u64> = 3_000..20_000;

/// A kind of fault, as `--only` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    Kill,
    Cut,
    Pause,
    Clock,
    Disk,
}

impl FaultKind {
    pub const ALL: [FaultKind; 5] = [
        FaultKind::Kill,
        FaultKind::Cut,
        FaultKind::Pause,
        FaultKind::Clock,
        FaultKind::Disk,
    ];
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::Kill => "kill",
            FaultKind::Cut => "cut",
            FaultKind::Pause => "pause",
            FaultKind::Clock => "clock",
            FaultKind::Disk => "disk",
        })
    }
}

/// There is no kind of fault of this name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?}: expected one of kill, cut, pause, clock, disk")]
pub struct UnknownFault(String);

impl FromStr for FaultKind {
    type Err = UnknownFault;

    fn from_str(name: &str) -> Result<FaultKind, UnknownFault> {
        let found = FaultKind::ALL.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| UnknownFault(name.to_string()))
    }
}

/// A process, or for cuts and disks its host. Numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    Server(usize),
    Agent(usize),
    /// The containerd of an agent.
    Containerd(usize),
    /// A member of etcd.
    Member(usize),
    /// The clients of the test; they can only be cut off.
    Clients,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Server(n) => write!(f, "server {}", n + 1),
            Target::Agent(n) => write!(f, "agent {}", n + 1),
            Target::Containerd(n) => write!(f, "containerd {}", n + 1),
            Target::Member(n) => write!(f, "etcd member {}", n + 1),
            Target::Clients => f.write_str("clients"),
        }
    }
}

/// The number of processes of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub servers: usize,
    pub agents: usize,
    /// Of etcd; 0 with the embedded store.
    pub members: usize,
}

impl Size {
    fn servers(self) -> impl Iterator<Item = Target> {
        (0..self.servers).map(Target::Server)
    }

    fn agents(self) -> impl Iterator<Item = Target> {
        (0..self.agents).map(Target::Agent)
    }

    fn containerds(self) -> impl Iterator<Item = Target> {
        (0..self.agents).map(Target::Containerd)
    }

    fn members(self) -> impl Iterator<Item = Target> {
        (0..self.members).map(Target::Member)
    }

    /// Every host.
    pub fn hosts(self) -> Vec<Target> {
        self.servers()
            .chain(self.agents())
            .chain(self.members())
            .collect()
    }

    /// The targets of this kind of fault. etcd's clock is not changed: it is a Go program and reads the clock without libc.
    fn targets(self, kind: FaultKind) -> Vec<Target> {
        match kind {
            FaultKind::Kill | FaultKind::Pause => self
                .servers()
                .chain(self.agents())
                .chain(self.containerds())
                .chain(self.members())
                .collect(),
            FaultKind::Clock => self.servers().chain(self.agents()).collect(),
            FaultKind::Cut | FaultKind::Disk => self.hosts(),
        }
    }
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "fault")]
pub enum Fault {
    /// kill -9; it is started again at the end.
    Kill { target: Target },
    /// SIGSTOP, and SIGCONT at the end.
    Pause { target: Target },
    /// Packets between the two groups are dropped; one way: those from the first to the second.
    Cut {
        first: Vec<Target>,
        second: Vec<Target>,
        one_way: bool,
    },
    /// Its wall clock has this offset; the monotonic clock has not.
    Clock { target: Target, step_seconds: i64 },
    /// The disk of its data directory is full.
    Disk { target: Target },
}

impl Fault {
    pub fn kind(&self) -> FaultKind {
        match self {
            Fault::Kill { .. } => FaultKind::Kill,
            Fault::Pause { .. } => FaultKind::Pause,
            Fault::Cut { .. } => FaultKind::Cut,
            Fault::Clock { .. } => FaultKind::Clock,
            Fault::Disk { .. } => FaultKind::Disk,
        }
    }

    /// The process that it affects; a cut affects links.
    pub fn target(&self) -> Option<Target> {
        match self {
            Fault::Kill { target }
            | Fault::Pause { target }
            | Fault::Clock { target, .. }
            | Fault::Disk { target } => Some(*target),
            Fault::Cut { .. } => None,
        }
    }

    /// Whether packets between this target's host and `other` are dropped in at least one direction.
    pub fn separates(&self, one: Target, other: Target) -> bool {
        let Fault::Cut { first, second, .. } = self else {
            return false;
        };
        let between = |a, b| first.contains(&a) && second.contains(&b);
        between(one, other) || between(other, one)
    }
}

fn list(targets: &[Target]) -> String {
    let names: Vec<_> = targets.iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill { target } => write!(f, "kill -9 {target}"),
            Fault::Pause { target } => write!(f, "pause {target}"),
            Fault::Cut {
                first,
                second,
                one_way,
            } => {
                let arrow = if *one_way { "-/->" } else { "<-/->" };
                write!(f, "cut {} {arrow} {}", list(first), list(second))
            }
            Fault::Clock { target, step_seconds } => write!(f, "clock of {target} {step_seconds:+} s"),
            Fault::Disk { target } => write!(f, "fill the disk of {target}"),
        }
    }
}

/// A fault with its times, in milliseconds since the round began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedFault {
    pub at_millis: u64,
    pub lasts_millis: u64,
    #[serde(flatten)]
    pub fault: Fault,
}

impl PlannedFault {
    pub fn ends_millis(&self) -> u64 {
        self.at_millis + self.lasts_millis
    }

    fn overlaps(&self, other: &PlannedFault) -> bool {
        self.at_millis < other.ends_millis() && other.at_millis < self.ends_millis()
    }
}

/// The faults of one round of `round_millis`, in the order of their beginnings; all end within the round.
pub fn schedule(
    seed: u64,
    round: u64,
    size: Size,
    kinds: &[FaultKind],
    round_millis: u64,
) -> Vec<PlannedFault> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&round.to_le_bytes());
    let mut random = StdRng::from_seed(key);
    let mut planned: Vec<PlannedFault> = Vec::new();
    let mut at_millis = 0;
    loop {
        at_millis += random.random_range(GAP_MILLIS);
        if at_millis >= round_millis {
            return planned;
        }
        let Some(kind) = kinds.choose(&mut random) else {
            return planned;
        };
        let Some((fault, lasts)) = draw(&mut random, *kind, size) else {
            continue;
        };
        let next = PlannedFault {
            at_millis,
            lasts_millis: lasts.min(round_millis - at_millis),
            fault,
        };
        let host = |fault: &Fault| fault.target().map(host_of);
        let is_busy = planned.iter().any(|other| {
            host(&other.fault).is_some() && host(&other.fault) == host(&next.fault) && other.overlaps(&next)
        });
        if !is_busy {
            planned.push(next);
        }
    }
}

/// An agent and its containerd share a host and a disk.
fn host_of(target: Target) -> Target {
    match target {
        Target::Containerd(n) => Target::Agent(n),
        other => other,
    }
}

/// A fault of this kind and how long it lasts, in milliseconds.
fn draw(random: &mut StdRng, kind: FaultKind, size: Size) -> Option<(Fault, u64)> {
    let target = *size.targets(kind).choose(random)?;
    Some(match kind {
        FaultKind::Kill => (Fault::Kill { target }, random.random_range(DOWN_MILLIS)),
        FaultKind::Pause => (Fault::Pause { target }, random.random_range(PAUSE_MILLIS)),
        FaultKind::Clock => {
            let step = CLOCK_STEPS.choose(random)?;
            let sign = if random.random_bool(0.5) { 1 } else { -1 };
            let fault = Fault::Clock {
                target,
                step_seconds: sign * step,
            };
            (fault, random.random_range(CLOCK_MILLIS))
        }
        FaultKind::Disk => (Fault::Disk { target }, random.random_range(FULL_MILLIS)),
        FaultKind::Cut => {
            let others: Vec<_> = size.hosts().into_iter().filter(|m| *m != target).collect();
            let one_way = random.random_bool(0.3);
            let (first, second) = match random.random_range(0..4) {
                // One host from all others, and perhaps from the clients.
                0 | 1 => {
                    let clients = random.random_bool(0.5).then_some(Target::Clients);
                    (vec![target], others.into_iter().chain(clients).collect())
                }
                // One link.
                2 => (vec![target], vec![*others.choose(random)?]),
                // Two groups.
                _ => {
                    let (mut first, mut second) = (vec![target], Vec::new());
                    for host in others {
                        let group = if random.random_bool(0.5) {
                            &mut first
                        } else {
                            &mut second
                        };
                        group.push(host);
                    }
                    (first, second)
                }
            };
            if second.is_empty() {
                return None;
            }
            let is_agent = matches!(target, Target::Agent(_));
            let lasts = match is_agent && random.random_bool(0.4) {
                true => random.random_range(LONG_CUT_MILLIS),
                false => random.random_range(CUT_MILLIS),
            };
            let fault = Fault::Cut {
                first,
                second,
                one_way,
            };
            (fault, lasts)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETCD: Size = Size {
        servers: 3,
        agents: 3,
        members: 3,
    };
    const EMBEDDED: Size = Size {
        servers: 1,
        agents: 3,
        members: 0,
    };
    const ROUND: u64 = 60_000;

    #[test]
    fn a_schedule_follows_from_seed_and_round() {
        let of = |seed, round| schedule(seed, round, ETCD, &FaultKind::ALL, ROUND);
        assert_eq!(of(7, 2), of(7, 2));
        assert_ne!(of(7, 2), of(7, 3));
        assert_ne!(of(7, 2), of(8, 2));
    }

    #[test]
    fn only_the_given_kinds_of_faults_are_planned_and_each_of_them_is() {
        for kinds in [
            &FaultKind::ALL[..],
            &[FaultKind::Kill],
            &[FaultKind::Cut, FaultKind::Disk],
            &[],
        ] {
            let mut found: Vec<FaultKind> = (0..20)
                .flat_map(|round| schedule(1, round, ETCD, kinds, ROUND))
                .map(|p| p.fault.kind())
                .collect();
            found.sort();
            found.dedup();
            assert_eq!(found, kinds);
        }
    }

    #[test]
    fn faults_end_within_the_round_and_a_host_has_one_at_a_time_but_for_cuts() {
        for seed in 0..200 {
            let planned = schedule(seed, 0, ETCD, &FaultKind::ALL, ROUND);
            assert!(planned.len() > 3, "{planned:?}");
            for (n, one) in planned.iter().enumerate() {
                assert!(one.ends_millis() <= ROUND && one.lasts_millis > 0, "{one:?}");
                let host = one.fault.target().map(host_of);
                let clash = planned[..n].iter().find(|other| {
                    host.is_some() && other.fault.target().map(host_of) == host && other.overlaps(one)
                });
                assert_eq!(clash, None, "{one:?}");
            }
        }
    }

    #[test]
    fn every_target_has_faults_and_none_that_does_not_exist() {
        for size in [ETCD, EMBEDDED] {
            let all: Vec<_> = (0..100)
                .flat_map(|round| schedule(3, round, size, &FaultKind::ALL, ROUND))
                .collect();
            for kind in FaultKind::ALL.into_iter().filter(|k| *k != FaultKind::Cut) {
                let mut found: Vec<_> = all
                    .iter()
                    .filter(|p| p.fault.kind() == kind)
                    .filter_map(|p| p.fault.target())
                    .collect();
                found.sort();
                found.dedup();
                let mut expected = size.targets(kind);
                expected.sort();
                assert_eq!(found, expected, "{kind}");
            }
        }
    }

    #[test]
    fn some_cuts_last_until_a_node_is_lost_and_some_are_one_way() {
        let cuts: Vec<_> = (0..50)
            .flat_map(|round| schedule(5, round, EMBEDDED, &[FaultKind::Cut], 2 * ROUND))
            .collect();
        assert!(cuts.iter().any(|p| p.lasts_millis > 45_000));
        let one_way = |p: &&PlannedFault| matches!(p.fault, Fault::Cut { one_way: true, .. });
        assert!(cuts.iter().any(|p| one_way(&p)) && !cuts.iter().all(|p| one_way(&p)));
    }
}
