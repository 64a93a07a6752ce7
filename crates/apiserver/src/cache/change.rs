//! One change of one object, shared by everybody who watches: the objects before and after, and each wire
//! form of the event, made at most once.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use knarr_api::{Kind, Object, convert, selector};

/// What a watcher is told happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Added,
    Modified,
    Deleted,
}

impl Told {
    pub fn as_str(self) -> &'static str {
        match self {
            Told::Added => "ADDED",
            Told::Modified => "MODIFIED",
            Told::Deleted => "DELETED",
        }
    }
}

/// One write or deletion.
#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    /// The object after the write. For a deletion: as it was before, at the deletion's revision.
    pub object: Arc<Object>,
    /// The object before; `None` where there was none.
    pub prev: Option<Arc<Object>>,
    pub deleted: bool,
    /// `prev` at this change's revision, for those who lose sight of the object by it.
    departed: OnceLock<Arc<Object>>,
    frames: [OnceLock<Bytes>; 3],
    weight_bytes: usize,
}

impl Change {
    pub fn new(object: Arc<Object>, prev: Option<Arc<Object>>, deleted: bool) -> Self {
        // A typed value takes some four times its encoding; the frames have that once more.
        let weight = |o: &Arc<Object>| o.json().len() * if o.is_slim() { 1 } else { 5 };
        let weight_bytes = weight(&object) + prev.as_ref().map_or(0, weight) + object.json().len();
        Change {
            revision: object.revision(),
            weight_bytes,
            object,
            prev,
            deleted,
            departed: OnceLock::new(),
            frames: Default::default(),
        }
    }

    /// The same change in little memory.
    pub fn slim(&self) -> Self {
        let prev = self.prev.as_ref().map(Object::slim);
        Change::new(self.object.slim(), prev, self.deleted)
    }

    /// About how much memory it holds on to.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// How `filter` sees the change; `None` if not at all.
    pub fn seen(&self, filter: &Filter) -> Option<(Told, &Arc<Object>)> {
        let before = self.prev.as_ref().is_some_and(|p| filter.matches(p));
        let after = !self.deleted && filter.matches(&self.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some((Told::Added, &self.object)),
            (true, true) => Some((Told::Modified, &self.object)),
            (true, false) if self.deleted => Some((Told::Deleted, &self.object)),
            (true, false) => Some((Told::Deleted, self.departed())),
        }
    }

    fn departed(&self) -> &Arc<Object> {
        self.departed.get_or_init(|| match &self.prev {
            Some(prev) => Arc::new(prev.at_revision(self.revision)),
            None => self.object.clone(),
        })
    }

    /// The event as one line of a JSON watch, shared by all who are told the same.
    pub fn frame(&self, told: Told) -> Bytes {
        self.frames[told as usize]
            .get_or_init(|| {
                let object = match told {
                    Told::Deleted if !self.deleted => self.departed(),
                    _ => &self.object,
                };
                frame(told.as_str(), object.json())
            })
            .clone()
    }
}

/// One line of a JSON watch.
pub fn frame(told: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + 32);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(told.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// Which objects a list or watch is about.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The kind as it is served; objects stored as another one are converted before they are looked at.
    pub kind: Kind,
    /// Empty: all.
    pub namespace: String,
    pub labels: selector::label::Selector,
    pub fields: selector::field::Selector,
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

    /// The one name it can match, if the field selector says so.
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
            assert!(object.is_of(&stored) && !object.is_of(object.json()));
            let moved = object.at_revision(7);
            assert!(moved.is_of(&stored) && moved.revision() == 7);
            assert_eq!(moved.metadata().resource_version.as_deref(), Some("7"));
        }
    }

    #[test]
    fn a_deletion_is_told_with_its_own_revision() {
        let old = Arc::new(config_map(3));
        let change = Change::new(Arc::new(old.at_revision(8)), Some(old), true);
        let all = Filter::everything(&CONFIG_MAP, "");
        assert_eq!(
            change.seen(&all).map(|(t, o)| (t, o.revision())),
            Some((Told::Deleted, 8))
        );
        assert!(
            change
                .seen(&Filter::everything(&CONFIG_MAP, "elsewhere"))
                .is_none()
        );
        assert!(
            change
                .frame(Told::Deleted)
                .starts_with(br#"{"type":"DELETED","object":{"#)
        );
    }
}
