//! An object of a custom kind: metadata typed like everybody's, the rest as it came.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::ops::Rules;
use crate::codec::WithNulls;
use crate::managed_fields::{Found, Walk};
use crate::object::AnyObject;

/// See the module. It carries the rules of the version it was read as.
#[derive(Clone)]
pub struct CustomObject {
    pub metadata: ObjectMeta,
    /// Everything but apiVersion, kind and metadata.
    pub fields: Map<String, Value>,
    /// What is written as apiVersion: the version it is stored or shown in.
    pub(super) shown_as: Arc<Rules>,
    /// Whose schema it is judged by: the version it came in.
    pub(super) rules: Arc<Rules>,
}

impl CustomObject {
    /// The whole object, as schemas and paths see it.
    pub fn to_value(&self) -> Value {
        let mut whole = self.fields.clone();
        whole.insert("apiVersion".into(), self.shown_as.api_version().into());
        whole.insert("kind".into(), self.shown_as.kind.as_str().into());
        // Metadata has no map with keys other than strings.
        let metadata = serde_json::to_value(WithNulls(&self.metadata)).unwrap_or_default();
        whole.insert("metadata".into(), metadata);
        Value::Object(whole)
    }

    /// Everything that its version's schema describes: the object's own fields, as server-side apply needs them.
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
    fn encode_into(&self, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail, and all keys are strings.
        if let Err(e) = serde_json::to_writer(out, self) {
            unreachable!("a JSON object always encodes: {e}");
        }
    }
    fn walk(&self, walk: Walk<'_, '_>) -> serde_json::Result<Found> {
        self.serialize(walk)
    }
}

impl Serialize for CustomObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(Some(self.fields.len() + 3))?;
        out.serialize_entry("apiVersion", &self.shown_as.api_version())?;
        out.serialize_entry("kind", &self.shown_as.kind)?;
        out.serialize_entry("metadata", &WithNulls(&self.metadata))?;
        for (name, value) in &self.fields {
            out.serialize_entry(name, value)?;
        }
        out.end()
    }
}
