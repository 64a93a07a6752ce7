//! What a check finds: the types of an expression's parts, or errors.

use std::collections::HashMap;

use cel::common::ast::IdedExpr;

use super::types::Type;

/// A type error in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeError {
    /// The id of the part of the expression that it is in.
    pub id: u64,
    pub what: String,
}

/// An expression whose types are known.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub(super) types: HashMap<u64, Type>,
    pub(super) overloads: HashMap<u64, Vec<&'static str>>,
    /// Selections that are qualified names, such as `google.protobuf.Duration`.
    pub(super) qualified: HashMap<u64, String>,
    /// Calls of functions whose names contain dots: their receiver is a part of the name, not a value.
    pub(super) namespaced: HashMap<u64, String>,
    pub(super) output: Option<Type>,
}

impl Checked {
    /// The type of the expression's result.
    pub fn output(&self) -> &Type {
        self.output.as_ref().unwrap_or(&Type::Error)
    }

    pub fn type_of(&self, part: &IdedExpr) -> &Type {
        self.types.get(&part.id).unwrap_or(&Type::Error)
    }

    /// The overloads that a call can resolve to.
    pub fn overloads(&self, call: &IdedExpr) -> &[&'static str] {
        self.overloads.get(&call.id).map_or(&[], Vec::as_slice)
    }

    pub fn qualified(&self, part: &IdedExpr) -> Option<&str> {
        self.qualified.get(&part.id).map(String::as_str)
    }

    /// The qualified name of a function whose call has the form of a member call.
    pub fn namespaced(&self, call: &IdedExpr) -> Option<&str> {
        self.namespaced.get(&call.id).map(String::as_str)
    }
}
