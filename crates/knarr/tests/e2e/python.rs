//! The Python client (`kubernetes` of PyPI) creates, watches, patches, execs and deletes; and Helm's requests, sent through
//! its connection.

use std::process::Command;
use std::sync::Mutex;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, text};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "the_python_client_creates_watches_patches_execs_and_deletes",
        lifecycle,
    ),
    ("helms_requests_install_upgrade_roll_back_and_uninstall", helm),
];

/// Scenarios run in parallel; they share one environment.
static INSTALLING: Mutex<()> = Mutex::new(());

fn lifecycle(ns: &Namespace) -> Outcome {
    script(
        ns,
        "client.py",
        "created\nrunning\npatched\nexec: ahoy\ndeleted\n",
    )
}

fn helm(ns: &Namespace) -> Outcome {
    let steps = "installed\ntried\nupgraded\nrolled back\nuninstalled\n";
    script(ns, "helm.py", steps)
}

/// Runs a script of this directory, which has to print `expected`.
fn script(ns: &Namespace, name: &str, expected: &str) -> Outcome {
    let python = {
        let _guard = INSTALLING.lock().map_err(|e| e.to_string())?;
        python_with_client()?
    };
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e");
    let out = Command::new(python)
        .arg(format!("{directory}/{name}"))
        .arg(ns.cluster.kubeconfig())
        .arg(&ns.name)
        .output()?;
    let output = text(&out);
    if !out.status.success() {
        return Err(output.into());
    }
    has(&output, expected)
}

/// A virtual environment next to the build's output, created once, with the version in `requirements.txt`.
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
