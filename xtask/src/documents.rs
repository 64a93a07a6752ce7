//! Documents: every page of the book is in its summary, the file and heading of every relative link exist, and every path in a code
//! span exists in the tree.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// The book's directory, and its table of contents.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// A code span that begins with one of these names a path of the tree.
const TREE: &[&str] = &["crates/", "docs/", "examples/", "fuzz/", "packaging/", "xtask/"];

/// A document about earlier releases, whose paths need not exist any more.
const HISTORY: &str = "CHANGELOG.md";

/// The documents: those at the root and those of the book, by their paths below the root.
pub fn all(root: &Path) -> Vec<String> {
    let mut documents = Vec::new();
    for directory in ["", BOOK] {
        let Ok(entries) = std::fs::read_dir(root.join(directory)) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if Path::new(&name).extension().is_some_and(|e| e == "md") {
                documents.push(Path::new(directory).join(name).display().to_string());
            }
        }
    }
    documents.sort();
    documents
}

/// Violations of one document.
pub fn check(root: &Path, shown: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, line) in prose(text) {
        let location = format!("{shown}:{number}");
        for target in links(line) {
            if let Err(why) = link(root, shown, target) {
                violations.push(format!("{location}: link to {target}: {why}"));
            }
        }
        if shown == HISTORY {
            continue;
        }
        for path in code_spans(line).flat_map(tree_paths) {
            if !root.join(&path).exists() {
                violations.push(format!("{location}: `{path}` is not in the tree"));
            }
        }
    }
    violations
}

/// Pages of the book that are not in its table of contents.
pub fn check_summary(root: &Path, documents: &[String]) -> Vec<String> {
    let text = match std::fs::read_to_string(root.join(SUMMARY)) {
        Ok(text) => text,
        Err(e) => return vec![format!("{SUMMARY}: {e}")],
    };
    let listed: BTreeSet<&str> = text.lines().flat_map(links).collect();
    let pages = documents.iter().filter_map(|d| d.strip_prefix("docs/"));
    pages
        .filter(|page| *page != "SUMMARY.md" && !listed.contains(page))
        .map(|page| format!("{SUMMARY}: {page} is not in it"))
        .collect()
}

/// The lines outside code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut block = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        block ^= fence;
        (!block && !fence).then_some((number + 1, line))
    })
}

fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Checks that the file and the heading of a relative link exist. Pages of the book link to pages of the book only: it is published
/// without the tree.
fn link(root: &Path, from: &str, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        PathBuf::from(from)
    } else {
        normal(&Path::new(from).parent().unwrap_or(Path::new("")).join(path))
            .ok_or("it leads out of the tree")?
    };
    if from.starts_with("docs/") && !file.starts_with(BOOK) {
        return Err("a page of the book links to pages of the book and to URLs only".into());
    }
    if !root.join(&file).exists() {
        return Err("no such file".into());
    }
    if heading.is_empty() {
        return Ok(());
    }
    let text = std::fs::read_to_string(root.join(&file)).map_err(|e| e.to_string())?;
    let found = prose(&text).any(|(_, line)| line.starts_with('#') && slug(line) == heading);
    if found {
        Ok(())
    } else {
        Err(format!("{} has no heading #{heading}", file.display()))
    }
}

/// The path without `..`, or `None` if it leads out of its first directory.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The paths that a code span names, `{a,b}` written out. Spans with a placeholder (`<kind>`, `*`, `NAME`) name none.
fn tree_paths(span: &str) -> Vec<String> {
    let is_path = TREE.iter().any(|top| span.starts_with(top));
    if !is_path || span.contains(['<', '*', ' ', '…', '$']) {
        return Vec::new();
    }
    let path = span.split(':').next().unwrap_or(span);
    match path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        Some((before, (choices, after))) => choices
            .split(',')
            .map(|choice| format!("{before}{choice}{after}"))
            .collect(),
        None => vec![path.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempdir::Tree {
        let tree = tempdir::Tree::new();
        tree.write("README.md", "# Readme\n\n## Two words!\n");
        tree.write("docs/SUMMARY.md", "- [A](a.md)\n");
        tree.write("docs/a.md", "# A\n");
        tree.write("crates/api/src/lib.rs", "");
        tree
    }

    /// A directory of a test's own, removed with it.
    mod tempdir {
        use std::path::PathBuf;
        use std::sync::atomic::{AtomicU32, Ordering};

        pub struct Tree(pub PathBuf);

        impl Tree {
            pub fn new() -> Self {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let name = format!(
                    "xtask-{}-{}",
                    std::process::id(),
                    NEXT.fetch_add(1, Ordering::Relaxed)
                );
                let path = std::env::temp_dir().join(name);
                std::fs::create_dir_all(&path).unwrap();
                Self(path)
            }

            pub fn write(&self, path: &str, text: &str) {
                let path = self.0.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
        }

        impl Drop for Tree {
            fn drop(&mut self) {
                let _ = std::fs::remove_dir_all(&self.0);
            }
        }
    }

    #[test]
    fn a_link_to_an_absent_file_or_heading_is_a_violation() {
        let tree = tree();
        let text = "[a](docs/a.md) [b](docs/b.md) [c](#two-words) [d](README.md#three) [e](https://x/y)\n```\n[f](z.md)\n```\n";
        assert_eq!(
            check(&tree.0, "README.md", text),
            [
                "README.md:1: link to docs/b.md: no such file",
                "README.md:1: link to README.md#three: README.md has no heading #three",
            ]
        );
    }

    #[test]
    fn a_page_of_the_book_does_not_link_out_of_it() {
        let tree = tree();
        assert_eq!(check(&tree.0, "docs/a.md", "[r](../README.md)").len(), 1);
        assert_eq!(
            check(&tree.0, "docs/a.md", "[r](SUMMARY.md)"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_path_in_a_code_span_is_in_the_tree() {
        let tree = tree();
        let text =
            "`crates/api/src/{lib,none}.rs` `crates/api/src/lib.rs:12` `crates/<name>` `docs are` `crates/x`";
        assert_eq!(
            check(&tree.0, "README.md", text),
            [
                "README.md:1: `crates/api/src/none.rs` is not in the tree",
                "README.md:1: `crates/x` is not in the tree",
            ]
        );
    }

    #[test]
    fn a_page_that_the_summary_lacks_is_a_violation() {
        let tree = tree();
        tree.write("docs/b.md", "# B\n");
        assert_eq!(
            check_summary(&tree.0, &all(&tree.0)),
            ["docs/SUMMARY.md: b.md is not in it"]
        );
    }
}
