//! Emulation of an older minor version (KEP-4330): which of the kinds of v1.36 an API server of that version serves.
//!
//! The kinds that are served by default are all stable, and no stable kind has ever been removed. So the emulation of a
//! version is a table of the kinds that became stable after it, taken from the prerelease lifecycle of `k8s.io/api`
//! (`APILifecycleIntroduced`). The emulation covers discovery, OpenAPI and requests. Fields of kinds that
//! are served do not change, and the components of a cluster keep working as those of v1.36.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::kind::Kind;

/// The minor version that knarr is.
pub const MINOR: u16 = 36;
/// The oldest that can be emulated: three minor versions, as clusters may be upgraded (KEP-4330).
pub const OLDEST_MINOR: u16 = MINOR - 3;

/// Kinds that became stable since [`OLDEST_MINOR`]: group, version, kind and the minor version that introduced them.
const INTRODUCED: &[(&str, &str, &str, u16)] = &[
    (
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicy",
        36,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicyBinding",
        36,
    ),
    ("resource.k8s.io", "v1", "DeviceClass", 34),
    ("resource.k8s.io", "v1", "ResourceClaim", 34),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", 34),
    ("resource.k8s.io", "v1", "ResourceSlice", 34),
    ("storage.k8s.io", "v1", "VolumeAttributesClass", 34),
];

/// The version that is emulated, and the oldest that the cluster's other servers may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    minor: u16,
    min_compatibility_minor: u16,
}

/// Why a version is rejected.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0:?}: expected a version such as 1.35, or kube=1.35")]
    Form(String),
    #[error("emulation version 1.{0} is not between [1.{OLDEST_MINOR}, 1.{MINOR}]")]
    Emulation(u16),
    #[error("minCompatibilityVersion version 1.{0} is not between [1.{OLDEST_MINOR}, 1.{1}]")]
    MinCompatibility(u16, u16),
}

/// A version of Kubernetes, `1.35` or as kube-apiserver's flags name it, `kube=1.35`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinorVersion(u16);

impl FromStr for MinorVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let version = text.strip_prefix("kube=").unwrap_or(text);
        let version = version.strip_prefix('v').unwrap_or(version);
        let minor = version.strip_prefix("1.").and_then(|minor| minor.parse().ok());
        let minor = minor.ok_or_else(|| Error::Form(text.to_string()))?;
        Ok(MinorVersion(minor))
    }
}

impl fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

impl Default for MinorVersion {
    fn default() -> Self {
        MinorVersion(MINOR)
    }
}

impl Default for Emulation {
    /// No emulation: v1.36, next to servers of v1.35 at the oldest.
    fn default() -> Self {
        Emulation {
            minor: MINOR,
            min_compatibility_minor: MINOR - 1,
        }
    }
}

impl Emulation {
    /// `None`: v1.36, and the version before the emulated one.
    ///
    /// # Errors
    ///
    /// If a version cannot be emulated, or `min_compatibility` is newer than the emulated one.
    pub fn new(
        emulated: Option<MinorVersion>,
        min_compatibility: Option<MinorVersion>,
    ) -> Result<Self, Error> {
        let minor = emulated.map_or(MINOR, |version| version.0);
        if !(OLDEST_MINOR..=MINOR).contains(&minor) {
            return Err(Error::Emulation(minor));
        }
        let default = (minor - 1).max(OLDEST_MINOR);
        let min_compatibility_minor = min_compatibility.map_or(default, |version| version.0);
        if !(OLDEST_MINOR..=minor).contains(&min_compatibility_minor) {
            return Err(Error::MinCompatibility(min_compatibility_minor, minor));
        }
        Ok(Emulation {
            minor,
            min_compatibility_minor,
        })
    }

    /// The emulated minor version.
    pub fn minor(self) -> u16 {
        self.minor
    }

    pub fn min_compatibility_minor(self) -> u16 {
        self.min_compatibility_minor
    }

    /// Whether a built-in kind is served.
    pub fn serves(self, kind: &Kind) -> bool {
        self.minor == MINOR
            || !INTRODUCED.iter().any(|(group, version, name, minor)| {
                *minor > self.minor
                    && kind.group() == *group
                    && kind.version() == *version
                    && kind.kind() == *name
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{self, ServedKinds};

    fn emulation(minor: u16) -> Emulation {
        Emulation::new(Some(MinorVersion(minor)), None).unwrap()
    }

    #[test]
    fn kinds_that_became_stable_later_are_not_served() {
        let missing = |minor: u16| {
            let served = ServedKinds::emulating(emulation(minor), []);
            let mut missing: Vec<&str> = registry::ALL
                .iter()
                .filter(|kind| served.by_kind(&kind.api_version(), kind.kind()).is_none())
                .map(|kind| kind.kind())
                .collect();
            missing.sort_unstable();
            missing
        };
        let mutating = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];
        let devices = [
            "DeviceClass",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "ResourceClaim",
            "ResourceClaimTemplate",
            "ResourceSlice",
            "VolumeAttributesClass",
        ];
        assert_eq!(missing(36), [""; 0]);
        assert_eq!(missing(35), mutating);
        assert_eq!(missing(34), mutating);
        assert_eq!(missing(33), devices);
    }

    #[test]
    fn a_group_all_kinds_of_which_came_later_is_not_served() {
        let served = ServedKinds::emulating(emulation(33), []);
        let has = |group: &str| served.groups().iter().any(|(name, _)| *name == group);
        assert!(!has("resource.k8s.io") && has("storage.k8s.io"));
        assert!(served.of("resource.k8s.io", "v1").is_empty());
        let found = served.by_resource("storage.k8s.io", "v1", "volumeattributesclasses");
        assert!(found.is_none());
        assert!(served.all().all(|kind| kind.kind() != "VolumeAttributesClass"));
    }

    #[test]
    fn each_row_of_the_table_is_a_kind_that_is_served() {
        for (group, version, name, minor) in INTRODUCED {
            assert!((OLDEST_MINOR + 1..=MINOR).contains(minor), "{name}");
            let found = registry::by_kind(&format!("{group}/{version}"), name);
            assert!(found.is_some(), "{group}/{version} {name}");
        }
    }

    #[test]
    fn only_the_versions_from_which_clusters_are_upgraded_are_emulated() {
        let read = |text: &str| text.parse::<MinorVersion>();
        assert_eq!(read("kube=1.34"), Ok(MinorVersion(34)));
        assert_eq!(read("1.34"), Ok(MinorVersion(34)));
        for text in ["", "1", "1.", "2.34", "1.34.1", "wardle=1.2", "latest"] {
            assert_eq!(read(text), Err(Error::Form(text.into())));
        }
        let new = |emulated: Option<u16>, min: Option<u16>| {
            let found = Emulation::new(emulated.map(MinorVersion), min.map(MinorVersion));
            found.map(|e| (e.minor(), e.min_compatibility_minor()))
        };
        assert_eq!(new(None, None), Ok((36, 35)));
        assert_eq!(new(Some(35), None), Ok((35, 34)));
        assert_eq!(new(Some(33), None), Ok((33, 33)));
        assert_eq!(new(Some(35), Some(35)), Ok((35, 35)));
        assert_eq!(new(Some(37), None), Err(Error::Emulation(37)));
        assert_eq!(new(Some(32), None), Err(Error::Emulation(32)));
        assert_eq!(new(Some(34), Some(35)), Err(Error::MinCompatibility(35, 34)));
        assert_eq!(new(None, Some(32)), Err(Error::MinCompatibility(32, 36)));
    }
}
