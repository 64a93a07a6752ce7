//! Words that are not Kubernetes' own, and how often each crate still has them (`xtask/words.toml`, explained in `docs/glossary.md`).
//!
//! The counts may only decrease. More than allowed is a violation. Fewer is a note to run `cargo run -p xtask -- words`, which lowers
//! the counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

/// Where the list is, below the root.
pub const LIST: &str = "xtask/words.toml";

/// The name under which documents are counted, as if they were a crate.
pub const DOCUMENTS: &str = "docs";

/// The first lines of the list.
const HEADING: &str = "\
# Words that we replace, what we write instead, and how often each crate still has them. The counts may only shrink:
# `cargo run -p xtask -- words` lowers them. Whole words count, in comments, strings and the parts of identifiers alike.
";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    word: Vec<Word>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Word {
    /// One word, or several that follow each other (`give back`).
    forms: Vec<String>,
    /// The replacement.
    instead: String,
    /// Phrases in which a form is right: `connection refused`.
    #[serde(default)]
    except: Vec<String>,
    /// By crate; a crate that is absent has none.
    #[serde(default)]
    count: BTreeMap<String, usize>,
}

/// How often each crate has each entry of the list, by its position.
pub type Counts = BTreeMap<(usize, String), usize>;

impl Words {
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|e| format!("{LIST}: {e}"))
    }

    /// Adds the words of a text of the crate.
    pub fn count(&self, krate: &str, text: &str, counts: &mut Counts) {
        let tokens = tokens(text);
        for (position, word) in self.word.iter().enumerate() {
            let all: usize = word.forms.iter().map(|form| occurrences(&tokens, form)).sum();
            let excepted: usize = word
                .except
                .iter()
                .map(|phrase| occurrences(&tokens, phrase))
                .sum();
            let found = all.saturating_sub(excepted);
            if found > 0 {
                *counts.entry((position, krate.to_owned())).or_default() += found;
            }
        }
    }

    /// Violations, and a note if the list allows more words than there are.
    pub fn compare(&self, counts: &Counts) -> (Vec<String>, Vec<String>) {
        let mut violations = Vec::new();
        let mut surplus = 0;
        for (position, word) in self.word.iter().enumerate() {
            let crates = counts
                .keys()
                .filter(|(p, _)| *p == position)
                .map(|(_, krate)| krate);
            for krate in crates
                .chain(word.count.keys())
                .collect::<std::collections::BTreeSet<_>>()
            {
                let found = counts.get(&(position, krate.clone())).copied().unwrap_or(0);
                let allowed = word.count.get(krate).copied().unwrap_or(0);
                if found > allowed {
                    violations.push(format!(
                        "{krate}: found {} {found} times, expected at most {allowed}; write {} ({LIST}, docs/glossary.md)",
                        word.shown(),
                        word.instead
                    ));
                }
                surplus += allowed.saturating_sub(found);
            }
        }
        let notes = if surplus == 0 {
            Vec::new()
        } else {
            vec![format!(
                "{LIST} allows {surplus} words more than there are; lower the counts: cargo run -p xtask -- words"
            )]
        };
        (violations, notes)
    }

    /// The list with each count lowered to the present one. No count is raised, and no crate is added.
    pub fn lowered(&self, counts: &Counts) -> String {
        self.written(|position, krate, allowed| {
            counts
                .get(&(position, krate.to_owned()))
                .copied()
                .unwrap_or(0)
                .min(allowed)
        })
    }

    fn written(&self, count: impl Fn(usize, &str, usize) -> usize) -> String {
        let mut text = HEADING.to_owned();
        for (position, word) in self.word.iter().enumerate() {
            let _ = writeln!(
                text,
                "\n[[word]]\nforms = {:?}\ninstead = {:?}",
                word.forms, word.instead
            );
            if !word.except.is_empty() {
                let _ = writeln!(text, "except = {:?}", word.except);
            }
            let _ = writeln!(text, "[word.count]");
            for (krate, allowed) in &word.count {
                let now = count(position, krate, *allowed);
                if now > 0 {
                    let _ = writeln!(text, "{krate} = {now}");
                }
            }
        }
        text
    }
}

impl Word {
    fn shown(&self) -> String {
        self.forms.join("/")
    }
}

/// The words of a text in lower case: letters that belong together, with identifiers taken apart (`tellTheEnd`, `TELL_THE_END`).
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut token = String::new();
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        if !c.is_alphabetic() {
            // The apostrophe of `doesn't` ends the word as well: no form has one.
            if !token.is_empty() {
                tokens.push(std::mem::take(&mut token));
            }
        } else {
            let next_is_lower = chars.peek().is_some_and(|n| n.is_lowercase());
            let begins =
                c.is_uppercase() && (before.is_lowercase() || before.is_uppercase() && next_is_lower);
            if begins && !token.is_empty() {
                tokens.push(std::mem::take(&mut token));
            }
            token.extend(c.to_lowercase());
        }
        before = c;
    }
    if !token.is_empty() {
        tokens.push(token);
    }
    tokens
}

fn occurrences(tokens: &[String], form: &str) -> usize {
    let form: Vec<&str> = form.split(' ').collect();
    tokens
        .windows(form.len())
        .filter(|window| window.iter().eq(form.iter()))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"
        [[word]]
        forms = ["tell", "told"]
        instead = "report"
        [word.count]
        node = 3
        sim = 2

        [[word]]
        forms = ["refused", "give back"]
        instead = "reject"
        except = ["connection refused"]
    "#;

    fn counted(krate: &str, text: &str) -> (Words, Counts) {
        let words = Words::parse(LIST).unwrap();
        let mut counts = Counts::new();
        words.count(krate, text, &mut counts);
        (words, counts)
    }

    #[test]
    fn words_are_found_in_comments_strings_and_parts_of_identifiers() {
        let (_, counts) = counted(
            "node",
            "// Told.\nfn tell_the_end() { \"untold, tells\"; TellIt; HTTPTell }",
        );
        assert_eq!(counts, Counts::from([((0, "node".into()), 4)]));
    }

    #[test]
    fn a_phrase_in_which_a_word_is_right_does_not_count() {
        let (_, counts) = counted(
            "node",
            "ConnectionRefused, connection refused, refused; give_back()",
        );
        assert_eq!(counts, Counts::from([((1, "node".into()), 2)]));
    }

    #[test]
    fn more_than_allowed_is_a_violation_and_fewer_is_a_note() {
        let (words, counts) = counted("node", "told told told told");
        let (violations, notes) = words.compare(&counts);
        assert_eq!(
            violations,
            [
                "node: found tell/told 4 times, expected at most 3; write report (xtask/words.toml, docs/glossary.md)"
            ]
        );
        // Those of `sim`, which has none.
        assert!(notes[0].contains("allows 2 words more"), "{notes:?}");
    }

    #[test]
    fn the_list_is_lowered_and_never_raised() {
        let (words, counts) = counted("node", "told told told told refused");
        let lowered = Words::parse(&words.lowered(&counts)).unwrap();
        assert_eq!(lowered.word[0].count, BTreeMap::from([("node".into(), 3)]));
        assert!(lowered.word[1].count.is_empty());
        assert_eq!(lowered.word[1].except, ["connection refused"]);
    }
}
