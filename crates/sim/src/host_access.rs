//! What one incarnation of a kubelet reaches of its host: programs, mounts and CSI drivers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_node::host::{CommandError, CommandOutput, Host};
use knarr_node::plugins::{CallError, Code};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::disks::{MountError, NodeHost, SERVER};

/// The exit code of `mount` and `umount` when they fail.
const FAILED: i32 = 32;

impl NodeHost {
    /// The host as one incarnation of the kubelet reaches it.
    pub fn host_access(self: &Arc<Self>, dead: CancellationToken) -> Arc<dyn Host> {
        Arc::new(HostAccess {
            host: self.clone(),
            dead,
        })
    }

    /// After a reboot nothing is mounted. The processes have been killed before.
    pub fn rebooted(&self) {
        let mounts = {
            let mut state = self.state.lock();
            state.up_since = Instant::now();
            std::mem::take(&mut state.mounts)
        };
        for (at, disk) in mounts {
            self.observer.closes(&disk, &self.mounted(at));
        }
        self.forget_staged();
    }
}

/// The host as one incarnation of its kubelet reaches it. A program that was started continues when the kubelet dies.
struct HostAccess {
    host: Arc<NodeHost>,
    dead: CancellationToken,
}

impl std::fmt::Debug for HostAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host access of {}", self.host.node)
    }
}

#[async_trait]
impl Host for HostAccess {
    async fn run(&self, program: &str, args: &[&str]) -> Result<CommandOutput, CommandError> {
        if !self.dead.is_cancelled() {
            let line = format!("{} is to {program} {}", self.host.node, display_args(args));
            self.host.observer.note(&line);
        }
        let host = self.host.clone();
        let (program, args) = (
            program.to_string(),
            args.iter().map(|a| a.to_string()).collect::<Vec<_>>(),
        );
        let done = self.host.condition.order(async move {
            if let Some(ran) = host.run_staging(&program, &args) {
                return Ok(ran);
            }
            let (source, at) = match args.as_slice() {
                [.., source, at] => (source.as_str(), at.as_str()),
                [at] => ("", at.as_str()),
                [] => ("", ""),
            };
            let disk = source.strip_prefix(SERVER).and_then(|s| s.strip_prefix(':'));
            Ok(match (program.as_str(), disk) {
                ("mount", Some(disk)) => output_of(host.mount(disk, Path::new(at))),
                ("umount", _) => output_of(host.unmount(Path::new(at))),
                _ => failed(format!("no {program} of {source} here")),
            })
        });
        let done = tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            done = done => done,
        };
        Ok(done.unwrap_or_else(|error| failed(error.to_string())))
    }

    fn is_mounted(&self, at: &Path) -> std::io::Result<bool> {
        Ok(self.host.is_mounted_at(at) || self.host.is_staged(at))
    }

    fn device(&self, by_path: &str) -> Option<PathBuf> {
        self.host.staging_device(by_path)
    }

    fn has_fake_plugins(&self) -> bool {
        self.host.staging.is_registered()
    }

    async fn call_plugin(
        &self,
        _socket: &Path,
        method: &'static str,
        request: Vec<u8>,
    ) -> Option<std::result::Result<Vec<u8>, CallError>> {
        if !self.dead.is_cancelled() {
            self.host
                .observer
                .note(&format!("{} is to do {method}", self.host.node));
        }
        let host = self.host.clone();
        let called = self
            .host
            .condition
            .order(async move { Ok(host.call_driver(method, &request)) });
        let called = tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            called = called => called,
        };
        Some(called.unwrap_or_else(|error| {
            Err(CallError {
                code: Code::Unavailable,
                message: error.to_string(),
            })
        }))
    }

    fn since_boot(&self) -> Option<Duration> {
        let up = self.host.state.lock().up_since.elapsed();
        let up = self.host.rate.counted(up);
        let counts_slowly = self.host.mutation == Some(Mutation::FenceItselfLate);
        Some(if counts_slowly { up / 2 } else { up })
    }
}

fn failed(output: String) -> CommandOutput {
    CommandOutput {
        code: Some(FAILED),
        output,
    }
}

/// What `mount` or `umount` prints, and its exit code.
fn output_of(done: Result<(), MountError>) -> CommandOutput {
    match done {
        Ok(()) => CommandOutput {
            code: Some(0),
            output: String::new(),
        },
        Err(error) => failed(error.to_string()),
    }
}

/// Without the directory of this run, which differs in each.
fn display_args(args: &[&str]) -> String {
    let own = |arg: &&str| match arg.split_once("/pods/") {
        Some((_, rest)) => format!("pods/{rest}"),
        None => arg.to_string(),
    };
    args.iter().map(own).collect::<Vec<_>>().join(" ")
}
