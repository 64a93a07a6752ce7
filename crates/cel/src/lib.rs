//! CEL expressions in schemas, admission policies and match conditions; the `cel`
//! crate parses and interprets them.
//!
//! This crate has what is Kubernetes' own: the libraries beyond CEL's, which variables an expression may use, limits on
//! what is parsed, JSON as values, and errors worded as cel-go's. It is pure.
//!
//! | | |
//! |---|---|
//! | types of variables and expressions, estimated costs | `check/` |
//! | costs at run time | `meter/` |
//! | Kubernetes' libraries | `authorizer.rs`, `cidr.rs`, `format.rs`, `ip.rs`, `lists.rs`, `quantity.rs`, `regex.rs`, `semver.rs`, `sets.rs`, `url.rs` |
//! | structural schemas of custom resources with their rules, and what they declare to expressions | `structural/` |
//! | the devices of dynamic resource allocation | `device.rs` |

mod authorizer;
pub mod check;
mod cidr;
pub mod device;
mod format;
mod ip;
mod library;
mod limits;
mod lists;
pub mod meter;
mod quantity;
mod regex;
mod semver;
mod sets;
pub mod structural;
mod two_variables;
mod url;
mod variables;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

pub use cel::Value as Cel;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr, SourceInfo};
pub use cel::objects::OptionalValue;
use cel::objects::{Key, Map};
use cel::parser::Expression;
use cel::{Context, Env};
use serde_json::Value;

use check::{Checked, Declared, Environment, Type};
use meter::Meter;

pub use authorizer::{AttributesRecord, Authorizer, AuthorizerValue, Decision};
pub use variables::Variables;

/// The stack of the parser. It takes up to 150 KiB for each bracket of an invalid text, more than a
/// thread has for as many as [`limits`] allows; untouched it costs an address range only.
const PARSER_STACK_BYTES: usize = 64 << 20;
/// Longest message a messageExpression may make, in bytes.
pub const MESSAGE_MAX_BYTES: usize = 5 * 1024;

/// The variable of `authorizer.requestResource` in a [`Scope`]; users cannot write it.
pub const REQUEST_RESOURCE: &str = "@requestResource";

/// Kubernetes' environment: CEL's standard library and extensions, and Kubernetes' libraries.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    type Extension = fn(&mut Env) -> Result<(), cel::DeclarationError>;
    let extensions: [Extension; 14] = [
        cel::extensions::strings,
        cel::extensions::lists,
        lists::declare,
        regex::declare,
        url::declare,
        quantity::declare,
        ip::declare,
        cidr::declare,
        format::declare,
        sets::declare,
        semver::declare,
        authorizer::declare,
        meter::declare,
        two_variables::declare,
    ];
    for add in extensions {
        // They are declared once, on an environment without them.
        if let Err(e) = env.add_extension(add) {
            unreachable!("an extension of the standard environment: {e}");
        }
    }
    Arc::new(env)
});

/// Why an expression has no value, worded as cel-go words it where that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// It cost more than one expression may.
    #[error("{}", meter::EXCEEDED)]
    CostLimitExceeded,
    /// All expressions together cost more than they may.
    #[error("{}", meter::OUT_OF_BUDGET)]
    BudgetExceeded,
    /// No operator, function or macro takes arguments of these types.
    #[error("{}", NO_SUCH_OVERLOAD)]
    NoSuchOverload,
    /// A function reports this, or the interpreter.
    #[error("{0}")]
    Failed(String),
}

const NO_SUCH_OVERLOAD: &str = "no such overload";

impl From<&cel::ExecutionError> for EvaluationError {
    fn from(error: &cel::ExecutionError) -> Self {
        use cel::ExecutionError as E;
        let message = match error {
            E::NoSuchKey(key) => format!("no such key: {key}"),
            E::IndexOutOfBounds(Cel::Int(at)) => format!("index out of bounds: {at}"),
            E::DivisionByZero(_) => "division by zero".into(),
            E::RemainderByZero(_) => "modulus by zero".into(),
            E::Overflow(..) => "integer overflow".into(),
            E::UndeclaredReference(name) => format!("undeclared reference to '{name}'"),
            // The error of a function of ours crosses the interpreter as its text.
            E::FunctionError { message, .. } if message == NO_SUCH_OVERLOAD => {
                return EvaluationError::NoSuchOverload;
            }
            E::FunctionError { message, .. } => message.clone(),
            E::NoSuchOverload { .. } | E::UnsupportedBinaryOperator { .. } => {
                return EvaluationError::NoSuchOverload;
            }
            other => other.to_string(),
        };
        EvaluationError::Failed(message)
    }
}

