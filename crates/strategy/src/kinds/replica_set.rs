//! ReplicaSet: a number of pods of one template.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{drop_empty, immutable_selector, spec_and_status};
use super::template::{self, ReplicaCounts};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

impl Strategy for ReplicaSet {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        drop_empty(&mut spec.min_ready_seconds);
        template::set_defaults(spec.template.get_or_insert_default());
        self.status.get_or_insert_default();
    }

    spec_and_status!();

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        facts::check(&mut errors, &path, &spec, &["replicas", "minReadySeconds"]);
        // The error message of v1.36 names a deployment here as well.
        template::validate_selected(&spec.selector, spec.template.as_ref(), "deployment", &mut errors);
        template::no_deadline(spec.template.as_ref(), "ReplicaSet", &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return self.validate_status();
        }
        let mut errors = self.validate();
        let (new, old) = (
            self.spec.clone().unwrap_or_default(),
            old.spec.clone().unwrap_or_default(),
        );
        let path = Path::new("spec").child("selector");
        immutable_selector(&mut errors, &path, &new.selector, &old.selector);
        errors
    }

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
            table::label_selector(Some(&spec.selector)).into(),
        ]
    }
}

trait Status {
    fn validate_status(&self) -> ErrorList;
}

impl Status for ReplicaSet {
    fn validate_status(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let status = self.status.clone().unwrap_or_default();
        ReplicaCounts {
            replicas: status.replicas,
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            ready_name: "readyReplicas",
            others: &[("fullyLabeledReplicas", status.fully_labeled_replicas.unwrap_or(0))],
            free: &[
                ("observedGeneration", status.observed_generation.unwrap_or(0)),
                (
                    "terminatingReplicas",
                    status.terminating_replicas.unwrap_or(0).into(),
                ),
            ],
        }
        .validate(&mut errors);
        errors
    }
}
