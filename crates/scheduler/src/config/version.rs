//! The versions of the configuration API.

/// The group of all versions.
pub const GROUP: &str = "kubescheduler.config.k8s.io";

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    /// As v1, with plugins that v1 has removed.
    V1Beta3,
    /// One profile, whose fields are at the top level.
    V1Alpha1,
}

impl Version {
    pub fn parse(api_version: &str) -> Option<Version> {
        match api_version.strip_prefix(GROUP)?.strip_prefix('/')? {
            "v1" => Some(Version::V1),
            "v1beta3" => Some(Version::V1Beta3),
            "v1alpha1" => Some(Version::V1Alpha1),
            _ => None,
        }
    }

    /// All values of `apiVersion`.
    pub const ALL: [&'static str; 3] = [
        "kubescheduler.config.k8s.io/v1",
        "kubescheduler.config.k8s.io/v1beta3",
        "kubescheduler.config.k8s.io/v1alpha1",
    ];
}