/// Why an expression does not compile, worded as cel-go's errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("must not be longer than {} bytes", limits::EXPRESSION_MAX_BYTES)]
    TooLong,
    #[error("must not nest deeper than {}", limits::NESTING_MAX)]
    TooNested,
    #[error("expression recursion limit exceeded: {}", limits::DEPTH_MAX)]
    TooDeep,
    /// All errors of its syntax or its types, each with its position.
    #[error("{0}")]
    InSource(String),
}

/// Why an expression is rejected where one of a certain type is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("compilation failed: {0}")]
    Compile(#[from] CompileError),
    /// It is of another type.
    #[error("{0}")]
    Output(String),
}

/// A parsed expression.
#[derive(Debug)]
pub struct Program {
    /// Instrumented to report its cost: see [`meter`].
    expression: Expression,
    /// The cost that every evaluation has.
    cost: u64,
    /// The variables it uses.
    variables: Vec<String>,
}

impl Program {
    /// Parses an expression without a type check.
    pub fn read(text: &str) -> Result<Program, CompileError> {
        let (expression, _) = parse(text)?;
        Ok(Program::of(expression))
    }

    fn of(mut expression: Expression) -> Program {
        structs_to_maps(&mut expression);
        let references = expression.references();
        let mut variables: Vec<String> = references.variables().into_iter().map(str::to_string).collect();
        variables.sort_unstable();
        let (mut expression, cost) = meter::instrumented(expression);
        two_variables::paired(&mut expression);
        Program {
            expression,
            cost,
            variables,
        }
    }

    /// Whether the expression uses this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.variables.iter().any(|v| v == variable)
    }

    /// The value of the expression with these variables.
    pub fn run(&self, scope: &Scope<'_>) -> Result<Cel, EvaluationError> {
        scope.meter.start();
        let found = scope.context.resolve(&self.expression);
        scope.meter.spend(self.cost);
        // An evaluation that exceeded its cost limit fails, whatever its result.
        match scope.meter.is_exceeded() {
            true => Err(EvaluationError::CostLimitExceeded),
            false => found.map_err(|e| EvaluationError::from(&e)),
        }
    }
}

/// The variables that an expression is evaluated with.
pub struct Scope<'a> {
    context: Context<'a, 'a>,
    meter: Arc<Meter>,
}

impl Default for Scope<'_> {
    fn default() -> Self {
        let meter = Arc::new(Meter::default());
        let mut context = Context::with_env(ENV.clone());
        let (name, value) = meter::variable(&meter);
        context.add_variable_as_val(name, value);
        Scope { context, meter }
    }
}

impl<'a> Scope<'a> {
    pub fn set(&mut self, name: &str, value: Cel) {
        self.context.add_variable_from_value(name, value);
    }

    /// `variables.x`, each with its value or its error.
    pub fn set_variables(&mut self, variables: Variables) {
        self.context.add_variable_as_val("variables", Box::new(variables));
    }

    /// The cost of the last expression that was evaluated with it.
    pub fn cost(&self) -> u64 {
        self.meter.spent()
    }
}

/// An expression whose types are known.
#[derive(Debug)]
pub struct Compiled {
    pub program: Arc<Program>,
    expression: Expression,
    checked: Checked,
}

impl Compiled {
    /// The type of the result.
    pub fn output(&self) -> &Type {
        self.checked.output()
    }

    /// The estimated cost at most, where the variables are of this type.
    pub fn cost_max(&self, of_variables: &Declared) -> u64 {
        check::cost::estimate(&self.expression, &self.checked, Some(of_variables)).max
    }
}

