//! The part of a history in which users and faults take turns: drawn, or replayed from a script with some of it left
//! out.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::faults::Faults;
use crate::random::{Stream, stream};
use crate::script::{Positions, Reduction, Script, Step, Turn};
use crate::switches::{Plan, Switch};
use crate::users::Users;

/// Steps of histories with rare faults with one of them in addition, per mille.
const RARE_PER_MILLE: u32 = 120;
/// Steps of histories with disks with a user action on one, per mille.
const WITH_DISKS_PER_MILLE: u32 = 250;
/// The same for histories with fence agents.
const WITH_FENCING_PER_MILLE: u32 = 150;
/// The same for histories with NetworkPolicies.
const WITH_POLICIES_PER_MILLE: u32 = 250;
/// The same for histories with too few resources.
const WITH_CROWDING_PER_MILLE: u32 = 300;
/// The same for histories whose store compacts or loses answers.
const WITH_STORE_PER_MILLE: u32 = 250;
/// The same for histories with staged volumes …
const WITH_STAGING_PER_MILLE: u32 = 300;
/// … and for those with crashes between their steps.
const STAGING_CRASHES_PER_MILLE: u32 = 150;
/// The same for histories in which all pods of a Service are deleted at once.
const WITH_ENDS_PER_MILLE: u32 = 150;
/// The same for histories with quotas.
const WITH_QUOTAS_PER_MILLE: u32 = 350;
/// The same for histories with custom resources.
const WITH_CUSTOM_PER_MILLE: u32 = 400;
/// Steps of histories with an upgrade in which one more process is replaced, per mille.
const WITH_UPGRADE_PER_MILLE: u32 = 100;
/// The same for histories with knarr's own placement …
const WITH_PLACEMENT_PER_MILLE: u32 = 500;
/// … and for a zone that loses all its nodes.
const ZONES_PER_MILLE: u32 = 80;
/// The same for interruptions of the next preemption across nodes.
const PREEMPTION_CRASHES_PER_MILLE: u32 = 300;
/// Steps that are a user's and not a fault's, per mille.
const USERS_PER_MILLE: u32 = 700;
/// How often names are queried.
const ASK_NAMES_EVERY_SECONDS: i64 = 10;
/// The longest duration of a user action: some wait for a name to be free, or for an API server whose watch of the
/// store is behind.
const USERS_WAIT: Duration = Duration::from_secs(120);
/// How often the rules on durations are checked.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// What may happen in one history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PossibleTurns {
    pub rare: bool,
    pub fencing: bool,
    /// A node is lost now and then, whether there are fence agents or not.
    pub losses: bool,
    pub disks: bool,
    pub policies: bool,
    pub crowding: bool,
    pub store: bool,
    pub staging: bool,
    pub staging_crashes: bool,
    pub endpoint_ends: bool,
    pub quotas: bool,
    pub custom: bool,
    pub upgrade: bool,
    pub placement: bool,
    /// Zones lose all their nodes.
    pub zones: bool,
    pub preemption_crashes: bool,
    /// The longest pause between two turns.
    pub pause_millis: u64,
}

/// Streams of their own: features that not every history has shift no other's draws.
pub(crate) struct Streams {
    pub rarely: Stream,
    pub guarding: Stream,
    pub storing: Stream,
    pub policing: Stream,
    pub crowding: Stream,
    pub compacting: Stream,
    pub staging: Stream,
    pub ending: Stream,
    pub quotas: Stream,
    pub custom: Stream,
    pub upgrading: Stream,
    pub placement: Stream,
    pub interrupting: Stream,
}

impl Streams {
    pub fn of(seed: u64) -> Self {
        Streams {
            rarely: stream(seed, "rarely"),
            guarding: stream(seed, "fencing"),
            storing: stream(seed, "disks"),
            policing: stream(seed, "policies"),
            crowding: stream(seed, "crowding"),
            compacting: stream(seed, "store faults"),
            staging: stream(seed, "staged volumes"),
            ending: stream(seed, "endpoint ends"),
            quotas: stream(seed, "quotas"),
            custom: stream(seed, "custom resources"),
            upgrading: stream(seed, "upgrade"),
            placement: stream(seed, "placement"),
            interrupting: stream(seed, "preemption crash"),
        }
    }
}

