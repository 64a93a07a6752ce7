//! Typed values: the fields that a value sets, the differences of two values, one merged into
//! another, fields removed. The rules are structured-merge-diff's (KEP-555).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::set::FieldSet;
use super::typed::Type;

fn map_of(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// The left one's keys, and then those that only the right one has.
fn keys_of_both<'a>(
    left: Option<&'a Map<String, Value>>,
    right: Option<&'a Map<String, Value>>,
) -> impl Iterator<Item = &'a String> {
    let more = right.into_iter().flat_map(Map::keys);
    let more = more.filter(move |key| left.is_none_or(|l| !l.contains_key(*key)));
    left.into_iter().flat_map(Map::keys).chain(more)
}

fn list_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Empty, null, absent, or of another form.
fn is_bare(type_: &Type<'_>, value: Option<&Value>) -> bool {
    if type_.is_map() {
        map_of(value).is_none_or(Map::is_empty)
    } else {
        list_of(value).is_empty()
    }
}

fn is_leaf(type_: &Type<'_>, left: Option<&Value>, right: Option<&Value>) -> bool {
    !(type_.is_map() || type_.is_list()) || (is_bare(type_, left) && is_bare(type_, right))
}

/// The fields that a value sets.
pub fn fields_of(type_: Type<'_>, value: &Value) -> FieldSet {
    walk_fields(type_, value).1
}

fn walk_fields(type_: Type<'_>, value: &Value) -> (bool, FieldSet) {
    let type_ = type_.resolve(None, Some(value));
    let mut set = FieldSet::default();
    if type_.is_map() {
        for (key, value) in map_of(Some(value)).into_iter().flatten() {
            let Some(field) = type_.field(key) else { continue };
            let (own, behind) = walk_fields(field, value);
            let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
            set.add(format!("f:{key}"), own || empty || !type_.declares(key), behind);
        }
        (false, set)
    } else if type_.is_list() {
        for (element, items) in type_.items(list_of(Some(value))) {
            let behind = match items[..] {
                [one] => walk_fields(type_.item(), one).1,
                _ => FieldSet::default(),
            };
            set.add(element, true, behind);
        }
        (false, set)
    } else {
        (true, set)
    }
}

/// How one value differs from another.
#[derive(Debug, Default)]
pub struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

/// The result at one path: whether the path itself counts, and the paths below it.
#[derive(Default)]
struct Differences {
    added: (bool, FieldSet),
    modified: (bool, FieldSet),
    removed: (bool, FieldSet),
}

impl Differences {
    fn add_child(&mut self, element: &str, child: Differences) {
        let sets = [&mut self.added.1, &mut self.modified.1, &mut self.removed.1];
        for (set, (own, behind)) in sets.into_iter().zip([child.added, child.modified, child.removed]) {
            if own || !behind.is_empty() {
                set.add(element.to_string(), own, behind);
            }
        }
    }
}

pub fn compare(type_: Type<'_>, left: &Value, right: &Value) -> Comparison {
    let found = walk_compare(type_, Some(left), Some(right));
    Comparison {
        added: found.added.1,
        modified: found.modified.1,
        removed: found.removed.1,
    }
}

fn walk_compare(type_: Type<'_>, left: Option<&Value>, right: Option<&Value>) -> Differences {
    let mut found = Differences::default();
    if left == right {
        return found;
    }
    let type_ = type_.resolve(left, right);
    if is_leaf(&type_, left, right) {
        found.added.0 = left.is_none();
        found.removed.0 = right.is_none();
        found.modified.0 = left.is_some() && right.is_some();
        return found;
    }
    if type_.is_map() {
        let (l, r) = (map_of(left), map_of(right));
        for key in keys_of_both(l, r) {
            let field = type_.field(key).unwrap_or(Type::Leaf);
            let child = walk_compare(field, l.and_then(|l| l.get(key)), r.and_then(|r| r.get(key)));
            found.add_child(&format!("f:{key}"), child);
        }
    } else {
        compare_lists(type_, list_of(left), list_of(right), &mut found);
    }
    found.added.0 = left.is_none();
    found.removed.0 = right.is_none();
    found
}

fn compare_lists(type_: Type<'_>, left: &[Value], right: &[Value], found: &mut Differences) {
    let (left, right) = (type_.items(left), type_.items(right));
    let right_of: BTreeMap<&str, &Vec<&Value>> = right.iter().map(|(e, v)| (e.as_str(), v)).collect();
    let left_of: BTreeMap<&str, &Vec<&Value>> = left.iter().map(|(e, v)| (e.as_str(), v)).collect();
    let more = right.iter().filter(|(e, _)| !left_of.contains_key(e.as_str()));
    for (element, _) in left.iter().chain(more) {
        let l = left_of.get(element.as_str()).map_or(&[][..], |v| v);
        let r = right_of.get(element.as_str()).map_or(&[][..], |v| v);
        let item = type_.item();
        let child = match (l.len(), r.len()) {
            (0 | 1, 0 | 1) => walk_compare(item, l.first().copied(), r.first().copied()),
            // An item that is given several times is atomic.
            (2.., 2..) => {
                let mut child = Differences::default();
                child.modified.0 = l != r;
                child
            }
            (2.., _) => {
                let mut child = r
                    .first()
                    .map_or_else(Differences::default, |r| walk_compare(item, None, Some(r)));
                child.removed.0 = true;
                child
            }
            _ => {
                let mut child = l
                    .first()
                    .map_or_else(Differences::default, |l| walk_compare(item, Some(l), None));
                child.added.0 = true;
                child
            }
        };
        found.add_child(element, child);
    }
}

