//! A request's warnings, bounded as kube-apiserver bounds them (apiserver `endpoints/filters/warning.go`).
//!
//! A body of a few megabytes can have hundreds of thousands of unknown fields. Each would be a header, and finding duplicates among them would
//! take minutes.

use std::ops::Deref;

/// All warnings of a response have about as many characters at most.
const TOTAL_MAX_CHARS: usize = 4 * 1024;
/// Each has at most as many, if all together would be too long.
const EACH_MAX_CHARS: usize = 256;

/// More are dropped: many HTTP clients accept at most 100 headers. kube-apiserver has no such limit.
const COUNT_MAX: usize = 64;

/// Distinct warnings in their order; those that would not be sent are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    all: Vec<String>,
    /// Characters of all warnings.
    chars: usize,
    /// Characters if each is truncated.
    truncated_chars: usize,
}

impl Warnings {
    pub fn add(&mut self, warning: String) {
        let full = self.all.len() >= COUNT_MAX || self.truncated_chars >= TOTAL_MAX_CHARS;
        if full || self.all.contains(&warning) {
            return;
        }
        let chars = warning.chars().count();
        self.chars += chars;
        self.truncated_chars += chars.min(EACH_MAX_CHARS);
        self.all.push(warning);
    }

    /// The warnings as they are sent.
    pub fn shown(&self) -> impl Iterator<Item = &str> {
        let truncates = self.chars > TOTAL_MAX_CHARS;
        self.all
            .iter()
            .map(move |warning| match warning.char_indices().nth(EACH_MAX_CHARS) {
                Some((end, _)) if truncates => &warning[..end],
                _ => warning.as_str(),
            })
    }
}

impl Deref for Warnings {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.all
    }
}

impl From<Warnings> for Vec<String> {
    fn from(warnings: Warnings) -> Self {
        warnings.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: impl IntoIterator<Item = String>) -> Warnings {
        let mut warnings = Warnings::default();
        all.into_iter().for_each(|warning| warnings.add(warning));
        warnings
    }

    #[test]
    fn a6_warnings_are_bounded_however_many_there_are() {
        let many = of((0..1_000_000).map(|n| format!("unknown field \"f{n}\"")));
        assert_eq!(many.len(), COUNT_MAX);
        let wide = of((0..1_000_000).map(|n| format!("{n}{}", "x".repeat(100))));
        let shown: usize = wide.shown().map(|w| w.chars().count()).sum();
        assert!(
            (TOTAL_MAX_CHARS..TOTAL_MAX_CHARS + EACH_MAX_CHARS).contains(&shown),
            "{shown}"
        );
        let long = of((0..100).map(|n| format!("{n}{}", "ü".repeat(5000))));
        assert_eq!(long.len(), TOTAL_MAX_CHARS / EACH_MAX_CHARS);
        assert!(long.shown().all(|w| w.chars().count() == EACH_MAX_CHARS));
        of((0..1_000_000).map(|_| String::new()));
    }

    #[test]
    fn few_warnings_are_shown_whole_and_once() {
        let long = "x".repeat(4000);
        let few = of(["a".to_string(), long.clone(), "a".to_string()]);
        assert_eq!(few.shown().collect::<Vec<_>>(), ["a", long.as_str()]);
    }
}
