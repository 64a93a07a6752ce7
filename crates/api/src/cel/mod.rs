//! Expressions in CEL, as Kubernetes' API takes them in schemas, admission policies and match conditions; the `cel`
//! crate parses and interprets them.
//!
//! What is Kubernetes' own stands here: the libraries beyond CEL's, which variables an expression may use, limits on
//! what is parsed, JSON as values, and errors in the words of the interpreter that Kubernetes uses.

mod authorizer;
mod cidr;
mod format;
mod ip;
mod library;
mod lists;
mod quantity;
mod regex;
mod semver;
mod sets;
mod url;
mod variables;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

pub use cel::Value as Cel;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr};
pub use cel::objects::OptionalValue;
use cel::objects::{Key, Map};
use cel::parser::Expression;
use cel::{Context, Env};
use serde_json::Value;

pub use authorizer::{Asked, AuthorizerValue, Authorizes, Decision};
pub use variables::Variables;

/// Longest expression, in bytes; Kubernetes' cost limits refuse far shorter ones.
const EXPRESSION_MAX_BYTES: usize = 16 * 1024;
/// How deep brackets may stand in each other: the parser descends as deep.
const NESTING_MAX: usize = 48;
/// What the parser may descend into. It takes up to 150 KiB a bracket where a text is none of the language, more than a
/// thread has for [`NESTING_MAX`] of them; untouched it costs an address range only.
const PARSER_STACK_BYTES: usize = 64 << 20;
/// Longest message a messageExpression may make, in bytes.
pub const MESSAGE_MAX_BYTES: usize = 5 * 1024;

/// How `authorizer.requestResource` is called in a [`Scope`]; nobody can write it.
pub const REQUEST_RESOURCE: &str = "@requestResource";

/// Kubernetes' environment: CEL's standard library and extensions, and Kubernetes' libraries.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    type Extension = fn(&mut Env) -> Result<(), cel::DeclarationError>;
    let extensions: [Extension; 13] = [
        cel::extensions::strings,
        cel::extensions::lists,
        cel::extensions::math,
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
    ];
    for add in extensions {
        // They are declared once, on an environment that has none of them.
        if let Err(e) = env.add_extension(add) {
            unreachable!("an extension of the standard environment: {e}");
        }
    }
    Arc::new(env)
});

/// Names that are no variables: types, and the beginnings of functions' names.
const KNOWN: [&str; 24] = [
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "optional",
    "dyn",
    "timestamp",
    "duration",
    "math",
    "strings",
    "base64",
    "lists",
    "google",
    "optional_type",
    "sets",
    "format",
    "ip",
    "jsonpatch",
];

/// An expression that was read.
#[derive(Debug)]
pub struct Program {
    expression: Expression,
    variables: Vec<String>,
    /// Fields of variables that are spoken of: the variable, and field by field the name and the byte it is selected at.
    selected: Vec<(String, Vec<(String, usize)>)>,
}

impl Program {
    /// Whether the expression speaks of this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.variables.iter().any(|v| v == variable)
    }

    /// The fields of a variable that it speaks of, and the fields of those, with the bytes they are selected at.
    pub fn selected<'p>(&'p self, variable: &'p str) -> impl Iterator<Item = &'p [(String, usize)]> + 'p {
        let of_it = self.selected.iter().filter(move |(of, _)| of == variable);
        of_it.map(|(_, fields)| fields.as_slice())
    }

    /// The value, or what went wrong in Kubernetes' words.
    pub fn run(&self, scope: &Scope<'_>) -> Result<Cel, String> {
        scope.0.resolve(&self.expression).map_err(|e| words(&e))
    }
}

/// The variables an expression is judged with.
pub struct Scope<'a>(Context<'a, 'a>);

impl Default for Scope<'_> {
    fn default() -> Self {
        Scope(Context::with_env(ENV.clone()))
    }
}

impl<'a> Scope<'a> {
    pub fn set(&mut self, name: &str, value: Cel) {
        self.0.add_variable_from_value(name, value);
    }

    /// `variables.x`, each with its value or with what went wrong.
    pub fn set_variables(&mut self, variables: Variables) {
        self.0.add_variable_as_val("variables", Box::new(variables));
    }
}

