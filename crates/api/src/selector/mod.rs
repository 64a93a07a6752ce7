//! Which objects are meant: by labels and by fields.

pub mod field;
pub mod label;
mod label_syntax;
