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
    let folder = folder_with_client()?;
    let out = Command::new("node")
        .arg(folder.join("client.mjs"))
        .arg(ns.cluster.kubeconfig())
        .arg(&ns.name)
        .output()?;
    let said = text(&out);
    if !out.status.success() {
        return Err(said.into());
    }
    has(&said, "running\npatched\napplied\nrefused\nexec: ahoy\ndeleted\n")
}

/// A folder beside the build's output with the script and the packages of `package-lock.json`. These are
/// installed once for each lock; modules are looked for beside the script, so that stands there too.
fn folder_with_client() -> Result<PathBuf, Failed> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/javascript");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("javascript-client");
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(source.join("client.mjs"), folder.join("client.mjs"))?;
    let lock = std::fs::read(source.join("package-lock.json"))?;
    let done = folder.join("done");
    if std::fs::read(&done).is_ok_and(|installed| installed == lock) {
        return Ok(folder);
    }
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(file), folder.join(file))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(&folder);
    let out = npm.output()?;
    if !out.status.success() {
        return Err(format!("{npm:?}:\n{}", text(&out)).into());
    }
    std::fs::write(done, lock)?;
    Ok(folder)
}
