//! The [`Ops`] of a custom kind for the request pipeline.

use std::any::TypeId;
use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceSubresourceScale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use super::conversion::Webhook;
use super::object::CustomObject;
use super::path::{self, JsonPath};
use super::schema::{Additional, Schema};
use super::{PrinterColumn, cel, published, shape, validation};
use crate::codec::{self, DecodeError, Decoded, StrictError};
use crate::error::Error;
use crate::field::{self, ErrorList};
use crate::names;
use crate::object::AnyObject;
use crate::strategy::deletion::{self, DeletionPlan, DeletionRequest, KindRules};
use crate::strategy::{MetadataChecks, Ops, Part};
use crate::table::{self, ColumnOf};

/// One version of a definition.
pub struct Rules {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub schema: Schema,
    /// The schema as it was given.
    pub json: Value,
    pub has_status: bool,
    pub scale: Option<CustomResourceSubresourceScale>,
    /// For the `Warning` header of every request, where the version is deprecated.
    pub deprecation: Option<String>,
    /// The conversion webhook, with the conversion strategy Webhook.
    pub webhook: Option<Arc<Webhook>>,
    pub(super) columns: Vec<PrinterColumn>,
    /// Selectable fields, and their paths.
    pub(super) selectable: Vec<(String, JsonPath)>,
}

