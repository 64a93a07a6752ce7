//! The kinds that users brought, as the definitions in the cache say, and their caches.
//!
//! Definitions are read by the feed, in the order of the store: whoever was answered that a definition is established
//! finds its kinds served, and every server of a cluster comes to the same.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
};
use knarr_api::custom::Definition;
use knarr_api::emulation::Emulation;
use knarr_api::registry::Served;
use knarr_api::{Object, k8s_openapi};

use super::kind::KindCache;
use super::{Cache, group_plural, kind_of_stored};

/// `<group>/<plural>` of definitions themselves.
pub(super) const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// See the module.
#[derive(Default)]
pub(super) struct Custom {
    /// By the definition's name.
    definitions: HashMap<String, Defined>,
    /// By `<group>/<plural>`.
    caches: HashMap<String, Arc<KindCache>>,
    served: Served,
    /// Counts up with every change of what is served.
    changes: u64,
}

struct Defined {
    uid: String,
    spec: CustomResourceDefinitionSpec,
    names: Option<CustomResourceDefinitionNames>,
    definition: Definition,
}

/// A kind's cache: of a built-in kind, or of one that may go while it is looked at.
pub enum Held<'a> {
    Fixed(&'a KindCache),
    Custom(Arc<KindCache>),
}

impl Deref for Held<'_> {
    type Target = KindCache;
    fn deref(&self) -> &KindCache {
        match self {
            Held::Fixed(cache) => cache,
            Held::Custom(cache) => cache,
        }
    }
}

impl Cache {
    /// The kinds that are served now.
    pub fn served(&self) -> Served {
        self.custom.read().served.clone()
    }

    /// Counts up whenever [`Cache::served`] changes.
    pub fn served_changes(&self) -> u64 {
        self.custom.read().changes
    }

    /// The cache of `<group>/<plural>`.
    pub(super) fn held(&self, group_plural: &str) -> Option<Held<'_>> {
        match self.kinds.get(group_plural) {
            Some(cache) => Some(Held::Fixed(cache)),
            None => self.custom_cache(group_plural).map(Held::Custom),
        }
    }

    fn custom_cache(&self, group_plural: &str) -> Option<Arc<KindCache>> {
        self.custom.read().caches.get(group_plural).cloned()
    }

    pub(super) fn custom_caches(&self) -> Vec<Arc<KindCache>> {
        self.custom.read().caches.values().cloned().collect()
    }

    /// Takes in what a definition says now, as of `revision`. Watchers of a kind whose definition changed have to begin
    /// anew: their objects may look different.
    pub(super) fn define(&self, object: &Object, revision: u64) {
        let Some(crd) = object.get::<CustomResourceDefinition>() else {
            return;
        };
        let names = crd.status.as_ref().and_then(|s| s.accepted_names.clone());
        let mut custom = self.custom.write();
        if let Some(known) = custom.definitions.get(object.name())
            && known.uid == object.uid()
            && known.spec == crd.spec
            && known.names == names
        {
            return;
        }
        let Some(definition) = Definition::of(crd) else {
            custom.forget(object.name());
            return;
        };
        let key = group_plural(&definition.stored);
        let cache = Arc::new(KindCache::new(&definition.stored));
        let before = custom.caches.get(&key);
        let objects = before.map_or_else(BTreeMap::new, |before| reread(before, &cache));
        cache.load(objects, revision);
        custom.caches.insert(key, cache);
        let defined = Defined {
            uid: object.uid().to_string(),
            spec: crd.spec.clone(),
            names,
            definition,
        };
        custom.definitions.insert(object.name().to_string(), defined);
        custom.publish();
    }

    /// The definition is gone, and with it its kinds.
    pub(super) fn undefine(&self, name: &str) {
        self.custom.write().forget(name);
    }

    /// Keeps only what these definitions say, when the cache starts over.
    pub(super) fn redefine(&self, definitions: &[Arc<Object>], revision: u64) {
        let changes = self.served_changes();
        let emulation = self.served().emulation();
        *self.custom.write() = Custom {
            changes,
            ..Custom::emulating(emulation)
        };
        for definition in definitions {
            self.define(definition, revision);
        }
    }
}

impl Custom {
    pub(super) fn emulating(emulation: Emulation) -> Self {
        Custom {
            served: Served::emulating(emulation, []),
            ..Custom::default()
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some(gone) = self.definitions.remove(name) {
            self.caches.remove(&group_plural(&gone.definition.stored));
            self.publish();
        }
    }

    fn publish(&mut self) {
        let definitions = self.definitions.values();
        let kinds = definitions.flat_map(|d| d.definition.served.iter().cloned());
        self.served = Served::emulating(self.served.emulation(), kinds);
        self.changes += 1;
    }
}

/// The objects of a kind as its changed definition has them.
fn reread(before: &KindCache, now: &KindCache) -> BTreeMap<String, Arc<Object>> {
    let mut objects = BTreeMap::new();
    before.scan("", "", |object| {
        let kind = &kind_of_stored(&now.kind, object.json());
        match kind.ops.decode(object.json()) {
            Ok(mut decoded) => {
                let stored = Object::encode_for_store(&mut *decoded.object);
                let key = crate::keys::local(object.namespace(), object.name());
                let object = Object::from_stored(kind, decoded.object, &stored, object.revision());
                objects.insert(key, Arc::new(object));
            }
            Err(e) => tracing::error!(
                kind = ?now.kind,
                object = object.name(),
                "passed over an object that its changed definition cannot read: {e}"
            ),
        }
        true
    });
    objects
}
