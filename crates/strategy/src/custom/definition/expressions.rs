//! Validation of the expressions in a schema's rules: they compile, evaluate to the expected type, use the old
//! value only where it can be correlated, and cost no more than Kubernetes allows.

use knarr_apimachinery::field::{ErrorList, Path};
use knarr_cel as cel;
use knarr_cel::check::declared::REQUEST_MAX_BYTES;
use knarr_cel::check::{Declared, Environment, Type};
use knarr_cel::structural::Schema;
use knarr_cel::structural::declared::declared;
use knarr_cel::{Compiled, ExpressionError};
use serde_json::{Map, Value};

use super::{fields, flag, list, push_invalid, text};

/// Most that one expression may cost, times how often it can run on one object.
const EXPRESSION_COST_MAX: u64 = 10_000_000;
/// Most that all expressions of a schema may cost together.
const SCHEMA_COST_MAX: u64 = 100_000_000;
/// How many of the most expensive expressions are named, and from which share of the total.
const NAMED_MAX: usize = 4;
const NAMED_FROM: u64 = SCHEMA_COST_MAX / 100;

/// Validates the rules of a structural schema. `errors`: the errors found in the schema before; rules of a node
/// with an error are not checked.
pub fn check(json: &Value, path: &Path, known_costs: bool, errors: &mut ErrorList) {
    let mut check = Check {
        before: errors.iter().map(|e| e.field.clone()).collect(),
        known_costs,
        total: 0,
        expensive: Vec::new(),
        errors: ErrorList::new(),
    };
    let root = Node {
        json,
        path: path.clone(),
        is_root: true,
        times: Some(1),
        uncorrelatable: None,
    };
    check.visit(&root);
    if check.total > SCHEMA_COST_MAX {
        for (at, _) in &check.expensive {
            let detail =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            check.errors.forbidden(at, detail);
        }
        let of = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        check
            .errors
            .forbidden(path, exceeds(of, check.total, SCHEMA_COST_MAX));
    }
    errors.extend(check.errors);
}

/// A node of the schema, and its path.
struct Node<'j> {
    json: &'j Value,
    path: Path,
    is_root: bool,
    /// How often its value can be in an object (cardinality); `None` where nothing limits that.
    times: Option<u64>,
    /// The path of the list above whose items cannot be correlated with the old ones.
    uncorrelatable: Option<Path>,
}

impl<'j> Node<'j> {
    fn below(&self, json: &'j Value, path: Path) -> Node<'j> {
        let (times, most) = (self.times, most_elements(self.json));
        Node {
            json,
            path,
            is_root: false,
            times: times.and_then(|times| most.map(|most| times.saturating_mul(most))),
            uncorrelatable: self.uncorrelatable.clone(),
        }
    }
}

/// The largest number of elements of a list or map.
fn most_elements(json: &Value) -> Option<u64> {
    let limit = |name: &str| {
        let limit = json.get(name)?.as_i64()?;
        Some(u64::try_from(limit).unwrap_or_default())
    };
    match text(json, "type") {
        "object" if json.get("additionalProperties").is_some_and(|a| !a.is_null()) => limit("maxProperties"),
        "array" => limit("maxItems"),
        _ => Some(1),
    }
}

struct Check {
    /// The fields with an error.
    before: Vec<String>,
    known_costs: bool,
    total: u64,
    /// The most expensive first.
    expensive: Vec<(Path, u64)>,
    errors: ErrorList,
}

impl Check {
    fn visit(&mut self, node: &Node<'_>) {
        let (json, path) = (node.json, &node.path);
        if let Some(schema) = json.get("additionalProperties").filter(|v| v.is_object()) {
            self.visit(&node.below(schema, path.child("additionalProperties")));
        }
        for (name, schema) in fields(json, "properties") {
            self.visit(&node.below(schema, path.child("properties").key(name)));
        }
        if let Some(schema) = json.get("items").filter(|v| v.is_object()) {
            let mut items = node.below(schema, path.child("items"));
            // Items without keys cannot be correlated.
            if text(json, "x-kubernetes-list-type") != "map" {
                items.uncorrelatable.get_or_insert_with(|| path.clone());
            }
            self.visit(&items);
        }
        let has_rules = list(json, "x-kubernetes-validations").next().is_some();
        if has_rules && !self.has_error(path) {
            self.check_rules(node);
        }
    }

