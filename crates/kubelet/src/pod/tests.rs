//! The life of a pod as a script, against a runtime that is a table: results arrive when the script says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use super::*;
use crate::admission::Rejection;
use crate::probe::{Kind, ProbeResult};
use crate::runtime::{self, ContainerState, Exit, PodRef};

mod adopted;
mod any_order;
mod clock_jumps;
mod endpoint_barrier;
mod evictions;
mod exits;
mod images;
mod init_containers;
mod pod_lifecycle;
mod probes;
mod resize;
mod restart_all;
mod self_fencing;
mod termination;
mod termination_history;
mod unhealthy;

/// A pod's state machine and the part of a node that it depends on.
struct Life {
    pod: Pod,
    object: core::Pod,
    now: Timestamp,
    timer: Option<Timestamp>,
    /// Actions whose result has not arrived.
    open: Vec<Action>,
    /// The running containers, by id.
    running: BTreeMap<ContainerId, String>,
    /// What happened, as text.
    log: Vec<String>,
    history: Option<TerminationHistory>,
    /// The containers whose removal was requested.
    removed: Vec<ContainerId>,
    /// The result of an action in place of success.
    failure_of: fn(&Action) -> Option<Event>,
    /// Whether the result of an action does not arrive yet.
    is_held: fn(&Action) -> bool,
}

fn container(name: &str) -> Value {
    json!({"name": name, "image": "busybox", "imagePullPolicy": "IfNotPresent"})
}

