//! Checks of the tree, run by `./dev check` and `./dev test`: `cargo run -p xtask -- tidy`, and `-- deny` for dependencies and their
//! licenses. `-- words` lowers the counts in `xtask/words.toml` to the present ones, and `-- circles` the circles in `xtask/circles.toml`.
//! `-- kinds DIR` writes the descriptors of Kubernetes' types from its sources.

mod circles;
mod deny;
mod documents;
mod kinds;
mod spec;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// The crates of the workspace that each crate may depend on (ARCHITECTURE.md). Development dependencies are not restricted.
const LAYERS: &[(&str, &[&str])] = &[
    ("knarr-apimachinery", &[]),
    ("knarr-cel", &["knarr-apimachinery"]),
    ("knarr-api", &["knarr-apimachinery", "knarr-cel"]),
    (
        "knarr-admission",
        &["knarr-apimachinery", "knarr-cel", "knarr-api"],
    ),
    (
        "knarr-strategy",
        &["knarr-apimachinery", "knarr-cel", "knarr-api", "knarr-admission"],
    ),
    ("knarr-openapi", &["knarr-apimachinery", "knarr-api"]),
    ("knarr-store", &[]),
    // strategy: with the feature `fake`.
    (
        "knarr-client",
        &["knarr-apimachinery", "knarr-api", "knarr-strategy"],
    ),
    (
        "knarr-scheduler",
        &["knarr-apimachinery", "knarr-cel", "knarr-api"],
    ),
    (
        "knarr-rebalance",
        &["knarr-apimachinery", "knarr-api", "knarr-scheduler"],
    ),
    (
        "knarr-controllers",
        &["knarr-apimachinery", "knarr-cel", "knarr-api", "knarr-admission"],
    ),
    ("knarr-kubelet", &["knarr-apimachinery", "knarr-api"]),
    ("knarr-network", &["knarr-apimachinery", "knarr-api"]),
    ("knarr-nftables", &[]),
    ("knarr-cni", &[]),
    ("knarr-shim", &["knarr-cni"]),
    (
        "knarr-node-network",
        &[
            "knarr-apimachinery",
            "knarr-api",
            "knarr-client",
            "knarr-network",
            "knarr-nftables",
            "knarr-cni",
        ],
    ),
    (
        "knarr-apiserver",
        &[
            "knarr-apimachinery",
            "knarr-cel",
            "knarr-api",
            "knarr-admission",
            "knarr-strategy",
            "knarr-openapi",
            "knarr-store",
            "knarr-client",
        ],
    ),
    (
        "knarr-control",
        &[
            "knarr-apimachinery",
            "knarr-api",
            "knarr-client",
            "knarr-scheduler",
            "knarr-rebalance",
            "knarr-controllers",
        ],
    ),
    (
        "knarr-fuzz",
        &[
            "knarr-apimachinery",
            "knarr-cel",
            "knarr-api",
            "knarr-strategy",
            "knarr-store",
            "knarr-apiserver",
            "knarr-scheduler",
            "knarr-controllers",
        ],
    ),
    (
        "knarr-node",
        &[
            "knarr-apimachinery",
            "knarr-api",
            "knarr-client",
            "knarr-kubelet",
            "knarr-cni",
        ],
    ),
    (
        "knarr",
        &[
            "knarr-apimachinery",
            "knarr-api",
            "knarr-strategy",
            "knarr-store",
            "knarr-client",
            "knarr-scheduler",
            "knarr-rebalance",
            "knarr-apiserver",
            "knarr-control",
            "knarr-node",
            "knarr-network",
            "knarr-node-network",
            "knarr-cni",
            "knarr-shim",
        ],
    ),
];

