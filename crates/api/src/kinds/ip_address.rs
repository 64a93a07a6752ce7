//! IPAddress: one address that a service holds; named by it.

use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::jiff::Timestamp;

use super::checks::{count_generation, immutable, ip, text};
use super::ingress::named;
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for IPAddress {
    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        count_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("metadata").child("name");
        ip(&mut errors, &path, text(&self.metadata.name), &[]);
        let parent = self.spec.parent_ref.clone();
        let path = Path::new("spec").child("parentRef");
        if parent.resource.is_empty() && parent.name.is_empty() {
            errors.required(&path, "");
        } else {
            named(&mut errors, &path.child("resource"), &parent.resource);
            named(&mut errors, &path.child("name"), &parent.name);
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = self.validate();
        let parent = |a: &IPAddress| a.spec.parent_ref.clone();
        let path = Path::new("spec").child("parentRef");
        immutable(&mut errors, &path, &parent(self), &parent(old));
        errors
    }

    /// Checked as an address instead.
    fn validate_name(_name: &str) -> Vec<String> {
        Vec::new()
    }

    const SELECTABLE_FIELDS: &'static [&'static str] = &[];

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("ParentRef")];
        COLUMNS
    }

    /// One cell more than there are columns, as v1.36 has it; clients leave it out.
    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let parent = self.spec.parent_ref.clone();
        let mut shown = parent.resource.to_lowercase();
        let group = text(&parent.group).to_lowercase();
        if !group.is_empty() {
            shown = format!("{shown}.{group}");
        }
        if !text(&parent.namespace).is_empty() {
            shown = format!("{shown}/{}", text(&parent.namespace));
        }
        vec![
            table::name(&self.metadata),
            format!("{shown}/{}", parent.name).into(),
            table::created(&self.metadata, now),
        ]
    }
}
