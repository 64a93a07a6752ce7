//! VolumeAttachment: its selectable fields.

use k8s_openapi::api::storage::v1::VolumeAttachment;

use crate::api_type::ApiType;

impl ApiType for VolumeAttachment {
    /// A node lists and watches its own attachments by this field. Kubernetes does not support a field selector here: its
    /// nodes read attachments one by one.
    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.nodeName"];

    fn field(&self, path: &str) -> String {
        match path {
            "spec.nodeName" => self.spec.node_name.clone(),
            _ => String::new(),
        }
    }
}
