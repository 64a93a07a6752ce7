//! ClusterRole: permissions in the whole cluster. With an aggregation rule its rules come from other ClusterRoles.

use k8s_openapi::api::rbac::v1::ClusterRole;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::labels::Selector;

use super::checks::{Json, label_selector};
use super::rbac;
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for ClusterRole {
    fn validate(&self) -> ErrorList {
        let mut errors = rbac::validate_rules(self.rules.as_deref(), false);
        if let Some(rule) = &self.aggregation_rule {
            let path = Path::new("aggregationRule").child("clusterRoleSelectors");
            let selectors = rule.cluster_role_selectors.as_deref().unwrap_or(&[]);
            if selectors.is_empty() {
                errors.required(
                    &path,
                    "at least one clusterRoleSelector required if aggregationRule is non-nil",
                );
            }
            for (i, selector) in selectors.iter().enumerate() {
                let at = path.index(i);
                label_selector(&mut errors, &at, selector);
                // The error shows the label selector that could not be converted.
                if Selector::from_label_selector(selector).is_err() {
                    errors.invalid(&at, Json("null".into()), "invalid label selector.");
                }
            }
        }
        errors
    }

    fn validate_name(name: &str) -> Vec<String> {
        rbac::validate_name(name)
    }

    const CREATE_ON_UPDATE: bool = true;

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
