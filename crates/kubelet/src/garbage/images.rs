//! Which images go when their disk fills up, or when nobody has used them for long (`imageGC*`, `image*GCAge`).
//!
//! An image that a container was made from stays for as long as that container is on record, running or not. The
//! least recently used go first, among those the ones seen first.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::configuration::ImageGc;

/// An image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub size_bytes: u64,
    /// Somebody said that it must stay.
    pub pinned: bool,
}

#[derive(Clone, Debug)]
struct Record {
    size_bytes: u64,
    pinned: bool,
    first_seen: Timestamp,
    last_used: Option<Timestamp>,
}

/// What is remembered of the node's images, over this kubelet's life.
#[derive(Clone, Debug)]
pub struct Records {
    began: Timestamp,
    by_id: BTreeMap<String, Record>,
}

/// The images' disk is too full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub used_percent: u64,
    pub capacity_bytes: u64,
    pub to_free_bytes: u64,
}

impl Excess {
    /// The event, where not enough could be freed.
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

/// Whether the images' disk is used above the high mark, and how much is to go to get below the low one.
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
    let wanted = u128::from(capacity_bytes) * u128::from(100 - policy.low_percent.min(100)) / 100;
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    Some(Excess {
        used_percent,
        capacity_bytes,
        to_free_bytes: wanted.saturating_sub(available),
    })
}

impl Records {
    pub fn new(began: Timestamp) -> Self {
        Records {
            began,
            by_id: BTreeMap::new(),
        }
    }

    /// What is there now, and which of it containers were made from.
    pub fn see(&mut self, images: &[Image], in_use: &BTreeSet<String>, now: Timestamp) {
        let mut before = std::mem::take(&mut self.by_id);
        for image in images {
            let known = before.remove(&image.id);
            let last_used = match in_use.contains(&image.id) {
                true => Some(now),
                false => known.as_ref().and_then(|k| k.last_used),
            };
            let record = Record {
                size_bytes: image.size_bytes,
                pinned: image.pinned,
                first_seen: known.map_or(now, |k| k.first_seen),
                last_used,
            };
            self.by_id.insert(image.id.clone(), record);
        }
    }

    /// Ids and sizes of what may go, in that order. Call [`Records::see`] with the same `now` before.
    pub fn unused(&self, policy: &ImageGc, now: Timestamp) -> Vec<(String, u64)> {
        let old_enough = |r: &Record| now.duration_since(r.first_seen) >= policy.min_age;
        self.listed(|r| r.last_used.is_none_or(|at| at < now) && old_enough(r))
    }

    /// Those that nobody has used for the maximum age; none before this kubelet itself is as old.
    pub fn too_old(&self, policy: &ImageGc, now: Timestamp) -> Vec<(String, u64)> {
        let max = policy.max_age;
        if max <= SignedDuration::ZERO || now.duration_since(self.began) <= max {
            return Vec::new();
        }
        self.listed(|r| r.last_used.is_none_or(|at| now.duration_since(at) > max))
    }

    fn listed(&self, goes: impl Fn(&Record) -> bool) -> Vec<(String, u64)> {
        let mut going: Vec<_> = self.by_id.iter().filter(|(_, r)| !r.pinned && goes(r)).collect();
        going.sort_by_key(|(_, r)| (r.last_used, r.first_seen));
        going
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
    fn t8_the_longest_unused_go_first_and_young_used_and_pinned_ones_stay() {
        let policy = ImageGc::default();
        let mut records = Records::new(at(0));
        records.see(&images(&["b", "c", "p!"]), &used(&["b"]), at(0));
        records.see(&images(&["a", "b", "c", "p!"]), &used(&["c"]), at(5));
        assert_eq!(
            ids(records.unused(&policy, at(5))),
            "b",
            "a is too young, c is used"
        );
        records.see(&images(&["a", "b", "c", "new", "p!"]), &used(&[]), at(9));
        assert_eq!(ids(records.unused(&policy, at(9))), "a b c", "never, at 0, at 5");
        records.see(&images(&["a", "c"]), &used(&[]), at(10));
        assert_eq!(ids(records.unused(&policy, at(10))), "a c");
    }

    #[test]
    fn t8_what_nobody_used_for_the_maximum_age_goes_once_the_kubelet_is_as_old() {
        let policy = ImageGc {
            max_age: SignedDuration::from_mins(10),
            ..ImageGc::default()
        };
        let mut records = Records::new(at(0));
        records.see(&images(&["a", "b", "p!"]), &used(&["b"]), at(1));
        assert_eq!(ids(records.too_old(&policy, at(10))), "");
        assert_eq!(ids(records.too_old(&policy, at(11))), "a");
        assert_eq!(ids(records.too_old(&policy, at(12))), "a b");
        assert_eq!(ids(records.too_old(&ImageGc::default(), at(9999))), "");
    }

    #[test]
    fn t8_the_disk_is_freed_from_the_high_mark_down_to_the_low_one() {
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
        let full = excess(&policy, 3 << 29, 0).unwrap();
        assert_eq!(
            full.message(7),
            "Insufficient free disk space on the node's image filesystem (100% of 1.5 GiB used). Failed to free \
             sufficient space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used \
             by active images, logs, volumes, or other data."
        );
    }
}
