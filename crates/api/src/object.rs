//! An object in one process: parsed once, encoded once, shared by all readers.
//!
//! A typed value takes several times the memory of its encoding (a `Volume` alone has 3 KB, whatever is in it). Caches
//! keep objects that are no longer read as [slim](Object::slim) objects: the encoding, the names and the selectable
//! fields; the metadata and the typed value are decoded again when they are needed.

use std::any::TypeId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::error::Error;
use serde::Deserialize;
use serde::de::value::MapDeserializer;
use serde_json::value::RawValue;

use crate::any_object::AnyObject;
use crate::kind::Kind;

/// The beginning of every encoded object.
const API_VERSION: &[u8] = br#"{"apiVersion":""#;
/// What follows the apiVersion, and what follows the kind.
const KIND: &[u8] = br#"","kind":""#;
const KIND_END: &[u8] = br#"","#;
/// The beginning of the metadata.
const METADATA: &[u8] = br#""metadata":{"#;

/// The length of an encoded object's apiVersion and kind, with what surrounds them: up to the first other member.
fn type_len(kind: &Kind) -> usize {
    let group = match kind.group() {
        "" => 0,
        group => group.len() + 1,
    };
    API_VERSION.len() + group + kind.version().len() + KIND.len() + kind.kind().len() + KIND_END.len()
}

/// The rest of an encoded object after its apiVersion and kind, if it begins with these.
fn after_type<'a>(kind: &Kind, json: &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = json.strip_prefix(API_VERSION)?;
    if !kind.group().is_empty() {
        rest = rest.strip_prefix(kind.group().as_bytes())?.strip_prefix(b"/")?;
    }
    rest.strip_prefix(kind.version().as_bytes())?
        .strip_prefix(KIND)?
        .strip_prefix(kind.kind().as_bytes())?
        .strip_prefix(KIND_END)
}

