//! `runc run true`: what the least container costs on this host, without containerd, shim, image or network.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::samples::{Sizes, median};

/// Why it is not measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuncError {
    #[error("left out")]
    LeftOut,
    #[error("containers need root")]
    NotRoot,
    #[error("{program} is not in PATH")]
    Missing { program: &'static str },
    #[error("cannot write the bundle {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot decode the configuration that `runc spec` wrote")]
    Spec(#[source] serde_json::Error),
    #[error("`runc {command}` cannot be run")]
    Run {
        command: &'static str,
        source: std::io::Error,
    },
    #[error("`runc {command}` failed: {message}")]
    Failed { command: &'static str, message: String },
}

/// The median duration of a run, in seconds.
pub(super) fn run(sizes: &Sizes, directory: &Path) -> Result<f64, RuncError> {
    if sizes.containers == 0 {
        return Err(RuncError::LeftOut);
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(RuncError::NotRoot);
    }
    let runc = find("runc")?;
    let busybox = find("busybox")?;
    let temporary = tempfile::Builder::new()
        .prefix("calibration-")
        .tempdir_in(directory)
        .map_err(|source| RuncError::Write {
            path: directory.to_path_buf(),
            source,
        })?;
    let bundle = bundle(&runc, &busybox, temporary.path())?;
    let state = temporary.path().join("state");
    let mut number = 0;
    let mut one = || {
        number += 1;
        let id = format!("calibration-{}-{number}", std::process::id());
        let arguments: [&OsStr; 6] = [
            "--root".as_ref(),
            state.as_os_str(),
            "run".as_ref(),
            "--bundle".as_ref(),
            bundle.as_os_str(),
            id.as_ref(),
        ];
        call(Command::new(&runc).args(arguments), "run")
    };
    // The first one reads the program from disk.
    one()?;
    median(sizes.containers, sizes.limit, one)
}

fn find(program: &'static str) -> Result<PathBuf, RuncError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(program));
    let is_program = |candidate: &PathBuf| {
        candidate
            .metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    candidates.find(is_program).ok_or(RuncError::Missing { program })
}

/// The bundle of `runc spec`, with busybox as `true`.
fn bundle(runc: &Path, busybox: &Path, directory: &Path) -> Result<PathBuf, RuncError> {
    let bundle = directory.join("bundle");
    let programs = bundle.join("rootfs/bin");
    let written = |path: &Path, result: std::io::Result<()>| {
        result.map_err(|source| RuncError::Write {
            path: path.to_path_buf(),
            source,
        })
    };
    written(&programs, std::fs::create_dir_all(&programs))?;
    let program = programs.join("true");
    written(&program, std::fs::copy(busybox, &program).map(drop))?;
    call(
        Command::new(runc).arg("spec").arg("--bundle").arg(&bundle),
        "spec",
    )?;
    let file = bundle.join("config.json");
    let text = std::fs::read(&file).map_err(|source| RuncError::Write {
        path: file.clone(),
        source,
    })?;
    let mut config: serde_json::Value = serde_json::from_slice(&text).map_err(RuncError::Spec)?;
    if let Some(process) = config.get_mut("process").and_then(|p| p.as_object_mut()) {
        process.insert("terminal".into(), json!(false));
        process.insert("args".into(), json!(["/bin/true"]));
    }
    written(&file, std::fs::write(&file, config.to_string()))?;
    Ok(bundle)
}

fn call(command: &mut Command, name: &'static str) -> Result<(), RuncError> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| RuncError::Run {
            command: name,
            source,
        })?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    Err(RuncError::Failed {
        command: name,
        message: last.map_or_else(|| out.status.to_string(), str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = find("no-such-program-of-knarr").unwrap_err();
        assert_eq!(error.to_string(), "no-such-program-of-knarr is not in PATH");
    }

    #[test]
    fn a_failed_call_shows_its_last_line() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo why >&2; exit 3"]);
        let error = call(&mut command, "run").unwrap_err();
        assert_eq!(error.to_string(), "`runc run` failed: why");
        let error = call(Command::new("sh").args(["-c", "exit 3"]), "run").unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }
}
