//! Literals that cannot work: times and regular expressions that are none, and lists and maps of unlike things.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr};

use super::infer::{Checked, Mistake};
use super::types::Type;
use crate::cel::{timed, walk};

/// Adds what is mistaken in the literals of an expression whose types are known.
pub fn check(expression: &IdedExpr, checked: &Checked, mistakes: &mut Vec<Mistake>) {
    for function in ["duration", "timestamp", "matches"] {
        walk(expression, &mut |e| {
            let Expr::Call(call) = &e.expr else { return };
            let Some(first) = call.args.first().filter(|_| call.func_name == function) else {
                return;
            };
            if let Expr::Literal(literal) = &first.expr
                && !is_argument_of(function, literal)
            {
                let what = format!("invalid {function} argument");
                mistakes.push(Mistake { id: first.id, what });
            }
        });
    }
    walk(expression, &mut |e| {
        if let Expr::List(list) = &e.expr {
            check_list(list, checked, mistakes);
        }
    });
    walk(expression, &mut |e| {
        if let Expr::Map(map) = &e.expr {
            check_map(map, checked, mistakes);
        }
    });
}

fn is_argument_of(function: &str, literal: &LiteralValue) -> bool {
    match (function, literal) {
        ("duration", LiteralValue::String(text)) => timed(text.inner(), "duration").is_some(),
        ("timestamp", LiteralValue::String(text)) => timed(text.inner(), "date-time").is_some(),
        ("matches", LiteralValue::String(text)) => regex::Regex::new(text.inner()).is_ok(),
        _ => true,
    }
}

fn tell(id: u64, expected: &Type, found: &Type, mistakes: &mut Vec<Mistake>) {
    let what = format!("expected type '{expected}' but found '{found}'");
    mistakes.push(Mistake { id, what });
}

/// What an item counts as: what is in it where it is optional.
fn counted<'c>(part: &IdedExpr, optional: bool, checked: &'c Checked) -> &'c Type {
    let of = checked.type_of(part);
    match optional {
        true => of.inside_optional().unwrap_or(of),
        false => of,
    }
}

fn check_list(list: &ListExpr, checked: &Checked, mistakes: &mut Vec<Mistake>) {
    let of = |i: usize, item| counted(item, list.optional_indices.contains(&i), checked);
    let Some(first) = list.elements.first().map(|item| of(0, item)) else {
        return;
    };
    let unlike = list
        .elements
        .iter()
        .enumerate()
        .find(|(i, item)| of(*i, item) != first);
    if let Some((i, item)) = unlike {
        tell(item.id, first, of(i, item), mistakes);
    }
}

fn check_map(map: &MapExpr, checked: &Checked, mistakes: &mut Vec<Mistake>) {
    let mut entries = map.entries.iter().filter_map(|entry| match &entry.expr {
        EntryExpr::MapEntry(entry) => Some(entry),
        EntryExpr::StructField(_) => None,
    });
    let Some(first) = entries.next() else { return };
    let key = checked.type_of(&first.key);
    let value = counted(&first.value, first.optional, checked);
    for entry in entries {
        let (k, v) = (
            checked.type_of(&entry.key),
            counted(&entry.value, entry.optional, checked),
        );
        if k != key {
            tell(entry.key.id, key, k, mistakes);
        }
        if v != value {
            tell(entry.value.id, value, v, mistakes);
        }
    }
}
