//! Loops with two variables: `all`, `exists`, `existsOne`, `transformList`, `transformMap` and `transformMapEntry` over
//! the indices and items of a list, or the keys and values of a map (cel-go's extension, in Kubernetes since v1.32).
//!
//! They are read as comprehensions that have two variables, checked and priced as such ([`declare`]). The interpreter
//! knows one variable only: for it they become loops over pairs ([`paired`]).

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;

use cel::Env;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators,
};
use cel::common::types::{DYN_TYPE, LIST_TYPE};
use cel::objects::{Key, Map};
use cel::parser::{Macro, MacroExprHelper, ParseError};

use super::library::{Declared, Library, call, list};
use super::{Cel, EvaluationError, parts_mut};

/// The accumulator of such loops. Users cannot write it.
const RESULT: &str = "@result";
/// Adds an entry, or all of a map, to a map that has none of that key.
pub(super) const INSERT: &str = "cel.@mapInsert";
/// A list or map as a list of pairs.
const PAIRS: &str = "@pairs";
/// A list of pairs, or of maps, as a map.
const MAP_OF_PAIRS: &str = "@mapOfPairs";
const MAP_OF_MAPS: &str = "@mapOfMaps";
/// The pair of a turn.
const PAIR: &str = "@pair";

pub fn declare(env: &mut Env) -> Declared {
    type Make = fn(&mut MacroExprHelper<'_>, &str, Vec<IdedExpr>) -> Loop;
    let all: [(&str, usize, Make); 10] = [
        (operators::ALL, 3, make_all),
        (operators::EXISTS, 3, make_exists),
        (operators::EXISTS_ONE, 3, make_exists_one),
        ("existsOne", 3, make_exists_one),
        ("transformList", 3, make_list),
        ("transformList", 4, make_list),
        ("transformMap", 3, make_map),
        ("transformMap", 4, make_map),
        ("transformMapEntry", 3, make_entries),
        ("transformMapEntry", 4, make_entries),
    ];
    for (name, arguments, make) in all {
        env.add_macro(Macro::receiver(name, arguments, move |helper, target, args| {
            expand(helper, target, args, make)
        }))?;
    }
    let mut library = Library(env);
    library.global(PAIRS, &[DYN_TYPE], |args| call(args, |[of]| pairs(&of)))?;
    library.global(MAP_OF_PAIRS, &[LIST_TYPE], |args| {
        call(args, |[all]| {
            map_of(list(&all)?.iter().map(|pair| match list(pair)? {
                [key, value] => Ok((key_of(key)?, value.clone())),
                _ => Err(EvaluationError::NoSuchOverload),
            }))
        })
    })?;
    library.global(MAP_OF_MAPS, &[LIST_TYPE], |args| {
        call(args, |[all]| {
            let mut entries = Vec::new();
            for one in list(&all)? {
                let Cel::Map(one) = one else {
                    return Err(EvaluationError::NoSuchOverload);
                };
                entries.extend(one.map.iter().map(|(k, v)| Ok((k.clone(), v.clone()))));
            }
            map_of(entries.into_iter())
        })
    })
}

/// A comprehension: its initial value, its loop condition, its step and its result.
struct Loop {
    init: IdedExpr,
    condition: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
}

fn expand(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    make: fn(&mut MacroExprHelper<'_>, &str, Vec<IdedExpr>) -> Loop,
) -> Result<Option<IdedExpr>, ParseError> {
    let mut names = Vec::with_capacity(2);
    for arg in args.iter().take(2) {
        match &arg.expr {
            Expr::Ident(name) if names.contains(name) => {
                return Err(helper.new_error(arg.id, format!("duplicate variable name: {name}")));
            }
            Expr::Ident(name) => names.push(name.clone()),
            _ => return Err(helper.new_error(arg.id, "argument must be a simple name")),
        }
    }
    let (Some(range), [first, second]) = (target.take(), names.as_slice()) else {
        return Ok(None);
    };
    let rest = args.drain(..).skip(2).collect();
    let Loop {
        init,
        condition,
        step,
        result,
    } = make(helper, first, rest);
    let comprehension = ComprehensionExpr {
        iter_range: range,
        iter_var: first.clone(),
        iter_var2: Some(second.clone()),
        accu_var: RESULT.into(),
        accu_init: init,
        loop_cond: condition,
        loop_step: step,
        result,
    };
    Ok(Some(
        helper.next_expr(Expr::Comprehension(Box::new(comprehension))),
    ))
}

fn result(helper: &mut MacroExprHelper<'_>) -> IdedExpr {
    helper.next_expr(Expr::Ident(RESULT.into()))
}

fn literal(helper: &mut MacroExprHelper<'_>, value: LiteralValue) -> IdedExpr {
    helper.next_expr(Expr::Literal(value))
}

fn called(helper: &mut MacroExprHelper<'_>, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr {
        func_name: function.into(),
        target: None,
        args,
    }))
}

