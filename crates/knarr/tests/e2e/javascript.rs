//! The JavaScript client (`@kubernetes/client-node` of npm): an informer, all forms of patches, apply, exec and errors.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, text};

pub const SCENARIOS: &[(&str, Scenario)] = &[(
    "the_javascript_client_informs_patches_applies_execs_and_deletes",
    lifecycle,
)];

fn lifecycle(ns: &Namespace) -> Outcome {
    let directory = directory_with_client()?;
    let out = Command::new("node")
        .arg(directory.join("client.mjs"))
        .arg(ns.cluster.kubeconfig())
        .arg(&ns.name)
        .output()?;
    let output = text(&out);
    if !out.status.success() {
        return Err(output.into());
    }
    has(
        &output,
        "running\npatched\napplied\nrejected\nexec: ahoy\ndeleted\n",
    )
}

/// A directory next to the build's output with the script and the packages of `package-lock.json`. These are
/// installed once for each lock; Node.js resolves modules next to the script, so the script is copied there, too.
fn directory_with_client() -> Result<PathBuf, Failed> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/javascript");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("javascript-client");
    std::fs::create_dir_all(&directory)?;
    std::fs::copy(source.join("client.mjs"), directory.join("client.mjs"))?;
    let lock = std::fs::read(source.join("package-lock.json"))?;
    let done = directory.join("done");
    if std::fs::read(&done).is_ok_and(|installed| installed == lock) {
        return Ok(directory);
    }
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(file), directory.join(file))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(&directory);
    let out = npm.output()?;
    if !out.status.success() {
        return Err(format!("{npm:?}:\n{}", text(&out)).into());
    }
    std::fs::write(done, lock)?;
    Ok(directory)
}