/// The offset of the members of `metadata` in an encoded object: after its opening brace. The
/// resourceVersion is inserted there, because it is known only after the store has committed the rest.
/// Kinds with a field that sorts before `metadata` (`data`, `endpoints`, `action` …) have that first.
/// `None` if there is no such member at the top.
fn metadata_start(kind: &Kind, json: &[u8]) -> Option<usize> {
    if let Some(members) = after_type(kind, json).and_then(|rest| rest.strip_prefix(METADATA)) {
        return Some(json.len() - members.len());
    }
    let mut depth = 0;
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                if depth == 1 && json[at..].starts_with(METADATA) {
                    return Some(at + METADATA.len());
                }
                at += 1;
                while *json.get(at)? != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Writes `json` with a resourceVersion in place of `member`, the first of metadata's members, and returns the
/// range of the new member. An empty `out` gets exactly the memory that it needs: it is kept for as long as the object.
fn splice_version(out: &mut Vec<u8>, json: &[u8], member: &Range<usize>, revision: u64) -> Range<usize> {
    let version = format!(r#""resourceVersion":"{revision}""#);
    let is_only = json.get(member.end) == Some(&b'}');
    out.reserve_exact(json.len() - member.len() + version.len() + usize::from(!is_only));
    out.extend_from_slice(&json[..member.start]);
    out.extend_from_slice(version.as_bytes());
    if !is_only {
        out.push(b',');
    }
    let written = member.start..out.len();
    out.extend_from_slice(&json[member.end..]);
    written
}

/// Bytes that are kept, without the rest of the buffer in which they were written: that may be larger than they are.
pub fn kept(written: Vec<u8>) -> Bytes {
    written.into_boxed_slice().into()
}

/// A range in an encoding. An encoding of 4 GiB, which no store takes, has an empty one: its resourceVersion is then
/// treated as one that was not inserted here.
fn in_less_memory(range: &Range<usize>) -> Range<u32> {
    match (u32::try_from(range.start), u32::try_from(range.end)) {
        (Ok(start), Ok(end)) => start..end,
        _ => 0..0,
    }
}

/// One object at one revision: the typed value and its JSON, both immutable.
pub struct Object {
    kind: Kind,
    revision: u64,
    json: Bytes,
    /// The range of the resourceVersion member in `json`, with its comma; empty if it was not inserted here.
    version: Range<u32>,
    /// At first unset in a slim object.
    typed: OnceLock<Box<dyn AnyObject>>,
    /// For a slim object only.
    summary: Option<Box<Summary>>,
    /// This object as a slim one, made at most once, so that all caches hold the same.
    slim: OnceLock<Arc<Object>>,
}

/// The parts of an object that are read often, without the typed value.
struct Summary {
    /// Namespace, name, uid, the uid of the controller, and the selectable fields of the kind in their order, in one
    /// string to save memory.
    text: Box<str>,
    /// The offset of the end of each of them.
    ends: Box<[u32]>,
    /// Without managedFields. Decoded when it is needed.
    metadata: OnceLock<Box<ObjectMeta>>,
}

/// The index of the controller's uid in a [`Summary`].
const CONTROLLER_UID: usize = 3;
/// The index of the first selectable field in a [`Summary`].
const FIRST_FIELD: usize = 4;

impl Summary {
    fn of(kind: &Kind, typed: &dyn AnyObject) -> Self {
        let meta = typed.metadata();
        let [namespace, name, uid] =
            [&meta.namespace, &meta.name, &meta.uid].map(|name| name.as_deref().unwrap_or_default());
        let names = [namespace, name, uid, controller_uid_in(meta)].map(Cow::Borrowed);
        // An object of another type than its kind's has no selectable fields.
        let paths = kind.ops.selectable_fields();
        let fields = paths
            .iter()
            .map(|path| Cow::Owned(kind.ops.field(typed, path).unwrap_or_default()));
        let mut text = String::new();
        let ends = names.into_iter().chain(fields).map(|part| {
            text.push_str(&part);
            // An object's encoding has at most a few MiB.
            u32::try_from(text.len()).unwrap_or(u32::MAX)
        });
        let ends = ends.collect();
        Summary {
            text: text.into(),
            ends,
            metadata: OnceLock::new(),
        }
    }

    /// The same without what was decoded again.
    fn without_decoded(&self) -> Self {
        Summary {
            text: self.text.clone(),
            ends: self.ends.clone(),
            metadata: OnceLock::new(),
        }
    }

    fn part(&self, at: usize) -> Option<&str> {
        let end = *self.ends.get(at)? as usize;
        let begin = at.checked_sub(1).and_then(|at| self.ends.get(at));
        self.text.get(begin.map_or(0, |begin| *begin as usize)..end)
    }
}

/// Objects with less JSON than this are left as they are. What a slim object keeps next to its JSON is about 400 bytes; a typed value has
/// about 350 for the metadata alone, 550 for each map that is not empty, and some 200 for each manager of fields.
const SLIM_FROM_BYTES: usize = 512;

impl Object {
    fn new(
        kind: &Kind,
        revision: u64,
        json: Bytes,
        version: Range<usize>,
        typed: Box<dyn AnyObject>,
    ) -> Self {
        Object {
            kind: kind.clone(),
            revision,
            json,
            version: in_less_memory(&version),
            typed: typed.into(),
            summary: None,
            slim: OnceLock::new(),
        }
    }

    /// The same object in little memory, for caches. Small objects and slim ones are returned as they are.
    pub fn slim(self: &Arc<Self>) -> Arc<Object> {
        if self.is_slim() {
            return self.clone();
        }
        let made = self.slim.get_or_init(|| {
            let summary = self.summary.as_ref().map(|summary| summary.without_decoded());
            let summary = Box::new(summary.unwrap_or_else(|| Summary::of(&self.kind, self.typed())));
            Arc::new(Object {
                kind: self.kind.clone(),
                revision: self.revision,
                json: self.json.clone(),
                version: self.version.clone(),
                typed: OnceLock::new(),
                summary: Some(summary),
                slim: OnceLock::new(),
            })
        });
        made.clone()
    }

    /// Whether [`Object::slim`] would save no memory: the object is small, or slim with nothing decoded.
    pub fn is_slim(&self) -> bool {
        let has_metadata = self
            .summary
            .as_ref()
            .is_some_and(|summary| summary.metadata.get().is_some());
        self.json.len() < SLIM_FROM_BYTES || (self.typed.get().is_none() && !has_metadata)
    }

    /// An object from its typed value and its stored JSON (without resourceVersion) at `revision`.
    /// The bytes are copied once, to insert the resourceVersion.
    pub fn from_stored(kind: &Kind, mut typed: Box<dyn AnyObject>, stored: &[u8], revision: u64) -> Self {
        let mut json = Vec::new();
        let mut member = 0..0;
        if let Some(at) = metadata_start(kind, stored) {
            member = splice_version(&mut json, stored, &(at..at), revision);
        }
        typed.metadata_mut().resource_version = Some(revision.to_string());
        if json.is_empty() {
            // Not as this version writes it: it is encoded again.
            typed.encode_into(&mut json);
        }
        Object::new(kind, revision, kept(json), member, typed)
    }

    /// The stored form of a typed value: its JSON without resourceVersion.
    pub fn encode_for_store(typed: &mut dyn AnyObject) -> Vec<u8> {
        typed.metadata_mut().resource_version = None;
        let mut out = Vec::with_capacity(4096);
        typed.encode_into(&mut out);
        out
    }

    /// An object that is not from the store (a dry run, a response that is computed, a remote read).
    pub fn from_typed(kind: &Kind, typed: Box<dyn AnyObject>) -> Self {
        let mut json = Vec::with_capacity(1024);
        typed.encode_into(&mut json);
        let revision = typed
            .metadata()
            .resource_version
            .as_deref()
            .and_then(|v| v.parse().ok())
            .unwrap_or(0);
        Object::new(kind, revision, kept(json), 0..0, typed)
    }

    /// Whether `stored` ([`Object::encode_for_store`]) is the encoding of this object.
    pub fn has_encoding(&self, stored: &[u8]) -> bool {
        let version = self.version();
        let (head, tail) = (&self.json[..version.start], &self.json[version.end..]);
        !self.version.is_empty() && stored.strip_prefix(head) == Some(tail)
    }

    /// Whether both are one object at one revision, as an object and its [slim](Object::slim) one are: they share their encoding. `false` for
    /// objects that were read or encoded separately, also if they are equal.
    pub fn shares_encoding(&self, other: &Object) -> bool {
        std::ptr::eq(&*self.json, &*other.json) && self.kind == other.kind
    }

    /// The length of the encoding in the store; `None` if the object is not from the store.
    pub fn stored_len(&self) -> Option<usize> {
        (!self.version.is_empty()).then(|| self.json.len() - self.version().len())
    }

    fn version(&self) -> Range<usize> {
        self.version.start as usize..self.version.end as usize
    }

    /// The same object at another revision; slim if this one is.
    pub fn at_revision(&self, revision: u64) -> Object {
        if let (None, Some(summary), false) = (self.typed.get(), &self.summary, self.version.is_empty()) {
            return self.slim_at_revision(summary, revision);
        }
        let mut typed = self.typed().clone_box();
        if self.version.is_empty() {
            let stored = Self::encode_for_store(&mut *typed);
            return Object::from_stored(&self.kind, typed, &stored, revision);
        }
        typed.metadata_mut().resource_version = Some(revision.to_string());
        let mut json = Vec::new();
        let version = splice_version(&mut json, &self.json, &self.version(), revision);
        Object::new(&self.kind, revision, kept(json), version, typed)
    }

    fn slim_at_revision(&self, summary: &Summary, revision: u64) -> Object {
        let mut json = Vec::new();
        let version = splice_version(&mut json, &self.json, &self.version(), revision);
        Object {
            kind: self.kind.clone(),
            revision,
            json: kept(json),
            version: in_less_memory(&version),
            typed: OnceLock::new(),
            summary: Some(Box::new(summary.without_decoded())),
            slim: OnceLock::new(),
        }
    }

    /// The encoding without apiVersion and kind, as items of a typed list have it: put `{` before it.
    pub fn json_without_type(&self) -> &[u8] {
        &self.json[type_len(&self.kind)..]
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The store's revision at which it was written; 0 if it never was.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Without managedFields if the object is slim: those are in the typed value.
    pub fn metadata(&self) -> &ObjectMeta {
        match (self.typed.get(), &self.summary) {
            (None, Some(summary)) => {
                if let Some(metadata) = summary.metadata.get() {
                    return metadata;
                }
                let metadata = summary.metadata.get_or_init(|| {
                    let read = metadata_in(&self.kind, &self.json);
                    Box::new(read.unwrap_or_else(|| without_managers(self.typed().metadata())))
                });
                self.kind.count_decoded_again();
                metadata
            }
            _ => self.typed().metadata(),
        }
    }

    /// One of the names; of a slim object without reading its metadata.
    fn name_at(&self, at: usize, of: impl Fn(&ObjectMeta) -> &Option<String>) -> &str {
        match (self.typed.get(), &self.summary) {
            (None, Some(summary)) => summary.part(at).unwrap_or_default(),
            _ => of(self.typed().metadata()).as_deref().unwrap_or_default(),
        }
    }

    /// A selectable field of its kind; empty where it is not set. Fails (500) only where
    /// the object is of another type than its kind's.
    pub fn field(&self, path: &str) -> Result<String, Error> {
        if let (None, Some(summary)) = (self.typed.get(), &self.summary) {
            let selectable = self.kind.ops.selectable_fields();
            let known = selectable.iter().position(|p| *p == path);
            if let Some(found) = known.and_then(|at| summary.part(FIRST_FIELD + at)) {
                return Ok(found.to_string());
            }
        }
        self.kind.ops.field(self.typed(), path)
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.name_at(0, |meta| &meta.namespace)
    }

    pub fn name(&self) -> &str {
        self.name_at(1, |meta| &meta.name)
    }

    pub fn uid(&self) -> &str {
        self.name_at(2, |meta| &meta.uid)
    }

    /// The uid of its controller (`ownerReferences[].controller`); empty if it has none.
    pub fn controller_uid(&self) -> &str {
        match (self.typed.get(), &self.summary) {
            (None, Some(summary)) => summary.part(CONTROLLER_UID).unwrap_or_default(),
            _ => controller_uid_in(self.typed().metadata()),
        }
    }

    /// The encoded object, resourceVersion included.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// For a slim object it is decoded, once.
    pub fn typed(&self) -> &dyn AnyObject {
        if let Some(typed) = self.typed.get() {
            return &**typed;
        }
        let typed = self.typed.get_or_init(|| match self.kind.ops.decode(&self.json) {
            Ok(decoded) => decoded.object,
            // The very bytes were decoded, or encoded by this process, before the object became slim.
            Err(e) => unreachable!("{self:?} cannot be decoded any more: {e}"),
        });
        self.kind.count_decoded_again();
        &**typed
    }

    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.typed().as_any().downcast_ref()
    }

    /// Calls `read` with the typed value; `None` if it is not a `T`. What has to be decoded of a slim object for it is dropped afterwards: for
    /// readers of many objects that read each of them once, some time after its change. [`Object::get`] keeps it for the next reader.
    pub fn with_typed<T: 'static, R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        if self.typed.get().is_some() {
            return self.get::<T>().map(read);
        }
        // The very bytes were decoded, or encoded by this process, before the object became slim.
        let decoded = self.kind.ops.decode(&self.json).ok()?;
        (*decoded.object).as_any().downcast_ref::<T>().map(read)
    }

    /// A copy to be changed.
    pub fn to_typed<T: Clone + 'static>(&self) -> Option<T> {
        self.get::<T>().cloned()
    }
}

