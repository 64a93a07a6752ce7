//! Which fault strikes whom, when and for how long: a function of the seed, the round and the cluster, and of nothing else.
//!
//! A process is subject to one fault at a time (killed, paused, with a stepped clock or a full disk); cuts overlap with
//! everything. Nothing here knows how a fault is carried out; that is [`crate::faults`].

use std::fmt;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// Between the beginnings of two faults, in milliseconds: about fifteen faults a minute, some of them at once.
const GAP_MILLIS: std::ops::Range<u64> = 500..7_000;
/// How long a killed process stays down. Short ones are restarts by an init system, long ones a broken machine.
const DOWN_MILLIS: std::ops::Range<u64> = 200..15_000;
/// How long a process is stopped. Leases of leaders last 15 s: some pauses are longer.
const PAUSE_MILLIS: std::ops::Range<u64> = 1_000..25_000;
const CUT_MILLIS: std::ops::Range<u64> = 2_000..30_000;
/// A node is lost after 40 s: some cuts of agents last longer.
const LONG_CUT_MILLIS: std::ops::Range<u64> = 48_000..58_000;
const CLOCK_MILLIS: std::ops::Range<u64> = 10_000..40_000;
/// Steps in seconds, in either direction: seconds, minutes, more than the pods' graces and the leases' durations.
const CLOCK_STEPS: [i64; 5] = [7, 20, 65, 300, 900];
const FULL_MILLIS: std::ops::Range<u64> = 3_000..20_000;

/// A kind of fault, as `--only` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Kill,
    Cut,
    Pause,
    Clock,
    Disk,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Kill, Kind::Cut, Kind::Pause, Kind::Clock, Kind::Disk];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Kill => "kill",
            Kind::Cut => "cut",
            Kind::Pause => "pause",
            Kind::Clock => "clock",
            Kind::Disk => "disk",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| format!("{name:?}: expected some of kill, cut, pause, clock, disk"))
    }
}

/// A process, or for cuts and disks the machine that it is on. Numbered from 0.
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

/// What the cluster consists of.
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

    /// Every machine.
    pub fn machines(self) -> Vec<Target> {
        self.servers()
            .chain(self.agents())
            .chain(self.members())
            .collect()
    }

    /// What this kind of fault can strike. etcd's clock is not stepped: it is a Go program and reads the clock without libc.
    fn targets(self, kind: Kind) -> Vec<Target> {
        match kind {
            Kind::Kill | Kind::Pause => self
                .servers()
                .chain(self.agents())
                .chain(self.containerds())
                .chain(self.members())
                .collect(),
            Kind::Clock => self.servers().chain(self.agents()).collect(),
            Kind::Cut | Kind::Disk => self.machines(),
        }
    }
}

/// What strikes.
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
    /// Its wall clock is wrong by so much; the monotonic clock is not.
    Clock { target: Target, step_seconds: i64 },
    /// No byte is free on the disk of its data directory.
    Disk { target: Target },
}

impl Fault {
    pub fn kind(&self) -> Kind {
        match self {
            Fault::Kill { .. } => Kind::Kill,
            Fault::Pause { .. } => Kind::Pause,
            Fault::Cut { .. } => Kind::Cut,
            Fault::Clock { .. } => Kind::Clock,
            Fault::Disk { .. } => Kind::Disk,
        }
    }

    /// The process that it is done to; a cut is done to links.
    pub fn target(&self) -> Option<Target> {
        match self {
            Fault::Kill { target }
            | Fault::Pause { target }
            | Fault::Clock { target, .. }
            | Fault::Disk { target } => Some(*target),
            Fault::Cut { .. } => None,
        }
    }

    /// Whether packets between this target's machine and `other` are dropped in at least one direction.
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
pub struct Planned {
    pub at_millis: u64,
    pub lasts_millis: u64,
    #[serde(flatten)]
    pub fault: Fault,
}

impl Planned {
    pub fn ends_millis(&self) -> u64 {
        self.at_millis + self.lasts_millis
    }

    fn overlaps(&self, other: &Planned) -> bool {
        self.at_millis < other.ends_millis() && other.at_millis < self.ends_millis()
    }
}

/// The faults of one round of `round_millis`, in the order of their beginnings; all end within the round.
pub fn schedule(seed: u64, round: u64, size: Size, kinds: &[Kind], round_millis: u64) -> Vec<Planned> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&round.to_le_bytes());
    let mut random = StdRng::from_seed(key);
    let mut planned: Vec<Planned> = Vec::new();
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
        let next = Planned {
            at_millis,
            lasts_millis: lasts.min(round_millis - at_millis),
            fault,
        };
        let machine = |fault: &Fault| fault.target().map(machine_of);
        let is_busy = planned.iter().any(|other| {
            machine(&other.fault).is_some()
                && machine(&other.fault) == machine(&next.fault)
                && other.overlaps(&next)
        });
        if !is_busy {
            planned.push(next);
        }
    }
}

