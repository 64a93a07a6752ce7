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
}

impl Commits {
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    pub fn add(&mut self, revision: u64, key: &str, is_deletion: bool) {
        self.newest = revision;
        if !self.is_kept {
            return;
        }
        self.all.insert((revision, key.into()));
        if let Some(name) = key.strip_prefix(PODS) {
            let commit = Commit {
                revision,
                name: name.into(),
                is_deletion,
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

    /// The pods as of a revision, each with the revision of its last write.
    pub fn pods_at(&self, revision: u64) -> BTreeMap<&str, u64> {
        let mut there = BTreeMap::new();
        for commit in self.pods.range(..=revision).map(|(_, commit)| commit) {
            match commit.is_deletion {
                true => there.remove(commit.name.as_str()),
                false => there.insert(commit.name.as_str(), commit.revision),
            };
        }
        there
    }
}
