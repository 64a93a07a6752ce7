//! One try at a node: which agent is asked for what next, and what its answers come to.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::evidence;
use super::kinds::{Agent, Evidence, FencingPolicy, Level, NodeFencing, SecretRef};

/// A program to be run, once.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The NodeFencing it is for.
    pub fencing: String,
    /// Which of this controller's attempts it belongs to; answers to others count nothing.
    pub attempt: u64,
    /// The program's name.
    pub agent: String,
    pub action: &'static str,
    /// Written to its standard input, one `key=value` a line, `action` first.
    pub parameters: BTreeMap<String, String>,
    /// Where more parameters are.
    pub secret: Option<SecretRef>,
    pub timeout: Duration,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By the convention: 0 is success; of `status`, 0 is on and 2 is off.
    Exited {
        code: i32,
        output: String,
    },
    TimedOut,
    /// It could not be run, or did not end by itself.
    Broken {
        why: String,
    },
}

/// Out of the cluster, or back into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Away,
    Back,
}

/// What is next.
pub(super) enum Done {
    Run(Box<Run>),
    /// An agent is at work.
    Waits,
    Succeeded {
        level: usize,
    },
    Failed {
        why: String,
    },
}

/// Which of an agent's actions is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Act,
    /// It says it has done it: does it say that it is so, too?
    Verify,
}

/// See the module.
pub(super) struct Attempt {
    /// Another for each attempt of this process.
    id: u64,
    course: Course,
    /// The start time of the fencing that it belongs to.
    start: Option<Time>,
    level: usize,
    agent: usize,
    step: Step,
    /// Of the agent that is next, so far.
    failures: usize,
    /// Whether it waits for an answer.
    asked: bool,
    /// What failed last.
    why: String,
    over: bool,
    /// Of a node that is let back in: since when it has been well, as long as it is.
    well_since: Option<Timestamp>,
    /// To be written down.
    pub answers: Vec<Evidence>,
    /// What the node had said of itself last when its agents were asked last.
    heard: Option<Time>,
}

impl Attempt {
    /// From the beginning: whatever was done before is done again, which harms nothing.
    pub fn new(id: u64, course: Course, fencing: &NodeFencing) -> Self {
        let fenced_by = fencing.status.level;
        Attempt {
            id,
            course,
            start: fencing.status.start_time.clone(),
            level: match course {
                Course::Away => 0,
                Course::Back => fenced_by.unwrap_or(0),
            },
            agent: 0,
            step: Step::Act,
            failures: 0,
            asked: false,
            why: "no agent was asked".into(),
            over: false,
            well_since: None,
            answers: Vec::new(),
            heard: None,
        }
    }

    /// An agent is asked now, of a node that was heard last then.
    pub fn asked_of(&mut self, heard: Option<Time>) {
        self.heard = heard;
    }

    /// What the node had said of itself last when its agents were asked last: what they answered says nothing of a node that
    /// was heard since.
    pub fn heard(&self) -> Option<&Time> {
        self.heard.as_ref()
    }

    /// The same once more, when none of its agents is at work.
    pub fn begin_again(&mut self, fencing: &NodeFencing) {
        *self = Attempt::new(self.id, self.course, fencing);
    }

    /// Whether it is the attempt that the fencing's status speaks of. Another controller may have ended the one that this is,
    /// and begun the next: what agents answered before then proves nothing of the node as it is now.
    pub fn is_of(&self, course: Course, fencing: &NodeFencing) -> bool {
        self.course == course && self.start == fencing.status.start_time
    }

    /// Whether its node, which is well now or is not, has been for so long. A clock that is set back begins anew.
    pub fn is_well_for(&mut self, wait: SignedDuration, well: bool, now: Timestamp) -> bool {
        if !well {
            self.well_since = None;
            return false;
        }
        let since = self.well_since.filter(|since| *since <= now).unwrap_or(now);
        self.well_since = Some(since);
        now.duration_since(since) >= wait
    }

    fn action(&self, level: &Level) -> &'static str {
        match (self.step, self.course, level.action.as_str()) {
            (Step::Verify, ..) => "status",
            (Step::Act, Course::Back, _) => "on",
            (Step::Act, Course::Away, "reboot") => "reboot",
            (Step::Act, Course::Away, _) => "off",
        }
    }

    pub fn next(&mut self, policy: &FencingPolicy, fencing: &NodeFencing) -> Done {
        if self.asked {
            return Done::Waits;
        }
        loop {
            let Some(level) = policy.spec.levels.get(self.level).filter(|_| !self.over) else {
                let why = std::mem::take(&mut self.why);
                return Done::Failed { why };
            };
            let Some(agent) = level.agents.get(self.agent) else {
                // Every one of them has said so.
                return Done::Succeeded { level: self.level };
            };
            if self.failures > agent.retries {
                self.agent = 0;
                self.failures = 0;
                self.step = Step::Act;
                match self.course {
                    Course::Away => self.level += 1,
                    Course::Back => self.over = true,
                }
                continue;
            }
            self.asked = true;
            return Done::Run(Box::new(self.run(agent, level, fencing)));
        }
    }

    fn run(&self, agent: &Agent, level: &Level, fencing: &NodeFencing) -> Run {
        let node = &fencing.spec.node_name;
        let mut parameters = agent.parameters.clone();
        match agent.node_parameters.get(node) {
            Some(more) => parameters.extend(more.clone()),
            // `port` is another word for it.
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

    pub fn answered(&mut self, run: &Run, answer: Answer, now: Timestamp) {
        if run.attempt != self.id {
            return;
        }
        self.asked = false;
        let (good, outcome, output) = match &answer {
            Answer::TimedOut => (false, format!("timed out after {} s", run.timeout.as_secs()), ""),
            Answer::Broken { why } => (false, why.clone(), ""),
            Answer::Exited { code, output } => {
                let (good, outcome) = match (run.action, *code) {
                    ("status", 2) => (true, "says off".to_string()),
                    ("status", 0) => (false, "says on".to_string()),
                    (_, 0) => (true, "succeeded".to_string()),
                    (_, code) => (false, format!("failed with code {code}")),
                };
                (good, outcome, output.as_str())
            }
        };
        self.answers.push(evidence(run, outcome.clone(), output, now));
        if !good {
            self.failures += 1;
            self.why = format!("{} {}: {outcome}", run.agent, run.action);
            self.step = Step::Act;
            return;
        }
        // What `off` has done can be asked for; a reboot is over when it has been.
        if run.action == "off" {
            self.step = Step::Verify;
        } else {
            self.step = Step::Act;
            self.agent += 1;
            self.failures = 0;
        }
    }
}