/// The condition, if there are more arguments than one, and the last argument.
fn filter_and_last(mut args: Vec<IdedExpr>) -> (Option<IdedExpr>, IdedExpr) {
    let last = args.pop().unwrap_or_default();
    (args.pop(), last)
}

/// `step` where the filter is true, else the accumulator unchanged.
fn filtered(helper: &mut MacroExprHelper<'_>, filter: Option<IdedExpr>, step: IdedExpr) -> IdedExpr {
    match filter {
        None => step,
        Some(filter) => {
            let args = vec![filter, step, result(helper)];
            called(helper, operators::CONDITIONAL, args)
        }
    }
}

fn make_all(helper: &mut MacroExprHelper<'_>, _: &str, args: Vec<IdedExpr>) -> Loop {
    let (_, predicate) = filter_and_last(args);
    let init = literal(helper, LiteralValue::Boolean(true.into()));
    let now = vec![result(helper)];
    let condition = called(helper, operators::NOT_STRICTLY_FALSE, now);
    let both = vec![result(helper), predicate];
    Loop {
        init,
        condition,
        step: called(helper, operators::LOGICAL_AND, both),
        result: result(helper),
    }
}

fn make_exists(helper: &mut MacroExprHelper<'_>, _: &str, args: Vec<IdedExpr>) -> Loop {
    let (_, predicate) = filter_and_last(args);
    let init = literal(helper, LiteralValue::Boolean(false.into()));
    let now = vec![result(helper)];
    let not = vec![called(helper, operators::LOGICAL_NOT, now)];
    let condition = called(helper, operators::NOT_STRICTLY_FALSE, not);
    let either = vec![result(helper), predicate];
    Loop {
        init,
        condition,
        step: called(helper, operators::LOGICAL_OR, either),
        result: result(helper),
    }
}

fn make_exists_one(helper: &mut MacroExprHelper<'_>, _: &str, args: Vec<IdedExpr>) -> Loop {
    let (_, predicate) = filter_and_last(args);
    let init = literal(helper, LiteralValue::Int(0.into()));
    let condition = literal(helper, LiteralValue::Boolean(true.into()));
    let more = vec![result(helper), literal(helper, LiteralValue::Int(1.into()))];
    let step = called(helper, operators::ADD, more);
    let step = filtered(helper, Some(predicate), step);
    let one = vec![result(helper), literal(helper, LiteralValue::Int(1.into()))];
    Loop {
        init,
        condition,
        step,
        result: called(helper, operators::EQUALS, one),
    }
}

fn make_list(helper: &mut MacroExprHelper<'_>, _: &str, args: Vec<IdedExpr>) -> Loop {
    let (filter, item) = filter_and_last(args);
    let init = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let condition = literal(helper, LiteralValue::Boolean(true.into()));
    let one = helper.next_expr(Expr::List(ListExpr::new(vec![item])));
    let more = vec![result(helper), one];
    let step = called(helper, operators::ADD, more);
    Loop {
        init,
        condition,
        step: filtered(helper, filter, step),
        result: result(helper),
    }
}

