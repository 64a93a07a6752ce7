//! Kinds that users bring: what a CustomResourceDefinition says, made into a [`Kind`] like any other.
//!
//! [`Definition::of`] makes the kinds of a definition, one a version. A kind lives as long as the process, like the
//! built-in ones: definitions change seldom, and each change costs some kilobytes. The rules of a kind
//! ([`CustomOps`]) hold its schema; [`crate::strategy::Ops::custom`] gives them to whoever has to know that a kind is
//! no built-in one, such as server-side apply.
//!
//! Versions are converted by strategy None only: the same fields under another apiVersion.

pub mod cel;
pub mod conditions;
pub(crate) mod declared;
pub mod definition;
mod field_path;
pub(crate) mod format;
pub mod judge;
mod object;
mod ops;
pub mod path;
mod published;
mod scale;
pub mod schema;
pub mod shape;

use std::sync::{Arc, OnceLock};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionVersion,
};
pub use object::CustomObject;
pub use ops::{CustomOps, Rules};
pub use schema::Schema;

use crate::cel::check::Declared;
use crate::cel::check::declared::Shape;
use crate::kind::{Kind, Scope, Subresource, Verbs};
use crate::table::Column;
use path::JsonPath;

/// In the order in which discovery has them for custom kinds.
const VERBS: Verbs = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
const PART_VERBS: Verbs = &["get", "patch", "update"];

/// The kinds of one CustomResourceDefinition.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The version objects are stored in, served or not.
    pub stored: &'static Kind,
    /// The served versions, preferred first.
    pub served: Vec<&'static Kind>,
}

impl Definition {
    /// `None` where nothing is to be served: names are not accepted, it is not established, or no version is stored.
    pub fn of(crd: &CustomResourceDefinition) -> Option<Definition> {
        let status = crd.status.as_ref()?;
        if !conditions::is_true(status, conditions::ESTABLISHED) {
            return None;
        }
        let names = status.accepted_names.clone().unwrap_or_default();
        let names = if names.kind.is_empty() {
            crd.spec.names.clone()
        } else {
            names
        };
        let storage = crd.spec.versions.iter().find(|v| v.storage)?;
        let stored = kind(crd, &names, storage, None);
        let mut served: Vec<&'static Kind> = crd
            .spec
            .versions
            .iter()
            .filter(|v| v.served)
            .map(|v| match v.storage {
                true => stored,
                false => kind(crd, &names, v, Some(stored)),
            })
            .collect();
        for kind in served.iter().chain([&stored]) {
            if let Some(custom) = kind.ops.custom() {
                // Made a moment ago: nobody has set it.
                let _ = custom.rules().versions.set(served.clone());
            }
        }
        served.sort_by_key(|kind| std::cmp::Reverse(version_order(kind.version)));
        Some(Definition { stored, served })
    }
}

/// What a definition calls its kind: all that those who look at metadata only have to know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names {
    group: String,
    /// Of those that are served the preferred one.
    version: String,
    kind: String,
    plural: String,
    namespaced: bool,
}

impl Names {
    /// `None` where nothing is served.
    pub fn of(crd: &CustomResourceDefinition) -> Option<Names> {
        let status = crd.status.as_ref()?;
        if !conditions::is_true(status, conditions::ESTABLISHED) {
            return None;
        }
        let names = status.accepted_names.as_ref().filter(|n| !n.kind.is_empty());
        let names = names.unwrap_or(&crd.spec.names);
        let served = crd.spec.versions.iter().filter(|v| v.served);
        let preferred = served.max_by_key(|v| version_order(&v.name))?;
        Some(Names {
            group: crd.spec.group.clone(),
            version: preferred.name.clone(),
            kind: names.kind.clone(),
            plural: names.plural.clone(),
            namespaced: crd.spec.scope == "Namespaced",
        })
    }

    /// A kind of these names whose objects may hold anything. A new one each time, to be kept as long as the process.
    pub fn kind(&self) -> &'static Kind {
        let mut crd = CustomResourceDefinition::default();
        crd.spec.group.clone_from(&self.group);
        crd.spec.scope = if self.namespaced { "Namespaced" } else { "Cluster" }.into();
        let names = CustomResourceDefinitionNames {
            kind: self.kind.clone(),
            plural: self.plural.clone(),
            ..CustomResourceDefinitionNames::default()
        };
        let version = CustomResourceDefinitionVersion {
            name: self.version.clone(),
            ..CustomResourceDefinitionVersion::default()
        };
        kind(&crd, &names, &version, None)
    }
}

/// How versions are ordered (KEP: general availability before beta before alpha, newer first); greater is preferred.
pub fn version_order(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let other = (0, 0, 0, std::cmp::Reverse(version.to_string()));
    let Some(rest) = version.strip_prefix('v') else {
        return other;
    };
    let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let Ok(major) = rest[..rest.len() - digits.len()].parse::<u64>() else {
        return other;
    };
    let (stage, minor) = match digits {
        "" => (3, ""),
        text => match (text.strip_prefix("beta"), text.strip_prefix("alpha")) {
            (Some(minor), _) => (2, minor),
            (_, Some(minor)) => (1, minor),
            _ => return other,
        },
    };
    match minor.parse::<u64>() {
        Ok(minor) => (stage, major, minor, std::cmp::Reverse(String::new())),
        Err(_) if stage == 3 => (stage, major, 0, std::cmp::Reverse(String::new())),
        Err(_) => other,
    }
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_string().into_boxed_str())
}

