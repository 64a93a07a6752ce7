//! One attempt to fence or unfence a node: which agent runs next with which action, and what follows from its results.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

use super::kinds::{Agent, Evidence, FencingPolicy, Level, NodeFencing, SecretRef};

/// One run of a fence agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The NodeFencing it is for.
    pub fencing: String,
    /// The attempt that it belongs to; results of other attempts are ignored.
    pub attempt: u64,
    /// The program's name.
    pub agent: String,
    pub action: &'static str,
    /// Written to its standard input, one `key=value` a line, `action` first.
    pub parameters: BTreeMap<String, String>,
    /// The Secret with further parameters.
    pub secret: Option<SecretRef>,
    pub timeout: Duration,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentResult {
    /// By the fence-agent convention: 0 is success; of `status`, 0 is on and 2 is off.
    Exited {
        code: i32,
        output: String,
    },
    TimedOut,
    /// The agent could not be run, or was killed by a signal.
    Broken {
        why: String,
    },
}

/// Whether the node is fenced (agents' `off` or `reboot`) or unfenced (`on`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Fence,
    Unfence,
}

/// What an attempt does next.
pub(super) enum Progress {
    Run(Box<Run>),
    /// An agent is running.
    AgentRunning,
    Succeeded {
        level: usize,
    },
    Failed {
        why: String,
    },
}

/// Which action of an agent is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentStep {
    Act,
    /// The action succeeded: `status` has to confirm it.
    Verify,
}

/// See the module.
pub(super) struct Attempt {
    /// Unique for each attempt of this process.
    id: u64,
    direction: Direction,
    /// The start time of the NodeFencing that it belongs to.
    start: Option<Time>,
    level: usize,
    agent: usize,
    step: AgentStep,
    /// Failures of the current agent.
    failures: usize,
    /// Whether an agent is running.
    agent_running: bool,
    /// The last failure.
    why: String,
    over: bool,
    /// Of a node that is unfenced: since when it has been Ready, while it is.
    ready_since: Option<Timestamp>,
    /// Results that are not yet in the status.
    pub evidence_to_record: Vec<Evidence>,
    /// The node's last heartbeat when the last agent was started.
    last_heartbeat: Option<Time>,
}

impl Attempt {
    /// Starts from the beginning: actions that were done before are repeated, which is harmless.
    pub fn new(id: u64, direction: Direction, fencing: &NodeFencing) -> Self {
        let fenced_by = fencing.status.level;
        Attempt {
            id,
            direction,
            start: fencing.status.start_time.clone(),
            level: match direction {
                Direction::Fence => 0,
                Direction::Unfence => fenced_by.unwrap_or(0),
            },
            agent: 0,
            step: AgentStep::Act,
            failures: 0,
            agent_running: false,
            why: "no agent was run".into(),
            over: false,
            ready_since: None,
            evidence_to_record: Vec::new(),
            last_heartbeat: None,
        }
    }

    /// An agent is started, with the node's last heartbeat at this time.
    pub fn agent_started(&mut self, last_heartbeat: Option<Time>) {
        self.last_heartbeat = last_heartbeat;
    }

    /// The node's last heartbeat when the last agent was started: the agents' results prove nothing about a node that has
    /// reported since.
    pub fn last_heartbeat(&self) -> Option<&Time> {
        self.last_heartbeat.as_ref()
    }

    /// Starts the attempt again, when none of its agents is running.
    pub fn begin_again(&mut self, fencing: &NodeFencing) {
        *self = Attempt::new(self.id, self.direction, fencing);
    }

    /// Whether this is the attempt of the NodeFencing's status. Another controller may have finished this attempt and started
    /// the next one: results from before then prove nothing about the node's current state.
    pub fn is_of(&self, direction: Direction, fencing: &NodeFencing) -> bool {
        self.direction == direction && self.start == fencing.status.start_time
    }

    /// Whether the node, which is `ready` now or not, has been ready for this long. If the clock is set back the wait starts again.
    pub fn has_been_ready_for(&mut self, wait: SignedDuration, ready: bool, now: Timestamp) -> bool {
        if !ready {
            self.ready_since = None;
            return false;
        }
        let since = self.ready_since.filter(|since| *since <= now).unwrap_or(now);
        self.ready_since = Some(since);
        now.duration_since(since) >= wait
    }