/// The uid of the controller; empty if there is none.
fn controller_uid_in(meta: &ObjectMeta) -> &str {
    let mut owners = meta.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.map_or("", |owner| owner.uid.as_str())
}

/// The metadata in an encoded object, without managedFields: neither these nor the other fields are decoded
/// for it.
fn metadata_in(kind: &Kind, json: &[u8]) -> Option<ObjectMeta> {
    let begin = metadata_start(kind, json)?.checked_sub(1)?;
    let mut from = serde_json::Deserializer::from_slice(json.get(begin..)?);
    let mut members = BTreeMap::<&str, &RawValue>::deserialize(&mut from).ok()?;
    members.remove("managedFields");
    ObjectMeta::deserialize(MapDeserializer::new(members.into_iter())).ok()
}

/// A copy without managedFields, the largest part.
fn without_managers(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        annotations: meta.annotations.clone(),
        creation_timestamp: meta.creation_timestamp.clone(),
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        deletion_timestamp: meta.deletion_timestamp.clone(),
        finalizers: meta.finalizers.clone(),
        generate_name: meta.generate_name.clone(),
        generation: meta.generation,
        labels: meta.labels.clone(),
        managed_fields: None,
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        owner_references: meta.owner_references.clone(),
        resource_version: meta.resource_version.clone(),
        self_link: meta.self_link.clone(),
        uid: meta.uid.clone(),
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {}/{}@{}",
            self.kind,
            self.namespace(),
            self.name(),
            self.revision
        )
    }
}

/// A shared object that is known to be a `T`; dereferences to it. A slim object is decoded only when it is accessed.
pub struct Shared<T> {
    object: Arc<Object>,
    of: PhantomData<fn() -> T>,
}

impl<T: 'static> Shared<T> {
    /// Fails (500) only where the caller's kind and `T` disagree.
    pub fn new(object: Arc<Object>) -> Result<Self, Error> {
        // A slim object will decode to the type of its kind.
        let of = match object.typed.get() {
            Some(typed) => typed.as_any().type_id(),
            None => object.kind.ops.type_of_objects(),
        };
        if of != TypeId::of::<T>() {
            return Err(Error::internal(format!(
                "{object:?} is not a {}",
                std::any::type_name::<T>()
            )));
        }
        Ok(Shared {
            object,
            of: PhantomData,
        })
    }

    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared {
            object: self.object.clone(),
            of: PhantomData,
        }
    }
}

impl<T: 'static> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self.object.get::<T>() {
            Some(t) => t,
            None => unreachable!("checked when it was made"),
        }
    }
}

impl<T: fmt::Debug + 'static> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests;
