//! DaemonSet: one pod on every node. The annotation `deprecated.daemonset.template.generation` counts changes of the template.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetUpdateStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{
    Json, count_or_percent, drop_empty, immutable_selector, json, not_more_than_100_percent,
    not_negative_or_percent, text, update_generation,
};
use super::{deployment, template};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(set: &DaemonSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get(TEMPLATE_GENERATION)?.parse().ok())
        .unwrap_or(0)
}

fn set_template_generation(set: &mut DaemonSet, generation: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(TEMPLATE_GENERATION.into(), generation.to_string());
}

impl Strategy for DaemonSet {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        let strategy = spec.update_strategy.get_or_insert_default();
        if text(&strategy.type_).is_empty() {
            strategy.type_ = Some("RollingUpdate".into());
        }
        if text(&strategy.type_) == "RollingUpdate" {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            rolling.max_surge.get_or_insert(IntOrString::Int(0));
        }
        spec.revision_history_limit.get_or_insert(10);
        drop_empty(&mut spec.min_ready_seconds);
        template::set_defaults(&mut spec.template);
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
        self.metadata.generation = Some(1);
        let generation = template_generation(self).max(1);
        set_template_generation(self, generation);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        let mut generation = template_generation(old);
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
            let template = |set: &DaemonSet| set.spec.as_ref().map(|s| s.template.clone());
            generation += i64::from(template(self) != template(old));
        }
        set_template_generation(self, generation);
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        template::validate_selected(&spec.selector, Some(&spec.template), "daemonset", &mut errors);
        template::no_deadline(Some(&spec.template), "DaemonSet", &mut errors);
        facts::check(&mut errors, &path, &spec, &["minReadySeconds"]);
        check_strategy(&spec.update_strategy.clone().unwrap_or_default(), &mut errors);
        facts::check(&mut errors, &path, &spec, &["revisionHistoryLimit"]);
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
        template.map(template::warnings).unwrap_or_default()
    }

    /// The template is only checked for warnings if the generation changed: an update of the metadata alone does not repeat them.
    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        match self.metadata.generation == old.metadata.generation {
            true => Vec::new(),
            false => self.warnings(),
        }
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::integer("Desired"),
            Column::integer("Current"),
            Column::integer("Ready"),
            Column::integer("Up-to-date"),
            Column::integer("Available"),
            Column::string("Node Selector"),
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
        let pod = spec.template.spec.clone().unwrap_or_default();
        let [containers, images] = template::cells(Some(&spec.template));
        vec![
            table::name(&self.metadata),
            status.desired_number_scheduled.into(),
            status.current_number_scheduled.into(),
            status.number_ready.into(),
            status.updated_number_scheduled.unwrap_or(0).into(),
            status.number_available.unwrap_or(0).into(),
            table::labels(pod.node_selector.iter().flatten()).into(),
            table::created(&self.metadata, now),
            containers,
            images,
            table::label_selector(Some(&spec.selector)).into(),
        ]
    }
}

fn check_strategy(strategy: &DaemonSetUpdateStrategy, errors: &mut ErrorList) {
    let path = Path::new("spec").child("updateStrategy");
    match (text(&strategy.type_), &strategy.rolling_update) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(&path.child("rollingUpdate"), ""),
        ("RollingUpdate", Some(rolling)) => {
            let path = path.child("rollingUpdate");
            let nothing = IntOrString::Int(0);
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&nothing);
            let surge = rolling.max_surge.as_ref().unwrap_or(&nothing);
            for (field, value) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
                not_negative_or_percent(errors, &path.child(field), value);
                not_more_than_100_percent(errors, &path.child(field), value);
            }
            let (unavailable, surge) = (count_or_percent(unavailable), count_or_percent(surge));
            if unavailable != 0 && surge != 0 {
                errors.invalid(
                    &path.child("maxSurge"),
                    json(&rolling.max_surge),
                    "may not be set when maxUnavailable is non-zero",
                );
            }
            if unavailable == 0 && surge == 0 {
                errors.required(&path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
            }
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
            errors.not_supported_in_order(&path, Json(shown), &["RollingUpdate", "OnDelete"]);
        }
    }
}

fn validate_status(set: &DaemonSet, old: &DaemonSet) -> ErrorList {
    let mut errors = ErrorList::new();
    facts::check(&mut errors, &Path::default(), set, &["status"]);
    let collisions = |set: &DaemonSet| set.status.as_ref().and_then(|s| s.collision_count);
    deployment::validate_collision_count(collisions(set), collisions(old), &mut errors);
    errors
}