/// Parses and checks an expression.
pub fn compile(text: &str, environment: &Environment) -> Result<Compiled, CompileError> {
    let (expression, source_info) = parse(text)?;
    let checked = check::check(&expression, environment).map_err(|errors| {
        let errors = errors.into_iter().map(|error| {
            let at = source_info
                .offset_for(error.id)
                .map_or(0, |(start, _)| start as usize);
            (at, error.what)
        });
        CompileError::InSource(shown_in_source(text, errors.collect()))
    })?;
    Ok(Compiled {
        program: Arc::new(Program::of(expression.clone())),
        expression,
        checked,
    })
}

fn parse(text: &str) -> Result<(Expression, SourceInfo), CompileError> {
    limits::check(text)?;
    let (expression, source_info) =
        stacker::grow(PARSER_STACK_BYTES, || ENV.parser().parse_with_source_info(text))
            .map_err(|e| CompileError::InSource(shown(text, &e.to_string())))?;
    if is_deep(&expression) {
        return Err(CompileError::TooDeep);
    }
    Ok((expression, source_info))
}

/// The parser's error in Kubernetes' form: one column further right, and without a column where there is no text.
fn shown(text: &str, error: &str) -> String {
    let error = error.replace("\n|", "\n |");
    match text.is_empty() {
        true => error.replace("<input>:1:1:", "<input>:1:0:"),
        false => error,
    }
}

/// Whether parts nest deeper than is traversed.
fn is_deep(expression: &IdedExpr) -> bool {
    let mut level = vec![expression];
    for _ in 0..limits::DEPTH_MAX {
        level = level.into_iter().flat_map(parts).collect();
        if level.is_empty() {
            return false;
        }
    }
    true
}

/// Most errors that are reported of one expression.
const ERRORS_MAX: usize = 100;

/// The errors with their positions, in the order of the text.
fn shown_in_source(text: &str, mut errors: Vec<(usize, String)>) -> String {
    errors.sort_by_key(|(at, _)| *at);
    let shown = errors.iter().take(ERRORS_MAX);
    let mut lines: Vec<String> = shown.map(|(at, what)| shown_at(text, *at, what)).collect();
    if let Some(more) = errors.len().checked_sub(ERRORS_MAX).filter(|more| *more > 0) {
        lines.push(format!("{more} more errors were truncated"));
    }
    lines.join("\n")
}

/// An error with its position in the source, as cel-go shows it. `at` counts bytes from the beginning.
fn shown_at(text: &str, at: usize, what: &str) -> String {
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let shown = text.split('\n').nth(line).unwrap_or_default().replace('\t', " ");
    // Below characters of more than one byte, cel-go prints full-width marks.
    let mut below: String = shown
        .chars()
        .take(column)
        .map(|c| if c.is_ascii() { '.' } else { '．' })
        .collect();
    below.push(match shown.chars().nth(column) {
        Some(c) if !c.is_ascii() => '＾',
        _ => '^',
    });
    let (line, column) = (line + 1, column + 1);
    format!("ERROR: <input>:{line}:{column}: {what}\n | {shown}\n | {below}")
}

/// Every part of an expression, itself first.
pub fn walk<'e>(expression: &'e IdedExpr, visit: &mut dyn FnMut(&'e IdedExpr)) {
    visit(expression);
    for part in parts(expression) {
        walk(part, visit);
    }
}

fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Call(call) => call.target.iter().map(|t| &**t).chain(&call.args).collect(),
        Expr::Comprehension(c) => vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|e| entry_parts(&e.expr)).collect(),
        Expr::Struct(made) => made.entries.iter().flat_map(|e| entry_parts(&e.expr)).collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn parts_mut(expression: &mut IdedExpr) -> Vec<&mut IdedExpr> {
    match &mut expression.expr {
        Expr::Call(call) => call
            .target
            .iter_mut()
            .map(|t| &mut **t)
            .chain(&mut call.args)
            .collect(),
        Expr::Comprehension(c) => {
            let c = &mut **c;
            vec![
                &mut c.iter_range,
                &mut c.accu_init,
                &mut c.loop_cond,
                &mut c.loop_step,
                &mut c.result,
            ]
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Map(map) => map
            .entries
            .iter_mut()
            .flat_map(|e| entry_parts_mut(&mut e.expr))
            .collect(),
        Expr::Struct(made) => made
            .entries
            .iter_mut()
            .flat_map(|e| entry_parts_mut(&mut e.expr))
            .collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn entry_parts_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Objects and patches that an expression constructs (`Object{…}`, `JSONPatch{…}`) are maps here: which fields they may have
/// is checked when they are used. And `authorizer.requestResource` is a variable of its own.
fn structs_to_maps(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Select(select) => {
            let of_authorizer = matches!(&select.operand.expr, Expr::Ident(name) if name == "authorizer");
            if of_authorizer && select.field == "requestResource" && !select.test {
                expression.expr = Expr::Ident(REQUEST_RESOURCE.into());
            } else {
                structs_to_maps(&mut select.operand);
            }
        }
        Expr::Struct(made) => {
            let ours = made.type_name == "JSONPatch" || made.type_name.split('.').next() == Some("Object");
            let mut entries = std::mem::take(&mut made.entries);
            for entry in &mut entries {
                let EntryExpr::StructField(field) = &mut entry.expr else {
                    continue;
                };
                structs_to_maps(&mut field.value);
                if ours {
                    let key = IdedExpr {
                        id: entry.id,
                        expr: Expr::Literal(LiteralValue::String(field.field.clone().into())),
                    };
                    entry.expr = EntryExpr::MapEntry(MapEntryExpr {
                        key,
                        value: std::mem::take(&mut field.value),
                        optional: field.optional,
                    });
                }
            }
            match ours {
                true => expression.expr = Expr::Map(MapExpr { entries }),
                false => made.entries = entries,
            }
        }
        _ => parts_mut(expression).into_iter().for_each(structs_to_maps),
    }
}

/// A JSON value as a CEL value, where no schema says more.
pub fn of_json(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => n
            .as_i64()
            .map_or_else(|| Cel::Float(n.as_f64().unwrap_or_default()), Cel::Int),
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(of_json).collect())),
        Value::Object(map) => of_map(map.iter().map(|(name, value)| (name.clone(), of_json(value)))),
    }
}

pub fn of_map(entries: impl Iterator<Item = (String, Cel)>) -> Cel {
    let entries = entries.map(|(name, value)| (Key::String(Arc::new(name)), value));
    Cel::Map(Map {
        map: Arc::new(entries.collect::<HashMap<_, _>>()),
    })
}

/// The result of an expression as JSON; `None` for values that JSON does not have.
pub fn to_json(value: &Cel) -> Option<Value> {
    Some(match value {
        Cel::Null => Value::Null,
        Cel::Bool(b) => (*b).into(),
        Cel::Int(n) => (*n).into(),
        Cel::UInt(n) => (*n).into(),
        // A whole number is one in JSON, too.
        Cel::Float(n) => serde_json::Number::from_f64(*n)?.into(),
        Cel::String(text) => text.as_str().into(),
        Cel::List(list) => list.iter().map(to_json).collect::<Option<Vec<_>>>()?.into(),
        Cel::Map(map) => {
            let mut entries: Vec<(String, Value)> = Vec::new();
            for (key, value) in map.map.iter() {
                let Key::String(name) = key else { return None };
                entries.push((name.to_string(), to_json(value)?));
            }
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Cel::Opaque(opaque) => match opaque.downcast_ref::<OptionalValue>() {
            Some(optional) => to_json(optional.value()?)?,
            None => return None,
        },
        _ => return None,
    })
}

/// A string as a timestamp or duration, as its format says.
pub fn timed(text: &str, format: &str) -> Option<Cel> {
    static TIMESTAMP: LazyLock<Option<Program>> = LazyLock::new(|| Program::read("timestamp(text)").ok());
    static DURATION: LazyLock<Option<Program>> = LazyLock::new(|| Program::read("duration(text)").ok());
    let program = match format {
        "date-time" => TIMESTAMP.as_ref()?,
        "duration" => DURATION.as_ref()?,
        _ => return None,
    };
    let mut scope = Scope::default();
    scope.set("text", Cel::String(Arc::new(text.to_string())));
    program.run(&scope).ok()
}

#[cfg(test)]
mod tests;
