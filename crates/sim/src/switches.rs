//! The switches of histories: each kind of workload, each feature, each user action, each kind of fault.
//!
//! Swarm testing (Groce et al., ISSTA 2012): a history with half of them off does the other half more often, so that
//! combinations occur that a history with everything has once in thousands.

use std::fmt;
use std::str::FromStr;

use crate::random::stream;

/// From this seed on the seed decides whether its history is swarmed; those below do not change.
pub const FIRST_SWARMED: u64 = 100_000_000;
/// From this seed on histories may have the switches of [`Switch::is_later`]; those below do not change.
pub const FIRST_LATER: u64 = 200_000_000;
/// From this seed on histories may have the switches of knarr's own placement; those below do not change.
pub const FIRST_PLACED: u64 = 960_000_000;
/// From this seed on histories may have preemptions across nodes that are interrupted; those below do not change.
pub const FIRST_INTERRUPTED: u64 = 970_000_000;
/// The probability of each of these to be on, per mille.
const LATER_PER_MILLE: u32 = 250;
/// Swarmed histories among those seeds, per mille.
const SWARMED_PER_MILLE: u32 = 500;
/// The probability of each switch to be on in a swarmed history.
const ON_PER_MILLE: u32 = 500;

/// The class of a switch, for coverage and steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A feature of the cluster.
    Feature,
    /// A user action, except on nodes.
    Use,
    /// An error rate of links, runtimes and the store, for the whole history.
    ErrorRate,
    /// A fault of a node or component at some time, by itself or by a user: coverage counts which states of pods it
    /// hits.
    Fault,
}

