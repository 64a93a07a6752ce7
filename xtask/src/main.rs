//! Checks of what we say we do, run by `./dev test`: `cargo run -p xtask -- tidy`, and `-- deny` for what we build from.

mod deny;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Which crates of the workspace each crate may name among its dependencies (ARCHITECTURE.md).
/// Development dependencies are free.
const LAYERS: &[(&str, &[&str])] = &[
    ("knarr-api", &[]),
    ("knarr-store", &[]),
    ("knarr-client", &["knarr-api"]),
    ("knarr-scheduler", &["knarr-api"]),
    ("knarr-controllers", &["knarr-api"]),
    ("knarr-kubelet", &["knarr-api"]),
    ("knarr-network", &["knarr-api"]),
    ("knarr-nftables", &[]),
    (
        "knarr-node-network",
        &["knarr-api", "knarr-client", "knarr-network", "knarr-nftables"],
    ),
    ("knarr-apiserver", &["knarr-api", "knarr-store", "knarr-client"]),
    (
        "knarr-control",
        &[
            "knarr-api",
            "knarr-client",
            "knarr-scheduler",
            "knarr-controllers",
        ],
    ),
    (
        "knarr-fuzz",
        &[
            "knarr-api",
            "knarr-store",
            "knarr-apiserver",
            "knarr-scheduler",
            "knarr-controllers",
        ],
    ),
    ("knarr-node", &["knarr-api", "knarr-client", "knarr-kubelet"]),
    (
        "knarr",
        &[
            "knarr-api",
            "knarr-store",
            "knarr-client",
            "knarr-scheduler",
            "knarr-apiserver",
            "knarr-control",
            "knarr-node",
            "knarr-network",
            "knarr-node-network",
        ],
    ),
];

/// Deciding crates: no IO, no clock, no async runtime anywhere below them.
const PURE: &[&str] = &[
    "knarr-api",
    "knarr-scheduler",
    "knarr-controllers",
    "knarr-kubelet",
    "knarr-network",
];
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "tonic",
    "mio",
    "rustls",
    "nix",
    "rand",
    "reqwest",
    "kube",
    "async-std",
    "smol",
];

/// Whose sources ask the API as one of the components that `knarr_client::Component` names, none of which is a member of
/// `system:masters`.
const ACT_AS_COMPONENTS: &[&str] = &[
    "crates/apiserver/src",
    "crates/client/src",
    "crates/control/src",
    "crates/knarr/src",
    "crates/node/src",
    "crates/node-network/src",
];

/// Nothing but their own tests may depend on these.
const TOPS: &[&str] = &["knarr-sim", "knarr-bench", "xtask"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let task = match args.as_slice() {
        [task] if ["tidy", "deny"].contains(&task.as_str()) => task.as_str(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy|deny");
            return ExitCode::from(2);
        }
    };
    let metadata = match MetadataCommand::new().exec() {
        Ok(metadata) => metadata,
        Err(e) => {
            eprintln!("{task}: cargo metadata: {e}");
            return ExitCode::FAILURE;
        }
    };
    let root = metadata.workspace_root.as_std_path();
    let (faults, looked_at) = match task {
        "deny" => (
            deny::check(&metadata, &root.join("deny.toml")),
            format!("{} packages", metadata.packages.len()),
        ),
        _ => tidy(&metadata, root),
    };
    for fault in &faults {
        eprintln!("{task}: {fault}");
    }
    println!("{task}: {looked_at}, {} faults", faults.len());
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tidy(metadata: &Metadata, root: &Path) -> (Vec<String>, String) {
    let mut faults = layers(metadata);
    faults.extend(purity(metadata));
    faults.extend(single_versions(metadata));
    let files = rust_files(root);
    for file in &files {
        faults.extend(file_faults(root, file));
    }
    let looked_at = format!(
        "{} crates, {} files",
        metadata.workspace_packages().len(),
        files.len()
    );
    (faults, looked_at)
}

fn layers(metadata: &Metadata) -> Vec<String> {
    let mut faults = Vec::new();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let allowed = LAYERS.iter().find(|(n, _)| *n == name).map(|(_, a)| *a);
        if allowed.is_none() && !TOPS.contains(&name) {
            faults.push(format!(
                "{name}: a crate without a layer; put it into xtask's LAYERS and ARCHITECTURE.md"
            ));
        }
        for dependency in &package.dependencies {
            let ours = dependency.path.is_some() && dependency.kind == DependencyKind::Normal;
            if !ours {
                continue;
            }
            if TOPS.contains(&dependency.name.as_str()) && !TOPS.contains(&name) {
                faults.push(format!(
                    "{name} depends on {}, on which nothing may depend",
                    dependency.name
                ));
            } else if let Some(allowed) = allowed
                && !allowed.contains(&dependency.name.as_str())
            {
                faults.push(format!(
                    "{name} depends on {}, which is not below it",
                    dependency.name
                ));
            }
        }
    }
    faults
}

