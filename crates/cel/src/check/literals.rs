//! Invalid literals: times and regular expressions that do not parse, and lists and maps whose elements differ in type.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr};

use super::checked::{Checked, TypeError};
use super::types::Type;
use crate::{timed, walk};

/// Adds the errors in the literals of an expression whose types are known.
pub fn check(expression: &IdedExpr, checked: &Checked, errors: &mut Vec<TypeError>) {
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
                errors.push(TypeError { id: first.id, what });
            }
        });
    }
    walk(expression, &mut |e| {
        if let Expr::List(list) = &e.expr {
            check_list(list, checked, errors);
        }
    });
    walk(expression, &mut |e| {
        if let Expr::Map(map) = &e.expr {
            check_map(map, checked, errors);
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

fn push_mismatch(id: u64, expected: &Type, found: &Type, errors: &mut Vec<TypeError>) {
    let what = format!("expected type '{expected}' but found '{found}'");
    errors.push(TypeError { id, what });
}

/// The type of an element: that of its value where it is optional.
fn element_type<'c>(part: &IdedExpr, optional: bool, checked: &'c Checked) -> &'c Type {
    let of = checked.type_of(part);
    match optional {
        true => of.inside_optional().unwrap_or(of),
        false => of,
    }
}

fn check_list(list: &ListExpr, checked: &Checked, errors: &mut Vec<TypeError>) {
    let of = |i: usize, item| element_type(item, list.optional_indices.contains(&i), checked);
    let Some(first) = list.elements.first().map(|item| of(0, item)) else {
        return;
    };
    let unlike = list
        .elements
        .iter()
        .enumerate()
        .find(|(i, item)| of(*i, item) != first);
    if let Some((i, item)) = unlike {
        push_mismatch(item.id, first, of(i, item), errors);
    }
}

fn check_map(map: &MapExpr, checked: &Checked, errors: &mut Vec<TypeError>) {
    let mut entries = map.entries.iter().filter_map(|entry| match &entry.expr {
        EntryExpr::MapEntry(entry) => Some(entry),
        EntryExpr::StructField(_) => None,
    });
    let Some(first) = entries.next() else { return };
    let key = checked.type_of(&first.key);
    let value = element_type(&first.value, first.optional, checked);
    for entry in entries {
        let (k, v) = (
            checked.type_of(&entry.key),
            element_type(&entry.value, entry.optional, checked),
        );
        if k != key {
            push_mismatch(entry.key.id, key, k, errors);
        }
        if v != value {
            push_mismatch(entry.value.id, value, v, errors);
        }
    }
}
