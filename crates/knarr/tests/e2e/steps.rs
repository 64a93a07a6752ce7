//! kill -9 of knarr and of containerd at the steps of a pod's start and end, with real containers (SPEC S1, T4): no
//! pod is lost, none runs twice, none is ended without its TERM, and nothing is left of any.
//!
//! Steps are containerd's own events: whoever is to die dies when the event of that number is heard. Which events a
//! life has is learnt from one that nobody disturbs.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::Failed;

use crate::cluster::{Cluster, LIMIT, Namespace, eventually, same, text};
use crate::{Alone, Outcome};

pub const SCENARIOS: &[Alone] = &[(
    "s1_t4_kill_9_at_the_steps_of_a_start_and_an_end_loses_doubles_and_leaks_nothing",
    steps,
)];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Knarr,
    Containerd,
}

/// Each how many of a life's events is a step, unless all are asked for by `KNARR_TEST_STEPS=all`.
const EVERY: usize = 6;

fn every() -> usize {
    match std::env::var("KNARR_TEST_STEPS") {
        Ok(which) if which == "all" => 1,
        _ => EVERY,
    }
}

/// Each process marks what happens to it: one that ran twice would mark that twice.
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

/// The topic of what is done for ctr to notice.
const NOTICED: &str = "/namespaces/update";
/// How long an event is waited for before another is caused.
const HEARD_WITHIN: Duration = Duration::from_millis(500);

/// containerd's events, as they come.
struct Events {
    ctr: Child,
    lines: mpsc::Receiver<String>,
}

impl Events {
    /// Returns when ctr listens: it has told of something that was done for it to hear.
    fn of(cluster: &Cluster) -> Result<Events, Failed> {
        let ctr = || {
            let mut ctr = Command::new("ctr");
            ctr.arg("--address").arg(cluster.containerd_socket());
            ctr
        };
        let mut child = ctr()
            .arg("events")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let out = child.stdout.take().ok_or("ctr has no output")?;
        let (heard, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Only what happens to containers; each probe of an image would count else.
                if ["/containers/", "/tasks/", NOTICED]
                    .iter()
                    .any(|topic| line.contains(topic))
                    && heard.send(line).is_err()
                {
                    return;
                }
            }
        });
        let mut count = 0;
        eventually("ctr to hear events", || {
            count += 1;
            let label = format!("knarr-test={count}");
            let told = ctr().args(["namespaces", "label", "k8s.io", &label]).status();
            told.is_ok_and(|s| s.success()) && lines.recv_timeout(HEARD_WITHIN).is_ok()
        })?;
        Ok(Events { ctr: child, lines })
    }

    /// Another event of a container, if there is one.
    fn next(&self) -> Option<String> {
        self.lines.try_iter().find(|line| !line.contains(NOTICED))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // Gone already, with its containerd, is as good.
        let _ = self.ctr.kill();
        let _ = self.ctr.wait();
    }
}

fn steps() -> Outcome {
    let cluster = Cluster::start("step")?;
    let marks = cluster.data_dir().with_file_name("marks");
    std::fs::create_dir_all(&marks)?;
    let ns = cluster.namespace("default");
    ns.takes_pods()?;
    let undisturbed = live(&ns, &marks, "calm", None)?;
    if undisturbed < 15 {
        return Err(format!("a life has more events than {undisturbed}").into());
    }
    for victim in [Victim::Knarr, Victim::Containerd] {
        // The two walk over different steps.
        let first = match victim {
            Victim::Knarr => 0,
            Victim::Containerd => every() / 2,
        };
        for step in (first..undisturbed).step_by(every()) {
            let name = format!(
                "p{}{step}",
                if matches!(victim, Victim::Knarr) { "k" } else { "c" }
            );
            live(&ns, &marks, &name, Some((victim, step)))
                .map_err(|e| format!("{victim:?} killed at event {step}: {e:?}"))?;
        }
    }
    nothing_left(&cluster)?;
    cluster.end().map_err(Into::into)
}

