//! What policies and webhook configurations are compiled to, kept as long as the object does not change.

use std::collections::HashMap;
use std::sync::Arc;

use knarr_api::Object;
use parking_lot::Mutex;

/// By the object's UID, each with the revision that it was compiled from.
pub(super) type CompiledCache<T> = Mutex<HashMap<String, (u64, Arc<T>)>>;

/// How many objects of a kind stay compiled; more of them would be compiled for each request.
const COMPILED_MAX: usize = 1000;

pub(super) fn compiled<T>(all: &CompiledCache<T>, object: &Object, read: impl FnOnce() -> T) -> Arc<T> {
    if let Some((revision, policy)) = all.lock().get(object.uid())
        && *revision == object.revision()
    {
        return policy.clone();
    }
    let policy = Arc::new(read());
    let mut all = all.lock();
    if all.len() >= COMPILED_MAX {
        all.clear();
    }
    all.insert(object.uid().to_string(), (object.revision(), policy.clone()));
    policy
}
