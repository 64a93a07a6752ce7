//! Decoded objects that the servers of one process over one store share: an object that one of them has read or written
//! is not decoded again by the others. For processes with several servers, such as the simulation; a single server
//! needs none.
//!
//! An object is returned only for exactly the same bytes: it is found by its revision in the store, and must be of the
//! same kind and decoded from the value that the store returned. If none is found the caller decodes. An object that
//! was written must decode to the same (no fractions of seconds in a time, no empty lists): builds with debug
//! assertions check this for each object.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use knarr_api::{AnyObject, Kind, Object};
use knarr_apimachinery::codec::DecodeError;
use parking_lot::Mutex;

/// The first commits of a store are kept: the objects that a server creates when it bootstraps are rarely written again, and every server
/// that starts later reads them.
const FIRST_KEPT: u64 = 512;
/// How many of the last commits are kept besides. Servers that keep up are fewer behind; one that was cut off has to decode.
const KEPT: usize = 256;
/// How many writes are kept that the store has not returned yet, or has rejected.
const OFFERED: usize = 64;

/// The shared objects. See the module.
#[derive(Debug, Default)]
pub struct Decoded {
    /// By revision. Of a commit that writes several objects one is kept.
    kept: Mutex<Kept>,
    /// Objects that are being written, with their bytes, the newest last: the first server that gets the write from the
    /// store takes it. An object that the store rejected is dropped as others are added.
    offered: Mutex<VecDeque<(Bytes, Box<dyn AnyObject>)>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Of built-in kinds only: definitions of others change.
    first: BTreeMap<u64, Arc<Object>>,
    last: BTreeMap<u64, Arc<Object>>,
}

impl Decoded {
    /// Records an object that is about to be written as these bytes.
    pub(super) fn offer(&self, stored: Bytes, typed: Box<dyn AnyObject>) {
        let mut offered = self.offered.lock();
        offered.push_back((stored, typed));
        if offered.len() > OFFERED {
            offered.pop_front();
        }
    }

    /// Takes the object that was recorded with these bytes.
    pub(super) fn take(&self, stored: &[u8]) -> Option<Box<dyn AnyObject>> {
        let mut offered = self.offered.lock();
        let at = offered.iter().position(|(bytes, _)| bytes == stored)?;
        offered.remove(at).map(|(_, typed)| typed)
    }

    /// Keeps an object that was written, as the store has it at this revision.
    pub(super) fn keep_written(&self, object: Arc<Object>) {
        debug_assert_eq!(read_back(&object), Ok(format!("{:?}", object.typed())));
        self.keep(object);
    }

    /// Keeps an object that was read, as the store has it at this revision.
    pub(super) fn keep(&self, object: Arc<Object>) {
        let mut kept = self.kept.lock();
        let is_built_in = object.kind().ops.custom().is_none();
        if is_built_in && object.revision() <= FIRST_KEPT {
            kept.first.insert(object.revision(), object);
            return;
        }
        kept.last.insert(object.revision(), object);
        if kept.last.len() > KEPT {
            kept.last.pop_first();
        }
    }

    /// The object of this kind that was decoded from these bytes at this revision.
    pub(super) fn find(&self, kind: &Kind, stored: &[u8], revision: u64) -> Option<Arc<Object>> {
        let found = {
            let kept = self.kept.lock();
            let first = kept.first.get(&revision);
            first.or_else(|| kept.last.get(&revision))?.clone()
        };
        (found.kind() == kind && found.has_encoding(stored)).then_some(found)
    }
}

