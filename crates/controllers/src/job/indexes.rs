//! Sets of completion indexes in Kubernetes' notation: `0,2-5,7`.

use std::collections::BTreeSet;
use std::fmt;

/// First and last index of each interval, ascending, neither adjacent nor overlapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// The indexes below `completions`; a part that does not parse is skipped.
    pub fn parse(text: &str, completions: i32) -> Self {
        let mut all = Indexes::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else {
                continue;
            };
            if first >= completions {
                break;
            }
            all.add_range(first, last.min(completions - 1));
        }
        all
    }

    fn add_range(&mut self, first: i32, last: i32) {
        if last < first {
            return;
        }
        self.0.push((first, last));
        self.0.sort_unstable();
        let mut merged: Vec<(i32, i32)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        self.0 = merged;
    }

    pub fn add_all(&mut self, indexes: &BTreeSet<i32>) {
        // Adjacent indexes are added as one interval.
        let mut run: Option<(i32, i32)> = None;
        for index in indexes {
            run = match run {
                Some((first, last)) if last.checked_add(1) == Some(*index) => Some((first, *index)),
                Some((first, last)) => {
                    self.add_range(first, last);
                    Some((*index, *index))
                }
                None => Some((*index, *index)),
            };
        }
        if let Some((first, last)) = run {
            self.add_range(first, last);
        }
    }

    pub fn union(&mut self, other: &Indexes) {
        for (first, last) in &other.0 {
            self.add_range(*first, *last);
        }
    }

    pub fn has(&self, index: i32) -> bool {
        let after = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(after).is_some_and(|(first, _)| *first <= index)
    }

    pub fn total(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many indexes are in both sets.
    pub fn common(&self, other: &Indexes) -> i32 {
        let overlap = |a: &(i32, i32), b: &(i32, i32)| (a.1.min(b.1) - a.0.max(b.0) + 1).max(0);
        self.0
            .iter()
            .map(|a| other.0.iter().map(|b| overlap(a, b)).sum::<i32>())
            .sum()
    }

    /// The lowest indexes that are not in the set, at most `count`.
    pub fn missing(&self, count: usize, completions: i32) -> Vec<i32> {
        let mut found = Vec::new();
        let mut candidate = 0;
        let end = (completions, completions);
        for (first, last) in self.0.iter().copied().chain([end]) {
            while candidate < first.min(completions) && found.len() < count {
                found.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(last.saturating_add(1));
        }
        found
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_kubernetes_writes_them() {
        // text, completions -> normal form, total
        let table = [
            ("", 5, "", 0),
            ("0", 5, "0", 1),
            ("0,1", 5, "0,1", 2),
            ("0,1,2", 5, "0-2", 3),
            ("1,3-5,7", 100, "1,3-5,7", 5),
            ("1-9", 5, "1-4", 4),
            ("x,1,2-y,3", 5, "1,3", 2),
        ];
        for (text, completions, expected, total) in table {
            let indexes = Indexes::parse(text, completions);
            assert_eq!(indexes.to_string(), expected, "{text}");
            assert_eq!(indexes.total(), total, "{text}");
        }
        let mut some = Indexes::parse("1,3-5", 10);
        assert_eq!(some.missing(4, 8), [0, 2, 6, 7]);
        assert_eq!(some.missing(2, 8), [0, 2]);
        assert!(some.has(4) && !some.has(2) && !some.has(6));
        assert_eq!(some.common(&Indexes::parse("4-9", 10)), 2);
        some.add_all(&[2, 6, 8].into());
        assert_eq!(some.to_string(), "1-6,8");
    }
}
