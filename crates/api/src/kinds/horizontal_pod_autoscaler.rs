//! HorizontalPodAutoscaler: what decoding marks in it.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;

use crate::api_type::ApiType;

impl ApiType for HorizontalPodAutoscaler {
    fn after_decode(&mut self, json: &[u8]) {
        let Some(behavior) = &mut self.spec.behavior else {
            return;
        };
        let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        for (field, rules) in [
            ("scaleUp", &mut behavior.scale_up),
            ("scaleDown", &mut behavior.scale_down),
        ] {
            // An empty list of policies gets no defaults, unlike an absent one: validation rejects it.
            if let Some(rules) = rules
                && document["spec"]["behavior"][field]["policies"].is_array()
            {
                rules.policies.get_or_insert_default();
            }
        }
    }
}
