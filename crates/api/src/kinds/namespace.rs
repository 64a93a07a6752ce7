//! Namespace: its selectable fields.

use k8s_openapi::api::core::v1::Namespace;

use super::text;
use crate::api_type::ApiType;

impl ApiType for Namespace {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["status.phase"];

    fn field(&self, path: &str) -> String {
        match (path, &self.status) {
            ("status.phase", Some(status)) => text(&status.phase).to_string(),
            _ => String::new(),
        }
    }
}
