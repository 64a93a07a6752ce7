//! The strategy of a custom kind: its objects are validated by the version of their request.

use std::borrow::Cow;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::AnyObject;
use knarr_api::api_type::{cast, cast_mut};
use knarr_api::custom::path::{self, JsonPath};
use knarr_api::custom::{CustomObject, CustomOps, PrinterColumn};
use knarr_apimachinery::error::Error;
use knarr_apimachinery::field::{self, ErrorList};
use knarr_apimachinery::names;
use knarr_cel::structural::{Additional, Schema};
use serde_json::Value;

use super::{cel, validation};
use crate::strategy::deletion::{self, DeletionPlan, DeletionRequest, KindRules};
use crate::table::{self, ColumnOf};
use crate::{DynStrategy, MetadataChecks, Part};

/// Validates the part of the object that is written.
fn validate_part(object: &CustomObject, old: Option<&CustomObject>, part: Part) -> ErrorList {
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
            detail:
                "some validation rules were not checked because the object was invalid; correct the existing \
                     errors to complete validation"
                    .into(),
        });
    }
    errors
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

impl DynStrategy for CustomOps {
    fn set_defaults(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        CustomOps::set_defaults(self, cast_mut::<CustomObject>(obj)?);
        Ok(())
    }

    fn prepare_for_create(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        let object = cast_mut::<CustomObject>(obj)?;
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
        let (object, old) = (cast_mut::<CustomObject>(obj)?, cast::<CustomObject>(old)?);
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
        Ok(validate_part(cast::<CustomObject>(obj)?, None, Part::Main))
    }

    fn validate_update(
        &self,
        obj: &dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<ErrorList, Error> {
        Ok(validate_part(
            cast::<CustomObject>(obj)?,
            Some(cast::<CustomObject>(old)?),
            part,
        ))
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
        let finalizers = cast::<CustomObject>(obj)?.metadata.finalizers.iter().flatten();
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

    fn columns(&self) -> Cow<'_, [ColumnOf<'_>]> {
        let columns = self.rules().columns.iter().map(definition);
        std::iter::once(table::NAME).chain(columns).collect()
    }

    fn row(&self, obj: &dyn AnyObject, now: Timestamp) -> Result<Vec<table::Cell>, Error> {
        let object = cast::<CustomObject>(obj)?;
        let whole = object.to_value();
        let mut row = vec![table::name(&object.metadata)];
        for column in &self.rules().columns {
            let found = column.path.as_ref().and_then(|p| p.first(&whole));
            row.push(
                found
                    .map(|value| shown(&column.of, value, now))
                    .unwrap_or_default(),
            );
        }
        Ok(row)
    }
}

fn definition(column: &PrinterColumn) -> ColumnOf<'_> {
    ColumnOf {
        name: &column.name,
        of: &column.of,
        format: &column.format,
        priority: column.priority,
        description: &column.description,
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
