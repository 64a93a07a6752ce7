//! The rules of one kind, in Kubernetes' word for them: a strategy says how an object is defaulted,
//! made ready to be written, validated, selected and shown.
//!
//! [`Strategy`] is implemented once for each kind, in the kind's own file; [`Ops`] is the same without the
//! Rust type, for the request pipeline. Every method has the answer that fits most kinds.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;

use crate::codec::{self, DecodeError, Decoded};
use crate::error::Error;
use crate::field;
use crate::object::AnyObject;
use crate::table::{Cell, Column, ColumnOf};

/// What an update is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object itself: status is kept as it was (for kinds with a status subresource).
    Main,
    /// The status subresource: everything but status is kept as it was.
    Status,
    /// Another subresource that writes into the object (`resize`, `ephemeralcontainers`, `approval`, `finalize` …).
    Other(&'static str),
}

/// How an object asks to be deleted (SPEC T1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// At once, unless finalizers hold it.
    Immediate,
    /// It stays, marked, for this many seconds (more than 0) or until its owner says it has ended.
    Graceful { grace_seconds: i64 },
}

/// How often a kind's own rules check `metadata` in an update, beside what is checked for every kind (`rest.BeforeUpdate`).
///
/// The same mistake stands once in `details.causes` for each check that finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataChecks {
    /// All that a new object's metadata must be (`ValidateObjectMeta`).
    pub whole: usize,
    /// What may not change, and what labels, annotations and the like must look like (`ValidateObjectMetaUpdate`).
    pub changes: usize,
}

impl MetadataChecks {
    pub const NONE: Self = MetadataChecks { whole: 0, changes: 0 };
    pub const WHOLE: Self = MetadataChecks { whole: 1, changes: 0 };
    pub const CHANGES: Self = MetadataChecks { whole: 0, changes: 1 };
    pub const BOTH: Self = MetadataChecks { whole: 1, changes: 1 };
}

/// Puts back what a writer of status may not change; who manages which field has been worked out before, and stays.
pub(crate) fn keep_metadata(new: &mut ObjectMeta, old: &ObjectMeta) {
    let kept = old.clone();
    new.deletion_timestamp = kept.deletion_timestamp;
    new.generation = kept.generation;
    new.labels = kept.labels;
    new.annotations = kept.annotations;
    new.finalizers = kept.finalizers;
    new.owner_references = kept.owner_references;
}

