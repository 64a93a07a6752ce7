//! Pods' lives as scripts against a runtime that is a table: answers come when the script says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use super::*;
use crate::probe::{Answer, Kind};
use crate::runtime::{ContainerState, PodRef};

mod adopted;
mod clock_jumps;
mod endpoint_barrier;
mod evictions;
mod memory_of_ends;
mod resize;
mod restart_all;
mod unhealthy;

/// A pod and the little of a node it sees.
struct Life {
    pod: Pod,
    object: core::Pod,
    now: Timestamp,
    timer: Option<Timestamp>,
    /// Actions that wait for their answer.
    open: Vec<Action>,
    /// What runs, by id.
    running: BTreeMap<String, String>,
    /// What happened, in words.
    log: Vec<String>,
    ends: Option<Ends>,
    /// What the node answers instead of the good answer.
    refuses: fn(&Action) -> Option<Event>,
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
            ends: None,
            refuses: |_| None,
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
                Action::WriteEnds(text) => self.ends = Some(serde_json::from_str(text).unwrap()),
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

    /// The good answer to an action; none where only the script can know.
    fn answer(&self, action: &Action) -> Option<Event> {
        if let Some(refusal) = (self.refuses)(action) {
            return Some(refusal);
        }
        Some(match action.clone() {
            Action::SetUpVolumes => Event::VolumesReady,
            Action::TearDownVolumes => Event::VolumesGone,
            Action::CreateSandbox { attempt } => Event::SandboxCreated {
                id: format!("s{attempt}"),
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
                id: format!("{container}{attempt}"),
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
            Event::VolumesGone => self.log.push("volumes gone".into()),
            _ => {}
        }
        self.step(event);
    }

    /// Gives all good answers until only the script knows what comes.
    fn settle(&mut self) {
        self.step(Event::Timer);
        while let Some((at, event)) = self
            .open
            .iter()
            .enumerate()
            .find_map(|(at, action)| Some((at, self.answer(action)?)))
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

    fn hook_done(&mut self, hook: Hook, result: Result<(), String>) {
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

    fn probed(&mut self, kind: Kind, answer: Answer) {
        let at = self
            .open
            .iter()
            .position(|a| matches!(a, Action::Probe { kind: k, .. } if *k == kind))
            .expect("a probe is being asked");
        let Action::Probe { id, .. } = self.open.remove(at) else {
            unreachable!()
        };
        self.step(Event::Probed { id, kind, answer });
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

    /// As told last.
    fn ends(&self) -> Ends {
        self.ends.clone().unwrap_or_default()
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
            // The sandbox is there now.
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
fn l1_ends_come_to_succeeded_or_failed_by_their_codes() {
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
        "the first restart comes at once"
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
    // It is shown so by whatever happens to the pod next, and after nine seconds at the latest.
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
fn l8_what_a_probe_ends_starts_again_at_once_the_first_times() {
    let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut spec = container("c");
    spec["livenessProbe"] = probe;
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    let end = |life: &mut Life, id: &str| {
        life.step(Event::Probed {
            id: id.into(),
            kind: Kind::Liveness,
            answer: Answer::Failure(String::new()),
        });
        life.open.retain(|a| !matches!(a, Action::StopContainer { .. }));
        life.exit(id, 0);
    };
    end(&mut life, "c0");
    assert_eq!(life.status(), "Running c=running/1", "nothing had ended before");
    end(&mut life, "c1");
    assert_eq!(life.status(), "Running c=running/2", "the first that counts");
    end(&mut life, "c2");
    assert_eq!(life.status(), "Running c=Completed:0/2", "now it waits");
    life.wait(10);
    assert_eq!(life.status(), "Running c=running/3");
}

#[test]
fn l4_a_sandbox_is_told_of_before_its_address() {
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
    // Its own echo is no news; the next container's is.
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert_eq!(ready(&life), (true, None));
    life.settle();
    assert_eq!(ready(&life), (true, Some("10.0.0.1".into())));
}

#[test]
fn l4_a_resize_is_allocated_then_brought_about() {
    let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let mut spec = container("c");
    spec["resources"] = resources("20m");
    let mut life = Life::new(json!({"containers": [spec]}));
    life.settle();
    let shown = |life: &Life| {
        let status = life.pod.status();
        let c = status.container_statuses.as_ref().unwrap()[0].clone();
        let cpu = |l: Option<BTreeMap<String, Quantity>>| l.unwrap()["cpu"].0.clone();
        let progress = |c: &&core::PodCondition| c.type_ == "PodResizeInProgress";
        let busy = status.conditions.iter().flatten().any(|c| progress(&c));
        (
            cpu(c.allocated_resources),
            cpu(c.resources.unwrap().requests),
            busy,
        )
    };
    assert_eq!(shown(&life), ("20m".into(), "20m".into(), false));
    life.object.metadata.generation = Some(2);
    life.object.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(resources("40m")).unwrap();
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert_eq!(life.open, [Action::AdmitResize]);
    let observed = |life: &Life| life.pod.status().observed_generation;
    assert_eq!(observed(&life), Some(1), "nothing is known of the second yet");
    life.open.clear();
    let full = Rejection {
        reason: "OutOfcpu".into(),
        message: "full".into(),
    };
    life.step(Event::ResizeAdmitted(Err(full)));
    assert_eq!(shown(&life), ("20m".into(), "20m".into(), false), "no room yet");
    assert_eq!(observed(&life), Some(2));
    life.now += SignedDuration::from_secs(10);
    life.step(Event::Timer);
    life.open.clear();
    life.take_log();
    life.step(Event::ResizeAdmitted(Ok(())));
    assert_eq!(shown(&life), ("40m".into(), "20m".into(), true));
    life.open.clear();
    life.step(Event::Resized {
        done: vec!["c0".into()],
        result: Ok(()),
    });
    assert_eq!(shown(&life), ("40m".into(), "40m".into(), false));
    let log = life.take_log();
    let what = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"40m"}}}],"generation":2}"#;
    for wanted in [
        "event ResizeStarted: Pod resize started: ",
        "event ResizeCompleted: Pod resize completed: ",
    ] {
        assert!(log.contains(&format!("{wanted}{what}")), "{log:#?}");
    }
}

#[test]
fn t5_the_object_goes_last() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    life.delete(30);
    assert_eq!(
        life.take_log(),
        ["event Killing: Stopping container c", "stop c0 30"]
    );
    life.exit("c0", 0);
    let log = life.take_log();
    let at = |what: &str| {
        log.iter()
            .position(|l| l.starts_with(what))
            .unwrap_or_else(|| panic!("{what}: {log:#?}"))
    };
    assert!(at("exit c0") < at("sandbox stopped"));
    assert!(at("sandbox stopped") < at("delete") && at("volumes gone") < at("delete"));
    assert!(at("status Succeeded c=Completed:0/0") < at("delete"));
    assert_eq!(log.last().unwrap(), "delete");
    life.step(Event::Removed);
    assert_eq!(life.take_log(), ["forget"]);
}

#[test]
fn t2_a_pre_stop_hook_uses_up_the_grace_but_two_seconds() {
    let mut c = container("c");
    c["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    for (used, result, want) in [
        (10, Some(Ok(())), "stop c0 20"),
        (29, Some(Ok(())), "stop c0 2"),
        (3, Some(Err(String::new())), "stop c0 27"),
        (30, None, "stop c0 2"),
    ] {
        let mut life = Life::new(json!({"containers": [c.clone()]}));
        life.settle();
        life.delete(30);
        let hung = result.is_none();
        let failed = hung || result == Some(Err(String::new()));
        life.wait(used);
        if let Some(result) = result {
            life.hook_done(Hook::PreStop, result);
        }
        let log = life.take_log();
        assert_eq!(
            log.iter().filter(|l| l.starts_with("hook PreStop")).count(),
            1,
            "never repeated"
        );
        let told = log.contains(&"event !FailedPreStopHook: PreStopHook failed".to_string());
        assert_eq!(told, failed, "{log:#?}");
        assert_eq!(log.last().unwrap(), want);
        // What nobody waits for any more goes on as long as the container is there.
        life.exit("c0", 137);
        let log = life.take_log();
        assert_eq!(log.contains(&"cancel hook c0".to_string()), hung, "{log:#?}");
    }
}

#[test]
fn t2_a_hook_that_answers_after_its_time_changes_nothing_more() {
    let mut c = container("c");
    c["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    life.delete(30);
    life.wait(31);
    life.take_log();
    life.hook_done(Hook::PreStop, Err("late".into()));
    assert!(life.take_log().is_empty(), "told as failed once already");
    life.exit("c0", 137);
    let log = life.take_log();
    assert!(!log.contains(&"cancel hook c0".to_string()), "{log:#?}");
}

#[test]
fn t3_a_shorter_grace_takes_effect_at_once_and_a_longer_one_does_not() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.delete(30);
    life.wait(4);
    life.take_log();
    life.delete(60);
    assert!(life.take_log().is_empty());
    life.delete(10);
    assert_eq!(life.take_log(), ["stop c0 6"]);
    life.delete(1);
    assert_eq!(life.take_log(), ["stop c0 1"]);
}

#[test]
fn t6_what_was_forced_away_is_ended_shortly_and_not_deleted_again() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.take_log();
    life.step(Event::Removed);
    assert_eq!(
        life.take_log(),
        ["event Killing: Stopping container c", "stop c0 2"]
    );
    life.exit("c0", 137);
    let log = life.take_log();
    assert!(!log.contains(&"delete".to_string()));
    assert_eq!(log.last().unwrap(), "forget");
}

#[test]
fn l10_init_containers_go_first_and_sidecars_end_last() {
    let mut side = container("s");
    side["restartPolicy"] = json!("Always");
    let mut late = container("t");
    late["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [container("i"), side, late], "containers": [container("a"), container("b")]});
    let mut life = Life::new(spec);
    life.settle();
    assert_eq!(
        life.status(),
        "Pending i=running/0 s=PodInitializing/0 t=PodInitializing/0 a=PodInitializing/0 b=PodInitializing/0"
    );
    assert_eq!(
        life.condition("Initialized"),
        "False/ContainersNotInitialized/containers with incomplete status: [i s t]"
    );
    life.exit("i0", 0);
    let starts: Vec<_> = life
        .log
        .iter()
        .filter(|l| l.starts_with("start"))
        .cloned()
        .collect();
    assert_eq!(
        starts,
        ["start i0", "start s0", "start t0", "start a0", "start b0"]
    );
    assert_eq!(life.condition("Ready"), "True");
    life.take_log();
    life.delete(30);
    let stops = |life: &mut Life| -> Vec<String> {
        life.take_log()
            .into_iter()
            .filter(|l| l.starts_with("stop"))
            .collect()
    };
    assert_eq!(stops(&mut life), ["stop a0 30", "stop b0 30"]);
    life.wait(4);
    life.exit("a0", 0);
    assert!(stops(&mut life).is_empty(), "b still runs");
    life.exit("b0", 0);
    assert_eq!(stops(&mut life), ["stop t0 26"]);
    life.exit("t0", 0);
    assert_eq!(stops(&mut life), ["stop s0 26"]);
    life.exit("s0", 0);
    assert_eq!(life.log.last().unwrap(), "delete");
}

#[test]
fn l10_sidecars_do_not_keep_a_pod_from_completing() {
    let mut side = container("s");
    side["restartPolicy"] = json!("Always");
    let mut life = Life::new(json!({"initContainers": [side], "restartPolicy": "Never"}));
    life.settle();
    life.exit("c0", 0);
    assert!(life.log.contains(&"stop s0 30".to_string()));
    life.exit("s0", 0);
    assert_eq!(life.status(), "Succeeded s=Completed:0/0 c=Completed:0/0");
}

#[test]
fn l10_a_failed_init_container_fails_a_pod_that_never_restarts() {
    for (policy, want) in [
        ("Never", "Failed i=Error:1/0 c=PodInitializing/0"),
        ("OnFailure", "Pending i=running/1 c=PodInitializing/0"),
    ] {
        let mut life = Life::new(json!({"initContainers": [container("i")], "restartPolicy": policy}));
        life.settle();
        life.exit("i0", 1);
        assert_eq!(life.status(), want);
    }
}

#[test]
fn l9_a_container_does_not_count_as_running_before_its_hook_is_done() {
    let mut a = container("a");
    a["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [a, container("b")]}));
    life.settle();
    assert_eq!(
        life.status(),
        "Pending a=ContainerCreating/0 b=ContainerCreating/0"
    );
    life.hook_done(Hook::PostStart, Ok(()));
    assert_eq!(life.status(), "Running a=running/0 b=running/0");
}

#[test]
fn l9_a_failed_post_start_hook_ends_the_container() {
    let mut c = container("c");
    c["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    let mut life = Life::new(json!({"containers": [c], "restartPolicy": "Never"}));
    life.settle();
    life.hook_done(Hook::PostStart, Err("no".into()));
    assert!(
        life.log
            .contains(&"event !FailedPostStartHook: PostStartHook failed".to_string())
    );
    assert!(
        life.log
            .contains(&"event Killing: FailedPostStartHook".to_string())
    );
    life.exit("c0", 0);
    assert_eq!(life.status(), "Succeeded c=Completed:0/0");
}

#[test]
fn l8_readiness_decides_ready_and_liveness_restarts_with_its_own_grace() {
    let mut c = container("c");
    c["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": 1});
    c["livenessProbe"] =
        json!({"exec": {}, "periodSeconds": 5, "failureThreshold": 1, "terminationGracePeriodSeconds": 7});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    assert_eq!(
        life.condition("Ready"),
        "False/ContainersNotReady/containers with unready status: [c]"
    );
    life.probed(Kind::Readiness, Answer::Success);
    assert_eq!(life.condition("Ready"), "True");
    life.take_log();
    life.probed(Kind::Liveness, Answer::Failure("no".into()));
    let log = life.take_log();
    assert!(log.contains(&"event !Unhealthy: Liveness probe failed: no".to_string()));
    assert!(log.contains(&"event Killing: Container c failed liveness probe, will be restarted".to_string()));
    assert_eq!(log.last().unwrap(), "stop c0 7");
    life.exit("c0", 137);
    assert_eq!(life.status(), "Running c=running/1");
    assert_ne!(life.condition("Ready"), "True", "a new run begins unready");
}

#[test]
fn t2_l8_a_pod_that_ends_is_still_asked_for_readiness_and_for_nothing_else() {
    let mut life = Life::new(json!({"containers": [{
        "name": "c", "image": "busybox",
        "readinessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1},
        "livenessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1},
    }]}));
    life.settle();
    life.probed(Kind::Readiness, Answer::Success);
    life.probed(Kind::Liveness, Answer::Success);
    assert_eq!(life.condition("Ready"), "True");
    life.delete(30);
    life.take_log();
    life.wait(2);
    life.probed(Kind::Readiness, Answer::Failure("gone".into()));
    assert!(
        life.condition("Ready").starts_with("False"),
        "{}",
        life.condition("Ready")
    );
    let log = life.take_log();
    assert!(!log.iter().any(|what| what.contains("Liveness")), "{log:#?}");
    assert!(
        log.contains(&"event !Unhealthy: Readiness probe failed: gone".to_string()),
        "{log:#?}"
    );
}

#[test]
fn l8_a_startup_probe_holds_the_others_back() {
    let mut c = container("c");
    c["startupProbe"] = json!({"exec": {}, "periodSeconds": 1});
    c["livenessProbe"] = json!({"exec": {}, "periodSeconds": 1});
    let mut life = Life::new(json!({"containers": [c]}));
    life.settle();
    life.wait(3);
    assert!(life.log.iter().all(|l| l != "probe c Liveness"));
    assert_ne!(life.condition("Ready"), "True");
    life.probed(Kind::Startup, Answer::Success);
    assert_eq!(life.condition("Ready"), "True");
    assert!(life.log.contains(&"probe c Liveness".to_string()));
}

#[test]
fn l11_the_deadline_fails_the_pod() {
    let mut life = Life::new(json!({"activeDeadlineSeconds": 20}));
    life.settle();
    life.wait(19);
    assert!(!life.pod.is_ending());
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
        "what others wrote is kept"
    );
}

/// A pod whose image could not be pulled, as is just told.
fn without_image() -> Life {
    let mut life = Life::new(json!({}));
    life.step(Event::Timer);
    while let Some((at, event)) = life.open.iter().enumerate().find_map(|(at, a)| match a {
        Action::InspectImage { container, .. } => Some((
            at,
            Event::ImageInspected {
                container: container.clone(),
                present: Ok(false),
            },
        )),
        Action::PullImage { .. } => None,
        other => Some((at, life.answer(other)?)),
    }) {
        life.give(at, event);
    }
    let pull = life
        .open
        .iter()
        .position(|a| matches!(a, Action::PullImage { .. }))
        .unwrap();
    let result = Err("rpc error".to_string());
    life.give(
        pull,
        Event::ImagePulled {
            container: "c".into(),
            result,
        },
    );
    assert_eq!(life.status(), "Pending c=ErrImagePull/0");
    life
}

fn with_image(life: &mut Life, image: &str) {
    life.object.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    life.step(Event::Updated(Arc::new(life.object.clone())));
    life.settle();
}

#[test]
fn l5_another_image_does_not_wait_for_what_the_one_before_did() {
    let mut life = without_image();
    life.wait(5);
    with_image(&mut life, "busybox");
    assert_eq!(life.status(), "Pending c=ErrImagePull/0", "nothing has changed");
    with_image(&mut life, "other");
    assert_eq!(life.status(), "Running c=running/0");
    life.exit("c0", 1);
    life.exit("c1", 1);
    life.wait(9);
    assert_eq!(life.status(), "Running c=CrashLoopBackOff/1");
    with_image(&mut life, "mended");
    assert_eq!(life.status(), "Running c=running/2");
}

#[test]
fn l4_pulls_fail_back_off_and_are_tried_again() {
    let mut life = without_image();
    life.wait(9);
    assert_eq!(life.status(), "Pending c=ImagePullBackOff/0");
    let log = life.take_log();
    for wanted in [
        "event Pulling: Pulling image \"busybox\"",
        "event !Failed: Failed to pull image \"busybox\": rpc error",
        "event !Failed: Error: ErrImagePull",
        "event BackOff: Back-off pulling image \"busybox\"",
        "event !Failed: Error: ImagePullBackOff",
    ] {
        assert!(log.contains(&wanted.to_string()), "{wanted}: {log:#?}");
    }
    life.wait(1);
    assert_eq!(
        life.status(),
        "Running c=running/0",
        "10 s later it is tried again"
    );
}

#[test]
fn l4_a_pod_deleted_before_anything_ran_ends_as_failed() {
    let mut life = Life::new(json!({}));
    life.step(Event::Timer);
    let setup = life.open.remove(0);
    assert_eq!(setup, Action::SetUpVolumes);
    life.step(Event::VolumesFailed {
        message: "MountVolume.SetUp failed".into(),
        others_turn: false,
    });
    life.delete(30);
    assert_eq!(life.status(), "Failed c=ContainerStatusUnknown:137/0");
    assert_eq!(life.log.last().unwrap(), "delete");
}

#[test]
fn an_image_change_runs_the_container_anew() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.object.spec.as_mut().unwrap().containers[0].image = Some("other".into());
    life.step(Event::Updated(Arc::new(life.object.clone())));
    assert!(
        life.log
            .contains(&"event Killing: Container c definition changed, will be restarted".to_string())
    );
    life.exit("c0", 0);
    assert_eq!(life.status(), "Running c=running/1");
}

fn seen(name: &str, attempt: u32, state: ContainerState) -> runtime::Container {
    runtime::Container {
        id: format!("{name}{attempt}"),
        sandbox_id: "s0".into(),
        pod: PodRef::default(),
        name: name.into(),
        attempt,
        hash: String::new(),
        self_fenced: false,
        state,
        created_at: Timestamp::from_second(1_700_000_000).unwrap(),
        image: "busybox".into(),
        image_id: "sha256:1".into(),
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

#[test]
fn l8_s1_a_restarted_kubelet_adopts_what_runs_and_keeps_it_ready() {
    let mut c = container("c");
    c["readinessProbe"] = json!({"exec": {}, "periodSeconds": 1});
    let mut before = Life::new(json!({"containers": [c]}));
    before.settle();
    before.probed(Kind::Readiness, Answer::Success);
    let mut life = Life::of(before.object.clone());
    let started_at = before.now;
    life.running.insert("c0".into(), "c".into());
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![sandbox()],
        containers: vec![seen("c", 0, ContainerState::Running { started_at })],
    });
    life.settle();
    assert_eq!(life.condition("Ready"), "True");
    assert!(
        !life.log.iter().any(|l| l.starts_with("start")),
        "{:#?}",
        life.log
    );
    life.exit("c0", 1);
    assert_eq!(life.status(), "Running c=running/1");
}

#[test]
fn l4_an_end_nobody_saw_is_found_and_one_without_a_trace_is_unknown() {
    let mut before = Life::new(json!({"restartPolicy": "Never"}));
    before.settle();
    let exit = Exit {
        code: 4,
        reason: "Error".into(),
        ..Exit::default()
    };
    for (containers, want) in [
        (
            vec![seen("c", 0, ContainerState::Exited(exit))],
            "Failed c=Error:4/0",
        ),
        (vec![], "Failed c=ContainerStatusUnknown:137/0"),
    ] {
        let mut life = Life::of(before.object.clone());
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![sandbox()],
            containers,
        });
        life.settle();
        assert_eq!(life.status(), want);
        assert!(
            !life.log.iter().any(|l| l.starts_with("start")),
            "it is not run a second time"
        );
    }
}

