//! The metrics of what the watch cache contains, by kind.

use knarr_client::metrics::Samples;

use super::Cache;
use super::kind::WINDOW_CHANGES;

/// How much the cache of a kind contains, as its metrics show it.
struct Contains {
    objects: usize,
    /// The revision of the kind's last change.
    newest: u64,
    changes: usize,
    changes_bytes: usize,
}

impl Cache {
    /// Adds the metrics of what the cache contains now.
    pub(crate) fn write_metrics(&self, samples: &mut Samples) {
        let custom = self.custom_caches();
        let fixed = self.built_in_caches();
        let all = fixed.chain(custom.iter().map(|cache| &**cache));
        let mut kinds: Vec<_> = all
            .map(|cache| {
                let (changes, changes_bytes) = cache.kept_changes();
                let contains = Contains {
                    objects: cache.count(),
                    newest: cache.newest(),
                    changes,
                    changes_bytes,
                };
                (cache.kind.clone(), contains)
            })
            .collect();
        kinds.sort_by_key(|(kind, _)| kind.qualified());
        samples.gauge(
            "apiserver_storage_objects",
            "(Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last \
             check split by kind. In case of a fetching error, the value will be -1.",
        );
        for (kind, contains) in &kinds {
            samples.add(&[("resource", &kind.qualified())], contains.objects as f64);
        }
        let mut of_kind = |name: &str, help: &str, value: fn(&Contains) -> f64| {
            samples.gauge(name, help);
            for (kind, contains) in &kinds {
                let labels = [("group", kind.group()), ("resource", kind.plural())];
                samples.add(&labels, value(contains));
            }
        };
        of_kind(
            "apiserver_resource_objects",
            "Number of stored objects at the time of last check split by kind.",
            |contains| contains.objects as f64,
        );
        // A float has 53 bits.
        of_kind(
            "apiserver_watch_cache_resource_version",
            "Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits.",
            |contains| (contains.newest % 1_000_000_000_000_000) as f64,
        );
        of_kind(
            "watch_cache_capacity",
            "Total capacity of watch cache broken by resource type.",
            |_| WINDOW_CHANGES as f64,
        );
        of_kind(
            "knarr_watch_cache_changes",
            "Number of changes that are kept for watches that resume, by resource type.",
            |contains| contains.changes as f64,
        );
        of_kind(
            "knarr_watch_cache_changes_bytes",
            "About how many bytes the kept changes hold, by resource type.",
            |contains| contains.changes_bytes as f64,
        );
        samples.gauge(
            "knarr_cache_revision",
            "The revision that the watch cache has caught up with.",
        );
        samples.add(&[], self.revision() as f64);
    }
}
