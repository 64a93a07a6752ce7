//! Builds a copy of the tree with all mutants behind switches, leaving out the mutants that do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::child::Child;
use crate::listing::Mutant;
use crate::schemata;
use crate::sources::{Sources, write_changed};

/// How often the build is repeated without the mutants that did not compile. rustc reports type errors before borrow errors.
const ATTEMPTS: usize = 12;

/// The result of the build: the mutants in it, those that rustc rejects, and the test programs.
pub struct Built {
    pub placed: BTreeSet<u32>,
    pub unviable: BTreeSet<u32>,
    pub tests: Vec<TestProgram>,
}

/// A test program, and the working directory of its tests.
#[derive(Debug, Clone)]
pub struct TestProgram {
    pub package: String,
    pub path: PathBuf,
    pub directory: PathBuf,
}

pub struct Builder<'a> {
    pub sources: &'a Sources,
    pub copy: PathBuf,
    /// Cargo's target directory: not that of the tree, which it would lock.
    pub target: PathBuf,
    pub mutants: &'a [Mutant],
    /// Mutants that did not compile in an earlier run.
    pub unviable: BTreeSet<u32>,
    pub packages: &'a [String],
    pub integration: bool,
}

impl Builder<'_> {
    /// # Errors
    /// The tree cannot be copied, or does not compile even without mutants.
    pub fn build(&self) -> Result<Built, String> {
        let changed = self.mutants.iter().map(|mutant| mutant.file.as_str()).collect();
        self.sources.copy(&self.copy, &changed)?;
        let mut unviable = self.unviable.clone();
        for _ in 0..ATTEMPTS {
            let placed = self.write(&unviable)?;
            let (errors, tests) = self.compile()?;
            if errors.is_empty() {
                return Ok(Built {
                    placed,
                    unviable,
                    tests,
                });
            }
            let rejected = self.rejected(&errors)?;
            eprintln!(
                "{} errors, {} mutants do not compile",
                errors.len(),
                rejected.len()
            );
            if rejected.is_empty() {
                return Err(errors.iter().map(|e| e.text.as_str()).collect());
            }
            unviable.extend(rejected);
        }
        Err(format!("still not compiling after {ATTEMPTS} attempts"))
    }

    /// Writes all files with mutants, without the unviable ones.
    fn write(&self, unviable: &BTreeSet<u32>) -> Result<BTreeSet<u32>, String> {
        let mut files: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
        for package in self.packages {
            let root = self.mutants.iter().find(|mutant| &mutant.package == package);
            let root = root.and_then(|mutant| mutant.file.split_once("/src/"));
            if let Some((directory, _)) = root {
                // The switch is defined in the crate's root, whether or not the root has mutants.
                let root = format!("{directory}/src/lib.rs");
                let text = self.sources.text(&root)?;
                let mutants: Vec<&Mutant> = self
                    .mutants
                    .iter()
                    .filter(|m| m.file == root && !unviable.contains(&m.id))
                    .collect();
                let written = schemata::write(text, &mutants).map_err(|error| format!("{root}: {error}"))?;
                let text = format!(
                    "#![allow(warnings, clippy::all, arithmetic_overflow, unconditional_panic)]\n{}{}",
                    written.text,
                    schemata::SWITCH
                );
                write_changed(&self.copy.join(&root), text.as_bytes())?;
            }
        }
        let mut placed = BTreeSet::new();
        for mutant in self.mutants {
            let of_file = files.entry(&mutant.file).or_default();
            if !unviable.contains(&mutant.id) {
                of_file.push(mutant);
            }
        }
        for (file, mutants) in files {
            let text = self.sources.text(file)?;
            let written = schemata::write(text, &mutants).map_err(|error| format!("{file}: {error}"))?;
            placed.extend(written.placed);
            if !file.ends_with("/src/lib.rs") {
                write_changed(&self.copy.join(file), written.text.as_bytes())?;
            }
        }
        Ok(placed)
    }

    fn compile(&self) -> Result<(Vec<CompileError>, Vec<TestProgram>), String> {
        let cargo = std::env::var("MUTANTS_CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut command = Command::new(cargo);
        command
            .current_dir(&self.copy)
            .args(["test", "--locked", "--no-run", "--message-format=json"]);
        command.env("CARGO_TARGET_DIR", &self.target);
        command.arg("--lib");
        if self.integration {
            command.args(["--test", "*"]);
        }
        for package in self.packages {
            command.args(["-p", package]);
        }
        let (status, output) = Child::spawn(&mut command)?.output()?;
        let (mut errors, mut tests) = (Vec::new(), Vec::new());
        for line in output.lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
                errors.extend(CompileError::read(&message["message"]));
            }
            let executable = message["executable"]
                .as_str()
                .filter(|_| message["profile"]["test"] == true);
            if let (Some(path), Some(manifest)) = (executable, message["manifest_path"].as_str()) {
                let directory = Path::new(manifest).parent().unwrap_or(Path::new("/")).to_owned();
                let package = message["package_id"].as_str().unwrap_or_default();
                let package = package
                    .rsplit(['/', '#'])
                    .find(|part| part.contains(|c: char| c.is_alphabetic()));
                let directory_name = directory
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                let package = self.packages.iter().find(|name| {
                    Some(name.as_str()) == package
                        || directory_name
                            .as_ref()
                            .is_some_and(|f| **name == format!("knarr-{f}"))
                });
                let Some(package) = package.cloned() else { continue };
                tests.push(TestProgram {
                    package,
                    path: path.into(),
                    directory,
                });
            }
        }
        if errors.is_empty() && !status.success() {
            return Err("cargo test --no-run failed without a compiler error".to_owned());
        }
        Ok((errors, tests))
    }

    /// The mutants that cause the errors: for each error, those of the innermost switch around it.
    fn rejected(&self, errors: &[CompileError]) -> Result<BTreeSet<u32>, String> {
        let mut rejected = BTreeSet::new();
        let mut files: BTreeMap<&str, Vec<&CompileError>> = BTreeMap::new();
        for error in errors {
            files.entry(&error.file).or_default().push(error);
        }
        for (file, errors) in files {
            let path = self.copy.join(file);
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let parsed = syn::parse_file(&text).map_err(|error| format!("{file}: {error}"))?;
            for error in errors {
                let mut finder = Finder {
                    line: error.line,
                    column: error.column,
                    found: Vec::new(),
                };
                finder.visit_file(&parsed);
                if finder.found.is_empty() {
                    eprintln!("no switch at {}", error.text);
                }
                rejected.extend(finder.found);
            }
        }
        Ok(rejected)
    }
}

