//! The scale-down policy of a workload: v1.36's order of deletion, or the spread first.

use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Annotation of a ReplicaSet or ReplicationController: `spread` or `default`. It overrides the cluster's policy. A Deployment's
/// annotation is copied to its ReplicaSets by the deployment controller.
pub const SCALE_DOWN: &str = "knarr.io/scale-down";

/// Which pods are deleted first when there are too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// v1.36's order.
    #[default]
    Default,
    /// Those in the fullest domains of their topology spread constraints (SPEC B3).
    Spread,
}

/// A policy that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scale-down policy {found:?}: expected default or spread")]
pub struct UnknownPolicy {
    found: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "default" => Ok(Policy::Default),
            "spread" => Ok(Policy::Spread),
            _ => Err(UnknownPolicy { found: text.into() }),
        }
    }
}

impl Policy {
    /// The policy of the annotation, if there is one.
    pub fn annotated(metadata: &ObjectMeta) -> Option<Result<Policy, UnknownPolicy>> {
        let annotations = metadata.annotations.as_ref()?;
        annotations.get(SCALE_DOWN).map(|value| value.parse())
    }

    /// The policy of a ReplicaSet or ReplicationController: its annotation's, else the cluster's. An annotation with an unknown
    /// value is ignored; the API server has warned of it.
    pub fn of(metadata: &ObjectMeta, cluster: Policy) -> Policy {
        match Policy::annotated(metadata) {
            Some(Ok(policy)) => policy,
            Some(Err(_)) | None => cluster,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_the_annotation_overrides_the_clusters_policy_and_an_unknown_value_is_ignored() {
        for (value, cluster, expected) in [
            (None, Policy::Default, Policy::Default),
            (None, Policy::Spread, Policy::Spread),
            (Some("spread"), Policy::Default, Policy::Spread),
            (Some("default"), Policy::Spread, Policy::Default),
            (Some("Spread"), Policy::Default, Policy::Default),
            (Some(""), Policy::Spread, Policy::Spread),
        ] {
            let annotations = value.map(|v| [(SCALE_DOWN.to_string(), v.to_string())].into());
            let metadata = ObjectMeta {
                annotations,
                ..ObjectMeta::default()
            };
            assert_eq!(
                Policy::of(&metadata, cluster),
                expected,
                "{value:?} in {cluster:?}"
            );
        }
        let error = "Spread".parse::<Policy>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown scale-down policy \"Spread\": expected default or spread"
        );
    }
}
