//! Event: its selectable fields.

use k8s_openapi::api::core::v1::Event;

use super::text;
use crate::api_type::ApiType;

impl ApiType for Event {
    const SELECTABLE_FIELDS: &'static [&'static str] = &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ];

    fn field(&self, path: &str) -> String {
        let object = &self.involved_object;
        let value = match path {
            "involvedObject.kind" => text(&object.kind),
            "involvedObject.namespace" => text(&object.namespace),
            "involvedObject.name" => text(&object.name),
            "involvedObject.uid" => text(&object.uid),
            "involvedObject.apiVersion" => text(&object.api_version),
            "involvedObject.resourceVersion" => text(&object.resource_version),
            "involvedObject.fieldPath" => text(&object.field_path),
            "reason" => text(&self.reason),
            "reportingComponent" => text(&self.reporting_component),
            "source" => match self.source.as_ref().map_or("", |s| text(&s.component)) {
                "" => text(&self.reporting_component),
                component => component,
            },
            "type" => text(&self.type_),
            _ => "",
        };
        value.to_string()
    }
}