impl Life {
    fn new(spec: Value) -> Self {
        let mut object = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1},
            "spec": {"terminationGracePeriodSeconds": 30, "restartPolicy": "Always", "containers": [container("c")]},
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        Self::of(serde_json::from_value(object).unwrap())
    }

    fn of(object: core::Pod) -> Self {
        let node = Node {
            ips: vec!["192.0.2.1".into()],
            ..Node::default()
        };
        Life {
            pod: Pod::new(Arc::new(object.clone()), node),
            object,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            timer: None,
            open: Vec::new(),
            running: BTreeMap::new(),
            log: Vec::new(),
            history: None,
            removed: Vec::new(),
            failure_of: |_| None,
            is_held: |_| false,
        }
    }

    fn step(&mut self, event: Event) {
        self.timer = None;
        for action in self.pod.step(event, self.now) {
            match &action {
                Action::SetTimer(at) => self.timer = Some(*at),
                Action::WriteStatus(status) => {
                    self.log.push(format!("status {}", short(status)));
                    self.object.status = Some((**status).clone());
                }
                Action::Record {
                    warning,
                    reason,
                    message,
                    ..
                } => {
                    let mark = if *warning { "!" } else { "" };
                    self.log.push(format!("event {mark}{reason}: {message}"));
                }
                Action::WriteTerminationHistory(text) => {
                    self.history = Some(serde_json::from_str(text).unwrap())
                }
                Action::FinalDelete => self.log.push("delete".into()),
                Action::Forget => self.log.push("forget".into()),
                Action::CancelHook { id, .. } => {
                    self.log.push(format!("cancel hook {id}"));
                    self.open
                        .retain(|a| !matches!(a, Action::RunHook { id: i, .. } if i == id));
                }
                Action::StopContainer { id, grace_seconds } => {
                    self.log.push(format!("stop {id} {grace_seconds}"));
                    self.open
                        .retain(|a| !matches!(a, Action::StopContainer { id: i, .. } if i == id));
                    self.open.push(action);
                }
                Action::RemoveContainer { id } => {
                    self.removed.push(id.clone());
                    self.open.push(action);
                }
                Action::Probe { container, kind, .. } => {
                    self.log.push(format!("probe {container} {kind:?}"));
                    self.open.push(action);
                }
                Action::RunHook { id, hook, .. } => {
                    self.log.push(format!("hook {hook:?} {id}"));
                    self.open.push(action);
                }
                _ => self.open.push(action),
            }
        }
    }

    /// The event of an action that succeeds; `None` if only the script knows it.
    fn success_event(&self, action: &Action) -> Option<Event> {
        if (self.is_held)(action) {
            return None;
        }
        if let Some(failure) = (self.failure_of)(action) {
            return Some(failure);
        }
        Some(match action.clone() {
            Action::SetUpVolumes => Event::VolumesReady,
            Action::TearDownVolumes => Event::VolumesTornDown,
            Action::CreateSandbox { attempt } => Event::SandboxCreated {
                id: format!("s{attempt}").into(),
                ips: vec!["10.0.0.1".into()],
            },
            Action::StopSandbox { id } => Event::SandboxStopped { id },
            Action::RemoveSandbox { id } => Event::SandboxRemoved { id },
            Action::InspectImage { container, .. } => Event::ImageInspected {
                container,
                present: Ok(true),
            },
            Action::PullImage { container, .. } => Event::ImagePulled {
                container,
                result: Ok(Pulled::default()),
            },
            Action::CreateContainer {
                container, attempt, ..
            } => Event::ContainerCreated {
                id: format!("{container}{attempt}").into(),
                container,
            },
            Action::StartContainer { container, id } => Event::ContainerStarted {
                container,
                id,
                at: self.now,
                image: "busybox".into(),
                image_id: "sha256:1".into(),
            },
            Action::RemoveContainer { id } => Event::ContainerRemoved { id },
            _ => return None,
        })
    }

    fn give(&mut self, at: usize, event: Event) {
        self.open.remove(at);
        match &event {
            Event::ContainerStarted { container, id, .. } => {
                let twice = self.running.values().any(|c| c == container);
                assert!(!twice, "{container} runs twice");
                self.running.insert(id.clone(), container.clone());
                self.log.push(format!("start {id}"));
            }
            Event::SandboxStopped { .. } => self.log.push("sandbox stopped".into()),
            Event::VolumesTornDown => self.log.push("volumes torn down".into()),
            _ => {}
        }
        self.step(event);
    }

    /// Lets all actions succeed until only the script knows the next event.
    fn settle(&mut self) {
        self.step(Event::Timer);
        while let Some((at, event)) = self
            .open
            .iter()
            .enumerate()
            .find_map(|(at, action)| Some((at, self.success_event(action)?)))
        {
            self.give(at, event);
        }
    }

    fn exit(&mut self, id: &str, code: i32) {
        assert!(self.running.remove(id).is_some(), "{id} does not run");
        self.open
            .retain(|a| !matches!(a, Action::StopContainer { id: i, .. } if i == id));
        self.log.push(format!("exit {id} {code}"));
        let exit = Exit {
            code,
            started_at: Some(self.now),
            finished_at: Some(self.now),
            ..Exit::default()
        };
        self.step(Event::ContainerExited { id: id.into(), exit });
        self.settle();
    }

    fn wait(&mut self, seconds: i64) {
        let until = self.now + SignedDuration::from_secs(seconds);
        while let Some(at) = self.timer.filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = until;
        self.settle();
    }

    fn hook_done(&mut self, hook: Hook, result: Result<(), ActionError>) {
        let at = self
            .open
            .iter()
            .position(|a| matches!(a, Action::RunHook { hook: h, .. } if *h == hook))
            .expect("a hook runs");
        let Action::RunHook { id, .. } = self.open.remove(at) else {
            unreachable!()
        };
        self.step(Event::HookDone { id, hook, result });
        self.settle();
    }

    fn probed(&mut self, kind: Kind, result: ProbeResult) {
        let at = self
            .open
            .iter()
            .position(|a| matches!(a, Action::Probe { kind: k, .. } if *k == kind))
            .expect("a probe is in flight");
        let Action::Probe { id, .. } = self.open.remove(at) else {
            unreachable!()
        };
        self.step(Event::Probed { id, kind, result });
        self.settle();
    }

    fn delete(&mut self, grace_seconds: i64) {
        self.object.metadata.deletion_timestamp = Some(Time(self.now));
        self.object.metadata.deletion_grace_period_seconds = Some(grace_seconds);
        self.step(Event::Updated(Arc::new(self.object.clone())));
        self.settle();
    }

    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// As last written.
    fn history(&self) -> TerminationHistory {
        self.history.clone().unwrap_or_default()
    }

    fn status(&self) -> String {
        short(self.pod.status())
    }

    fn condition(&self, type_: &str) -> String {
        let conditions = self.pod.status().conditions.as_ref().unwrap();
        let c = conditions.iter().find(|c| c.type_ == type_).unwrap();
        let words = [Some(c.status.clone()), c.reason.clone(), c.message.clone()];
        words.into_iter().flatten().collect::<Vec<_>>().join("/")
    }
}

