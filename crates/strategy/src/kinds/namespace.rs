//! Namespace: the label with its name, the `kubernetes` finalizer that keeps it until its content is deleted, and
//! the `finalize` subresource that removes finalizers.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::time::seconds;

use super::checks::{qualified_name, standard_finalizer, text};
use crate::table::{self, Cell, Column};
use crate::{DeletionPlan, DeletionRequest, MetadataChecks, Part, Strategy};

/// The label with the namespace's name, by which selectors can select it.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The finalizer in `spec.finalizers` that the namespace keeps until its content is deleted.
pub const FINALIZER: &str = "kubernetes";

pub const ACTIVE: &str = "Active";
pub const TERMINATING: &str = "Terminating";

/// Whether a terminating namespace has no finalizers left.
fn is_finalized(namespace: &Namespace) -> bool {
    let spec = namespace.spec.as_ref().and_then(|s| s.finalizers.as_deref());
    let meta = namespace.metadata.finalizers.as_deref();
    spec.unwrap_or(&[]).is_empty() && meta.unwrap_or(&[]).is_empty()
}

impl Strategy for Namespace {
    fn set_defaults(&mut self) {
        if let Some(name) = self.metadata.name.clone().filter(|n| !n.is_empty()) {
            let labels = self.metadata.labels.get_or_insert_default();
            labels.insert(NAME_LABEL.into(), name);
        }
        let phase = &mut self.status.get_or_insert_default().phase;
        if text(phase).is_empty() {
            *phase = Some(ACTIVE.into());
        }
        self.spec.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
        self.status.get_or_insert_default().phase = Some(ACTIVE.into());
        let finalizers = &mut self.spec.get_or_insert_default().finalizers;
        let finalizers = finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Main => {
                self.spec = old.spec.clone();
                self.status = old.status.clone();
            }
            Part::Status => self.spec = old.spec.clone(),
            // finalize
            Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        finalizers(self, |_| Path::new("spec").child("finalizers"))
    }

    fn validate_update(&self, _old: &Self, part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        match part {
            Part::Main => errors = self.validate(),
            // finalize
            Part::Other(_) => errors = finalizers(self, |i| Path::new("spec").child("finalizers").index(i)),
            Part::Status => {
                let phase = self.status.as_ref().map_or("", |s| text(&s.phase));
                let path = Path::new("status").child("Phase");
                if self.metadata.deletion_timestamp.is_none() {
                    if phase != ACTIVE {
                        errors.invalid(
                            &path,
                            phase,
                            "may only be 'Active' if `deletionTimestamp` is empty",
                        );
                    }
                } else if phase != TERMINATING {
                    errors.invalid(
                        &path,
                        phase,
                        "may only be 'Terminating' if `deletionTimestamp` is not empty",
                    );
                }
            }
        }
        errors
    }

    fn validate_name(name: &str) -> Vec<String> {
        names::dns1123_label(name)
    }

    /// It is marked first; its controller deletes its contents and its finalizer, and then it is deleted.
    fn plan_deletion(&self, marked: &mut Self, request: &DeletionRequest) -> DeletionPlan {
        if self.metadata.deletion_timestamp.is_none() {
            marked.metadata.deletion_timestamp = Some(seconds(request.now));
            marked.status.get_or_insert_default().phase = Some(TERMINATING.into());
            return DeletionPlan::Mark { then_remove: false };
        }
        match is_finalized(self) {
            true => DeletionPlan::Remove,
            false => DeletionPlan::Pending,
        }
    }

    fn completes_deletion(&self, _old: &Self) -> bool {
        self.metadata.deletion_timestamp.is_some() && is_finalized(self)
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("Status"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let phase = self.status.as_ref().map_or("", |s| text(&s.phase));
        vec![
            table::name(&self.metadata),
            phase.into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Main => MetadataChecks::BOTH,
            Part::Status | Part::Other(_) => MetadataChecks::UPDATE,
        }
    }
}

/// Checks the finalizers: qualified names; without a prefix only standard ones.
fn finalizers(namespace: &Namespace, at: impl Fn(usize) -> Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = namespace.spec.as_ref();
    let finalizers = spec.iter().flat_map(|s| s.finalizers.iter().flatten());
    for (i, finalizer) in finalizers.enumerate() {
        let path = at(i);
        qualified_name(&mut errors, &path, finalizer);
        standard_finalizer(&mut errors, &path, finalizer);
    }
    errors
}
