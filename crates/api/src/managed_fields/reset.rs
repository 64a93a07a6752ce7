//! Fields that an endpoint of the API resets, so that no manager comes to own them through it: status where
//! the object itself is written, spec where its status is (`GetResetFields` of v1.36's strategies).

use super::set::FieldSet;
use crate::kind::Kind;
use crate::registry;

/// Which fields count when a kind is written through its main resource or a subresource.
pub enum Reset {
    /// All but these and what is below them.
    But(FieldSet),
    /// Only the fields below these paths; `*` matches any element.
    Only(&'static [&'static [&'static str]]),
}

const EPHEMERAL_CONTAINERS: &[&[&str]] = &[&["f:spec", "f:ephemeralContainers"]];
const RESIZE: &[&[&str]] = &[
    &["f:spec", "f:containers", "*", "f:resources"],
    &["f:spec", "f:containers", "*", "f:resizePolicy"],
    &["f:spec", "f:initContainers", "*", "f:resources"],
    &["f:spec", "f:initContainers", "*", "f:resizePolicy"],
];

impl Reset {
    pub fn of(kind: &Kind, subresource: &str) -> Reset {
        let metadata_too = kind.ops.status_keeps_metadata() || *kind == registry::VOLUME_ATTACHMENT;
        let paths: &[&[&str]] = match (kind.group(), kind.kind(), subresource) {
            ("", "Pod", "ephemeralcontainers") => return Reset::Only(EPHEMERAL_CONTAINERS),
            ("", "Pod", "resize") => return Reset::Only(RESIZE),
            ("", "Pod", "status") => &[
                &["spec"],
                &["metadata", "deletionTimestamp"],
                &["metadata", "ownerReferences"],
            ],
            ("", "Namespace", "finalize") => &[&["status"]],
            ("apps", "Deployment", "status") => &[&["spec"], &["metadata", "labels"]],
            ("certificates.k8s.io", "CertificateSigningRequest", "") => &[&["spec"], &["status"]],
            ("certificates.k8s.io", "CertificateSigningRequest", "status") => {
                &[&["spec"], &["status", "conditions"]]
            }
            ("certificates.k8s.io", "CertificateSigningRequest", "approval") => {
                &[&["spec"], &["status", "certificate"]]
            }
            (_, _, "status") if metadata_too => &[&["metadata"], &["spec"]],
            (_, _, "status") => &[&["spec"]],
            (_, _, "") if kind.subresource("status").is_some() => &[&["status"]],
            _ => &[],
        };
        Reset::But(paths.iter().fold(FieldSet::default(), |set, path| set.with(path)))
    }

    /// The fields of the set that count.
    pub fn keep(&self, set: FieldSet) -> FieldSet {
        match self {
            Reset::But(fields) => set.recursive_difference(fields),
            Reset::Only(paths) => paths
                .iter()
                .map(|path| below(&set, path))
                .fold(FieldSet::default(), FieldSet::union),
        }
    }
}

/// The members on this path and below its end.
fn below(set: &FieldSet, path: &[&str]) -> FieldSet {
    let Some((first, rest)) = path.split_first() else {
        return set.clone();
    };
    let mut out = FieldSet::default();
    for (element, own, behind) in set.children() {
        if *first == "*" || *first == element {
            out.add(element.clone(), own, below(&behind, rest));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subresource_keeps_the_fields_it_can_write() {
        let set = FieldSet::read(&json!({
            "f:metadata": {"f:labels": {"f:a": {}}, "f:ownerReferences": {}},
            "f:spec": {"f:nodeName": {}, "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:resources": {"f:limits": {}}}},
                "f:ephemeralContainers": {"k:{\"name\":\"e\"}": {}}},
            "f:status": {"f:phase": {}},
        }))
        .unwrap();
        for (kind, subresource, kept) in [
            (
                &registry::POD,
                "",
                ".metadata.labels.a .metadata.ownerReferences .spec.containers[name=\"c\"] \
                 .spec.containers[name=\"c\"].image .spec.containers[name=\"c\"].resources.limits \
                 .spec.ephemeralContainers[name=\"e\"] .spec.nodeName",
            ),
            (&registry::POD, "status", ".metadata.labels.a .status.phase"),
            (
                &registry::POD,
                "resize",
                ".spec.containers[name=\"c\"] .spec.containers[name=\"c\"].resources.limits",
            ),
            (
                &registry::POD,
                "ephemeralcontainers",
                ".spec.ephemeralContainers[name=\"e\"]",
            ),
            (
                &registry::DEPLOYMENT,
                "status",
                ".metadata.ownerReferences .status.phase",
            ),
            (&registry::VOLUME_ATTACHMENT, "status", ".status.phase"),
        ] {
            let mut found = Reset::of(kind, subresource).keep(set.clone()).paths();
            found.sort();
            assert_eq!(found.join(" "), kept, "{kind:?} {subresource}");
        }
    }
}
