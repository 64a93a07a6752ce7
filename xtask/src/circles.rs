//! Circles among the modules of a crate: modules that use each other, directly or through others, and so can only be read, tested and
//! changed together. `xtask/circles.toml` lists those that exist. They may lose modules and disappear; a new one, or one that grows,
//! is a violation. `cargo run -p xtask -- circles` lowers the list.
//!
//! A module is a file. It uses the modules that its paths (`crate::…`, `super::…`, `self::…`) lead to, in `use` declarations and
//! elsewhere; a re-export (`pub use self::target::Target`) leads to the module with the item. What a module and its parent use of each
//! other does not count: a directory is one subject, and its `mod.rs` is the front of it. What siblings use of each other counts, also
//! when they write `super::sibling`. Tests and comments do not count. Re-exports with `*`, and names that a macro expands to, are not
//! seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

/// Where the list is, below the root.
pub const LIST: &str = "xtask/circles.toml";

/// The first lines of the list.
const HEADING: &str = "\
# Circles among the modules of each crate (xtask/src/circles.rs). They may only become smaller and fewer:
# `cargo run -p xtask -- circles` lowers the list.
";

/// Re-exports of re-exports are followed this often.
const REEXPORTS_MAX: usize = 8;

/// A path, as its segments; a module's path begins at the crate's root, which is empty.
type Module = Vec<String>;

/// The modules of a circle, sorted.
type Circle = Vec<String>;

/// The circles of each crate that has any.
pub type Circles = BTreeMap<String, Vec<Circle>>;

/// The circles that may exist.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Allowed(Circles);

impl Allowed {
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|e| format!("{LIST}: {e}"))
    }

    /// Violations, and a note if the list allows more than there is.
    pub fn compare(&self, found: &Circles) -> (Vec<String>, Vec<String>) {
        let mut violations = Vec::new();
        for (krate, circles) in found {
            for circle in circles {
                let allowed = self.0.get(krate).into_iter().flatten();
                let new = allowed
                    .map(|allowed| circle.iter().filter(|m| !allowed.contains(m)).collect::<Vec<_>>())
                    .min_by_key(Vec::len)
                    .unwrap_or_else(|| circle.iter().collect());
                if !new.is_empty() {
                    violations.push(format!(
                        "{krate}: the modules {} use each other in a circle; found {new:?}, expected none that {LIST} does not have",
                        circle.join(", ")
                    ));
                }
            }
        }
        let count = |circles: &Circles| circles.values().flatten().flatten().count();
        let surplus = count(&self.0).saturating_sub(count(found));
        let notes = if violations.is_empty() && surplus > 0 {
            vec![format!(
                "{LIST} has {surplus} modules more than are in circles; lower it: cargo run -p xtask -- circles"
            )]
        } else {
            Vec::new()
        };
        (violations, notes)
    }

    /// The list of the circles that exist, if none of them is new.
    pub fn lowered(&self, found: &Circles) -> Result<String, Vec<String>> {
        match self.compare(found) {
            (violations, _) if !violations.is_empty() => Err(violations),
            _ => Ok(written(found)),
        }
    }
}

fn written(circles: &Circles) -> String {
    let mut text = HEADING.to_owned();
    for (krate, circles) in circles {
        let _ = writeln!(text, "\n{krate} = [");
        for circle in circles {
            let _ = writeln!(text, "    [");
            for module in circle {
                let _ = writeln!(text, "        {module:?},");
            }
            let _ = writeln!(text, "    ],");
        }
        let _ = writeln!(text, "]");
    }
    text
}

/// The files of one crate: the path of each below `src`, and its text.
pub fn find(files: &[(&str, String)]) -> Vec<Circle> {
    let modules = Modules::new(files);
    let uses = modules.uses();
    let reachable: BTreeMap<&Module, BTreeSet<&Module>> =
        uses.keys().map(|module| (module, reach(module, &uses))).collect();
    let mut circles: Vec<Circle> = Vec::new();
    let mut seen = BTreeSet::new();
    for (module, from_here) in &reachable {
        if seen.contains(module) || !from_here.contains(*module) {
            continue;
        }
        let circle = from_here
            .iter()
            .filter(|other| reachable[**other].contains(*module));
        let circle: Vec<&Module> = circle.copied().collect();
        seen.extend(circle.iter().copied());
        circles.push(circle.iter().map(|m| m.join("::")).collect());
    }
    circles
}

/// The modules that a module uses, directly or through others.
fn reach<'a>(module: &Module, uses: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut queue: Vec<&Module> = uses[module].iter().collect();
    while let Some(next) = queue.pop() {
        if reached.insert(next) {
            queue.extend(&uses[next]);
        }
    }
    reached
}

/// A crate's modules, with their code.
struct Modules {
    code: BTreeMap<Module, String>,
}

