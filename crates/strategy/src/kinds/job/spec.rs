//! Validation of a Job's spec, also used for the job template of a CronJob.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule, SuccessPolicyRule,
};
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path};

use crate::facts;
use crate::kinds::checks::{domain_prefixed_path, json, json_list, not_negative, qualified_name, text};
use crate::kinds::template;

/// Number of completions above which stricter limits apply.
pub(super) const MANY_COMPLETIONS: i32 = 100_000;
pub(super) const MAX_PARALLELISM_OF_MANY: i32 = 10_000;
const MAX_FAILED_INDEXES_OF_MANY: i32 = 10_000;
const MAX_INDEXED_PARALLELISM: i32 = 100_000;
const MAX_FAILED_INDEXES: i32 = 100_000;
const MAX_RULES: usize = 20;
const MAX_PATTERNS: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_MANAGED_BY: usize = 63;
const MAX_INDEXES_BYTES: usize = 64 * 1024;

const NEEDS_INDEXED: &str = "requires indexed completion mode";

pub(in crate::kinds) fn validate(spec: &JobSpec, path: &Path, errors: &mut ErrorList) {
    const FACTS: &[&str] = &[
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    facts::check(errors, path, spec, FACTS);
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        errors.required(
            &path.child("backoffLimitPerIndex"),
            "when maxFailedIndexes is specified",
        );
    }
    if let Some(manager) = &spec.managed_by {
        domain_prefixed_path(errors, &path.child("managedBy"), manager);
        if manager.len() > MAX_MANAGED_BY {
            errors.too_long(&path.child("managedBy"), MAX_MANAGED_BY);
        }
    }
    match spec.completion_mode.as_deref() {
        Some("Indexed") => indexed(spec, path, errors),
        mode => {
            if let Some(unknown) = mode.filter(|m| *m != "NonIndexed") {
                errors.not_supported_in_order(
                    &path.child("completionMode"),
                    unknown,
                    &["NonIndexed", "Indexed"],
                );
            } else {
                for (field, value) in [
                    ("backoffLimitPerIndex", spec.backoff_limit_per_index),
                    ("maxFailedIndexes", spec.max_failed_indexes),
                ] {
                    if let Some(value) = value {
                        errors.invalid(&path.child(field), value, NEEDS_INDEXED);
                    }
                }
            }
        }
    }
    if let Some(policy) = &spec.pod_failure_policy {
        let path = path.child("podFailurePolicy").child("rules");
        if policy.rules.len() > MAX_RULES {
            errors.too_many(&path, policy.rules.len(), MAX_RULES);
        }
        for (i, rule) in policy.rules.iter().enumerate() {
            failure_rule(spec, rule, &path.index(i), errors);
        }
    }
    success_policy(spec, path, errors);
    replacement(spec, path, errors);
    let at = path.child("template");
    errors.extend(template::validate(&spec.template, &at));
    restart_policy(spec, &at.child("spec").child("restartPolicy"), errors);
}