#[test]
fn t2_a_lost_sandbox_is_made_anew_once_what_runs_in_it_has_had_its_grace() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.now += SignedDuration::from_secs(5);
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![runtime::Sandbox {
            ready: false,
            ..sandbox()
        }],
        containers: vec![seen("c", 0, ContainerState::Running { started_at: life.now })],
    });
    // Stopping it now would kill what still runs in it.
    assert!(life.open.contains(&Action::StopContainer {
        id: "c0".into(),
        grace_seconds: 30
    }));
    let stop = Action::StopSandbox { id: "s0".into() };
    assert!(!life.open.contains(&stop), "{:?}", life.open);
    life.exit("c0", 137);
    assert!(life.log.contains(&"sandbox stopped".to_string()));
    assert_eq!(life.status(), "Running c=running/1");
    let told = "event SandboxChanged: Pod sandbox changed, it will be killed and re-created.";
    assert!(life.log.contains(&told.to_string()));
}

#[test]
fn l10_a_new_sandbox_is_initialized_from_the_beginning() {
    for (app_ran, policy) in [(false, "Always"), (false, "Never"), (true, "Always")] {
        let mut life = Life::new(json!({
            "initContainers": [container("i"), container("j")],
            "restartPolicy": policy,
        }));
        life.settle();
        life.exit("i0", 0);
        if app_ran {
            life.exit("j0", 0);
        }
        let runs = if app_ran { "c0" } else { "j0" };
        life.now += SignedDuration::from_secs(5);
        life.take_log();
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![runtime::Sandbox {
                ready: false,
                ..sandbox()
            }],
            containers: vec![seen(
                &runs[..1],
                0,
                ContainerState::Running { started_at: life.now },
            )],
        });
        // Asked to end, it goes with success: that is no initialization of what comes after.
        life.exit(runs, 0);
        life.wait(60);
        life.exit("i1", 0);
        life.wait(60);
        life.exit("j1", 0);
        life.wait(60);
        let log = life.take_log();
        let started: Vec<_> = log
            .iter()
            .filter(|l| l.starts_with("start") || l.starts_with("exit"))
            .collect();
        let app = if app_ran { "start c1" } else { "start c0" };
        let end = format!("exit {runs} 0");
        assert_eq!(
            started,
            [
                end.as_str(),
                "start i1",
                "exit i1 0",
                "start j1",
                "exit j1 0",
                app
            ],
            "{policy}"
        );
    }
}

