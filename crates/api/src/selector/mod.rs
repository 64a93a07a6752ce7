//! Selectors of objects: by labels and by fields.

pub mod field;
pub mod label;
mod label_syntax;
