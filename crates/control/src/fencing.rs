//! Runs the fencing controller: what it decides is carried out, and its agents are run, by whoever can ([`FenceAgents`]).
//!
//! An agent is a program of one directory, by its name alone. It gets `key=value` lines on standard input and nothing
//! else: no arguments, no environment but `PATH`. It is in a process group of its own, which is killed whole when the
//! agent has not ended in time, or this process stops running it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::custom::conditions::is_established;
use knarr_api::k8s_openapi;
use knarr_client::{Api, Error, TypedApi};
use knarr_controllers::fencing::description::METADATA;
use knarr_controllers::fencing::kinds::definitions;
use knarr_controllers::fencing::{self, Fencing};
pub use knarr_controllers::fencing::{Answer, Run};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::executor::Executor;
use crate::runner::{Base, shown};
use crate::view::CacheView;

/// Looks without anything having changed: times pass.
const PERIOD: Duration = Duration::from_secs(5);
/// Changes that come together are one look.
const GATHER: Duration = Duration::from_millis(50);
/// Between two tries to make the kinds.
const AGAIN: Duration = Duration::from_secs(1);
/// How much of what an agent says is kept.
const OUTPUT_MAX: u64 = 2048;
/// The same of what it says of itself: those of Debian say up to 30 kB.
const METADATA_MAX: u64 = 256 * 1024;

/// Who runs fence agents. One that has not answered in time is dropped, and is to do nothing more.
#[async_trait]
pub trait FenceAgents: std::fmt::Debug + Send + Sync {
    /// Runs one, once.
    async fn run(&self, run: &Run, parameters: &BTreeMap<String, String>) -> Answer;
}

/// The programs of one directory.
#[derive(Debug)]
pub struct Programs(pub PathBuf);

/// Runs until dropped; agents at work are ended then.
pub async fn run(base: Base, agents: Arc<dyn FenceAgents>) {
    while let Err(error) = define(&*base.api).await {
        debug!(%error, "the kinds of fencing are not there yet");
        sleep(AGAIN).await;
    }
    let wake = Arc::new(Notify::new());
    for kind in fencing::watches() {
        let store = base.caches.store(kind);
        let changed = wake.clone();
        store.subscribe(move |change| {
            let (old, new) = (change.before(), change.after());
            if fencing::matters(old.map(|o| &**o), new.map(|o| &**o)) {
                changed.notify_one();
            }
        });
        store.synced().await;
    }
    let executor = Executor::new(base.api.clone(), base.events.with_component("fencing-controller"));
    let view = CacheView(base.caches);
    let mut fencing = Fencing::default();
    let mut runs: JoinSet<(Run, Answer)> = JoinSet::new();
    loop {
        let todo = fencing.look(&view, base.clock.now());
        for actions in todo.actions {
            let outcome = executor.run(actions).await;
            // The next look decides on what is there then.
            if !shown(&view, &fencing::watches(), &outcome.written).await {
                warn!("the caches do not show what fencing wrote");
            }
            if let Some(failure) = outcome.failure {
                let (kind, name, error) = (failure.kind.plural(), &failure.name, &failure.error);
                debug!(kind, name, %error, "fencing: again");
            }
        }
        for run in todo.runs {
            let (api, agents) = (base.api.clone(), agents.clone());
            runs.spawn(async move {
                let answer = ask(&*api, &*agents, &run).await;
                (run, answer)
            });
        }
        tokio::select! {
            Some(ended) = runs.join_next() => match ended {
                Ok((run, answer)) => {
                    if run.action != METADATA {
                        info!(agent = run.agent, action = run.action, fencing = run.fencing, ?answer, "a fence agent answered");
                    }
                    fencing.answered(&run, answer, base.clock.now());
                }
                Err(error) => warn!(%error, "what runs a fence agent died"),
            },
            () = async { wake.notified().await; sleep(GATHER).await } => {}
            () = sleep(PERIOD) => {}
        }
    }
}

