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
use knarr_client::{Api, Component};
use knarr_controllers::fencing::description::METADATA;
use knarr_controllers::fencing::kinds::definitions;
use knarr_controllers::fencing::parameters::VALUE_MAX;
pub use knarr_controllers::fencing::parameters::{AllowError, Allowed};
use knarr_controllers::fencing::{self, Fencing};
pub use knarr_controllers::fencing::{AgentResult, Run};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::definitions::establish;
use crate::executor::Executor;
use crate::runner::{Base, contain_writes};
use crate::view::CacheView;
pub use parameters::Parameters;

/// The service account it acts as.
pub const ACCOUNT: &str = "knarr-fencing-controller";
/// The resync period: deadlines pass without any change.
const PERIOD: Duration = Duration::from_secs(5);
/// Changes within this time are handled by one sync.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The time between two attempts to create the CustomResourceDefinitions.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How many bytes of an agent's output are kept.
const OUTPUT_MAX: usize = 2048;
/// The same of its metadata: Debian's agents print up to 30 kB.
const METADATA_MAX: usize = 256 * 1024;

/// Runs fence agents. A run that times out is dropped, and must have no further effect.
#[async_trait]
pub trait FenceAgents: std::fmt::Debug + Send + Sync {
    /// Runs one, once.
    async fn run(&self, run: &Run, parameters: &Parameters) -> AgentResult;
}

/// The programs of one directory.
#[derive(Debug)]
pub struct AgentDirectory(pub PathBuf);

/// Runs until dropped; running agents are killed then.
pub async fn run(base: Base, agents: Arc<dyn FenceAgents>, allowed: Allowed) {
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), "fencing-controller");
    while let Err(error) = establish(&*api, definitions()).await {
        debug!(%error, "the CustomResourceDefinitions of fencing are not established yet");
        sleep(RETRY_INTERVAL).await;
    }
    let wake = Arc::new(Notify::new());
    for kind in fencing::watches() {
        let store = base.caches.store(kind);
        let changed = wake.clone();
        store.add_event_handler(move |change| {
            let (old, new) = (change.before(), change.after());
            if fencing::is_relevant(old.map(|o| &**o), new.map(|o| &**o)) {
                changed.notify_one();
            }
        });
        store.synced().await;
    }
    let executor = Executor::new(api.clone(), events);
    let view = CacheView(base.caches);
    let mut fencing = Fencing::new(allowed.clone());
    let mut runs: JoinSet<(Run, AgentResult)> = JoinSet::new();
    loop {
        let plan = fencing.sync(&view, base.clock.now());
        for actions in plan.actions {
            let outcome = executor.run(actions).await;
            // The next sync decides on the state of that time.
            if !contain_writes(&view, &fencing::watches(), &outcome.written).await {
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
                let result = run_agent(&*api, &*agents, &allowed, &run).await;
                (run, result)
            });
        }
        tokio::select! {
            biased;
            Some(result) = runs.join_next() => match result {
                Ok((run, result)) => {
                    if run.action != METADATA {
                        info!(agent = run.agent, action = run.action, fencing = run.fencing, ?result, "a fence agent has finished");
                    }
                    fencing.record_result(&run, result, base.clock.now());
                }
                Err(error) => warn!(%error, "the task of a fence agent panicked"),
            },
            () = async { wake.notified().await; sleep(DEBOUNCE).await } => {}
            () = sleep(PERIOD) => {}
        }
    }
}

/// Runs an agent once.
async fn run_agent(api: &dyn Api, agents: &dyn FenceAgents, allowed: &Allowed, run: &Run) -> AgentResult {
    match Parameters::of(api, allowed, run).await {
        Ok(parameters) => run_in_time(agents, run, &parameters).await,
        Err(error) => AgentResult::Broken {
            why: error.to_string(),
        },
    }
}

async fn run_in_time(agents: &dyn FenceAgents, run: &Run, parameters: &Parameters) -> AgentResult {
    let result = timeout(run.timeout, agents.run(run, parameters)).await;
    result.unwrap_or(AgentResult::TimedOut)
}

/// Kills an agent's whole process group when dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It is no error if no process is left.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[async_trait]
impl FenceAgents for AgentDirectory {
    async fn run(&self, run: &Run, parameters: &Parameters) -> AgentResult {
        let broken = |why: String| AgentResult::Broken { why };
        // The CustomResourceDefinition rejects such names; if one was stored nevertheless, it must not select the program.
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
            // Checked before; checked again, as each line is one parameter.
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
        match communicate(&mut child, input, parameters, most).await {
            Err(e) => broken(format!("cannot write to or read from {}: {e}", run.agent)),
            Ok((status, output)) => match status.code() {
                Some(code) => AgentResult::Exited { code, output },
                None => broken(format!(
                    "{} was terminated by signal {}",
                    run.agent,
                    status.signal().unwrap_or(0)
                )),
            },
        }
    }
}

