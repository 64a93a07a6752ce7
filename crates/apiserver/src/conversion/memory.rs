//! Cached results of conversion webhooks, for lists and watches. An entry is valid only for its revision and definition,
//! so it cannot be out of date; the oldest is removed first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use knarr_api::{Kind, Object};

use crate::keys;

/// How many bytes of encoded objects are kept.
const MEMORY_BYTES: usize = 32 << 20;

/// Object, revision and version.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    key: bytes::Bytes,
    revision: u64,
    version: String,
}

/// The cached results. See the module.
#[derive(Default)]
pub(super) struct Memory {
    converted: HashMap<Key, Arc<Object>>,
    /// Oldest first.
    order: VecDeque<Key>,
    held_bytes: usize,
}

impl Memory {
    fn key(object: &Object, to: &Kind) -> Key {
        Key {
            key: keys::key(to, object.namespace(), object.name()),
            revision: object.revision(),
            version: to.version().to_string(),
        }
    }

    pub(super) fn get(&self, object: &Object, to: &Kind) -> Option<Arc<Object>> {
        let converted = self.converted.get(&Self::key(object, to))?;
        // The kinds of a changed definition are different ones, and may convert otherwise.
        (converted.kind() == to && converted.uid() == object.uid()).then(|| converted.clone())
    }

    /// Caches the result for `object`. Objects that are not in the store have no revision and are not cached.
    pub(super) fn put(&mut self, object: &Object, converted: Arc<Object>) {
        if object.revision() == 0 {
            return;
        }
        let key = Self::key(object, converted.kind());
        let bytes = converted.json().len();
        if let Some(before) = self.converted.insert(key.clone(), converted.slim()) {
            self.held_bytes -= before.json().len();
        } else {
            self.order.push_back(key);
        }
        self.held_bytes += bytes;
        while self.held_bytes > MEMORY_BYTES {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(removed) = self.converted.remove(&oldest) {
                self.held_bytes -= removed.json().len();
            }
        }
    }
}
