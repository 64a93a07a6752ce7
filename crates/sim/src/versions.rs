//! Services and EndpointSlices as they were in the store at each revision, for rules about what is made of them
//! elsewhere later.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde::de::DeserializeOwned;

/// Of one kind: by key, the revision of each write with the object; `None` is its deletion.
#[derive(Debug)]
pub(crate) struct Versions<T> {
    of: BTreeMap<String, BTreeMap<u64, Option<T>>>,
    /// When each revision was written.
    written: BTreeMap<u64, Timestamp>,
}

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Versions {
            of: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }
}

impl<T: DeserializeOwned> Versions<T> {
    fn add(&mut self, key: &str, revision: u64, now: Timestamp, value: Option<&[u8]>) {
        let object = value.and_then(|json| serde_json::from_slice(json).ok());
        self.of.entry(key.into()).or_default().insert(revision, object);
        self.written.insert(revision, now);
    }

    /// All objects as of a revision.
    pub fn at(&self, revision: u64) -> Vec<&T> {
        let last = |versions: &'_ BTreeMap<u64, Option<T>>| {
            versions.range(..=revision).next_back().map(|(at, _)| *at)
        };
        let found = self
            .of
            .values()
            .filter_map(|versions| versions.get(&last(versions)?));
        found.flatten().collect()
    }

    /// The revisions after one.
    pub fn written_after(&self, revision: u64) -> impl Iterator<Item = u64> + '_ {
        self.written.range(revision + 1..).map(|(revision, _)| *revision)
    }

    /// The newest revision that had been written by then; 0 if none had.
    pub fn newest_by(&self, by: Timestamp) -> u64 {
        let mut newest_first = self.written.iter().rev();
        newest_first
            .find(|(_, at)| **at <= by)
            .map_or(0, |(revision, _)| *revision)
    }
}

/// See the module. Nothing is kept unless a rule needs it.
#[derive(Debug, Default)]
pub(crate) struct NetworkVersions {
    is_kept: bool,
    pub services: Versions<Service>,
    pub slices: Versions<EndpointSlice>,
}

impl NetworkVersions {
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub fn add(&mut self, key: &str, revision: u64, now: Timestamp, value: Option<&[u8]>) {
        if !self.is_kept {
            return;
        }
        if let Some(key) = key.strip_prefix("core/services/") {
            self.services.add(key, revision, now, value);
        } else if let Some(key) = key.strip_prefix("discovery.k8s.io/endpointslices/") {
            self.slices.add(key, revision, now, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_as_they_were_at_each_revision() {
        let mut versions = NetworkVersions::default();
        versions.keep();
        let named = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        let (a, b) = (named("a"), named("b"));
        for (key, revision, value) in [
            ("core/services/ns/a", 2, Some(&a)),
            ("core/services/ns/b", 4, Some(&b)),
            ("core/services/ns/a", 6, None),
        ] {
            let now = Timestamp::from_second(i64::try_from(revision).unwrap()).unwrap();
            versions.add(key, revision, now, value.map(|json| json.as_bytes()));
        }
        for (revision, expect) in [
            (1, vec![]),
            (2, vec!["a"]),
            (3, vec!["a"]),
            (5, vec!["a", "b"]),
            (6, vec!["b"]),
        ] {
            let found = versions.services.at(revision);
            let found: Vec<_> = found.iter().filter_map(|s| s.metadata.name.as_deref()).collect();
            assert_eq!(found, expect, "at {revision}");
        }
        let by = |second| {
            versions
                .services
                .newest_by(Timestamp::from_second(second).unwrap())
        };
        assert_eq!([by(1), by(2), by(5), by(9)], [0, 2, 4, 6]);
    }
}