    /// Whether there is an error at or below a path.
    fn has_error(&self, path: &Path) -> bool {
        self.before.iter().any(|field| {
            let rest = field.strip_prefix(path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    fn check_rules(&mut self, node: &Node<'_>) {
        let schema = Schema::read(node.json);
        let is_resource = node.is_root || flag(node.json, "x-kubernetes-embedded-resource");
        let at = node.path.child("x-kubernetes-validations");
        let Some(of_self) = declared(&schema, is_resource, "selfType") else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: \
                         unable to convert structural schema to CEL declarations";
            return self.errors.internal(&at, detail);
        };
        for (i, rule) in list(node.json, "x-kubernetes-validations").enumerate() {
            self.check_rule(rule, &of_self, node, &at.index(i));
        }
    }

    fn check_rule(&mut self, rule: &Value, of_self: &Declared, node: &Node<'_>, at: &Path) {
        let old = match flag(rule, "optionalOldSelf") {
            true => Type::optional(of_self.cel_type()),
            false => of_self.cel_type(),
        };
        let environment = Environment::default()
            .with_declared("self", of_self)
            .with("oldSelf", old);
        let compiled = typed(
            text(rule, "rule"),
            &environment,
            &Type::Bool,
            "cel expression must evaluate to a bool",
        );
        let mut uses_old_self = false;
        match compiled {
            Err(error) => {
                let detail = error.to_string();
                push_invalid(&mut self.errors, &at.child("rule"), &shown_rule(rule), detail);
            }
            Ok(compiled) => {
                let times = node.times.unwrap_or(REQUEST_MAX_BYTES / (of_self.min_size + 1));
                let cost = compiled.cost_max(of_self).saturating_mul(times);
                self.count(&at.child("rule"), "estimated rule cost", cost);
                uses_old_self = compiled.program.uses("oldSelf");
                self.check_message(rule, of_self, &environment, at);
            }
        }
        match (uses_old_self, &node.uncorrelatable) {
            (true, Some(whole)) => {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {whole}"
                );
                self.errors.invalid(&at.child("rule"), text(rule, "rule"), detail);
            }
            (true, None) => {}
            (false, _) => {
                if let Some(optional) = rule.get("optionalOldSelf").filter(|o| !o.is_null()) {
                    let detail = "may not be set if oldSelf is not used in rule";
                    push_invalid(&mut self.errors, &at.child("optionalOldSelf"), optional, detail);
                }
            }
        }
    }

    fn check_message(&mut self, rule: &Value, of_self: &Declared, environment: &Environment, at: &Path) {
        let message = text(rule, "messageExpression");
        if message.is_empty() {
            return;
        }
        let at = at.child("messageExpression");
        match typed(message, environment, &Type::String, "must evaluate to a string") {
            Err(why) => {
                let detail = format!("messageExpression {why}");
                push_invalid(&mut self.errors, &at, &shown_rule(rule), detail);
            }
            Ok(compiled) => {
                self.count(
                    &at,
                    "estimated messageExpression cost",
                    compiled.cost_max(of_self),
                );
            }
        }
    }

    /// Adds the estimated cost of an expression.
    fn count(&mut self, at: &Path, of: &str, cost: u64) {
        if cost > EXPRESSION_COST_MAX && !self.known_costs {
            self.errors.forbidden(at, exceeds(of, cost, EXPRESSION_COST_MAX));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= NAMED_FROM {
            self.expensive.push((at.clone(), cost));
            self.expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.expensive.truncate(NAMED_MAX);
        }
    }
}

/// Compiles an expression that must evaluate to the type `expected`.
fn typed(
    text: &str,
    environment: &Environment,
    expected: &Type,
    unlike: &str,
) -> Result<Compiled, ExpressionError> {
    let compiled = cel::compile(text, environment)?;
    match compiled.output() == expected {
        true => Ok(compiled),
        false => Err(ExpressionError::Output(unlike.into())),
    }
}

fn exceeds(of: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        f if f > 100.0 => "more than 100x".to_string(),
        f if f < 1.5 => format!("{f:.6}x"),
        f => format!("{f:.1}x"),
    };
    format!(
        "{of} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// A rule as Go encodes its internal type.
fn shown_rule(rule: &Value) -> Value {
    let mut shown = Map::new();
    for (name, field) in [
        ("Rule", "rule"),
        ("Message", "message"),
        ("MessageExpression", "messageExpression"),
    ] {
        shown.insert(name.into(), text(rule, field).into());
    }
    for (name, field) in [
        ("Reason", "reason"),
        ("FieldPath", "fieldPath"),
        ("OptionalOldSelf", "optionalOldSelf"),
    ] {
        let none = match field {
            "fieldPath" => Value::from(""),
            _ => Value::Null,
        };
        shown.insert(name.into(), rule.get(field).cloned().unwrap_or(none));
    }
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors_of(schema: Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        super::super::structural::check(&schema, &Path::new("s"), false, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    /// The errors of a rule on an object, without the rule itself.
    fn of_rule(rule: Value) -> String {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "namespace": {"type": "string"},
            "a-b": {"type": "string"}, "when": {"type": "string", "format": "date-time"},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10}}},
            "x-kubernetes-validations": [rule]});
        let found = errors_of(schema);
        let found = found.iter().map(|error| {
            let (field, detail) = error.split_once(": ").unwrap_or((error, ""));
            let detail = detail.rsplit_once("}: ").map_or(detail, |(_, detail)| detail);
            format!(
                "{}: {detail}",
                field.trim_start_matches("s.x-kubernetes-validations[0].")
            )
        });
        found.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn rules_are_expressions_of_type_bool() {
        for (rule, want) in [
            (
                json!({"rule": "self.n > 1 && self.metadata.name != '' && self.kind == 'K'"}),
                "",
            ),
            (json!({"rule": "self.__namespace__ == self.a__dash__b"}), ""),
            (
                json!({"rule": "self.when < timestamp('2020-01-01T00:00:00Z')"}),
                "",
            ),
            (
                json!({"rule": "self.missing == 1"}),
                "rule: compilation failed: ERROR: <input>:1:5: undefined field 'missing'\n | self.missing == 1\n | ....^",
            ),
            (
                json!({"rule": "self.any == 1"}),
                "rule: compilation failed: ERROR: <input>:1:5: undefined field 'any'\n | self.any == 1\n | ....^",
            ),
            (
                json!({"rule": "size(self.metadata.labels) > 0"}),
                "rule: compilation failed: ERROR: <input>:1:19: undefined field 'labels'\n | size(self.metadata.labels) > 0\n | ..................^",
            ),
            (
                json!({"rule": "self.n == 'x'"}),
                "rule: compilation failed: ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(int, string)'\n | self.n == 'x'\n | .......^",
            ),
            (
                json!({"rule": "self.n"}),
                "rule: cel expression must evaluate to a bool",
            ),
            (json!({"rule": "self.n > oldSelf.n"}), ""),
            (
                json!({"rule": "self.n > oldSelf.n.orValue(1)", "optionalOldSelf": true}),
                "",
            ),
            (
                json!({"rule": "self.n > oldSelf.n", "optionalOldSelf": true}),
                "rule: compilation failed: ERROR: <input>:1:8: found no matching overload for '_>_' applied to '(int, optional_type(int))'\n | self.n > oldSelf.n\n | .......^; \
                 optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
            ),
            (
                json!({"rule": "self.n > 1", "optionalOldSelf": true}),
                "optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
            ),
            (
                json!({"rule": "self.n > 1", "messageExpression": "'s is ' + self.s"}),
                "",
            ),
            (
                json!({"rule": "self.n > 1", "messageExpression": "self.n"}),
                "messageExpression: messageExpression must evaluate to a string",
            ),
            (
                json!({"rule": "self.n > 1", "messageExpression": "'a' + self.n"}),
                "messageExpression: messageExpression compilation failed: ERROR: <input>:1:5: found no matching overload for '_+_' applied to '(string, int)'\n | 'a' + self.n\n | ....^",
            ),
            (
                json!({"rule": "self.n > 1", "messageExpression": " "}),
                "messageExpression: Required value: messageExpression must be non-empty if specified",
            ),
            (json!({"rule": "self.n > 1", "fieldPath": ".n"}), ""),
            (
                json!({"rule": "self.n > 1", "fieldPath": ".list[0]"}),
                "fieldPath: Invalid value: \".list[0]\": must be a valid path",
            ),
            (
                json!({"rule": " "}),
                "rule: Required value: rule is not specified",
            ),
            (
                json!({"rule": "self.n > 1 &&\nself.n < 3"}),
                "message: Required value: message must be specified if rule contains line breaks",
            ),
        ] {
            assert_eq!(of_rule(rule.clone()), want, "{rule}");
        }
    }

    #[test]
    fn rules_of_a_node_with_an_error_are_not_checked() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "strin"}},
            "x-kubernetes-validations": [{"rule": "self.missing"}]});
        assert_eq!(errors_of(schema).len(), 1);
    }

    #[test]
    fn transition_rules_need_an_old_value_that_can_be_correlated() {
        let items = |list: Value| {
            let mut schema = json!({"type": "array", "maxItems": 3, "items": {"type": "object", "required": ["k"],
                "properties": {"k": {"type": "string", "maxLength": 9,
                    "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
            knarr_api::patch::merge::apply(&mut schema, &list);
            errors_of(json!({"type": "object", "properties": {"l": schema}})).join("; ")
        };
        let errors = items(json!({}));
        assert!(
            errors.ends_with(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"
            ),
            "{errors}"
        );
        let keyed = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
        assert_eq!(items(keyed), "");
    }

    /// The limits that a schema of nested lists needs.
    fn of_list(outer: Value, item: Value, rule: &str) -> Vec<String> {
        let mut list = json!({"type": "array", "items": item, "x-kubernetes-validations": [{"rule": rule}]});
        knarr_api::patch::merge::apply(&mut list, &outer);
        errors_of(json!({"type": "object", "properties": {"l": list}}))
    }

    const ADVICE: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, \
                          maps, and strings are declared)";

    #[test]
    fn rules_that_can_cost_too_much_are_rejected() {
        let text = json!({"type": "string"});
        let rule = "self.all(x, self.all(y, x == y))";
        assert_eq!(
            of_list(json!({}), text.clone(), rule),
            [
                format!(
                    "s.properties[l].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget \
                     by factor of more than 100x {ADVICE}"
                ),
                "s.properties[l].x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost \
                 total exceeding cost limit for entire OpenAPIv3 schema"
                    .to_string(),
                format!(
                    "s: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema \
                     exceeds budget by factor of more than 100x {ADVICE}"
                ),
            ]
        );
        let short = json!({"type": "string", "maxLength": 10});
        assert_eq!(
            of_list(json!({"maxItems": 100}), short.clone(), rule),
            Vec::<String>::new()
        );
        assert_eq!(
            of_list(json!({}), short, "self.all(x, x.startsWith('a'))"),
            Vec::<String>::new(),
            "what is walked once is not dear"
        );
        // A value without a limit can occur as often as fits into a request.
        let within = errors_of(
            json!({"type": "object", "properties": {"l": {"type": "array", "items":
            {"type": "object", "properties": {"m": {"type": "array", "items": {"type": "string"},
                "x-kubernetes-validations": [{"rule": "self.all(x, x.startsWith('a'))"}]}}}}}}),
        );
        assert!(
            within[0].contains("exceeds budget by factor of more than 100x"),
            "{within:?}"
        );
    }

    #[test]
    fn factors_are_shown_as_by_kubernetes() {
        for (cost, want) in [
            (12_345_678, "1.234568x"),
            (15_000_000, "1.5x"),
            (123_000_000, "12.3x"),
            (1_000_000_001, "more than 100x"),
        ] {
            let message = exceeds("it", cost, EXPRESSION_COST_MAX);
            assert_eq!(message, format!("it exceeds budget by factor of {want} {ADVICE}"));
        }
    }
}
