//! A typed object without its static type, which every kind's objects are.

use std::any::Any;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::codec::{Encoder, StrictError};

/// A typed value without its static type. Implemented for every `k8s-openapi` kind.
pub trait AnyObject: Any + Send + Sync {
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn clone_box(&self) -> Box<dyn AnyObject>;
    /// Serializes the object with its apiVersion and kind. The encoder is the same for JSON and for all else: the code for a type, and for
    /// all types in it, is compiled once.
    ///
    /// # Errors
    ///
    /// If its type does not serialize as Kubernetes' types do.
    fn encode(&self, encoder: Encoder<'_>) -> serde_json::Result<()>;
    /// Appends the JSON encoding: apiVersion and kind, then the fields in alphabetical order.
    fn encode_into(&self, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail, and k8s-openapi's types have no map with keys other than strings.
        if let Err(e) = self.encode(Encoder::new(out)) {
            unreachable!("a typed object always encodes: {e}");
        }
    }
}

impl<T> AnyObject for T
where
    T: k8s_openapi::Metadata<Ty = ObjectMeta> + serde::Serialize + Clone + Send + Sync + 'static,
{
    fn metadata(&self) -> &ObjectMeta {
        k8s_openapi::Metadata::metadata(self)
    }
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        k8s_openapi::Metadata::metadata_mut(self)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn clone_box(&self) -> Box<dyn AnyObject> {
        Box::new(self.clone())
    }
    fn encode(&self, encoder: Encoder<'_>) -> serde_json::Result<()> {
        self.serialize(encoder.of_kind(T::API_VERSION, T::KIND))
    }
}

/// As JSON: the derived `Debug` of all types of Kubernetes would be compiled for it.
impl fmt::Debug for dyn AnyObject + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut json = Vec::new();
        self.encode_into(&mut json);
        f.write_str(&String::from_utf8_lossy(&json))
    }
}

/// A decoded object, and the errors of strict decoding.
#[derive(Debug)]
pub struct Decoded {
    pub object: Box<dyn AnyObject>,
    /// In the order in which Kubernetes reports them: that of the document.
    pub strict_errors: Vec<StrictError>,
}
