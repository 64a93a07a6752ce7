//! Role: permissions in one namespace.

use k8s_openapi::api::rbac::v1::Role;
use knarr_apimachinery::field::ErrorList;

use super::rbac;
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for Role {
    fn validate(&self) -> ErrorList {
        rbac::validate_rules(self.rules.as_deref(), true)
    }

    fn validate_name(name: &str) -> Vec<String> {
        rbac::validate_name(name)
    }

    const CREATE_ON_UPDATE: bool = true;

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
