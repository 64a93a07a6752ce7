//! Runs the fencing controller: carries out its decisions, and runs its agents through [`FenceAgents`].
//!
//! An agent is a program of one directory, by its name alone. It gets `key=value` lines on standard input and nothing
//! else: no arguments, no environment but `PATH`. It has its own process group, which is killed as a whole when the
//! agent has not exited in time, or this process stops running it. Which agents, and which parameters, policies may
//! name is a closed list ([`parameters::Allowed`](knarr_controllers::fencing::parameters::Allowed)); it is checked
//! again here, with the Secret's values.

mod parameters;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::custom::conditions::is_established;
use knarr_api::k8s_openapi;
use knarr_client::{Api, Component, Error, TypedApi};
use knarr_controllers::fencing::description::METADATA;
use knarr_controllers::fencing::kinds::definitions;
pub use knarr_controllers::fencing::parameters::Allowed;
use knarr_controllers::fencing::parameters::VALUE_MAX;
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
pub use parameters::Parameters;

/// The service account it acts as.
pub const ACCOUNT: &str = "knarr-fencing-controller";
/// The resync period: deadlines pass without any change.
const PERIOD: Duration = Duration::from_secs(5);
/// Changes within this time are handled by one sync.
const GATHER: Duration = Duration::from_millis(50);
/// Between two tries to make the kinds.
const AGAIN: Duration = Duration::from_secs(1);
/// How many bytes of an agent's output are kept.
const OUTPUT_MAX: usize = 2048;
/// The same of its metadata: Debian's agents print up to 30 kB.
const METADATA_MAX: usize = 256 * 1024;

/// Who runs fence agents. One that has not answered in time is dropped, and is to do nothing more.
#[async_trait]
pub trait FenceAgents: std::fmt::Debug + Send + Sync {
    /// Runs one, once.
    async fn run(&self, run: &Run, parameters: &Parameters) -> Answer;
}

/// The programs of one directory.
#[derive(Debug)]
pub struct Programs(pub PathBuf);

