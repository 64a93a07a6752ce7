//! The Python client (`kubernetes` of PyPI) creates, watches, patches, execs and deletes.

use std::process::Command;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, text};

pub const SCENARIOS: &[(&str, Scenario)] = &[(
    "the_python_client_creates_watches_patches_execs_and_deletes",
    lifecycle,
)];

fn lifecycle(ns: &Namespace) -> Outcome {
    let python = python_with_client()?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/client.py");
    let out = Command::new(python)
        .arg(script)
        .arg(ns.cluster.kubeconfig())
        .arg(&ns.name)
        .output()?;
    let said = text(&out);
    if !out.status.success() {
        return Err(said.into());
    }
    has(&said, "created\nrunning\npatched\nexec: ahoy\ndeleted\n")
}

/// A virtual environment beside the build's output, made once, with the version in `requirements.txt`.
fn python_with_client() -> Result<std::path::PathBuf, libtest_mimic::Failed> {
    let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/requirements.txt");
    let venv = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-client");
    let python = venv.join("bin/python");
    let run = |command: &mut Command| -> Result<(), libtest_mimic::Failed> {
        let out = command.output()?;
        if out.status.success() {
            Ok(())
        } else {
            Err(format!("{command:?}:\n{}", text(&out)).into())
        }
    };
    if !venv.join("done").exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        run(Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
            requirements,
        ]))?;
        std::fs::write(venv.join("done"), "")?;
    }
    Ok(python)
}
