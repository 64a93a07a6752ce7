//! Job: its selectable fields and what decoding marks in it.

use k8s_openapi::api::batch::v1::Job;

use super::template;
use crate::api_type::ApiType;

impl ApiType for Job {
    fn after_decode(&mut self, json: &[u8]) {
        if let Some(spec) = &mut self.spec {
            template::distinguish_empty_labels(&mut spec.template, json);
        }
    }

    const SELECTABLE_FIELDS: &'static [&'static str] = &["status.successful"];

    fn field(&self, path: &str) -> String {
        match path {
            "status.successful" => {
                let status = self.status.as_ref();
                status.and_then(|s| s.succeeded).unwrap_or(0).to_string()
            }
            _ => String::new(),
        }
    }
}
