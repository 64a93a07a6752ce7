//! The history of every key in memory: the index of both of our own engines.
//!
//! The memory engine keeps the values themselves in it (`V` = bytes), the embedded one their places on disk. Nothing
//! here waits, reads files or notifies watchers. Reading at any revision from `oldest` to `revision` sees exactly what
//! was there; so does reading the changes in between.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Bound;

use bytes::Bytes;

use crate::{Error, KeyRange, Range, Revision};

/// The revision of a store nothing was written to.
pub(crate) const EMPTY_REVISION: Revision = 1;

/// One write of a key. Without a value it is a deletion.
#[derive(Clone, Debug)]
pub(crate) struct Version<V> {
    pub mod_revision: Revision,
    pub create_revision: Revision,
    pub version: u64,
    pub value: Option<V>,
}

impl<V> Version<V> {
    /// The version a write at `revision` makes of a key whose newest version is `before`.
    pub fn after<W>(before: Option<&Version<W>>, revision: Revision, value: Option<V>) -> Self {
        let live = before.filter(|v| v.value.is_some() && value.is_some());
        Version {
            mod_revision: revision,
            create_revision: match (&value, live) {
                (None, _) => 0,
                (Some(_), Some(live)) => live.create_revision,
                (Some(_), None) => revision,
            },
            version: match &value {
                None => 0,
                Some(_) => live.map_or(1, |v| v.version + 1),
            },
            value,
        }
    }
}

/// All kept versions of a key. Most keys have one, so that one is stored inline and needs no second allocation.
#[derive(Debug)]
struct History<V> {
    older: Vec<Version<V>>,
    newest: Version<V>,
}

impl<V> History<V> {
    /// The newest version written at `revision` or before.
    fn at(&self, revision: Revision) -> Option<&Version<V>> {
        if self.newest.mod_revision <= revision {
            return Some(&self.newest);
        }
        let newer = self.older.partition_point(|v| v.mod_revision <= revision);
        newer.checked_sub(1).map(|i| &self.older[i])
    }

    fn push(&mut self, version: Version<V>) {
        debug_assert!(self.newest.mod_revision < version.mod_revision);
        let older = std::mem::replace(&mut self.newest, version);
        if self.older.is_empty() {
            // Most keys that are written again are written once, or deleted, before the next compaction.
            self.older.reserve_exact(1);
        }
        self.older.push(older);
    }

    fn get_mut(&mut self, mod_revision: Revision) -> Option<&mut Version<V>> {
        if self.newest.mod_revision == mod_revision {
            return Some(&mut self.newest);
        }
        let i = self.older.binary_search_by_key(&mod_revision, |v| v.mod_revision);
        i.ok().map(|i| &mut self.older[i])
    }
}

/// The result of a range: keys with their version at the revision.
pub(crate) struct Found<V> {
    pub revision: Revision,
    pub entries: Vec<(Bytes, Version<V>)>,
    pub more: bool,
    pub count: usize,
}

/// A change of a key.
pub(crate) struct Change<V> {
    pub key: Bytes,
    pub now: Version<V>,
}

/// That a key was written.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Changed {
    revision: Revision,
    key: Bytes,
    /// Whether there was a version before it. Without one there is nothing to forget when this is.
    replaced: bool,
}

pub(crate) struct Index<V> {
    /// Boxed: almost half of each of the map's nodes is empty. With the histories in them, nodes would also have the
    /// size of small encoded objects: after the deletion of these, nodes that stay until the next compaction would keep
    /// the allocator's pages.
    keys: BTreeMap<Bytes, Box<History<V>>>,
    /// Every change from `oldest` on, in order, and those before that were not forgotten yet.
    changes: VecDeque<Changed>,
    oldest: Revision,
    revision: Revision,
}

