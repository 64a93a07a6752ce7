//! The kinds of custom resources, from the CustomResourceDefinitions in the cache, and their caches.
//!
//! The feed applies definitions in the order of the store: a client that has read a definition as Established finds its
//! kinds served, and every server of a cluster comes to the same result.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
};
use knarr_api::custom::Definition;
use knarr_api::emulation::Emulation;
use knarr_api::registry::ServedKinds;
use knarr_api::{Object, k8s_openapi};

use super::kind::KindCache;
use super::{Cache, group_plural, kind_of_stored};

/// `<group>/<plural>` of CustomResourceDefinitions.
pub(super) const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// The kinds of custom resources and their caches. See the module.
#[derive(Default)]
pub(super) struct CustomKinds {
    /// By the definition's name.
    definitions: BTreeMap<String, CustomDefinition>,
    /// By `<group>/<plural>`.
    caches: BTreeMap<String, Arc<KindCache>>,
    served: ServedKinds,
    /// Incremented with every change of the served kinds.
    changes: u64,
}

struct CustomDefinition {
    uid: String,
    spec: CustomResourceDefinitionSpec,
    names: Option<CustomResourceDefinitionNames>,
    definition: Definition,
}

/// A kind's cache: of a built-in kind, or of a custom one, whose definition may be deleted while the cache is in use.
pub enum KindCacheRef<'a> {
    BuiltIn(&'a KindCache),
    Custom(Arc<KindCache>),
}

impl Deref for KindCacheRef<'_> {
    type Target = KindCache;
    fn deref(&self) -> &KindCache {
        match self {
            KindCacheRef::BuiltIn(cache) => cache,
            KindCacheRef::Custom(cache) => cache,
        }
    }
}

impl Cache {
    /// The kinds that are served now.
    pub fn served(&self) -> ServedKinds {
        self.custom.read().served.clone()
    }

    /// Incremented whenever [`Cache::served`] changes.
    pub fn served_changes(&self) -> u64 {
        self.custom.read().changes
    }

    /// The cache of `<group>/<plural>`.
    pub(super) fn kind_cache(&self, group_plural: &str) -> Option<KindCacheRef<'_>> {
        let (group, plural) = group_plural.split_once('/')?;
        match self.built_in(group, plural) {
            Some(cache) => Some(KindCacheRef::BuiltIn(cache)),
            None => self.custom_cache(group_plural).map(KindCacheRef::Custom),
        }
    }

    pub(super) fn custom_cache(&self, group_plural: &str) -> Option<Arc<KindCache>> {
        self.custom.read().caches.get(group_plural).cloned()
    }

    pub(super) fn custom_caches(&self) -> Vec<Arc<KindCache>> {
        self.custom.read().caches.values().cloned().collect()
    }

    /// Applies a definition as of `revision`. Watches of a kind whose definition changed end, and clients have to list
    /// again: the objects may be different.
    pub(super) fn apply_definition(&self, object: &Object, revision: u64) {
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
            custom.remove(object.name());
            return;
        };
        let key = group_plural(&definition.stored);
        let cache = Arc::new(KindCache::new(&definition.stored));
        let before = custom.caches.get(&key);
        let objects = before.map_or_else(BTreeMap::new, |before| decode_objects_again(before, &cache));
        cache.load(objects, revision);
        custom.caches.insert(key, cache);
        let custom_definition = CustomDefinition {
            uid: object.uid().to_string(),
            spec: crd.spec.clone(),
            names,
            definition,
        };
        custom
            .definitions
            .insert(object.name().to_string(), custom_definition);
        custom.publish();
    }

    /// Removes the kinds of a deleted definition.
    pub(super) fn remove_definition(&self, name: &str) {
        self.custom.write().remove(name);
    }

    /// Replaces all definitions, when the cache starts over.
    pub(super) fn replace_definitions(&self, definitions: &[Arc<Object>], revision: u64) {
        let changes = self.served_changes();
        let emulation = self.served().emulation();
        *self.custom.write() = CustomKinds {
            changes,
            ..CustomKinds::emulating(emulation)
        };
        for definition in definitions {
            self.apply_definition(definition, revision);
        }
    }
}

impl CustomKinds {
    pub(super) fn emulating(emulation: Emulation) -> Self {
        CustomKinds {
            served: ServedKinds::emulating(emulation, []),
            ..CustomKinds::default()
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(removed) = self.definitions.remove(name) {
            self.caches.remove(&group_plural(&removed.definition.stored));
            self.publish();
        }
    }

    fn publish(&mut self) {
        let definitions = self.definitions.values();
        let kinds = definitions.flat_map(|d| d.definition.served.iter().cloned());
        self.served = ServedKinds::emulating(self.served.emulation(), kinds);
        self.changes += 1;
    }
}

/// Decodes the objects of a kind again, by its changed definition.
fn decode_objects_again(before: &KindCache, now: &KindCache) -> BTreeMap<String, Arc<Object>> {
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
                "skipped an object that cannot be decoded by its changed CustomResourceDefinition: {e}"
            ),
        }
        true
    });
    objects
}
