//! ClusterRoleBinding: grants a ClusterRole to subjects in the whole cluster.

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::ErrorList;

use super::rbac;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for ClusterRoleBinding {
    fn set_defaults(&mut self) {
        rbac::set_defaults(&mut self.role_ref, &mut self.subjects);
    }

    fn validate(&self) -> ErrorList {
        rbac::validate_binding(&self.role_ref, self.subjects.as_deref(), false, &["ClusterRole"])
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        rbac::validate_role_ref_update(&self.role_ref, &old.role_ref, &mut errors);
        errors
    }

    fn validate_name(name: &str) -> Vec<String> {
        rbac::validate_name(name)
    }

    const CREATE_ON_UPDATE: bool = true;

    fn columns() -> &'static [Column] {
        rbac::BINDING_COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let [role, users, groups, accounts] = rbac::binding_cells(&self.role_ref, self.subjects.as_deref());
        let age = table::created(&self.metadata, now);
        vec![table::name(&self.metadata), role, age, users, groups, accounts]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
