//! The commits of the store, for rules about what API servers show to their clients.

use std::collections::{BTreeMap, BTreeSet};

/// The key prefix of pods, as [`Commits::add`] gets keys.
pub(crate) const PODS: &str = "core/pods/";

/// One change of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub revision: u64,
    /// Namespace and name.
    pub name: String,
    pub is_deletion: bool,
    /// The revision of the write before it; `None` if the pod did not exist.
    before: Option<u64>,
}

/// Nothing is kept unless a rule needs it.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    is_kept: bool,
    newest: u64,
    /// With the keys that were written.
    all: BTreeSet<(u64, String)>,
    /// By revision.
    pods: BTreeMap<u64, Commit>,
    /// The pods that exist, each with the revision of its last write.
    existing: BTreeMap<String, u64>,
}

impl Commits {
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    pub fn are_kept(&self) -> bool {
        self.is_kept
    }

    pub fn add(&mut self, revision: u64, key: &str, is_deletion: bool) {
        self.newest = revision;
        if !self.is_kept {
            return;
        }
        self.all.insert((revision, key.into()));
        if let Some(name) = key.strip_prefix(PODS) {
            let before = match is_deletion {
                true => self.existing.remove(name),
                false => self.existing.insert(name.into(), revision),
            };
            let commit = Commit {
                revision,
                name: name.into(),
                is_deletion,
                before,
            };
            self.pods.insert(revision, commit);
        }
    }

    /// Its revision, 0 before the first.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The newest change of a pod.
    pub fn newest_of_pods(&self) -> u64 {
        self.pods.keys().next_back().copied().unwrap_or_default()
    }

    /// Whether the key was written at that revision; `true` if nothing is kept.
    pub fn has(&self, revision: u64, key: &str) -> bool {
        !self.is_kept || self.all.contains(&(revision, key.to_string()))
    }

    /// The first change of a pod after a revision.
    pub fn next_of_pods(&self, after: u64) -> Option<&Commit> {
        self.pods.range(after + 1..).next().map(|(_, commit)| commit)
    }

    /// The pods as of a revision, each with the revision of its last write: those that exist now, without the commits after it. Most lists are
    /// as of one of the last revisions, and a history of hours has tens of thousands of commits.
    pub fn pods_at(&self, revision: u64) -> BTreeMap<&str, u64> {
        let existing = self.existing.iter();
        let mut there: BTreeMap<&str, u64> = existing.map(|(name, at)| (name.as_str(), *at)).collect();
        for commit in self.pods.range(revision + 1..).rev().map(|(_, commit)| commit) {
            match commit.before {
                Some(before) => there.insert(commit.name.as_str(), before),
                None => there.remove(commit.name.as_str()),
            };
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_the_pods_as_of_a_revision_are_those_that_the_commits_up_to_it_left() {
        let mut commits = Commits::default();
        commits.keep();
        for (revision, name, is_deletion) in [
            (2, "ns/a", false),
            (3, "ns/b", false),
            (5, "ns/a", false),
            (6, "ns/b", true),
            (8, "ns/b", false),
            (9, "ns/a", true),
            (10, "ns/b", false),
        ] {
            commits.add(revision, &format!("{PODS}{name}"), is_deletion);
        }
        for (revision, expected) in [
            (0, vec![]),
            (2, vec![("ns/a", 2)]),
            (4, vec![("ns/a", 2), ("ns/b", 3)]),
            (5, vec![("ns/a", 5), ("ns/b", 3)]),
            (7, vec![("ns/a", 5)]),
            (8, vec![("ns/a", 5), ("ns/b", 8)]),
            (9, vec![("ns/b", 8)]),
            (10, vec![("ns/b", 10)]),
            (11, vec![("ns/b", 10)]),
        ] {
            let found: Vec<_> = commits.pods_at(revision).into_iter().collect();
            assert_eq!(found, expected, "as of {revision}");
        }
    }
}