impl Modules {
    fn new(files: &[(&str, String)]) -> Self {
        let mut code = BTreeMap::new();
        let mut tests = Vec::new();
        for (path, text) in files {
            let Some(module) = module_of(path) else { continue };
            let (text, test_modules) = without_tests_and_comments(text);
            tests.extend(test_modules.into_iter().map(|name| joined(&module, &name)));
            code.insert(module, text);
        }
        code.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Modules { code }
    }

    /// What each module uses, without itself, its ancestors and its descendants.
    fn uses(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let reexports = self.reexports();
        let mut uses = BTreeMap::new();
        for (module, text) in &self.code {
            let mut used = BTreeSet::new();
            for begin in ["crate::", "super::", "self::"] {
                for (at, _) in text.match_indices(begin) {
                    let is_inside = text[..at].ends_with(|c: char| c == ':' || is_word(c));
                    if is_inside {
                        continue;
                    }
                    let paths = paths_of(&text[at..]).into_iter();
                    let paths = paths.filter_map(|(path, _)| self.absolute(module, path));
                    used.extend(paths.map(|path| self.owner(path, &reexports)));
                }
            }
            used.retain(|used: &Module| !used.starts_with(module) && !module.starts_with(used));
            uses.insert(module.clone(), used);
        }
        uses
    }

    /// Where the items are that a module re-exports: by the module and the name.
    fn reexports(&self) -> BTreeMap<(Module, String), Module> {
        let mut reexports = BTreeMap::new();
        for (module, text) in &self.code {
            for (at, _) in text.match_indices("use ") {
                let before = text[..at].trim_end().rsplit(char::is_whitespace).next();
                let is_public = |word: &str| word == "pub" || word.starts_with("pub(") && word.ends_with(')');
                if !before.is_some_and(is_public) {
                    continue;
                }
                for (path, alias) in paths_of(&text[at + "use ".len()..]) {
                    if let Some(path) = self.absolute(module, path)
                        && let Some(name) = alias.or_else(|| path.last().cloned())
                    {
                        reexports.insert((module.clone(), name), path);
                    }
                }
            }
        }
        reexports
    }

    /// The path from the crate's root; `None` for a path of another crate.
    fn absolute(&self, module: &Module, path: Vec<String>) -> Option<Module> {
        let first = path.first()?.as_str();
        let mut base = module.clone();
        let mut rest = path.iter().peekable();
        match first {
            "crate" => {
                base.clear();
                rest.next();
            }
            "self" => {
                rest.next();
            }
            "super" => {
                while rest.next_if(|segment| *segment == "super").is_some() {
                    base.pop()?;
                }
            }
            child if self.code.contains_key(&joined(module, child)) => {}
            _ => return None,
        }
        base.extend(rest.cloned());
        Some(base)
    }

    /// The module that has the item at the path.
    fn owner(&self, mut path: Module, reexports: &BTreeMap<(Module, String), Module>) -> Module {
        for _ in 0..REEXPORTS_MAX {
            let module = self.longest(&path);
            let Some(name) = path.get(module.len()).cloned() else {
                return module;
            };
            let Some(target) = reexports.get(&(module.clone(), name)) else {
                return module;
            };
            let item = target.iter().chain(&path[module.len() + 1..]);
            path = item.cloned().collect();
        }
        self.longest(&path)
    }

    /// The longest part of the path that is a module.
    fn longest(&self, path: &Module) -> Module {
        let is_module = |length: &usize| self.code.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module).unwrap_or(0);
        path[..length].to_vec()
    }
}

fn joined(module: &Module, name: &str) -> Module {
    let mut path = module.clone();
    path.push(name.to_owned());
    path
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The module of a file, from its path below `src`; `None` for a program of its own in `bin`.
fn module_of(path: &str) -> Option<Module> {
    let mut segments: Module = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if segments.first().is_some_and(|s| s == "bin") {
        return None;
    }
    if segments.last().is_some_and(|s| s == "mod")
        || matches!(segments.as_slice(), [s] if s == "lib" || s == "main")
    {
        segments.pop();
    }
    Some(segments)
}

/// The code without comments and test modules, and the names of the test modules in files of their own.
fn without_tests_and_comments(text: &str) -> (String, Vec<String>) {
    let mut code = String::new();
    let mut test_modules = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]"
            && let Some(next) = lines.next_if(|next| next.contains("mod "))
        {
            match next.strip_suffix(';') {
                Some(declared) => test_modules.extend(declared.split(' ').next_back().map(str::to_owned)),
                None => {
                    lines.by_ref().find(|line| *line == "}");
                }
            }
            continue;
        }
        code.push_str(line.split("//").next().unwrap_or(""));
        code.push('\n');
    }
    (code, test_modules)
}

