//! What a definition says of one of its versions.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceSubresourceScale;
use knarr_cel::structural::Schema;
use serde_json::Value;

use super::path::JsonPath;
use super::webhook::Webhook;

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
    pub columns: Vec<PrinterColumn>,
    /// Selectable fields, and their paths.
    pub(super) selectable: Vec<(String, JsonPath)>,
}

impl Rules {
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// An additional printer column, and the path of its value.
pub struct PrinterColumn {
    pub name: String,
    pub of: String,
    pub format: String,
    pub priority: i32,
    pub description: String,
    /// `None` for a path this server does not read: the cell stays empty.
    pub path: Option<JsonPath>,
}
