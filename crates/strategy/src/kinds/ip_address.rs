//! IPAddress: one IP address that is allocated to a Service; the address is its name.

use k8s_openapi::api::networking::v1::{IPAddress, ParentReference};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{IMMUTABLE, Json, canonical_ip, dns_subdomain, text};
use super::ingress::path_segment_name;
use super::pod::internal;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for IPAddress {
    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let parent = self.spec.parent_ref.clone();
        let path = Path::new("spec").child("parentRef");
        if parent == ParentReference::default() {
            errors.required(&path, "");
        } else {
            if !text(&parent.group).is_empty() {
                dns_subdomain(&mut errors, &path.child("group"), text(&parent.group));
            }
            path_segment_name(&mut errors, &path.child("resource"), &parent.resource);
            path_segment_name(&mut errors, &path.child("name"), &parent.name);
            if !text(&parent.namespace).is_empty() {
                path_segment_name(&mut errors, &path.child("namespace"), text(&parent.namespace));
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        let parent = |a: &IPAddress| a.spec.parent_ref.clone();
        let path = Path::new("spec").child("parentRef");
        if parent(self) != parent(old) {
            let shown = match parent(self) {
                parent if parent == ParentReference::default() => Json("null".into()),
                parent => Json(internal::json("ParentReference", &parent)),
            };
            errors.invalid(&path, shown, IMMUTABLE);
        }
        errors
    }

    fn validate_name(name: &str) -> Vec<String> {
        canonical_ip(name)
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("ParentRef")];
        COLUMNS
    }

    /// One cell more than there are columns, as in v1.36; clients ignore it.
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

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
