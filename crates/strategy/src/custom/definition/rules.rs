//! Validation of the fields of a rule of `x-kubernetes-validations`; its expressions are checked by
//! [`super::expressions`].

use knarr_apimachinery::field::{ErrorList, Path};
use knarr_cel::structural::Schema;
use serde_json::Value;

use super::{list, text};
use crate::custom::field_path;

const REASONS: [&str; 4] = [
    "FieldValueRequired",
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueDuplicate",
];

pub fn check(json: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, rule) in list(json, "x-kubernetes-validations").enumerate() {
        let at = path.child("x-kubernetes-validations").index(i);
        let (source, message) = (text(rule, "rule").trim(), text(rule, "message"));
        let broken = |text: &str| text.contains(['\n', '\r']);
        if source.is_empty() {
            errors.required(&at.child("rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.invalid(&at.child("message"), message, "must be non-empty if specified");
        } else if broken(message.trim()) {
            errors.invalid(&at.child("message"), message, "must not contain line breaks");
        } else if broken(source) && message.trim().is_empty() {
            errors.required(
                &at.child("message"),
                "message must be specified if rule contains line breaks",
            );
        }
        let expression = text(rule, "messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.required(&at.child("messageExpression"), detail);
        }
        if let Some(reason) = rule.get("reason").and_then(Value::as_str)
            && !REASONS.contains(&reason)
        {
            errors.not_supported(&at.child("reason"), reason, &REASONS);
        }
        let field = text(rule, "fieldPath");
        let at = at.child("fieldPath");
        if field.is_empty() {
            continue;
        }
        if field.trim().is_empty() {
            errors.invalid(&at, field, "must be non-empty if specified");
        }
        if broken(field) {
            errors.invalid(&at, field, "must not contain line breaks");
        }
        if field_path::resolved(field, &Schema::read(json)).is_err() {
            errors.invalid(&at, field, "must be a valid path");
        }
    }
}
