//! ReplicaSet: its selectable fields and what decoding marks in it.

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::template;
use crate::api_type::ApiType;

impl ApiType for ReplicaSet {
    fn after_decode(&mut self, json: &[u8]) {
        if let Some(spec) = &mut self.spec {
            template::distinguish_empty_selector(&mut spec.selector, json);
            if let Some(template) = &mut spec.template {
                template::distinguish_empty_labels(template, json);
            }
        }
    }

    const SELECTABLE_FIELDS: &'static [&'static str] = &["status.replicas"];

    fn field(&self, path: &str) -> String {
        match path {
            "status.replicas" => self.status.as_ref().map_or(0, |s| s.replicas).to_string(),
            _ => String::new(),
        }
    }
}
