//! JSON to typed objects, strictly: unknown and duplicate fields are reported, not lost silently.
//!
//! One pass over the bytes with our own reader, because three things must be known that serde's readers do not
//! provide: the path of every error, with Kubernetes' message; duplicate keys; and zero values that
//! Kubernetes drops (`hostNetwork: false` is the same as nothing, `allowPrivilegeEscalation: false` is not).
//! Quantities and times come out in the form in which Kubernetes stores them.
//!
//! No input makes it panic; nesting is bounded by [`DEPTH_MAX`].

mod access;
mod deserializer;
mod encode;
mod go;
mod reader;
mod repeated;
mod text;
pub mod time;
mod value;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::descriptors::Place;

pub use encode::{Encoder, WithNulls, to_plain_value, to_value, untyped, write, write_plain};
pub use reader::DEPTH_MAX;
use reader::Reader;
pub use time::{is_unset, is_unset_micro};
pub use value::{Scalar, UntypedValue, ValueVisitor, tree};

/// An error of strict decoding, which other decoding ignores, with the path of the field. Displayed as Kubernetes words it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrictError {
    /// A field the kind does not have, such as `spec.foo` or `spec.containers[0].imagee`.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// A key that an object has more than once.
    #[error("duplicate field {0:?}")]
    DuplicateField(String),
}

/// Why a document is not an object of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// Kubernetes' message where it is known, such as
    /// `json: cannot unmarshal string into Go struct field Container.spec.containers.ports of type int32`.
    pub message: String,
    /// The path of the invalid value, empty where the document is not JSON.
    pub field: String,
    /// Whether the value is a text that is not base64.
    pub is_base64: bool,
}

/// Decodes one object with its strict errors, in the order in which Kubernetes reports them: that of the document. `null` counts
/// as absent.
pub fn decode<T: DeserializeOwned + JsonSchema>(json: &[u8]) -> Result<(T, Vec<StrictError>), DecodeError> {
    read_at(json, Place::of::<T>())
}

/// A value's JSON as serde has it: without the nulls that Kubernetes writes.
///
/// # Errors
///
/// As [`write()`].
pub fn to_plain_string<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    let mut json = Vec::new();
    write_plain(value, &mut json)?;
    String::from_utf8(json).map_err(serde::ser::Error::custom)
}

/// Decodes any typed value as [`decode`] does, with its strict errors.
pub fn read<T: DeserializeOwned>(json: &[u8]) -> Result<(T, Vec<StrictError>), DecodeError> {
    read_at(json, Place::Unknown)
}

fn read_at<T: DeserializeOwned>(json: &[u8], place: Place) -> Result<(T, Vec<StrictError>), DecodeError> {
    let mut reader = Reader::new(json, place);
    let value = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        // Go merges duplicate keys whose values are objects; so the merged document is read again.
        Ok(_)
            if reader
                .strict_errors
                .iter()
                .any(|m| matches!(m, StrictError::DuplicateField(_))) =>
        {
            let merged = repeated::merged(json);
            let value =
                T::deserialize(&mut Reader::new(&merged, place)).map_err(reader::Error::into_decode_error)?;
            Ok((value, reader.strict_errors))
        }
        Ok(value) => Ok((value, reader.strict_errors)),
        // A syntax error is reported first, wherever in the document it is.
        Err(error) => {
            let mut whole = Reader::new(json, place);
            match whole.skip().and_then(|()| whole.end()) {
                Ok(()) => Err(error.into_decode_error()),
                Err(broken) => Err(broken.into_decode_error()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
