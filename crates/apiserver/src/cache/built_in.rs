//! The caches of the built-in kinds. One request searches for some fifteen of them, most by their kind: that is a search for a number and
//! not for names.

use knarr_api::{Kind, registry};

use super::kind::KindCache;
use crate::keys::group_name;

/// See the module.
pub(super) struct BuiltInCaches {
    /// Sorted by the [`names`] of the kinds, which are those that are stored as themselves.
    caches: Vec<KindCache>,
    /// The index in `caches` of each kind, also of those that are stored as another one. Sorted by [`Kind::built_in_id`].
    indices: Vec<(usize, usize)>,
}

/// The group, as keys have it, and the plural.
fn names(kind: &Kind) -> (&str, &str) {
    (group_name(kind), kind.plural())
}

impl Default for BuiltInCaches {
    fn default() -> Self {
        let stored = registry::ALL
            .iter()
            .filter(|kind| kind.stored_as().is_none() && kind.is_stored());
        let mut caches: Vec<KindCache> = stored.map(|kind| KindCache::new(kind)).collect();
        caches.sort_by(|a, b| names(&a.kind).cmp(&names(&b.kind)));
        let mut built_in = BuiltInCaches {
            caches,
            indices: Vec::new(),
        };
        let indices = registry::ALL.iter().filter_map(|kind| {
            let stored = kind.stored();
            let (group, plural) = names(&stored);
            Some((kind.built_in_id()?, built_in.index(group, plural)?))
        });
        let mut indices: Vec<(usize, usize)> = indices.collect();
        indices.sort_unstable();
        built_in.indices = indices;
        built_in
    }
}

impl BuiltInCaches {
    /// The cache of the kind as which `kind` is stored; `None` if it is not built in or not stored.
    pub fn of(&self, kind: &Kind) -> Option<&KindCache> {
        let id = kind.built_in_id()?;
        let at = self.indices.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        let (_, index) = self.indices.get(at)?;
        self.caches.get(*index)
    }

    /// The cache of the stored kind with these names.
    pub fn named(&self, group: &str, plural: &str) -> Option<&KindCache> {
        self.caches.get(self.index(group, plural)?)
    }

    fn index(&self, group: &str, plural: &str) -> Option<usize> {
        let found = self
            .caches
            .binary_search_by(|cache| names(&cache.kind).cmp(&(group, plural)));
        found.ok()
    }

    /// All of them, sorted by group and plural.
    pub fn all(&self) -> impl Iterator<Item = &KindCache> {
        self.caches.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stored_kind_has_the_cache_of_its_stored_names_and_no_other_kind_has_one() {
        let built_in = BuiltInCaches::default();
        for kind in registry::ALL {
            let stored = kind.stored();
            let (group, plural) = names(&stored);
            match (built_in.of(kind), built_in.named(group, plural)) {
                (Some(found), Some(named)) => {
                    assert!(std::ptr::eq(found, named), "{kind:?}");
                    assert_eq!(found.kind, stored);
                }
                (found, named) => assert!(
                    found.is_none() && named.is_none() && !kind.is_stored(),
                    "{kind:?}"
                ),
            }
        }
        let events = built_in.of(&registry::EVENTS_EVENT).map(|cache| &cache.kind);
        assert_eq!(events, Some(&registry::EVENT));
        assert!(built_in.named("core", "").is_none());
        let all: Vec<_> = built_in.all().map(|cache| names(&cache.kind)).collect();
        assert!(all.is_sorted() && all.len() > 50, "{all:?}");
    }
}