/// `right` merged into `left`.
pub fn merge(type_: Type<'_>, left: &Value, right: &Value) -> Value {
    walk_merge(type_, Some(left), Some(right)).unwrap_or(Value::Null)
}

fn walk_merge(type_: Type<'_>, left: Option<&Value>, right: Option<&Value>) -> Option<Value> {
    let type_ = type_.resolve(left, right);
    if is_leaf(&type_, left, right) {
        return right.or(left).cloned();
    }
    if type_.is_map() {
        let (l, r) = (map_of(left), map_of(right));
        let mut out = Map::new();
        for key in keys_of_both(l, r) {
            let field = type_.field(key).unwrap_or(Type::Leaf);
            let merged = walk_merge(field, l.and_then(|l| l.get(key)), r.and_then(|r| r.get(key)));
            out.extend(merged.map(|value| (key.clone(), value)));
        }
        return (!out.is_empty()).then_some(Value::Object(out));
    }
    let out = merge_lists(type_, list_of(left), list_of(right));
    (!out.is_empty()).then_some(Value::Array(out))
}

/// Items of both sides keep the right side's order among themselves; items of the left alone stay where they are
/// between those.
fn merge_lists(type_: Type<'_>, left: &[Value], right: &[Value]) -> Vec<Value> {
    let element = |item: &Value| type_.element(item).ok();
    let left: Vec<(String, &Value)> = left.iter().filter_map(|v| Some((element(v)?, v))).collect();
    let right: Vec<(String, &Value)> = right.iter().filter_map(|v| Some((element(v)?, v))).collect();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for (e, _) in &left {
        *times.entry(e).or_default() += 1;
    }
    let left_of: BTreeMap<&str, &Value> = left.iter().map(|(e, v)| (e.as_str(), *v)).collect();
    let right_of: BTreeMap<&str, &Value> = right.iter().map(|(e, v)| (e.as_str(), *v)).collect();
    // An item that is given several times is not merged but replaced.
    let partner = |e: &str| match times.get(e) {
        Some(1) => left_of.get(e).copied(),
        Some(_) => Some(&Value::Null),
        None => None,
    };
    let mut shared = right
        .iter()
        .map(|(e, _)| e.as_str())
        .filter(|e| left_of.contains_key(e));
    let mut next_shared = shared.next();
    let mut merged = BTreeSet::new();
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some((le, _)), Some((re, rv))) = (left.get(l), right.get(r)) {
            if le == re {
                merged.insert(le.as_str());
                out.extend(walk_merge(type_.item(), partner(le), Some(rv)));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            if right_of.contains_key(le.as_str()) && next_shared.is_some_and(|n| n != le) {
                // Shared by both sides, but not next.
                l += 1;
                continue;
            }
        }
        if let Some((le, lv)) = left.get(l) {
            if !right_of.contains_key(le.as_str()) {
                out.extend(walk_merge(type_.item(), Some(lv), None));
                l += 1;
                continue;
            } else if merged.contains(le.as_str()) {
                l += 1;
            }
        }
        if let Some((re, rv)) = right.get(r) {
            merged.insert(re.as_str());
            out.extend(walk_merge(type_.item(), partner(re), Some(rv)));
            r += 1;
            if next_shared == Some(re) {
                next_shared = shared.next();
            }
        }
    }
    out
}

/// `value` without the fields of `set`.
pub fn remove(type_: Type<'_>, value: &Value, set: &FieldSet) -> Value {
    let type_ = type_.resolve(None, Some(value));
    if !(type_.is_map() || type_.is_list()) {
        // A scalar is removed by its parent; an atomic value is removed if any of its fields is.
        return match value {
            Value::Object(_) | Value::Array(_) => Value::Null,
            scalar => scalar.clone(),
        };
    }
    let mut touched = false;
    let mut inside = |item: Type<'_>, element: &str, value: &Value| {
        let behind = set.below(element);
        if behind.is_empty() {
            return value.clone();
        }
        touched = true;
        match (remove(item, value, &behind), value) {
            (Value::Null, Value::Object(_)) => Value::Object(Map::new()),
            (Value::Null, Value::Array(_)) => Value::Array(Vec::new()),
            (left, _) => left,
        }
    };
    match value {
        Value::Object(map) if type_.is_map() => {
            let mut out = Map::new();
            for (key, value) in map {
                let element = format!("f:{key}");
                if !set.has(&element) {
                    let field = type_.field(key).unwrap_or(Type::Leaf);
                    out.insert(key.clone(), inside(field, &element, value));
                }
            }
            if out.is_empty() && !touched {
                return Value::Null;
            }
            Value::Object(out)
        }
        Value::Array(list) if type_.is_list() => {
            let mut out = Vec::with_capacity(list.len());
            for item in list {
                match type_.element(item) {
                    Ok(element) if set.has(&element) => {}
                    Ok(element) => out.push(inside(type_.item(), &element, item)),
                    Err(_) => out.push(item.clone()),
                }
            }
            if out.is_empty() && !touched {
                return Value::Null;
            }
            Value::Array(out)
        }
        _ => Value::Null,
    }
}

/// The set, with every declared field on the path to one of its members.
pub fn with_named_fields(type_: Type<'_>, set: &FieldSet) -> FieldSet {
    let child = |key: &str| match key.strip_prefix("f:") {
        Some(name) => type_.field(name).unwrap_or(Type::Leaf),
        None => type_.item(),
    };
    let declared = |key: &str| key.strip_prefix("f:").is_some_and(|name| type_.declares(name));
    set.rebuild(
        |key, own| own || declared(key),
        |key, behind| with_named_fields(child(key), &behind),
    )
}
