//! JSON to typed objects, strictly: what is unknown or given twice is told, not lost silently.
//!
//! One pass over the bytes with our own reader, because three things must be known that serde's readers do not
//! tell: the path of every mistake, with Kubernetes' words for it; keys given twice; and zero values that
//! Kubernetes drops (`hostNetwork: false` is the same as nothing, `allowPrivilegeEscalation: false` is not).
//! Quantities and times come out in the form in which Kubernetes stores them.
//!
//! Nothing that comes from outside makes it panic; nesting is bounded by [`DEPTH_MAX`].

mod deserializer;
mod encode;
mod go;
mod reader;
mod time;

use serde::de::DeserializeOwned;

use crate::object::AnyObject;
use crate::strategy::Strategy;

pub(crate) use encode::WithNulls;
pub(crate) use go::{is_always_object, is_null_unset};
pub use reader::DEPTH_MAX;
use reader::Reader;

/// A decoded object and what the strict reader would refuse.
#[derive(Debug)]
pub struct Decoded {
    pub object: Box<dyn AnyObject>,
    /// Paths of fields the kind does not have, such as `spec.foo` or `spec.containers[0].imagee`.
    pub unknown_fields: Vec<String>,
    /// Paths of keys given more than once in one object.
    pub duplicate_fields: Vec<String>,
}

/// Why a document is not an object of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// In Kubernetes' words as far as they can be known, such as
    /// `json: cannot unmarshal string into Go struct field Container.spec.containers.ports of type int32`.
    pub message: String,
    /// The path of the offending value, empty where the document is no JSON at all.
    pub field: String,
}

/// Decodes one object. `null` counts as absent.
pub fn decode<T: Strategy + 'static>(json: &[u8]) -> Result<Decoded, DecodeError> {
    let (object, unknown_fields, duplicate_fields) = read::<T>(json)?;
    Ok(Decoded {
        object: Box::new(object),
        unknown_fields,
        duplicate_fields,
    })
}

/// Decodes any typed value as [`decode`] does, and also tells its unknown fields and those given twice.
pub fn read<T: DeserializeOwned>(json: &[u8]) -> Result<(T, Vec<String>, Vec<String>), DecodeError> {
    let mut reader = Reader::new(json);
    let value = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(value) => Ok((value, reader.unknown_fields, reader.duplicate_fields)),
        // What is no JSON is told first, wherever in the document it is.
        Err(error) => {
            let mut whole = Reader::new(json);
            match whole.skip().and_then(|()| whole.end()) {
                Ok(()) => Err(error.into_decode_error()),
                Err(broken) => Err(broken.into_decode_error()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