/// One pod from its creation until nothing is left of it. How many events there were.
fn live(ns: &Namespace, marks: &Path, name: &str, death: Option<(Victim, usize)>) -> Result<usize, Failed> {
    let events = Events::of(ns.cluster)?;
    let served_by = containerd(ns.cluster)?;
    let mut heard = 0;
    let mut dead = false;
    let mut watch = |heard: &mut usize| -> Outcome {
        while events.next().is_some() {
            if let Some((victim, _)) = death.filter(|(_, step)| *step == *heard && !dead) {
                dead = true;
                kill(ns.cluster, victim)?;
            }
            *heard += 1;
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
        watch(&mut heard)?;
        Ok(ns.try_run(&ready).is_ok_and(|t| t == "True"))
    })?;
    let ended_before = |list: &str| {
        let path = format!("jsonpath={{.status.{list}[0].lastState.terminated}}");
        ns.try_run(&["get", "pod", name, "-o", &path])
    };
    let init_ended_before = ended_before("initContainerStatuses");
    let app_ended_before = ended_before("containerStatuses");
    wait("the deletion to be taken", &mut || {
        watch(&mut heard)?;
        let asked = ns.try_run(&["delete", "pod", name, "--wait=false"]);
        Ok(asked.is_ok_and(|t| t.contains("deleted")))
    })?;
    wait("the pod to be gone", &mut || {
        watch(&mut heard)?;
        Ok(ns
            .try_run(&["get", "pod", name])
            .is_err_and(|t| t.contains("NotFound")))
    })?;
    let said = std::fs::read_to_string(marks.join(name))?;
    let marked: Vec<&str> = said.lines().collect();
    // A hook that died with its containerd is not repeated; one that died with knarr is, as its pod has its whole
    // grace again.
    let inner: Vec<&str> = marked.iter().copied().filter(|mark| *mark != "hook").collect();
    let told = |state: &Result<String, String>, texts: &[&str]| {
        let state = state.as_deref().unwrap_or_default();
        texts.iter().all(|text| state.contains(text))
    };
    // What is said not to have started or to have ended badly runs again, as in Kubernetes: containerd calls back a start
    // whose caller dies before it is answered, and ends what has started meanwhile; a start that a dying containerd does
    // not answer has failed; and between the end of a process and its note only containerd knows the exit code.
    let start_lost =
        |state: &_| death.is_some() && told(state, &[r#""exitCode":128"#, r#""reason":"StartError""#]);
    let code_lost =
        matches!(death, Some((Victim::Containerd, _))) && told(&init_ended_before, &[r#""exitCode":255"#]);
    let mut once = inner;
    for (mark, may_run_again) in [
        ("init", start_lost(&init_ended_before) || code_lost),
        ("run", start_lost(&app_ended_before)),
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
            "expected one init, one run and one term, found {marked:?}; before that ended {init_ended_before:?}, \
{app_ended_before:?}"
        )
        .into());
    }
    if matches!(death, None | Some((Victim::Knarr, _))) && !marked.contains(&"hook") {
        return Err(format!("its hook never ran: {marked:?}").into());
    }
    if matches!(death, Some((Victim::Knarr, _))) {
        same(&containerd(ns.cluster)?, &served_by)?;
    }
    Ok(heard)
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

/// While knarr comes back its API does not answer.
fn apply(ns: &Namespace, manifest: &str) -> Outcome {
    let mut last = None;
    eventually("the API to take a pod", || {
        last = ns.apply(manifest).err();
        last.is_none()
    })
    .map_err(|e| format!("{e:?}: {last:?}").into())
}

fn wait(what: &str, holds: &mut dyn FnMut() -> Result<bool, Failed>) -> Outcome {
    let begin = std::time::Instant::now();
    while !holds()? {
        if begin.elapsed() > LIMIT {
            return Err(format!("waited {} s in vain for {what}", LIMIT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// No mount, address, interface or control group of any of the pods.
fn nothing_left(cluster: &Cluster) -> Outcome {
    let listed = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect()
    };
    let pods = cluster.data_dir().join("kubelet/pods");
    eventually("the pods' directories to go", || listed(&pods).is_empty())?;
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