/// The paths of a `use` tree, or of an expression, at the beginning of the text; each with its alias (`as`).
fn paths_of(text: &str) -> Vec<(Vec<String>, Option<String>)> {
    let mut paths = Vec::new();
    read_tree(text, Vec::new(), &mut paths);
    paths
}

/// Reads one tree after the segments before it; returns the text behind it.
fn read_tree<'a>(
    text: &'a str,
    mut path: Vec<String>,
    paths: &mut Vec<(Vec<String>, Option<String>)>,
) -> &'a str {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if rest.is_empty() || rest.starts_with('}') {
                    return rest.strip_prefix('}').unwrap_or(rest);
                }
                let after = read_tree(rest, path.clone(), paths);
                if after.len() == rest.len() {
                    return after;
                }
                rest = after;
            }
        }
        let word = rest.split(|c| !is_word(c)).next().unwrap_or("");
        if word.is_empty() {
            paths.push((path, None));
            return rest;
        }
        path.push(word.to_owned());
        rest = &rest[word.len()..];
        if let Some(more) = rest.strip_prefix("::") {
            rest = more;
            continue;
        }
        if let Some(renamed) = rest.trim_start().strip_prefix("as ") {
            let alias = renamed.split(|c| !is_word(c)).next().unwrap_or("");
            paths.push((path, Some(alias.to_owned())));
            return &renamed[alias.len()..];
        }
        paths.push((path, None));
        return rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Circle> {
        let files: Vec<(&str, String)> = files.iter().map(|(p, t)| (*p, (*t).to_owned())).collect();
        find(&files)
    }

    #[test]
    fn modules_that_use_each_other_through_others_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;"),
            ("a.rs", "use crate::b::{self, B};"),
            ("b/mod.rs", "fn f() { crate::c::d() }"),
            ("c.rs", "use super::{a as other, e::E};"),
            ("e.rs", ""),
            ("f.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, [["a", "b", "c"]]);
    }

    #[test]
    fn a_parent_and_its_children_are_no_circle_but_siblings_are() {
        let parent = ("p/mod.rs", "mod x; mod y; use self::x::X; pub use self::y::Y;");
        assert_eq!(
            circles(&[
                parent,
                ("p/x.rs", "use super::P;"),
                ("p/y.rs", "use super::super::p::P;")
            ]),
            [[""; 0]; 0]
        );
        // `super::Y` is a re-export of the sibling's.
        assert_eq!(
            circles(&[parent, ("p/x.rs", "use super::Y;"), ("p/y.rs", "use super::x;")]),
            [["p::x", "p::y"]]
        );
    }

    #[test]
    fn a_path_through_a_re_export_leads_to_the_module_with_the_item() {
        let files = [
            (
                "p/mod.rs",
                "pub(crate) use self::target::{Inner as Target};\nuse crate::q::Q;",
            ),
            ("p/target.rs", ""),
            ("q.rs", "use crate::p::Target;"),
        ];
        assert_eq!(circles(&files), [[""; 0]; 0]);
        let mut own = files;
        own[2].1 = "use crate::p::Own;";
        assert_eq!(circles(&own), [["p", "q"]]);
    }

    #[test]
    fn tests_and_comments_do_not_count() {
        let found = circles(&[
            (
                "a.rs",
                "use crate::b;\n// crate::c\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n",
            ),
            ("b.rs", "/// See [`crate::a`].\n#[cfg(test)]\nmod tests;"),
            ("b/tests.rs", "use crate::a;"),
            ("c.rs", "use crate::a;"),
        ]);
        assert_eq!(found, [[""; 0]; 0]);
    }

    #[test]
    fn a_circle_may_only_lose_modules() {
        let allowed = Allowed::parse("n = [[\"a\", \"b\", \"c\"], [\"d\", \"e\"]]").unwrap();
        let of = |circles: &[&[&str]]| -> Circles {
            let circle = |c: &&[&str]| c.iter().map(|m| (*m).to_owned()).collect();
            BTreeMap::from([("n".to_owned(), circles.iter().map(circle).collect())])
        };
        let smaller = of(&[&["a", "b"]]);
        let (violations, notes) = allowed.compare(&smaller);
        assert!(violations.is_empty());
        assert!(notes[0].contains("3 modules more"), "{notes:?}");
        let lowered = Allowed::parse(&allowed.lowered(&smaller).unwrap()).unwrap();
        assert_eq!(lowered.0, smaller);
        for larger in [of(&[&["a", "b", "f"]]), of(&[&["a", "d"]]), of(&[&["f", "g"]])] {
            let (violations, _) = allowed.compare(&larger);
            assert_eq!(violations.len(), 1, "{larger:?}");
            assert_eq!(allowed.lowered(&larger), Err(violations));
        }
    }
}
