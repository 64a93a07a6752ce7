//! The fence agents of the simulation: they switch hosts off and on, or fail, or do it and report something else
//! (SPEC S6).
//!
//! Their actions take effect when they report it, at once or much later; the caller may have given up by then. They
//! report wrongly in one call at most: an agent that reports a running host as switched off answers a status query
//! correctly. An agent that is wrong twice is believed (docs/promises.md), so simulating it would show nothing.
//! `reboot` has one call only: it never reports wrongly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use knarr_control::fencing::{AgentResult, Allowed, FenceAgents, Parameters, Run};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::Mutation;
use crate::components::Node;
use crate::later::later;
use crate::observer::Observer;
use crate::random::Stream;

/// The longest time from switching a host on until its kubelet runs.
const BOOTS_WITHIN_MILLIS: u64 = 15_000;
/// The longest delay of a late action.
const LATE_MILLIS: u64 = 60_000;

/// Exit codes of `status`.
const ON: i32 = 0;
const OFF: i32 = 2;
const FAILED: i32 = 1;

/// All agents: they share the hosts' switches.
pub(crate) struct Agents {
    observer: Arc<Observer>,
    /// Kubelets and controllers hold these agents: weak references, or a history would never be freed.
    nodes: Mutex<Vec<Weak<Node>>>,
    chance: Mutex<Stream>,
    /// From then on nothing fails.
    well: AtomicBool,
    mutation: Option<Mutation>,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulation's fence agents")
    }
}

/// What an agent does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AgentOutcome {
    Done,
    /// It fails, and reports that.
    Fails,
    /// It never answers, and does nothing.
    Hangs,
    /// It never answers, and does it when the caller waits no more.
    Late,
    /// It does it, and reports a failure.
    DoneUnsaid,
    /// It reports success, and has done nothing.
    Lies,
}

impl Agents {
    pub fn new(observer: Arc<Observer>, chance: Stream, mutation: Option<Mutation>) -> Self {
        Agents {
            observer,
            nodes: Mutex::default(),
            chance: Mutex::new(chance),
            well: AtomicBool::new(false),
            mutation,
        }
    }

    /// Connects the agents to the nodes whose switches they have.
    pub fn connect(&self, nodes: &[Arc<Node>]) {
        *self.nodes.lock() = nodes.iter().map(Arc::downgrade).collect();
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// From now on they do what is requested, and report it.
    pub fn heal(&self) {
        self.well.store(true, Ordering::Relaxed);
    }

    /// The nodes that are switched off.
    pub fn off(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.nodes();
        nodes.retain(|node| node.is_off());
        nodes
    }

    /// Switches a host, by hand or by an agent.
    pub fn switch_on(&self, node: &Arc<Node>) {
        node.switch_on();
        let boots = self.chance.lock().millis(1_000, BOOTS_WITHIN_MILLIS);
        let node = node.clone();
        later(boots, move || node.start());
    }

    fn draw(&self, action: &str) -> (Duration, AgentOutcome) {
        let mut chance = self.chance.lock();
        if self.well.load(Ordering::Relaxed) {
            return (chance.millis(100, 2_000), AgentOutcome::Done);
        }
        let takes = chance.millis(100, 6_000);
        let course = match (chance.between(0, 99), action) {
            (0..8, _) => AgentOutcome::Fails,
            (8..14, _) => AgentOutcome::Hangs,
            // A query, not an action.
            (14..22, "status") => AgentOutcome::DoneUnsaid,
            (_, "status") => AgentOutcome::Done,
            (14..19, "off" | "reboot") => AgentOutcome::Late,
            (19..29, _) => AgentOutcome::DoneUnsaid,
            (29..44, "off") | (29..34, "on") => AgentOutcome::Lies,
            _ => AgentOutcome::Done,
        };
        (takes, course)
    }

    fn act(self: &Arc<Self>, action: &str, node: &Arc<Node>) {
        match action {
            "off" => node.switch_off(),
            "on" if node.is_off() => self.switch_on(node),
            "reboot" => {
                node.switch_off();
                self.switch_on(node);
            }
            _ => {}
        }
    }
}

/// The names of these agents in the simulated policies.
pub(crate) const AGENTS: [&str; 2] = ["fence_power", "fence_spare"];

/// The configuration of the agents for the servers.
pub(crate) fn allowed() -> Allowed {
    // Names of ours; an error in them would show as nodes that are never fenced.
    Allowed::parse(&AGENTS.join(" ")).unwrap_or_default()
}

/// The handle that the control loops get.
#[derive(Clone, Debug)]
pub(crate) struct Handle(pub Arc<Agents>);

#[async_trait]
impl FenceAgents for Handle {
    async fn run(&self, run: &Run, parameters: &Parameters) -> AgentResult {
        let agents = &self.0;
        let exited = |code: i32| AgentResult::Exited {
            code,
            output: String::new(),
        };
        let plug = parameters.get("plug").unwrap_or_default().to_string();
        let nodes = agents.nodes();
        let mut at = nodes.iter().position(|n| n.name == plug);
        if agents.mutation == Some(Mutation::FenceAnother) {
            at = at.map(|at| (at + 1) % nodes.len());
        }
        let node = at.and_then(|at| nodes.get(at).cloned());
        // They have no metadata.
        let Some(node) = node.filter(|_| run.action != "metadata") else {
            return exited(FAILED);
        };
        if agents.mutation == Some(Mutation::BelieveTheAgent) && run.action == "status" {
            return exited(OFF);
        }
        let (takes, course) = agents.draw(run.action);
        let what = format!("{} {plug}", run.action);
        agents.observer.note(&format!("{} is to {what}", run.agent));
        sleep(takes).await;
        match course {
            AgentOutcome::Done | AgentOutcome::DoneUnsaid => agents.act(run.action, &node),
            AgentOutcome::Late => {
                let late = run.timeout + agents.chance.lock().millis(0, LATE_MILLIS);
                let (agents, action) = (agents.clone(), run.action);
                later(late, move || {
                    // That is a fault, and all faults have ended by then.
                    if agents.well.load(Ordering::Relaxed) {
                        return;
                    }
                    agents
                        .observer
                        .note("what an agent was asked for long ago is done");
                    agents.act(action, &node);
                });
                return std::future::pending().await;
            }
            AgentOutcome::Hangs => return std::future::pending().await,
            AgentOutcome::Fails | AgentOutcome::Lies => {}
        }
        exited(match (run.action, course) {
            (_, AgentOutcome::Fails) => FAILED,
            // A host that is off is reported as on.
            ("status", AgentOutcome::DoneUnsaid) => ON,
            ("status", _) => {
                if node.is_off() {
                    OFF
                } else {
                    ON
                }
            }
            (_, AgentOutcome::DoneUnsaid) => FAILED,
            _ => 0,
        })
    }
}