impl Rules {
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

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
    pub(super) fn read_converted(&self, mut value: Value) -> Result<CustomObject, String> {
        shape::prune(&mut value, &self.rules.schema, true, "", &mut Vec::new());
        let (metadata, fields) = split(value, &mut Vec::new()).map_err(|e| e.to_string())?;
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

    fn defaulted(&self, object: &mut CustomObject) {
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

    /// Validates the part of the object that is written.
    fn validate_part(&self, object: &CustomObject, old: Option<&CustomObject>, part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        let rules = &*object.rules;
        let whole = object.to_value();
        let before = old.map(CustomObject::to_value);
        // The part that is written, its path and its schema.
        let (path, schema) = match part {
            Part::Status => ("status", rules.schema.properties.get("status")),
            _ => ("", Some(&rules.schema)),
        };
        let written = part_of(&whole, part).zip(schema);
        if let Some((value, schema)) = written {
            validation::validate(value, schema, path, &mut errors);
        }
        object.check_scale(part == Part::Status, &mut errors);
        if let Some((value, schema)) = written {
            validation::check_lists(value, schema, path, &mut errors);
        }
        if let Some(before) = &before {
            errors = ratcheted(errors, &whole, before);
        }
        let Some((value, schema)) = written else {
            return errors;
        };
        // Rules rely on the types and sizes of the schema.
        if !errors.iter().any(|e| blocks_rules(e.cause)) {
            let old = before.as_ref().and_then(|before| part_of(before, part));
            cel::validate(value, old, schema, path, &mut errors);
        } else if has_rules(schema) {
            errors.push(field::FieldError {
                cause: field::Cause::Invalid,
                field: "<nil>".into(),
                value: Some("null".into()),
                detail: "some validation rules were not checked because the object was invalid; correct the existing \
                         errors to complete validation"
                    .into(),
            });
        }
        errors
    }
}

/// The part of an object that is written.
fn part_of(whole: &Value, part: Part) -> Option<&Value> {
    match part {
        Part::Status => whole.get("status"),
        _ => Some(whole),
    }
}

fn blocks_rules(cause: field::Cause) -> bool {
    use field::Cause;
    matches!(
        cause,
        Cause::NotSupported | Cause::Required | Cause::TooLong | Cause::TooMany | Cause::TypeInvalid
    )
}

/// Whether a schema, or one nested in it, has rules.
fn has_rules(schema: &Schema) -> bool {
    let values = match &schema.additional {
        Some(Additional::Schema(values)) => Some(values),
        _ => None,
    };
    let parts = values.into_iter().chain(&schema.items).map(|part| &**part);
    !schema.rules.is_empty() || parts.chain(schema.properties.values()).any(has_rules)
}

/// Without the errors of unchanged values, which do not fail an update (ratcheting, KEP-4008).
fn ratcheted(errors: ErrorList, new: &Value, old: &Value) -> ErrorList {
    let mut kept = ErrorList::new();
    for error in errors {
        // A missing field is unchanged if the object that lacks it is.
        let field = match error.cause {
            field::Cause::Required => error.field.rsplit_once('.').map_or("", |(parent, _)| parent),
            _ => error.field.as_str(),
        };
        let path = JsonPath::parse(&format!(".{field}")).filter(|_| !field.is_empty());
        let untouched = path.is_some_and(|path| match (path.first(new), path.first(old)) {
            (Some(new), Some(old)) => new == old,
            _ => false,
        });
        if !untouched {
            kept.push(error);
        }
    }
    kept
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

    fn custom(&self) -> Option<&CustomOps> {
        Some(self)
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
        self.defaulted(&mut object);
        Ok(Decoded {
            object: Box::new(object),
            strict_errors,
        })
    }

    fn set_defaults(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        self.defaulted(custom_mut(obj)?);
        Ok(())
    }

    fn prepare_for_create(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        let object = custom_mut(obj)?;
        if object.rules.has_status {
            object.fields.remove("status");
        }
        object.metadata.generation = Some(1);
        Ok(())
    }

    fn prepare_for_update(
        &self,
        obj: &mut dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<(), Error> {
        let (object, old) = (custom_mut(obj)?, custom(old)?);
        let status = |from: &CustomObject, to: &mut CustomObject| match from.fields.get("status") {
            Some(status) => to.fields.insert("status".into(), status.clone()),
            None => to.fields.remove("status"),
        };
        if part == Part::Status {
            let mut kept = old.clone();
            kept.rules = object.rules.clone();
            kept.metadata.managed_fields = object.metadata.managed_fields.take();
            status(object, &mut kept);
            *object = kept;
            return Ok(());
        }
        if object.rules.has_status {
            status(old, object);
        }
        let before = old.metadata.generation.unwrap_or_default();
        object.metadata.generation = Some(match object.fields == old.fields {
            true => before,
            false => before + 1,
        });
        Ok(())
    }

    fn validate(&self, obj: &dyn AnyObject) -> Result<ErrorList, Error> {
        Ok(self.validate_part(custom(obj)?, None, Part::Main))
    }

    fn validate_update(
        &self,
        obj: &dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<ErrorList, Error> {
        Ok(self.validate_part(custom(obj)?, Some(custom(old)?), part))
    }

    fn checks_metadata(&self) -> bool {
        true
    }

    fn metadata_checks(&self, _: Part) -> MetadataChecks {
        MetadataChecks::UPDATE
    }

    fn standard_finalizers(&self) -> bool {
        false
    }

    fn early_warnings(&self, _: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    fn warnings_on_update(&self, obj: &dyn AnyObject, _: &dyn AnyObject) -> Result<Vec<String>, Error> {
        self.warnings(obj)
    }

    fn warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error> {
        let standard = ["orphan", "foregroundDeletion", "kubernetes"];
        let finalizers = custom(obj)?.metadata.finalizers.iter().flatten();
        let bare = finalizers.filter(|f| !f.contains('/') && !standard.contains(&f.as_str()));
        Ok(bare
            .map(|finalizer| {
                let path = match finalizer.contains('.') {
                    true => "name including a path (/) to avoid",
                    false => "name to avoid",
                };
                format!(
                    "metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer {path} accidental \
                     conflicts with other finalizer writers"
                )
            })
            .collect())
    }

    fn validate_name(&self, name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn create_on_update(&self) -> bool {
        false
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn plan_deletion(
        &self,
        obj: &dyn AnyObject,
        marked: &mut dyn AnyObject,
        request: &DeletionRequest,
    ) -> Result<DeletionPlan, Error> {
        let (meta, marked) = (obj.metadata(), marked.metadata_mut());
        Ok(deletion::plan_metadata(
            meta,
            marked,
            request,
            KindRules::default(),
        ))
    }

    fn completes_deletion(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<bool, Error> {
        Ok(deletion::removes_last_finalizer(obj.metadata(), old.metadata()))
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

    fn columns(&self) -> Cow<'_, [ColumnOf<'_>]> {
        let columns = self.rules.columns.iter().map(PrinterColumn::definition);
        std::iter::once(table::NAME).chain(columns).collect()
    }

    fn row(&self, obj: &dyn AnyObject, now: Timestamp) -> Result<Vec<table::Cell>, Error> {
        let object = custom(obj)?;
        let whole = object.to_value();
        let mut row = vec![table::name(&object.metadata)];
        for column in &self.rules.columns {
            let found = column.path.as_ref().and_then(|p| p.first(&whole));
            row.push(
                found
                    .map(|value| shown(&column.of, value, now))
                    .unwrap_or_default(),
            );
        }
        Ok(row)
    }

    fn schema(&self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        published::schema(&self.rules, generator)
    }
}

/// A value as the cell of a column of this type.
fn shown(of: &str, value: &Value, now: Timestamp) -> table::Cell {
    match of {
        "string" if value.is_null() => Value::Null,
        "string" => path::text(value).into(),
        "integer" => match (value.as_i64(), value.as_f64()) {
            (Some(n), _) => n.into(),
            (None, Some(n)) => (n.trunc() as i64).into(),
            _ => Value::Null,
        },
        "number" => value.as_f64().map(Value::from).unwrap_or_default(),
        "boolean" => value.as_bool().map(Value::from).unwrap_or_default(),
        "date" => match value.as_str().map(str::parse::<Timestamp>) {
            None => Value::Null,
            Some(Err(_)) => "<invalid>".into(),
            Some(Ok(then)) => {
                let passed: SignedDuration = now.duration_since(then);
                table::human_duration(passed.as_secs()).into()
            }
        },
        _ => Value::Null,
    }
}