#[test]
fn l10_a_rebooted_machines_pods_are_initialized_again() {
    let mut life = Life::new(json!({"initContainers": [container("i")]}));
    life.settle();
    life.exit("i0", 0);
    // Another kubelet, after the machine has come back.
    let mut life = Life::of(life.object);
    life.now += SignedDuration::from_secs(100);
    let ended = |name: &str, code: i32| {
        let exit = Exit {
            code,
            started_at: Some(life.now),
            finished_at: Some(life.now),
            ..Exit::default()
        };
        seen(name, 0, ContainerState::Exited(exit))
    };
    life.step(Event::Observed {
        since: life.now,
        sandboxes: vec![runtime::Sandbox {
            ready: false,
            ..sandbox()
        }],
        containers: vec![ended("i", 0), ended("c", 255)],
    });
    let made =
        |action: &Action| matches!(action, Action::CreateContainer { container, .. } if container == "i");
    while !life.open.iter().any(made) {
        let at = life.open.iter().position(|a| life.answer(a).is_some()).unwrap();
        life.give(at, life.answer(&life.open[at]).unwrap());
    }
    // The first attempt comes to nothing, which makes nothing done.
    life.open.retain(|a| !made(a));
    life.step(Event::ContainerCreateFailed {
        container: "i".into(),
        reason: "CreateContainerError",
        message: "x".into(),
    });
    life.settle();
    life.wait(60);
    assert!(!life.log.contains(&"start c1".to_string()), "{:?}", life.log);
    let init = life.running.keys().next().unwrap().clone();
    assert_eq!(life.running[&init], "i");
    life.exit(&init, 0);
    life.wait(60);
    assert!(life.running.contains_key("c1"), "{:?}", life.log);
}