fn make_map(helper: &mut MacroExprHelper<'_>, key: &str, args: Vec<IdedExpr>) -> Loop {
    let (filter, value) = filter_and_last(args);
    let key = helper.next_expr(Expr::Ident(key.into()));
    gather_map(helper, filter, vec![key, value])
}

fn make_entries(helper: &mut MacroExprHelper<'_>, _: &str, args: Vec<IdedExpr>) -> Loop {
    let (filter, entries) = filter_and_last(args);
    gather_map(helper, filter, vec![entries])
}

fn gather_map(helper: &mut MacroExprHelper<'_>, filter: Option<IdedExpr>, put: Vec<IdedExpr>) -> Loop {
    let init = helper.next_expr(Expr::Map(MapExpr::default()));
    let condition = literal(helper, LiteralValue::Boolean(true.into()));
    let mut args = vec![result(helper)];
    args.extend(put);
    let step = called(helper, INSERT, args);
    Loop {
        init,
        condition,
        step: filtered(helper, filter, step),
        result: result(helper),
    }
}

/// The expression with loops over pairs instead of loops with two variables. Maps are gathered as lists, which the
/// interpreter extends in place: insertion into one map after another would take quadratic time.
pub fn paired(e: &mut IdedExpr) {
    for part in parts_mut(e) {
        paired(part);
    }
    let id = e.id;
    let Expr::Comprehension(c) = &mut e.expr else {
        return;
    };
    let Some(second) = c.iter_var2.take() else { return };
    let pair = format!("{PAIR}{id}");
    let first = std::mem::replace(&mut c.iter_var, pair.clone());
    c.iter_range = made(id, PAIRS, vec![take(&mut c.iter_range)]);
    let names = [Some(first.as_str()), Some(second.as_str())];
    for part in [&mut c.loop_cond, &mut c.loop_step] {
        substitute(part, names, &pair);
    }
    let step = match &mut c.loop_step.expr {
        Expr::Call(call) if call.func_name == operators::CONDITIONAL => call.args.get_mut(1),
        _ => Some(&mut c.loop_step),
    };
    if let Some(of) = step.and_then(inserts_to_appends) {
        c.accu_init.expr = Expr::List(ListExpr::new(Vec::new()));
        *e = made(id, of, vec![take(e)]);
    }
}

/// Replaces an insertion into a map by appending to a list; returns the function that makes a map of the list.
fn inserts_to_appends(step: &mut IdedExpr) -> Option<&'static str> {
    let id = step.id;
    let Expr::Call(call) = &mut step.expr else {
        return None;
    };
    if call.func_name != INSERT {
        return None;
    }
    let listed = |items| IdedExpr {
        id,
        expr: Expr::List(ListExpr::new(items)),
    };
    let mut put = call.args.split_off(1.min(call.args.len()));
    let (of, added) = match put.len() {
        1 => (MAP_OF_MAPS, take(&mut put)),
        _ => (MAP_OF_PAIRS, vec![listed(take(&mut put))]),
    };
    call.func_name = operators::ADD.into();
    call.args.push(listed(added));
    Some(of)
}

fn made(id: u64, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    let call = CallExpr {
        func_name: function.into(),
        target: None,
        args,
    };
    IdedExpr {
        id,
        expr: Expr::Call(call),
    }
}

/// Replaces the two variables by the halves of the pair, except where a comprehension inside has a variable of that name.
fn substitute(e: &mut IdedExpr, names: [Option<&str>; 2], pair: &str) {
    match &mut e.expr {
        Expr::Ident(name) => {
            let Some(at) = names.iter().position(|n| *n == Some(name.as_str())) else {
                return;
            };
            let id = e.id;
            let part = |expr| IdedExpr { id, expr };
            let at = i64::try_from(at).unwrap_or_default();
            let args = vec![
                part(Expr::Ident(pair.into())),
                part(Expr::Literal(LiteralValue::Int(at.into()))),
            ];
            *e = made(id, operators::INDEX, args);
        }
        Expr::Comprehension(c) => {
            substitute(&mut c.iter_range, names, pair);
            substitute(&mut c.accu_init, names, pair);
            let inside = names.map(|name| name.filter(|n| *n != c.accu_var));
            substitute(&mut c.result, inside, pair);
            let loops = inside.map(|name| name.filter(|n| *n != c.iter_var));
            substitute(&mut c.loop_cond, loops, pair);
            substitute(&mut c.loop_step, loops, pair);
        }
        _ => {
            for part in parts_mut(e) {
                substitute(part, names, pair);
            }
        }
    }
}