/// `Running c=running/0`: phase, and each container's state and restarts.
fn short(status: &core::PodStatus) -> String {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let one = |s: &core::ContainerStatus| {
        let state = s.state.clone().unwrap_or_default();
        let state = match (state.waiting, state.terminated) {
            (Some(w), _) => w.reason.unwrap_or_default(),
            (_, Some(t)) => format!("{}:{}", t.reason.unwrap_or_default(), t.exit_code),
            _ => "running".into(),
        };
        format!(" {}={state}/{}", s.name, s.restart_count)
    };
    let containers: String = lists.into_iter().flatten().flatten().map(one).collect();
    format!("{}{containers}", status.phase.as_deref().unwrap_or(""))
}

#[test]
fn l1_l6_a_run_to_completion_shows_what_kubernetes_shows() {
    let mut life = Life::new(json!({"restartPolicy": "Never"}));
    life.settle();
    assert_eq!(life.status(), "Running c=running/0");
    assert_eq!(life.condition("Ready"), "True");
    life.exit("c0", 0);
    let statuses: Vec<_> = life
        .take_log()
        .into_iter()
        .filter(|l| l.starts_with("status"))
        .collect();
    assert_eq!(
        statuses,
        [
            "status Pending c=ContainerCreating/0",
            // The sandbox is ready now.
            "status Pending c=ContainerCreating/0",
            "status Running c=running/0",
            "status Running c=Completed:0/0",
            "status Succeeded c=Completed:0/0",
        ]
    );
    assert_eq!(life.condition("Ready"), "False/PodCompleted");
    assert_eq!(life.condition("Initialized"), "True/PodCompleted");
    assert_eq!(life.condition("PodReadyToStartContainers"), "False");
}

#[test]
fn l1_the_exit_codes_decide_between_succeeded_and_failed() {
    for (policy, code, want) in [
        ("Never", 0, "Succeeded c=Completed:0/0"),
        ("Never", 1, "Failed c=Error:1/0"),
        ("OnFailure", 0, "Succeeded c=Completed:0/0"),
        ("OnFailure", 1, "Running c=running/1"),
        ("Always", 0, "Running c=running/1"),
    ] {
        let mut life = Life::new(json!({"restartPolicy": policy}));
        life.settle();
        life.exit("c0", code);
        assert_eq!(life.status(), want, "{policy} {code}");
    }
}

#[test]
fn l5_restarts_wait_longer_each_time_and_say_so() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    assert_eq!(
        life.status(),
        "Running c=running/1",
        "the first restart is immediate"
    );
    life.take_log();
    life.exit("c1", 1);
    assert_eq!(life.status(), "Running c=Error:1/1");
    life.wait(2);
    let log = life.take_log();
    assert!(
        log.contains(&"event !BackOff: Back-off restarting failed container c in pod p_n(u)".to_string()),
        "{log:#?}"
    );
    // The next event of the pod reports it, or nine seconds at the latest.
    assert_eq!(life.status(), "Running c=Error:1/1");
    life.object.metadata.generation = Some(2);
    let object = Arc::new(life.object.clone());
    life.step(Event::Updated(object));
    assert_eq!(life.status(), "Running c=CrashLoopBackOff/1");
    let status = life.pod.status().container_statuses.as_ref().unwrap()[0].clone();
    let message = status.state.unwrap().waiting.unwrap().message.unwrap();
    assert_eq!(message, "back-off 10s restarting failed container=c pod=p_n(u)");
    life.wait(7);
    assert!(life.running.is_empty(), "9 s are not 10");
    life.wait(1);
    assert_eq!(life.status(), "Running c=running/2");
    life.exit("c2", 1);
    life.wait(8);
    assert_eq!(life.status(), "Running c=Error:1/2");
    life.wait(1);
    assert_eq!(life.status(), "Running c=CrashLoopBackOff/2");
    life.wait(10);
    assert!(life.running.is_empty());
    life.wait(1);
    assert_eq!(life.status(), "Running c=running/3");
}

