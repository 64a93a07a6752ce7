//! ReplicationController: the predecessor of ReplicaSet, with a map as selector. Its deletion orphans the pods
//! unless the client sets another propagation policy.

use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{drop_empty, spec_and_status};
use super::template::{self, ReplicaCounts};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

impl Strategy for ReplicationController {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        let labels = spec
            .template
            .as_ref()
            .and_then(|t| t.metadata.as_ref()?.labels.clone());
        if let Some(labels) = labels {
            if spec.selector.as_ref().is_none_or(|s| s.is_empty()) {
                spec.selector = Some(labels.clone());
            }
            if self.metadata.labels.as_ref().is_none_or(|l| l.is_empty()) {
                self.metadata.labels = Some(labels);
            }
        }
        spec.replicas.get_or_insert(1);
        drop_empty(&mut spec.min_ready_seconds);
        drop_empty(&mut spec.selector);
        if let Some(template) = &mut spec.template {
            template::set_defaults(template);
        }
        self.status.get_or_insert_default();
    }

    spec_and_status!();

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        facts::check(&mut errors, &path, &spec, &["minReadySeconds"]);
        let selector = spec.selector.clone().unwrap_or_default();
        if selector.is_empty() {
            errors.required(&path.child("selector"), "");
        }
        facts::check(&mut errors, &path, &spec, &["replicas"]);
        template::validate_selected_by_map(&selector, spec.template.as_ref(), &mut errors);
        template::no_deadline(spec.template.as_ref(), "ReplicationController", &mut errors);
        errors
    }

    fn validate_update(&self, _old: &Self, part: Part) -> ErrorList {
        if part != Part::Status {
            return self.validate();
        }
        let mut errors = ErrorList::new();
        let status = self.status.clone().unwrap_or_default();
        ReplicaCounts {
            replicas: status.replicas,
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            ready_name: "readyReplicas",
            others: &[("fullyLabeledReplicas", status.fully_labeled_replicas.unwrap_or(0))],
            free: &[("observedGeneration", status.observed_generation.unwrap_or(0))],
        }
        .validate(&mut errors);
        errors
    }

    const ORPHANS_BY_DEFAULT: bool = true;

    fn warnings(&self) -> Vec<String> {
        let template = self.spec.as_ref().and_then(|s| s.template.as_ref());
        template::workload_warnings(&self.metadata, template)
    }

    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        let template = self.spec.as_ref().and_then(|s| s.template.as_ref());
        template::workload_warnings_on_update(&self.metadata, &old.metadata, template)
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::integer("Desired"),
            Column::integer("Current"),
            Column::integer("Ready"),
            table::AGE,
            table::CONTAINERS,
            table::IMAGES,
            table::SELECTOR,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let [containers, images] = template::cells(spec.template.as_ref());
        vec![
            table::name(&self.metadata),
            spec.replicas.unwrap_or(0).into(),
            status.replicas.into(),
            status.ready_replicas.unwrap_or(0).into(),
            table::created(&self.metadata, now),
            containers,
            images,
            table::labels(spec.selector.iter().flatten()).into(),
        ]
    }
}