/// Makes the kinds, or brings them up to date. `Ok` once they are served.
async fn define(api: &dyn Api) -> Result<(), Error> {
    for wanted in definitions() {
        let name = wanted.metadata.name.clone().unwrap_or_default();
        let there = match api.get_as::<CustomResourceDefinition>("", &name).await {
            Err(error) if error.is_not_found() => api.create_as(wanted).await?,
            Err(error) => return Err(error),
            Ok(there) if there.spec.versions == wanted.spec.versions => there,
            Ok(there) => {
                let mut changed = (*there).clone();
                changed.spec.versions = wanted.spec.versions;
                if changed == *there {
                    there
                } else {
                    api.update_as(changed).await?
                }
            }
        };
        if !is_established(&there) {
            return Err(Error::conflict(
                there.object().kind().about(&name),
                "it is not established",
            ));
        }
    }
    Ok(())
}

/// Runs an agent once.
async fn ask(api: &dyn Api, agents: &dyn FenceAgents, run: &Run) -> Answer {
    let mut parameters = run.parameters.clone();
    if let Some(secret) = &run.secret {
        match api.get_as::<Secret>(&secret.namespace, &secret.name).await {
            Ok(found) => parameters.extend(texts(&found)),
            Err(error) => {
                let why = format!("cannot read Secret {}/{}: {error}", secret.namespace, secret.name);
                return Answer::Broken { why };
            }
        }
    }
    run_in_time(agents, run, &parameters).await
}

async fn run_in_time(agents: &dyn FenceAgents, run: &Run, parameters: &BTreeMap<String, String>) -> Answer {
    let answer = timeout(run.timeout, agents.run(run, parameters)).await;
    answer.unwrap_or(Answer::TimedOut)
}

fn texts(secret: &Secret) -> BTreeMap<String, String> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| {
        (
            key.clone(),
            String::from_utf8_lossy(&value.0).trim_end().to_string(),
        )
    })
    .collect()
}

/// Ends an agent's whole process group when it goes.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nothing left to end is as good.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[async_trait]
impl FenceAgents for Programs {
    async fn run(&self, run: &Run, parameters: &BTreeMap<String, String>) -> Answer {
        let broken = |why: String| Answer::Broken { why };
        // The definition refuses such names; whoever got one in all the same does not choose what runs here.
        let plain = run.agent.starts_with("fence_") && !run.agent.contains(['/', '\0']);
        if !plain {
            return broken(format!("{:?} is not the name of a fence agent", run.agent));
        }
        let program = self.0.join(&run.agent);
        let mut command = Command::new(&program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return broken(format!("cannot run {}: {e}", program.display())),
        };
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        let _group = Group(group);
        let mut input = format!("action={}\n", run.action);
        for (key, value) in parameters {
            if key.contains(['\n', '=']) || value.contains('\n') {
                return broken(format!("parameter {key:?} has a line break or an equals sign"));
            }
            input.push_str(&format!("{key}={value}\n"));
        }
        let most = match run.action {
            METADATA => METADATA_MAX,
            _ => OUTPUT_MAX,
        };
        match talk(&mut child, input, most).await {
            Err(e) => broken(format!("cannot talk to {}: {e}", run.agent)),
            Ok((status, output)) => match status.code() {
                Some(code) => Answer::Exited { code, output },
                None => broken(format!(
                    "{} was ended by signal {}",
                    run.agent,
                    status.signal().unwrap_or(0)
                )),
            },
        }
    }
}

