//! Rewrites expressions so that they report their cost.

use std::mem::take;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::price::Price;
use super::{CHARGE, GO_ON, SIZE, SPEND, VARIABLE};
use crate::check::is_function;
use crate::two_variables::INSERT;

/// The cost of an identifier or a field selection, and of constructing values.
const SELECT: u64 = 1;
const LIST: u64 = 10;
const MAP: u64 = 30;
/// Two checks of access fit into one expression.
const ACCESS_CHECK: u64 = 350_000;

/// The expression, and the cost that every evaluation has.
pub fn instrumented(mut expression: IdedExpr) -> (IdedExpr, u64) {
    let mut slots = 0;
    let fixed = Rewrite { slots: &mut slots }.visit(&mut expression);
    (expression, fixed)
}

struct Rewrite<'s> {
    /// How many sizes are remembered.
    slots: &'s mut i64,
}

fn part(expr: Expr, id: u64) -> IdedExpr {
    IdedExpr { id, expr }
}

/// A call of one of the inserted functions.
fn call(function: &str, numbers: &[i64], value: IdedExpr) -> IdedExpr {
    let id = value.id;
    let mut args = vec![part(Expr::Ident(VARIABLE.into()), id)];
    let numbers = numbers
        .iter()
        .map(|n| part(Expr::Literal(LiteralValue::Int((*n).into())), id));
    args.extend(numbers);
    args.push(value);
    let call = CallExpr {
        func_name: function.into(),
        target: None,
        args,
    };
    part(Expr::Call(call), id)
}

fn wrap(e: &mut IdedExpr, function: &str, numbers: &[i64]) {
    *e = call(function, numbers, take(e));
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Rewrite<'_> {
    /// The cost of a part that always runs; parts that may run report their cost themselves.
    fn visit(&mut self, e: &mut IdedExpr) -> u64 {
        match &mut e.expr {
            Expr::Unspecified | Expr::Literal(_) => 0,
            Expr::Ident(_) => SELECT,
            Expr::Select(select) => {
                let operand = self.visit(&mut select.operand);
                operand + if select.test { 0 } else { SELECT }
            }
            Expr::List(list) => LIST + list.elements.iter_mut().map(|item| self.visit(item)).sum::<u64>(),
            Expr::Map(map) => {
                let mut sum = MAP;
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        sum += self.visit(&mut entry.key) + self.visit(&mut entry.value);
                    }
                }
                sum
            }
            Expr::Struct(made) => {
                let mut sum = MAP;
                for entry in &mut made.entries {
                    if let EntryExpr::StructField(field) = &mut entry.expr {
                        sum += self.visit(&mut field.value);
                    }
                }
                sum
            }
            Expr::Comprehension(c) => self.visit_comprehension(c),
            Expr::Call(_) => self.visit_call(e),
        }
    }

    /// A part that may run: it reports its cost when it does.
    fn visit_branch(&mut self, e: &mut IdedExpr) {
        let cost = self.visit(e);
        if cost > 0 {
            wrap(e, CHARGE, &[number(cost)]);
        }
    }

    fn visit_call(&mut self, e: &mut IdedExpr) -> u64 {
        let Expr::Call(call) = &mut e.expr else { return 0 };
        match (call.func_name.as_str(), call.args.as_mut_slice()) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [first, second]) => {
                let cost = self.visit(first);
                self.visit_branch(second);
                return cost;
            }
            (operators::CONDITIONAL, [condition, first, second]) => {
                let cost = self.visit(condition);
                self.visit_branch(first);
                self.visit_branch(second);
                return cost;
            }
            _ => {}
        }
        let mut cost = 0;
        let whole_name = call.target.as_deref().and_then(|target| {
            let prefix = crate::check::qualified_name(target)?;
            let name = format!("{prefix}.{}", call.func_name);
            is_function(&name).then_some(name)
        });
        // The first part of a qualified function name is no value.
        if let (Some(target), None) = (&mut call.target, &whole_name) {
            cost += self.visit(target);
        }
        cost += call.args.iter_mut().map(|arg| self.visit(arg)).sum::<u64>();
        let function = whole_name.as_deref().unwrap_or(&call.func_name);
        if function == "check" {
            return cost + ACCESS_CHECK;
        }
        let Some((price, measured)) = Price::of(function) else {
            // The cost is known.
            return cost + SELECT;
        };
        let literal = call.args.iter().filter_map(literal_size).min();
        if let Some(fixed) = literal.and_then(|size| price.with_literal(size)) {
            return cost + fixed;
        }
        let slot = *self.slots;
        let mut parts: Vec<&mut IdedExpr> = Vec::new();
        if let (Some(target), None) = (&mut call.target, &whole_name) {
            parts.push(target);
        }
        parts.extend(&mut call.args);
        for (i, at) in (0_i64..).zip(measured) {
            if let Some(argument) = parts.get_mut(*at) {
                wrap(argument, SIZE, &[slot + i]);
            }
        }
        *self.slots += 2;
        wrap(e, SPEND, &[price.number(), slot]);
        cost
    }

    fn visit_comprehension(&mut self, c: &mut ComprehensionExpr) -> u64 {
        let mut cost = self.visit(&mut c.iter_range) + self.visit(&mut c.accu_init);
        cost += self.visit(&mut c.result);
        if matches!(&c.loop_cond.expr, Expr::Literal(_)) {
            // The interpreter knows loops that gather a list by their form, which is left as it is.
            self.visit_gathering(&mut c.loop_step, 2);
        } else {
            let (condition, step) = (self.visit(&mut c.loop_cond), self.visit(&mut c.loop_step));
            wrap(&mut c.loop_cond, GO_ON, &[number(condition), number(step)]);
        }
        cost
    }

    /// A step such as `r + [x]`, or `condition ? r + [x] : r`. The sum and `r` are still `due`, of which the other branch
    /// costs but `r`.
    fn visit_gathering(&mut self, step: &mut IdedExpr, due: u64) {
        let Expr::Call(call) = &mut step.expr else { return };
        match (call.func_name.as_str(), call.args.as_mut_slice()) {
            (operators::CONDITIONAL, [guard, then, _]) => {
                let each = self.visit(guard) + 1;
                wrap(guard, CHARGE, &[number(each)]);
                self.visit_gathering(then, due - 1);
            }
            (operators::ADD, [_, added]) => match &mut added.expr {
                Expr::List(list) => {
                    for item in &mut list.elements {
                        let each = self.visit(item) + LIST + due;
                        wrap(item, CHARGE, &[number(each)]);
                    }
                }
                _ => wrap(added, CHARGE, &[number(due)]),
            },
            (INSERT, [_, before @ .., last]) => {
                let before: u64 = before.iter_mut().map(|part| self.visit(part)).sum();
                let each = before + self.visit(last) + due;
                wrap(last, CHARGE, &[number(each)]);
            }
            _ => {}
        }
    }
}

/// How large a literal is.
fn literal_size(e: &IdedExpr) -> Option<usize> {
    match &e.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().chars().count()),
        Expr::Literal(LiteralValue::Bytes(bytes)) => Some(bytes.inner().len()),
        Expr::Literal(_) => Some(1),
        _ => None,
    }
}
