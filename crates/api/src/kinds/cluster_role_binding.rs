//! ClusterRoleBinding: who has a role, in the whole cluster.

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::jiff::Timestamp;

use super::rbac;
use crate::field::Errors;
use crate::strategy::{MetadataChecks, Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for ClusterRoleBinding {
    fn set_defaults(&mut self) {
        rbac::set_defaults(&mut self.role_ref, &mut self.subjects);
    }

    fn validate(&self) -> Errors {
        rbac::validate_binding(&self.role_ref, &self.subjects, false, &["ClusterRole"])
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = self.validate();
        rbac::role_stays(&self.role_ref, &old.role_ref, &mut errors);
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
        let [role, users, groups, accounts] = rbac::binding_cells(&self.role_ref, &self.subjects);
        let age = table::created(&self.metadata, now);
        vec![table::name(&self.metadata), role, age, users, groups, accounts]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