async fn talk(
    child: &mut Child,
    input: String,
    most: u64,
) -> std::io::Result<(std::process::ExitStatus, String)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let tell = async {
        if let Some(mut stdin) = stdin {
            // One that does not listen may still act; it is its end that counts.
            if let Err(error) = stdin.write_all(input.as_bytes()).await {
                debug!(%error, "a fence agent does not read its parameters");
            }
        }
    };
    let said = async {
        let mut text = Vec::new();
        if let Some(out) = stdout {
            keep(out, &mut text, most).await?;
        }
        std::io::Result::Ok(text)
    };
    let complained = async {
        let mut text = Vec::new();
        if let Some(err) = stderr {
            keep(err, &mut text, most).await?;
        }
        std::io::Result::Ok(text)
    };
    let ((), said, complained, status) = tokio::join!(tell, said, complained, child.wait());
    let mut output = said?;
    output.extend(complained?);
    Ok((status?, String::from_utf8_lossy(&output).into_owned()))
}

/// Reads to the end, so that nobody is stuck in writing, and keeps the beginning.
async fn keep(
    mut from: impl tokio::io::AsyncRead + Unpin,
    text: &mut Vec<u8>,
    most: u64,
) -> std::io::Result<()> {
    (&mut from).take(most).read_to_end(text).await?;
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Agents(tempfile::TempDir);

    impl Agents {
        fn with(name: &str, script: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            Agents(dir)
        }

        async fn run(&self, agent: &str, timeout: Duration) -> Answer {
            let run = Run {
                fencing: "f".into(),
                agent: agent.into(),
                action: "off",
                parameters: BTreeMap::new(),
                secret: None,
                timeout,
            };
            let parameters = BTreeMap::from([("plug".to_string(), "n1".to_string())]);
            // A program that was written a moment ago may still be open for writing in a process that another test forks.
            for _ in 0..100 {
                let programs = Programs(self.0.path().into());
                match run_in_time(&programs, &run, &parameters).await {
                    Answer::Broken { why } if why.contains("Text file busy") => {
                        sleep(Duration::from_millis(20)).await;
                    }
                    answer => return answer,
                }
            }
            panic!("the program stays busy");
        }
    }

    const LONG: Duration = Duration::from_secs(120);

    #[tokio::test]
    async fn s6_an_agent_reads_its_task_from_standard_input_and_answers_by_its_code() {
        let agents = Agents::with("fence_t", "cat; echo oops >&2; env | grep -c HOME; exit 2");
        let answer = agents.run("fence_t", LONG).await;
        let output = "action=off\nplug=n1\n0\noops\n".to_string();
        assert_eq!(answer, Answer::Exited { code: 2, output });
    }

    #[tokio::test]
    async fn s6_an_agent_that_hangs_is_ended_with_all_its_children() {
        let agents = Agents::with(
            "fence_t",
            "sleep 1000 & echo $! > \"$(dirname \"$0\")/child\"; wait",
        );
        let file = agents.0.path().join("child");
        let hung = agents.run("fence_t", Duration::from_secs(3)).await;
        assert_eq!(hung, Answer::TimedOut);
        // Written in time unless the machine stood still for all the three seconds.
        let Ok(pid) = std::fs::read_to_string(&file) else {
            return;
        };
        let pid = Pid::from_raw(pid.trim().parse().unwrap());
        for _ in 0..3000 {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            if !state.is_ok_and(|s| !s.contains(") Z ")) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("the child of an agent lives on");
    }

    #[tokio::test]
    async fn s6_what_is_no_agent_is_not_run() {
        let agents = Agents::with("fence_t", "kill -9 $$");
        for (name, word) in [
            ("fence_none", "cannot run"),
            ("../fence_t", "not the name of a fence agent"),
            ("sh", "not the name of a fence agent"),
            ("fence_t", "ended by signal 9"),
        ] {
            match agents.run(name, LONG).await {
                Answer::Broken { why } => assert!(why.contains(word), "{why}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn s6_an_agent_that_says_much_is_heard_to_its_end() {
        let agents = Agents::with("fence_t", "head -c 1000000 /dev/zero | tr '\\0' x; exit 0");
        match agents.run("fence_t", LONG).await {
            Answer::Exited { code: 0, output } => assert_eq!(output.len() as u64, OUTPUT_MAX),
            other => panic!("{other:?}"),
        }
    }
}