/// A program whose variables are among `known`, or why the text is none.
pub fn compile(text: &str, known: &[&str]) -> Result<Arc<Program>, String> {
    if text.trim().is_empty() {
        return Err("must not be empty".into());
    }
    if text.len() > EXPRESSION_MAX_BYTES {
        return Err(format!("must not be longer than {EXPRESSION_MAX_BYTES} bytes"));
    }
    let mut depth = 0usize;
    for c in text.chars() {
        match c {
            '(' | '[' | '{' | '?' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(format!("must not nest deeper than {NESTING_MAX}"));
        }
    }
    let (mut expression, places) =
        stacker::grow(PARSER_STACK_BYTES, || ENV.parser().parse_with_source_info(text))
            .map_err(|e| format!("compilation failed: {e}"))?;
    structs_to_maps(&mut expression);
    let references = expression.references();
    let mut unknown: Vec<&str> = references.variables();
    unknown.retain(|name| !known.contains(name) && !KNOWN.contains(name) && !name.starts_with('@'));
    unknown.sort_unstable();
    if let Some(name) = unknown.first() {
        let at = position(&expression, name).and_then(|id| places.offset_for(id));
        let at = at.map_or(0, |(start, _)| start as usize);
        return Err(format!(
            "compilation failed: {}",
            pointed(
                text,
                at,
                &format!("undeclared reference to '{name}' (in container '')")
            )
        ));
    }
    let mut selected = Vec::new();
    walk(&expression, &mut |e| {
        let mut fields = Vec::new();
        let mut at = e;
        while let Expr::Select(select) = &at.expr {
            let place = places.offset_for(at.id).map_or(0, |(start, _)| start as usize);
            fields.push((select.field.clone(), place));
            at = &select.operand;
        }
        if let (Expr::Ident(of), false) = (&at.expr, fields.is_empty()) {
            fields.reverse();
            selected.push((of.clone(), fields));
        }
    });
    let mut variables: Vec<String> = references.variables().into_iter().map(str::to_string).collect();
    variables.sort_unstable();
    Ok(Arc::new(Program {
        expression,
        variables,
        selected,
    }))
}

/// A mistake with the place it is at, drawn as Kubernetes' compiler does. `at` counts bytes from the beginning.
pub fn pointed(text: &str, at: usize, what: &str) -> String {
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let shown = text.lines().nth(line).unwrap_or_default();
    let line = line + 1;
    format!(
        "ERROR: <input>:{line}:{column}: {what}\n | {shown}\n | {:.>column$}",
        "^"
    )
}

/// The first place where a variable is named.
fn position(expression: &IdedExpr, name: &str) -> Option<u64> {
    let mut found = None;
    walk(expression, &mut |e| {
        if found.is_none() && matches!(&e.expr, Expr::Ident(ident) if ident == name) {
            found = Some(e.id);
        }
    });
    found
}

/// Every part of an expression, itself first.
fn walk<'e>(expression: &'e IdedExpr, visit: &mut dyn FnMut(&'e IdedExpr)) {
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

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Objects and patches that an expression makes (`Object{…}`, `JSONPatch{…}`) are maps here: what their fields may be
/// is judged when they are used. And `authorizer.requestResource` is a variable of its own.
fn structs_to_maps(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|t| structs_to_maps(t));
            call.args.iter_mut().for_each(structs_to_maps);
        }
        Expr::Comprehension(c) => {
            for part in [
                &mut c.iter_range,
                &mut c.accu_init,
                &mut c.loop_cond,
                &mut c.loop_step,
                &mut c.result,
            ] {
                structs_to_maps(part);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(structs_to_maps),
        Expr::Select(select) => {
            let of_authorizer = matches!(&select.operand.expr, Expr::Ident(name) if name == "authorizer");
            if of_authorizer && select.field == "requestResource" && !select.test {
                expression.expr = Expr::Ident(REQUEST_RESOURCE.into());
            } else {
                structs_to_maps(&mut select.operand);
            }
        }
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    structs_to_maps(&mut entry.key);
                    structs_to_maps(&mut entry.value);
                }
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
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

/// JSON as CEL has it where no schema says more.
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

pub(crate) fn of_map(entries: impl Iterator<Item = (String, Cel)>) -> Cel {
    let entries = entries.map(|(name, value)| (Key::String(Arc::new(name)), value));
    Cel::Map(Map {
        map: Arc::new(entries.collect::<HashMap<_, _>>()),
    })
}

/// A value that an expression made, as JSON; `None` for what has none.
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

/// A text that is a point or a length of time, as its format says.
pub fn timed(text: &str, format: &str) -> Option<Cel> {
    let call = match format {
        "date-time" => "timestamp(text)",
        "duration" => "duration(text)",
        _ => return None,
    };
    let program = compile(call, &["text"]).ok()?;
    let mut scope = Scope::default();
    scope.set("text", Cel::String(Arc::new(text.to_string())));
    program.run(&scope).ok()
}

/// An error in the words of Kubernetes' interpreter, where they are known.
fn words(error: &cel::ExecutionError) -> String {
    use cel::ExecutionError as E;
    match error {
        E::NoSuchKey(key) => format!("no such key: {key}"),
        E::IndexOutOfBounds(Cel::Int(at)) => format!("index out of bounds: {at}"),
        E::DivisionByZero(_) => "division by zero".into(),
        E::RemainderByZero(_) => "modulus by zero".into(),
        E::Overflow(..) => "integer overflow".into(),
        E::UndeclaredReference(name) => format!("undeclared reference to '{name}'"),
        E::FunctionError { message, .. } => message.clone(),
        E::NoSuchOverload { .. } | E::UnsupportedBinaryOperator { .. } => "no such overload".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
