//! `x-kubernetes-validations`: rules in CEL on values and on how they change.
//!
//! Whether a rule compiles, and its estimated cost, was checked with the definition ([`super::definition`]).

use std::sync::Arc;

use knarr_apimachinery::field::{Cause, ErrorList, FieldError};
use knarr_cel::meter::{BUDGET, CALL_COST_MAX, OUT_OF_BUDGET};
use knarr_cel::structural::declared::escaped;
use knarr_cel::structural::{Rule, Schema};
use knarr_cel::{Cel, EvaluationError, MESSAGE_MAX_BYTES, OptionalValue, Scope, of_map, timed};
use serde_json::Value;

use super::field_path;

/// Validates `value` by the rules of its schema and of all nested ones. `old`: the value before the update. Errors of a value that
/// is unchanged do not fail an update (ratcheting, KEP-4008), except those of transition rules.
pub fn validate(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut ErrorList) {
    let mut validator = Validator {
        budget: BUDGET,
        stopped: false,
        errors: ErrorList::new(),
    };
    let before = OldValue {
        here: old,
        ancestor: None,
    };
    validator.visit(value, before, schema, path);
    errors.extend(validator.errors);
}

/// The value at the same path before the update.
#[derive(Clone, Copy)]
struct OldValue<'a> {
    here: Option<&'a Value>,
    /// Where the old value cannot be correlated: the nearest value above that can be, new and old.
    ancestor: Option<(&'a Value, &'a Value)>,
}

impl<'a> OldValue<'a> {
    /// The same of a part of `value`.
    fn of_part(self, value: &'a Value, part: Option<&'a Value>) -> OldValue<'a> {
        OldValue {
            here: part,
            ancestor: self.here.map(|old| (value, old)).or(self.ancestor),
        }
    }

    fn is_as_it_was(self, value: &Value) -> bool {
        match (self.here, self.ancestor) {
            (Some(old), _) => old == value,
            (None, Some((new, old))) => new == old,
            (None, None) => false,
        }
    }
}

struct Validator {
    budget: u64,
    /// The budget is spent: no further rules are evaluated.
    stopped: bool,
    errors: ErrorList,
}

impl Validator {
    fn visit<'a>(&mut self, value: &'a Value, before: OldValue<'a>, schema: &Schema, path: &str) {
        if value.is_null() || self.stopped {
            return;
        }
        if !schema.rules.is_empty() {
            self.run_rules(value, before, schema, path);
        }
        match value {
            Value::Object(map) => {
                let named = |name: &str| match (path, schema.properties.contains_key(name)) {
                    ("", _) => name.to_string(),
                    (path, true) => format!("{path}.{name}"),
                    (path, false) => format!("{path}[{name}]"),
                };
                for (name, part) in map {
                    let Some(schema) = schema.field(name) else {
                        continue;
                    };
                    let old = before.here.and_then(|o| o.get(name));
                    self.visit(part, before.of_part(value, old), schema, &named(name));
                }
            }
            Value::Array(list) => {
                let Some(items) = &schema.items else { return };
                for (i, item) in list.iter().enumerate() {
                    let old = before.here.and_then(|old| same_item(item, old, schema));
                    self.visit(item, before.of_part(value, old), items, &format!("{path}[{i}]"));
                }
            }
            _ => {}
        }
    }

    fn run_rules(&mut self, value: &Value, before: OldValue<'_>, schema: &Schema, path: &str) {
        let type_name = match schema.types().as_slice() {
            [one] => one.to_string(),
            _ => String::new(),
        };
        let field_error = |detail: String| FieldError {
            cause: Cause::Invalid,
            field: if path.is_empty() {
                "<nil>".into()
            } else {
                path.to_string()
            },
            value: Some(knarr_apimachinery::field::quoted(&type_name)),
            detail,
        };
        let old = before.here.filter(|old| !old.is_null());
        let mut scope = Scope::default();
        scope.set("self", of(value, schema));
        let old_self = old.map(|old| of(old, schema));
        for rule in &schema.rules {
            let Some(program) = &rule.program else { continue };
            if rule.uses_old_self {
                match (rule.optional_old_self, &old_self) {
                    (true, old) => {
                        let old = old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                        scope.set("oldSelf", Cel::Opaque(Arc::new(old)));
                    }
                    (false, Some(old)) => scope.set("oldSelf", old.clone()),
                    // A transition rule without an old value is not evaluated.
                    (false, None) => continue,
                }
            }
            let found = program.run(&scope);
            if !self.charge(scope.cost()) {
                return self.errors.push(field_error(OUT_OF_BUDGET.into()));
            }
            match found {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => {
                    let error = failed(rule, &scope, value, schema, path);
                    self.charge(scope.cost());
                    if rule.uses_old_self || !before.is_as_it_was(value) {
                        self.errors.push(error);
                    }
                }
                Ok(_) => self.errors.push(field_error(format!(
                    "rule must evaluate to a bool: {}",
                    rule.named()
                ))),
                Err(e @ EvaluationError::CostLimitExceeded) => {
                    self.stopped = true;
                    let detail =
                        "no further validation rules will be run due to call cost exceeds limit for rule";
                    return self
                        .errors
                        .push(field_error(format!("'{e}': {detail}: {}", rule.named())));
                }
                Err(e @ EvaluationError::NoSuchOverload) => {
                    let detail = "call arguments did not match a supported operator, function or macro signature for rule";
                    self.errors
                        .push(field_error(format!("'{e}': {detail}: {}", rule.named())));
                }
                Err(e) => self
                    .errors
                    .push(field_error(format!("{e} evaluating rule: {}", rule.named()))),
            }
        }
    }

    /// Takes a cost from the budget; when that is spent, no further rules are evaluated.
    fn charge(&mut self, cost: u64) -> bool {
        // An expression over its own cost limit stops validation with its own message.
        if cost > CALL_COST_MAX {
            return true;
        }
        match self.budget.checked_sub(cost) {
            Some(left) => self.budget = left,
            None => self.stopped = true,
        }
        !self.stopped
    }
}

