//! kill -9 of knarr and of containerd at the steps of a pod's start and termination, with real containers (SPEC S1, T4): no
//! pod is lost, none runs twice, none is killed without SIGTERM, and nothing of any pod is left.
//!
//! Steps are containerd's own events: the process is killed when the event of that number is received. The number of events
//! of a pod's lifecycle is counted on a pod without a kill.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::Failed;

use crate::cluster::{Cluster, LIMIT, Namespace, eventually, same, text};
use crate::{Outcome, StandaloneScenario, shim};

pub const SCENARIOS: &[StandaloneScenario] = &[
    (
        "s1_t4_kill_9_at_the_steps_of_a_start_and_a_termination_loses_doubles_and_leaks_nothing",
        steps,
    ),
    (
        "s1_t4_kill_9_at_these_steps_with_the_other_shim_loses_doubles_and_leaks_nothing",
        steps_with_the_other_shim,
    ),
];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Knarr,
    Containerd,
}

/// Every how many events the process is killed, unless `KNARR_TEST_STEPS=all` is set.
const EVERY: usize = 6;

fn every() -> usize {
    match std::env::var("KNARR_TEST_STEPS") {
        Ok(which) if which == "all" => 1,
        _ => EVERY,
    }
}

/// Each process writes a mark of what happens to it: one that ran twice would write its mark twice.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: NAME }
spec:
  terminationGracePeriodSeconds: 30
  volumes:
    - { name: marks, hostPath: { path: MARKS } }
    - { name: scratch, emptyDir: {} }
  initContainers:
    - name: init
      image: localhost/knarr/busybox:1
      command: [sh, -c, "echo init >> /marks/NAME"]
      volumeMounts: [{ name: marks, mountPath: /marks }, { name: scratch, mountPath: /scratch }]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command:
        - sh
        - -c
        - |
          trap 'echo term >> /marks/NAME; exit 0' TERM
          echo run >> /marks/NAME
          while :; do sleep 0.05; done
      lifecycle: { preStop: { exec: { command: [sh, -c, "echo hook >> /marks/NAME"] } } }
      volumeMounts: [{ name: marks, mountPath: /marks }, { name: scratch, mountPath: /scratch }]
"#;

/// The topic of the test events that show that ctr is subscribed.
const TEST_TOPIC: &str = "/namespaces/update";
/// How long a test event is waited for before another one is caused.
const EVENT_TIMEOUT: Duration = Duration::from_millis(500);

/// containerd's events, as they come.
struct Events {
    ctr: Child,
    lines: mpsc::Receiver<String>,
}

impl Events {
    /// Returns when ctr is subscribed: it has printed a test event. It exits if containerd, killed in the step before, is not there yet.
    fn of(cluster: &Cluster) -> Result<Events, Failed> {
        let mut events = Events::subscribe(cluster)?;
        let mut count = 0;
        eventually("ctr to receive events", || {
            count += 1;
            let label = format!("knarr-test={count}");
            let labeled = ctr(cluster)
                .args(["namespaces", "label", "k8s.io", &label])
                .status();
            if !labeled.is_ok_and(|s| s.success()) {
                return false;
            }
            match events.lines.recv_timeout(EVENT_TIMEOUT) {
                Ok(_) => true,
                Err(mpsc::RecvTimeoutError::Timeout) => false,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    if let Ok(again) = Events::subscribe(cluster) {
                        events = again;
                    }
                    false
                }
            }
        })?;
        Ok(events)
    }

    fn subscribe(cluster: &Cluster) -> Result<Events, Failed> {
        let mut child = ctr(cluster)
            .arg("events")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let out = child.stdout.take().ok_or("ctr has no output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Only events of containers; otherwise events of images would count.
                if ["/containers/", "/tasks/", TEST_TOPIC]
                    .iter()
                    .any(|topic| line.contains(topic))
                    && sender.send(line).is_err()
                {
                    return;
                }
            }
        });
        Ok(Events { ctr: child, lines })
    }

    /// Another event of a container, if there is one.
    fn next(&self) -> Option<String> {
        self.lines.try_iter().find(|line| !line.contains(TEST_TOPIC))
    }
}

