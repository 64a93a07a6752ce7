//! The [`Ops`] of a custom kind.

use std::any::TypeId;
use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::codec::{self, DecodeError, StrictError};
use knarr_apimachinery::error::Error;
use knarr_cel::structural::Schema;
use serde_json::{Map, Value};

use super::object::CustomObject;
use super::rules::Rules;
use super::{path, published, shape};
use crate::any_object::{AnyObject, Decoded};
use crate::api_type::Ops;

/// The [`Ops`] of a custom kind. Objects share its rules, and keep them when the definition has been changed.
pub struct CustomOps {
    rules: Arc<Rules>,
}

fn custom(obj: &dyn AnyObject) -> Result<&CustomObject, Error> {
    obj.as_any()
        .downcast_ref()
        .ok_or_else(|| Error::internal("expected an object of a custom kind"))
}

fn custom_mut(obj: &mut dyn AnyObject) -> Result<&mut CustomObject, Error> {
    obj.as_any_mut()
        .downcast_mut()
        .ok_or_else(|| Error::internal("expected an object of a custom kind"))
}

impl CustomOps {
    pub(super) fn new(rules: Rules) -> Self {
        CustomOps {
            rules: Arc::new(rules),
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether the object is as this version writes it: it was not read, or adopted, by another version, nor before the
    /// definition was changed.
    pub fn is_own(&self, object: &dyn AnyObject) -> bool {
        custom(object).is_ok_and(|object| Arc::ptr_eq(&object.shown_as, &self.rules))
    }

    /// An object of any version of this kind, served as this version. It is still validated by the version it was read as.
    pub fn adopt(&self, mut object: CustomObject) -> CustomObject {
        object.shown_as = self.rules.clone();
        let mut whole = Value::Object(std::mem::take(&mut object.fields));
        shape::prune(&mut whole, &self.rules.schema, true, "", &mut Vec::new());
        if let Value::Object(fields) = whole {
            object.fields = fields;
        }
        object
    }

    /// An object that a conversion webhook returned, as this version: pruned, but not defaulted.
    pub(super) fn read_converted(&self, mut value: Value) -> Result<CustomObject, DecodeError> {
        shape::prune(&mut value, &self.rules.schema, true, "", &mut Vec::new());
        let (metadata, fields) = split(value, &mut Vec::new())?;
        Ok(CustomObject {
            metadata,
            fields,
            shown_as: self.rules.clone(),
            rules: self.rules.clone(),
        })
    }

    /// Fills in the defaults of this version, in whichever version the object was read.
    ///
    /// # Errors
    ///
    /// If it is not a custom resource object.
    pub fn set_defaults_of_version(&self, object: &mut dyn AnyObject) -> Result<(), Error> {
        let rules = self.rules.clone();
        Self::defaulted_by(custom_mut(object)?, &rules.schema);
        Ok(())
    }

    /// Fills in the defaults of the version in which the object was read.
    pub fn set_defaults(&self, object: &mut CustomObject) {
        let rules = object.rules.clone();
        Self::defaulted_by(object, &rules.schema);
    }

    fn defaulted_by(object: &mut CustomObject, schema: &Schema) {
        let mut whole = Value::Object(std::mem::take(&mut object.fields));
        shape::default(&mut whole, schema);
        if let Value::Object(mut fields) = whole {
            // The schema does not default these.
            for name in ["apiVersion", "kind", "metadata"] {
                fields.remove(name);
            }
            object.fields = fields;
        }
    }
}

/// The metadata, and the other fields without apiVersion and kind.
fn split(value: Value, strict: &mut Vec<String>) -> Result<(ObjectMeta, Map<String, Value>), DecodeError> {
    let Value::Object(mut fields) = value else {
        return Err(DecodeError {
            message: "json: cannot unmarshal into Go value of type map[string]interface {}".into(),
            field: String::new(),
            is_base64: false,
        });
    };
    fields.remove("apiVersion");
    fields.remove("kind");
    let metadata = match fields.remove("metadata") {
        None | Some(Value::Null) => ObjectMeta::default(),
        Some(metadata) => {
            let json = serde_json::to_vec(&metadata).map_err(|e| DecodeError {
                message: e.to_string(),
                field: "metadata".into(),
                is_base64: false,
            })?;
            let (read, strict_errors) = codec::read::<ObjectMeta>(&json)?;
            strict.extend(strict_errors.into_iter().filter_map(|error| match error {
                StrictError::UnknownField(field) => Some(format!("metadata.{field}")),
                // Reported by the reader of the whole document.
                StrictError::DuplicateField(_) => None,
            }));
            read
        }
    };
    Ok((metadata, fields))
}

impl Ops for CustomOps {
    fn type_of_objects(&self) -> TypeId {
        TypeId::of::<CustomObject>()
    }

    fn decode(&self, json: &[u8]) -> Result<Decoded, DecodeError> {
        let (value, mut strict_errors) = codec::read::<Value>(json)?;
        let mut unknown_fields = Vec::new();
        let (metadata, fields) = split(value, &mut unknown_fields)?;
        let mut whole = Value::Object(fields);
        shape::prune(&mut whole, &self.rules.schema, true, "", &mut unknown_fields);
        strict_errors.extend(unknown_fields.into_iter().map(StrictError::UnknownField));
        let fields = match whole {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let mut object = CustomObject {
            metadata,
            fields,
            shown_as: self.rules.clone(),
            rules: self.rules.clone(),
        };
        // Also objects from the store: defaults that a definition got later apply to older objects.
        self.set_defaults(&mut object);
        Ok(Decoded {
            object: Box::new(object),
            strict_errors,
        })
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn selectable_fields(&self) -> Cow<'_, [&str]> {
        let names = self.rules.selectable.iter().map(|(name, _)| name.as_str());
        Cow::Owned(names.collect())
    }

    fn field(&self, obj: &dyn AnyObject, path: &str) -> Result<String, Error> {
        let object = custom(obj)?;
        let mut selectable = self.rules.selectable.iter();
        let Some((_, at)) = selectable.find(|(name, _)| *name == path) else {
            return Ok(String::new());
        };
        Ok(at.first(&object.to_value()).map(path::text).unwrap_or_default())
    }

    fn schema(&self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        published::schema(&self.rules, generator)
    }
}
