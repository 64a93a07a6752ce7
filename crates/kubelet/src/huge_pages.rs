//! Huge pages: memory that a node reserves in pages of a size, which pods request as resources with the size in their name
//! (`hugepages-2Mi`).
//!
//! They are not overcommitted: a container's request is its limit, and a container without a request gets none. Page sizes
//! are in bytes here, and have two more names: the resource's (`2Mi`) and the kernel's (`2MB`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::{Notation, Quantity};

use crate::resources::requests;

const RESOURCE: &str = "hugepages-";
/// The medium of an emptyDir, alone or before a size.
const MEDIUM: &str = "HugePages";
const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
/// No limit: more than any node has, and a whole number of pages of any size.
const UNLIMITED: i64 = 1 << 62;

/// Bytes by page size.
pub type Amounts = BTreeMap<i64, i64>;

/// The name of the resource for pages of this size.
pub fn resource(page_bytes: i64) -> String {
    let size = Quantity::from_value(page_bytes, Notation::BinarySi);
    format!("{RESOURCE}{}", size.to_wire().0)
}

/// The page size of a resource, if it is a huge page resource.
pub fn page_bytes(resource: &str) -> Option<i64> {
    let size = Quantity::parse(resource.strip_prefix(RESOURCE)?).ok()?;
    Some(size.value()).filter(|bytes| *bytes > 0)
}

/// The size, which is not 0, as cgroups and CRI name it: `64KB`, `2MB`, `1GB`.
pub fn kernel_name(page_bytes: i64) -> String {
    // The largest power of 1024 that divides it: 6 at most, for it has 64 bits.
    let unit = page_bytes.trailing_zeros() / 10;
    format!("{}{}", page_bytes >> (unit * 10), UNITS[unit as usize])
}

/// A node's capacity: a resource for each page size, also for those without reserved pages.
pub fn capacity(pages: &BTreeMap<i64, i64>) -> impl Iterator<Item = (String, Wire)> {
    pages.iter().map(|(page_bytes, count)| {
        let bytes = page_bytes.saturating_mul(*count);
        let bytes = Quantity::from_value(bytes, Notation::BinarySi);
        (resource(*page_bytes), bytes.to_wire())
    })
}

