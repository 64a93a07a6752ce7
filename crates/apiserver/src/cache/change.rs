//! One change of one object, shared by all watchers: the object before and after, and each encoded form of the event,
//! encoded at most once.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use knarr_api::{Kind, Object, convert, fields};
use knarr_apimachinery::labels;

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
        }
    }
}

/// One write or deletion.
#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    /// The object after the write. For a deletion: as it was before, at the deletion's revision.
    pub object: Arc<Object>,
    /// The object before; `None` if it did not exist.
    pub prev: Option<Arc<Object>>,
    pub deleted: bool,
    /// `prev` at this change's revision, for watchers whose selector the object no longer matches.
    last_selected: OnceLock<Arc<Object>>,
    /// By event type. Only remote watchers need them: most changes have none.
    frames: OnceLock<Box<[OnceLock<Bytes>; 3]>>,
    weight_bytes: usize,
}

impl Change {
    pub fn new(object: Arc<Object>, prev: Option<Arc<Object>>, deleted: bool) -> Self {
        // A typed value takes about four times the memory of its encoding, the cached frames as much as the encoding again.
        let weight = |o: &Arc<Object>| o.json().len() * if o.is_slim() { 1 } else { 5 };
        let separate = prev.as_ref().filter(|prev| !Arc::ptr_eq(prev, &object));
        let weight_bytes = weight(&object) + separate.map_or(0, weight) + object.json().len();
        Change {
            revision: object.revision(),
            weight_bytes,
            object,
            prev,
            deleted,
            last_selected: OnceLock::new(),
            frames: OnceLock::new(),
        }
    }

    /// The same change without typed values, in little memory. A deleted object is kept once: before its deletion it
    /// was the same but for the resourceVersion.
    pub fn slim(&self) -> Self {
        let object = self.object.slim();
        let prev = match self.deleted {
            true => Some(object.clone()),
            false => self.prev.as_ref().map(Object::slim),
        };
        Change::new(object, prev, self.deleted)
    }

    /// Whether neither object has a typed value that [`Change::slim`] would drop. Readers of the cache decode objects
    /// that they share with the change.
    pub fn is_slim(&self) -> bool {
        self.object.is_slim() && self.prev.as_ref().is_none_or(|prev| prev.is_slim())
    }

    /// About how much memory the change holds.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The event that a watcher with `filter` gets for the change; `None` if it gets none.
    pub fn event_for(&self, filter: &Filter) -> Option<(EventType, &Arc<Object>)> {
        let before = self.prev.as_ref().is_some_and(|p| filter.matches(p));
        let after = !self.deleted && filter.matches(&self.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some((EventType::Added, &self.object)),
            (true, true) => Some((EventType::Modified, &self.object)),
            (true, false) if self.deleted => Some((EventType::Deleted, &self.object)),
            (true, false) => Some((EventType::Deleted, self.last_selected())),
        }
    }

    fn last_selected(&self) -> &Arc<Object> {
        self.last_selected.get_or_init(|| match &self.prev {
            Some(prev) => Arc::new(prev.at_revision(self.revision)),
            None => self.object.clone(),
        })
    }

    /// The event as one line of a JSON watch, shared by all watchers that get this event.
    pub fn frame(&self, event_type: EventType) -> Bytes {
        self.frames.get_or_init(Box::default)[event_type as usize]
            .get_or_init(|| {
                let object = match event_type {
                    EventType::Deleted if !self.deleted => self.last_selected(),
                    _ => &self.object,
                };
                frame(event_type.as_str(), object.json())
            })
            .clone()
    }
}

/// One line of a JSON watch.
pub fn frame(event_type: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + 32);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(event_type.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// Which objects a list or watch selects.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The kind as it is served; objects stored in another version are converted before they are matched.
    pub kind: Kind,
    /// Empty: all.
    pub namespace: String,
    pub labels: labels::Selector,
    pub fields: fields::Selector,
}