/// Follows the normal dependencies of pure crates, as resolved.
fn purity(metadata: &Metadata) -> Vec<String> {
    let mut faults = Vec::new();
    let Some(resolve) = &metadata.resolve else {
        return vec!["cargo metadata has no resolution".into()];
    };
    for pure in PURE {
        let mut seen = BTreeSet::new();
        let mut queue: Vec<_> = metadata
            .packages
            .iter()
            .filter(|p| p.name.as_str() == *pure)
            .map(|p| p.id.clone())
            .collect();
        while let Some(id) = queue.pop() {
            if !seen.insert(id.clone()) {
                continue;
            }
            let name = &metadata[&id].name;
            if IMPURE.contains(&name.as_str()) {
                faults.push(format!("{pure} is a deciding crate, but {name} is below it"));
            }
            let node = resolve.nodes.iter().find(|n| n.id == id);
            let normal = node
                .into_iter()
                .flat_map(|n| &n.deps)
                .filter(|d| d.dep_kinds.iter().any(|k| k.kind == DependencyKind::Normal));
            queue.extend(normal.map(|d| d.pkg.clone()));
        }
    }
    faults
}

/// Every direct dependency comes from `[workspace.dependencies]`, so there is one version of each.
fn single_versions(metadata: &Metadata) -> Vec<String> {
    let mut faults = Vec::new();
    let mut wanted: Vec<(String, String, String)> = Vec::new();
    for package in metadata.workspace_packages() {
        for dependency in &package.dependencies {
            wanted.push((
                dependency.name.clone(),
                dependency.req.to_string(),
                package.name.to_string(),
            ));
        }
    }
    wanted.sort();
    for pair in wanted.windows(2) {
        if let [(a, req_a, by_a), (b, req_b, by_b)] = pair
            && a == b
            && req_a != req_b
        {
            faults.push(format!(
                "{a} is asked for as {req_a} by {by_a} and as {req_b} by {by_b}"
            ));
        }
    }
    faults
}

fn rust_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("xtask")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn file_faults(root: &Path, file: &Path) -> Vec<String> {
    let shown = file.strip_prefix(root).unwrap_or(file).display().to_string();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) => return vec![format!("{shown}: {e}")],
    };
    let mut faults = Vec::new();
    if !text.lines().next().unwrap_or("").starts_with("//!") {
        faults.push(format!(
            "{shown}: the file does not begin with its module documentation (//!)"
        ));
    }
    let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or("");
    if ["utils", "util", "helpers", "common", "misc"].contains(&stem) {
        faults.push(format!("{shown}: name the file for what it is about"));
    }
    if ACT_AS_COMPONENTS.iter().any(|folder| shown.starts_with(folder)) {
        let production = text.split("#[cfg(test)]").next().unwrap_or("");
        for (number, line) in production.lines().enumerate() {
            if line.contains(".api_as(") {
                faults.push(format!(
                    "{shown}:{}: the API as any user is for tests; name a component (SPEC A4)",
                    number + 1
                ));
            }
        }
    }
    for (number, line) in text.lines().enumerate() {
        if let Some(id) = spec_number(line)
            && !spec_has(id)
        {
            faults.push(format!(
                "{shown}:{}: there is no {} in the specification",
                number + 1,
                id.to_uppercase()
            ));
        }
    }
    faults
}

/// The SPEC number that a test's name begins with: `fn l8_http_…` gives `l8`.
fn spec_number(line: &str) -> Option<&str> {
    let name = line
        .trim_start()
        .trim_start_matches("pub ")
        .trim_start_matches("async ")
        .strip_prefix("fn ")?;
    let (id, _) = name.split_once('_')?;
    let (letter, digits) = id.split_at_checked(1)?;
    let numbered =
        "altpdsb".contains(letter) && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    numbered.then_some(id)
}

/// The chapters of the specification and how many numbers each has.
fn spec_has(id: &str) -> bool {
    const CHAPTERS: &[(&str, u32)] = &[
        ("a", 6),
        ("l", 13),
        ("t", 9),
        ("p", 6),
        ("d", 5),
        ("s", 9),
        ("b", 8),
    ];
    let (letter, digits) = id.split_at(1);
    digits.parse().is_ok_and(|n: u32| {
        CHAPTERS
            .iter()
            .any(|(l, last)| *l == letter && (1..=*last).contains(&n))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_numbers_are_read_from_test_names() {
        assert_eq!(
            spec_number("    fn l8_http_probe_accepts_200_to_399() {"),
            Some("l8")
        );
        assert_eq!(
            spec_number("async fn t2_pre_stop_is_inside_the_grace() {"),
            Some("t2")
        );
        assert_eq!(spec_number("fn load_x() {"), None);
        assert!(spec_has("s9") && !spec_has("s10") && !spec_has("l0"));
    }
}