struct CompileError {
    file: String,
    line: usize,
    column: usize,
    text: String,
}

impl CompileError {
    fn read(message: &Value) -> Option<Self> {
        let spans = message["spans"].as_array()?;
        let span = spans.iter().find(|span| span["is_primary"] == true)?;
        Some(Self {
            file: span["file_name"].as_str()?.to_owned(),
            line: usize::try_from(span["line_start"].as_u64()?).ok()?,
            column: usize::try_from(span["column_start"].as_u64()?).ok()?,
            text: message["rendered"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// Finds the smallest expression that contains an error's position and a switch, and the outermost switches in it.
struct Finder {
    line: usize,
    column: usize,
    found: Vec<u32>,
}

impl Finder {
    fn has(&self, spanned: &impl Spanned) -> bool {
        let (start, end) = (spanned.span().start(), spanned.span().end());
        let at = (self.line, self.column - 1);
        (start.line, start.column) <= at && at <= (end.line, end.column)
    }
}

/// The switches of an expression, each with its depth.
#[derive(Default)]
struct Switches {
    depth: usize,
    found: Vec<(usize, u32)>,
}

impl Switches {
    fn outermost(&self) -> Vec<u32> {
        let least = self.found.iter().map(|(depth, _)| *depth).min();
        self.found
            .iter()
            .filter(|(depth, _)| Some(*depth) == least)
            .map(|(_, id)| *id)
            .collect()
    }
}

impl<'ast> Visit<'ast> for Switches {
    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let (syn::Expr::Path(path), Some(syn::Expr::Lit(lit))) = (&*call.func, call.args.first())
            && path
                .path
                .segments
                .iter()
                .any(|segment| segment.ident == "mutant_switch")
            && let syn::Lit::Int(id) = &lit.lit
            && let Ok(id) = id.base10_parse()
        {
            self.found.push((self.depth, id));
        }
        visit::visit_expr_call(self, call);
    }
    fn visit_expr(&mut self, expr: &'ast syn::Expr) {
        self.depth += 1;
        visit::visit_expr(self, expr);
        self.depth -= 1;
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_expr(&mut self, expr: &'ast syn::Expr) {
        if self.has(expr) {
            visit::visit_expr(self, expr);
            if self.found.is_empty() {
                let mut switches = Switches::default();
                switches.visit_expr(expr);
                self.found = switches.outermost();
            }
        }
    }
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if self.has(arm) {
            visit::visit_arm(self, arm);
            if self.found.is_empty()
                && let Some((_, guard)) = &arm.guard
            {
                let mut switches = Switches::default();
                switches.visit_expr(guard);
                self.found = switches.outermost();
            }
        }
    }
}
