//! ResourceSlice: its selectable fields.

use k8s_openapi::api::resource::v1::ResourceSlice;

use super::text;
use crate::api_type::ApiType;

impl ApiType for ResourceSlice {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.driver", "spec.nodeName"];

    fn field(&self, path: &str) -> String {
        match path {
            "spec.driver" => self.spec.driver.clone(),
            "spec.nodeName" => text(&self.spec.node_name).to_string(),
            _ => String::new(),
        }
    }
}
