//! The numbered behaviours of `docs/spec.md`, and their citations: names of tests, files of the simulation's rules, comments.
//!
//! A citation of a number that is not on the page is a violation. A number in the name of no test and no rule is a note.

use std::collections::BTreeSet;
use std::path::Path;

/// Where the specification is, below the root.
pub const PAGE: &str = "docs/spec.md";

/// The simulation's rules, one a file, each named after its number: `t3_grace.rs`.
const RULES: &str = "crates/sim/src/rules";

/// The numbers of the specification, as `L8`, and those in the names of tests and rules.
#[derive(Debug, Default)]
pub struct Spec {
    numbers: BTreeSet<String>,
    chapters: BTreeSet<char>,
    tested: BTreeSet<String>,
}

impl Spec {
    /// Reads the page. Chapters are `## L. Title`, behaviours `- **L8 Title.** text`, numbered from 1 without a gap.
    pub fn parse(page: &str) -> (Self, Vec<String>) {
        let mut spec = Self::default();
        let mut violations = Vec::new();
        let mut chapter = None;
        let mut last = 0;
        for (number, line) in page.lines().enumerate() {
            let location = format!("{PAGE}:{}", number + 1);
            if let Some(title) = line.strip_prefix("## ") {
                last = 0;
                chapter = title.split_once(". ").and_then(|(letter, _)| single_char(letter));
                match chapter {
                    Some(letter) if spec.chapters.insert(letter) => {}
                    Some(letter) => violations.push(format!("{location}: chapter {letter} is a duplicate")),
                    None => violations.push(format!(
                        "{location}: expected a chapter such as `## L. Title`, found {line:?}"
                    )),
                }
            } else if let Some(item) = line.strip_prefix("- **") {
                let id = item.split(' ').next().unwrap_or_default();
                let expected = format!("{}{}", chapter.unwrap_or('?'), last + 1);
                if id == expected {
                    last += 1;
                    spec.numbers.insert(expected);
                } else {
                    violations.push(format!("{location}: expected {expected}, found {id:?}"));
                }
            }
        }
        if spec.numbers.is_empty() {
            violations.push(format!(
                "{PAGE}: expected behaviours such as `- **L1 Title.** text`, found none"
            ));
        }
        (spec, violations)
    }

    /// The numbers that a Rust file cites and that are not on the page. Records the numbers in the names of its tests.
    pub fn check_source(&mut self, shown: &str, text: &str) -> Vec<String> {
        let mut violations = Vec::new();
        if let Some(file) = shown.strip_prefix(RULES).and_then(|f| f.strip_prefix('/'))
            && let Some(id) = self.leading_number(file)
        {
            self.cite(&id, shown, &mut violations);
            self.tested.insert(id);
        }
        for (number, line) in text.lines().enumerate() {
            let location = format!("{shown}:{}", number + 1);
            if let Some(id) = function_name(line).and_then(|name| self.leading_number(name)) {
                self.cite(&id, &location, &mut violations);
                self.tested.insert(id);
            }
            for id in comment(line).map(|c| self.cited(c, true)).unwrap_or_default() {
                self.cite(&id, &location, &mut violations);
            }
        }
        violations
    }

    /// The numbers that a document cites and that are not on the page. Only numbers after the word SPEC count: it may have other codes.
    pub fn check_document(&self, shown: &str, text: &str) -> Vec<String> {
        let mut violations = Vec::new();
        for (number, line) in text.lines().enumerate() {
            for id in self.cited(line, false) {
                self.cite(&id, &format!("{shown}:{}", number + 1), &mut violations);
            }
        }
        violations
    }

    /// Numbers in the name of no test and no rule of the simulation.
    pub fn untested(&self) -> Vec<&str> {
        self.numbers
            .difference(&self.tested)
            .map(String::as_str)
            .collect()
    }

    fn cite(&self, id: &str, location: &str, violations: &mut Vec<String>) {
        if !self.numbers.contains(id) {
            violations.push(format!("{location}: cites {id}, which is not in {PAGE}"));
        }
    }

    /// The number that the name of a test or a rule begins with: `l8_http_…` gives `L8`.
    fn leading_number(&self, name: &str) -> Option<String> {
        let (id, _) = name.split_once('_')?;
        let lower = id.chars().next()?.is_ascii_lowercase();
        lower
            .then(|| id.to_ascii_uppercase())
            .filter(|id| self.is_number(id))
    }

