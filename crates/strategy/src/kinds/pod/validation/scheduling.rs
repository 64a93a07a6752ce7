//! Scheduling constraints other than affinity: tolerations, topology spread constraints (SPEC D1), scheduling gates.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodSpec, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use knarr_apimachinery::names;

use super::text;
use crate::facts;

/// Validates tolerations at `path`.
pub fn validate_tolerations(tolerations: &[Toleration], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (i, toleration) in tolerations.iter().enumerate() {
        let at = path.index(i);
        let (key, operator) = (text(&toleration.key), text(&toleration.operator));
        let (value, effect) = (text(&toleration.value), text(&toleration.effect));
        let operator_at = at.child("operator");
        if !key.is_empty() {
            errors.extend(meta::label_name(key, &at.child("key")));
        } else if operator != "Exists" {
            errors.invalid(
                &operator_at,
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            errors.invalid(
                &at.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator {
            "" | "Equal" => {
                let messages = names::label_value(value);
                if !messages.is_empty() {
                    errors.invalid(&operator_at, value, messages.join(";"));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    errors.invalid(
                        &operator_at,
                        value,
                        "value must be empty when `operator` is 'Exists'",
                    );
                }
            }
            // Operators of a disabled feature; the error lists them among the supported values.
            "Lt" | "Gt" => {
                errors.not_supported_in_order(&operator_at, operator, &["Equal", "Exists", "Lt", "Gt"]);
            }
            other => errors.not_supported_in_order(&operator_at, other, &["Equal", "Exists"]),
        }
        facts::check(&mut errors, &at, toleration, &["effect"]);
    }
    errors
}

pub(super) fn gates(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let at = path.index(i);
        errors.all_invalid(&at, &gate.name, names::qualified_name(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            errors.duplicate(&at, &gate.name);
        }
    }
}

/// Validates topology spread constraints (SPEC D1).
pub(super) fn topology_spread(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    for (i, constraint) in constraints.iter().enumerate() {
        let at = path.index(i);
        spread_constraint(constraint, &at, errors);
        let same = |other: &TopologySpreadConstraint| {
            (&other.topology_key, &other.when_unsatisfiable)
                == (&constraint.topology_key, &constraint.when_unsatisfiable)
        };
        if constraints[i + 1..].iter().any(same) {
            errors.duplicate(
                &at.child("{topologyKey, whenUnsatisfiable}"),
                format!(
                    "{{{}, {}}}",
                    constraint.topology_key, constraint.when_unsatisfiable
                ),
            );
        }
    }
}

fn spread_constraint(constraint: &TopologySpreadConstraint, path: &Path, errors: &mut ErrorList) {
    const POSITIVE: &str = "must be greater than zero";
    if constraint.max_skew <= 0 {
        errors.invalid(&path.child("maxSkew"), constraint.max_skew, POSITIVE);
    }
    if constraint.topology_key.is_empty() {
        errors.required(&path.child("topologyKey"), "can not be empty");
    }
    facts::check(errors, path, constraint, &["whenUnsatisfiable"]);
    let action = constraint.when_unsatisfiable.as_str();
    if let Some(domains) = constraint.min_domains {
        let at = path.child("minDomains");
        if domains <= 0 {
            errors.invalid(&at, domains, POSITIVE);
        }
        if action != "DoNotSchedule" {
            errors.invalid(
                &at,
                domains,
                format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"),
            );
        }
    }
    const POLICIES: &[&str] = &["nodeAffinityPolicy", "nodeTaintsPolicy"];
    facts::check(errors, path, constraint, POLICIES);
    let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
    match_label_keys(keys, &[], constraint.label_selector.as_ref(), path, errors);
    errors.extend(meta::label_selector(
        constraint.label_selector.as_ref(),
        &path.child("labelSelector"),
    ));
}

/// Checks `matchLabelKeys` and `mismatchLabelKeys`. Preparation has already merged those of `matching` into the selector: a key
/// that occurs there twice was also set by the user.
pub(super) fn match_label_keys(
    matching: &[String],
    mismatching: &[String],
    selector: Option<&LabelSelector>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let at = path.child("matchLabelKeys");
    for (keys, at) in [(matching, &at), (mismatching, &path.child("mismatchLabelKeys"))] {
        if !keys.is_empty() && selector.is_none() {
            errors.forbidden(at, "must not be specified when labelSelector is not set");
        } else {
            for (i, key) in keys.iter().enumerate() {
                errors.extend(meta::label_name(key, &at.index(i)));
            }
        }
    }
    if let Some(selector) = selector {
        let mut seen: BTreeSet<&str> = selector
            .match_labels
            .iter()
            .flat_map(|l| l.keys())
            .map(String::as_str)
            .collect();
        for requirement in selector.match_expressions.iter().flatten() {
            let key = requirement.key.as_str();
            if let Some(i) = matching.iter().rposition(|k| k == key)
                && seen.contains(key)
            {
                errors.invalid(
                    &path.index(i),
                    key,
                    "exists in both matchLabelKeys and labelSelector",
                );
            }
            seen.insert(key);
        }
    }
    for (i, key) in matching
        .iter()
        .enumerate()
        .filter(|(_, key)| mismatching.contains(key))
    {
        errors.invalid(
            &at.index(i),
            key,
            "exists in both matchLabelKeys and mismatchLabelKeys",
        );
    }
}
