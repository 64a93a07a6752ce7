//! `x-kubernetes-validations`: rules in CEL on values and on how they change.
//!
//! Whether a rule is one, and what it can cost, was judged with the definition ([`super::definition`]).

use std::sync::Arc;

use serde_json::Value;

use super::declared::escaped;
use super::schema::Schema;
use crate::cel::{Cel, MESSAGE_MAX_BYTES, OptionalValue, Program, Scope, of_map, timed};
use crate::field::{Cause, Errors, FieldError};

/// One rule.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    /// One of the four reasons of FieldValueErrorReason, or empty.
    pub reason: String,
    pub field_path: String,
    pub optional_old_self: bool,
    pub uses_old_self: bool,
    program: Option<Arc<Program>>,
    message_program: Option<Arc<Program>>,
}

impl Rule {
    pub(super) fn read(json: &Value) -> Rule {
        let text = |name: &str| {
            json.get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_string()
        };
        let rule = text("rule");
        let message_expression = text("messageExpression");
        let program = Program::read(&rule).ok().map(Arc::new);
        let uses_old_self = program.as_ref().is_some_and(|p| p.uses("oldSelf"));
        Rule {
            uses_old_self,
            message_program: Program::read(&message_expression).ok().map(Arc::new),
            program,
            message: text("message"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: json
                .get("optionalOldSelf")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            rule,
            message_expression,
        }
    }

    /// The rule or its message, as errors name it.
    fn named(&self) -> &str {
        match self.message.trim() {
            "" => self.rule.trim(),
            message => message,
        }
    }
}

/// Judges `value` by the rules of its schema and of all below it. `old`: what stood in its place before.
pub fn judge(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Errors) {
    if value.is_null() {
        return;
    }
    run_rules(value, old.filter(|o| !o.is_null()), schema, path, errors);
    match value {
        Value::Object(map) => {
            let named = |name: &str| match (path, schema.properties.contains_key(name)) {
                ("", _) => name.to_string(),
                (path, true) => format!("{path}.{name}"),
                (path, false) => format!("{path}[{name}]"),
            };
            for (name, value) in map {
                let Some(schema) = schema.field(name) else {
                    continue;
                };
                judge(value, old.and_then(|o| o.get(name)), schema, &named(name), errors);
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, item) in list.iter().enumerate() {
                let old = old.and_then(|old| same_item(item, old, schema));
                judge(item, old, items, &format!("{path}[{i}]"), errors);
            }
        }
        _ => {}
    }
}

/// The old item that has the same keys; only items of a list of type map can be told from each other.
fn same_item<'a>(item: &Value, old: &'a Value, schema: &Schema) -> Option<&'a Value> {
    if schema.list_type != "map" {
        return None;
    }
    let same = |other: &&Value| schema.list_map_keys.iter().all(|k| other.get(k) == item.get(k));
    old.as_array()?.iter().find(same)
}

fn run_rules(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Errors) {
    let type_name = match schema.types().as_slice() {
        [one] => one.to_string(),
        _ => String::new(),
    };
    for rule in &schema.rules {
        let Some(program) = &rule.program else { continue };
        if rule.uses_old_self && old.is_none() && !rule.optional_old_self {
            continue;
        }
        let mut scope = Scope::default();
        scope.set("self", of(value, schema));
        let old = old.map(|old| of(old, schema));
        match (rule.optional_old_self, old) {
            (true, old) => {
                let old = old.map_or_else(OptionalValue::none, OptionalValue::of);
                scope.set("oldSelf", Cel::Opaque(Arc::new(old)));
            }
            (false, Some(old)) => scope.set("oldSelf", old),
            (false, None) => {}
        }
        let told = |detail: String| FieldError {
            cause: Cause::Invalid,
            field: if path.is_empty() {
                "<nil>".into()
            } else {
                path.to_string()
            },
            value: Some(crate::field::quoted(&type_name)),
            detail,
        };
        match program.run(&scope) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => errors.push(failed(rule, &scope, value, schema, path)),
            Ok(_) => errors.push(told(format!("rule must evaluate to a bool: {}", rule.named()))),
            Err(e) => errors.push(told(format!("{e} evaluating rule: {}", rule.named()))),
        }
    }
}

fn failed(rule: &Rule, scope: &Scope<'_>, value: &Value, schema: &Schema, path: &str) -> FieldError {
    let own = rule
        .message_program
        .as_ref()
        .and_then(|program| match program.run(scope) {
            Ok(Cel::String(text)) => Some(text.trim().to_string()),
            _ => None,
        });
    let detail = own
        .filter(|m| !m.is_empty() && !m.contains('\n') && m.len() <= MESSAGE_MAX_BYTES)
        .unwrap_or_else(|| match rule.message.trim() {
            "" => format!("failed rule: {}", rule.rule.trim()),
            message => message.to_string(),
        });
    // Objects and lists are not shown.
    let shown = match schema.of.as_str() {
        "object" | "array" => None,
        _ => Some(super::judge::shown(value)),
    };
    let (cause, value) = match rule.reason.as_str() {
        "FieldValueForbidden" => (Cause::Forbidden, None),
        "FieldValueRequired" => (Cause::Required, None),
        "FieldValueDuplicate" => (Cause::Duplicate, shown),
        _ => (Cause::Invalid, shown),
    };
    let at = rule.field_path.trim();
    let joined = match (path, at.strip_prefix('.').unwrap_or(at)) {
        ("", "") => "<nil>".to_string(),
        ("", at) => at.to_string(),
        (path, "") => path.to_string(),
        (path, at) if at.starts_with('[') => format!("{path}{at}"),
        (path, at) => format!("{path}.{at}"),
    };
    FieldError {
        detail: if cause == Cause::Duplicate {
            String::new()
        } else {
            detail
        },
        cause,
        field: joined,
        value,
    }
}

