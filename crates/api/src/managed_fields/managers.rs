//! An object's managers with their fields, and how writes change them.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::blank::blank;
use super::check;
use super::conversions::{Conversions, Versions};
use super::creation::created_fields;
use super::differing::{Ignored, differing};
use super::kind_type::type_of_kind;
use super::manager_id::{MAX_UPDATE_MANAGERS, ManagerId, Operation};
use super::reset::Reset;
use super::set::FieldSet;
use super::text;
use super::unchanged::entries_if_others_unchanged;
use super::values;
use crate::any_object::AnyObject;
use crate::kind::Kind;

/// The subresource through which no specification is written.
const STATUS: &str = "status";

const ANCIENT: &str = "ancient-changes";
/// The manager of the fields that were set before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The annotation of `kubectl apply` without `--server-side`.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Clone, Debug)]
pub(super) struct Fields {
    pub(super) set: FieldSet,
    pub(super) api_version: String,
    pub(super) time: Option<Timestamp>,
}

/// All managers of an object. See the module.
#[derive(Clone, Debug, Default)]
pub struct Managed(pub(super) BTreeMap<ManagerId, Fields>);

/// The result of an apply.
#[derive(Debug)]
pub struct Applied {
    /// `None`: the object stays as it is.
    pub object: Option<Value>,
    pub managed: Managed,
}

/// Fields that other managers own with another value, by manager.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub BTreeMap<ManagerId, FieldSet>);

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<(&ManagerId, Vec<String>)> = self.0.iter().map(|(id, set)| (id, set.paths())).collect();
        let count: usize = all.iter().map(|(_, paths)| paths.len()).sum();
        if let ([(id, paths)], 1) = (&all[..], count) {
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {id}: {}",
                paths.concat()
            );
        }
        let mut lines = Vec::new();
        for (id, paths) in all {
            lines.push(format!("conflicts with {id}:"));
            lines.extend(paths.iter().map(|path| format!("- {path}")));
        }
        write!(f, "Apply failed with {count} conflicts: {}", lines.join("\n"))
    }
}

/// Why an apply was rejected.
#[derive(Debug)]
pub enum ApplyError {
    Conflicts(Conflicts),
    /// The configuration does not conform to the schema: the errors with their paths.
    Schema(Vec<String>),
}

/// Whether a client's managedFields reset the managers: an empty list, or a list of one empty entry.
pub fn is_reset(sent: Option<&[ManagedFieldsEntry]>) -> bool {
    match sent {
        Some([]) => true,
        Some([one]) => *one == ManagedFieldsEntry::default(),
        _ => false,
    }
}

impl Fields {
    fn at(kind: &Kind, set: FieldSet, now: Timestamp) -> Self {
        Fields {
            set,
            api_version: kind.api_version(),
            time: Some(now),
        }
    }
}

impl Managed {
    /// `None` where an entry is invalid.
    pub fn decode(entries: &[ManagedFieldsEntry]) -> Option<Managed> {
        let mut managed = BTreeMap::new();
        for entry in entries {
            let operation = match entry.operation.as_deref() {
                Some("Apply") => Operation::Apply,
                Some("Update") => Operation::Update,
                _ => return None,
            };
            let api_version = entry.api_version.clone().filter(|v| !v.is_empty())?;
            if entry.fields_type.as_deref() != Some("FieldsV1") {
                return None;
            }
            let set = match &entry.fields_v1 {
                Some(fields) => FieldSet::read(&fields.0)?,
                None => FieldSet::default(),
            };
            let id = ManagerId {
                name: entry.manager.clone().unwrap_or_default(),
                operation,
                api_version: match operation {
                    Operation::Update => api_version.clone(),
                    Operation::Apply => String::new(),
                },
                subresource: entry.subresource.clone().unwrap_or_default(),
            };
            let time = entry.time.as_ref().map(|t| t.0);
            managed.insert(
                id,
                Fields {
                    set,
                    api_version,
                    time,
                },
            );
        }
        Some(Managed(managed))
    }

