//! Invocations of the OCI runtime (runc, crun) as a program, none of which is waited for here.
//!
//! Each gets a log of its own in the bundle (`--log`, JSON), from which its error message is taken: what runc says there
//! is what Kubernetes shows in a pod's events. It gets SIGKILL when the shim dies, as with Go's shim, so that nothing
//! half-done continues while `delete` cleans up.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use serde::Deserialize;

use crate::bundle::Bundle;
use crate::error::Failure;
use crate::exits::Exit;
use crate::options::Options;

const DEFAULT_PROGRAM: &str = "runc";
/// Where runc's state is unless the options say otherwise; as with Go's shim.
const DEFAULT_ROOT: &str = "/run/containerd/runc";
/// Of the log and of the output, the end is read.
const MAX_MESSAGE_BYTES: u64 = 64 << 10;
/// A variable by which systemd's services report readiness; runc would take it for the container's.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The OCI runtime of a container.
#[derive(Debug, Clone)]
pub struct Runtime {
    program: String,
    root: PathBuf,
    systemd_cgroup: bool,
}

/// The three streams of an invocation.
pub enum Streams {
    /// The container's; the runtime passes them on.
    Container {
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    },
    /// The runtime's output is for its error message. It reads this.
    Captured { input: Vec<u8> },
}

impl Streams {
    pub fn captured() -> Self {
        Streams::Captured { input: Vec::new() }
    }
}

/// An invocation under way.
#[derive(Debug)]
pub struct Invocation {
    program: String,
    log: String,
    output: Option<File>,
}

/// Why an invocation failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("{0}")]
    Logged(String),
    #[error("{program} did not terminate successfully: exit status {status}{output}")]
    Silent {
        program: String,
        status: u32,
        output: String,
    },
    #[error("cannot run {program:?}")]
    Spawn { program: String, source: io::Error },
}

impl RuntimeError {
    /// As Go's shim says it: "OCI runtime create failed: …".
    pub fn during(&self, what: &str) -> Failure {
        Failure::because(what, self)
    }

    /// The container is not known to the runtime (any more).
    pub fn is_absent(&self) -> bool {
        self.to_string().contains("does not exist")
    }

    /// The process that was to get a signal has ended.
    pub fn is_ended(&self) -> bool {
        let text = self.to_string().to_lowercase();
        ["process already finished", "not running", "no such process"]
            .iter()
            .any(|sign| text.contains(sign))
    }
}

impl Runtime {
    pub fn new(options: &Options, namespace: &str) -> Self {
        let or = |text: &str, default: &str| if text.is_empty() { default } else { text }.to_owned();
        Runtime {
            program: or(&options.binary_name, DEFAULT_PROGRAM),
            root: PathBuf::from(or(&options.root, DEFAULT_ROOT)).join(namespace),
            systemd_cgroup: options.systemd_cgroup,
        }
    }

    /// The directory that runc keeps for a container.
    pub fn directory(&self, container: &str) -> PathBuf {
        self.root.join(container)
    }

    /// The command with its global flags.
    pub fn command(&self, bundle: &Bundle, log: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(bundle.join(log))
            .args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command.current_dir(bundle.path()).env_remove(NOTIFY_SOCKET);
        command
    }

    /// Starts an invocation. No two of a bundle have the same `sequence`.
    pub fn spawn<S: AsRef<std::ffi::OsStr>>(
        &self,
        bundle: &Bundle,
        sequence: u32,
        arguments: impl IntoIterator<Item = S>,
        streams: Streams,
    ) -> Result<(Pid, Invocation), RuntimeError> {
        let failed = |source| RuntimeError::Spawn {
            program: self.program.clone(),
            source,
        };
        let log = format!("oci-{sequence}.json");
        let mut command = self.command(bundle, &log);
        command.args(arguments);
        let output = set_streams(&mut command, streams).map_err(failed)?;
        end_with_this_process(&mut command);
        let child = command.spawn().map_err(failed)?;
        // The child is waited for by the loop, not through its handle.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        let invocation = Invocation {
            program: self.program.clone(),
            log,
            output,
        };
        Ok((pid, invocation))
    }
}