macro_rules! switches {
    ($($(#[$doc:meta])* $variant:ident $name:literal $class:ident,)*) => {
        /// See the module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Switch {
            $($(#[$doc])* $variant,)*
        }

        impl Switch {
            pub const ALL: &'static [Switch] = &[$(Switch::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Switch::$variant => $name,)*
                }
            }

            pub fn class(self) -> Class {
                match self {
                    $(Switch::$variant => Class::$class,)*
                }
            }
        }
    };
}

switches! {
    Deployments "deployments" Feature,
    StatefulSets "statefulsets" Feature,
    DaemonSets "daemonsets" Feature,
    Jobs "jobs" Feature,
    BarePods "bare-pods" Feature,
    Services "services" Feature,
    /// Pods' addresses and NetworkPolicies.
    PodNetwork "pod-network" Feature,
    Disks "disks" Feature,
    Fencing "fencing" Feature,
    /// Users set the at-most-one annotation on some pods.
    AtMostOne "at-most-one" Feature,
    /// Nodes self-fence all at-most-one pods, with the annotation or without.
    SelfFencing "self-fencing" Feature,
    Scale "scale" Use,
    Roll "roll" Use,
    DeleteWorkloads "delete-workloads" Use,
    DeletePods "delete-pods" Use,
    ForceDelete "force-delete" Use,
    ReplacePods "replace-pods" Use,
    Rejected "refused" ErrorRate,
    Unanswered "unanswered" ErrorRate,
    Late "late" ErrorRate,
    Repeated "repeated" ErrorRate,
    SlowLinks "slow-links" ErrorRate,
    FailingRuntimes "failing-runtimes" ErrorRate,
    SlowRuntimes "slow-runtimes" ErrorRate,
    SlowStore "slow-store" ErrorRate,
    Partition "partition" Fault,
    /// Of several components at once.
    Split "split" Fault,
    KubeletCrash "kubelet-crash" Fault,
    RuntimeDown "runtime-down" Fault,
    ControllerCrash "controller-crash" Fault,
    StaleCaches "stale-caches" Fault,
    BrokenWatches "broken-watches" Fault,
    BrokenSandbox "broken-sandbox" Fault,
    ContainerExit "container-exit" Fault,
    Reboot "reboot" Fault,
    StoreCut "store-cut" Fault,
    ServerCrash "server-crash" Fault,
    HeldWrites "held-writes" Fault,
    /// A partition in one direction.
    OneWay "one-way" Fault,
    ReplacedMachine "replaced-machine" Fault,
    ClockSet "clock-set" Fault,
    ServerBehind "server-behind" Fault,
    /// A node that is cut off for long enough to be lost.
    LostNode "lost-node" Fault,
    DeletedNode "deleted-node" Fault,
    Drain "drain" Fault,
    OutOfService "out-of-service" Fault,
    AskForFencing "ask-for-fencing" Fault,
    /// Priorities, too few resources, and PodDisruptionBudgets.
    Crowding "crowding" Feature,
    /// The store compacts its history while a server's watch is behind, and breaks that watch.
    Compaction "compaction" Fault,
    /// A component's write is committed, and its server does not get the store's answer.
    LostCommits "lost-commits" Fault,
    /// Staged volumes: those of a CSI driver, and iSCSI disks.
    Staging "staging" Feature,
    /// A kubelet, host or attacher that dies between two steps of a volume.
    StagingCrash "staging-crash" Fault,
    /// Users delete all pods of a Service at once. Enables Services.
    EndpointEnds "endpoint-ends" Use,
    /// Names of Services, as DNS answers them. Enables Services.
    Names "names" Feature,
    /// A namespace with ResourceQuotas and LimitRanges, in which several servers admit at once.
    Quotas "quotas" Feature,
    /// Nodes' and controllers' clocks run fast or slow, within the bound of self-fencing.
    DriftingClocks "drifting-clocks" ErrorRate,
    /// Some clocks run faster or slower than self-fencing allows for.
    WrongClocks "wrong-clocks" ErrorRate,
    /// CustomResourceDefinitions that change, and are deleted and created again, while their objects are written.
    CustomResources "custom-resources" Feature,
    /// Processes of the previous version, which are replaced one after the other.
    Upgrade "upgrade" Fault,
    /// A workload that is scaled down by its spread over zones.
    ScaleDown "scale-down" Feature,
    /// Declared zones, one of which is scaled to zero or lost.
    TopologyDomains "topology-domains" Feature,
    /// A RebalancePolicy that is carried out.
    Rebalancing "rebalancing" Feature,
    /// A pod that only pods on other nodes exclude from its zone, and that may preempt them.
    CrossNodePreemption "cross-node-preemption" Feature,
    /// A pod that fits only in the place of one whose budget allows no disruption.
    HardBudgets "hard-budgets" Feature,
    /// Pods that are replaced before they are evicted.
    SurgeFirst "surge-first" Feature,
    /// The scheduler dies or is cut off in the middle of a preemption across nodes. Enables cross-node-preemption.
    PreemptionCrash "preemption-crash" Fault,
}

impl Switch {
    /// Whether only seeds from [`FIRST_LATER`] on may have it, each by a stream of its own.
    pub fn is_later(self) -> bool {
        matches!(
            self,
            Switch::Compaction
                | Switch::LostCommits
                | Switch::Staging
                | Switch::StagingCrash
                | Switch::EndpointEnds
                | Switch::Names
                | Switch::Quotas
                | Switch::DriftingClocks
                | Switch::WrongClocks
                | Switch::CustomResources
                | Switch::Upgrade
                | Switch::PreemptionCrash
        ) || self.is_placement()
    }

    /// Whether only seeds from [`FIRST_PLACED`] on may have it.
    fn is_placement(self) -> bool {
        PLACEMENT.contains(&self)
    }

    /// The first seed that may have this later switch.
    fn first_seed(self) -> u64 {
        match self {
            Switch::PreemptionCrash => FIRST_INTERRUPTED,
            _ if self.is_placement() => FIRST_PLACED,
            _ => FIRST_LATER,
        }
    }

    /// Whether a seed has this later switch, in the `attempt`th set that it draws.
    pub(crate) fn is_drawn_later(self, seed: u64, attempt: u32) -> bool {
        let entity = format!("later/{attempt}/{}", self.name());
        seed >= self.first_seed() && stream(seed, &entity).per_mille(LATER_PER_MILLE)
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The switches of knarr's own placement.
const PLACEMENT: [Switch; 6] = [
    Switch::ScaleDown,
    Switch::TopologyDomains,
    Switch::Rebalancing,
    Switch::CrossNodePreemption,
    Switch::HardBudgets,
    Switch::SurgeFirst,
];

/// A set of switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches(u128);

// Each has a bit.
const _: () = assert!(Switch::ALL.len() <= 128);

impl Switches {
    pub const NONE: Switches = Switches(0);

    /// Whether the store fails servers in a way that their clients must not notice: what they read is checked.
    pub(crate) fn has_store_faults(self) -> bool {
        self.has(Switch::Compaction) || self.has(Switch::LostCommits)
    }

    /// Whether there is a namespace of knarr's own placement.
    pub(crate) fn has_placement(self) -> bool {
        PLACEMENT.iter().any(|switch| self.has(*switch))
    }

    pub fn has(self, switch: Switch) -> bool {
        self.0 & (1 << switch as u64) != 0
    }

    pub fn with(self, switch: Switch) -> Self {
        Switches(self.0 | 1 << switch as u64)
    }

    pub fn without(self, switch: Switch) -> Self {
        Switches(self.0 & !(1 << switch as u64))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Switch> {
        Switch::ALL
            .iter()
            .copied()
            .filter(move |switch| self.has(*switch))
    }

    /// The `attempt`th set that a seed draws: 0 is the one without steering.
    pub fn draw(seed: u64, attempt: u32) -> Self {
        let mut chance = stream(seed, &format!("swarm/{attempt}"));
        let mut drawn = Switches::NONE;
        let (later, earlier): (Vec<Switch>, Vec<Switch>) =
            Switch::ALL.iter().copied().partition(|switch| switch.is_later());
        for switch in earlier {
            if chance.per_mille(ON_PER_MILLE) {
                drawn = drawn.with(switch);
            }
        }
        let pods = [
            Switch::Deployments,
            Switch::StatefulSets,
            Switch::DaemonSets,
            Switch::Jobs,
            Switch::BarePods,
        ];
        if !pods.iter().any(|switch| drawn.has(*switch)) {
            // A history without pods shows nothing.
            drawn = drawn.with(*chance.pick(&pods).unwrap_or(&Switch::BarePods));
        }
        let later = later
            .into_iter()
            .filter(|switch| switch.is_drawn_later(seed, attempt));
        later.fold(drawn, Switches::with)
    }
}

impl FromIterator<Switch> for Switches {
    fn from_iter<I: IntoIterator<Item = Switch>>(switches: I) -> Self {
        switches.into_iter().fold(Switches::NONE, Switches::with)
    }
}

/// Names separated by commas, as they are parsed.
impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Switch::name).collect();
        f.write_str(&names.join(","))
    }
}

/// There is no switch of this name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no switch; expected some of {names}", names = names().join(", "))]
pub struct UnknownSwitch(String);

fn names() -> Vec<&'static str> {
    Switch::ALL.iter().map(|switch| switch.name()).collect()
}