#[test]
fn l4_a_sandbox_is_reported_before_its_address() {
    let mut life = Life::new(json!({}));
    life.step(Event::Timer);
    life.step(Event::VolumesReady);
    life.open.clear();
    life.step(Event::SandboxCreated {
        id: "s0".into(),
        ips: vec!["10.0.0.1".into()],
    });
    let ready = |life: &Life| {
        let status = life.pod.status();
        let ready = |c: &&core::PodCondition| c.type_ == "PodReadyToStartContainers" && c.status == "True";
        (
            status.conditions.iter().flatten().any(|c| ready(&c)),
            status.pod_ip.clone(),
        )
    };
    assert_eq!(ready(&life), (true, None));
    // The update that only echoes the status reports nothing; the next container's status does.
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert_eq!(ready(&life), (true, None));
    life.settle();
    assert_eq!(ready(&life), (true, Some("10.0.0.1".into())));
}

#[test]
fn l11_the_deadline_fails_the_pod() {
    let mut life = Life::new(json!({"activeDeadlineSeconds": 20}));
    life.settle();
    assert_eq!(life.timer, Some(life.now + SignedDuration::from_secs(20)));
    life.wait(19);
    assert!(!life.pod.is_terminating());
    life.wait(1);
    life.exit("c0", 0);
    assert_eq!(life.pod.status().reason.as_deref(), Some("DeadlineExceeded"));
    assert!(life.status().starts_with("Failed"));
}

#[test]
fn l7_readiness_gates_hold_ready_back() {
    let mut life = Life::new(json!({"readinessGates": [{"conditionType": "x/y"}]}));
    life.settle();
    assert_eq!(life.condition("ContainersReady"), "True");
    assert_eq!(
        life.condition("Ready"),
        "False/ReadinessGatesNotReady/corresponding condition of pod readiness gate \"x/y\" does not exist."
    );
    let condition = json!({"type": "x/y", "status": "True"});
    let mut status = life.object.status.clone().unwrap();
    status
        .conditions
        .get_or_insert_default()
        .push(serde_json::from_value(condition).unwrap());
    life.object.status = Some(status.clone());
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert_eq!(life.condition("Ready"), "True");
    let merged = merge(&status, life.pod.status());
    assert!(
        merged.conditions.unwrap().iter().any(|c| c.type_ == "x/y"),
        "other components' conditions are kept"
    );
}

#[test]
fn t5_what_an_earlier_kubelet_reported_as_ended_is_not_reported_as_running() {
    let of = |status: serde_json::Value| serde_json::from_value::<core::PodStatus>(status).unwrap();
    let container = |state: &str, ready: bool| json!([{"name": "c", "image": "", "imageID": "", "ready": ready, "restartCount": 0, "state": {state: {"exitCode": 0}}}]);
    let ended = of(json!({"phase": "Succeeded", "containerStatuses": container("terminated", false)}));
    // The next kubelet read the pod before that was written.
    let older = of(json!({"phase": "Running", "containerStatuses": container("running", true)}));
    assert_eq!(merge(&ended, &older), ended);
    // A phase that another component wrote does not hide how the containers end.
    let failed = of(json!({"phase": "Failed", "containerStatuses": container("running", true)}));
    let now = of(json!({"phase": "Running", "containerStatuses": container("terminated", false)}));
    let merged = merge(&failed, &now);
    assert_eq!(merged.phase.as_deref(), Some("Failed"));
    assert_eq!(merged.container_statuses, now.container_statuses);
}

fn seen(name: &str, attempt: u32, state: ContainerState) -> runtime::Container {
    runtime::Container {
        id: format!("{name}{attempt}").into(),
        sandbox_id: "s0".into(),
        pod: PodRef::default(),
        name: name.into(),
        attempt,
        hash: String::new(),
        self_fenced: None,
        state,
        created_at: Timestamp::from_second(1_700_000_000).unwrap(),
        image: "busybox".into(),
        image_id: "sha256:1".into(),
    }
}

/// The sandbox whose processes have exited.
fn lost_sandbox() -> runtime::Sandbox {
    runtime::Sandbox {
        ready: false,
        ..sandbox()
    }
}

fn sandbox() -> runtime::Sandbox {
    runtime::Sandbox {
        id: "s0".into(),
        ready: true,
        ips: vec!["10.0.0.1".into()],
        ..runtime::Sandbox::default()
    }
}