fn pairs(of: &Cel) -> Result<Cel, EvaluationError> {
    let pair = |first: Cel, second: &Cel| Cel::List(Arc::new(vec![first, second.clone()]));
    let all = match of {
        Cel::List(items) => (0..)
            .zip(items.iter())
            .map(|(at, v)| pair(Cel::Int(at), v))
            .collect(),
        Cel::Map(map) => {
            // In an order that is the same each time.
            let mut entries: Vec<(&Key, &Cel)> = map.map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            entries.into_iter().map(|(k, v)| pair(Cel::from(k), v)).collect()
        }
        _ => return Err(EvaluationError::NoSuchOverload),
    };
    Ok(Cel::List(Arc::new(all)))
}

fn key_of(value: &Cel) -> Result<Key, EvaluationError> {
    TryInto::<Key>::try_into(value.clone()).map_err(|_| EvaluationError::NoSuchOverload)
}

fn map_of(
    entries: impl Iterator<Item = Result<(Key, Cel), EvaluationError>>,
) -> Result<Cel, EvaluationError> {
    let mut map = HashMap::new();
    for entry in entries {
        let (key, value) = entry?;
        if map.contains_key(&key) {
            return Err(EvaluationError::Failed(format!(
                "insert failed: key {key} already exists"
            )));
        }
        map.insert(key, value);
    }
    Ok(Cel::Map(Map { map: Arc::new(map) }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::check::{Declared, Environment, Type};
    use crate::{Scope, compile, of_json, to_json};

    fn environment() -> Environment {
        Environment::default().with("self", Type::Dyn)
    }

    /// The value, what running cost, and what it can cost at most.
    fn run(text: &str) -> (Result<Value, String>, u64, u64) {
        let compiled = compile(text, &environment()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let mut scope = Scope::default();
        scope.set(
            "self",
            of_json(&json!({"list": ["a", "b"], "map": {"x": 1, "y": 2}})),
        );
        let found = compiled.program.run(&scope);
        let found = found.map(|v| to_json(&v).unwrap()).map_err(|e| e.to_string());
        let max = compiled.cost_max(&Declared::simple(Type::Dyn, 1, 0));
        (found, scope.cost(), max)
    }

    #[test]
    fn loops_have_the_results_and_costs_of_kubernetes() {
        for (text, value, cost, max) in [
            ("{'a': 1, 'b': 2}.all(k, v, v > 0)", json!(true), 41, 41),
            ("{'a': 1, 'b': 2}.exists(k, v, v > 0)", json!(true), 40, 43),
            ("{'a': 1, 'b': 2}.existsOne(k, v, v > 0)", json!(false), 40, 40),
            ("{'a': 1, 'b': 2}.exists_one(k, v, v > 0)", json!(false), 40, 40),
            (
                "{'a': 1, 'b': 2}.transformMap(k, v, v + 1)",
                json!({"a": 2, "b": 3}),
                71,
                71,
            ),
            (
                "{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1)",
                json!({"a": 2, "b": 3}),
                75,
                75,
            ),
            (
                "{'a': 1, 'b': 2}.transformMapEntry(k, v, {k: v + 1})",
                json!({"a": 2, "b": 3}),
                131,
                131,
            ),
            (
                "{'a': 1, 'b': 2}.transformMapEntry(k, v, v < 5, {k: v + 1})",
                json!({"a": 2, "b": 3}),
                135,
                135,
            ),
            ("[1, 2].all(i, v, v > 0)", json!(true), 21, 21),
            ("[1, 2].exists(i, v, v > 0)", json!(true), 20, 23),
            ("[1, 2].existsOne(i, v, v > 0)", json!(false), 20, 20),
            ("[1, 2].transformList(i, v, v + 1)", json!([2, 3]), 49, 49),
            ("[1, 2].transformList(i, v, v < 5, v + 1)", json!([2, 3]), 53, 53),
        ] {
            assert_eq!(run(text), (Ok(value), cost, max), "{text}");
        }
    }

    #[test]
    fn the_first_variable_is_the_index_or_the_key() {
        for (text, value) in [
            (
                "['a', 'b'].transformList(i, v, string(i) + v)",
                json!(["0a", "1b"]),
            ),
            ("self.list.transformMap(i, v, v == 'b', i) == {1: 1}", json!(true)),
            ("self.map.transformList(k, v, k)", json!(["x", "y"])),
            (
                "self.map.transformMapEntry(k, v, {string(v): k})",
                json!({"1": "x", "2": "y"}),
            ),
            ("self.list.exists(i, v, i == 1 && v == 'b')", json!(true)),
            ("[].all(i, v, false)", json!(true)),
            ("{}.transformMap(k, v, k)", json!({})),
            // One within another, of the same names or with another's variables.
            (
                "self.map.all(k, v, self.map.exists(k2, v2, k2 == k && v2 == v))",
                json!(true),
            ),
            ("[[1], [2]].all(i, v, v.all(i, v, i == 0))", json!(true)),
            (
                "[3, 4].transformList(i, v, [1, 2].map(v, v + i))",
                json!([[1, 2], [2, 3]]),
            ),
            ("[3, 4].transformList(i, v, [i].map(x, x + v))", json!([[3], [5]])),
            ("[1].map(i, [5].transformList(i, v, i + v))", json!([[5]])),
            (
                "self.list.transformMapEntry(i, v, i == 0, {v: i}).transformList(k, n, k)",
                json!(["a"]),
            ),
            // An item that decides the result does so whatever error another one causes.
            ("[0, 1].exists(i, v, 1 / v == 1)", json!(true)),
        ] {
            assert_eq!(run(text).0, Ok(value), "{text}");
        }
        for (text, why) in [
            (
                "self.list.transformMapEntry(i, v, {'k': i})",
                "insert failed: key k already exists",
            ),
            ("dyn(1).all(i, v, true)", "no such overload"),
        ] {
            assert_eq!(run(text).0, Err(why.to_string()), "{text}");
        }
    }

    #[test]
    fn errors_have_their_positions() {
        for (text, why) in [
            ("[1].all(i, i, true)", "1:12: duplicate variable name: i"),
            ("[1].all(i, v.x, true)", "argument must be a simple name"),
            ("[1].transformList(1, v, v)", "argument must be a simple name"),
            ("[1].all(i, v, v)", "1:15: expected type 'bool' but found 'int'"),
            (
                "[1].all(i, v, i == 'x')",
                "found no matching overload for '_==_' applied to '(int, string)'",
            ),
            (
                "{'a': 1}.all(k, v, k == v)",
                "found no matching overload for '_==_' applied to '(string, int)'",
            ),
        ] {
            let error = compile(text, &environment()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let typed = compile("['a'].transformMap(i, v, i)", &environment()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(typed.output().to_string(), "map(int, int)");
    }

    #[test]
    fn a_large_map_is_built_in_linear_time() {
        let text = "self.transformMap(i, v, v).transformMapEntry(k, v, {v: k}).size()";
        let compiled = compile(text, &environment()).unwrap_or_else(|e| panic!("{e}"));
        let mut scope = Scope::default();
        scope.set("self", of_json(&json!((0..20_000).collect::<Vec<u32>>())));
        let size = compiled.program.run(&scope).map(|v| to_json(&v));
        assert_eq!(size, Ok(Some(json!(20_000))));
    }
}