async fn communicate(
    child: &mut Child,
    input: String,
    parameters: &Parameters,
    most: usize,
) -> std::io::Result<(std::process::ExitStatus, String)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write_input = async {
        if let Some(mut stdin) = stdin {
            // An agent that does not read its input may still act; its exit code counts.
            if let Err(error) = stdin.write_all(input.as_bytes()).await {
                debug!(%error, "a fence agent does not read its parameters");
            }
        }
    };
    let output_read = async {
        match stdout {
            Some(out) => read_output(out, parameters, most).await,
            None => Ok(String::new()),
        }
    };
    let errors_read = async {
        match stderr {
            Some(err) => read_output(err, parameters, most).await,
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
async fn read_output(
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

        async fn run(&self, agent: &str, timeout: Duration) -> AgentResult {
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
                let programs = AgentDirectory(self.0.path().into());
                match run_in_time(&programs, &run, &parameters).await {
                    AgentResult::Broken { why } if why.contains("Text file busy") => {
                        sleep(Duration::from_millis(20)).await;
                    }
                    result => return result,
                }
            }
            panic!("the program stays busy");
        }
    }

    const LONG: Duration = Duration::from_secs(120);

    #[tokio::test]
    async fn s6_an_agent_reads_its_parameters_from_standard_input_and_its_exit_code_is_the_result() {
        let agents = Agents::with("fence_t", "cat; echo oops >&2; env | grep -c HOME; exit 2");
        let result = agents.run("fence_t", LONG).await;
        let output = "action=off\npassword=[redacted]\nplug=n1\n0\noops\n".to_string();
        assert_eq!(result, AgentResult::Exited { code: 2, output });
    }

    #[tokio::test]
    async fn s6_an_agent_that_hangs_is_killed_with_all_its_children() {
        let agents = Agents::with(
            "fence_t",
            "sleep 1000 & echo $! > \"$(dirname \"$0\")/child\"; wait",
        );
        let file = agents.0.path().join("child");
        let hung = agents.run("fence_t", Duration::from_secs(3)).await;
        assert_eq!(hung, AgentResult::TimedOut);
        // Written in time unless the host was stalled for all the three seconds.
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
        panic!("the child of an agent still runs");
    }

    #[tokio::test]
    async fn s6_programs_that_are_not_agents_are_not_run() {
        let agents = Agents::with("fence_t", "kill -9 $$");
        for (name, word) in [
            ("fence_none", "cannot run"),
            ("../fence_t", "not the name of a fence agent"),
            ("sh", "not the name of a fence agent"),
            ("fence_t", "terminated by signal 9"),
        ] {
            match agents.run(name, LONG).await {
                AgentResult::Broken { why } => assert!(why.contains(word), "{why}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn s6_an_agents_long_output_is_read_to_its_end() {
        let agents = Agents::with("fence_t", "head -c 1000000 /dev/zero | tr '\\0' x; exit 0");
        match agents.run("fence_t", LONG).await {
            AgentResult::Exited { code: 0, output } => assert_eq!(output.len(), OUTPUT_MAX),
            other => panic!("{other:?}"),
        }
    }

    /// The attack by which a policy could fence with `action=metadata`: an agent that repeats its input, run for its
    /// metadata.
    #[tokio::test]
    async fn a4_no_policy_can_replace_the_action_or_reveal_a_secret() {
        use k8s_openapi::jiff::Timestamp;
        use knarr_client::fake::FakeApi;
        use knarr_client::{TokioClock, TypedApi};
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
        let programs = AgentDirectory(agents.0.path().into());
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
            match run_agent(&api, &programs, &allowed, &run(namespace, key)).await {
                AgentResult::Broken { why } => assert!(why.contains(word), "{why}"),
                other => panic!("{key}: {other:?}"),
            }
        }
        for _ in 0..100 {
            match run_agent(&api, &programs, &added, &run("knarr-fencing", "plug")).await {
                AgentResult::Broken { why } if why.contains("Text file busy") => {
                    sleep(Duration::from_millis(20)).await;
                }
                result => {
                    let output = "action=off\npassword=[redacted]\nplug=status\n".to_string();
                    assert_eq!(result, AgentResult::Exited { code: 0, output });
                    return;
                }
            }
        }
        panic!("the program stays busy");
    }
}
