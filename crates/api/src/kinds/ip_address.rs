//! IPAddress: what decoding marks in it.

use k8s_openapi::api::networking::v1::IPAddress;

use crate::api_type::ApiType;

impl ApiType for IPAddress {
    /// Gives a `parentRef` that is present but empty an empty namespace, which distinguishes it from an absent one.
    fn after_decode(&mut self, json: &[u8]) {
        let parent = &mut self.spec.parent_ref;
        if parent.resource.is_empty() && parent.name.is_empty() {
            let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
            if document["spec"]["parentRef"].is_object() {
                parent.namespace.get_or_insert_default();
            }
        }
    }
}