/// The rules of a kind. See the module.
pub trait Strategy:
    k8s_openapi::Metadata<Ty = ObjectMeta>
    + serde::Serialize
    + DeserializeOwned
    + Clone
    + std::fmt::Debug
    + Send
    + Sync
    + Default
    + schemars::JsonSchema
{
    /// Fills in what the user left out, as v1.36 does (`zz_generated.defaults.go` and its callees). Idempotent.
    fn set_defaults(&mut self) {}

    /// Marks in a value just decoded what its type cannot tell: what was given although it is empty.
    fn after_decode(&mut self, _json: &[u8]) {}

    /// Before a create: drop what users may not set (status), set `metadata.generation` where the kind counts it.
    fn prepare_for_create(&mut self) {}

    /// Before an update of `part`: keep what this part may not change, count up generation on a change of spec.
    fn prepare_for_update(&mut self, _old: &Self, _part: Part) {}

    /// Mistakes in a new object (its metadata has been checked by the pipeline).
    fn validate(&self) -> field::Errors {
        field::Errors::new()
    }

    /// Mistakes in an update of `part`: immutable fields, and whatever [`Strategy::validate`] would say.
    fn validate_update(&self, _old: &Self, _part: Part) -> field::Errors {
        self.validate()
    }

    /// Warnings for the client's `Warning` header, on create.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The same on an update of all but the status.
    fn warnings_on_update(&self, _old: &Self) -> Vec<String> {
        self.warnings()
    }

    /// Warnings about a new object that are told even if it is then refused.
    fn early_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// How a name of this kind must look; the mistakes' words, none if fine.
    fn validate_name(name: &str) -> Vec<String> {
        crate::names::dns1123_subdomain(name)
    }

    /// Whether an update may create the object (`PUT` to a name that is not there).
    const CREATE_ON_UPDATE: bool = false;

    /// Whether an update without resourceVersion is unconditional.
    const UNCONDITIONAL_UPDATE: bool = true;

    /// Whether dependents are orphaned when a client names no propagation policy.
    const ORPHANS_BY_DEFAULT: bool = false;

    /// Whether the object's metadata, too, stay as they were when its status is written.
    const STATUS_KEEPS_METADATA: bool = false;

    /// Whether the kind's own rules check a new object's metadata. Where they do not, only what holds for every kind is
    /// checked, and only if they found nothing else.
    const CHECKS_METADATA: bool = true;

    /// What the kind's own rules check of metadata in an update of `part`.
    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::CHANGES
    }

    /// Whether a finalizer without a domain must be one of Kubernetes' own (the kinds whose rules are those of
    /// `core/validation`).
    const STANDARD_FINALIZERS: bool = true;

    /// The deletion that `requested_grace_seconds` comes to.
    fn deletion(&self, _requested_grace_seconds: Option<i64>) -> Deletion {
        Deletion::Immediate
    }

    /// Field selectors beyond `metadata.name` and `metadata.namespace`: label and value here.
    const SELECTABLE_FIELDS: &'static [&'static str] = &[];

    /// Value of one of [`Strategy::SELECTABLE_FIELDS`].
    fn field(&self, _path: &str) -> String {
        String::new()
    }

    /// The columns of `kubectl get`, with Kubernetes' names, types, formats and priorities.
    fn columns() -> &'static [Column] {
        crate::table::NAME_AND_CREATED_AT
    }

    /// One row, a cell for each of [`Strategy::columns`].
    fn row(&self, _now: Timestamp) -> Vec<Cell> {
        crate::table::name_and_created_at(k8s_openapi::Metadata::metadata(self))
    }
}