/// containerd's client, with the cluster's containerd.
fn ctr(cluster: &Cluster) -> Command {
    let mut ctr = Command::new("ctr");
    ctr.arg("--address").arg(cluster.containerd_socket());
    ctr
}

impl Drop for Events {
    fn drop(&mut self) {
        // It may have exited with its containerd.
        let _ = self.ctr.kill();
        let _ = self.ctr.wait();
    }
}

fn steps() -> Outcome {
    kill_at_steps(&Cluster::start("step")?)
}

fn steps_with_the_other_shim() -> Outcome {
    let cluster = Cluster::start_with("stepo", shim::other())?;
    shim::is_other(&cluster)?;
    kill_at_steps(&cluster)
}

fn kill_at_steps(cluster: &Cluster) -> Outcome {
    let marks = cluster.data_dir().with_file_name("marks");
    std::fs::create_dir_all(&marks)?;
    let ns = cluster.namespace("default");
    ns.wait_for_service_account()?;
    let undisturbed = run_pod(&ns, &marks, "calm", None)?;
    if undisturbed < 15 {
        return Err(format!("expected at least 15 events of a pod's lifecycle, found {undisturbed}").into());
    }
    for victim in [Victim::Knarr, Victim::Containerd] {
        // The two are killed at different steps.
        let first = match victim {
            Victim::Knarr => 0,
            Victim::Containerd => every() / 2,
        };
        for step in (first..undisturbed).step_by(every()) {
            let name = format!(
                "p{}{step}",
                if matches!(victim, Victim::Knarr) { "k" } else { "c" }
            );
            run_pod(&ns, &marks, &name, Some((victim, step)))
                .map_err(|e| format!("{victim:?} killed at event {step}: {e:?}"))?;
        }
    }
    nothing_left(cluster)?;
    cluster.end().map_err(Into::into)
}

