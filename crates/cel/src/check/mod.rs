//! Checks of expressions before they run: the types of their parts, and their estimated cost.
//!
//! [`check`] finds the type of every part of an expression, or the errors with their positions, worded as by
//! cel-go's compiler. Pure: an expression and its [`Environment`].

mod checked;
pub mod cost;
mod declarations;
pub mod declared;
mod environment;
mod functions;
mod infer;
mod literals;
mod types;

pub use checked::{Checked, TypeError};
pub use declared::Declared;
pub use environment::Environment;
pub use infer::check;
pub use types::Type;

pub(crate) use infer::qualified_name;

/// Whether there is a function of this name.
pub(crate) fn is_function(name: &str) -> bool {
    declarations::STANDARD.contains_key(name)
}

#[cfg(test)]
mod tests;