    /// The managedFields: appliers first, then by time and name. `None` where there are no managers.
    pub fn encode(self) -> Option<Vec<ManagedFieldsEntry>> {
        let mut all: Vec<(ManagerId, Fields)> = self.0.into_iter().collect();
        all.sort_by_cached_key(|(id, fields)| {
            let second = fields.time.map_or(0, Timestamp::as_second);
            let version = fields.api_version.clone();
            (
                id.operation,
                second,
                id.name.clone(),
                version,
                id.subresource.clone(),
            )
        });
        let entries = all.into_iter().map(|(id, fields)| {
            let set = text::fields_v1(fields.set.to_text());
            id.entry(set, fields.api_version, fields.time)
        });
        Some(entries.collect()).filter(|all: &Vec<_>| !all.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The managers after an update: `by` owns the fields it changed, and no other manager does. Both values are
    /// the `kind`'s JSON.
    pub fn update(self, kind: &Kind, live: &Value, new: &Value, by: ManagerId, now: Timestamp) -> Managed {
        self.update_with(kind, (live, new), by, now, &mut Conversions::default())
    }

    /// As [`Managed::update`], with the conversions that webhooks have made.
    pub fn update_with(
        self,
        kind: &Kind,
        (live, new): (&Value, &Value),
        by: ManagerId,
        now: Timestamp,
        conversions: &mut Conversions,
    ) -> Managed {
        self.take_in(&mut Versions::new(kind, (live, new), conversions), by, now)
    }

    /// As [`Managed::update`], for the object's `entries`, all of the kind's version. Returns the entries
    /// afterwards: `None` where there are no managers, or an entry is invalid. `json` is the object before and after; of a status, the
    /// specification may be left out.
    ///
    /// # Errors
    ///
    /// If `json` does not parse.
    pub fn update_entries(
        entries: &[ManagedFieldsEntry],
        kind: &Kind,
        (live, new): (&[u8], &[u8]),
        by: ManagerId,
        now: Timestamp,
    ) -> Result<Option<Vec<ManagedFieldsEntry>>, serde_json::Error> {
        let ignored = Ignored {
            resource_version: !entries.iter().any(may_own_version),
            // Of every kind: see `Reset`.
            spec: by.subresource == STATUS,
        };
        let (live, new) = differing(live, new, ignored)?;
        // All entries are of the kind's version: nothing has to be converted.
        let mut conversions = Conversions::default();
        let mut differs = Versions::new(kind, (&live, &new), &mut conversions);
        if let Some(c) = differs.at(&kind.api_version())
            && c.removed.is_empty()
        {
            let changed = c.added.clone().union(c.modified.clone());
            let changed = Reset::of(kind, &by.subresource).keep(changed);
            if changed.intersection(&STRIPPED).is_empty()
                && let Some(after) = entries_if_others_unchanged(entries, &changed, &by, now)
            {
                return Ok(Some(after));
            }
        }
        let managed = Managed::decode(entries);
        Ok(managed.and_then(|managed| managed.take_in(&mut differs, by, now).encode()))
    }

    fn take_in(mut self, differs: &mut Versions<'_>, by: ManagerId, now: Timestamp) -> Managed {
        let kind = differs.kind;
        let mut own = match differs.at(&kind.api_version()) {
            Some(c) => c.added.clone().union(c.modified.clone()),
            None => return self,
        };
        let reset = Reset::of(kind, &by.subresource);
        own = reset.keep(own).difference(&STRIPPED);
        // Computed once for each version that a manager wrote in, which most often is one.
        let mut taken: BTreeMap<String, Option<FieldSet>> = BTreeMap::new();
        self.0.retain(|_, fields| {
            let taken = taken.entry(fields.api_version.clone()).or_insert_with(|| {
                let c = differs.at(&fields.api_version)?;
                let all = c.added.clone().union(c.modified.clone()).union(c.removed.clone());
                Some(reset.keep(all))
            });
            let Some(taken) = taken else { return false };
            if !taken.is_empty() {
                fields.set = mem::take(&mut fields.set).difference(taken);
            }
            !fields.set.is_empty()
        });
        if !own.is_empty() {
            let had = self.0.remove(&by).map(|had| had.set).unwrap_or_default();
            self.0.insert(by, Fields::at(kind, had.union(own), now));
        }
        self.cap();
        self
    }

    /// The managedFields after a creation: `by` owns the fields that the kind's [`blank`] object does not have. `json` is the
    /// `kind`'s. `None` where there are none.
    ///
    /// # Errors
    ///
    /// If the object does not serialize.
    pub fn create(
        kind: &Kind,
        object: &dyn AnyObject,
        by: ManagerId,
        now: Timestamp,
    ) -> Result<Option<Vec<ManagedFieldsEntry>>, serde_json::Error> {
        let Some(root) = type_of_kind(kind) else {
            return Ok(None);
        };
        let fields = match Reset::of(kind, &by.subresource) {
            Reset::But(reset) => created_fields(root, blank(kind), object, &reset, &STRIPPED)?,
            // No object is created through such a subresource.
            Reset::Only(_) => return Ok(None),
        };
        if fields.is_empty() {
            return Ok(None);
        }
        Ok(Some(vec![by.entry(
            text::fields_v1(fields),
            kind.api_version(),
            Some(now),
        )]))
    }

    /// Makes one of the oldest updaters where there are too many.
    fn cap(&mut self) {
        let mut updaters: Vec<(i64, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, fields)| (fields.time.map_or(0, Timestamp::as_second), id.clone()))
            .collect();
        let mut count = updaters.len();
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        updaters.sort();
        let mut first_of: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (_, id) in updaters {
            if count <= MAX_UPDATE_MANAGERS {
                return;
            }
            let version = id.api_version.clone();
            let Some(first) = first_of.get(&version) else {
                first_of.insert(version, id);
                continue;
            };
            let bucket = ManagerId {
                name: ANCIENT.into(),
                operation: Operation::Update,
                api_version: version,
                subresource: String::new(),
            };
            if !self.0.contains_key(&bucket)
                && let Some(fields) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), fields);
            }
            if id == bucket {
                continue;
            }
            if let Some(merged) = self.0.remove(&id)
                && let Some(into) = self.0.get_mut(&bucket)
            {
                into.set = mem::take(&mut into.set).union(merged.set);
                into.time = merged.time;
                count -= 1;
            }
        }
    }

    /// Applies `config`: fields that it no longer names and no other manager owns are removed, those of others conflict
    /// unless `force`.
    pub fn apply(
        self,
        kind: &Kind,
        live: &Value,
        config: &Value,
        by: ManagerId,
        force: bool,
        now: Timestamp,
    ) -> Result<Applied, ApplyError> {
        self.apply_with(
            kind,
            (live, config),
            by,
            (force, now),
            &mut Conversions::default(),
        )
    }

    /// As [`Managed::apply`], with the conversions that webhooks have made.
    pub fn apply_with(
        mut self,
        kind: &Kind,
        (live, config): (&Value, &Value),
        by: ManagerId,
        (force, now): (bool, Timestamp),
        conversions: &mut Conversions,
    ) -> Result<Applied, ApplyError> {
        let Some(root) = type_of_kind(kind) else {
            return Err(ApplyError::Schema(vec![format!("{} has no schema", kind.kind())]));
        };
        let errors = check::errors(root, config);
        if !errors.is_empty() {
            return Err(ApplyError::Schema(errors));
        }
        if self.is_empty() {
            let before = ManagerId::new(BEFORE_FIRST_APPLY, Operation::Update, kind, &by.subresource);
            self = self.update(kind, blank(kind), live, before, now);
        }
        let reset = Reset::of(kind, &by.subresource);
        let merged = values::merge(root, live, config);
        let set = reset.keep(values::fields_of(root, config));
        let had = self.0.remove(&by);
        let time = had.as_ref().and_then(|h| h.time);
        let mine = Fields {
            set,
            api_version: kind.api_version(),
            time,
        };
        self.0.insert(by.clone(), mine);
        let new = match had {
            Some(had) if !had.set.is_empty() => self.prune(kind, merged, &had, conversions),
            _ => merged,
        };
        let mut differs = Versions::new(kind, (live, &new), conversions);
        let mut conflicts = BTreeMap::new();
        let mut taken: BTreeMap<ManagerId, FieldSet> = BTreeMap::new();
        let mut lost = Vec::new();
        for (id, fields) in self.0.iter().filter(|(id, _)| **id != by) {
            let Some(c) = differs.at(&fields.api_version) else {
                lost.push(id.clone());
                continue;
            };
            let changed = reset.keep(c.modified.clone().union(c.added.clone()));
            let conflict = fields.set.intersection(&changed);
            taken.insert(id.clone(), conflict.clone().union(reset.keep(c.removed.clone())));
            if !conflict.is_empty() {
                conflicts.insert(id.clone(), conflict);
            }
        }
        if !force && !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(Conflicts(conflicts)));
        }
        for id in lost {
            self.0.remove(&id);
        }
        for (id, taken) in taken {
            if let Some(fields) = self.0.get_mut(&id) {
                fields.set = mem::take(&mut fields.set).difference(&taken);
            }
        }
        let object = (new != *live).then_some(new);
        if let Some(mine) = self.0.get_mut(&by) {
            mine.set = mem::take(&mut mine.set).difference(&STRIPPED);
            if object.is_some() {
                mine.time = Some(now);
            }
        }
        self.0.retain(|_, fields| !fields.set.is_empty());
        Ok(Applied {
            object,
            managed: self,
        })
    }

    /// Removes from `merged` the fields that the applier `had`, and that now neither it nor another manager owns.
    fn prune(&self, kind: &Kind, merged: Value, had: &Fields, conversions: &mut Conversions) -> Value {
        let mut at_version =
            |kind: &Kind, value: &Value, version: &str| conversions.object(kind, value, version);
        let Some((at_kind, merged_then)) = at_version(kind, &merged, &had.api_version) else {
            return merged;
        };
        let Some(root) = type_of_kind(&at_kind) else {
            return merged;
        };
        let last = values::with_named_fields(root, &had.set);
        let mut pruned = values::remove(root, &merged_then, &last);
        // Keep the fields that some manager still owns,
        let mut versions: BTreeMap<&str, FieldSet> = BTreeMap::new();
        for fields in self.0.values() {
            let all = versions.entry(&fields.api_version).or_default();
            *all = mem::take(all).union(fields.set.clone());
        }
        for (version, owned) in versions {
            let Some((kind_then, merged)) = at_version(&at_kind, &merged_then, version) else {
                continue;
            };
            let Some((_, there)) = at_version(&at_kind, &pruned, version) else {
                continue;
            };
            let Some(root) = type_of_kind(&kind_then) else {
                continue;
            };
            let named = |set: &FieldSet| values::with_named_fields(root, set);
            let keep = named(&values::fields_of(root, &there)).union(named(&owned));
            let removed = named(&values::fields_of(root, &merged)).difference(&keep);
            let kept = values::remove(root, &merged, &removed);
            if let Some((_, kept)) = at_version(&kind_then, &kept, &had.api_version) {
                pruned = kept;
            }
        }
        // and those that this applier never owned.
        let there = values::with_named_fields(root, &values::fields_of(root, &pruned));
        let all = values::with_named_fields(root, &values::fields_of(root, &merged_then));
        let removed = all.difference(&there).intersection(&last);
        let kept = values::remove(root, &merged_then, &removed);
        at_version(&at_kind, &kept, &kind.api_version()).map_or(merged, |(_, kept)| kept)
    }
}