/// See the module.
pub(crate) struct Trouble {
    pub users: Users,
    pub faults: Faults,
    pub streams: Streams,
    pub possible_turns: PossibleTurns,
    pub plan: Plan,
    /// When the history began.
    pub began: Instant,
    /// The steps so far.
    pub script: Script,
    /// The FencingPolicy has been created, or none is to be.
    pub has_policy: bool,
}

pub(crate) fn denied(e: knarr_client::Error) -> io::Error {
    io::Error::other(format!("a user's request was rejected: {e}"))
}

impl Trouble {
    fn is_broken(&self) -> bool {
        self.faults.observer.violation().is_some()
    }

    /// Turns drawn from `chance`, for so long, or until a rule is broken.
    pub async fn draw(&mut self, chance: &mut Stream, long: Duration) -> io::Result<()> {
        let possible_turns = self.possible_turns;
        let ends = Instant::now() + long;
        while Instant::now() < ends && !self.is_broken() {
            let next = Instant::now() + chance.millis(10, possible_turns.pause_millis);
            pass_until(next, &self.faults).await;
            if possible_turns.rare && self.streams.rarely.per_mille(RARE_PER_MILLE) {
                let turn = match self.streams.rarely.per_mille(500) {
                    true => Turn::RareFault,
                    false => Turn::NodeUsers,
                };
                self.record(turn).await?;
            }
            if !self.has_policy {
                self.record(Turn::FencingPolicy).await?;
            }
            if possible_turns.losses && self.streams.guarding.per_mille(WITH_FENCING_PER_MILLE) {
                self.record(Turn::LostNode).await?;
            }
            if possible_turns.fencing && self.streams.guarding.per_mille(WITH_FENCING_PER_MILLE) {
                let turn = match self.streams.guarding.per_mille(500) {
                    true => Turn::LostNode,
                    false => Turn::Fencing,
                };
                self.record(turn).await?;
            }
            if possible_turns.disks && self.streams.storing.per_mille(WITH_DISKS_PER_MILLE) {
                self.record(Turn::Disks).await?;
            }
            if possible_turns.policies && self.streams.policing.per_mille(WITH_POLICIES_PER_MILLE) {
                self.record(Turn::Policies).await?;
            }
            if possible_turns.crowding && self.streams.crowding.per_mille(WITH_CROWDING_PER_MILLE) {
                self.record(Turn::Room).await?;
            }
            if possible_turns.store && self.streams.compacting.per_mille(WITH_STORE_PER_MILLE) {
                self.record(Turn::Store).await?;
            }
            if possible_turns.staging && self.streams.staging.per_mille(WITH_STAGING_PER_MILLE) {
                self.record(Turn::Volumes).await?;
            }
            if possible_turns.staging_crashes && self.streams.staging.per_mille(STAGING_CRASHES_PER_MILLE) {
                self.record(Turn::StagingCrash).await?;
            }
            if possible_turns.endpoint_ends && self.streams.ending.per_mille(WITH_ENDS_PER_MILLE) {
                self.record(Turn::EndpointEnds).await?;
            }
            if possible_turns.quotas && self.streams.quotas.per_mille(WITH_QUOTAS_PER_MILLE) {
                self.record(Turn::Quotas).await?;
            }
            if possible_turns.custom && self.streams.custom.per_mille(WITH_CUSTOM_PER_MILLE) {
                self.record(Turn::CustomResources).await?;
            }
            if possible_turns.upgrade && self.streams.upgrading.per_mille(WITH_UPGRADE_PER_MILLE) {
                self.record(Turn::Upgrade).await?;
            }
            if possible_turns.placement && self.streams.placement.per_mille(WITH_PLACEMENT_PER_MILLE) {
                self.record(Turn::Placement).await?;
            }
            if possible_turns.zones && self.streams.placement.per_mille(ZONES_PER_MILLE) {
                self.record(Turn::Zone).await?;
            }
            if possible_turns.preemption_crashes
                && self.streams.interrupting.per_mille(PREEMPTION_CRASHES_PER_MILLE)
            {
                self.record(Turn::PreemptionCrash).await?;
            }
            let turn = match chance.per_mille(USERS_PER_MILLE) {
                true => Turn::Users,
                false => Turn::Fault,
            };
            self.record(turn).await?;
        }
        self.script.ended = self.began.elapsed();
        Ok(())
    }