/// An agent and its containerd share a machine and a disk.
fn machine_of(target: Target) -> Target {
    match target {
        Target::Containerd(n) => Target::Agent(n),
        other => other,
    }
}

/// A fault of this kind and how long it lasts, in milliseconds.
fn draw(random: &mut StdRng, kind: Kind, size: Size) -> Option<(Fault, u64)> {
    let target = *size.targets(kind).choose(random)?;
    Some(match kind {
        Kind::Kill => (Fault::Kill { target }, random.random_range(DOWN_MILLIS)),
        Kind::Pause => (Fault::Pause { target }, random.random_range(PAUSE_MILLIS)),
        Kind::Clock => {
            let step = CLOCK_STEPS.choose(random)?;
            let sign = if random.random_bool(0.5) { 1 } else { -1 };
            let fault = Fault::Clock {
                target,
                step_seconds: sign * step,
            };
            (fault, random.random_range(CLOCK_MILLIS))
        }
        Kind::Disk => (Fault::Disk { target }, random.random_range(FULL_MILLIS)),
        Kind::Cut => {
            let others: Vec<_> = size.machines().into_iter().filter(|m| *m != target).collect();
            let one_way = random.random_bool(0.3);
            let (first, second) = match random.random_range(0..4) {
                // One machine from all others, and perhaps from the clients.
                0 | 1 => {
                    let clients = random.random_bool(0.5).then_some(Target::Clients);
                    (vec![target], others.into_iter().chain(clients).collect())
                }
                // One link.
                2 => (vec![target], vec![*others.choose(random)?]),
                // Two groups.
                _ => {
                    let (mut first, mut second) = (vec![target], Vec::new());
                    for machine in others {
                        let group = if random.random_bool(0.5) {
                            &mut first
                        } else {
                            &mut second
                        };
                        group.push(machine);
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
        let of = |seed, round| schedule(seed, round, ETCD, &Kind::ALL, ROUND);
        assert_eq!(of(7, 2), of(7, 2));
        assert_ne!(of(7, 2), of(7, 3));
        assert_ne!(of(7, 2), of(8, 2));
    }

    #[test]
    fn only_the_kinds_that_were_asked_for_strike_and_each_of_them_does() {
        for kinds in [&Kind::ALL[..], &[Kind::Kill], &[Kind::Cut, Kind::Disk], &[]] {
            let mut met: Vec<Kind> = (0..20)
                .flat_map(|round| schedule(1, round, ETCD, kinds, ROUND))
                .map(|p| p.fault.kind())
                .collect();
            met.sort();
            met.dedup();
            assert_eq!(met, kinds);
        }
    }

    #[test]
    fn faults_end_within_the_round_and_a_machine_has_one_at_a_time_but_for_cuts() {
        for seed in 0..200 {
            let planned = schedule(seed, 0, ETCD, &Kind::ALL, ROUND);
            assert!(planned.len() > 3, "{planned:?}");
            for (n, one) in planned.iter().enumerate() {
                assert!(one.ends_millis() <= ROUND && one.lasts_millis > 0, "{one:?}");
                let machine = one.fault.target().map(machine_of);
                let clash = planned[..n].iter().find(|other| {
                    machine.is_some()
                        && other.fault.target().map(machine_of) == machine
                        && other.overlaps(one)
                });
                assert_eq!(clash, None, "{one:?}");
            }
        }
    }

    #[test]
    fn every_machine_is_struck_and_none_that_is_not_there() {
        for size in [ETCD, EMBEDDED] {
            let all: Vec<_> = (0..100)
                .flat_map(|round| schedule(3, round, size, &Kind::ALL, ROUND))
                .collect();
            for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::Cut) {
                let mut met: Vec<_> = all
                    .iter()
                    .filter(|p| p.fault.kind() == kind)
                    .filter_map(|p| p.fault.target())
                    .collect();
                met.sort();
                met.dedup();
                let mut expected = size.targets(kind);
                expected.sort();
                assert_eq!(met, expected, "{kind}");
            }
        }
    }

    #[test]
    fn some_cuts_last_until_a_node_is_lost_and_some_are_one_way() {
        let cuts: Vec<_> = (0..50)
            .flat_map(|round| schedule(5, round, EMBEDDED, &[Kind::Cut], 2 * ROUND))
            .collect();
        assert!(cuts.iter().any(|p| p.lasts_millis > 45_000));
        let one_way = |p: &&Planned| matches!(p.fault, Fault::Cut { one_way: true, .. });
        assert!(cuts.iter().any(|p| one_way(&p)) && !cuts.iter().all(|p| one_way(&p)));
    }
}