    fn action(&self, level: &Level) -> &'static str {
        match (self.step, self.direction, level.action.as_str()) {
            (AgentStep::Verify, ..) => "status",
            (AgentStep::Act, Direction::Unfence, _) => "on",
            (AgentStep::Act, Direction::Fence, "reboot") => "reboot",
            (AgentStep::Act, Direction::Fence, _) => "off",
        }
    }

    /// Starts the next agent, or returns the result of the attempt.
    pub fn next(&mut self, policy: &FencingPolicy, fencing: &NodeFencing) -> Progress {
        if self.agent_running {
            return Progress::AgentRunning;
        }
        loop {
            let Some(level) = policy.spec.levels.get(self.level).filter(|_| !self.over) else {
                let why = std::mem::take(&mut self.why);
                return Progress::Failed { why };
            };
            let Some(agent) = level.agents.get(self.agent) else {
                // All agents of the level have succeeded.
                return Progress::Succeeded { level: self.level };
            };
            if self.failures > agent.retries {
                self.agent = 0;
                self.failures = 0;
                self.step = AgentStep::Act;
                match self.direction {
                    Direction::Fence => self.level += 1,
                    Direction::Unfence => self.over = true,
                }
                continue;
            }
            self.agent_running = true;
            return Progress::Run(Box::new(self.run(agent, level, fencing)));
        }
    }

    fn run(&self, agent: &Agent, level: &Level, fencing: &NodeFencing) -> Run {
        let node = &fencing.spec.node_name;
        let mut parameters = agent.parameters.clone();
        match agent.node_parameters.get(node) {
            Some(more) => parameters.extend(more.clone()),
            // `port` is another name of the parameter `plug`.
            None if parameters.contains_key("port") => {}
            None => drop(parameters.entry("plug".into()).or_insert_with(|| node.clone())),
        }
        let seconds = u64::try_from(agent.timeout_seconds).unwrap_or(0).max(1);
        Run {
            fencing: fencing.metadata.name.clone().unwrap_or_default(),
            attempt: self.id,
            agent: agent.agent.clone(),
            action: self.action(level),
            parameters,
            secret: agent.secret_ref.clone(),
            timeout: Duration::from_secs(seconds),
        }
    }

    /// Records the result of a run of this attempt.
    pub fn record_result(&mut self, run: &Run, result: AgentResult, now: Timestamp) {
        if run.attempt != self.id {
            return;
        }
        self.agent_running = false;
        let (good, outcome, output) = match &result {
            AgentResult::TimedOut => (false, format!("timed out after {} s", run.timeout.as_secs()), ""),
            AgentResult::Broken { why } => (false, why.clone(), ""),
            AgentResult::Exited { code, output } => {
                let (good, outcome) = match (run.action, *code) {
                    ("status", 2) => (true, "says off".to_string()),
                    ("status", 0) => (false, "says on".to_string()),
                    (_, 0) => (true, "succeeded".to_string()),
                    (_, code) => (false, format!("failed with code {code}")),
                };
                (good, outcome, output.as_str())
            }
        };
        self.evidence_to_record
            .push(evidence(run, outcome.clone(), output, now));
        if !good {
            self.failures += 1;
            self.why = format!("{} {}: {outcome}", run.agent, run.action);
            self.step = AgentStep::Act;
            return;
        }
        // `status` can confirm `off`; a reboot is complete when it has succeeded.
        if run.action == "off" {
            self.step = AgentStep::Verify;
        } else {
            self.step = AgentStep::Act;
            self.agent += 1;
            self.failures = 0;
        }
    }
}

/// The result of a run, for the status.
fn evidence(run: &Run, outcome: String, output: &str, now: Timestamp) -> Evidence {
    Evidence {
        agent: run.agent.clone(),
        action: run.action.into(),
        time: seconds(now),
        outcome,
        output: output.trim().into(),
    }
}
