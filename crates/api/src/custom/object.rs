//! A custom resource object: typed metadata like every object's, and the other fields untyped.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::codec::{self, Encoder};
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::rules::Rules;
use crate::any_object::AnyObject;

/// See the module. It carries the rules of the version it was read as.
#[derive(Clone)]
pub struct CustomObject {
    pub metadata: ObjectMeta,
    /// Everything but apiVersion, kind and metadata.
    pub fields: Map<String, Value>,
    /// The version that is encoded as apiVersion: the one it is stored or served in.
    pub(super) shown_as: Arc<Rules>,
    /// The version whose schema validates it: the one of the request.
    pub rules: Arc<Rules>,
}

impl CustomObject {
    /// The whole object, as schemas and paths see it.
    pub fn to_value(&self) -> Value {
        let mut whole = self.fields.clone();
        whole.insert("apiVersion".into(), self.shown_as.api_version().into());
        whole.insert("kind".into(), self.shown_as.kind.as_str().into());
        // Metadata has no map with keys other than strings.
        let metadata = codec::to_value(&self.metadata).unwrap_or_default();
        whole.insert("metadata".into(), metadata);
        Value::Object(whole)
    }

    /// The rules of the version it was read as; server-side apply needs its schema.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }
}

impl fmt::Debug for CustomObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&self.shown_as.kind)
            .field("metadata", &self.metadata)
            .field("fields", &self.fields)
            .finish()
    }
}

impl AnyObject for CustomObject {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
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
        let mut out = encoder.serialize_map(Some(self.fields.len() + 3))?;
        out.serialize_entry("apiVersion", &self.shown_as.api_version())?;
        out.serialize_entry("kind", &self.shown_as.kind)?;
        out.typed_entry("metadata", &self.metadata)?;
        for (name, value) in &self.fields {
            out.serialize_entry(name, value)?;
        }
        out.end()
    }
}