/// The old item with the same keys; only items of a list of type map can be correlated.
fn same_item<'a>(item: &Value, old: &'a Value, schema: &Schema) -> Option<&'a Value> {
    if schema.list_type != "map" {
        return None;
    }
    let same = |other: &&Value| schema.list_map_keys.iter().all(|k| other.get(k) == item.get(k));
    old.as_array()?.iter().find(same)
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
        _ => Some(super::validation::shown(value)),
    };
    let (cause, value) = match rule.reason.as_str() {
        "FieldValueForbidden" => (Cause::Forbidden, None),
        "FieldValueRequired" => (Cause::Required, None),
        "FieldValueDuplicate" => (Cause::Duplicate, shown),
        _ => (Cause::Invalid, shown),
    };
    let at = field_path::resolved(&rule.field_path, schema).unwrap_or_default();
    let joined = match (path, at.as_str()) {
        ("", "") => "<nil>".to_string(),
        ("", at) => at.to_string(),
        (path, "") => path.to_string(),
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

/// The value as a CEL value: numbers by the schema's type, times where the format says so.
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

    fn errors_of(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = ErrorList::new();
        validate(value, old, &Schema::read(schema), "", &mut errors);
        errors.iter().map(|e| format!("{e}")).collect()
    }

    #[test]
    fn rules_are_evaluated_at_their_path() {
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
            // No old value: the transition rule is not evaluated.
            (json!({"rule": "self.min == oldSelf.min"}), ""),
            (
                json!({"rule": "!oldSelf.hasValue()", "optionalOldSelf": true}),
                "",
            ),
        ] {
            let found = errors_of(&spec(json!([rule])), &value, None).join("; ");
            assert_eq!(found, want, "{rule}");
        }
    }

    #[test]
    fn transition_rules_see_the_old_value() {
        let schema = json!({"type": "object", "properties": {
            "size": {"type": "integer", "x-kubernetes-validations": [
                {"rule": "self >= oldSelf", "message": "may only grow"}]},
            "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"},
                    "v": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}},
        }});
        let old = json!({"size": 3, "items": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]});
        let new = json!({"size": 2, "items": [{"k": "b", "v": "9"}, {"k": "c", "v": "3"}]});
        let mut found = errors_of(&schema, &new, Some(&old));
        found.sort();
        assert_eq!(
            found,
            [
                "items[0].v: Invalid value: \"9\": failed rule: self == oldSelf",
                "size: Invalid value: 2: may only grow"
            ]
        );
        assert!(errors_of(&schema, &old, Some(&old)).is_empty());
    }

    #[test]
    fn unchanged_values_do_not_fail_an_update() {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 3", "message": "too many"}]},
            "grows": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf", "message": "must grow"}]},
            "list": {"type": "array", "items": {"type": "string",
                "x-kubernetes-validations": [{"rule": "self != 'x'", "message": "no x"}]}},
        }});
        for (old, new, want) in [
            (None, json!({"n": 5}), "n: Invalid value: 5: too many"),
            (Some(json!({"n": 5})), json!({"n": 5}), ""),
            (
                Some(json!({"n": 5})),
                json!({"n": 6}),
                "n: Invalid value: 6: too many",
            ),
            (
                Some(json!({"grows": 1})),
                json!({"grows": 1}),
                "grows: Invalid value: 1: must grow",
            ),
            (Some(json!({"grows": 1})), json!({"grows": 2}), ""),
            // Items without keys are unchanged only if the whole list is.
            (Some(json!({"list": ["x"]})), json!({"list": ["x"]}), ""),
            (
                Some(json!({"list": ["x"]})),
                json!({"list": ["x", "y"]}),
                "list[0]: Invalid value: \"x\": no x",
            ),
        ] {
            assert_eq!(
                errors_of(&schema, &new, old.as_ref()).join("; "),
                want,
                "{old:?} to {new}"
            );
        }
    }

    #[test]
    fn rules_that_cost_too_much_end_the_validation() {
        // Sorting costs the square of the number of items.
        let numbers = |n: i64| -> Vec<i64> { (0..n).collect() };
        let schema = |rules: Value| {
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"},
                "x-kubernetes-validations": rules}}})
        };
        let value = json!({"l": numbers(1_500)});
        let dear = "self.sort() == self";
        let rules = schema(json!([{"rule": dear}, {"rule": "false"}]));
        assert_eq!(
            errors_of(&rules, &value, None),
            [format!(
                "l: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation \
                 rules will be run due to call cost exceeds limit for rule: {dear}"
            )]
        );
        // Each rule is within its limit, all together are not.
        let value = json!({"l": numbers(600)});
        let mut many = vec![json!({"rule": dear}); 15];
        many.push(json!({"rule": "false"}));
        assert_eq!(
            errors_of(&schema(many.into()), &value, None),
            [
                "l: Invalid value: \"array\": validation failed due to running out of cost budget, no further validation \
              rules will be run"
            ]
        );
    }
}