fn indexed(spec: &JobSpec, path: &Path, errors: &mut ErrorList) {
    let parallelism = spec.parallelism.unwrap_or(0);
    let at = path.child("parallelism");
    if spec.completions.is_none() {
        errors.required(&path.child("completions"), "when completion mode is Indexed");
    }
    if parallelism > MAX_INDEXED_PARALLELISM {
        errors.invalid(
            &at,
            parallelism,
            format!(
                "must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            ),
        );
    }
    let failed = path.child("maxFailedIndexes");
    if let (Some(completions), Some(max)) = (spec.completions, spec.max_failed_indexes)
        && max > completions
    {
        errors.invalid(&failed, max, "must be less than or equal to completions");
    }
    if let Some(max) = spec.max_failed_indexes.filter(|m| *m > MAX_FAILED_INDEXES) {
        errors.invalid(
            &failed,
            max,
            format!("must be less than or equal to {MAX_FAILED_INDEXES}"),
        );
    }
    if spec.completions.unwrap_or(0) > MANY_COMPLETIONS && spec.backoff_limit_per_index.is_some() {
        let limit = |max: i32| {
            format!(
                "must be less than or equal to {max} when completions are above {MANY_COMPLETIONS} and used with backoff \
                 limit per index"
            )
        };
        if spec.max_failed_indexes.is_none() {
            errors.required(
                &failed,
                format!("must be specified when completions is above {MANY_COMPLETIONS}"),
            );
        }
        if parallelism > MAX_PARALLELISM_OF_MANY {
            errors.invalid(&at, parallelism, limit(MAX_PARALLELISM_OF_MANY));
        }
        if let Some(max) = spec
            .max_failed_indexes
            .filter(|m| *m > MAX_FAILED_INDEXES_OF_MANY)
        {
            errors.invalid(&failed, max, limit(MAX_FAILED_INDEXES_OF_MANY));
        }
    }
}

fn restart_policy(spec: &JobSpec, path: &Path, errors: &mut ErrorList) {
    let pod = spec.template.spec.clone().unwrap_or_default();
    match text(&pod.restart_policy) {
        "" | "Always" => errors.required(path, r#"valid values: "OnFailure", "Never""#),
        policy @ ("OnFailure" | "Never") => {
            if spec.pod_failure_policy.is_some() && policy != "Never" {
                errors.invalid(
                    path,
                    policy,
                    r#"only "Never" is supported when podFailurePolicy is specified"#,
                );
            }
        }
        other => errors.not_supported_in_order(path, other, &["OnFailure", "Never"]),
    }
}

fn replacement(spec: &JobSpec, path: &Path, errors: &mut ErrorList) {
    let Some(policy) = &spec.pod_replacement_policy else {
        return;
    };
    let supported: &[&str] = match spec.pod_failure_policy {
        Some(_) => &["Failed"],
        None => &["Failed", "TerminatingOrFailed"],
    };
    if !supported.contains(&policy.as_str()) {
        errors.not_supported_in_order(&path.child("podReplacementPolicy"), policy, supported);
    }
}

fn bare_invalid(errors: &mut ErrorList, path: &Path, detail: &str) {
    errors.push(FieldError {
        cause: Cause::Invalid,
        field: path.to_string(),
        value: None,
        detail: detail.into(),
    });
}

fn failure_rule(spec: &JobSpec, rule: &PodFailurePolicyRule, path: &Path, errors: &mut ErrorList) {
    const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
    let at = path.child("action");
    match rule.action.as_str() {
        "" => errors.required(&at, r#"valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#),
        "FailIndex" if spec.backoff_limit_per_index.is_none() => {
            errors.invalid(&at, &rule.action, "requires the backoffLimitPerIndex to be set")
        }
        action if !ACTIONS.contains(&action) => errors.not_supported_in_order(&at, action, ACTIONS),
        _ => {}
    }
    let conditions = rule.on_pod_conditions.as_deref().unwrap_or(&[]);
    if let Some(codes) = &rule.on_exit_codes {
        exit_codes(spec, codes, &path.child("onExitCodes"), errors);
    }
    pod_conditions(conditions, &path.child("onPodConditions"), errors);
    match (&rule.on_exit_codes, conditions) {
        (Some(_), [_, ..]) => bare_invalid(
            errors,
            path,
            "specifying both OnExitCodes and OnPodConditions is not supported",
        ),
        (None, []) => bare_invalid(
            errors,
            path,
            "specifying one of OnExitCodes and OnPodConditions is required",
        ),
        _ => {}
    }
}

fn pod_conditions(
    conditions: &[PodFailurePolicyOnPodConditionsPattern],
    path: &Path,
    errors: &mut ErrorList,
) {
    const STATUSES: &[&str] = &["False", "True", "Unknown"];
    if conditions.len() > MAX_PATTERNS {
        errors.too_many(path, conditions.len(), MAX_PATTERNS);
    }
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        qualified_name(errors, &path.child("type"), &condition.type_);
        match text(&condition.status) {
            "" => errors.required(
                &path.child("status"),
                r#"valid values: ["False" "True" "Unknown"]"#,
            ),
            status if !STATUSES.contains(&status) => {
                errors.not_supported_in_order(&path.child("status"), status, STATUSES);
            }
            _ => {}
        }
    }
}

fn exit_codes(
    spec: &JobSpec,
    codes: &PodFailurePolicyOnExitCodesRequirement,
    path: &Path,
    errors: &mut ErrorList,
) {
    const OPERATORS: &[&str] = &["In", "NotIn"];
    let at = path.child("operator");
    match codes.operator.as_str() {
        "" => errors.required(&at, r#"valid values: ["In" "NotIn"]"#),
        operator if !OPERATORS.contains(&operator) => errors.not_supported_in_order(&at, operator, OPERATORS),
        _ => {}
    }
    if let Some(name) = &codes.container_name {
        let pod = spec.template.spec.as_ref();
        let mut containers = pod
            .iter()
            .flat_map(|p| p.containers.iter().chain(p.init_containers.iter().flatten()));
        if !containers.any(|c| c.name == *name) {
            errors.invalid(
                &path.child("containerName"),
                name,
                "must be one of the container or initContainer names in the pod template",
            );
        }
    }
    let at = path.child("values");
    match codes.values.len() {
        0 => errors.invalid(&at, json_list(&codes.values), "at least one value is required"),
        count if count > MAX_EXIT_CODES => errors.too_many(&at, count, MAX_EXIT_CODES),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (i, code) in codes.values.iter().enumerate() {
        if codes.operator == "In" && *code == 0 {
            errors.invalid(&at.index(i), *code, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(&at.index(i), *code);
        }
    }
    if !codes.values.is_sorted() {
        errors.invalid(&at, json(&codes.values), "must be ordered");
    }
}

fn success_policy(spec: &JobSpec, path: &Path, errors: &mut ErrorList) {
    let Some(policy) = &spec.success_policy else {
        return;
    };
    let path = path.child("successPolicy");
    if text(&spec.completion_mode) != "Indexed" {
        let rules: Vec<String> = policy
            .rules
            .iter()
            .map(|r| {
                format!(
                    r#"{{"SucceededIndexes":{},"SucceededCount":{}}}"#,
                    json(&r.succeeded_indexes).0,
                    json(&r.succeeded_count).0
                )
            })
            .collect();
        let shown = crate::kinds::checks::Json(format!(r#"{{"Rules":[{}]}}"#, rules.join(",")));
        return errors.invalid(&path, shown, NEEDS_INDEXED);
    }
    let path = path.child("rules");
    match policy.rules.len() {
        0 => errors.required(
            &path,
            "at least one rules must be specified when the successPolicy is specified",
        ),
        count if count > MAX_RULES => errors.too_many(&path, count, MAX_RULES),
        _ => {}
    }
    for (i, rule) in policy.rules.iter().enumerate() {
        success_rule(rule, spec.completions.unwrap_or(0), &path.index(i), errors);
    }
}

fn success_rule(rule: &SuccessPolicyRule, completions: i32, path: &Path, errors: &mut ErrorList) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        errors.required(
            path,
            "at least one of succeededCount or succeededIndexes must be specified",
        );
    }
    let mut total = 0;
    if let Some(indexes) = &rule.succeeded_indexes {
        let path = path.child("succeededIndexes");
        if indexes.len() > MAX_INDEXES_BYTES {
            errors.too_long(&path, MAX_INDEXES_BYTES);
        }
        match count_indexes(indexes, completions) {
            Ok(count) => total = count,
            Err(error) => errors.invalid(&path, indexes, format!("error parsing succeededIndexes: {error}")),
        }
    }
    if let Some(count) = rule.succeeded_count {
        let path = path.child("succeededCount");
        not_negative(errors, &path, count);
        if count > completions {
            errors.invalid(
                &path,
                count,
                format!("must be less than or equal to {completions} (the number of specified completions)"),
            );
        }
        if rule.succeeded_indexes.is_some() && count > total {
            errors.invalid(
                &path,
                count,
                format!(
                    "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
                ),
            );
        }
    }
}

/// Why a list of indexes is invalid, with Kubernetes' messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexesError<'a> {
    #[error("cannot convert string to integer for index: {0:?}")]
    NotANumber(&'a str),
    #[error("too large index: {0:?}")]
    TooLarge(&'a str),
    #[error("non-increasing order, previous: {previous}, current: {current}")]
    Order { previous: i32, current: i32 },
    #[error(
        "the fragment {0:?} violates the requirement that an index interval can have at most two parts separated by '-'"
    )]
    Parts(&'a str),
}

/// The number of indexes in a list like `1,3-5,7`; they must be increasing and below `completions`.
pub(super) fn count_indexes(text: &str, completions: i32) -> Result<i32, IndexesError<'_>> {
    let mut total = 0;
    for (first, last) in intervals(text, completions)? {
        total += last - first + 1;
    }
    Ok(total)
}

/// The intervals of a list like `1,3-5,7`, both ends included.
pub(super) fn intervals(text: &str, completions: i32) -> Result<Vec<(i32, i32)>, IndexesError<'_>> {
    let mut intervals: Vec<(i32, i32)> = Vec::new();
    if text.is_empty() {
        return Ok(intervals);
    }
    for part in text.split(',') {
        let interval = interval(part, completions)?;
        if let Some((_, last)) = intervals.last()
            && *last >= interval.0
        {
            return Err(IndexesError::Order {
                previous: *last,
                current: interval.0,
            });
        }
        intervals.push(interval);
    }
    Ok(intervals)
}

fn interval(part: &str, completions: i32) -> Result<(i32, i32), IndexesError<'_>> {
    let ends: Vec<&str> = part.split('-').collect();
    let index = |text| match str::parse::<i32>(text) {
        Err(_) => Err(IndexesError::NotANumber(text)),
        Ok(index) if index >= completions => Err(IndexesError::TooLarge(text)),
        Ok(index) => Ok(index),
    };
    match ends.as_slice() {
        [only] => Ok((index(only)?, index(only)?)),
        [first, last] => {
            let (first, last) = (index(first)?, index(last)?);
            if first >= last {
                return Err(IndexesError::Order {
                    previous: first,
                    current: last,
                });
            }
            Ok((first, last))
        }
        _ => Err(IndexesError::Parts(part)),
    }
}