/// Whether the entry may have the resourceVersion among its fields. The server makes no such entry, but a client may send one.
fn may_own_version(entry: &ManagedFieldsEntry) -> bool {
    match entry.fields_v1.as_ref().map(|fields| &fields.0) {
        // A name that is written with an escape is not searched for.
        Some(Value::String(text)) => text.contains("f:resourceVersion") || text.contains("\\u"),
        _ => true,
    }
}

/// `config` merged into `live`, whatever the managers; or the errors of `config` by the kind's schema.
pub fn merged(kind: &Kind, live: &Value, config: &Value) -> Result<Value, Vec<String>> {
    let Some(root) = type_of_kind(kind) else {
        return Err(vec![format!("{} has no schema", kind.kind())]);
    };
    let errors = check::errors(root, config);
    match errors.is_empty() {
        true => Ok(values::merge(root, live, config)),
        false => Err(errors),
    }
}

/// The fields that do not conflict: `kubectl apply` set them without `--server-side`, and they still have
/// those values.
pub fn last_applied_fields(kind: &Kind, live: &Value) -> Option<FieldSet> {
    let text = live
        .pointer("/metadata/annotations")?
        .get(LAST_APPLIED)?
        .as_str()?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last.get("apiVersion")?.as_str()? != kind.api_version() {
        return None;
    }
    let root = type_of_kind(kind)?;
    if !check::errors(root, &last).is_empty() {
        return None;
    }
    let c = values::compare(root, &last, live);
    let set = values::fields_of(root, &last);
    Some(
        set.difference(&c.modified)
            .difference(&c.added)
            .difference(&c.removed),
    )
}

/// Fields that have no managers (`stripSet`).
static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
    let of_metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let set = FieldSet::default()
        .with(&["apiVersion"])
        .with(&["kind"])
        .with(&["metadata"]);
    of_metadata
        .iter()
        .fold(set, |set, field| set.with(&["metadata", field]))
});

#[cfg(test)]
mod tests;
