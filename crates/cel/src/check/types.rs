//! The types of expressions, and their assignability.
//!
//! A type parameter is bound to a type while an expression is checked; the
//! [`Bindings`] have its type. `dyn` is assignable to everything, and so is the type of an error: one error is reported once.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A type. Its Display is how errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Any,
    Bool,
    Bytes,
    Double,
    Duration,
    Dyn,
    /// The type of an expression with an error.
    Error,
    Int,
    Null,
    String,
    Timestamp,
    Uint,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    /// Of a type itself: `int` is of `type(int)`.
    Type(Option<Arc<Type>>),
    /// A type that only functions can read, such as `optional_type` and `net.IP`.
    Opaque(Arc<str>, Vec<Type>),
    /// An object type, whose fields are declared.
    Struct(Arc<str>),
    Param(Arc<str>),
}

const OPTIONAL: &str = "optional_type";

impl Type {
    pub fn list(of: Type) -> Type {
        Type::List(Arc::new(of))
    }

    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    pub fn optional(of: Type) -> Type {
        Type::Opaque(OPTIONAL.into(), vec![of])
    }

    /// The element type of an optional type.
    pub fn inside_optional(&self) -> Option<&Type> {
        match self {
            Type::Opaque(name, params) if &**name == OPTIONAL => params.first(),
            _ => None,
        }
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn | Type::Any)
    }

    pub(super) fn is_dyn_or_error(&self) -> bool {
        self.is_dyn() || *self == Type::Error
    }

    /// The name that messages about results use, which is not the one in compile errors.
    pub fn declared_name(&self) -> String {
        match self {
            Type::Any => "google.protobuf.Any".into(),
            Type::Duration => "google.protobuf.Duration".into(),
            Type::Timestamp => "google.protobuf.Timestamp".into(),
            Type::Null => "null_type".into(),
            Type::Param(name) => format!("<{name}>"),
            Type::List(of) => format!("list({})", of.declared_name()),
            Type::Map(key, value) => format!("map({}, {})", key.declared_name(), value.declared_name()),
            Type::Type(Some(of)) => format!("type({})", of.declared_name()),
            Type::Opaque(name, params) if !params.is_empty() => {
                let params: Vec<String> = params.iter().map(Type::declared_name).collect();
                format!("{name}({})", params.join(", "))
            }
            other => other.to_string(),
        }
    }

    /// Its type parameters.
    fn params(&self) -> Vec<&Type> {
        match self {
            Type::List(of) | Type::Type(Some(of)) => vec![of],
            Type::Map(key, value) => vec![key, value],
            Type::Opaque(_, params) => params.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether it is the other type, with dyn in place of some parts.
    fn is_as_general_as(&self, other: &Type) -> bool {
        let open = |t: &Type| t.is_dyn() || matches!(t, Type::Param(_));
        if open(self) {
            return true;
        }
        if open(other) {
            return false;
        }
        match (self, other) {
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(_), Type::List(_)) | (Type::Map(..), Type::Map(..)) => self.pairwise(other),
            (Type::Opaque(a, _), Type::Opaque(b, _)) => a == b && self.pairwise(other),
            (a, b) => a == b,
        }
    }

    fn pairwise(&self, other: &Type) -> bool {
        let (a, b) = (self.params(), other.params());
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_as_general_as(b))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Any => f.write_str("any"),
            Type::Bool => f.write_str("bool"),
            Type::Bytes => f.write_str("bytes"),
            Type::Double => f.write_str("double"),
            Type::Duration => f.write_str("duration"),
            Type::Dyn => f.write_str("dyn"),
            Type::Error => f.write_str("!error!"),
            Type::Int => f.write_str("int"),
            Type::Null => f.write_str("null"),
            Type::String => f.write_str("string"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Uint => f.write_str("uint"),
            Type::List(of) => write!(f, "list({of})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Type(None) => f.write_str("type"),
            Type::Type(Some(of)) => write!(f, "type({of})"),
            Type::Struct(name) | Type::Param(name) => f.write_str(name),
            Type::Opaque(name, params) if params.is_empty() => f.write_str(name),
            Type::Opaque(name, params) => {
                write!(f, "{name}(")?;
                for (i, param) in params.iter().enumerate() {
                    write!(f, "{}{param}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

/// The more general of two compatible types.
pub fn most_general(a: &Type, b: &Type) -> Type {
    match a.is_as_general_as(b) {
        true => a.clone(),
        false => b.clone(),
    }
}

/// The types that type parameters are bound to.
#[derive(Clone, Debug, Default)]
pub struct Bindings(HashMap<Arc<str>, Type>);

impl Bindings {
    pub fn bind(&mut self, param: &Arc<str>, to: Type) {
        self.0.insert(param.clone(), to);
    }

    fn find(&self, t: &Type) -> Option<&Type> {
        match t {
            Type::Param(name) => self.0.get(name),
            _ => None,
        }
    }

    /// Whether values of the type `from` can be used where `to` is expected. The bindings that this needs are kept; none
    /// where the types are not assignable.
    pub fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.assign_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    /// The same for lists of types, pair by pair.
    pub fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        // Most types bind nothing, and then there is nothing to undo.
        let mut trial = self.clone();
        let agree = from.len() == to.len() && from.iter().zip(to).all(|(a, b)| trial.agrees(a, b));
        if agree {
            *self = trial;
        }
        agree
    }

    fn agrees(&mut self, a: &Type, b: &Type) -> bool {
        if matches!(b, Type::Param(_)) {
            let (agree, bound) = self.substitutes(a, b);
            if agree || bound {
                return agree;
            }
        }
        if matches!(a, Type::Param(_)) {
            return self.substitutes(b, a).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        let nullable = |t: &Type| {
            matches!(
                t,
                Type::Opaque(..)
                    | Type::Struct(_)
                    | Type::Any
                    | Type::Duration
                    | Type::Timestamp
                    | Type::Null
            )
        };
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => nullable(other),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) => self.agrees(a, b),
            (Type::Map(ak, av), Type::Map(bk, bv)) => self.agrees(ak, bk) && self.agrees(av, bv),
            (Type::Opaque(a, of_a), Type::Opaque(b, of_b)) => {
                a == b && of_a.len() == of_b.len() && of_a.iter().zip(of_b).all(|(a, b)| self.agrees(a, b))
            }
            (a, b) => a == b,
        }
    }

    /// Whether a parameter can be bound to `t`, and whether it was bound before.
    fn substitutes(&mut self, t: &Type, param: &Type) -> (bool, bool) {
        if t == param {
            return (true, true);
        }
        let Type::Param(name) = param else {
            return (false, false);
        };
        if let Some(found) = self.find(param).cloned() {
            if *t == found {
                return (true, true);
            }
            if self.agrees(t, &found) {
                let general = most_general(t, &found);
                if !self.occurs(param, &general) {
                    self.bind(name, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        let free = !self.occurs(param, t);
        if free {
            self.bind(name, t.clone());
        }
        (free, false)
    }

    /// Whether the parameter is part of the type.
    fn occurs(&self, param: &Type, within: &Type) -> bool {
        if param == within {
            return true;
        }
        match self.find(within) {
            Some(found) => self.occurs(param, found),
            None => within.params().into_iter().any(|part| self.occurs(param, part)),
        }
    }

    /// The type with its parameters replaced by their bindings; unbound ones become dyn if `finally`.
    pub fn resolved(&self, t: &Type, finally: bool) -> Type {
        if let Some(found) = self.find(t) {
            return self.resolved(found, finally);
        }
        let part = |t: &Type| Arc::new(self.resolved(t, finally));
        match t {
            Type::Param(_) if finally => Type::Dyn,
            Type::List(of) => Type::List(part(of)),
            Type::Map(key, value) => Type::Map(part(key), part(value)),
            Type::Type(Some(of)) => Type::Type(Some(part(of))),
            Type::Opaque(name, params) => {
                let params = params.iter().map(|p| self.resolved(p, finally));
                Type::Opaque(name.clone(), params.collect())
            }
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &str) -> Type {
        Type::Param(name.into())
    }

    #[test]
    fn types_are_assignable_if_their_parts_are() {
        for (a, b, want) in [
            (Type::Int, Type::Int, true),
            (Type::Int, Type::Double, false),
            (Type::Int, Type::Dyn, true),
            (Type::Error, Type::String, true),
            (Type::Null, Type::Struct("s".into()), true),
            (Type::Null, Type::Int, false),
            (Type::list(Type::Dyn), Type::list(Type::Int), true),
            (Type::list(Type::Int), Type::list(Type::String), false),
            (
                Type::optional(Type::Int),
                Type::Opaque("net.IP".into(), vec![]),
                false,
            ),
            (Type::list(param("A")), Type::list(Type::Int), true),
        ] {
            assert_eq!(Bindings::default().assign(&a, &b), want, "{a} and {b}");
        }
    }

    #[test]
    fn a_type_parameter_is_bound_to_one_type() {
        let mut bindings = Bindings::default();
        let two = [param("A"), param("A")];
        assert!(!bindings.assign_all(&[Type::Int, Type::String], &two));
        assert_eq!(bindings.resolved(&param("A"), true), Type::Dyn, "nothing is kept");
        assert!(bindings.assign_all(&[Type::Int, Type::Dyn], &two));
        assert_eq!(bindings.resolved(&param("A"), true), Type::Dyn);
        assert!(bindings.assign(&Type::Int, &param("B")));
        assert_eq!(
            bindings.resolved(&Type::list(param("B")), false),
            Type::list(Type::Int)
        );
        // A type is no part of itself.
        assert!(!bindings.assign(&Type::list(param("C")), &param("C")));
    }
}
