//! The Table (meta/v1) that answers `kubectl get`: a row for each object.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::codec::WithNulls;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::KindStrategy;
use crate::kinds::pod::columns::finished;
use crate::table::{Cell, RowCondition};

/// How much of each object a row carries (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    #[default]
    Metadata,
    Object,
    None,
}

/// The metadata and options of a Table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    /// Empty: left out.
    pub resource_version: &'a str,
    /// Empty: left out.
    pub continue_token: &'a str,
    pub remaining_item_count: Option<i64>,
    /// Later events of one watch come without column definitions.
    pub no_headers: bool,
    /// Uses `meta.k8s.io/v1beta1`, which older clients request, instead of v1.
    pub beta: bool,
}

/// A meta/v1 Table of these objects, encoded. `resource_version` and `continue_token` as in a list's metadata
/// (empty: left out).
pub fn render(
    kind: &knarr_api::Kind,
    objects: &[Arc<knarr_api::Object>],
    include: Include,
    now: Timestamp,
    resource_version: &str,
    continue_token: &str,
) -> Result<Vec<u8>, knarr_apimachinery::Error> {
    let head = Head {
        resource_version,
        continue_token,
        ..Head::default()
    };
    render_with(kind, objects, include, now, &head)
}

/// The version of the group `meta.k8s.io` in the response.
pub fn meta_version(beta: bool) -> &'static str {
    match beta {
        true => "meta.k8s.io/v1beta1",
        false => "meta.k8s.io/v1",
    }
}

/// [`render`] with all options.
pub fn render_with(
    kind: &knarr_api::Kind,
    objects: &[Arc<knarr_api::Object>],
    include: Include,
    now: Timestamp,
    head: &Head<'_>,
) -> Result<Vec<u8>, knarr_apimachinery::Error> {
    let api_version = meta_version(head.beta);
    let mut rows = Vec::with_capacity(objects.len());
    for object in objects {
        rows.push(Row {
            cells: kind.strategy().row(object.typed(), now)?,
            conditions: object.get::<Pod>().and_then(finished).map(|c| [c]),
            object: match include {
                Include::None => RowObject::None,
                Include::Metadata => RowObject::Metadata(PartialObjectMetadata {
                    kind: "PartialObjectMetadata",
                    api_version,
                    metadata: WithNulls::new(object.metadata()),
                }),
                // The bytes that every other client gets: an object is encoded once.
                Include::Object => RowObject::Full(
                    serde_json::from_slice(object.json()).map_err(knarr_apimachinery::Error::internal)?,
                ),
            },
        });
    }
    let columns = kind.strategy().columns();
    let definitions = columns.iter().map(|column| ColumnDefinition {
        name: column.name,
        of: column.of,
        format: column.format,
        description: column.description,
        priority: column.priority,
    });
    let table = Table {
        kind: "Table",
        api_version,
        metadata: TableMeta {
            resource_version: head.resource_version,
            continue_token: head.continue_token,
            remaining_item_count: head.remaining_item_count,
        },
        column_definitions: (!head.no_headers).then(|| definitions.collect()),
        rows,
    };
    serde_json::to_vec(&table).map_err(knarr_apimachinery::Error::internal)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Table<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: TableMeta<'a>,
    column_definitions: Option<Vec<ColumnDefinition<'a>>>,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TableMeta<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    #[serde(rename = "continue", skip_serializing_if = "str::is_empty")]
    continue_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_item_count: Option<i64>,
}

#[derive(Serialize)]
struct ColumnDefinition<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    of: &'a str,
    format: &'a str,
    description: &'a str,
    priority: i32,
}

#[derive(Serialize)]
struct Row<'a> {
    cells: Vec<Cell>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<[RowCondition; 1]>,
    object: RowObject<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RowObject<'a> {
    None,
    Metadata(PartialObjectMetadata<'a>),
    Full(&'a RawValue),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PartialObjectMetadata<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: WithNulls<'a, ObjectMeta>,
}

#[cfg(test)]
mod tests;