impl<V: Clone> Index<V> {
    pub fn new() -> Self {
        Index {
            keys: BTreeMap::new(),
            changes: VecDeque::new(),
            oldest: EMPTY_REVISION,
            revision: EMPTY_REVISION,
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision that can still be read.
    pub fn oldest(&self) -> Revision {
        self.oldest
    }

    /// The key with its newest version; `None` if it does not exist now.
    pub fn get(&self, key: &[u8]) -> Option<(&Bytes, &Version<V>)> {
        let (key, history) = self.keys.get_key_value(key)?;
        history.newest.value.as_ref().map(|_| (key, &history.newest))
    }

    /// Adds a version newer than all there are. Versions of one transaction carry the same revision.
    pub fn insert(&mut self, key: Bytes, version: Version<V>) {
        debug_assert!(version.mod_revision >= self.revision);
        let revision = version.mod_revision;
        let replaced = self.place(key.clone(), version);
        self.revision = revision;
        self.changes.push_back(Changed {
            revision,
            key,
            replaced,
        });
    }

    /// Writes or deletes a key at a revision that is not older than the newest. The version that made.
    pub fn write(&mut self, key: Bytes, revision: Revision, value: Option<V>) -> &Version<V> {
        debug_assert!(revision >= self.revision);
        self.revision = revision;
        let mut changed = Changed {
            revision,
            key: key.clone(),
            replaced: false,
        };
        let history = match self.keys.entry(key) {
            Entry::Vacant(vacant) => {
                let newest = Version::after(None::<&Version<V>>, revision, value);
                vacant.insert(Box::new(History {
                    older: Vec::new(),
                    newest,
                }))
            }
            Entry::Occupied(occupied) => {
                changed.replaced = true;
                let history = occupied.into_mut();
                let version = Version::after(Some(&history.newest), revision, value);
                history.push(version);
                history
            }
        };
        self.changes.push_back(changed);
        &history.newest
    }

    /// Loads a version from a snapshot: versions of one key come in order, keys in any. [`Index::begin`] must follow.
    /// Returns whether the key had a version before.
    pub fn place(&mut self, key: Bytes, version: Version<V>) -> bool {
        match self.keys.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Box::new(History {
                    older: Vec::new(),
                    newest: version,
                }));
                false
            }
            Entry::Occupied(mut occupied) => {
                occupied.get_mut().push(version);
                true
            }
        }
    }

    /// The snapshot is complete: it reaches from `oldest` to `revision`.
    pub fn begin(&mut self, oldest: Revision, revision: Revision) {
        let mut changes: Vec<Changed> = Vec::new();
        for (key, history) in &self.keys {
            let versions = history.older.iter().chain([&history.newest]).enumerate();
            let later = versions.filter(|(_, version)| version.mod_revision >= oldest);
            changes.extend(later.map(|(n, version)| Changed {
                revision: version.mod_revision,
                key: key.clone(),
                replaced: n > 0 || version.value.is_none(),
            }));
        }
        changes.sort_unstable();
        self.changes = changes.into();
        self.oldest = oldest;
        self.revision = revision;
    }

    fn check_revision(&self, requested: Revision) -> Result<(), Error> {
        if requested < self.oldest {
            return Err(Error::Compacted {
                requested,
                oldest: self.oldest,
            });
        }
        if requested > self.revision {
            return Err(Error::FutureRevision {
                requested,
                newest: self.revision,
            });
        }
        Ok(())
    }

    pub fn range(&self, range: &Range) -> Result<Found<V>, Error> {
        let at = range.at.unwrap_or(self.revision);
        self.check_revision(at)?;
        let mut found = Found {
            revision: self.revision,
            entries: Vec::new(),
            more: false,
            count: 0,
        };
        let mut visit = |key: &Bytes, history: &History<V>| {
            let Some(version) = history.at(at).filter(|v| v.value.is_some()) else {
                return;
            };
            found.count += 1;
            if range.count_only {
                return;
            }
            if range.limit == 0 || found.entries.len() < range.limit {
                found.entries.push((key.clone(), version.clone()));
            } else {
                found.more = true;
            }
        };
        match &range.keys.end {
            None => {
                if let Some((key, history)) = self.keys.get_key_value(&range.keys.start[..]) {
                    visit(key, history);
                }
            }
            Some(end) => self
                .between(&range.keys.start, end)
                .for_each(|(k, h)| visit(k, h)),
        }
        Ok(found)
    }

    fn between<'a>(&'a self, start: &[u8], end: &[u8]) -> impl Iterator<Item = (&'a Bytes, &'a History<V>)> {
        let upper = match end {
            [] => Bound::Unbounded,
            // BTreeMap panics on a start after the end; such a range is merely empty.
            end => Bound::Excluded(end.max(start)),
        };
        let found = self.keys.range::<[u8], _>((Bound::Included(start), upper));
        found.map(|(key, history)| (key, &**history))
    }

    /// The changes in `keys` from revision `from` on, in order and by whole transactions: at least `enough` of
    /// them if there are so many. With them the revision up to which (inclusive) this is everything.
    pub fn changes_since(
        &self,
        keys: &KeyRange,
        from: Revision,
        enough: usize,
    ) -> Result<(Vec<Change<V>>, Revision), Error> {
        if from < self.oldest {
            return Err(Error::Compacted {
                requested: from,
                oldest: self.oldest,
            });
        }
        let mut changes = Vec::new();
        let mut upto = from - 1;
        let first = self.changes.partition_point(|changed| changed.revision < from);
        for Changed { revision, key, .. } in self.changes.range(first..) {
            if *revision != upto && changes.len() >= enough {
                return Ok((changes, upto));
            }
            upto = *revision;
            if !keys.contains(key) {
                continue;
            }
            let Some(history) = self.keys.get(key) else {
                continue;
            };
            let Some(now) = history.at(*revision) else {
                continue;
            };
            changes.push(Change {
                key: key.clone(),
                now: now.clone(),
            });
        }
        Ok((changes, self.revision.max(upto)))
    }

    /// Whether compacting to `revision` is possible; `false` if it was done before.
    pub fn can_compact(&self, revision: Revision) -> Result<bool, Error> {
        if revision > self.revision {
            return Err(Error::FutureRevision {
                requested: revision,
                newest: self.revision,
            });
        }
        Ok(revision > self.oldest)
    }

    /// Makes `oldest` the oldest revision that can be read. What only earlier readers could see is forgotten by
    /// [`Index::forget`], a part at a time.
    pub fn compact(&mut self, oldest: Revision) {
        self.oldest = self.oldest.max(oldest);
    }

    /// Whether there is something to forget.
    pub fn has_forgettable(&self) -> bool {
        self.changes
            .front()
            .is_some_and(|changed| changed.revision < self.oldest)
    }

    /// Processes up to `changes` changes before `oldest`, removes what cannot be read any more and calls `dropped` for
    /// each version. What a change at `oldest` or later replaced is kept until that change itself is removed.
    pub fn forget(&mut self, changes: usize, mut dropped: impl FnMut(&Bytes, &Version<V>)) {
        let oldest = self.oldest;
        for _ in 0..changes {
            if !self.has_forgettable() {
                break;
            }
            let Some(Changed {
                key,
                replaced,
                revision: _,
            }) = self.changes.pop_front()
            else {
                break;
            };
            if !replaced {
                continue;
            }
            let Some(history) = self.keys.get_mut(&key) else {
                continue;
            };
            // The last version before `oldest` is what a reader at `oldest` may see, and what the next change
            // replaced. A deletion is the same as nothing.
            let passed = history.older.partition_point(|v| v.mod_revision < oldest);
            let all = history.newest.mod_revision < oldest;
            let keep_from = match passed.checked_sub(1) {
                Some(last) if !all && history.older[last].value.is_some() => last,
                _ => passed,
            };
            history.older.drain(..keep_from).for_each(|v| dropped(&key, &v));
            if history.older.is_empty() {
                history.older = Vec::new();
            }
            if all && history.newest.value.is_none() {
                dropped(&key, &history.newest);
                self.keys.remove(&key);
            }
        }
        if self.changes.len() < self.changes.capacity() / 4 {
            self.changes.shrink_to_fit();
        }
    }

    /// Up to `keys` keys after `after`, each with all its versions up to `upto`, in order.
    pub fn walk(&self, after: Option<&Bytes>, keys: usize, upto: Revision) -> Vec<(Bytes, Vec<Version<V>>)> {
        let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        let walked = self.keys.range::<[u8], _>((lower, Bound::Unbounded)).take(keys);
        walked
            .map(|(key, history)| {
                let versions = history.older.iter().chain([&history.newest]);
                (
                    key.clone(),
                    versions.filter(|v| v.mod_revision <= upto).cloned().collect(),
                )
            })
            .collect()
    }

    /// The value of one version, to be changed; `None` if the version is no longer kept.
    pub fn value_mut(&mut self, key: &[u8], mod_revision: Revision) -> Option<&mut V> {
        self.keys.get_mut(key)?.get_mut(mod_revision)?.value.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(index: &mut Index<&'static str>, key: &'static str, value: &'static str) {
        write(index, key, Some(value));
    }

    fn write(index: &mut Index<&'static str>, key: &'static str, value: Option<&'static str>) {
        let version = Version::after(
            index.get(key.as_bytes()).map(|(_, v)| v),
            index.revision() + 1,
            value,
        );
        index.insert(Bytes::from_static(key.as_bytes()), version);
    }

    fn at(index: &Index<&'static str>, revision: Revision) -> Vec<(String, &'static str)> {
        let range = Range {
            keys: KeyRange::prefix(""),
            at: Some(revision),
            ..Range::default()
        };
        let found = index.range(&range).unwrap();
        let text = |key: &Bytes| String::from_utf8(key.to_vec()).unwrap();
        found
            .entries
            .iter()
            .map(|(k, v)| (text(k), v.value.unwrap()))
            .collect()
    }

    fn render(index: &Index<&'static str>, from: Revision, enough: usize) -> (String, Revision) {
        let (changes, upto) = index.changes_since(&KeyRange::prefix(""), from, enough).unwrap();
        let one = |c: &Change<&'static str>| {
            let value = c.now.value.unwrap_or("-");
            format!("{}:{}:{value}", c.now.mod_revision, c.key.escape_ascii())
        };
        (changes.iter().map(one).collect::<Vec<_>>().join(" "), upto)
    }

    fn example() -> Index<&'static str> {
        let mut index = Index::new();
        put(&mut index, "a", "1"); // 2
        put(&mut index, "b", "1"); // 3
        put(&mut index, "a", "2"); // 4
        write(&mut index, "b", None); // 5
        put(&mut index, "b", "2"); // 6
        write(&mut index, "a", None); // 7
        index
    }

    #[test]
    fn reads_at_each_revision_see_what_was_there() {
        let index = example();
        let pairs = |revision| {
            at(&index, revision)
                .iter()
                .map(|(k, v)| format!("{k}{v}"))
                .collect::<String>()
        };
        let seen: Vec<String> = (1..=7).map(pairs).collect();
        assert_eq!(seen, ["", "a1", "a1b1", "a2b1", "a2", "a2b2", "b2"]);
    }

    #[test]
    fn versions_count_from_creation() {
        let mut index = example();
        put(&mut index, "b", "3");
        let (_, b) = index.get(b"b").unwrap();
        assert_eq!((b.create_revision, b.mod_revision, b.version), (6, 8, 2));
        assert!(index.get(b"a").is_none());
    }

    #[test]
    fn compaction_at_any_revision_keeps_all_later_reads_and_changes() {
        for oldest in 2..=7 {
            let (whole, mut index) = (example(), example());
            let mut dropped = 0;
            index.compact(oldest);
            while index.has_forgettable() {
                index.forget(1, |_, _| dropped += 1);
                for revision in oldest..=7 {
                    assert_eq!(
                        at(&index, revision),
                        at(&whole, revision),
                        "compacting {oldest}, read {revision}"
                    );
                }
            }
            for revision in oldest..=7 {
                assert_eq!(
                    at(&index, revision),
                    at(&whole, revision),
                    "compacted {oldest}, read {revision}"
                );
                assert_eq!(
                    render(&index, revision, 99),
                    render(&whole, revision, 99),
                    "compacted {oldest}"
                );
            }
            let below = Range {
                keys: KeyRange::prefix(""),
                at: Some(oldest - 1),
                ..Range::default()
            };
            assert!(matches!(index.range(&below), Err(Error::Compacted { .. })));
            let versions = |index: &Index<_>| -> usize {
                index
                    .walk(None, 99, 99)
                    .iter()
                    .map(|(_, versions)| versions.len())
                    .sum()
            };
            assert_eq!(versions(&index) + dropped, versions(&whole));
        }
    }

    #[test]
    fn compacting_everything_leaves_one_version_of_each_key() {
        let mut index = example();
        put(&mut index, "c", "1"); // 8
        index.compact(8);
        index.forget(99, |_, _| ());
        assert_eq!(index.walk(None, 99, 99).len(), 2);
        put(&mut index, "c", "2"); // 9
        put(&mut index, "c", "3"); // 10
        index.compact(10);
        index.forget(99, |_, _| ());
        assert_eq!(render(&index, 10, 99), ("10:c:3".into(), 10));
    }

    #[test]
    fn changes_come_in_whole_transactions() {
        let mut index = example();
        let version = || Version::after(None::<&Version<()>>, 8, Some("x"));
        index.insert(Bytes::from_static(b"y"), version());
        index.insert(Bytes::from_static(b"z"), version());
        assert_eq!(render(&index, 2, 2), ("2:a:1 3:b:1".into(), 3));
        assert_eq!(render(&index, 7, 1), ("7:a:-".into(), 7));
        assert_eq!(render(&index, 8, 1), ("8:y:x 8:z:x".into(), 8));
    }

    #[test]
    fn a_backwards_range_is_empty() {
        let keys = KeyRange {
            start: Bytes::from_static(b"b"),
            end: Some(Bytes::from_static(b"a")),
        };
        assert_eq!(
            example()
                .range(&Range {
                    keys,
                    ..Range::default()
                })
                .unwrap()
                .count,
            0
        );
    }
}
