//! Image garbage collection: which images are deleted when their filesystem is full, or when they are unused for long
//! (`imageGC*`, `image*GCAge`).
//!
//! The image of a container is in use as long as the runtime has the container, running or not. The least recently used
//! images are deleted first, among those the ones detected first.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::configuration::ImageGc;

/// An image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub size_bytes: u64,
    /// The runtime reports it as pinned.
    pub pinned: bool,
}

#[derive(Clone, Debug)]
struct ImageRecord {
    size_bytes: u64,
    pinned: bool,
    first_seen: Timestamp,
    last_used: Option<Timestamp>,
}

/// When the node's images were detected and last used, since this kubelet started.
#[derive(Clone, Debug)]
pub struct ImageRecords {
    began: Timestamp,
    by_id: BTreeMap<String, ImageRecord>,
}

/// The image filesystem is above its high threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub used_percent: u64,
    pub capacity_bytes: u64,
    pub to_free_bytes: u64,
}

impl Excess {
    /// The message of the event if not enough could be freed.
    pub fn message(&self, freed_bytes: u64) -> String {
        format!(
            "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free \
             sufficient space by deleting unused images (freed {freed_bytes} bytes). Investigate disk usage, as it \
             could be used by active images, logs, volumes, or other data.",
            self.used_percent,
            size(self.capacity_bytes),
        )
    }
}

/// `1.5 GiB`
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or("KiB");
    for next in units {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        unit = next;
    }
    format!("{amount:.1} {unit}")
}

/// Whether the image filesystem is above the high threshold, and how many bytes to free to get below the low one.
pub fn excess(policy: &ImageGc, capacity_bytes: u64, available_bytes: u64) -> Option<Excess> {
    if capacity_bytes == 0 {
        return None;
    }
    let available = available_bytes.min(capacity_bytes);
    let share = u128::from(available) * 100 / u128::from(capacity_bytes);
    let used_percent = 100 - u64::try_from(share).unwrap_or(100);
    if used_percent < u64::from(policy.high_percent) {
        return None;
    }
    let target = u128::from(capacity_bytes) * u128::from(100 - policy.low_percent.min(100)) / 100;
    let target = u64::try_from(target).unwrap_or(u64::MAX);
    Some(Excess {
        used_percent,
        capacity_bytes,
        to_free_bytes: target.saturating_sub(available),
    })
}

impl ImageRecords {
    pub fn new(began: Timestamp) -> Self {
        ImageRecords {
            began,
            by_id: BTreeMap::new(),
        }
    }

    /// Records the images of the node and those that containers use.
    pub fn detect_images(&mut self, images: &[Image], in_use: &BTreeSet<String>, now: Timestamp) {
        let mut before = std::mem::take(&mut self.by_id);
        for image in images {
            let known = before.remove(&image.id);
            let last_used = match in_use.contains(&image.id) {
                true => Some(now),
                false => known.as_ref().and_then(|k| k.last_used),
            };
            let record = ImageRecord {
                size_bytes: image.size_bytes,
                pinned: image.pinned,
                first_seen: known.map_or(now, |k| k.first_seen),
                last_used,
            };
            self.by_id.insert(image.id.clone(), record);
        }
    }

    /// Ids and sizes of the unused images, in the order of deletion. Call [`ImageRecords::detect_images`] with the same `now` before.
    pub fn unused(&self, policy: &ImageGc, now: Timestamp) -> Vec<(String, u64)> {
        let old_enough = |r: &ImageRecord| now.duration_since(r.first_seen) >= policy.min_age;
        self.listed(|r| r.last_used.is_none_or(|at| at < now) && old_enough(r))
    }

    /// The images that were unused for the maximum age; none before this kubelet has run for that long.
    pub fn too_old(&self, policy: &ImageGc, now: Timestamp) -> Vec<(String, u64)> {
        let max = policy.max_age;
        if max <= SignedDuration::ZERO || now.duration_since(self.began) <= max {
            return Vec::new();
        }
        self.listed(|r| r.last_used.is_none_or(|at| now.duration_since(at) > max))
    }

    fn listed(&self, is_unused: impl Fn(&ImageRecord) -> bool) -> Vec<(String, u64)> {
        let mut unused: Vec<_> = self
            .by_id
            .iter()
            .filter(|(_, r)| !r.pinned && is_unused(r))
            .collect();
        unused.sort_by_key(|(_, r)| (r.last_used, r.first_seen));
        unused
            .into_iter()
            .map(|(id, r)| (id.clone(), r.size_bytes))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
    }

    fn images(ids: &[&str]) -> Vec<Image> {
        let image = |id: &&str| Image {
            id: id.trim_end_matches('!').into(),
            size_bytes: 10,
            pinned: id.ends_with('!'),
        };
        ids.iter().map(image).collect()
    }

    fn used(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_string()).collect()
    }

    fn ids(listed: Vec<(String, u64)>) -> String {
        let ids: Vec<String> = listed.into_iter().map(|(id, _)| id).collect();
        ids.join(" ")
    }

    #[test]
    fn t8_the_least_recently_used_are_deleted_first_and_young_used_and_pinned_ones_stay() {
        let policy = ImageGc::default();
        let mut records = ImageRecords::new(at(0));
        records.detect_images(&images(&["b", "c", "p!"]), &used(&["b"]), at(0));
        records.detect_images(&images(&["a", "b", "c", "p!"]), &used(&["c"]), at(5));
        assert_eq!(
            ids(records.unused(&policy, at(5))),
            "b",
            "a is too young, c is used"
        );
        records.detect_images(&images(&["a", "b", "c", "new", "p!"]), &used(&[]), at(9));
        assert_eq!(ids(records.unused(&policy, at(9))), "a b c", "never, at 0, at 5");
        records.detect_images(&images(&["a", "c"]), &used(&[]), at(10));
        assert_eq!(ids(records.unused(&policy, at(10))), "a c");
    }

    #[test]
    fn t8_images_unused_for_the_maximum_age_are_deleted_once_the_kubelet_has_run_that_long() {
        let policy = ImageGc {
            max_age: SignedDuration::from_mins(10),
            ..ImageGc::default()
        };
        let mut records = ImageRecords::new(at(0));
        records.detect_images(&images(&["a", "b", "p!"]), &used(&["b"]), at(1));
        assert_eq!(ids(records.too_old(&policy, at(10))), "");
        assert_eq!(ids(records.too_old(&policy, at(11))), "a");
        assert_eq!(ids(records.too_old(&policy, at(12))), "a b");
        assert_eq!(ids(records.too_old(&ImageGc::default(), at(9999))), "");
    }

    #[test]
    fn t8_the_filesystem_is_freed_from_the_high_threshold_down_to_the_low_one() {
        let policy = ImageGc::default();
        for (capacity, available, want) in [
            (1000, 160, None),
            (1000, 150, Some((85, 50))),
            (1000, 0, Some((100, 200))),
            (1000, 5000, None),
            (0, 0, None),
        ] {
            let found = excess(&policy, capacity, available);
            assert_eq!(
                found.map(|e| (e.used_percent, e.to_free_bytes)),
                want,
                "{available}"
            );
        }
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1 << 20, "1.0 MiB"),
            (1 << 40, "1.0 TiB"),
            (1 << 50, "1024.0 TiB"),
        ] {
            assert_eq!(size(bytes), shown);
        }
        let full = excess(&policy, 3 << 29, 0).unwrap();
        assert_eq!(
            full.message(7),
            "Insufficient free disk space on the node's image filesystem (100% of 1.5 GiB used). Failed to free \
             sufficient space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used \
             by active images, logs, volumes, or other data."
        );
    }
}