/// The huge pages in a resource list.
pub fn of_list(list: &BTreeMap<String, Wire>) -> Amounts {
    let mut found = Amounts::new();
    for (name, amount) in list {
        let amount = Quantity::of(amount).map_or(0, |q| q.value());
        if let Some(page) = page_bytes(name) {
            // `hugepages-1Gi` and `hugepages-1024Mi` are the same pages.
            let sum = found.entry(page).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    found
}

/// The page sizes that a node has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSizes(Vec<i64>);

impl PageSizes {
    pub fn of_capacity(capacity: &BTreeMap<String, Wire>) -> Self {
        PageSizes(of_list(capacity).into_keys().collect())
    }

    /// For each page size of the node: the requested bytes, else 0.
    fn all(&self, requested: &Amounts) -> Amounts {
        let amount = |page: &i64| requested.get(page).copied().unwrap_or(0);
        self.0.iter().map(|page| (*page, amount(page))).collect()
    }

    /// The limits of a pod's cgroup.
    pub fn of_pod(&self, pod: &Pod) -> Amounts {
        let mut requested = Amounts::new();
        for (name, amount) in requests(pod) {
            if let Some(page) = page_bytes(&name) {
                let sum = requested.entry(page).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
        self.all(&requested)
    }

    /// The limits of a container: its own, else the pod's.
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Amounts {
        let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
        let mut limits = Amounts::new();
        for resources in of_pod.into_iter().chain(container.resources.as_ref()) {
            limits.extend(resources.limits.iter().flat_map(of_list));
        }
        self.all(&limits)
    }

    /// The limits of a cgroup that does not limit huge pages itself.
    pub fn unlimited(&self) -> Amounts {
        self.0.iter().map(|page| (*page, UNLIMITED)).collect()
    }
}

/// Whether this medium of an emptyDir is huge pages.
pub fn is_medium(medium: &str) -> bool {
    medium == MEDIUM || page_size_of_medium(medium).is_some()
}

fn page_size_of_medium(medium: &str) -> Option<&str> {
    medium.strip_prefix(MEDIUM)?.strip_prefix('-')
}

/// Why a volume gets no huge pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageSizeError {
    #[error("medium {medium}: {why}")]
    InvalidSize { medium: String, why: String },
    #[error("medium: {medium} can't be used if container requests multiple huge page sizes")]
    SeveralSizes { medium: String },
    #[error("medium {medium}: hugePages storage requested, but there is no resource request for huge pages")]
    NotRequested { medium: String },
}

/// The page size of a volume: the one that its medium names, which the pod must request, or else the only one that the pod
/// requests.
pub fn of_volume(medium: &str, pod: &Pod) -> Result<i64, PageSizeError> {
    let named = match page_size_of_medium(medium) {
        None => None,
        Some(size) => match Quantity::parse(size) {
            Ok(size) => Some(size.value()),
            Err(why) => {
                return Err(PageSizeError::InvalidSize {
                    medium: medium.into(),
                    why: why.to_string(),
                });
            }
        },
    };
    let mut found = None;
    for page in requested_sizes(pod) {
        if named.is_some_and(|named| named != page) {
            continue;
        }
        if found.is_some_and(|found| found != page) {
            return Err(PageSizeError::SeveralSizes {
                medium: medium.into(),
            });
        }
        found = Some(page);
    }
    found.ok_or_else(|| PageSizeError::NotRequested {
        medium: medium.into(),
    })
}

/// The page sizes that the pod or one of its containers requests.
fn requested_sizes(pod: &Pod) -> impl Iterator<Item = i64> {
    let spec = pod.spec.iter();
    let lists = spec.flat_map(|spec| {
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        let own = containers.filter_map(|c| c.resources.as_ref());
        spec.resources.iter().chain(own)
    });
    let names = lists.flat_map(|r| r.requests.iter().flat_map(BTreeMap::keys));
    names.filter_map(|name| page_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const KIB: i64 = 1 << 10;
    const MIB: i64 = 1 << 20;
    const GIB: i64 = 1 << 30;

    fn requesting(amounts: Value) -> Value {
        json!({"requests": amounts, "limits": amounts})
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn l4_a_page_size_has_three_names() {
        for (bytes, name, kernel) in [
            (64 * KIB, "hugepages-64Ki", "64KB"),
            (2 * MIB, "hugepages-2Mi", "2MB"),
            (32 * MIB, "hugepages-32Mi", "32MB"),
            (GIB, "hugepages-1Gi", "1GB"),
            (16 * GIB, "hugepages-16Gi", "16GB"),
        ] {
            assert_eq!(resource(bytes), name);
            assert_eq!(page_bytes(name), Some(bytes));
            assert_eq!(kernel_name(bytes), kernel);
        }
        for none in [
            "memory",
            "hugepages-",
            "hugepages-0",
            "hugepages-x",
            "example.com/a",
        ] {
            assert_eq!(page_bytes(none), None, "{none}");
        }
    }

    #[test]
    fn l4_a_node_has_what_was_set_aside() {
        let has: Vec<_> = capacity(&[(2 * MIB, 4), (GIB, 0)].into()).collect();
        let has: Vec<_> = has
            .iter()
            .map(|(name, q)| (name.as_str(), q.0.as_str()))
            .collect();
        assert_eq!(has, [("hugepages-2Mi", "8Mi"), ("hugepages-1Gi", "0")]);
    }

    #[test]
    fn l4_a_container_without_a_request_gets_no_huge_pages() {
        let capacity = [
            ("hugepages-2Mi", "8Mi"),
            ("hugepages-1Gi", "0"),
            ("memory", "4Gi"),
        ];
        let capacity = capacity.map(|(name, has)| (name.to_string(), Wire(has.into())));
        let sizes = PageSizes::of_capacity(&capacity.into());
        let of = |small: i64, large: i64| Amounts::from([(2 * MIB, small), (GIB, large)]);
        assert_eq!(sizes.unlimited(), of(UNLIMITED, UNLIMITED));
        for (what, spec, whole, first) in [
            (
                "nothing",
                json!({"containers": [{"name": "a"}]}),
                of(0, 0),
                of(0, 0),
            ),
            (
                "two containers, of which one asks",
                json!({"containers": [{"name": "a"}, {"name": "b", "resources": requesting(json!({"hugepages-2Mi": "4Mi"}))}]}),
                of(4 * MIB, 0),
                of(0, 0),
            ),
            (
                "the larger of what begins and what runs",
                json!({
                    "initContainers": [{"name": "i", "resources": requesting(json!({"hugepages-2Mi": "8Mi"}))}],
                    "containers": [{"name": "a", "resources": requesting(json!({"hugepages-2Mi": "2Mi", "hugepages-1Gi": "1Gi"}))}],
                }),
                of(8 * MIB, GIB),
                of(2 * MIB, GIB),
            ),
            (
                "the pod, and of one size the container itself",
                json!({
                    "resources": requesting(json!({"hugepages-2Mi": "8Mi", "hugepages-1Gi": "2Gi"})),
                    "containers": [{"name": "a", "resources": requesting(json!({"hugepages-2Mi": "2Mi"}))}],
                }),
                of(8 * MIB, 2 * GIB),
                of(2 * MIB, 2 * GIB),
            ),
            (
                "pages that the node does not have",
                json!({"containers": [{"name": "a", "resources": requesting(json!({"hugepages-64Ki": "64Ki"}))}]}),
                of(0, 0),
                of(0, 0),
            ),
        ] {
            let pod = pod(spec);
            assert_eq!(sizes.of_pod(&pod), whole, "{what}");
            let container = &pod.spec.as_ref().unwrap().containers[0];
            assert_eq!(sizes.of_container(&pod, container), first, "{what}");
        }
    }

    #[test]
    fn l2_a_volume_has_the_page_size_that_its_pod_requests() {
        let one =
            json!({"containers": [{"name": "a", "resources": requesting(json!({"hugepages-2Mi": "4Mi"}))}]});
        let two = json!({"containers": [
            {"name": "a", "resources": requesting(json!({"hugepages-2Mi": "4Mi"}))},
            {"name": "b", "resources": requesting(json!({"hugepages-1Gi": "1Gi"}))},
        ]});
        let none = json!({"containers": [{"name": "a", "resources": requesting(json!({"memory": "4Mi"}))}]});
        let whole =
            json!({"resources": requesting(json!({"hugepages-1Gi": "1Gi"})), "containers": [{"name": "a"}]});
        let first = json!({
            "initContainers": [{"name": "i", "resources": requesting(json!({"hugepages-2Mi": "4Mi"}))}],
            "containers": [{"name": "a"}],
        });
        let not_requested = |medium: &str| {
            Err(PageSizeError::NotRequested {
                medium: medium.into(),
            })
        };
        for (spec, medium, want) in [
            (&one, "HugePages", Ok(2 * MIB)),
            (&one, "HugePages-2Mi", Ok(2 * MIB)),
            (&one, "HugePages-2048Ki", Ok(2 * MIB)),
            (&one, "HugePages-1Gi", not_requested("HugePages-1Gi")),
            (
                &two,
                "HugePages",
                Err(PageSizeError::SeveralSizes {
                    medium: "HugePages".into(),
                }),
            ),
            (&two, "HugePages-1Gi", Ok(GIB)),
            (&none, "HugePages", not_requested("HugePages")),
            (&whole, "HugePages", Ok(GIB)),
            (&first, "HugePages", Ok(2 * MIB)),
        ] {
            assert!(is_medium(medium));
            assert_eq!(of_volume(medium, &pod(spec.clone())), want, "{medium}");
        }
        assert!(of_volume("HugePages-large", &pod(one)).is_err());
        for other in ["", "Memory", "HugePages2Mi", "hugepages"] {
            assert!(!is_medium(other), "{other}");
        }
    }
}
