//! The three patch forms, on JSON values. What a patch yields is decoded, defaulted and validated like an update.

pub mod json;
pub mod merge;
pub mod strategic;
