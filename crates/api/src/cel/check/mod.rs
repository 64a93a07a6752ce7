//! Expressions judged before they run: what types their parts are of, and what they can cost.
//!
//! [`check`] says of every part of an expression which type it is of, or what is mistaken and where, in the words of
//! the compiler that Kubernetes uses. Pure: an expression, and an [`Environment`] of what it may speak of.

pub mod cost;
mod declarations;
pub mod declared;
mod environment;
mod infer;
mod literals;
mod types;

pub use declared::Declared;
pub use environment::Environment;
pub use infer::{Checked, Mistake, check};
pub use types::Type;

pub(crate) use infer::qualified_name;

/// Whether there is a function of this name.
pub(crate) fn is_function(name: &str) -> bool {
    declarations::STANDARD.contains_key(name)
}

#[cfg(test)]
mod tests;
