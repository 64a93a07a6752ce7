//! Deployment: replaces ReplicaSets by rolling update or by recreating all pods.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, DeploymentStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{
    Json, count_or_percent, drop_empty, immutable_selector, json, not_more_than_100_percent,
    not_negative_or_percent, text, update_generation,
};
use super::template::{self, ReplicaCounts};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

const ROLLING_UPDATE: &str = "RollingUpdate";
const RECREATE: &str = "Recreate";

impl Strategy for Deployment {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        let strategy = spec.strategy.get_or_insert_default();
        if text(&strategy.type_).is_empty() {
            strategy.type_ = Some(ROLLING_UPDATE.into());
        }
        if text(&strategy.type_) == ROLLING_UPDATE {
            let quarter = || IntOrString::String("25%".into());
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert_with(quarter);
            rolling.max_surge.get_or_insert_with(quarter);
        }
        spec.revision_history_limit.get_or_insert(10);
        spec.progress_deadline_seconds.get_or_insert(600);
        drop_empty(&mut spec.min_ready_seconds);
        drop_empty(&mut spec.paused);
        template::set_defaults(&mut spec.template);
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(DeploymentStatus::default());
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
            self.metadata.labels = old.metadata.labels.clone();
        } else {
            self.status = old.status.clone();
            // Annotations count as well, since the deployment controller copies them to its ReplicaSets.
            changed = self.spec != old.spec || self.metadata.annotations != old.metadata.annotations;
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        facts::check(&mut errors, &path, &spec, &["replicas"]);
        template::validate_selected(&spec.selector, Some(&spec.template), "deployment", &mut errors);
        template::no_deadline(Some(&spec.template), "ReplicaSet", &mut errors);
        check_strategy(&spec.strategy.clone().unwrap_or_default(), &mut errors);
        const FACTS: &[&str] = &[
            "minReadySeconds",
            "revisionHistoryLimit",
            "progressDeadlineSeconds",
        ];
        facts::check(&mut errors, &path, &spec, FACTS);
        let ready = spec.min_ready_seconds.unwrap_or(0);
        if let Some(deadline) = spec.progress_deadline_seconds.filter(|d| *d <= ready) {
            let path = path.child("progressDeadlineSeconds");
            errors.invalid(&path, deadline, "must be greater than minReadySeconds");
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return validate_status(self, old);
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
        let template = self.spec.as_ref().map(|s| &s.template);
        template::workload_warnings(&self.metadata, template)
    }

    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        let template = self.spec.as_ref().map(|s| &s.template);
        template::workload_warnings_on_update(&self.metadata, &old.metadata, template)
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Ready"),
            Column::string("Up-to-date"),
            Column::string("Available"),
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
        let [containers, images] = template::cells(Some(&spec.template));
        let ready = status.ready_replicas.unwrap_or(0);
        vec![
            table::name(&self.metadata),
            format!("{ready}/{}", spec.replicas.unwrap_or(0)).into(),
            status.updated_replicas.unwrap_or(0).into(),
            status.available_replicas.unwrap_or(0).into(),
            table::created(&self.metadata, now),
            containers,
            images,
            table::selector_text(&spec.selector).into(),
        ]
    }
}

fn check_strategy(strategy: &DeploymentStrategy, errors: &mut ErrorList) {
    let path = Path::new("spec").child("strategy");
    match (text(&strategy.type_), &strategy.rolling_update) {
        (RECREATE, Some(_)) => errors.forbidden(
            &path.child("rollingUpdate"),
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        (RECREATE, None) => {}
        (ROLLING_UPDATE, rolling) => {
            let path = path.child("rollingUpdate");
            let rolling = rolling.clone().unwrap_or_default();
            let nothing = IntOrString::Int(0);
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&nothing);
            let surge = rolling.max_surge.as_ref().unwrap_or(&nothing);
            not_negative_or_percent(errors, &path.child("maxUnavailable"), unavailable);
            not_negative_or_percent(errors, &path.child("maxSurge"), surge);
            if count_or_percent(unavailable) == 0 && count_or_percent(surge) == 0 {
                errors.invalid(
                    &path.child("maxUnavailable"),
                    json(unavailable),
                    "may not be 0 when `maxSurge` is 0",
                );
            }
            not_more_than_100_percent(errors, &path.child("maxUnavailable"), unavailable);
        }
        (other, rolling) => {
            let rolling = rolling.as_ref().map_or("null".to_string(), |r| {
                format!(
                    r#"{{"MaxUnavailable":{},"MaxSurge":{}}}"#,
                    r.max_unavailable.as_ref().map_or("0".into(), |v| json(v).0),
                    r.max_surge.as_ref().map_or("0".into(), |v| json(v).0)
                )
            });
            let shown = format!(r#"{{"Type":{},"RollingUpdate":{rolling}}}"#, json(other).0);
            errors.not_supported_in_order(&path, Json(shown), &[RECREATE, ROLLING_UPDATE]);
        }
    }
}

fn validate_status(deployment: &Deployment, old: &Deployment) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = deployment.status.clone().unwrap_or_default();
    let collisions = status.collision_count.unwrap_or(0);
    ReplicaCounts {
        replicas: status.replicas.unwrap_or(0),
        ready: status.ready_replicas.unwrap_or(0),
        available: status.available_replicas.unwrap_or(0),
        ready_name: "readyReplicas",
        others: &[("updatedReplicas", status.updated_replicas.unwrap_or(0))],
        free: &[
            ("observedGeneration", status.observed_generation.unwrap_or(0)),
            (
                "unavailableReplicas",
                status.unavailable_replicas.unwrap_or(0).into(),
            ),
            (
                "terminatingReplicas",
                status.terminating_replicas.unwrap_or(0).into(),
            ),
            ("collisionCount", collisions.into()),
        ],
    }
    .validate(&mut errors);
    validate_collision_count(
        status.collision_count,
        old.status.as_ref().and_then(|s| s.collision_count),
        &mut errors,
    );
    errors
}

/// `status.collisionCount` must not decrease: the controller would choose the same ReplicaSet names again.
pub(super) fn validate_collision_count(new: Option<i32>, old: Option<i32>, errors: &mut ErrorList) {
    if old.is_some_and(|old| new.is_none_or(|new| new < old)) {
        errors.invalid(
            &Path::new("status").child("collisionCount"),
            new.unwrap_or(0),
            "cannot be decremented",
        );
    }
}