impl FromStr for Switches {
    type Err = UnknownSwitch;

    fn from_str(text: &str) -> Result<Self, UnknownSwitch> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let found = Switch::ALL.iter().find(|switch| switch.name() == name);
                found.copied().ok_or_else(|| UnknownSwitch(name.to_string()))
            })
            .collect()
    }
}

/// Whether a history is swarmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swarm {
    /// As the seed says: none below [`FIRST_SWARMED`].
    #[default]
    BySeed,
    Always,
    Never,
    /// These are on, and no others.
    Only(Switches),
}

/// The switches of one history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// None: all user actions and faults are on, and the seed decides about the features.
    swarmed: Option<Switches>,
    /// Drawn as always, but not done.
    suppressed: Switches,
}

impl Plan {
    pub fn new(seed: u64, swarm: Swarm, suppressed: Switches) -> Self {
        let by_seed = || seed >= FIRST_SWARMED && stream(seed, "swarmed").per_mille(SWARMED_PER_MILLE);
        let swarmed = match swarm {
            Swarm::Only(switches) => Some(switches),
            Swarm::Always => Some(Switches::draw(seed, 0)),
            Swarm::BySeed => by_seed().then(|| Switches::draw(seed, 0)),
            Swarm::Never => None,
        };
        Plan { swarmed, suppressed }
    }

    pub fn swarmed(&self) -> Option<Switches> {
        self.swarmed
    }

