//! PodDisruptionBudget: how many pods must stay available. Its selector may change.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{
    Json, conditions, json, json_selector, label_selector, not_more_than_100_percent,
    not_negative_or_percent, update_generation,
};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

impl Strategy for PodDisruptionBudget {
    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
        let status = self.status.get_or_insert_default();
        for count in [
            &mut status.disruptions_allowed,
            &mut status.current_healthy,
            &mut status.desired_healthy,
            &mut status.expected_pods,
        ] {
            count.get_or_insert(0);
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = None;
        self.set_defaults();
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        if spec.min_available.is_some() && spec.max_unavailable.is_some() {
            errors.invalid(
                &path,
                shown(&spec),
                "minAvailable and maxUnavailable cannot be both set",
            );
        }
        for (field, value) in [
            ("minAvailable", &spec.min_available),
            ("maxUnavailable", &spec.max_unavailable),
        ] {
            if let Some(value) = value {
                not_negative_or_percent(&mut errors, &path.child(field), value);
                not_more_than_100_percent(&mut errors, &path.child(field), value);
            }
        }
        if let Some(selector) = &spec.selector {
            label_selector(&mut errors, &path.child("selector"), selector);
        }
        facts::check(&mut errors, &path, &spec, &["unhealthyPodEvictionPolicy"]);
        errors
    }

    fn validate_update(&self, _old: &Self, part: Part) -> ErrorList {
        if part != Part::Status {
            return self.validate();
        }
        let mut errors = ErrorList::new();
        let status = self.status.clone().unwrap_or_default();
        let path = Path::new("status");
        conditions(
            &mut errors,
            &path.child("conditions"),
            status.conditions.as_deref(),
        );
        facts::check(&mut errors, &Path::default(), self, &["status"]);
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Min Available"),
            Column::string("Max Unavailable"),
            Column::integer("Allowed Disruptions"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let allowed = self
            .status
            .as_ref()
            .and_then(|s| s.disruptions_allowed)
            .unwrap_or(0);
        let cell = |value: Option<IntOrString>| -> Cell {
            match value {
                Some(IntOrString::Int(number)) => number.to_string().into(),
                Some(IntOrString::String(text)) => text.into(),
                None => "N/A".into(),
            }
        };
        vec![
            table::name(&self.metadata),
            cell(spec.min_available),
            cell(spec.max_unavailable),
            allowed.into(),
            table::created(&self.metadata, now),
        ]
    }

    fn validate_name(name: &str) -> Vec<String> {
        knarr_apimachinery::names::path_segment(name)
    }

    const CHECKS_METADATA: bool = false;

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::NONE
    }
}

fn shown(spec: &PodDisruptionBudgetSpec) -> Json {
    let selector = spec.selector.as_ref().map_or("null".into(), json_selector);
    Json(format!(
        r#"{{"MinAvailable":{},"Selector":{selector},"MaxUnavailable":{},"UnhealthyPodEvictionPolicy":{}}}"#,
        json(&spec.min_available).0,
        json(&spec.max_unavailable).0,
        json(&spec.unhealthy_pod_eviction_policy).0
    ))
}
