//! ReplicationController: its selectable fields.

use k8s_openapi::api::core::v1::ReplicationController;

use crate::api_type::ApiType;

impl ApiType for ReplicationController {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["status.replicas"];

    fn field(&self, path: &str) -> String {
        match path {
            "status.replicas" => self.status.as_ref().map_or(0, |s| s.replicas).to_string(),
            _ => String::new(),
        }
    }
}