/// Deciding crates: no IO, clock or async runtime among their dependencies, direct or indirect.
const PURE: &[&str] = &[
    "knarr-apimachinery",
    "knarr-cel",
    "knarr-api",
    "knarr-admission",
    "knarr-strategy",
    "knarr-openapi",
    "knarr-scheduler",
    "knarr-rebalance",
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

/// Sources that call the API as one of the components of `knarr_client::Component`, none of which is a member of `system:masters`.
const ACT_AS_COMPONENTS: &[&str] = &[
    "crates/apiserver/src",
    "crates/client/src",
    "crates/control/src",
    "crates/knarr/src",
    "crates/node/src",
    "crates/node-network/src",
];

/// Crates that no other crate may depend on.
const TOPS: &[&str] = &["knarr-sim", "knarr-bench", "knarr-nemesis", "xtask"];

/// The result of a task.
#[derive(Default)]
struct Report {
    /// Each fails the task.
    violations: Vec<String>,
    /// Printed; they do not fail the task.
    notes: Vec<String>,
    /// What was checked and how much, for the last line.
    checked: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (task, source) = match args.as_slice() {
        [task] if ["tidy", "deny", "words", "circles"].contains(&task.as_str()) => (task.as_str(), ""),
        [task, source] if task == "kinds" => ("kinds", source.as_str()),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy|deny|words|circles|kinds DIR");
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
    let report = match task {
        "deny" => Report {
            violations: deny::check(&metadata, &root.join("deny.toml")),
            checked: format!("{} packages", metadata.packages.len()),
            ..Report::default()
        },
        "words" => lower_words(root),
        "kinds" => kinds::write(root, Path::new(source)),
        "circles" => lower_circles(root),
        _ => tidy(&metadata, root),
    };
    for violation in &report.violations {
        eprintln!("{task}: {violation}");
    }
    for note in &report.notes {
        println!("{task}: note: {note}");
    }
    println!(
        "{task}: {}, {} violations",
        report.checked,
        report.violations.len()
    );
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tidy(metadata: &Metadata, root: &Path) -> Report {
    let mut violations = layers(metadata);
    violations.extend(purity(metadata));
    violations.extend(single_versions(metadata));
    let (mut spec, spec_violations) = spec::read(root);
    violations.extend(spec_violations);
    let files = rust_files(root);
    for file in &files {
        match std::fs::read_to_string(root.join(file)) {
            Ok(text) => {
                violations.extend(source_violations(file, &text));
                violations.extend(spec.check_source(file, &text));
            }
            Err(e) => violations.push(format!("{file}: {e}")),
        }
    }
    let documents = documents::all(root);
    for document in &documents {
        match std::fs::read_to_string(root.join(document)) {
            Ok(text) => {
                violations.extend(documents::check(root, document, &text));
                violations.extend(spec.check_document(document, &text));
            }
            Err(e) => violations.push(format!("{document}: {e}")),
        }
    }
    violations.extend(documents::check_summary(root, &documents));
    let mut notes = Vec::new();
    match count_words(root) {
        Ok((list, counts)) => {
            let (more, fewer) = list.compare(&counts);
            violations.extend(more);
            notes.extend(fewer);
        }
        Err(e) => violations.push(e),
    }
    match find_circles(root) {
        Ok((allowed, found)) => {
            let (more, fewer) = allowed.compare(&found);
            violations.extend(more);
            notes.extend(fewer);
        }
        Err(e) => violations.push(e),
    }
    let untested = spec.untested();
    if !untested.is_empty() {
        notes.push(format!(
            "no test carries the number of {} ({})",
            untested.join(", "),
            spec::PAGE
        ));
    }
    Report {
        violations,
        notes,
        checked: format!(
            "{} crates, {} files, {} documents",
            metadata.workspace_packages().len(),
            files.len(),
            documents.len()
        ),
    }
}

/// The list of words, and how often they are in each crate and in the documents. Files that explain the words and the changelog are
/// not counted.
fn count_words(root: &Path) -> Result<(words::Words, words::Counts), String> {
    const NOT_COUNTED: &[&str] = &[
        "CHANGELOG.md",
        "docs/glossary.md",
        "docs/style.md",
        "xtask/src/words.rs",
    ];
    let list = words::Words::read(root)?;
    let mut counts = words::Counts::new();
    for file in rust_files(root).into_iter().chain(documents::all(root)) {
        if NOT_COUNTED.contains(&file.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file)).map_err(|e| format!("{file}: {e}"))?;
        let mut parts = file.split('/');
        let krate = match (parts.next(), parts.next()) {
            (Some("crates"), Some(name)) => name,
            (Some("xtask"), _) => "xtask",
            _ => words::DOCUMENTS,
        };
        list.count(krate, &text, &mut counts);
    }
    Ok((list, counts))
}

fn lower_words(root: &Path) -> Report {
    let lowered = count_words(root).and_then(|(list, counts)| {
        let text = list.lowered(&counts);
        std::fs::write(root.join(words::LIST), text).map_err(|e| format!("{}: {e}", words::LIST))
    });
    Report {
        violations: lowered.err().into_iter().collect(),
        checked: words::LIST.to_owned(),
        ..Report::default()
    }
}

/// The list of circles among modules, and those that there are.
fn find_circles(root: &Path) -> Result<(circles::Allowed, circles::Circles), String> {
    let allowed = circles::Allowed::read(root)?;
    let files = rust_files(root);
    let mut crates: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    for file in &files {
        let path = file
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"));
        if let Some((krate, path)) = path {
            let text = std::fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
            crates.entry(krate).or_default().push((path, text));
        }
    }
    let found = crates
        .iter()
        .map(|(krate, files)| ((*krate).to_owned(), circles::find(files)))
        .filter(|(_, circles)| !circles.is_empty())
        .collect();
    Ok((allowed, found))
}

fn lower_circles(root: &Path) -> Report {
    let (violations, lowered) = match find_circles(root).map(|(allowed, found)| allowed.lowered(&found)) {
        Ok(Ok(text)) => (Vec::new(), text),
        Ok(Err(violations)) => (violations, String::new()),
        Err(e) => (vec![e], String::new()),
    };
    let written = match violations.is_empty() {
        true => {
            std::fs::write(root.join(circles::LIST), lowered).map_err(|e| format!("{}: {e}", circles::LIST))
        }
        false => Ok(()),
    };
    Report {
        violations: violations.into_iter().chain(written.err()).collect(),
        checked: circles::LIST.to_owned(),
        ..Report::default()
    }
}

fn layers(metadata: &Metadata) -> Vec<String> {
    let mut violations = Vec::new();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let allowed = LAYERS.iter().find(|(n, _)| *n == name).map(|(_, a)| *a);
        if allowed.is_none() && !TOPS.contains(&name) {
            violations.push(format!(
                "{name}: the crate has no layer; add it to LAYERS in xtask/src/main.rs and to ARCHITECTURE.md"
            ));
        }
        for dependency in &package.dependencies {
            let ours = dependency.path.is_some() && dependency.kind == DependencyKind::Normal;
            if !ours {
                continue;
            }
            if TOPS.contains(&dependency.name.as_str()) && !TOPS.contains(&name) {
                violations.push(format!(
                    "{name} depends on {}, on which nothing may depend",
                    dependency.name
                ));
            } else if let Some(allowed) = allowed
                && !allowed.contains(&dependency.name.as_str())
            {
                violations.push(format!(
                    "{name} depends on {}, which is not below it",
                    dependency.name
                ));
            }
        }
    }
    violations
}

/// Follows the normal dependencies of pure crates, as resolved.
fn purity(metadata: &Metadata) -> Vec<String> {
    let mut violations = Vec::new();
    let Some(resolve) = &metadata.resolve else {
        return vec!["cargo metadata has no dependency graph (resolve)".into()];
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
                violations.push(format!("{pure} is a deciding crate, but depends on {name}"));
            }
            let node = resolve.nodes.iter().find(|n| n.id == id);
            let normal = node
                .into_iter()
                .flat_map(|n| &n.deps)
                .filter(|d| d.dep_kinds.iter().any(|k| k.kind == DependencyKind::Normal));
            queue.extend(normal.map(|d| d.pkg.clone()));
        }
    }
    violations
}

