//! The identity of a manager.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use k8s_openapi::jiff::Timestamp;

use crate::kind::Kind;

/// The most entries for updates that an object keeps; older ones are merged into one (`DefaultMaxUpdateManagers`).
pub(super) const MAX_UPDATE_MANAGERS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

/// The identity of a manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    pub name: String,
    pub operation: Operation,
    /// For updates only: an applier has one entry for all versions.
    pub(super) api_version: String,
    pub subresource: String,
}

impl ManagerId {
    pub fn new(name: &str, operation: Operation, kind: &Kind, subresource: &str) -> Self {
        ManagerId {
            name: if name.is_empty() {
                "unknown".into()
            } else {
                name.into()
            },
            operation,
            api_version: match operation {
                Operation::Update => kind.api_version(),
                Operation::Apply => String::new(),
            },
            subresource: subresource.into(),
        }
    }

    pub(super) fn entry(
        self,
        fields: FieldsV1,
        api_version: String,
        time: Option<Timestamp>,
    ) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(self.name),
            operation: Some(format!("{:?}", self.operation)),
            api_version: Some(api_version),
            time: time.map(Time),
            fields_type: Some("FieldsV1".into()),
            fields_v1: Some(fields),
            subresource: Some(self.subresource).filter(|s| !s.is_empty()),
        }
    }
}

impl fmt::Display for ManagerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        match self.operation {
            Operation::Update => write!(f, " using {}", self.api_version),
            Operation::Apply => Ok(()),
        }
    }
}
