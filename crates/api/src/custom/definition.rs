//! The kinds of a CustomResourceDefinition.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionVersion,
};
use knarr_apimachinery::codec;
use knarr_cel::check::Declared;
use knarr_cel::check::declared::Shape;
use knarr_cel::structural::{Schema, declared};
use serde::de::Error as _;
use serde_json::Value;

use super::conditions;
use super::ops::CustomOps;
use super::path::JsonPath;
use super::rules::{PrinterColumn, Rules};
use super::webhook::Webhook;
use crate::kind::{
    DecodedAgain, Kind, KindInfo, KindNames, KindOps, NameList, Scope, Subresource, Verbs, Versions,
};

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

const STATUS: Subresource = Subresource::new("status", ("", "", ""), PART_VERBS);
const SCALE: Subresource = Subresource::new("scale", ("autoscaling", "v1", "Scale"), PART_VERBS);

/// Parses a CustomResourceDefinition from a document that is part of the program: of a kind of knarr's own. What clients send is decoded by
/// its kind's `Ops`.
///
/// # Errors
///
/// If the document is no CustomResourceDefinition.
// Not generic, so that the decoders of a definition's types are compiled in this crate only.
#[inline(never)]
pub fn parse_definition(document: Value) -> serde_json::Result<CustomResourceDefinition> {
    // As what clients send is decoded: another decoder would be compiled for all types of a definition.
    let json = serde_json::to_vec(&document)?;
    let (definition, _) = codec::decode(&json).map_err(serde_json::Error::custom)?;
    Ok(definition)
}

/// The kinds of one CustomResourceDefinition.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The version objects are stored in, served or not.
    pub stored: Kind,
    /// The served versions, preferred first.
    pub served: Vec<Kind>,
}

impl Definition {
    /// `None` where nothing is served: the names are not accepted, the definition is not established, or no version is stored.
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
        let mut kinds = vec![info(crd, &names, storage)];
        let mut served = Vec::new();
        // Objects may have been stored in a version that is not served any more; a webhook converts those, too.
        let by_webhook = kinds[0].is_converted_by_webhook();
        for version in crd.spec.versions.iter().filter(|v| v.served || by_webhook) {
            let index = if version.storage { 0 } else { kinds.len() };
            if version.served {
                served.push(index);
            }
            if !version.storage {
                kinds.push(info(crd, &names, version));
            }
        }
        let versions = Arc::new(Versions { kinds, served });
        let mut served = Kind::served_of(&versions);
        served.sort_by_key(|kind| std::cmp::Reverse(version_order(kind.version())));
        Some(Definition {
            stored: Kind::stored_of(&versions),
            served,
        })
    }
}

/// The names of a definition's kind: enough for clients that read metadata only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names {
    group: String,
    /// The preferred one of the served versions.
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

    /// A kind of these names without a schema. A new one each time, not equal to any made before.
    pub fn kind(&self) -> Kind {
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
        Kind::stored_of(&Arc::new(Versions {
            kinds: vec![info(&crd, &names, &version)],
            served: Vec::new(),
        }))
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

fn owned(text: &str) -> Cow<'static, str> {
    Cow::Owned(text.to_string())
}

fn name_list(names: Option<&Vec<String>>) -> NameList {
    NameList::Custom(names.cloned().unwrap_or_default())
}

