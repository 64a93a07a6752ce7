//! Fence agents of the simulated world: they switch machines off and on, or fail to, or do it and say otherwise (SPEC S6).
//!
//! What they do is done when they say so, at once or much later; whoever asked may have given up. They lie in one call at
//! most: one that says of a running machine that it was switched off tells the truth when asked for its status. Who lies
//! twice is believed (docs/promises.md), and nothing could be shown with it. `reboot` has one call only: it never lies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use knarr_control::fencing::{Allowed, Answer, FenceAgents, Parameters, Run};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::Mutation;
use crate::components::Node;
use crate::observer::Observer;
use crate::random::Stream;

/// A machine that is switched on needs so long until its kubelet runs, at the most.
const BOOTS_WITHIN_MILLIS: u64 = 15_000;
/// What is done late is done so long after it was asked for, at the most.
const LATE_MILLIS: u64 = 60_000;

/// Exit codes of `status`.
const ON: i32 = 0;
const OFF: i32 = 2;
const FAILED: i32 = 1;

/// All agents there are: they share the machines' switches.
pub(crate) struct Agents {
    observer: Arc<Observer>,
    /// Whose kubelets and controllers hold these agents: a history would never be let go of otherwise.
    nodes: Mutex<Vec<Weak<Node>>>,
    chance: Mutex<Stream>,
    /// Nothing fails any more.
    well: AtomicBool,
    mutation: Option<Mutation>,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulation's fence agents")
    }
}

/// What becomes of an order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    Done,
    /// It says that it failed, and has.
    Fails,
    /// It never answers, and does nothing.
    Hangs,
    /// It never answers, and does it all the same when nobody waits any more.
    Late,
    /// It does it, and says that it failed.
    DoneUnsaid,
    /// It says that it did it, and did nothing.
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

    /// Whose switches they have.
    pub fn wire(&self, nodes: &[Arc<Node>]) {
        *self.nodes.lock() = nodes.iter().map(Arc::downgrade).collect();
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// From now on they do what they are asked for, and say so.
    pub fn heal(&self) {
        self.well.store(true, Ordering::Relaxed);
    }

    /// The nodes that are switched off.
    pub fn off(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.nodes();
        nodes.retain(|node| node.is_off());
        nodes
    }

    /// Somebody presses a machine's button, or an agent does.
    pub fn switch_on(&self, node: &Arc<Node>) {
        node.switch_on();
        let boots = self.chance.lock().millis(1_000, BOOTS_WITHIN_MILLIS);
        let node = node.clone();
        tokio::spawn(async move {
            sleep(boots).await;
            node.start();
        });
    }

    fn draw(&self, action: &str) -> (Duration, Course) {
        let mut chance = self.chance.lock();
        if self.well.load(Ordering::Relaxed) {
            return (chance.millis(100, 2_000), Course::Done);
        }
        let takes = chance.millis(100, 6_000);
        let course = match (chance.between(0, 99), action) {
            (0..8, _) => Course::Fails,
            (8..14, _) => Course::Hangs,
            // Asked for something, not told to do it.
            (14..22, "status") => Course::DoneUnsaid,
            (_, "status") => Course::Done,
            (14..19, "off" | "reboot") => Course::Late,
            (19..29, _) => Course::DoneUnsaid,
            (29..44, "off") | (29..34, "on") => Course::Lies,
            _ => Course::Done,
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

/// The names by which the simulated policies know these agents.
pub(crate) const AGENTS: [&str; 2] = ["fence_power", "fence_spare"];

/// What the servers are told of them.
pub(crate) fn allowed() -> Allowed {
    // Names of ours; a mistake shows as nodes that are never fenced.
    Allowed::parse(&AGENTS.join(" ")).unwrap_or_default()
}

/// Hands out what the control loops are given.
#[derive(Clone, Debug)]
pub(crate) struct Handle(pub Arc<Agents>);

#[async_trait]
impl FenceAgents for Handle {
    async fn run(&self, run: &Run, parameters: &Parameters) -> Answer {
        let agents = &self.0;
        let exited = |code: i32| Answer::Exited {
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
        // They have nothing to say of themselves.
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
            Course::Done | Course::DoneUnsaid => agents.act(run.action, &node),
            Course::Late => {
                let late = run.timeout + agents.chance.lock().millis(0, LATE_MILLIS);
                let (agents, action) = (agents.clone(), run.action);
                tokio::spawn(async move {
                    sleep(late).await;
                    agents
                        .observer
                        .note("what an agent was asked for long ago is done");
                    agents.act(action, &node);
                });
                return std::future::pending().await;
            }
            Course::Hangs => return std::future::pending().await,
            Course::Fails | Course::Lies => {}
        }
        exited(match (run.action, course) {
            (_, Course::Fails) => FAILED,
            // Of a machine that is off, that it is on.
            ("status", Course::DoneUnsaid) => ON,
            ("status", _) => {
                if node.is_off() {
                    OFF
                } else {
                    ON
                }
            }
            (_, Course::DoneUnsaid) => FAILED,
            _ => 0,
        })
    }
}
