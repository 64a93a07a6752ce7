//! Event: its selectable fields.

use k8s_openapi::api::events::v1::Event;

use super::text;
use crate::api_type::ApiType;

impl ApiType for Event {
    const SELECTABLE_FIELDS: &'static [&'static str] = &[
        "reason",
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reportingController",
        "type",
    ];

    fn field(&self, path: &str) -> String {
        let regarding = self.regarding.clone().unwrap_or_default();
        let value = match path {
            "reason" => text(&self.reason),
            "regarding.kind" => text(&regarding.kind),
            "regarding.namespace" => text(&regarding.namespace),
            "regarding.name" => text(&regarding.name),
            "regarding.uid" => text(&regarding.uid),
            "regarding.apiVersion" => text(&regarding.api_version),
            "regarding.resourceVersion" => text(&regarding.resource_version),
            "regarding.fieldPath" => text(&regarding.field_path),
            "reportingController" => text(&self.reporting_controller),
            "type" => text(&self.type_),
            _ => "",
        };
        value.to_string()
    }
}
