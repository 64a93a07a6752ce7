//! What webhooks made of objects at their revisions, for lists and watches. An object is found for the very revision and
//! definition only, so nothing here can be out of date; the oldest is forgotten first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use knarr_api::{Kind, Object};

use crate::keys;

/// How many bytes of encoded objects are kept.
const MEMORY_BYTES: usize = 32 << 20;

/// Which object at which revision, as which version.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    key: bytes::Bytes,
    revision: u64,
    version: String,
}

/// See the module.
#[derive(Default)]
pub(super) struct Memory {
    made: HashMap<Key, Arc<Object>>,
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
        let made = self.made.get(&Self::key(object, to))?;
        // A definition that was changed has other kinds, and may convert otherwise.
        (made.kind() == to && made.uid() == object.uid()).then(|| made.clone())
    }

    /// Remembers what `object` became. Objects that are not in the store have no revision and are not remembered.
    pub(super) fn put(&mut self, object: &Object, made: Arc<Object>) {
        if object.revision() == 0 {
            return;
        }
        let key = Self::key(object, made.kind());
        let bytes = made.json().len();
        if let Some(before) = self.made.insert(key.clone(), made.slim()) {
            self.held_bytes -= before.json().len();
        } else {
            self.order.push_back(key);
        }
        self.held_bytes += bytes;
        while self.held_bytes > MEMORY_BYTES {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(gone) = self.made.remove(&oldest) {
                self.held_bytes -= gone.json().len();
            }
        }
    }
}