fn set_streams(command: &mut Command, streams: Streams) -> io::Result<Option<File>> {
    let or_null = |stream: Option<OwnedFd>| stream.map_or_else(Stdio::null, Stdio::from);
    match streams {
        Streams::Container {
            stdin,
            stdout,
            stderr,
        } => {
            command
                .stdin(or_null(stdin))
                .stdout(or_null(stdout))
                .stderr(or_null(stderr));
            Ok(None)
        }
        Streams::Captured { input } => {
            // A file, not a pipe: it is read when the runtime has exited, even if another process still has it open.
            let output = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
            command.stdout(output.try_clone()?).stderr(output.try_clone()?);
            if input.is_empty() {
                command.stdin(Stdio::null());
            } else {
                let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
                file.write_all(&input)?;
                file.seek(SeekFrom::Start(0))?;
                command.stdin(file);
            }
            Ok(Some(output))
        }
    }
}

/// The command gets SIGKILL when this process dies.
#[expect(
    unsafe_code,
    reason = "the standard library has no safe way to run code in a child before exec"
)]
fn end_with_this_process(command: &mut Command) {
    let parent = getpid();
    // SAFETY: between fork and exec only two system calls are made; they neither allocate nor lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        });
    }
}

impl Invocation {
    /// The invocation has exited. Reads why, if it failed, and removes its log.
    pub fn finish(self, bundle: &Bundle, exit: Exit) -> Result<(), RuntimeError> {
        let logged = if exit.status == 0 {
            None
        } else {
            bundle
                .read_end(&self.log, MAX_MESSAGE_BYTES)
                .ok()
                .and_then(|log| last_error(&log))
        };
        bundle.remove(&self.log);
        if exit.status == 0 {
            return Ok(());
        }
        Err(match logged {
            Some(message) => RuntimeError::Logged(message),
            None => RuntimeError::Silent {
                status: exit.status,
                output: self.output.map(|file| printed(&file)).unwrap_or_default(),
                program: self.program,
            },
        })
    }
}

fn printed(file: &File) -> String {
    let mut bytes = Vec::new();
    let mut file = file;
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    match (read, text.trim()) {
        (Ok(_), text) if !text.is_empty() => format!(": {text}"),
        _ => String::new(),
    }
}

/// The message of the last line that is an error.
fn last_error(log: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        #[serde(default)]
        level: String,
        #[serde(default)]
        msg: String,
    }
    log.split(|byte| *byte == b'\n')
        .rev()
        .filter_map(|line| serde_json::from_slice::<Line>(line).ok())
        .find(|line| line.level == "error")
        .map(|line| line.msg.trim().to_owned())
        .filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallTime;

    #[test]
    fn the_last_error_of_a_log_is_the_message_whatever_else_is_in_it() {
        let log = br#"{"level":"error","msg":"first","time":"2026-11-27T16:00:00Z"}
{"level":"error","msg":"runc create failed: no such file\n","time":"2026-11-27T16:00:00Z"}
{"level":"warning","msg":"signal: killed"}
not json
"#;
        assert_eq!(
            last_error(log).as_deref(),
            Some("runc create failed: no such file")
        );
        assert_eq!(
            last_error(br#"{ "msg": "crun says", "level": "error" }"#).as_deref(),
            Some("crun says")
        );
        assert_eq!(last_error(b""), None);
        assert_eq!(last_error(br#"{"level":"error","msg":" "}"#), None);
    }

    #[test]
    fn a_failure_reads_as_with_gos_shim() {
        let error = RuntimeError::Logged(r#"runc create failed: exec: "x": not found"#.into());
        assert_eq!(
            error.during("OCI runtime create failed").message,
            r#"OCI runtime create failed: runc create failed: exec: "x": not found"#
        );
        assert!(RuntimeError::Logged("container does not exist".into()).is_absent());
        assert!(RuntimeError::Logged("container not running".into()).is_ended());
        assert!(RuntimeError::Logged("the container `x` is not running".into()).is_ended());
    }

    #[test]
    fn output_of_a_runtime_that_logs_nothing_is_its_message() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("runtime");
        // The program has no log and no options that it understands.
        std::fs::write(&program, "#!/bin/sh\ncat; echo bad >&2; exit 3\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let bundle = Bundle::open(directory.path()).unwrap();
        let options = Options {
            binary_name: program.display().to_string(),
            ..Options::default()
        };
        let runtime = Runtime::new(&options, "n");
        let input = Streams::Captured {
            input: b"read ".into(),
        };
        let (pid, invocation) = runtime.spawn(&bundle, 1, ["start", "a"], input).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        let exit = Exit {
            status: 3,
            at: WallTime::default(),
        };
        let error = invocation.finish(&bundle, exit).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "{} did not terminate successfully: exit status 3: read bad",
                program.display()
            )
        );
    }
}
