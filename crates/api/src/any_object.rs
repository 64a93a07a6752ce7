//! A typed object without its static type, which every kind's objects are.

use std::any::Any;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::codec::{StrictError, WithNulls};
use serde::Serialize;

use crate::managed_fields::{FieldSetSerializer, Ownership};

/// A typed value without its static type. Implemented for every `k8s-openapi` kind.
pub trait AnyObject: Any + Send + Sync + fmt::Debug {
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn clone_box(&self) -> Box<dyn AnyObject>;
    /// Appends the JSON encoding: apiVersion and kind, then the fields in alphabetical order.
    fn encode_into(&self, out: &mut Vec<u8>);
    /// Writes the set of the fields that the object has, as [`AnyObject::encode_into`] would write them.
    ///
    /// # Errors
    ///
    /// If its type does not serialize as Kubernetes' types do.
    fn serialize_fields(&self, serializer: FieldSetSerializer<'_, '_>) -> serde_json::Result<Ownership>;
}

impl<T> AnyObject for T
where
    T: k8s_openapi::Metadata<Ty = ObjectMeta> + serde::Serialize + Clone + fmt::Debug + Send + Sync + 'static,
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
    fn encode_into(&self, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail, and k8s-openapi's types have no map with keys other than strings.
        if let Err(e) = serde_json::to_writer(out, &with_nulls(self)) {
            unreachable!("a typed object always encodes: {e}");
        }
    }
    fn serialize_fields(&self, serializer: FieldSetSerializer<'_, '_>) -> serde_json::Result<Ownership> {
        with_nulls(self).serialize(serializer)
    }
}

/// A decoded object, and the errors of strict decoding.
#[derive(Debug)]
pub struct Decoded {
    pub object: Box<dyn AnyObject>,
    /// In the order in which Kubernetes reports them: that of the document.
    pub strict_errors: Vec<StrictError>,
}

fn with_nulls<T: k8s_openapi::Resource>(object: &T) -> WithNulls<'_, T> {
    WithNulls::of_kind(object, T::API_VERSION, T::KIND)
}
