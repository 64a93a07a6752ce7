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
mod repeated;
pub(crate) mod time;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::object::AnyObject;
use crate::strategy::Strategy;

pub(crate) use encode::WithNulls;
pub(crate) use go::{is_always_object, is_null_unset};
pub use reader::DEPTH_MAX;
use reader::Reader;
pub(crate) use time::{is_unset, is_unset_micro};

/// A decoded object and what the strict reader would refuse.
#[derive(Debug)]
pub struct Decoded {
    pub object: Box<dyn AnyObject>,
    /// In the order in which Kubernetes tells them: that of the document.
    pub mistakes: Vec<StrictError>,
}

/// What a reader that is not strict passes over, by its path. Shown in Kubernetes' words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrictError {
    /// A field the kind does not have, such as `spec.foo` or `spec.containers[0].imagee`.
    #[error("unknown field {0:?}")]
    Unknown(String),
    /// A key given more than once in one object.
    #[error("duplicate field {0:?}")]
    Twice(String),
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
    let (mut object, mistakes) = read::<T>(json)?;
    object.after_decode(json);
    Ok(Decoded {
        object: Box::new(object),
        mistakes,
    })
}

/// Appends a typed value's JSON as Kubernetes writes it. What serde alone writes of a value that has metadata in it lacks
/// its nulls, and shows `fieldsV1` as the text that it is in a typed value.
///
/// # Errors
///
/// Where the value has a map with keys other than strings: no type of Kubernetes has.
pub fn write<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> serde_json::Result<()> {
    serde_json::to_writer(out, &WithNulls(value))
}

/// The same as a tree.
///
/// # Errors
///
/// As [`write()`].
pub fn to_value<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<serde_json::Value> {
    serde_json::to_value(WithNulls(value))
}

/// Decodes any typed value as [`decode`] does, and also tells its mistakes.
pub fn read<T: DeserializeOwned>(json: &[u8]) -> Result<(T, Vec<StrictError>), DecodeError> {
    let mut reader = Reader::new(json);
    let value = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        // What is given twice adds up where it is an object, as in Go; so it is read again, put together.
        Ok(_) if reader.mistakes.iter().any(|m| matches!(m, StrictError::Twice(_))) => {
            let merged = repeated::merged(json);
            let value =
                T::deserialize(&mut Reader::new(&merged)).map_err(reader::Error::into_decode_error)?;
            Ok((value, reader.mistakes))
        }
        Ok(value) => Ok((value, reader.mistakes)),
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
