//! Service: its selectable fields.

use k8s_openapi::api::core::v1::Service;

use super::text;
use crate::api_type::ApiType;

impl ApiType for Service {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.clusterIP", "spec.type"];

    fn field(&self, path: &str) -> String {
        let Some(spec) = &self.spec else {
            return String::new();
        };
        match path {
            "spec.clusterIP" => text(&spec.cluster_ip).to_string(),
            "spec.type" => text(&spec.type_).to_string(),
            _ => String::new(),
        }
    }
}
