//! The three patch types, on JSON values. The result of a patch is decoded, defaulted and validated like an update.
//!
//! All of them work in time about linear in document and patch, and none makes a document deeper than
//! [`MAX_DEPTH`], whatever the patch.

pub mod conversion;
mod go;
pub mod json;
pub mod merge;
pub mod strategic;

use serde_json::Value;

use knarr_apimachinery::error::Error;

pub use go::go_value;
pub(crate) use go::{go_syntax, go_type};

/// How deep objects and lists may nest: what `serde_json` reads back.
pub const MAX_DEPTH: usize = 127;

/// How deep `value` is: 0 for a scalar. Stops counting past [`MAX_DEPTH`].
fn depth(value: &Value) -> usize {
    fn below(value: &Value, left: usize) -> usize {
        if left == 0 {
            return 0;
        }
        match value {
            Value::Object(map) => 1 + map.values().map(|v| below(v, left - 1)).max().unwrap_or(0),
            Value::Array(list) => 1 + list.iter().map(|v| below(v, left - 1)).max().unwrap_or(0),
            _ => 0,
        }
    }
    below(value, MAX_DEPTH + 1)
}

/// 422 as Kubernetes answers a patch that parses and cannot be applied, without the reason.
fn cannot_apply() -> Error {
    let mut error = Error::new(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
    );
    error.status_mut().details = Some(Default::default());
    error
}
