//! The rules of custom resources and of their definitions.

pub mod cel;
pub mod definition;
mod field_path;
mod strategy;
pub mod validation;

#[cfg(test)]
mod tests;