fn leak_all<'a>(texts: impl IntoIterator<Item = &'a String>) -> &'static [&'static str] {
    let texts: Vec<&'static str> = texts.into_iter().map(|t| leak(t)).collect();
    Box::leak(texts.into_boxed_slice())
}

fn kind(
    crd: &CustomResourceDefinition,
    names: &CustomResourceDefinitionNames,
    version: &CustomResourceDefinitionVersion,
    stored_as: Option<&'static Kind>,
) -> &'static Kind {
    let (group, name, kind) = (leak(&crd.spec.group), leak(&version.name), leak(&names.kind));
    let scope = match crd.spec.scope.as_str() {
        "Cluster" => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    let json = version
        .schema
        .as_ref()
        .and_then(|s| s.open_api_v3_schema.as_ref())
        // What was read as a schema encodes as one.
        .and_then(|s| serde_json::to_value(s).ok())
        .unwrap_or_else(
            || serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        );
    let mut schema = Schema::read(&json);
    schema.preserve_unknown |= crd.spec.preserve_unknown_fields.unwrap_or_default();
    let subresources = version.subresources.as_ref();
    let has_status = subresources.is_some_and(|s| s.status.is_some());
    let scale = subresources.and_then(|s| s.scale.clone());
    let mut subs = Vec::new();
    let sub = |name, group, version, kind| Subresource {
        name,
        group,
        version,
        kind,
        verbs: PART_VERBS,
    };
    if has_status {
        subs.push(sub("status", "", "", kind));
    }
    if scale.is_some() {
        subs.push(sub("scale", "autoscaling", "v1", "Scale"));
    }
    let (columns, cells) = columns(version);
    let selectable = version.selectable_fields.iter().flatten();
    let selectable: Vec<(&'static str, JsonPath)> = selectable
        .filter_map(|f| {
            Some((
                leak(f.json_path.strip_prefix('.')?),
                JsonPath::parse(&f.json_path)?,
            ))
        })
        .collect();
    let deprecation = version.deprecated.unwrap_or_default().then(|| {
        let default = || format!("{group}/{name} {kind} is deprecated");
        version.deprecation_warning.clone().unwrap_or_else(default)
    });
    let rules = Rules {
        group,
        version: name,
        kind,
        schema,
        json,
        has_status,
        scale,
        cells,
        selectable: Box::leak(selectable.iter().map(|(name, _)| *name).collect()),
        selectable_paths: selectable,
        deprecation,
        versions: OnceLock::new(),
    };
    let rules: &'static Rules = Box::leak(Box::new(rules));
    Box::leak(Box::new(Kind {
        group,
        version: name,
        kind,
        plural: leak(&names.plural),
        singular: leak(names.singular.as_deref().unwrap_or_default()),
        scope,
        short_names: leak_all(names.short_names.iter().flatten()),
        categories: leak_all(names.categories.iter().flatten()),
        verbs: VERBS,
        subresources: Box::leak(subs.into_boxed_slice()),
        stored_as,
        ops: Box::leak(Box::new(CustomOps::new(rules, columns))),
    }))
}

/// A cell behind the name's: its column's type and where its value is.
pub(crate) struct Cell {
    of: &'static str,
    /// `None` for a path this server does not read: the cell stays empty.
    path: Option<JsonPath>,
}

fn columns(version: &CustomResourceDefinitionVersion) -> (&'static [Column], Vec<Cell>) {
    let mut columns = vec![crate::table::NAME];
    let mut cells = Vec::new();
    for column in version.additional_printer_columns.iter().flatten() {
        let of = leak(&column.type_);
        columns.push(Column {
            name: leak(&column.name),
            of,
            format: leak(column.format.as_deref().unwrap_or_default()),
            priority: column.priority.unwrap_or_default(),
        });
        let path = JsonPath::parse(&column.json_path);
        cells.push(Cell { of, path });
    }
    if cells.is_empty() {
        columns.push(Column::date("Age"));
        cells.push(Cell {
            of: "date",
            path: JsonPath::parse(".metadata.creationTimestamp"),
        });
    }
    (Box::leak(columns.into_boxed_slice()), cells)
}

/// What expressions see of the objects of one version of a definition; `None` where its schema says nothing of them.
pub fn declared_version(crd: &CustomResourceDefinition, version: &str) -> Option<Declared> {
    let version = crd.spec.versions.iter().find(|v| v.name == version && v.served)?;
    let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
    let schema = Schema::read(&serde_json::to_value(schema).ok()?);
    let kind = crd.spec.names.kind.as_str();
    let mut found = declared::declared(&schema, true, kind)?;
    // Rules see little of metadata; who reads the published API sees all of it.
    if let Shape::Object { fields, .. } = &mut found.shape {
        let metadata = crate::schema::declared::metadata(kind)?;
        fields.insert("metadata".into(), Arc::new(metadata));
    }
    Some(found)
}

/// The definition a name belongs to, as `widgets.example.com`.
pub fn definition_name(kind: &Kind) -> String {
    format!("{}.{}", kind.plural, kind.group)
}

/// The schema as readers of OpenAPI documents get it, under the name the group's reversed labels make.
pub(crate) fn published_name(group: &str, version: &str, kind: &str) -> String {
    let mut labels: Vec<&str> = group.split('.').collect();
    labels.reverse();
    format!("{}.{version}.{kind}", labels.join("."))
}

#[cfg(test)]
mod tests;