/// One pod from its creation until it is deleted. Returns the number of events.
fn run_pod(
    ns: &Namespace,
    marks: &Path,
    name: &str,
    kill_at: Option<(Victim, usize)>,
) -> Result<usize, Failed> {
    let events = Events::of(ns.cluster)?;
    let served_by = containerd(ns.cluster)?;
    let mut received = 0;
    let mut killed = false;
    let mut watch = |received: &mut usize| -> Outcome {
        while events.next().is_some() {
            if let Some((victim, _)) = kill_at.filter(|(_, step)| *step == *received && !killed) {
                killed = true;
                kill(ns.cluster, victim)?;
            }
            *received += 1;
        }
        Ok(())
    };
    let manifest = POD
        .replace("NAME", name)
        .replace("MARKS", &marks.display().to_string());
    apply(ns, &manifest)?;
    let ready = [
        "get",
        "pod",
        name,
        "-o",
        r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#,
    ];
    wait("the pod to be ready", &mut || {
        watch(&mut received)?;
        Ok(ns.try_run(&ready).is_ok_and(|t| t == "True"))
    })?;
    let terminated_before = |list: &str| {
        let path = format!("jsonpath={{.status.{list}[0].lastState.terminated}}");
        ns.try_run(&["get", "pod", name, "-o", &path])
    };
    let init_terminated_before = terminated_before("initContainerStatuses");
    let app_terminated_before = terminated_before("containerStatuses");
    wait("the deletion to be accepted", &mut || {
        watch(&mut received)?;
        let deleted = ns.try_run(&["delete", "pod", name, "--wait=false"]);
        Ok(deleted.is_ok_and(|t| t.contains("deleted")))
    })?;
    wait("the pod to be deleted", &mut || {
        watch(&mut received)?;
        Ok(ns
            .try_run(&["get", "pod", name])
            .is_err_and(|t| t.contains("NotFound")))
    })?;
    let marks = std::fs::read_to_string(marks.join(name))?;
    let marked: Vec<&str> = marks.lines().collect();
    // A hook that was killed with containerd is not repeated; one that was killed with knarr is, because its pod has its full
    // grace period again.
    let inner: Vec<&str> = marked.iter().copied().filter(|mark| *mark != "hook").collect();
    let contains_all = |state: &Result<String, String>, texts: &[&str]| {
        let state = state.as_deref().unwrap_or_default();
        texts.iter().all(|text| state.contains(text))
    };
    // A container whose status is that it failed to start or failed runs again, as in Kubernetes: containerd cancels a start
    // whose client dies before the response, and kills the process that it has started; a start to which a dying containerd does
    // not respond has failed; and between the exit of a process and its record only containerd knows the exit code.
    let start_lost = |state: &_| {
        kill_at.is_some() && contains_all(state, &[r#""exitCode":128"#, r#""reason":"StartError""#])
    };
    let code_lost = matches!(kill_at, Some((Victim::Containerd, _)))
        && contains_all(&init_terminated_before, &[r#""exitCode":255"#]);
    let mut once = inner;
    for (mark, may_run_again) in [
        ("init", start_lost(&init_terminated_before) || code_lost),
        ("run", start_lost(&app_terminated_before)),
    ] {
        if let Some(at) = once
            .windows(2)
            .position(|two| may_run_again && two == [mark, mark])
        {
            once.remove(at);
        }
    }
    if once != ["init", "run", "term"] {
        return Err(format!(
            "expected one init, one run and one term, found {marked:?}; earlier terminations: {init_terminated_before:?}, \
            {app_terminated_before:?}"
        )
        .into());
    }
    if matches!(kill_at, None | Some((Victim::Knarr, _))) && !marked.contains(&"hook") {
        return Err(format!("its preStop hook did not run: {marked:?}").into());
    }
    if matches!(kill_at, Some((Victim::Knarr, _))) {
        same(&containerd(ns.cluster)?, &served_by)?;
    }
    Ok(received)
}

fn kill(cluster: &Cluster, victim: Victim) -> Outcome {
    match victim {
        Victim::Knarr => {
            cluster.kill()?;
            cluster.launch()?;
        }
        Victim::Containerd => {
            let out = Command::new("kill")
                .args(["-9", &containerd(cluster)?])
                .output()?;
            if !out.status.success() {
                return Err(text(&out).into());
            }
        }
    }
    Ok(())
}

/// containerd's process id.
fn containerd(cluster: &Cluster) -> Result<String, Failed> {
    let noted = std::fs::read_to_string(cluster.data_dir().join("run/containerd.pid"))?;
    Ok(noted.trim().into())
}

/// Retried, because the API does not respond while knarr starts again.
fn apply(ns: &Namespace, manifest: &str) -> Outcome {
    let mut last = None;
    eventually("the API to accept a pod", || {
        last = ns.apply(manifest).err();
        last.is_none()
    })
    .map_err(|e| format!("{e:?}: {last:?}").into())
}

fn wait(what: &str, holds: &mut dyn FnMut() -> Result<bool, Failed>) -> Outcome {
    let begin = std::time::Instant::now();
    while !holds()? {
        if begin.elapsed() > LIMIT {
            return Err(format!("waited {} s for {what}", LIMIT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Fails if a mount or an address of any of the pods is left.
fn nothing_left(cluster: &Cluster) -> Outcome {
    let listed = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect()
    };
    let pods = cluster.data_dir().join("kubelet/pods");
    eventually("the pods' directories to be removed", || listed(&pods).is_empty())?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let pods = pods.display().to_string();
    if let Some(mount) = mounts.lines().find(|l| l.contains(&pods)) {
        return Err(format!("still mounted: {mount}").into());
    }
    let to_one_pod = |route: &String| route.contains(" dev knarr");
    if let Some(route) = cluster.pod_routes().iter().find(|route| to_one_pod(route)) {
        return Err(format!("a pod's address is still routed: {route}").into());
    }
    Ok(())
}