/// Every direct dependency is declared in `[workspace.dependencies]`, so all crates require the same version.
fn single_versions(metadata: &Metadata) -> Vec<String> {
    let mut violations = Vec::new();
    let mut requirements: Vec<(String, String, String)> = Vec::new();
    for package in metadata.workspace_packages() {
        for dependency in &package.dependencies {
            requirements.push((
                dependency.name.clone(),
                dependency.req.to_string(),
                package.name.to_string(),
            ));
        }
    }
    requirements.sort();
    for pair in requirements.windows(2) {
        if let [(a, req_a, by_a), (b, req_b, by_b)] = pair
            && a == b
            && req_a != req_b
        {
            violations.push(format!("{a}: {by_a} requires {req_a}, {by_b} requires {req_b}"));
        }
    }
    violations
}

/// The Rust files of the workspace, by their paths below the root.
fn rust_files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut directories = vec![root.join("crates"), root.join("xtask")];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path.strip_prefix(root).unwrap_or(&path).display().to_string());
            }
        }
    }
    files.sort();
    files
}

fn source_violations(shown: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    if !text.lines().next().unwrap_or("").starts_with("//!") {
        violations.push(format!(
            "{shown}: the file does not begin with its module documentation (//!)"
        ));
    }
    let stem = Path::new(shown)
        .file_stem()
        .and_then(|s| s.to_str())
        .unwrap_or("");
    if ["utils", "util", "helpers", "common", "misc"].contains(&stem) {
        violations.push(format!("{shown}: name the file after its subject"));
    }
    if ACT_AS_COMPONENTS
        .iter()
        .any(|directory| shown.starts_with(directory))
    {
        let production = text.split("#[cfg(test)]").next().unwrap_or("");
        for (number, line) in production.lines().enumerate() {
            if line.contains(".api_as(") {
                violations.push(format!(
                    "{shown}:{}: `api_as` is for tests; act as a component (SPEC A4)",
                    number + 1
                ));
            }
        }
    }
    violations
}