/// Runs until dropped; running agents are killed then.
pub async fn run(base: Base, agents: Arc<dyn FenceAgents>, allowed: Allowed) {
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), "fencing-controller");
    while let Err(error) = define(&*api).await {
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
    let executor = Executor::new(api.clone(), events);
    let view = CacheView(base.caches);
    let mut fencing = Fencing::new(allowed.clone());
    let mut runs: JoinSet<(Run, Answer)> = JoinSet::new();
    loop {
        let plan = fencing.look(&view, base.clock.now());
        for actions in plan.actions {
            let outcome = executor.run(actions).await;
            // The next sync decides on the state of that time.
            if !shown(&view, &fencing::watches(), &outcome.written).await {
                warn!("the caches do not show what fencing wrote");
            }
            if let Some(failure) = outcome.failure {
                let (kind, name, error) = (failure.kind.plural(), &failure.name, &failure.error);
                debug!(kind, name, %error, "fencing: again");
            }
        }
        for run in plan.runs {
            let (api, agents, allowed) = (api.clone(), agents.clone(), allowed.clone());
            runs.spawn(async move {
                let answer = ask(&*api, &*agents, &allowed, &run).await;
                (run, answer)
            });
        }
        tokio::select! {
            biased;
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
async fn ask(api: &dyn Api, agents: &dyn FenceAgents, allowed: &Allowed, run: &Run) -> Answer {
    match Parameters::of(api, allowed, run).await {
        Ok(parameters) => run_in_time(agents, run, &parameters).await,
        Err(error) => Answer::Broken {
            why: error.to_string(),
        },
    }
}

async fn run_in_time(agents: &dyn FenceAgents, run: &Run, parameters: &Parameters) -> Answer {
    let answer = timeout(run.timeout, agents.run(run, parameters)).await;
    answer.unwrap_or(Answer::TimedOut)
}

/// Kills an agent's whole process group when dropped.
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
    async fn run(&self, run: &Run, parameters: &Parameters) -> Answer {
        let broken = |why: String| Answer::Broken { why };
        // The definition rejects such names; if one was stored all the same it must not select what runs here.
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
        for (key, value) in parameters.iter() {
            // Checked before; one line is one parameter all the same.
            if key.contains('=') || key.chars().chain(value.chars()).any(char::is_control) {
                return broken(format!(
                    "parameter {key:?} has a control character or an equals sign"
                ));
            }
            input.push_str(&format!("{key}={value}\n"));
        }
        let most = match run.action {
            METADATA => METADATA_MAX,
            _ => OUTPUT_MAX,
        };
        match talk(&mut child, input, parameters, most).await {
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
    parameters: &Parameters,
    most: usize,
) -> std::io::Result<(std::process::ExitStatus, String)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write_input = async {
        if let Some(mut stdin) = stdin {
            // One that does not listen may still act; it is its end that counts.
            if let Err(error) = stdin.write_all(input.as_bytes()).await {
                debug!(%error, "a fence agent does not read its parameters");
            }
        }
    };
    let output_read = async {
        match stdout {
            Some(out) => keep(out, parameters, most).await,
            None => Ok(String::new()),
        }
    };
    let errors_read = async {
        match stderr {
            Some(err) => keep(err, parameters, most).await,
            None => Ok(String::new()),
        }
    };
    let ((), output_read, errors_read, status) =
        tokio::join!(write_input, output_read, errors_read, child.wait());
    let mut output = output_read?;
    output.push_str(&errors_read?);
    Ok((status?, output))
}

/// Reads to the end, so that no writer blocks, and keeps the beginning, without secret values.
async fn keep(
    mut from: impl tokio::io::AsyncRead + Unpin,
    parameters: &Parameters,
    most: usize,
) -> std::io::Result<String> {
    // Enough that `most` bytes are left when a possible part of a secret value is removed.
    let limit = most + VALUE_MAX;
    let mut text = Vec::new();
    let mut read = (&mut from).take(u64::try_from(limit).unwrap_or(u64::MAX));
    read.read_to_end(&mut text).await?;
    let more = tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(parameters.redacted(&text, more > 0, most))
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
                attempt: 1,
                agent: agent.into(),
                action: "off",
                parameters: Default::default(),
                secret: None,
                timeout,
            };
            let parameters = Parameters::for_tests(&[("plug", "n1")], &[("password", "pw-1")]);
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
        let output = "action=off\npassword=[redacted]\nplug=n1\n0\noops\n".to_string();
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
        // Written in time unless the machine was stalled for all the three seconds.
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
    async fn s6_an_agents_long_output_is_read_to_its_end() {
        let agents = Agents::with("fence_t", "head -c 1000000 /dev/zero | tr '\\0' x; exit 0");
        match agents.run("fence_t", LONG).await {
            Answer::Exited { code: 0, output } => assert_eq!(output.len(), OUTPUT_MAX),
            other => panic!("{other:?}"),
        }
    }

    /// The attack by which a policy could fence with `action=metadata`: an agent that repeats its input, run for its
    /// metadata.
    #[tokio::test]
    async fn a4_no_policy_turns_off_into_a_question_or_shows_a_secret() {
        use k8s_openapi::jiff::Timestamp;
        use knarr_client::TokioClock;
        use knarr_client::fake::FakeApi;
        use knarr_controllers::fencing::kinds::SecretRef;

        let agents = Agents::with("fence_x", "cat; exit 0");
        let api = FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH)));
        for namespace in ["kube-system", "knarr-fencing"] {
            let secret = serde_json::json!({"metadata": {"name": "s", "namespace": namespace},
                "data": {"password": "aHVudGVyMg=="}});
            let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).unwrap();
            api.create_as(secret).await.unwrap();
        }
        let run = |namespace: &str, key: &str| Run {
            fencing: "f".into(),
            attempt: 1,
            agent: "fence_x".into(),
            action: "off",
            parameters: [(key.to_string(), "status".to_string())].into(),
            secret: Some(SecretRef {
                namespace: namespace.into(),
                name: "s".into(),
            }),
            timeout: LONG,
        };
        let programs = Programs(agents.0.path().into());
        let added = Allowed::parse("fence_x:password").unwrap();
        for (allowed, namespace, key, word) in [
            (
                Allowed::default(),
                "knarr-fencing",
                "plug",
                "not an allowed fence agent",
            ),
            (added.clone(), "kube-system", "plug", "secretRef names namespace"),
            (
                added.clone(),
                "knarr-fencing",
                "action",
                "\"action\" is not allowed",
            ),
            (
                added.clone(),
                "knarr-fencing",
                "ssh-options",
                "\"ssh-options\" is not allowed",
            ),
        ] {
            match ask(&api, &programs, &allowed, &run(namespace, key)).await {
                Answer::Broken { why } => assert!(why.contains(word), "{why}"),
                other => panic!("{key}: {other:?}"),
            }
        }
        for _ in 0..100 {
            match ask(&api, &programs, &added, &run("knarr-fencing", "plug")).await {
                Answer::Broken { why } if why.contains("Text file busy") => {
                    sleep(Duration::from_millis(20)).await;
                }
                answer => {
                    let output = "action=off\npassword=[redacted]\nplug=status\n".to_string();
                    assert_eq!(answer, Answer::Exited { code: 0, output });
                    return;
                }
            }
        }
        panic!("the program stays busy");
    }
}