    /// Whether this is written as a number of the specification, on the page or not: a chapter's letter and one or two digits.
    fn is_number(&self, id: &str) -> bool {
        let mut chars = id.chars();
        let digits = id.len().saturating_sub(1);
        chars.next().is_some_and(|letter| self.chapters.contains(&letter))
            && (1..=2).contains(&digits)
            && chars.all(|c| c.is_ascii_digit())
    }

    /// The numbers that a text cites: those behind the word SPEC (`SPEC S1, S7`), where `bare` also those without it (`(T5)`).
    fn cited(&self, text: &str, bare: bool) -> Vec<String> {
        let mut cited = Vec::new();
        let mut after_spec = false;
        for word in text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|w| !w.is_empty())
        {
            let number = self.is_number(word);
            // Behind SPEC a letter that has no chapter is a citation all the same.
            if number && (bare || after_spec) || after_spec && is_code(word) {
                cited.push(word.to_owned());
            }
            after_spec = word == "SPEC" || after_spec && (number || word == "and");
        }
        cited
    }
}

fn single_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars
        .next()
        .filter(|c| c.is_ascii_uppercase() && chars.next().is_none())
}

fn is_code(word: &str) -> bool {
    word.len() > 1
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word[1..].bytes().all(|b| b.is_ascii_digit())
}

fn function_name(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    let rest = rest.strip_prefix("pub ").unwrap_or(rest);
    let rest = rest.strip_prefix("async ").unwrap_or(rest);
    rest.strip_prefix("fn ")
}

/// The comment of a line of Rust. A string with `//` in it is taken for one, which is harmless: it is read for numbers only.
fn comment(line: &str) -> Option<&str> {
    line.split_once("//").map(|(_, comment)| comment)
}

/// Reads the page below the root.
pub fn read(root: &Path) -> (Spec, Vec<String>) {
    match std::fs::read_to_string(root.join(PAGE)) {
        Ok(page) => Spec::parse(&page),
        Err(e) => (Spec::default(), vec![format!("{PAGE}: {e}")]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CHAPTERS: &str = "# S\n\n## L. Life\n\n- **L1 Phases.** x\n  more\n- **L2 One.** y\n\n## T. End\n\n- **T1 Delete.** z\n";

    fn spec() -> Spec {
        let (spec, violations) = Spec::parse(TWO_CHAPTERS);
        assert_eq!(violations, Vec::<String>::new());
        spec
    }

    #[test]
    fn a_test_or_comment_that_cites_an_absent_number_is_a_violation() {
        let mut spec = spec();
        let found = spec.check_source(
            "a.rs",
            "//! T1 is kept (SPEC L2, L3).\nfn l2_one() {}\nasync fn t2_two() {}\nfn load_x() {}\nlet x = \"T9\";\nx(); // see T7\n",
        );
        assert_eq!(
            found,
            [
                "a.rs:1: cites L3, which is not in docs/spec.md",
                "a.rs:3: cites T2, which is not in docs/spec.md",
                "a.rs:6: cites T7, which is not in docs/spec.md",
            ]
        );
        assert_eq!(spec.untested(), ["L1", "T1"]);
    }

    #[test]
    fn a_rule_of_the_simulation_counts_as_a_test() {
        let mut spec = spec();
        assert!(
            spec.check_source("crates/sim/src/rules/l1_phases.rs", "//! x\n")
                .is_empty()
        );
        assert_eq!(spec.untested(), ["L2", "T1"]);
        assert_eq!(
            spec.check_source("crates/sim/src/rules/t4_x.rs", "//! x\n").len(),
            1
        );
    }

    #[test]
    fn documents_cite_with_the_word_spec_only() {
        let spec = spec();
        assert!(spec.check_document("a.md", "an L4 balancer").is_empty());
        assert_eq!(spec.check_document("a.md", "(SPEC L4 and T1)").len(), 1);
        assert_eq!(spec.check_document("a.md", "(SPEC Q4)").len(), 1);
    }

    #[test]
    fn a_gap_in_the_numbers_is_a_violation() {
        let (_, violations) = Spec::parse("## L. Life\n\n- **L1 A.** x\n- **L3 B.** y\n");
        assert_eq!(violations, ["docs/spec.md:4: expected L2, found \"L3\""]);
    }
}
