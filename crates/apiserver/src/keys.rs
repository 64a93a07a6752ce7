//! Where objects are in the store: `/registry/<group>/<plural>/<namespace>/<name>`, without the namespace for
//! cluster-scoped kinds, and `core` for the core group.
//!
//! A kind that is stored as another one has that one's keys.

use bytes::Bytes;
use knarr_api::Kind;

/// The prefix of every object's key.
pub const ROOT: &str = "/registry/";

/// The prefix of the API servers' leases ([`crate::endpoint_leases`]). They are not objects, but are under [`ROOT`]: a watch of
/// the objects then gets their revisions too, and reads that wait for the store's revision do not wait in vain.
pub const MASTER_LEASES: &str = "/registry/masterleases/";

/// `/registry/apps/deployments/`.
pub fn prefix(kind: &Kind) -> String {
    let kind = kind.stored();
    format!("{ROOT}{}/{}/", group_name(&kind), kind.plural())
}

/// The kind's group as keys have it: `core` for the core group.
pub fn group_name(kind: &Kind) -> &str {
    match kind.group() {
        "" => "core",
        group => group,
    }
}

/// The rest of the key: `<namespace>/<name>` or `<name>`. Also the cache's key, so that both have the same order.
pub fn local(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_string()
    } else {
        format!("{namespace}/{name}")
    }
}

pub fn key(kind: &Kind, namespace: &str, name: &str) -> Bytes {
    let kind = kind.stored();
    let after_namespace = if namespace.is_empty() { "" } else { "/" };
    let parts = [
        ROOT,
        group_name(&kind),
        "/",
        kind.plural(),
        "/",
        namespace,
        after_namespace,
        name,
    ];
    parts.concat().into()
}

/// The key under which kube-apiserver stores the object. Some of its responses show it.
pub fn upstream_key(kind: &Kind, namespace: &str, name: &str) -> String {
    let stored = kind.stored();
    let prefix = match (stored.group(), stored.plural()) {
        ("", "replicationcontrollers") => "controllers".to_string(),
        ("", "endpoints") => "services/endpoints".to_string(),
        ("", "nodes") => "minions".to_string(),
        ("", "services") => "services/specs".to_string(),
        ("networking.k8s.io", "ingresses") => "ingress".to_string(),
        // The groups of the API servers that kube-apiserver delegates to, and custom resources.
        (group @ ("apiextensions.k8s.io" | "apiregistration.k8s.io"), plural) => format!("{group}/{plural}"),
        (group, plural) if kind.ops.custom().is_some() => format!("{group}/{plural}"),
        (_, plural) => plural.to_string(),
    };
    format!("{ROOT}{prefix}/{}", local(namespace, name))
}

/// Splits a key into `<group>/<plural>` and the rest.
pub fn split(key: &[u8]) -> Option<(&str, &str)> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(ROOT)?;
    let slash = rest.find('/')?;
    let end = slash + 1 + rest[slash + 1..].find('/')?;
    Some((&rest[..end], &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use knarr_api::registry::{DEPLOYMENT, EVENTS_EVENT, NODE};

    use super::*;

    #[test]
    fn keys_split_into_the_kind_and_the_rest() {
        let of = |kind, namespace, name| String::from_utf8(key(kind, namespace, name).to_vec()).unwrap();
        assert_eq!(of(&DEPLOYMENT, "a", "b"), "/registry/apps/deployments/a/b");
        assert_eq!(of(&NODE, "", "n"), "/registry/core/nodes/n");
        assert_eq!(of(&EVENTS_EVENT, "a", "e"), "/registry/core/events/a/e");
        assert_eq!(
            split(b"/registry/apps/deployments/a/b"),
            Some(("apps/deployments", "a/b"))
        );
        assert_eq!(split(b"/registry/core/nodes/n"), Some(("core/nodes", "n")));
        assert_eq!(split(b"/elsewhere/x/y"), None);
        assert_eq!(split(b"/registry/x"), None);
        assert_eq!(split(format!("{MASTER_LEASES}192.0.2.1").as_bytes()), None);
    }
}