#[test]
fn t4_a_stop_that_failed_is_made_again_though_nobody_asked_the_pod_to_end() {
    let lost = |life: &Life| Event::Observed {
        since: life.now,
        sandboxes: vec![runtime::Sandbox {
            ready: false,
            ..sandbox()
        }],
        containers: vec![seen("c", 0, ContainerState::Running { started_at: life.now })],
    };
    let mut life = Life::new(json!({}));
    life.settle();
    life.now += SignedDuration::from_secs(5);
    life.step(lost(&life));
    life.open.clear();
    life.step(Event::StopFailed {
        id: "c0".into(),
        message: "x".into(),
    });
    // Something else happens before it is time.
    life.step(lost(&life));
    life.take_log();
    life.wait(2);
    assert_eq!(life.take_log(), ["stop c0 30"]);
    life.exit("c0", 0);
    assert_eq!(life.status(), "Running c=running/1");
}

#[test]
fn t4_a_stop_that_failed_is_made_again_with_the_whole_grace_however_late() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.delete(30);
    life.open.clear();
    life.step(Event::StopFailed {
        id: "c0".into(),
        message: "x".into(),
    });
    life.take_log();
    // A machine that was asleep: no timer has rung.
    life.now += SignedDuration::from_secs(70);
    life.step(Event::Timer);
    assert_eq!(life.take_log(), ["stop c0 30"]);
}

