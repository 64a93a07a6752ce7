//! The medium of an emptyDir: the node's disk, its memory, or huge pages.

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

use crate::huge_pages::{self, PageSizeError};
use crate::resources::limit_of_all;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// At most this many bytes; `None` if there is no known limit.
    Memory {
        size_bytes: Option<i64>,
    },
    HugePages {
        page_bytes: i64,
    },
}

/// Why a volume has no medium.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    #[error("unknown storage medium {0:?}")]
    Unknown(String),
    #[error(transparent)]
    HugePages(#[from] PageSizeError),
}

/// The medium of a pod's volume. The error is reported to the user: the API accepts any name.
pub fn medium(
    source: &EmptyDirVolumeSource,
    pod: &Pod,
    allocatable_memory_bytes: i64,
) -> Result<Medium, MediumError> {
    match source.medium.as_deref().unwrap_or("") {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory {
            size_bytes: memory_size(source, pod, allocatable_memory_bytes),
        }),
        medium if huge_pages::is_medium(medium) => Ok(Medium::HugePages {
            page_bytes: huge_pages::of_volume(medium, pod)?,
        }),
        other => Err(MediumError::Unknown(other.into())),
    }
}

/// The minimum of Node Allocatable, the pod's memory limit and the volume's sizeLimit.
fn memory_size(source: &EmptyDirVolumeSource, pod: &Pod, allocatable_memory_bytes: i64) -> Option<i64> {
    let of_pod = limit_of_all(pod, "memory");
    let own = source.size_limit.as_ref().and_then(|q| Quantity::of(q).ok());
    let bounds = [of_pod, own].into_iter().flatten().map(|q| q.value());
    bounds
        .chain([allocatable_memory_bytes])
        .filter(|bytes| *bytes > 0)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn l2_a_volume_has_its_medium_and_is_limited_by_its_pod() {
        const MIB: i64 = 1 << 20;
        let huge = json!({"memory": "8Mi", "hugepages-2Mi": "2Mi"});
        let huge = json!({"requests": huge, "limits": huge});
        let memory = |mebibytes: i64| Medium::Memory {
            size_bytes: Some(mebibytes * MIB),
        };
        let limited = |memory: &str| json!({"limits": {"memory": memory}});
        for (source, resources, want) in [
            (json!({}), json!({}), Ok(Medium::Disk)),
            (
                json!({"medium": "", "sizeLimit": "1Mi"}),
                json!({}),
                Ok(Medium::Disk),
            ),
            (json!({"medium": "Memory"}), json!({}), Ok(memory(64))),
            (json!({"medium": "Memory"}), limited("32Mi"), Ok(memory(32))),
            (json!({"medium": "Memory"}), limited("128Mi"), Ok(memory(64))),
            (
                json!({"medium": "Memory", "sizeLimit": "16Mi"}),
                limited("32Mi"),
                Ok(memory(16)),
            ),
            (
                json!({"medium": "Memory", "sizeLimit": "48Mi"}),
                limited("32Mi"),
                Ok(memory(32)),
            ),
            (
                json!({"medium": "Memory", "sizeLimit": "0"}),
                json!({}),
                Ok(memory(64)),
            ),
            (
                json!({"medium": "HugePages"}),
                huge.clone(),
                Ok(Medium::HugePages { page_bytes: 2 * MIB }),
            ),
            (
                json!({"medium": "HugePages-2Mi"}),
                huge.clone(),
                Ok(Medium::HugePages { page_bytes: 2 * MIB }),
            ),
            (
                json!({"medium": "HugePages-1Gi"}),
                huge,
                Err(
                    "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for \
                     huge pages",
                ),
            ),
            (
                json!({"medium": "Tape"}),
                json!({}),
                Err("unknown storage medium \"Tape\""),
            ),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": {
                "containers": [{"name": "a", "resources": resources}],
            }}))
            .unwrap();
            let parsed: EmptyDirVolumeSource = serde_json::from_value(Value::clone(&source)).unwrap();
            let got = medium(&parsed, &pod, 64 * MIB);
            assert_eq!(
                got.map_err(|e| e.to_string()),
                want.map_err(String::from),
                "{source}"
            );
        }
    }

    #[test]
    fn l2_nothing_bounds_a_volume_where_nothing_is_known() {
        let source = serde_json::from_value(json!({"medium": "Memory"})).unwrap();
        let got = medium(&source, &Pod::default(), 0);
        assert_eq!(got, Ok(Medium::Memory { size_bytes: None }));
    }
}
