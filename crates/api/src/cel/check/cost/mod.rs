//! What an expression can cost at most, from the sizes that are declared of what it speaks of: the estimate by which
//! Kubernetes refuses rules that could keep an API server busy. A unit is about what one comparison takes.
//!
//! Every number here is seen by users: a definition that v1.36 takes must be taken, and one that it refuses refused.

mod calls;
mod range;

use std::collections::HashMap;

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};

use super::declared::Declared;
use super::infer::Checked;
use super::types::Type;
pub use range::Range;

/// What a name or a selection costs.
const SELECT: Range = Range::fixed(1);
const LIST: Range = Range::fixed(10);
const MAP: Range = Range::fixed(30);
const STRUCT: Range = Range::fixed(40);
/// For each character of a string that is walked.
pub(crate) const PER_CHARACTER: f64 = 0.1;
/// For each character of a regular expression.
pub(crate) const PER_PATTERN_CHARACTER: f64 = 0.25;

/// The variables that the parser's macros gather results in.
const ACCUMULATORS: [&str; 2] = ["@result", "__result__"];

/// The least and the most that an expression can cost, whose variables are of a type with known limits, if any.
pub fn estimate(expression: &IdedExpr, checked: &Checked, root: Option<&Declared>) -> Range {
    let mut coster = Coster {
        checked,
        root,
        paths: HashMap::new(),
        locals: Vec::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    coster.cost(expression)
}

/// Where a value stands below its variable; none for what an expression makes.
type Place = Vec<String>;

/// How large the keys and values of a map, or the items of a list, are.
#[derive(Clone, Copy)]
struct Entries {
    is_list: bool,
    key: Range,
    value: Range,
}

struct Local {
    name: String,
    place: Place,
    size: Option<Range>,
    entries: Option<Entries>,
}

struct Coster<'a> {
    checked: &'a Checked,
    root: Option<&'a Declared>,
    paths: HashMap<u64, Place>,
    /// The innermost last.
    locals: Vec<Local>,
    sizes: HashMap<u64, Range>,
    entries: HashMap<u64, Entries>,
}

/// An argument of a call.
struct Node<'e> {
    place: Place,
    of: Type,
    expression: Option<&'e IdedExpr>,
    size: Option<Range>,
}

