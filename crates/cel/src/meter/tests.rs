//! What running costs. The numbers are kube-apiserver v1.36's where nothing else is said.

use serde_json::json;

use super::*;
use crate::{Program, Scope, of_json, to_json};

fn run(text: &str) -> (Result<String, String>, u64) {
    let program = Program::read(text).unwrap();
    let mut scope = Scope::default();
    let numbers: Vec<i64> = (0..2_000).collect();
    let value = json!({"n": 5, "s": "abcdefghij".repeat(10), "list": ["a", "b", "c"], "numbers": numbers,
        "map": {"a": 1, "b": 2}});
    scope.set("self", of_json(&value));
    let found = program.run(&scope);
    let found = found.map(|v| to_json(&v).map_or_else(|| "opaque".into(), |v| v.to_string()));
    let found = found.map_err(|e| e.to_string());
    (found, scope.cost())
}

#[test]
fn what_runs_is_charged() {
    for (text, value, cost) in [
        ("true", "true", 0),
        ("self.n > 1", "true", 3),
        ("self.s == self.s", "true", 14),
        ("self.s.startsWith('abc')", "true", 12),
        ("self.s.matches('^[a-z]+$')", "true", 24),
        ("'b' in self.list", "true", 5),
        ("self.n == 1 && self.s == self.s", "false", 3),
        ("self.n == 5 ? 'a' : self.s + self.s", "\"a\"", 3),
        ("size(self.s) == 100", "true", 4),
        ("ip.isCanonical('::1')", "true", 1),
        ("[1, 2].size() == 2", "true", 12),
        ("has(self.n)", "true", 1),
    ] {
        let found = run(text);
        assert_eq!(found, (Ok(value.to_string()), cost), "{text}");
    }
}

#[test]
fn loops_are_charged_for_each_iteration() {
    let of = |text: &str| run(text).1;
    let (three, many) = (of("self.list.all(x, x != '')"), of("self.numbers.all(x, x >= 0)"));
    assert!(three < 30 && many > 2_000, "{three}, {many}");
    assert!(of("self.numbers.all(x, x < 0)") < 30, "the first settles it");
    assert!(of("self.numbers.map(x, x + 1).size() > 0") > 20_000);
}

#[test]
fn an_expression_over_its_cost_limit_is_stopped() {
    for text in [
        "self.numbers.all(a, self.numbers.all(b, a + b >= 0))",
        "self.numbers.map(a, self.numbers.sort().size() + a).size() > 0",
        "self.numbers.exists(a, self.numbers.sort() == [a]) || true",
        "self.numbers.exists_one(a, self.numbers.sort() == [a]) || true",
        "self.numbers.filter(a, self.numbers.sort() == [a]).size() >= 0",
        "self.numbers.sort() == self.numbers",
    ] {
        let (found, cost) = run(text);
        assert_eq!(found, Err(EXCEEDED.to_string()), "{text}");
        assert!(cost > CALL_COST_MAX && cost < CALL_COST_MAX * 9, "{text}: {cost}");
    }
}

#[test]
fn measuring_changes_no_value() {
    for (text, want) in [
        ("self.list.map(x, x + '!')", r#"["a!","b!","c!"]"#),
        ("self.list.filter(x, x != 'b')", r#"["a","c"]"#),
        ("self.list.exists_one(x, x == 'b')", "true"),
        ("self.map.all(k, self.map[k] < 3)", "true"),
        ("self.?missing.orValue(7)", "7"),
        ("optional.of(self.n).optMap(x, x + 1).value()", "6"),
        ("self.list.sortBy(x, -self.list.indexOf(x))", r#"["c","b","a"]"#),
        ("self.missing == 1 || self.n == 5", "true"),
        ("self.list.exists(x, x == 'b' || self.missing)", "true"),
        ("'%s'.format([self.n])", "\"5\""),
    ] {
        assert_eq!(run(text).0, Ok(want.to_string()), "{text}");
    }
}