/// The value as CEL sees it: numbers by what the schema calls them, times where the format says so.
fn of(value: &Value, schema: &Schema) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => match (n.as_i64(), schema.of.as_str()) {
            (Some(n), "number") => Cel::Float(n as f64),
            (Some(n), _) => Cel::Int(n),
            (None, _) => Cel::Float(n.as_f64().unwrap_or_default()),
        },
        Value::String(text) => {
            timed(text, &schema.format).unwrap_or_else(|| Cel::String(Arc::new(text.clone())))
        }
        Value::Array(list) => {
            let any = Schema::default();
            let items = schema.items.as_deref().unwrap_or(&any);
            Cel::List(Arc::new(list.iter().map(|item| of(item, items)).collect()))
        }
        Value::Object(map) => {
            let any = Schema::default();
            of_map(map.iter().map(|(name, value)| {
                let known = schema.properties.contains_key(name);
                let key = escaped(name).filter(|_| known);
                let value = of(value, schema.field(name).unwrap_or(&any));
                (key.unwrap_or_else(|| name.clone()), value)
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = Errors::new();
        judge(value, old, &Schema::read(schema), "", &mut errors);
        errors.iter().map(|e| format!("{e}")).collect()
    }

    #[test]
    fn rules_are_judged_where_they_stand() {
        let spec = |rules: Value| {
            json!({"type": "object", "properties": {"spec": {"type": "object",
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string"},
                "ratio": {"type": "number"}, "namespace": {"type": "string"},
                "start": {"type": "string", "format": "date-time"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}}},
            "x-kubernetes-validations": rules}}})
        };
        let value = json!({"spec": {"min": 3, "max": 2, "name": "a-b", "ratio": 1, "namespace": "n",
            "start": "2020-01-02T03:04:05Z", "tags": ["x", "y"], "map": {"k": 1}}});
        for (rule, want) in [
            (json!({"rule": "self.min >= self.max"}), ""),
            (
                json!({"rule": "self.min <= self.max"}),
                "spec: Invalid value: failed rule: self.min <= self.max",
            ),
            (
                json!({"rule": "self.min <= self.max", "message": " too big "}),
                "spec: Invalid value: too big",
            ),
            (
                json!({"rule": "self.min <= self.max", "message": "m", "fieldPath": ".min",
                    "messageExpression": "'min ' + string(self.min) + ' is over ' + string(self.max)"}),
                "spec.min: Invalid value: min 3 is over 2",
            ),
            (
                json!({"rule": "false", "message": "m", "reason": "FieldValueForbidden"}),
                "spec: Forbidden: m",
            ),
            (json!({"rule": "has(self.name) && !has(self.missing)"}), ""),
            (
                json!({"rule": "self.tags.all(t, t.size() == 1) && 'x' in self.tags"}),
                "",
            ),
            (
                json!({"rule": "self.name.matches('^[a-z-]+$') && self.name.split('-').size() == 2"}),
                "",
            ),
            (
                json!({"rule": "self.ratio == 1.0 && self.map.k == 1 && self.map['k'] == 1"}),
                "",
            ),
            (json!({"rule": "self.__namespace__ == 'n'"}), ""),
            (
                json!({"rule": "self.start > timestamp('2019-01-01T00:00:00Z')"}),
                "",
            ),
            (
                json!({"rule": "self.missing == 1"}),
                "spec: Invalid value: \"object\": no such key: missing evaluating rule: self.missing == 1",
            ),
            // Nothing to compare with: not judged.
            (json!({"rule": "self.min == oldSelf.min"}), ""),
            (
                json!({"rule": "!oldSelf.hasValue()", "optionalOldSelf": true}),
                "",
            ),
        ] {
            let found = told(&spec(json!([rule])), &value, None).join("; ");
            assert_eq!(found, want, "{rule}");
        }
    }

    #[test]
    fn transition_rules_see_what_was_there() {
        let schema = json!({"type": "object", "properties": {
            "size": {"type": "integer", "x-kubernetes-validations": [
                {"rule": "self >= oldSelf", "message": "may only grow"}]},
            "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"},
                    "v": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}},
        }});
        let old = json!({"size": 3, "items": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]});
        let new = json!({"size": 2, "items": [{"k": "b", "v": "9"}, {"k": "c", "v": "3"}]});
        let mut found = told(&schema, &new, Some(&old));
        found.sort();
        assert_eq!(
            found,
            [
                "items[0].v: Invalid value: \"9\": failed rule: self == oldSelf",
                "size: Invalid value: 2: may only grow"
            ]
        );
        assert!(told(&schema, &old, Some(&old)).is_empty());
    }
}