fn info(
    crd: &CustomResourceDefinition,
    names: &CustomResourceDefinitionNames,
    version: &CustomResourceDefinitionVersion,
) -> KindInfo {
    let scope = match crd.spec.scope.as_str() {
        "Cluster" => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    let rules = rules(crd, names, version);
    KindInfo {
        names: KindNames {
            group: owned(&crd.spec.group),
            version: owned(&version.name),
            kind: owned(&names.kind),
            plural: owned(&names.plural),
            singular: owned(names.singular.as_deref().unwrap_or_default()),
        },
        scope,
        short_names: name_list(names.short_names.as_ref()),
        categories: name_list(names.categories.as_ref()),
        verbs: VERBS,
        subresources: match (rules.has_status, rules.scale.is_some()) {
            (false, false) => &[],
            (true, false) => &[STATUS],
            (false, true) => &[SCALE],
            (true, true) => &[STATUS, SCALE],
        },
        stored_as: None,
        ops: KindOps::Custom(Box::new(CustomOps::new(rules))),
        decoded_again: DecodedAgain::new(),
    }
}

fn rules(
    crd: &CustomResourceDefinition,
    names: &CustomResourceDefinitionNames,
    version: &CustomResourceDefinitionVersion,
) -> Rules {
    let json = version
        .schema
        .as_ref()
        .and_then(|s| s.open_api_v3_schema.as_ref())
        // A schema that was decoded encodes again.
        .and_then(|s| codec::to_plain_value(s).ok())
        .unwrap_or_else(
            || serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        );
    let mut schema = Schema::read(&json);
    schema.preserve_unknown |= crd.spec.preserve_unknown_fields.unwrap_or_default();
    let subresources = version.subresources.as_ref();
    let selectable = version.selectable_fields.iter().flatten();
    let deprecation = version.deprecated.unwrap_or_default().then(|| {
        let default = || format!("{}/{} {} is deprecated", crd.spec.group, version.name, names.kind);
        version.deprecation_warning.clone().unwrap_or_else(default)
    });
    Rules {
        group: crd.spec.group.clone(),
        version: version.name.clone(),
        kind: names.kind.clone(),
        schema,
        json,
        has_status: subresources.is_some_and(|s| s.status.is_some()),
        scale: subresources.and_then(|s| s.scale.clone()),
        columns: columns(version),
        selectable: selectable
            .filter_map(|f| {
                Some((
                    f.json_path.strip_prefix('.')?.to_string(),
                    JsonPath::parse(&f.json_path)?,
                ))
            })
            .collect(),
        deprecation,
        webhook: Webhook::of(crd),
    }
}

/// The path of the Age column of a kind without columns of its own.
const CREATED_PATH: &str = ".metadata.creationTimestamp";

/// The description of a column whose definition has none.
fn described_by_path(path: &str) -> String {
    format!("Custom resource definition column (in JSONPath format): {path}")
}

fn columns(version: &CustomResourceDefinitionVersion) -> Vec<PrinterColumn> {
    let columns = version.additional_printer_columns.iter().flatten();
    let mut columns: Vec<PrinterColumn> = columns
        .map(|column| PrinterColumn {
            name: column.name.clone(),
            of: column.type_.clone(),
            format: column.format.clone().unwrap_or_default(),
            priority: column.priority.unwrap_or_default(),
            description: match &column.description {
                Some(description) if !description.is_empty() => description.clone(),
                _ => described_by_path(&column.json_path),
            },
            path: JsonPath::parse(&column.json_path),
        })
        .collect();
    if columns.is_empty() {
        columns.push(PrinterColumn {
            name: "Age".into(),
            of: "date".into(),
            format: String::new(),
            priority: 0,
            description: described_by_path(CREATED_PATH),
            path: JsonPath::parse(CREATED_PATH),
        });
    }
    columns
}

/// The type that expressions have for the objects of one version of a definition; `None` where it has no schema for them.
pub fn declared_version(crd: &CustomResourceDefinition, version: &str) -> Option<Declared> {
    let version = crd.spec.versions.iter().find(|v| v.name == version && v.served)?;
    let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
    let schema = Schema::read(&codec::to_plain_value(schema).ok()?);
    let kind = crd.spec.names.kind.as_str();
    let mut found = declared::declared(&schema, true, kind)?;
    // Rules can use only some of metadata; in the published API it is complete.
    if let Shape::Object { fields, .. } = &mut found.shape {
        let metadata = crate::declared::metadata(kind)?;
        fields.insert("metadata".into(), Arc::new(metadata));
    }
    Some(found)
}

/// The name of a kind's CustomResourceDefinition, such as `widgets.example.com`.
pub fn definition_name(kind: &Kind) -> String {
    format!("{}.{}", kind.plural(), kind.group())
}
