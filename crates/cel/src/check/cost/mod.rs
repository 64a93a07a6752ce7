//! The estimated cost of an expression, from the declared sizes of its variables: the estimate by which
//! Kubernetes rejects rules that could keep an API server busy. A unit is about what one comparison takes.
//!
//! Every number here has effects that users see: a definition that v1.36 accepts must be accepted, one that it rejects rejected.

mod calls;
mod range;

use std::collections::HashMap;

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};

use super::checked::Checked;
use super::declared::Declared;
use super::types::Type;
pub use range::Range;

/// The cost of an identifier or a field selection.
const SELECT: Range = Range::fixed(1);
const LIST: Range = Range::fixed(10);
const MAP: Range = Range::fixed(30);
const STRUCT: Range = Range::fixed(40);
/// For each character of a string that is traversed.
pub(crate) const PER_CHARACTER: f64 = 0.1;
/// For each character of a regular expression.
pub(crate) const PER_PATTERN_CHARACTER: f64 = 0.25;

/// The variables that the parser's macros gather results in.
const ACCUMULATORS: [&str; 2] = ["@result", "__result__"];

/// The least and the most that an expression can cost. `root`: the declared type of its variables, if there is one.
pub fn estimate(expression: &IdedExpr, checked: &Checked, root: Option<&Declared>) -> Range {
    let mut coster = CostEstimator {
        checked,
        root,
        paths: HashMap::new(),
        locals: Vec::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    coster.cost(expression)
}

/// The path to a value below its variable; no path for values that an expression makes.
type FieldPath = Vec<String>;

/// How large the keys and values of a map, or the items of a list, are.
#[derive(Clone, Copy)]
struct Entries {
    is_list: bool,
    key: Range,
    value: Range,
}

struct Local {
    name: String,
    path: FieldPath,
    size: Option<Range>,
    entries: Option<Entries>,
}

struct CostEstimator<'a> {
    checked: &'a Checked,
    root: Option<&'a Declared>,
    paths: HashMap<u64, FieldPath>,
    /// The innermost last.
    locals: Vec<Local>,
    sizes: HashMap<u64, Range>,
    entries: HashMap<u64, Entries>,
}

/// An argument of a call.
struct Node<'e> {
    path: FieldPath,
    of: Type,
    expression: Option<&'e IdedExpr>,
    size: Option<Range>,
}

impl CostEstimator<'_> {
    fn cost(&mut self, e: &IdedExpr) -> Range {
        match &e.expr {
            Expr::Unspecified | Expr::Literal(_) => Range::default(),
            Expr::Ident(name) => {
                let path = match self.local(name) {
                    Some(local) => local.path.clone(),
                    None => vec![name.clone()],
                };
                self.paths.insert(e.id, path);
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
        let path = self.path_below(&select.operand, &select.field);
        self.paths.insert(e.id, path);
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
            path: self.path(&c.accu_init),
            size: self.size(&c.accu_init),
            entries: self.entries_of(&c.accu_init),
        };
        self.locals.push(local);
    }

    /// The variables of a comprehension, which are the elements of its range.
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
                path: self.path_below(range, below),
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

    fn path(&self, e: &IdedExpr) -> FieldPath {
        if let Expr::Ident(name) = &e.expr
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&e.id).cloned().unwrap_or_default()
    }

    fn path_below(&self, e: &IdedExpr, part: &str) -> FieldPath {
        let mut path = self.path(e);
        path.push(part.to_string());
        path
    }

    fn node<'e>(&mut self, e: &'e IdedExpr) -> Node<'e> {
        let mut path = self.path(e);
        if path.first().is_some_and(|of| ACCUMULATORS.contains(&of.as_str())) {
            path.clear();
        }
        Node {
            path,
            of: self.checked.type_of(e).clone(),
            expression: Some(e),
            size: self.size(e),
        }
    }

    /// The size of a value, where it is known.
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
        if let Some(size) = self.declared_size(&self.path(e)) {
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

    /// The declared size of the value at a path. The path does not contain the variable: all values with paths are below the
    /// root's type.
    fn declared_size(&self, path: &[String]) -> Option<Range> {
        let (_, below) = path.split_first()?;
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
