//! Fields that policies of both forms have, and their rules.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::Path;
use knarr_apimachinery::labels::Selector;
use serde::Deserialize;

use super::{Names, PriorityThreshold, Thresholds};

/// A meta/v1 LabelSelector. An empty one selects everything, as an absent one.
pub(super) fn label_selector(
    fields: &mut Fields,
    name: &'static str,
    report: &mut Report,
) -> Option<Selector> {
    let value = fields.take(name)?;
    let at = fields.at(name);
    let parsed = match LabelSelector::deserialize(value) {
        Ok(selector) => Selector::from_label_selector(&selector),
        Err(error) => {
            report.errors.type_invalid(&at, value, error.to_string());
            return None;
        }
    };
    match parsed {
        Ok(selector) => Some(selector).filter(|s| !s.is_everything()),
        Err(error) => {
            report.errors.invalid(&at, value, error.to_string());
            None
        }
    }
}

/// A selector as kubectl's `-l` takes it.
pub(super) fn selector_text(
    fields: &mut Fields,
    name: &'static str,
    report: &mut Report,
) -> Option<Selector> {
    let text = fields.text(name, report)?;
    match Selector::parse(text) {
        Ok(selector) => Some(selector).filter(|s| !s.is_everything()),
        Err(error) => {
            report.errors.invalid(&fields.at(name), text, error.to_string());
            None
        }
    }
}

pub(super) fn set(fields: &mut Fields, name: &'static str, report: &mut Report) -> BTreeSet<String> {
    let texts = fields.texts(name, report).into_iter();
    texts.map(|(text, _)| text.to_string()).collect()
}

/// `{include: [...]}` or `{exclude: [...]}`.
pub(super) fn names(fields: &mut Fields, name: &'static str, report: &mut Report) -> Names {
    let Some(mut of) = fields.object(name, report) else {
        return Names::All;
    };
    let (include, exclude) = (set(&mut of, "include", report), set(&mut of, "exclude", report));
    let at = of.path.clone();
    of.finish(report);
    match (include.is_empty(), exclude.is_empty()) {
        (false, false) => {
            let detail = "only one of include and exclude may be set";
            report.errors.forbidden(&at, detail);
            Names::All
        }
        (false, true) => Names::Only(include),
        (true, false) => Names::Except(exclude),
        (true, true) => Names::All,
    }
}

/// A number that is not negative.
pub(super) fn count(fields: &mut Fields, name: &'static str, report: &mut Report) -> Option<i64> {
    let number = fields.long(name, report)?;
    if number < 0 {
        let detail = "must be greater than or equal to 0";
        report.errors.invalid(&fields.at(name), number, detail);
        return None;
    }
    Some(number)
}

/// A number of pods or nodes.
pub(super) fn small_count(fields: &mut Fields, name: &'static str, report: &mut Report) -> Option<u32> {
    let number = count(fields, name, report)?;
    let small = u32::try_from(number).ok();
    if small.is_none() {
        let detail = format!("must be at most {}", u32::MAX);
        report.errors.invalid(&fields.at(name), number, detail);
    }
    small
}

/// Percentages by resource.
pub(super) fn thresholds(fields: &mut Fields, name: &'static str, report: &mut Report) -> Thresholds {
    let mut all = Thresholds::new();
    let at = fields.at(name);
    let map = match fields.take(name) {
        Some(value) => match value.as_object() {
            Some(map) => map,
            None => {
                report.errors.type_invalid(&at, value, "must be a mapping");
                return all;
            }
        },
        None => {
            report.errors.required(&at, "no resource threshold is configured");
            return all;
        }
    };
    if map.is_empty() {
        report.errors.required(&at, "no resource threshold is configured");
    }
    for (resource, percent) in map {
        let path = at.key(resource);
        match percent.as_f64() {
            None => report.errors.type_invalid(&path, percent, "must be a number"),
            Some(number) if !(0.0..=100.0).contains(&number) => {
                report
                    .errors
                    .invalid(&path, percent, "not in valid range [0-100]");
            }
            Some(number) => drop(all.insert(resource.clone(), number)),
        }
    }
    all
}

/// The rules on both kinds of thresholds together.
pub(super) fn compare_thresholds(
    thresholds: &Thresholds,
    targets: &Thresholds,
    deviation: bool,
    targets_at: &Path,
    report: &mut Report,
) {
    const SAME: &str = "thresholds and targetThresholds must name the same resources";
    if thresholds.is_empty() || targets.is_empty() {
        return;
    }
    for name in thresholds.keys().filter(|name| !targets.contains_key(*name)) {
        report.errors.required(&targets_at.key(name), SAME);
    }
    for (name, target) in targets {
        match thresholds.get(name) {
            None => report.errors.forbidden(&targets_at.key(name), SAME),
            Some(threshold) if threshold > target && !deviation => {
                let detail = format!("must not be less than the threshold ({threshold})");
                report.errors.invalid(&targets_at.key(name), *target, detail);
            }
            Some(_) => {}
        }
    }
}

/// `{value: N}` or `{name: CLASS}`.
pub(super) fn priority_threshold(fields: &mut Fields, report: &mut Report) -> Option<PriorityThreshold> {
    let mut of = fields.object("priorityThreshold", report)?;
    let value = of.integer("value", report);
    let name = of.text("name", report).filter(|name| !name.is_empty());
    let at = of.path.clone();
    of.finish(report);
    match (value, name) {
        (Some(_), Some(_)) => {
            let detail = "only one of value and name may be set";
            report.errors.forbidden(&at, detail);
            None
        }
        (Some(value), None) => Some(PriorityThreshold::Value(value)),
        (None, name) => name.map(|name| PriorityThreshold::Class(name.to_string())),
    }
}

/// A duration that is not negative.
pub(super) fn min_pod_age(fields: &mut Fields, report: &mut Report) -> Option<SignedDuration> {
    let age = fields.duration("minPodAge", report)?;
    if age.is_negative() {
        let at = fields.at("minPodAge");
        let detail = "must be greater than or equal to 0";
        report.errors.invalid(&at, age.to_string(), detail);
    }
    Some(age)
}