#[test]
fn t3_what_runs_in_a_sandbox_left_over_has_its_grace_when_the_kubelet_comes_back() {
    for (ready, deleted) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut before = Life::new(json!({}));
        before.settle();
        let mut object = before.object.clone();
        if deleted {
            object.metadata.deletion_timestamp = Some(Time(before.now));
            object.metadata.deletion_grace_period_seconds = Some(30);
        }
        let mut life = Life::of(object);
        life.running.insert("c0".into(), "c".into());
        let started_at = before.now;
        let newer = runtime::Sandbox {
            id: "s1".into(),
            attempt: 1,
            ..sandbox()
        };
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![runtime::Sandbox { ready, ..sandbox() }, newer],
            containers: vec![seen("c", 0, ContainerState::Running { started_at })],
        });
        let case = format!("ready: {ready}, deleted: {deleted}: {:?}", life.open);
        assert!(life.log.contains(&"stop c0 30".to_string()), "{case}");
        let stop = Action::StopSandbox { id: "s0".into() };
        assert!(!life.open.contains(&stop), "{case}");
        life.exit("c0", 0);
        assert!(life.log.contains(&"sandbox stopped".to_string()), "{case}");
    }
}

/// Answers in any order, failures, exits and deletions at any time: whatever comes, nothing runs twice, nothing
/// starts once the pod is ending, and the object goes only after everything else.
#[test]
fn s1_t5_no_order_of_answers_runs_anything_twice_or_deletes_too_early() {
    for seed in 0..400_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % below as u64).unwrap()
        };
        let mut side = container("s");
        side["restartPolicy"] = json!("Always");
        let mut a = container("a");
        a["lifecycle"] = json!({"preStop": {"exec": {}}, "postStart": {"exec": {}}});
        a["livenessProbe"] = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": 2});
        let policy = ["Always", "OnFailure", "Never"][next(3)];
        let spec = json!({"initContainers": [container("i"), side], "containers": [a, container("b")], "restartPolicy": policy});
        let mut life = Life::new(spec);
        life.step(Event::Timer);
        let delete_at = next(150);
        let mut made_before_the_end = usize::MAX;
        let being_made = |life: &Life| {
            let of = |a: &&Action| matches!(a, Action::CreateContainer { .. } | Action::CreateSandbox { .. });
            life.open.iter().filter(of).count()
        };
        for turn in 0..5000 {
            if turn == delete_at {
                life.object.metadata.deletion_timestamp = Some(Time(life.now));
                life.object.metadata.deletion_grace_period_seconds = Some(5);
                life.step(Event::Updated(Arc::new(life.object.clone())));
            }
            match next(10) {
                0 => {
                    life.now += SignedDuration::from_millis(700);
                    life.step(Event::Timer);
                }
                1 if !life.running.is_empty() => {
                    let at = next(life.running.len());
                    let id = life.running.keys().nth(at).cloned().unwrap();
                    life.running.remove(&id);
                    let exit = Exit {
                        code: i32::try_from(next(2)).unwrap(),
                        finished_at: Some(life.now),
                        ..Exit::default()
                    };
                    life.step(Event::ContainerExited { id, exit });
                }
                _ if !life.open.is_empty() => {
                    let at = next(life.open.len());
                    let action = life.open[at].clone();
                    let fails = next(6) == 0;
                    let event = match action {
                        Action::SetUpVolumes if fails => Event::VolumesFailed {
                            message: "x".into(),
                            others_turn: false,
                        },
                        Action::CreateSandbox { .. } if fails => Event::SandboxFailed { message: "x".into() },
                        Action::CreateContainer { container, .. } if fails => Event::ContainerCreateFailed {
                            container,
                            reason: "CreateContainerError",
                            message: "x".into(),
                        },
                        Action::StartContainer { container, id } if fails => Event::ContainerStartFailed {
                            container,
                            id,
                            message: "x".into(),
                        },
                        Action::RunHook { id, hook, .. } => Event::HookDone {
                            id,
                            hook,
                            result: if fails { Err("x".into()) } else { Ok(()) },
                        },
                        Action::Probe { id, kind, .. } => Event::Probed {
                            id,
                            kind,
                            answer: if fails {
                                Answer::Failure("x".into())
                            } else {
                                Answer::Success
                            },
                        },
                        Action::StopContainer { id, .. } if fails => Event::StopFailed {
                            id,
                            message: "x".into(),
                        },
                        Action::StopContainer { id, .. } => {
                            if life.running.remove(&id).is_none() {
                                life.open.remove(at);
                                continue;
                            }
                            Event::ContainerExited {
                                id,
                                exit: Exit::default(),
                            }
                        }
                        other => life.answer(&other).expect("every action has an answer"),
                    };
                    life.give(at, event);
                }
                _ => {}
            }
            if life.pod.is_ending() {
                let now_made = being_made(&life);
                assert!(
                    now_made <= made_before_the_end,
                    "seed {seed}: something is begun at the end"
                );
                made_before_the_end = now_made;
            }
            if let Some(deleted) = life.log.iter().position(|l| l == "delete") {
                assert!(
                    life.running.is_empty(),
                    "seed {seed}: something runs on: {:?}",
                    life.running
                );
                assert!(
                    life.log[deleted..].iter().all(|l| !l.starts_with("start")),
                    "seed {seed}"
                );
                break;
            }
        }
        assert!(
            life.log.contains(&"delete".to_string()),
            "seed {seed} never ends: open {:?} log {:#?}",
            life.open,
            &life.log[life.log.len().saturating_sub(12)..]
        );
    }
}

