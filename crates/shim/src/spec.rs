//! The little that the shim needs of a container's `config.json` (OCI runtime specification).

use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Spec {
    annotations: Annotations,
    linux: Linux,
    hooks: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "io.containerd.runc.v2.group")]
    group: Option<String>,
    #[serde(rename = "io.kubernetes.cri.sandbox-id")]
    sandbox: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Vec<Namespace>,
    #[serde(rename = "intelRdt")]
    intel_rdt: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

impl Spec {
    pub fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// Containers with the same group have one shim.
    pub fn group(&self) -> Option<&str> {
        self.annotations
            .group
            .as_deref()
            .or(self.annotations.sandbox.as_deref())
    }

    /// Whether a start and a deletion are only what [`runc`](crate::runc) does: there are no hooks to run, and no Intel RDT
    /// group to remove.
    pub fn is_plain(&self) -> bool {
        self.hooks.is_none() && self.linux.intel_rdt.is_none()
    }

    /// Whether the kernel kills all processes of the container when its first one exits.
    pub fn has_own_pid_namespace(&self) -> bool {
        let own = |namespace: &Namespace| namespace.kind == "pid" && namespace.path.is_empty();
        self.linux.namespaces.iter().any(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_a_pod_are_grouped_by_its_sandbox_unless_a_group_is_named() {
        let group = |json: &str| Spec::parse(json.as_bytes()).unwrap().group().map(str::to_owned);
        let sandbox = r#""io.kubernetes.cri.sandbox-id":"s","io.kubernetes.cri.container-type":"container""#;
        assert_eq!(
            group(&format!(r#"{{"ociVersion":"1.0","annotations":{{{sandbox}}}}}"#)),
            Some("s".into())
        );
        let both = format!(r#"{{"annotations":{{{sandbox},"io.containerd.runc.v2.group":"g"}}}}"#);
        assert_eq!(group(&both), Some("g".into()));
        assert_eq!(group("{}"), None);
        assert!(Spec::parse(b"[").is_err());
    }

    #[test]
    fn hooks_and_groups_of_intel_rdt_are_left_to_the_runtime() {
        let plain = |json: &str| Spec::parse(json.as_bytes()).unwrap().is_plain();
        assert!(plain(r#"{"linux":{"namespaces":[]},"hooks":null}"#));
        assert!(!plain(r#"{"hooks":{"poststop":[{"path":"/bin/x"}]}}"#));
        assert!(!plain(r#"{"linux":{"intelRdt":{"closID":"x"}}}"#));
    }

    #[test]
    fn a_pid_namespace_with_a_path_is_another_containers() {
        let own = |json: &str| Spec::parse(json.as_bytes()).unwrap().has_own_pid_namespace();
        assert!(own(
            r#"{"linux":{"namespaces":[{"type":"ipc","path":"/x"},{"type":"pid"}]}}"#
        ));
        assert!(!own(
            r#"{"linux":{"namespaces":[{"type":"pid","path":"/proc/1/ns/pid"}]}}"#
        ));
        assert!(!own(r#"{"linux":{"namespaces":[{"type":"ipc"}]}}"#));
        assert!(!own("{}"));
    }
}