/// The object's encoding, decoded and encoded again.
fn read_back(object: &Object) -> Result<String, DecodeError> {
    Ok(format!("{:?}", object.kind().ops.decode(object.json())?.object))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::{k8s_openapi, registry};
    use knarr_store::{Config, KeyRange, Op, Range, Txn};
    use tokio::sync::oneshot;

    use super::*;
    use crate::cache::{Cache, Written};
    use crate::metrics::Metrics;

    const VALUE: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#;

    fn object(value: &str, revision: u64) -> Arc<Object> {
        let kind = &registry::CONFIG_MAP;
        let typed = kind.ops.decode(value.as_bytes()).unwrap().object;
        Arc::new(Object::from_stored(kind, typed, value.as_bytes(), revision))
    }

    #[test]
    fn only_the_same_bytes_of_the_same_kind_at_the_same_revision_are_found() {
        let decoded = Decoded::default();
        let kept = object(VALUE, 7);
        decoded.keep(kept.clone());
        let find = |kind, value: &str, revision| decoded.find(kind, value.as_bytes(), revision);
        let found = find(&registry::CONFIG_MAP, VALUE, 7).unwrap();
        assert!(Arc::ptr_eq(&found, &kept));
        assert!(find(&registry::CONFIG_MAP, VALUE, 8).is_none());
        assert!(find(&registry::SECRET, VALUE, 7).is_none());
        let other = VALUE.replace(r#""a""#, r#""b""#);
        assert!(find(&registry::CONFIG_MAP, &other, 7).is_none());
        assert!(find(&registry::CONFIG_MAP, &format!("{VALUE} "), 7).is_none());
    }

    #[test]
    fn the_first_and_the_last_commits_are_kept_and_no_more() {
        let decoded = Decoded::default();
        let newest = FIRST_KEPT + KEPT as u64 + 1;
        (1..=newest).for_each(|revision| decoded.keep(object(VALUE, revision)));
        for (revision, is_kept) in [
            (1, true),
            (FIRST_KEPT, true),
            (FIRST_KEPT + 1, false),
            (FIRST_KEPT + 2, true),
            (newest, true),
        ] {
            let found = decoded.find(&registry::CONFIG_MAP, VALUE.as_bytes(), revision);
            assert_eq!(found.is_some(), is_kept, "{revision}");
        }
    }

    #[test]
    fn what_is_offered_is_taken_once_by_its_bytes_and_the_oldest_is_dropped() {
        let decoded = Decoded::default();
        let value = |at: usize| VALUE.replace(r#""a""#, &format!(r#""a{at}""#));
        let offer = |at: usize| {
            let typed = registry::CONFIG_MAP
                .ops
                .decode(value(at).as_bytes())
                .unwrap()
                .object;
            decoded.offer(Bytes::from(value(at)), typed);
        };
        (0..=OFFERED).for_each(offer);
        let taken = |at: usize| {
            let taken = decoded.take(value(at).as_bytes())?;
            taken.metadata().name.clone()
        };
        assert_eq!(taken(0), None);
        assert_eq!(taken(1).as_deref(), Some("a1"));
        assert_eq!(taken(1), None);
        assert_eq!(taken(OFFERED), Some(format!("a{OFFERED}")));
    }

    /// The object, as each of the caches has it.
    async fn show(caches: &[Arc<Cache>], revision: u64) -> Vec<Arc<Object>> {
        let mut shown = Vec::new();
        for cache in caches {
            cache.wait_for(revision).await;
            shown.push(cache.get(&registry::CONFIG_MAP, "n", "a").unwrap());
        }
        shown
    }

    /// Three servers: what one writes is not decoded by the two others, and is what the store has; what another writer
    /// wrote is decoded once for all.
    #[tokio::test]
    async fn servers_that_share_read_once_and_show_what_the_store_holds() {
        let store = knarr_store::open(Config::Memory).await.unwrap();
        let decoded = Arc::new(Decoded::default());
        let mut stops = Vec::new();
        let mut caches = Vec::new();
        for _ in 0..3 {
            let cache = Cache::with(
                store.clone(),
                None,
                Arc::<Metrics>::default(),
                Some(decoded.clone()),
            );
            let (stop, stopped) = oneshot::channel();
            cache.start(stopped).await.unwrap();
            stops.push(stop);
            caches.push(cache);
        }
        let kind = &registry::CONFIG_MAP;
        let mut typed = ConfigMap::default();
        typed.metadata.namespace = Some("n".into());
        typed.metadata.name = Some("a".into());
        typed.data = Some([("k".to_string(), "1".to_string())].into());
        let Written::Done(written) = caches[0].put(kind, Box::new(typed), None, 0, None).await.unwrap()
        else {
            panic!("no other server writes");
        };
        let shown = show(&caches, written.revision()).await;
        assert!(shown.iter().all(|shown| shown.json() == written.json()));
        assert!(Arc::ptr_eq(&shown[0], &shown[1]) && Arc::ptr_eq(&shown[1], &shown[2]));
        let range = Range {
            keys: KeyRange::prefix("/registry/core/configmaps/"),
            ..Range::default()
        };
        let held = store.range(range).await.unwrap().kvs.remove(0);
        let read = kind.ops.decode(&held.value).unwrap().object;
        let read = Object::from_stored(kind, read, &held.value, held.mod_revision);
        assert_eq!(shown[1].json(), read.json());
        assert_eq!(shown[1].get::<ConfigMap>(), read.get::<ConfigMap>());

        let value = Bytes::from(String::from_utf8_lossy(&held.value).replace(r#""1""#, r#""2""#));
        let ops = vec![Op::Put { key: held.key, value }];
        let txn = Txn {
            compares: Vec::new(),
            ops,
        };
        let revision = match store.txn(txn).await.unwrap() {
            knarr_store::TxnResult::Committed { revision } => revision,
            failed => panic!("{failed:?}"),
        };
        let shown = show(&caches, revision).await;
        assert!(Arc::ptr_eq(&shown[0], &shown[1]) && Arc::ptr_eq(&shown[0], &shown[2]));
        let data = shown[0].get::<ConfigMap>().unwrap().data.clone().unwrap();
        assert_eq!(data["k"], "2");
    }
}
