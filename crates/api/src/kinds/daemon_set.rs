//! DaemonSet: what decoding marks in it.

use k8s_openapi::api::apps::v1::DaemonSet;

use super::template;
use crate::api_type::ApiType;

impl ApiType for DaemonSet {
    fn after_decode(&mut self, json: &[u8]) {
        if let Some(spec) = &mut self.spec {
            template::distinguish_empty_selector(&mut spec.selector, json);
            template::distinguish_empty_labels(&mut spec.template, json);
        }
    }
}
