//! Secret: its selectable fields.

use k8s_openapi::api::core::v1::Secret;

use super::text;
use crate::api_type::ApiType;

impl ApiType for Secret {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["type"];

    fn field(&self, path: &str) -> String {
        match path {
            "type" => text(&self.type_).to_string(),
            _ => String::new(),
        }
    }
}
