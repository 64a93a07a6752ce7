//! Type inference: the types of an expression's parts, from the leaves up, with calls resolved to overloads.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, MapExpr,
    SelectExpr, StructExpr, operators,
};

use super::checked::{Checked, TypeError};
use super::declarations::Overload;
use super::environment::Environment;
use super::literals;
use super::types::{Bindings, Type, most_general};

/// Checks the types of an expression; errors are in the order in which they were found.
pub fn check(expression: &IdedExpr, environment: &Environment) -> Result<Checked, Vec<TypeError>> {
    let mut checker = Checker {
        environment,
        found: Checked::default(),
        bindings: Bindings::default(),
        locals: Vec::new(),
        fresh: 0,
        errors: Vec::new(),
    };
    checker.check(expression);
    let Checker {
        mut found,
        bindings,
        mut errors,
        ..
    } = checker;
    for of in found.types.values_mut() {
        *of = bindings.resolved(of, true);
    }
    if errors.is_empty() {
        literals::check(expression, &found, &mut errors);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    found.output = Some(found.type_of(expression).clone());
    Ok(found)
}

struct Checker<'e> {
    environment: &'e Environment,
    found: Checked,
    bindings: Bindings,
    /// Variables of comprehensions, the innermost last.
    locals: Vec<(String, Type)>,
    fresh: usize,
    errors: Vec<TypeError>,
}

/// The qualified name that an expression consists of.
pub(crate) fn qualified_name(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            let before = qualified_name(&select.operand)?;
            Some(format!("{before}.{}", select.field))
        }
        _ => None,
    }
}

