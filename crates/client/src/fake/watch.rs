//! The watches of the [`FakeApi`](super::FakeApi): which changes each gets, and as which events.

use std::sync::Arc;

use knarr_api::{Kind, Object, fields};
use knarr_apimachinery::{Error, Result, labels};
use tokio::sync::mpsc;

use crate::api::WatchEvent;

/// A watch that is open.
pub(super) struct Watcher {
    pub kind: Kind,
    pub filter: Filter,
    pub events: mpsc::UnboundedSender<Result<WatchEvent>>,
}

impl Watcher {
    /// Sends the watcher its event for a change, if it gets one. False if the watch is closed.
    pub fn send(&self, change: &ObjectChange) -> bool {
        if self.kind != *change.new.kind() {
            return !self.events.is_closed();
        }
        match self.filter.event(change) {
            Some(event) => self.events.send(Ok(event)).is_ok(),
            None => !self.events.is_closed(),
        }
    }
}

/// A change of one object.
#[derive(Clone)]
pub(super) struct ObjectChange {
    pub revision: u64,
    pub old: Option<Arc<Object>>,
    pub new: Arc<Object>,
    pub deleted: bool,
}

/// What a list or watch selects of a kind.
#[derive(Clone)]
pub(super) struct Filter {
    namespace: String,
    labels: labels::Selector,
    fields: fields::Selector,
}

impl Filter {
    pub fn new(kind: &Kind, namespace: &str, labels: &str, fields: &str) -> Result<Self> {
        Ok(Filter {
            namespace: namespace.to_string(),
            labels: labels::Selector::parse(labels).map_err(|e| Error::bad_request(e.to_string()))?,
            fields: fields::Selector::parse(kind, fields)?,
        })
    }

    pub fn matches(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || self.namespace == object.namespace())
            && self.labels.matches(object.metadata().labels.as_ref())
            && self.fields.matches(object)
    }

    /// The watch event that a watch with this filter gets for a change.
    pub fn event(&self, change: &ObjectChange) -> Option<WatchEvent> {
        let was = change.old.as_ref().is_some_and(|o| self.matches(o));
        let is = !change.deleted && self.matches(&change.new);
        match (was, is) {
            (false, true) => Some(WatchEvent::Added(change.new.clone())),
            (true, true) => Some(WatchEvent::Modified(change.new.clone())),
            (true, false) => Some(WatchEvent::Deleted(change.new.clone())),
            (false, false) => None,
        }
    }
}