    /// Whether it can be drawn.
    pub fn draws(&self, switch: Switch) -> bool {
        self.swarmed.is_none_or(|on| on.has(switch))
    }

    /// Whether it is left out although the history has it.
    pub fn suppresses(&self, switch: Switch) -> bool {
        self.suppressed.has(switch)
    }

    /// Whether it is done once it is drawn.
    pub fn does(&self, switch: Switch) -> bool {
        self.draws(switch) && !self.suppressed.has(switch)
    }

    /// Whether the cluster has this feature; in a history that is not swarmed the seed decides.
    pub fn has(&self, switch: Switch, by_seed: bool) -> bool {
        self.swarmed.map_or(by_seed, |on| on.has(switch)) && !self.suppressed.has(switch)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_rejected() {
        let all: Switches = Switch::ALL.iter().copied().collect();
        assert_eq!(all.to_string().parse::<Switches>().unwrap(), all);
        let some = Switches::NONE.with(Switch::Jobs).with(Switch::Drain);
        assert_eq!(some.to_string(), "jobs,drain");
        assert_eq!("drain, jobs".parse::<Switches>().unwrap(), some);
        let error = "jobs,job".parse::<Switches>().unwrap_err().to_string();
        assert!(
            error.contains("\"job\"") && error.contains("deployments"),
            "{error}"
        );
    }

    #[test]
    fn seeds_that_were_run_before_are_not_swarmed_and_some_of_the_others_are() {
        let swarmed = |seed, swarm| Plan::new(seed, swarm, Switches::NONE).swarmed();
        for seed in (0..400).chain(FIRST_SWARMED - 400..FIRST_SWARMED) {
            assert_eq!(swarmed(seed, Swarm::BySeed), None, "{seed}");
            assert!(swarmed(seed, Swarm::Always).is_some(), "{seed}");
        }
        let fresh = FIRST_SWARMED..FIRST_SWARMED + 400;
        let among = fresh.filter(|seed| swarmed(*seed, Swarm::BySeed).is_some());
        assert!((150..250).contains(&among.count()));
    }

    #[test]
    fn swarmed_histories_differ_have_pods_and_no_switch_is_always_on_or_off() {
        let draw =
            |seeds: std::ops::Range<u64>| seeds.map(|seed| Switches::draw(seed, 0)).collect::<Vec<_>>();
        let drawn = draw(0..400);
        let (later, earlier): (Vec<Switch>, Vec<Switch>) =
            Switch::ALL.iter().copied().partition(|switch| switch.is_later());
        let count = |drawn: &[Switches], switch| drawn.iter().filter(|set| set.has(switch)).count();
        for switch in earlier {
            let on = count(&drawn, switch);
            assert!((120..280).contains(&on), "{switch} in {on} of 400");
        }
        for switch in later {
            let first = switch.first_seed();
            let (before, fresh) = (draw(first - 400..first), draw(first..first + 400));
            assert_eq!(count(&before, switch), 0, "{switch}");
            assert_eq!(count(&drawn, switch), 0, "{switch}");
            let on = count(&fresh, switch);
            let expect = 60..150;
            assert!(expect.contains(&on), "{switch} in {on} of 400");
        }
        let pods: Switches = "deployments,statefulsets,daemonsets,jobs,bare-pods"
            .parse()
            .unwrap();
        assert!(drawn.iter().all(|set| pods.iter().any(|kind| set.has(kind))));
        assert_ne!(Switches::draw(1, 0), Switches::draw(1, 1));
    }

    #[test]
    fn what_is_suppressed_is_drawn_and_not_done() {
        let without = Switches::NONE.with(Switch::Drain);
        let plan = Plan::new(1, Swarm::BySeed, without);
        assert!(plan.draws(Switch::Drain) && !plan.does(Switch::Drain));
        assert!(
            plan.does(Switch::Reboot) && plan.has(Switch::Disks, true) && !plan.has(Switch::Disks, false)
        );
        let plan = Plan::new(1, Swarm::Only(without), Switches::NONE);
        assert!(plan.does(Switch::Drain) && !plan.draws(Switch::Reboot) && !plan.has(Switch::Disks, true));
    }
}