    /// The turns of a script, except what is left out.
    pub async fn play(&mut self, script: &Script, reduction: &Reduction) -> io::Result<()> {
        let until = reduction.until.unwrap_or(Duration::MAX);
        for (number, step) in (1..).zip(&script.steps) {
            if step.at > until || self.is_broken() {
                break;
            }
            self.pass(step.at).await;
            if reduction.skip.has(number) || self.is_broken() {
                continue;
            }
            self.go_to(&step.positions);
            self.faults
                .observer
                .remark(&format!("step {number}: {:?}", step.turn));
            self.take_in_time(step.turn).await?;
        }
        self.pass(script.ended.min(until)).await;
        self.script = script.clone();
        Ok(())
    }

    /// Waits until so long after the beginning.
    async fn pass(&self, at: Duration) {
        let end = self.began + at;
        if end > Instant::now() && !self.is_broken() {
            pass_until(end, &self.faults).await;
        }
    }

    async fn record(&mut self, turn: Turn) -> io::Result<()> {
        self.script.steps.push(Step {
            at: self.began.elapsed(),
            turn,
            positions: self.positions(),
        });
        let number = self.script.len();
        self.faults.observer.remark(&format!("step {number}: {turn:?}"));
        self.take_in_time(turn).await
    }

    /// A user without an answer is a broken history.
    async fn take_in_time(&mut self, turn: Turn) -> io::Result<()> {
        let observer = self.faults.observer.clone();
        match timeout(USERS_WAIT, self.take(turn)).await {
            Ok(taken) => taken,
            Err(_) => {
                let what = format!("a user got no answer for {} s ({turn:?})", USERS_WAIT.as_secs());
                observer.violate("S9", what);
                Ok(())
            }
        }
    }

