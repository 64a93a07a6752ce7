//! The mutants of `cargo mutants --list --json`: cargo-mutants alone decides what is a mutant.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// A position in a file; line and column count from 1, as in cargo-mutants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Span {
    pub start: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// One change of the source. Its id is its index in the list.
#[derive(Debug, Clone, Deserialize)]
pub struct Mutant {
    #[serde(skip)]
    pub id: u32,
    pub package: String,
    pub file: String,
    pub name: String,
    pub genre: Genre,
    pub replacement: String,
    pub span: Span,
}

#[cfg(test)]
impl Mutant {
    pub fn example(id: u32) -> Self {
        let start = Position { line: 1, column: 1 };
        Self {
            id,
            package: "knarr-example".to_owned(),
            file: "crates/example/src/lib.rs".to_owned(),
            name: format!("mutant {id}"),
            genre: Genre::FnValue,
            replacement: String::new(),
            span: Span { start },
        }
    }
}

/// Lists the mutants of the packages, in the order of their files, without those that `.cargo/mutants.toml` excludes.
///
/// # Errors
/// cargo-mutants is not installed, or fails.
pub fn list(tree: &Path, packages: &[String]) -> Result<Vec<Mutant>, String> {
    let mut command = Command::new("cargo");
    command.current_dir(tree).args(["mutants", "--list", "--json"]);
    for package in packages {
        command.args(["-p", package]);
    }
    let output = command
        .output()
        .map_err(|error| format!("cannot run cargo mutants: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo mutants --list: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let mut mutants: Vec<Mutant> = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("cargo mutants --list --json: expected the format of version 27.1: {error}")
    })?;
    for (id, mutant) in mutants.iter_mut().enumerate() {
        mutant.id = u32::try_from(id).map_err(|_| "more than 2^32 mutants")?;
    }
    Ok(mutants)
}