impl Filter {
    pub fn everything(kind: &Kind, namespace: &str) -> Self {
        Filter {
            kind: kind.clone(),
            namespace: namespace.to_string(),
            labels: Default::default(),
            fields: Default::default(),
        }
    }

    pub fn selects(&self) -> bool {
        !self.labels.is_everything() || !self.fields.is_everything()
    }

    pub fn matches(&self, object: &Arc<Object>) -> bool {
        if !self.namespace.is_empty() && object.namespace() != self.namespace {
            return false;
        }
        if !self.labels.is_everything() && !self.labels.matches(object.metadata().labels.as_ref()) {
            return false;
        }
        if self.fields.is_everything() {
            return true;
        }
        if *object.kind() == self.kind {
            return self.fields.matches(object);
        }
        convert::object(object, &self.kind).is_ok_and(|o| self.fields.matches(&o))
    }

    /// The only name that the field selector can match, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.fields.required("metadata.name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::k8s_openapi;
    use knarr_api::registry::CONFIG_MAP;

    fn config_map(revision: u64) -> Object {
        let mut typed = ConfigMap::default();
        typed.metadata.name = Some("a".into());
        let mut typed: Box<dyn knarr_api::AnyObject> = Box::new(typed);
        let stored = Object::encode_for_store(&mut *typed);
        Object::from_stored(&CONFIG_MAP, typed, &stored, revision)
    }

    #[test]
    fn an_object_knows_what_it_was_made_of() {
        let typed = ConfigMap {
            data: Some([("metadata".to_string(), "\"metadata\":{".to_string())].into()),
            ..ConfigMap::default()
        };
        let mut typed: Box<dyn knarr_api::AnyObject> = Box::new(typed);
        let stored = Object::encode_for_store(&mut *typed);
        for revision in [1, 9, 10, 999, u64::MAX] {
            let object = Object::from_stored(&CONFIG_MAP, typed.clone_box(), &stored, revision);
            assert!(object.has_encoding(&stored) && !object.has_encoding(object.json()));
            let moved = object.at_revision(7);
            assert!(moved.has_encoding(&stored) && moved.revision() == 7);
            assert_eq!(moved.metadata().resource_version.as_deref(), Some("7"));
        }
    }

    #[test]
    fn a_deletion_has_its_own_revision() {
        let old = Arc::new(config_map(3));
        let change = Change::new(Arc::new(old.at_revision(8)), Some(old), true);
        let all = Filter::everything(&CONFIG_MAP, "");
        assert_eq!(
            change.event_for(&all).map(|(t, o)| (t, o.revision())),
            Some((EventType::Deleted, 8))
        );
        assert!(
            change
                .event_for(&Filter::everything(&CONFIG_MAP, "elsewhere"))
                .is_none()
        );
        assert!(
            change
                .frame(EventType::Deleted)
                .starts_with(br#"{"type":"DELETED","object":{"#)
        );
    }

    #[test]
    fn a_slim_deletion_has_its_object_once_and_is_the_same_event() {
        let old = Arc::new(config_map(3));
        let change = Change::new(Arc::new(old.at_revision(8)), Some(old), true);
        let slim = change.slim();
        assert!(
            slim.prev
                .as_ref()
                .is_some_and(|prev| Arc::ptr_eq(prev, &slim.object))
        );
        assert!(slim.weight_bytes() < change.weight_bytes());
        assert_eq!((slim.revision, slim.is_slim()), (8, true));
        for namespace in ["", "elsewhere"] {
            let filter = Filter::everything(&CONFIG_MAP, namespace);
            let event = |change: &Change| change.event_for(&filter).map(|(t, o)| (t, o.revision()));
            assert_eq!(event(&slim), event(&change), "{namespace}");
        }
        let frame = |change: &Change| change.frame(EventType::Deleted);
        assert_eq!(frame(&slim), frame(&change));
    }
}