    async fn take(&mut self, turn: Turn) -> io::Result<()> {
        let (users, faults, streams) = (&mut self.users, &mut self.faults, &mut self.streams);
        let done = match turn {
            Turn::Users => users.act().await,
            Turn::Fault => {
                faults.strike();
                Ok(())
            }
            Turn::RareFault => return faults.strike_rarely(&mut streams.rarely),
            Turn::NodeUsers => users.act_on_a_node(&mut streams.rarely).await,
            Turn::LostNode => {
                faults.lose_a_node(&mut streams.guarding);
                Ok(())
            }
            Turn::FencingPolicy if self.has_policy => Ok(()),
            Turn::Fencing | Turn::FencingPolicy if self.plan.suppresses(Switch::Fencing) => Ok(()),
            Turn::Disks if self.plan.suppresses(Switch::Disks) => Ok(()),
            Turn::Policies if self.plan.suppresses(Switch::PodNetwork) => Ok(()),
            Turn::Room if self.plan.suppresses(Switch::Crowding) => Ok(()),
            Turn::Store => {
                faults.strike_store(&mut streams.compacting);
                Ok(())
            }
            Turn::Volumes | Turn::StagingCrash if self.plan.suppresses(Switch::Staging) => Ok(()),
            Turn::Volumes => users.act_with_volumes(&mut streams.staging).await,
            Turn::StagingCrash => {
                faults.crash_between_steps(&mut streams.staging);
                Ok(())
            }
            Turn::EndpointEnds if self.plan.suppresses(Switch::EndpointEnds) => Ok(()),
            Turn::EndpointEnds => users.delete_endpoints(&mut streams.ending).await,
            Turn::CustomResources if self.plan.suppresses(Switch::CustomResources) => Ok(()),
            Turn::Quotas if self.plan.suppresses(Switch::Quotas) => Ok(()),
            Turn::FencingPolicy => {
                let written = users.create_fencing_policy(&mut streams.guarding).await;
                written.map(|written| self.has_policy = written)
            }
            Turn::Fencing => users.ask_for_fencing(&mut streams.guarding).await,
            Turn::Disks => users.act_with_disks(&mut streams.storing).await,
            Turn::Policies => users.act_with_policies(&mut streams.policing).await,
            Turn::Room => users.act_with_room(&mut streams.crowding).await,
            Turn::Upgrade => {
                faults.upgrade_next(&mut streams.upgrading);
                Ok(())
            }
            Turn::Placement => users.act_with_placement(&mut streams.placement).await,
            Turn::Zone if !self.possible_turns.zones => Ok(()),
            Turn::Zone => match faults.lose_a_zone(&mut streams.placement) {
                Some(nodes) => users.delete_nodes(&nodes).await,
                None => Ok(()),
            },
            Turn::PreemptionCrash if self.plan.suppresses(Switch::PreemptionCrash) => Ok(()),
            Turn::PreemptionCrash => {
                faults.interrupt_preemption(&mut streams.interrupting);
                Ok(())
            }
            Turn::Quotas => users.act_with_quotas(&mut streams.quotas, &faults.servers).await,
            Turn::CustomResources => {
                users
                    .act_with_custom_resources(&mut streams.custom, &faults.servers)
                    .await
            }
        };
        done.map_err(denied)
    }

    fn positions(&self) -> Positions {
        let [users, careful] = self.users.positions();
        let streams = &self.streams;
        [
            streams.rarely.position(),
            streams.guarding.position(),
            streams.storing.position(),
            streams.policing.position(),
            streams.crowding.position(),
            streams.compacting.position(),
            streams.staging.position(),
            streams.ending.position(),
            streams.quotas.position(),
            streams.custom.position(),
            streams.upgrading.position(),
            streams.placement.position(),
            streams.interrupting.position(),
            self.faults.chance.position(),
            users,
            careful,
        ]
    }

    fn go_to(&mut self, positions: &Positions) {
        let [
            rarely,
            guarding,
            storing,
            policing,
            crowding,
            compacting,
            staging,
            ending,
            quotas,
            custom,
            upgrading,
            placement,
            interrupting,
            faults,
            users,
            careful,
        ] = *positions;
        self.streams.rarely.go_to(rarely);
        self.streams.guarding.go_to(guarding);
        self.streams.storing.go_to(storing);
        self.streams.policing.go_to(policing);
        self.streams.crowding.go_to(crowding);
        self.streams.compacting.go_to(compacting);
        self.streams.staging.go_to(staging);
        self.streams.ending.go_to(ending);
        self.streams.quotas.go_to(quotas);
        self.streams.custom.go_to(custom);
        self.streams.upgrading.go_to(upgrading);
        self.streams.placement.go_to(placement);
        self.streams.interrupting.go_to(interrupting);
        self.faults.chance.go_to(faults);
        self.users.go_to([users, careful]);
    }
}

/// Lets time pass, and has the rules on durations checked.
pub(crate) async fn pass_until(end: Instant, faults: &Faults) {
    loop {
        let tick = Instant::now() + TICK;
        sleep_until(tick.min(end)).await;
        faults.report_health();
        let second = faults.observer.world(|world| world.now.as_second());
        if second % ASK_NAMES_EVERY_SECONDS == 0 {
            faults.nodes.iter().for_each(|node| node.ask_names());
        }
        faults.observer.tick();
        faults.servers.iter().for_each(|server| server.check_denied());
        if tick >= end || faults.observer.violation().is_some() {
            return;
        }
    }
}