#[test]
fn t4_an_end_met_halfway_has_its_grace_again_or_keeps_its_deadline() {
    let mut spec = container("c");
    spec["lifecycle"] = json!({"preStop": {"exec": {"command": ["x"]}}});
    for (resume, since_deletion, want) in [
        (TerminationResume::Full, 20, "hook PreStop c0"),
        (TerminationResume::Deadline, 20, "stop c0 10"),
        // The deadline has passed: what every process is left with.
        (TerminationResume::Deadline, 50, "stop c0 2"),
    ] {
        let mut before = Life::new(json!({"containers": [spec.clone()]}));
        before.settle();
        let mut object = before.object.clone();
        object.metadata.deletion_timestamp = Some(Time(before.now + SignedDuration::from_secs(30)));
        object.metadata.deletion_grace_period_seconds = Some(30);
        let mut life = Life::of(object.clone());
        let node = Node {
            ips: vec!["192.0.2.1".into()],
            resume,
            ..Node::default()
        };
        life.pod = Pod::new(Arc::new(object), node);
        life.now = before.now + SignedDuration::from_secs(since_deletion);
        let pod = PodRef {
            uid: "u".into(),
            namespace: "n".into(),
            name: "p".into(),
        };
        life.step(Event::Observed {
            since: life.now,
            sandboxes: vec![runtime::Sandbox {
                id: "s0".into(),
                pod: pod.clone(),
                ready: true,
                ..runtime::Sandbox::default()
            }],
            containers: vec![runtime::Container {
                id: "c0".into(),
                sandbox_id: "s0".into(),
                pod,
                name: "c".into(),
                attempt: 0,
                hash: String::new(),
                self_fenced: false,
                state: ContainerState::Running {
                    started_at: before.now,
                },
                created_at: before.now,
                image: String::new(),
                image_id: String::new(),
            }],
        });
        let log = life.take_log();
        assert!(
            log.contains(&want.to_string()),
            "{resume:?} {since_deletion}: {log:#?}"
        );
    }
}
