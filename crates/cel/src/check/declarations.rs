//! The functions that Kubernetes' expressions can call: CEL's standard functions, the extensions that Kubernetes enables (optional
//! values, strings, sets, lists, comprehensions of two variables), and Kubernetes' own libraries.
//!
//! [`functions`](super::functions) lists them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::functions::FUNCTIONS;
use super::types::Type;

/// One way to call a function.
#[derive(Debug)]
pub struct Overload {
    pub id: &'static str,
    pub is_member: bool,
    /// For a member function the first one is the receiver.
    pub args: Vec<Type>,
    pub result: Type,
    pub params: Vec<Arc<str>>,
}

/// All functions by name.
pub static STANDARD: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut all: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for (name, overloads) in FUNCTIONS {
        let read = overloads.lines().map(str::trim).filter(|line| !line.is_empty());
        all.entry(name).or_default().extend(read.filter_map(overload));
    }
    all
});

/// Identifiers that denote types.
pub static TYPES: LazyLock<HashMap<&'static str, Type>> = LazyLock::new(|| {
    let names = [
        "bool",
        "bytes",
        "double",
        "int",
        "string",
        "uint",
        "list(A)",
        "map(A, B)",
        "null_type",
        "type",
        "google.protobuf.Duration",
        "google.protobuf.Timestamp",
        "optional_type(V)",
        "net.IP",
        "net.CIDR",
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "kubernetes.URL",
        "kubernetes.NamedFormat",
    ];
    let of = |text: &'static str| {
        let name = text.split('(').next().unwrap_or(text);
        let (found, _) = read_type(match text {
            "google.protobuf.Duration" => "duration",
            "google.protobuf.Timestamp" => "timestamp",
            other => other,
        })?;
        Some((name, found))
    };
    names.into_iter().filter_map(of).collect()
});

fn overload(line: &'static str) -> Option<Overload> {
    let (id, signature) = line.split_once(' ')?;
    let (call, result) = signature.rsplit_once(" -> ")?;
    let (result, _) = read_type(result)?;
    let mut args = Vec::new();
    let (mut rest, is_member) = match call.strip_prefix('(') {
        Some(rest) => (rest, false),
        None => {
            let (target, rest) = read_type(call)?;
            args.push(target);
            (rest.strip_prefix(".(")?, true)
        }
    };
    while !rest.starts_with(')') {
        let (arg, left) = read_type(rest)?;
        args.push(arg);
        rest = left.strip_prefix(", ").unwrap_or(left);
    }
    let mut params = Vec::new();
    args.iter()
        .chain([&result])
        .for_each(|t| params_of(t, &mut params));
    Some(Overload {
        id,
        is_member,
        args,
        result,
        params,
    })
}

fn params_of(t: &Type, params: &mut Vec<Arc<str>>) {
    match t {
        Type::Param(name) if !params.contains(name) => params.push(name.clone()),
        Type::List(of) | Type::Type(Some(of)) => params_of(of, params),
        Type::Map(key, value) => {
            params_of(key, params);
            params_of(value, params);
        }
        Type::Opaque(_, of) => of.iter().for_each(|t| params_of(t, params)),
        _ => {}
    }
}

/// A type at the beginning of a text, and what comes after it.
fn read_type(text: &str) -> Option<(Type, &str)> {
    // A dot before a bracket begins the arguments of a member, any other is part of a name.
    let part =
        |(i, c): (usize, char)| c.is_alphanumeric() || c == '_' || (c == '.' && !text[i..].starts_with(".("));
    let end = text
        .char_indices()
        .find(|at| !part(*at))
        .map_or(text.len(), |(i, _)| i);
    let (name, mut rest) = text.split_at(end);
    let mut params = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('(') {
        while !inside.starts_with(')') {
            let (param, left) = read_type(inside)?;
            params.push(param);
            inside = left.strip_prefix(", ").unwrap_or(left);
        }
        rest = inside.strip_prefix(')')?;
    }
    let found = match (name, params.as_slice()) {
        ("bool", []) => Type::Bool,
        ("bytes", []) => Type::Bytes,
        ("double", []) => Type::Double,
        ("duration", []) => Type::Duration,
        ("dyn", []) => Type::Dyn,
        ("int", []) => Type::Int,
        ("null_type", []) => Type::Null,
        ("string", []) => Type::String,
        ("timestamp", []) => Type::Timestamp,
        ("uint", []) => Type::Uint,
        ("type", []) => Type::Type(None),
        ("type", [of]) => Type::Type(Some(Arc::new(of.clone()))),
        ("list", [of]) => Type::list(of.clone()),
        ("map", [key, value]) => Type::map(key.clone(), value.clone()),
        ("optional_type", [of]) => Type::optional(of.clone()),
        (name, []) if name.starts_with("net.") => Type::Opaque(name.into(), Vec::new()),
        (name, []) if name.starts_with("kubernetes.") => Type::Struct(name.into()),
        (name, []) if name.len() == 1 => Type::Param(name.into()),
        _ => return None,
    };
    Some((found, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_signature() {
        for (name, overloads) in FUNCTIONS {
            for line in overloads.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let read = overload(line);
                let Some(read) = read else {
                    panic!("{name}: {line}");
                };
                let args: Vec<String> = read
                    .args
                    .iter()
                    .map(|t| t.declared_name().replace(['<', '>'], ""))
                    .collect();
                let args = args
                    .iter()
                    .map(|a| a.replace("google.protobuf.Duration", "duration"));
                let args: Vec<String> = args
                    .map(|a| a.replace("google.protobuf.Timestamp", "timestamp"))
                    .collect();
                let again = match read.is_member {
                    true => format!("{}.({})", args[0], args[1..].join(", ")),
                    false => format!("({})", args.join(", ")),
                };
                assert!(line.contains(&again), "{line} was read as {again}");
            }
        }
        assert_eq!(TYPES.len(), 19);
    }
}
