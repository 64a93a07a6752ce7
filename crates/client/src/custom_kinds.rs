//! Custom resources as clients of the API know them: by the names of their kinds only.
//!
//! Components read only the metadata of custom resources, so a kind here has no schema. There is one for each set of names, however
//! often its CustomResourceDefinition changes, as long as it is in use. [`Caches::add_custom_kind_handler`] reports which are served.

pub(crate) mod served;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::custom::Names;
use knarr_api::kind::WeakKind;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION;
use knarr_api::{Kind, Object, k8s_openapi};
use parking_lot::Mutex;

use crate::informer::Caches;
use served::Handler;
pub use served::KindChange;

/// The kind that a CustomResourceDefinition defines, in its preferred version; `None` while it is not established.
pub fn kind_of(definition: &Object) -> Option<Kind> {
    static KINDS: Mutex<BTreeMap<Names, WeakKind>> = Mutex::new(BTreeMap::new());
    let names = Names::of(definition.get::<CustomResourceDefinition>()?)?;
    let mut kinds = KINDS.lock();
    if let Some(kind) = kinds.get(&names).and_then(WeakKind::upgrade) {
        return Some(kind);
    }
    // New names are rare: when there are some, the kinds that are no longer in use are removed.
    kinds.retain(|_, kind| kind.upgrade().is_some());
    let kind = names.kind();
    kinds.insert(names, kind.downgrade());
    Some(kind)
}

impl Caches {
    /// Calls `handler` for every custom kind that is served, and then for each that is added or removed. It runs on the
    /// informer's task and must not block.
    pub fn add_custom_kind_handler(
        self: &Arc<Self>,
        handler: impl Fn(&KindChange<'_>) + Send + Sync + 'static,
    ) {
        let handler: Handler = Arc::new(handler);
        let (there, first) = {
            let mut state = self.custom.0.lock();
            state.handlers.push(handler.clone());
            let there: Vec<Kind> = state.kinds.values().cloned().collect();
            (there, !std::mem::replace(&mut state.followed, true))
        };
        for kind in there {
            handler(&KindChange::Added(&self.store(&kind)));
        }
        if first {
            // The store holds the handler, and these caches hold the store.
            let caches = Arc::downgrade(self);
            self.store(&CUSTOM_RESOURCE_DEFINITION)
                .add_event_handler(move |change| {
                    if let Some(caches) = caches.upgrade() {
                        let kind = change.after().and_then(|o| kind_of(o));
                        caches.update_definition(change.object().name(), kind, change.after().is_none());
                    }
                });
        }
    }

    /// Sets the kind that a definition defines now; `deleted`: the definition itself was deleted.
    fn update_definition(&self, definition: &str, kind: Option<Kind>, deleted: bool) {
        let (before, handlers) = {
            let mut state = self.custom.0.lock();
            let before = match &kind {
                Some(kind) => state.kinds.insert(definition.to_string(), kind.clone()),
                None => state.kinds.remove(definition),
            };
            (before, state.handlers.clone())
        };
        if before == kind {
            return;
        }
        if let Some(removed) = before {
            self.forget(&removed, deleted);
            handlers.iter().for_each(|h| h(&KindChange::Removed(&removed)));
        }
        if let Some(kind) = kind {
            let store = self.store(&kind);
            handlers.iter().for_each(|h| h(&KindChange::Added(&store)));
        }
    }

    /// The custom kinds that are served now; empty before the first call of [`Caches::add_custom_kind_handler`].
    pub fn custom_kinds(&self) -> Vec<Kind> {
        self.custom.all()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::api::{Api, DeleteOptions};
    use crate::clock::TokioClock;
    use crate::fake::FakeApi;

    fn definition(version: &str) -> Box<dyn knarr_api::AnyObject> {
        let json = json!({"metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": version, "served": true, "storage": true}]},
            "status": {"acceptedNames": {"plural": "widgets", "kind": "Widget"}, "storedVersions": [version],
                "conditions": [{"type": "Established", "status": "True", "reason": "x", "message": "", "lastTransitionTime": null}]}});
        let ops = &CUSTOM_RESOURCE_DEFINITION.ops;
        ops.decode(json.to_string().as_bytes()).unwrap().object
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_are_added_and_removed_with_their_definitions_and_so_are_their_objects() {
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        let caches = Arc::new(Caches::new(api.clone()));
        let log = Arc::new(Mutex::new(Vec::new()));
        let to = log.clone();
        caches.add_custom_kind_handler(move |change| match change {
            KindChange::Added(store) => {
                let version = store.kind().version().to_string();
                to.lock().push(format!("+{version}"));
                let to = to.clone();
                store.add_event_handler(move |change| {
                    let sign = if change.after().is_some() { '+' } else { '-' };
                    to.lock()
                        .push(format!("{sign}{version}/{}", change.object().name()));
                });
            }
            KindChange::Removed(kind) => to.lock().push(format!("-{}", kind.version())),
        });
        let crd = &CUSTOM_RESOURCE_DEFINITION;
        api.create(crd, definition("v1")).await.unwrap();
        let made = api.update(crd, definition("v1"), "status").await.unwrap();
        let definitions = caches.store(crd);
        definitions.wait_for(made.revision()).await;
        let kind = &caches.custom_kinds()[0];
        let widget = json!({"metadata": {"name": "w", "namespace": "n"}, "spec": {"any": "thing"}});
        let widget = kind.ops.decode(widget.to_string().as_bytes()).unwrap().object;
        let made = api.create(kind, widget).await.unwrap();
        caches.store(kind).wait_for(made.revision()).await;

        let mut next = definition("v2");
        let meta = next.metadata_mut();
        meta.resource_version = definitions
            .get("", "widgets.example.com")
            .and_then(|o| o.metadata().resource_version.clone());
        let changed = api.update(crd, next, "").await.unwrap();
        definitions.wait_for(changed.revision()).await;
        let removed = api
            .delete(crd, "", "widgets.example.com", DeleteOptions::default())
            .await
            .unwrap();
        definitions.wait_for(removed.revision()).await;
        assert_eq!(
            *log.lock(),
            ["+v1", "+v1/w", "-v1", "+v2", "-v2"],
            "an object is not deleted when its kind is renamed"
        );
        assert!(caches.custom_kinds().is_empty());
    }
}
