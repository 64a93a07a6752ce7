//! What a history has: features, user actions and faults, drawn from its seed.

use super::Simulation;
use crate::random::{Stream, stream};
use crate::switches::{FIRST_SWARMED, Plan, Switch, Switches};
use crate::trouble::{PossibleTurns, Streams};

/// Histories with disks, per mille.
const DISKS_PER_MILLE: u32 = 450;
/// Histories with fence agents, per mille.
const FENCING_PER_MILLE: u32 = 300;
/// Histories in which nodes self-fence all at-most-one pods, with the annotation or without, per mille.
const AT_MOST_ONE_PER_MILLE: u32 = 250;
/// Histories in which users set the at-most-one annotation on some pods, per mille.
const CAREFUL_PER_MILLE: u32 = 350;
/// Histories with too few resources for all pods, per mille.
const CROWDED_PER_MILLE: u32 = 250;
/// Histories with Services and proxies, per mille.
const PROXIED_PER_MILLE: u32 = 300;
/// Histories with a pod network and NetworkPolicies, per mille.
const NETWORKED_PER_MILLE: u32 = 300;
/// Switches of histories with rare faults only.
const RARE: [Switch; 6] = [
    Switch::OneWay,
    Switch::ReplacedMachine,
    Switch::ClockSet,
    Switch::ServerBehind,
    Switch::Drain,
    Switch::OutOfService,
];

/// See the module.
pub(super) struct Features {
    /// Every switch that is on.
    pub(super) on: Switches,
    /// With rare faults.
    rare: bool,
    /// A node is lost now and then, whether there are fence agents or not.
    losses: bool,
}

/// Whether the history is about Services: it has them then.
pub(super) fn is_about_services(on: Switches) -> bool {
    on.has(Switch::EndpointEnds) || on.has(Switch::Names)
}

impl Features {
    pub(super) fn draw(
        simulation: &Simulation,
        plan: &Plan,
        is_rare_by_seed: bool,
        streams: &mut Streams,
        caring: &mut Stream,
    ) -> Self {
        let seed = simulation.seed;
        // A mutant of disks, fencing or Services shows only in histories with them.
        let sought = |rule| simulation.is_sought(rule);
        let has = |switch, by_seed: bool, sought: bool| {
            plan.has(switch, by_seed) || sought && !plan.suppresses(switch)
        };
        // Each has a stream of its own, so that its draws shift no other's.
        let by_seed = |entity: &str, per_mille| stream(seed, entity).per_mille(per_mille);
        let self_fencing = by_seed("self-fencing", AT_MOST_ONE_PER_MILLE);
        let services = by_seed("services", PROXIED_PER_MILLE);
        let network = by_seed("pod network", NETWORKED_PER_MILLE);
        let disks = streams.storing.per_mille(DISKS_PER_MILLE);
        let at_most_one = caring.per_mille(CAREFUL_PER_MILLE);
        let crowding = seed >= FIRST_SWARMED && streams.crowding.per_mille(CROWDED_PER_MILLE);
        let fencing = streams.guarding.per_mille(FENCING_PER_MILLE);
        let mut features = vec![
            (Switch::SelfFencing, has(Switch::SelfFencing, self_fencing, false)),
            (
                Switch::Services,
                has(Switch::Services, services, sought("B7") || sought("N3")),
            ),
            (
                Switch::PodNetwork,
                has(Switch::PodNetwork, network, sought("N1") || sought("N6")),
            ),
            (Switch::Disks, has(Switch::Disks, disks, sought("S7"))),
            (
                Switch::AtMostOne,
                has(Switch::AtMostOne, at_most_one, sought("B4")),
            ),
            (
                Switch::Crowding,
                has(Switch::Crowding, crowding, sought("P4") || sought("P5")),
            ),
            (Switch::Fencing, has(Switch::Fencing, fencing, sought("S6"))),
        ];
        for switch in Switch::ALL.iter().filter(|switch| switch.is_later()) {
            let sought = simulation.mutation.is_some_and(|m| m.needs() == Some(*switch));
            let by_seed = switch.is_drawn_later(seed, 0);
            features.push((*switch, has(*switch, by_seed, sought)));
        }
        let rare = match plan.swarmed() {
            _ if simulation.rare => true,
            Some(on) => RARE.iter().any(|switch| on.has(*switch)),
            None => is_rare_by_seed,
        };
        let fencing = features.contains(&(Switch::Fencing, true));
        let clocks = [Switch::DriftingClocks, Switch::WrongClocks];
        let clocks = clocks.iter().any(|switch| features.contains(&(*switch, true)));
        let drawn = plan.swarmed().is_some() && plan.draws(Switch::LostNode);
        let losses = sought("B4") || (clocks || drawn) && !fencing;
        let is_on = |switch: Switch| match features.iter().find(|(feature, _)| *feature == switch) {
            Some((_, on)) => *on,
            None if RARE.contains(&switch) && !rare => false,
            None if switch == Switch::LostNode && !(fencing || losses) => false,
            None if switch == Switch::AskForFencing && !fencing => false,
            None => plan.does(switch),
        };
        let all = Switch::ALL.iter().copied();
        let mut on: Switches = all.filter(|switch| is_on(*switch)).collect();
        if is_about_services(on) && !plan.suppresses(Switch::Services) {
            on = on.with(Switch::Services);
        }
        if on.has(Switch::PreemptionCrash) && !plan.suppresses(Switch::CrossNodePreemption) {
            on = on.with(Switch::CrossNodePreemption);
        }
        if on.has(Switch::Crowding) {
            // Both fill nodes, with pods of which a DaemonSet's can preempt neither.
            on = on.without(Switch::HardBudgets);
        }
        Features { on, rare, losses }
    }

    /// What may happen, with pauses of at most so long.
    pub(super) fn possible_turns(&self, pause_millis: u64) -> PossibleTurns {
        let on = self.on;
        PossibleTurns {
            rare: self.rare,
            fencing: on.has(Switch::Fencing),
            losses: self.losses,
            disks: on.has(Switch::Disks),
            policies: on.has(Switch::PodNetwork),
            crowding: on.has(Switch::Crowding),
            store: on.has_store_faults(),
            staging: on.has(Switch::Staging),
            endpoint_ends: on.has(Switch::Services) && on.has(Switch::EndpointEnds),
            staging_crashes: on.has(Switch::Staging) && on.has(Switch::StagingCrash),
            quotas: on.has(Switch::Quotas),
            custom: on.has(Switch::CustomResources),
            upgrade: on.has(Switch::Upgrade),
            placement: on.has_placement(),
            preemption_crashes: on.has(Switch::PreemptionCrash),
            zones: on.has(Switch::TopologyDomains) || on.has(Switch::Rebalancing),
            pause_millis,
        }
    }
}