impl Coster<'_> {
    fn cost(&mut self, e: &IdedExpr) -> Range {
        match &e.expr {
            Expr::Unspecified | Expr::Literal(_) => Range::default(),
            Expr::Ident(name) => {
                let place = match self.local(name) {
                    Some(local) => local.place.clone(),
                    None => vec![name.clone()],
                };
                self.paths.insert(e.id, place);
                SELECT
            }
            Expr::Select(select) => match self.checked.qualified(e) {
                Some(name) => {
                    self.paths.insert(e.id, vec![name.to_string()]);
                    SELECT
                }
                None => self.cost_of_select(e, select),
            },
            Expr::Call(call) => self.cost_of_call(e, call),
            Expr::List(list) => {
                let mut sum = LIST;
                let mut items = Range::none(list.elements.is_empty());
                for item in &list.elements {
                    sum = sum + self.cost(item);
                    items = items.union(self.size_or_unknown(item));
                }
                self.entries.insert(
                    e.id,
                    Entries {
                        is_list: true,
                        key: Range::fixed(1),
                        value: items,
                    },
                );
                sum
            }
            Expr::Map(map) => {
                let mut sum = MAP;
                let mut key = Range::none(map.entries.is_empty());
                let mut value = key;
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        continue;
                    };
                    sum = sum + self.cost(&entry.key) + self.cost(&entry.value);
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(
                    e.id,
                    Entries {
                        is_list: false,
                        key,
                        value,
                    },
                );
                sum
            }
            Expr::Struct(made) => {
                let mut sum = STRUCT;
                for entry in &made.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        sum = sum + self.cost(&field.value);
                    }
                }
                sum
            }
            Expr::Comprehension(c) if is_bind(c) => self.cost_of_bind(e, c),
            Expr::Comprehension(c) => self.cost_of_comprehension(e, c),
        }
    }

    fn cost_of_select(&mut self, e: &IdedExpr, select: &SelectExpr) -> Range {
        let mut sum = self.cost(&select.operand);
        if select.test {
            return sum;
        }
        if matches!(
            self.checked.type_of(&select.operand),
            Type::Map(..) | Type::Struct(_) | Type::Param(_)
        ) {
            sum = sum + SELECT;
        }
        let place = self.place_below(&select.operand, &select.field);
        self.paths.insert(e.id, place);
        sum
    }

    fn cost_of_bind(&mut self, e: &IdedExpr, c: &ComprehensionExpr) -> Range {
        let mut sum = self.cost(&c.iter_range) + self.cost(&c.accu_init);
        self.push_accumulator(c);
        sum = sum + self.cost(&c.result);
        self.locals.pop();
        if let Some(size) = self.size(&c.result) {
            self.sizes.insert(e.id, size);
        }
        if let Some(entries) = self.entries_of(&c.result) {
            self.entries.insert(e.id, entries);
        }
        sum
    }

    fn cost_of_comprehension(&mut self, e: &IdedExpr, c: &ComprehensionExpr) -> Range {
        let mut sum = self.cost(&c.iter_range) + self.cost(&c.accu_init);
        self.push_accumulator(c);
        let loop_only = self.locals.len();
        self.push_iteration(c);
        let each = self.cost(&c.loop_cond) + self.cost(&c.loop_step);
        self.locals.truncate(loop_only);
        sum = sum + self.cost(&c.result);
        self.locals.pop();
        let times = self.size_or_unknown(&c.iter_range);
        sum = sum + times * each;
        match &c.accu_init.expr {
            Expr::Literal(_) => {
                if let Some(size) = self.size(&c.accu_init) {
                    self.sizes.insert(e.id, size);
                }
            }
            Expr::List(_) | Expr::Map(_) => {
                self.sizes.insert(e.id, times);
                if let Some(entries) = self.entries_of(&c.loop_step) {
                    self.entries.insert(e.id, entries);
                }
            }
            _ => {}
        }
        sum
    }

    fn push_accumulator(&mut self, c: &ComprehensionExpr) {
        let local = Local {
            name: c.accu_var.clone(),
            place: self.place(&c.accu_init),
            size: self.size(&c.accu_init),
            entries: self.entries_of(&c.accu_init),
        };
        self.locals.push(local);
    }

    /// The variables of a loop, which are the parts of what is walked.
    fn push_iteration(&mut self, c: &ComprehensionExpr) {
        let range = &c.iter_range;
        let entries = self.entries_of(range);
        let is_list = match entries {
            Some(entries) => entries.is_list,
            None => matches!(self.checked.type_of(range), Type::List(_)),
        };
        let (key, value) = (entries.map(|e| e.key), entries.map(|e| e.value));
        let (of_key, of_value) = match is_list {
            true => ("@indices", "@items"),
            false => ("@keys", "@values"),
        };
        let mut push = |name: &str, below: &str, size: Option<Range>| {
            let local = Local {
                name: name.to_string(),
                place: self.place_below(range, below),
                size,
                entries: None,
            };
            self.locals.push(local);
        };
        match (&c.iter_var2, is_list) {
            (Some(second), _) => {
                push(&c.iter_var, of_key, key);
                push(second, of_value, value);
            }
            (None, true) => push(&c.iter_var, of_value, value),
            (None, false) => push(&c.iter_var, of_key, key),
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn place(&self, e: &IdedExpr) -> Place {
        if let Expr::Ident(name) = &e.expr
            && let Some(local) = self.local(name)
        {
            return local.place.clone();
        }
        self.paths.get(&e.id).cloned().unwrap_or_default()
    }

    fn place_below(&self, e: &IdedExpr, part: &str) -> Place {
        let mut place = self.place(e);
        place.push(part.to_string());
        place
    }

    fn node<'e>(&mut self, e: &'e IdedExpr) -> Node<'e> {
        let mut place = self.place(e);
        if place
            .first()
            .is_some_and(|of| ACCUMULATORS.contains(&of.as_str()))
        {
            place.clear();
        }
        Node {
            place,
            of: self.checked.type_of(e).clone(),
            expression: Some(e),
            size: self.size(e),
        }
    }

    /// How large a value is, where that can be known.
    fn size(&mut self, e: &IdedExpr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&e.id) {
            return Some(*size);
        }
        let written = match &e.expr {
            Expr::Literal(LiteralValue::String(text)) => Some(text.inner().chars().count()),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Some(bytes.inner().len()),
            Expr::Literal(_) => Some(1),
            Expr::List(list) => Some(list.elements.len()),
            Expr::Map(map) => Some(map.entries.len()),
            _ => None,
        };
        if let Some(written) = written {
            return Some(Range::fixed(written as u64));
        }
        if let Some(size) = self.declared_size(&self.place(e)) {
            self.sizes.insert(e.id, size);
            return Some(size);
        }
        if is_scalar(self.checked.type_of(e)) {
            return Some(Range::fixed(1));
        }
        match &e.expr {
            Expr::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, e: &IdedExpr) -> Range {
        self.size(e).unwrap_or(Range::UNKNOWN)
    }

    /// What the schema says of the value at a place. Its variable is not looked at: all that have places are of the
    /// root's type.
    fn declared_size(&self, place: &[String]) -> Option<Range> {
        let (_, below) = place.split_first()?;
        let mut at = self.root?;
        let keys = Declared::simple(Type::String, 0, 0);
        for (i, part) in below.iter().enumerate() {
            at = match part.as_str() {
                "@items" | "@values" => at.elements()?,
                // A map's keys are strings without a limit of their own.
                "@keys" if matches!(at.shape, super::declared::Shape::Map(_)) => {
                    return (i + 1 == below.len()).then_some(Range::upto(keys.max_elements));
                }
                field => at.field(field)?,
            };
        }
        Some(Range::upto(at.max_elements))
    }

    fn entries_of(&self, e: &IdedExpr) -> Option<Entries> {
        if let Some(entries) = self.entries.get(&e.id) {
            return Some(*entries);
        }
        match &e.expr {
            Expr::Ident(name) => self.local(name).and_then(|local| local.entries),
            _ => None,
        }
    }
}

/// Whether a comprehension only gives a value a name.
fn is_bind(c: &ComprehensionExpr) -> bool {
    let over_nothing = matches!(&c.iter_range.expr, Expr::List(list) if list.elements.is_empty());
    let never = matches!(&c.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(b)) if !*b.inner());
    over_nothing && never && c.accu_var != "__result__"
}

/// Whether all values of a type are of one size.
fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        other => other.inside_optional().is_some_and(is_scalar),
    }
}

#[cfg(test)]
mod tests;
