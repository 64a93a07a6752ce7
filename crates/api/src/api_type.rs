//! What the rest of this crate knows of a kind's Rust type: how it is decoded and which fields select its objects.
//!
//! [`ApiType`] is implemented once for each kind, in [`kinds`](crate::kinds); [`Ops`] is the same without the Rust type. The rules of kinds
//! (defaults, validation, columns) are above this crate, in `knarr-strategy`.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::codec::{self, DecodeError};
use knarr_apimachinery::error::Error;
use serde::de::DeserializeOwned;

use crate::any_object::{AnyObject, Decoded};

/// The Rust type of a kind.
pub trait ApiType:
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
    /// Marks in a decoded value what its type does not represent: fields that are present although empty.
    fn after_decode(&mut self, _json: &[u8]) {}

    /// Whether an update of the status leaves the object's metadata unchanged, too.
    const STATUS_KEEPS_METADATA: bool = false;

    /// Field selectors beyond `metadata.name` and `metadata.namespace`: label and value here.
    const SELECTABLE_FIELDS: &'static [&'static str] = &[];

    /// Value of one of [`ApiType::SELECTABLE_FIELDS`].
    fn field(&self, _path: &str) -> String {
        String::new()
    }
}

/// An [`ApiType`] without its Rust type. A mismatched type is a bug and answers 500.
pub trait Ops: Send + Sync {
    /// The type of the kind's typed objects.
    fn type_of_objects(&self) -> TypeId;
    fn decode(&self, json: &[u8]) -> Result<Decoded, DecodeError>;
    fn status_keeps_metadata(&self) -> bool;
    fn selectable_fields(&self) -> Cow<'_, [&str]>;
    fn field(&self, obj: &dyn AnyObject, path: &str) -> Result<String, Error>;
    /// Adds the kind's published schema, and all it refers to, to the generator's definitions.
    fn schema(&self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema;
}

/// The [`Ops`] of `T`.
pub struct TypedOps<T>(PhantomData<fn() -> T>);

impl<T> TypedOps<T> {
    pub const fn new() -> Self {
        TypedOps(PhantomData)
    }
}

impl<T> Default for TypedOps<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// An object as its type.
///
/// # Errors
///
/// If it is of another type.
pub fn cast<T: Any>(obj: &dyn AnyObject) -> Result<&T, Error> {
    obj.as_any()
        .downcast_ref()
        .ok_or_else(|| Error::internal(format!("expected a {}", std::any::type_name::<T>())))
}

/// The same, to be changed.
///
/// # Errors
///
/// As [`cast`].
pub fn cast_mut<T: Any>(obj: &mut dyn AnyObject) -> Result<&mut T, Error> {
    obj.as_any_mut()
        .downcast_mut()
        .ok_or_else(|| Error::internal(format!("expected a {}", std::any::type_name::<T>())))
}

impl<T: ApiType + 'static> Ops for TypedOps<T> {
    fn type_of_objects(&self) -> TypeId {
        TypeId::of::<T>()
    }
    fn decode(&self, json: &[u8]) -> Result<Decoded, DecodeError> {
        let (mut object, strict_errors) = codec::decode::<T>(json)?;
        object.after_decode(json);
        Ok(Decoded {
            object: Box::new(object),
            strict_errors,
        })
    }
    fn status_keeps_metadata(&self) -> bool {
        T::STATUS_KEEPS_METADATA
    }
    fn selectable_fields(&self) -> Cow<'_, [&str]> {
        Cow::Borrowed(T::SELECTABLE_FIELDS)
    }
    fn field(&self, obj: &dyn AnyObject, path: &str) -> Result<String, Error> {
        Ok(cast::<T>(obj)?.field(path))
    }
    fn schema(&self, generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        knarr_apimachinery::schema::define::<T>(generator)
    }
}