impl Checker<'_> {
    fn report(&mut self, id: u64, what: String) {
        self.errors.push(TypeError { id, what });
    }

    fn undeclared(&mut self, id: u64, name: &str) {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn mismatch(&mut self, id: u64, expected: &Type, found: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn set(&mut self, part: &IdedExpr, of: Type) {
        self.found.types.insert(part.id, of);
    }

    fn type_of(&self, part: &IdedExpr) -> Type {
        self.found.type_of(part).clone()
    }

    fn fresh(&mut self) -> Type {
        self.fresh += 1;
        Type::Param(format!("_var{}", self.fresh - 1).into())
    }

    fn identifier(&self, name: &str) -> Option<Type> {
        let local = self.locals.iter().rev().find(|(local, _)| local == name);
        local
            .map(|(_, of)| of.clone())
            .or_else(|| self.environment.identifier(name))
    }

    fn check(&mut self, e: &IdedExpr) {
        match &e.expr {
            Expr::Unspecified => self.set(e, Type::Error),
            Expr::Literal(literal) => {
                let of = match literal {
                    LiteralValue::Boolean(_) => Type::Bool,
                    LiteralValue::Bytes(_) => Type::Bytes,
                    LiteralValue::Double(_) => Type::Double,
                    LiteralValue::Int(_) => Type::Int,
                    LiteralValue::Null => Type::Null,
                    LiteralValue::String(_) => Type::String,
                    LiteralValue::UInt(_) => Type::Uint,
                };
                self.set(e, of);
            }
            Expr::Ident(name) => match self.identifier(name) {
                Some(of) => self.set(e, of),
                None => {
                    self.set(e, Type::Error);
                    self.undeclared(e.id, name);
                }
            },
            Expr::Select(select) => self.check_select(e, select),
            Expr::Call(call) => self.check_call(e, call),
            Expr::List(list) => self.check_list(e, list),
            Expr::Map(map) => self.check_map(e, map),
            Expr::Struct(made) => self.check_struct(e, made),
            Expr::Comprehension(c) => self.check_comprehension(e, c),
        }
    }

    fn check_select(&mut self, e: &IdedExpr, select: &SelectExpr) {
        if let Some(name) = qualified_name(e)
            && let Some(of) = self.identifier(&name)
        {
            self.set(e, of);
            self.found.qualified.insert(e.id, name);
            return;
        }
        let of = self.select_field(e.id, &select.operand, &select.field, false);
        let of = if select.test { Type::Bool } else { of };
        let of = self.bindings.resolved(&of, false);
        self.set(e, of);
    }

    fn select_field(&mut self, id: u64, operand: &IdedExpr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let of = self.bindings.resolved(&self.type_of(operand), false);
        let inside = of.inside_optional();
        let is_optional = optional || inside.is_some();
        let target = inside.unwrap_or(&of).clone();
        let result = match &target {
            Type::Map(_, value) => (**value).clone(),
            Type::Struct(name) => match self.environment.field(name, field) {
                Some(of) => of,
                None => {
                    let what = match self.environment.has_struct(name) {
                        true => format!("undefined field '{field}'"),
                        false => format!("unexpected failed resolution of '{name}'"),
                    };
                    self.report(id, what);
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.bindings.assign(&Type::Dyn, &target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        match is_optional {
            true => Type::optional(result),
            false => result,
        }
    }

    fn check_call(&mut self, e: &IdedExpr, call: &CallExpr) {
        if call.func_name == operators::OPT_SELECT {
            // The parser made it of an operand and a name.
            let [operand, field] = call.args.as_slice() else {
                return self.set(e, Type::Error);
            };
            let Expr::Literal(LiteralValue::String(name)) = &field.expr else {
                return self.set(e, Type::Error);
            };
            let of = self.select_field(e.id, operand, name.inner(), true);
            let of = self.bindings.resolved(&of, false);
            self.set(e, of);
            self.found.overloads.insert(e.id, vec!["select_optional_field"]);
            return;
        }
        for arg in &call.args {
            self.check(arg);
        }
        let Some(target) = &call.target else {
            match self.environment.function(&call.func_name) {
                Some(overloads) => self.resolve(e, &call.func_name, overloads, None, &call.args),
                None => {
                    self.undeclared(e.id, &call.func_name);
                    self.set(e, Type::Error);
                }
            }
            return;
        };
        if let Some(prefix) = qualified_name(target) {
            let name = format!("{prefix}.{}", call.func_name);
            if let Some(overloads) = self.environment.function(&name) {
                self.resolve(e, &name, overloads, None, &call.args);
                self.found.namespaced.insert(e.id, name);
                return;
            }
        }
        self.check(target);
        match self.environment.function(&call.func_name) {
            Some(overloads) => self.resolve(e, &call.func_name, overloads, Some(target), &call.args),
            None => {
                self.set(e, Type::Error);
                self.undeclared(e.id, &call.func_name);
            }
        }
    }

    fn resolve(
        &mut self,
        e: &IdedExpr,
        name: &str,
        overloads: &'static [Overload],
        target: Option<&IdedExpr>,
        args: &[IdedExpr],
    ) {
        let given = target.into_iter().chain(args);
        let given: Vec<Type> = given.map(|part| self.type_of(part)).collect();
        if name == operators::LOGICAL_AND || name == operators::LOGICAL_OR {
            return self.resolve_logical(e, overloads, args, &given);
        }
        let mut result: Option<Type> = None;
        let mut ids = Vec::new();
        for overload in overloads.iter().filter(|o| o.is_member == target.is_some()) {
            let mut fresh = Bindings::default();
            for param in &overload.params {
                let var = self.fresh();
                fresh.bind(param, var);
            }
            let params: Vec<Type> = overload.args.iter().map(|t| fresh.resolved(t, false)).collect();
            if !self.bindings.assign_all(&given, &params) {
                continue;
            }
            ids.push(overload.id);
            let of = fresh.resolved(&overload.result, false);
            let of = self.bindings.resolved(&of, false);
            match &result {
                None => result = Some(of),
                Some(before) if !before.is_dyn() && *before != of => result = Some(Type::Dyn),
                Some(_) => {}
            }
        }
        let Some(of) = result else {
            let shown: Vec<String> = given
                .iter()
                .map(|t| self.bindings.resolved(t, true).to_string())
                .collect();
            let signature = match (target, shown.split_first()) {
                (Some(_), Some((target, args))) => format!("{target}.({})", args.join(", ")),
                _ => format!("({})", shown.join(", ")),
            };
            self.report(
                e.id,
                format!("found no matching overload for '{name}' applied to '{signature}'"),
            );
            return self.set(e, Type::Error);
        };
        self.set(e, of);
        self.found.overloads.insert(e.id, ids);
    }

    /// `&&` and `||` report each operand that is not a bool.
    fn resolve_logical(&mut self, e: &IdedExpr, overloads: &[Overload], args: &[IdedExpr], given: &[Type]) {
        let mut well = true;
        for (arg, of) in args.iter().zip(given) {
            if !self.bindings.assign(of, &Type::Bool) {
                self.mismatch(arg.id, &Type::Bool, of);
                well = false;
            }
        }
        if well {
            self.found
                .overloads
                .insert(e.id, overloads.iter().map(|o| o.id).collect());
        }
        self.set(e, if well { Type::Bool } else { Type::Error });
    }

    /// The element type of a part that must be optional.
    fn unwrapped(&mut self, part: &IdedExpr) -> Type {
        let of = self.type_of(part);
        match of.inside_optional() {
            Some(inside) => inside.clone(),
            None => {
                if !of.is_dyn() {
                    self.mismatch(part.id, &Type::optional(of.clone()), &of);
                }
                of
            }
        }
    }

    /// The common type of both; all items of a list have one type.
    fn join(&mut self, part: &IdedExpr, before: Option<Type>, of: Type) -> Type {
        let Some(before) = before else { return of };
        if self.bindings.assign(&before, &of) {
            return most_general(&before, &of);
        }
        self.mismatch(part.id, &before, &of);
        Type::Error
    }

    fn check_list(&mut self, e: &IdedExpr, list: &ListExpr) {
        let mut items: Option<Type> = None;
        for (i, item) in list.elements.iter().enumerate() {
            self.check(item);
            let of = match list.optional_indices.contains(&i) {
                true => self.unwrapped(item),
                false => self.type_of(item),
            };
            items = Some(self.join(item, items, of));
        }
        let items = items.unwrap_or_else(|| self.fresh());
        self.set(e, Type::list(items));
    }

    fn check_map(&mut self, e: &IdedExpr, map: &MapExpr) {
        let (mut keys, mut values): (Option<Type>, Option<Type>) = (None, None);
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                continue;
            };
            self.check(&entry.key);
            let of = self.type_of(&entry.key);
            keys = Some(self.join(&entry.key, keys, of));
            self.check(&entry.value);
            let of = match entry.optional {
                true => self.unwrapped(&entry.value),
                false => self.type_of(&entry.value),
            };
            values = Some(self.join(&entry.value, values, of));
        }
        let keys = keys.unwrap_or_else(|| self.fresh());
        let values = values.unwrap_or_else(|| self.fresh());
        self.set(e, Type::map(keys, values));
    }

    fn check_struct(&mut self, e: &IdedExpr, made: &StructExpr) {
        let name = made.type_name.strip_prefix('.').unwrap_or(&made.type_name);
        let of = match self.identifier(name) {
            None => {
                self.undeclared(e.id, name);
                return self.set(e, Type::Error);
            }
            Some(Type::Type(Some(of))) => match &*of {
                Type::Struct(_) => (*of).clone(),
                other => {
                    self.report(e.id, format!("'{}' is not a message type", other.declared_name()));
                    Type::Error
                }
            },
            Some(other) => {
                self.report(e.id, format!("'{}' is not a type", other.declared_name()));
                Type::Error
            }
        };
        self.set(e, of.clone());
        for IdedEntryExpr { id, expr } in &made.entries {
            let EntryExpr::StructField(field) = expr else {
                continue;
            };
            self.check(&field.value);
            let expected = match &of {
                Type::Struct(name) => self.environment.field(name, &field.field),
                _ => Some(Type::Error),
            };
            let expected = expected.unwrap_or_else(|| {
                self.report(*id, format!("undefined field '{}'", field.field));
                Type::Error
            });
            let given = match field.optional {
                true => self.unwrapped(&field.value),
                false => self.type_of(&field.value),
            };
            if !self.bindings.assign(&expected, &given) {
                let what = format!(
                    "expected type of field '{}' is '{expected}' but provided type is '{given}'",
                    field.field
                );
                self.report(*id, what);
            }
        }
    }

    fn check_comprehension(&mut self, e: &IdedExpr, c: &ComprehensionExpr) {
        self.check(&c.iter_range);
        self.check(&c.accu_init);
        let range = self.bindings.resolved(&self.type_of(&c.iter_range), false);
        let accumulated = self.type_of(&c.accu_init);
        let outside = self.locals.len();
        self.locals.push((c.accu_var.clone(), accumulated.clone()));
        let (first, second) = match &range {
            Type::List(items) if c.iter_var2.is_some() => (Type::Int, (**items).clone()),
            Type::List(items) => ((**items).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Any | Type::Error | Type::Param(_) => {
                self.bindings.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let what = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(c.iter_range.id, what);
                (Type::Error, Type::Error)
            }
        };
        let loop_only = self.locals.len();
        self.locals.push((c.iter_var.clone(), first));
        if let Some(name) = &c.iter_var2 {
            self.locals.push((name.clone(), second));
        }
        self.check(&c.loop_cond);
        self.expect(&c.loop_cond, &Type::Bool);
        self.check(&c.loop_step);
        self.expect(&c.loop_step, &accumulated);
        self.locals.truncate(loop_only);
        self.check(&c.result);
        self.locals.truncate(outside);
        let of = self.bindings.resolved(&self.type_of(&c.result), false);
        self.set(e, of);
    }

    fn expect(&mut self, part: &IdedExpr, expected: &Type) {
        let of = self.type_of(part);
        if !self.bindings.assign(expected, &of) {
            self.mismatch(part.id, expected, &of);
        }
    }
}