/// A [`Strategy`] without its Rust type. The pipeline calls these; a mismatched type is a bug and answers 500.
pub trait Ops: Send + Sync {
    /// The type of the kind's typed objects.
    fn type_of_objects(&self) -> TypeId;
    fn decode(&self, json: &[u8]) -> Result<Decoded, DecodeError>;
    fn set_defaults(&self, obj: &mut dyn AnyObject) -> Result<(), Error>;
    fn prepare_for_create(&self, obj: &mut dyn AnyObject) -> Result<(), Error>;
    fn prepare_for_update(
        &self,
        obj: &mut dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<(), Error>;
    fn validate(&self, obj: &dyn AnyObject) -> Result<field::Errors, Error>;
    fn validate_update(
        &self,
        obj: &dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<field::Errors, Error>;
    fn warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error>;
    fn warnings_on_update(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<Vec<String>, Error>;
    fn early_warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error>;
    fn validate_name(&self, name: &str) -> Vec<String>;
    fn create_on_update(&self) -> bool;
    fn unconditional_update(&self) -> bool;
    fn orphans_by_default(&self) -> bool;
    fn status_keeps_metadata(&self) -> bool;
    fn checks_metadata(&self) -> bool;
    fn metadata_checks(&self, part: Part) -> MetadataChecks;
    fn standard_finalizers(&self) -> bool;
    fn deletion(&self, obj: &dyn AnyObject, requested_grace_seconds: Option<i64>) -> Result<Deletion, Error>;
    fn selectable_fields(&self) -> Cow<'_, [&str]>;
    fn field(&self, obj: &dyn AnyObject, path: &str) -> Result<String, Error>;
    fn columns(&self) -> Cow<'_, [ColumnOf<'_>]>;
    fn row(&self, obj: &dyn AnyObject, now: Timestamp) -> Result<Vec<Cell>, Error>;
    /// Adds the kind's published schema, and all it refers to, to the generator's definitions.
    fn schema(&self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema;
    /// The rules of a kind that users brought; `None` for the built-in ones.
    fn custom(&self) -> Option<&crate::custom::CustomOps> {
        None
    }
}

/// The [`Ops`] of `T`.
pub struct Of<T>(PhantomData<fn() -> T>);

impl<T> Of<T> {
    pub const fn new() -> Self {
        Of(PhantomData)
    }
}

impl<T> Default for Of<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn cast<T: Any>(obj: &dyn AnyObject) -> Result<&T, Error> {
    obj.as_any()
        .downcast_ref()
        .ok_or_else(|| Error::internal(format!("expected a {}", std::any::type_name::<T>())))
}

fn cast_mut<T: Any>(obj: &mut dyn AnyObject) -> Result<&mut T, Error> {
    obj.as_any_mut()
        .downcast_mut()
        .ok_or_else(|| Error::internal(format!("expected a {}", std::any::type_name::<T>())))
}

impl<T: Strategy + 'static> Ops for Of<T> {
    fn type_of_objects(&self) -> TypeId {
        TypeId::of::<T>()
    }
    fn decode(&self, json: &[u8]) -> Result<Decoded, DecodeError> {
        codec::decode::<T>(json)
    }
    fn set_defaults(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        cast_mut::<T>(obj)?.set_defaults();
        Ok(())
    }
    fn prepare_for_create(&self, obj: &mut dyn AnyObject) -> Result<(), Error> {
        cast_mut::<T>(obj)?.prepare_for_create();
        Ok(())
    }
    fn prepare_for_update(
        &self,
        obj: &mut dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<(), Error> {
        let (new, old) = (cast_mut::<T>(obj)?, cast::<T>(old)?);
        new.prepare_for_update(old, part);
        if T::STATUS_KEEPS_METADATA && part == Part::Status {
            keep_metadata(new.metadata_mut(), old.metadata());
        }
        Ok(())
    }
    fn validate(&self, obj: &dyn AnyObject) -> Result<field::Errors, Error> {
        Ok(cast::<T>(obj)?.validate())
    }
    fn validate_update(
        &self,
        obj: &dyn AnyObject,
        old: &dyn AnyObject,
        part: Part,
    ) -> Result<field::Errors, Error> {
        Ok(cast::<T>(obj)?.validate_update(cast(old)?, part))
    }
    fn warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(cast::<T>(obj)?.warnings())
    }
    fn warnings_on_update(&self, obj: &dyn AnyObject, old: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(cast::<T>(obj)?.warnings_on_update(cast(old)?))
    }
    fn early_warnings(&self, obj: &dyn AnyObject) -> Result<Vec<String>, Error> {
        Ok(cast::<T>(obj)?.early_warnings())
    }
    fn validate_name(&self, name: &str) -> Vec<String> {
        T::validate_name(name)
    }
    fn create_on_update(&self) -> bool {
        T::CREATE_ON_UPDATE
    }
    fn unconditional_update(&self) -> bool {
        T::UNCONDITIONAL_UPDATE
    }
    fn orphans_by_default(&self) -> bool {
        T::ORPHANS_BY_DEFAULT
    }
    fn status_keeps_metadata(&self) -> bool {
        T::STATUS_KEEPS_METADATA
    }
    fn checks_metadata(&self) -> bool {
        T::CHECKS_METADATA
    }
    fn metadata_checks(&self, part: Part) -> MetadataChecks {
        T::metadata_checks(part)
    }
    fn standard_finalizers(&self) -> bool {
        T::STANDARD_FINALIZERS
    }
    fn deletion(&self, obj: &dyn AnyObject, requested_grace_seconds: Option<i64>) -> Result<Deletion, Error> {
        Ok(cast::<T>(obj)?.deletion(requested_grace_seconds))
    }
    fn selectable_fields(&self) -> Cow<'_, [&str]> {
        Cow::Borrowed(T::SELECTABLE_FIELDS)
    }
    fn field(&self, obj: &dyn AnyObject, path: &str) -> Result<String, Error> {
        Ok(cast::<T>(obj)?.field(path))
    }
    fn columns(&self) -> Cow<'_, [ColumnOf<'_>]> {
        Cow::Borrowed(T::columns())
    }
    fn row(&self, obj: &dyn AnyObject, now: Timestamp) -> Result<Vec<Cell>, Error> {
        Ok(cast::<T>(obj)?.row(now))
    }
    fn schema(&self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::schema::define::<T>(generator)
    }
}
