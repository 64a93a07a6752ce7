//! Kinds that users bring, as components in front of the API know them: by their names only.
//!
//! A component looks at the metadata of such objects, so a kind here has no schema, and there is one for each set of
//! names, however often its definition changes, for as long as somebody uses it. [`Caches::follow_custom_kinds`] tells
//! which are there now.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::custom::Names;
use knarr_api::kind::WeakKind;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION;
use knarr_api::{Kind, Object, k8s_openapi};
use parking_lot::Mutex;

use crate::cache::Store;
use crate::informer::Caches;

/// The kind a definition brings, in the version its users prefer; `None` while it is not established.
pub fn kind_of(definition: &Object) -> Option<Kind> {
    static KINDS: Mutex<BTreeMap<Names, WeakKind>> = Mutex::new(BTreeMap::new());
    let names = Names::of(definition.get::<CustomResourceDefinition>()?)?;
    let mut kinds = KINDS.lock();
    if let Some(kind) = kinds.get(&names).and_then(WeakKind::upgrade) {
        return Some(kind);
    }
    // Names come seldom: whenever some do, those that nobody uses any more go.
    kinds.retain(|_, kind| kind.upgrade().is_some());
    let kind = names.kind();
    kinds.insert(names, kind.downgrade());
    Some(kind)
}

/// A kind that has come, with its objects' store, or gone.
pub enum KindChange<'a> {
    Came(&'a Arc<Store>),
    /// Its store ends. If its definition has gone, the store has told the end of all objects; if the definition names
    /// it otherwise now, the objects are still there under the other name, which comes next.
    Gone(&'a Kind),
}

type Handler = Arc<dyn Fn(&KindChange<'_>) + Send + Sync>;

/// The custom kinds that caches hold. See the module.
#[derive(Default)]
pub(crate) struct CustomKinds(Mutex<Known>);

#[derive(Default)]
struct Known {
    followed: bool,
    /// By their definitions' names.
    kinds: BTreeMap<String, Kind>,
    handlers: Vec<Handler>,
}

impl CustomKinds {
    pub(crate) fn all(&self) -> Vec<Kind> {
        self.0.lock().kinds.values().cloned().collect()
    }

    pub(crate) fn stop(&self) {
        self.0.lock().handlers.clear();
    }
}

impl Caches {
    /// Tells of every custom kind there is and of each that comes and goes, from now on. Runs on the informer's task
    /// and must not block.
    pub fn follow_custom_kinds(self: &Arc<Self>, handler: impl Fn(&KindChange<'_>) + Send + Sync + 'static) {
        let handler: Handler = Arc::new(handler);
        let (there, first) = {
            let mut known = self.custom.0.lock();
            known.handlers.push(handler.clone());
            let there: Vec<Kind> = known.kinds.values().cloned().collect();
            (there, !std::mem::replace(&mut known.followed, true))
        };
        for kind in there {
            handler(&KindChange::Came(&self.store(&kind)));
        }
        if first {
            // The store holds the handler and these caches the store.
            let caches = Arc::downgrade(self);
            self.store(&CUSTOM_RESOURCE_DEFINITION).subscribe(move |change| {
                if let Some(caches) = caches.upgrade() {
                    let kind = change.after().and_then(|o| kind_of(o));
                    caches.define(change.object().name(), kind, change.after().is_none());
                }
            });
        }
    }

    /// What a definition brings now; nothing for ever if it has `ended`.
    fn define(&self, definition: &str, kind: Option<Kind>, ended: bool) {
        let (before, handlers) = {
            let mut known = self.custom.0.lock();
            let before = match &kind {
                Some(kind) => known.kinds.insert(definition.to_string(), kind.clone()),
                None => known.kinds.remove(definition),
            };
            (before, known.handlers.clone())
        };
        if before == kind {
            return;
        }
        if let Some(gone) = before {
            self.forget(&gone, ended);
            handlers.iter().for_each(|h| h(&KindChange::Gone(&gone)));
        }
        if let Some(kind) = kind {
            let store = self.store(&kind);
            handlers.iter().for_each(|h| h(&KindChange::Came(&store)));
        }
    }

    /// The custom kinds that are there now, as far as [`Caches::follow_custom_kinds`] is in use.
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
    async fn kinds_come_and_go_with_their_definitions_and_their_objects_with_them() {
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        let caches = Arc::new(Caches::new(api.clone()));
        let log = Arc::new(Mutex::new(Vec::new()));
        let to = log.clone();
        caches.follow_custom_kinds(move |change| match change {
            KindChange::Came(store) => {
                let version = store.kind().version().to_string();
                to.lock().push(format!("+{version}"));
                let to = to.clone();
                store.subscribe(move |change| {
                    let sign = if change.after().is_some() { '+' } else { '-' };
                    to.lock()
                        .push(format!("{sign}{version}/{}", change.object().name()));
                });
            }
            KindChange::Gone(kind) => to.lock().push(format!("-{}", kind.version())),
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
        let gone = api
            .delete(crd, "", "widgets.example.com", DeleteOptions::default())
            .await
            .unwrap();
        definitions.wait_for(gone.revision()).await;
        assert_eq!(
            *log.lock(),
            ["+v1", "+v1/w", "-v1", "+v2", "-v2"],
            "an object whose kind is called otherwise now has not gone"
        );
        assert!(caches.custom_kinds().is_empty());
    }
}
