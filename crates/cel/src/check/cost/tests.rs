//! What rules on schemas cost at most. The numbers are kube-apiserver v1.36's.

use serde_json::{Value, json};

use super::super::{Environment, Type};
use crate::compile;
use crate::structural::Schema;

fn cost(schema: &Value, rule: &str) -> u64 {
    let declared = crate::structural::declared::declared(&Schema::read(schema), false, "self").unwrap();
    let environment = Environment::default()
        .with_declared("self", &declared)
        .with("oldSelf", declared.cel_type());
    let compiled = compile(rule, &environment).unwrap();
    assert_eq!(*compiled.output(), Type::Bool);
    compiled.cost_max(&declared)
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

fn limited(mut schema: Value, limit: &str, to: u64) -> Value {
    schema[limit] = to.into();
    schema
}

#[test]
fn estimates_are_those_of_kubernetes() {
    let number = json!({"type": "number"});
    let text = json!({"type": "string"});
    let of = |format: &str| json!({"type": "string", "format": format});
    let int_or_string = json!({"x-kubernetes-int-or-string": true});
    let object = json!({"type": "object", "required": ["required"],
        "properties": {"required": {"type": "string"}, "optional": {"type": "string"}}});
    let all = "self.all(x, true)";
    let replacing = |max: Option<u64>| {
        let mut of_str = json!({"type": "string"});
        if let Some(max) = max {
            of_str["maxLength"] = max.into();
        }
        json!({"type": "object", "properties": {"str": of_str,
            "before": {"type": "string", "maxLength": 2}, "after": {"type": "string", "maxLength": 4}}})
    };
    let ten = json!({"type": "string", "maxLength": 10});
    for (schema, rule, want) in [
        (list(number.clone()), all, 4_718_591),
        (limited(list(number.clone()), "maxItems", 10), all, 32),
        (list(text.clone()), all, 3_145_727),
        (list(json!({"type": "boolean"})), all, 1_887_437),
        (list(list(number.clone())), all, 3_145_727),
        (list(object.clone()), all, 555_128),
        (map(number.clone()), all, 1_348_169),
        (map(text.clone()), all, 1_179_647),
        (limited(map(text.clone()), "maxProperties", 3), all, 11),
        (map(object.clone()), all, 428_963),
        (map(list(number.clone())), all, 1_179_647),
        (map(of("duration")), all, 1_048_577),
        (map(of("date")), all, 524_288),
        (map(of("date-time")), all, 349_526),
        (list(of("date")), all, 725_936),
        (list(of("date-time")), all, 428_963),
        (list(int_or_string.clone()), all, 4_718_591),
        (text.clone(), "self.contains('test')", 314_574),
        (ten.clone(), "self.contains('test')", 5),
        (text.clone(), "self.startsWith('test')", 2),
        (text.clone(), "self.endsWith('test')", 2),
        (text.clone(), "size(self + \"hello\") > size(\"hello\")", 314_578),
        (
            limited(text.clone(), "maxLength", 4),
            "size(self + \"hello\") > size(\"hello\")",
            7,
        ),
        (list(number.clone()), "self[1] == 0.0", 2),
        (list(text.clone()), "self[1] == self[1]", 314_577),
        (
            limited(list(number.clone()), "maxItems", 10),
            "self.all(x, self.all(y, true))",
            352,
        ),
        (
            limited(list(number.clone()), "maxItems", 10),
            "self.all(x, self.all(y, self.all(z, true)))",
            3_552,
        ),
        (text.clone(), "self.matches('x')", 314_574),
        (limited(text.clone(), "maxLength", 50), "self.matches('x')", 22),
        (text.clone(), "''.matches('(((((((((())))))))))[0-9]')", 7),
        (text.clone(), "self.matches('')", 1),
        (map(text.clone()), "self.all(x, x.contains(self[x]))", 2_752_507),
        (
            limited(map(ten.clone()), "maxProperties", 10),
            "self.all(x, x.contains(self[x]))",
            72,
        ),
        (map(number.clone()), "self['x'] == 0.0", 2),
        (text.clone(), "self == 'x'", 2),
        (limited(text.clone(), "maxLength", 0), "self == 'x'", 1),
        (of("byte"), "self == b'x'", 2),
        (list(number.clone()), "self.all(x, x == 0.0)", 6_291_454),
        (
            limited(list(number.clone()), "maxItems", 3 * 1024 * 2048),
            "self.all(x, x == 0.0)",
            25_165_826,
        ),
        (list(int_or_string.clone()), "self[0] == 5", 3),
        (list(of("date")), "self[2].getDayOfMonth() == 13", 4),
        (map(number.clone()), "oldSelf.size() == self.size()", 5),
        (map(of("date-time")), "self['a'] == self['b']", 8),
        (map(of("duration")), "self['c'] == self['d']", 8),
        (
            json!({"type": "string", "enum": ["A", "B", "C", "LongValue"]}),
            "self.contains('A')",
            2,
        ),
        (
            json!({"type": "string", "enum": ["A", "B", "C", "LongValue"], "maxLength": 1000}),
            "self.contains('A')",
            401,
        ),
        (text.clone(), "self.find('[0-9]+') == ''", 629_147),
        (ten.clone(), "self.find('[0-9]+') == ''", 11),
        (list(text.clone()), "self.join(' ') == 'aa bb'", 329_853_068_905),
        (
            limited(list(ten.clone()), "maxItems", 10),
            "self.join(' ') == 'aa bb'",
            43,
        ),
        (list(text.clone()), "self.isSorted() == true", 329_854_432_052),
        (
            limited(list(ten.clone()), "maxItems", 10),
            "self.isSorted() == true",
            52,
        ),
        (
            replacing(None),
            "self.str.replace(self.before, self.after) == 'does not matter'",
            629_154,
        ),
        (
            replacing(Some(4)),
            "self.str.replace(self.before, self.after) == 'does not matter'",
            12,
        ),
        (
            json!({"type": "object", "properties": {"str": text, "separator": text}}),
            "self.str.split(self.separator) == []",
            629_160,
        ),
        (text.clone(), "self.lowerAscii() == 'lower!'", 314_575),
        (int_or_string.clone(), "isQuantity(self)", 314_574),
    ] {
        assert_eq!(cost(&schema, rule), want, "{rule} on {schema}");
    }
}

#[test]
fn costs_saturate() {
    let list = json!({"type": "array", "items": {"type": "number"}});
    let mut rule = "true".to_string();
    for x in ["a", "b", "c", "d"] {
        rule = format!("self.all({x}, {rule})");
    }
    assert_eq!(cost(&list, &rule), u64::MAX);
}
