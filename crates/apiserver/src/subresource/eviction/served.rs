//! Whether the Services that select a pod have it as an endpoint (SPEC B7).
//!
//! That is enough for no connection to fail. Each node applies changes of EndpointSlices in their order: where the evicted pod has been
//! withdrawn, its replacement was added before. And the evicted pod gets TERM only after the proxies of all nodes have withdrawn it (the
//! endpoint barrier).

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::kinds::endpoint_slice::has_ready;
use knarr_api::well_known::SERVICE_NAME;
use knarr_api::{Object, k8s_openapi};

/// The Services and EndpointSlices of a namespace.
pub(super) struct Served {
    pub services: Vec<Arc<Object>>,
    pub slices: Vec<Arc<Object>>,
}

impl Served {
    /// Why connections to the pod's Services do not reach it yet.
    pub fn unserved(&self, pod: &Pod) -> Option<String> {
        let services = self.services.iter().filter_map(|object| object.get::<Service>());
        services
            .filter(|service| selects(service, pod))
            .find_map(|service| self.unserved_by(service, pod))
    }

    fn unserved_by(&self, service: &Service, pod: &Pod) -> Option<String> {
        let name = service.metadata.name.as_deref().unwrap_or("");
        let mut slices = self.slices.iter().filter(|object| {
            let labels = object.metadata().labels.as_ref();
            labels.and_then(|l| l.get(SERVICE_NAME)).map(String::as_str) == Some(name)
        });
        let is_endpoint = slices.any(|object| {
            object
                .get::<EndpointSlice>()
                .is_some_and(|slice| has_ready(slice, pod))
        });
        (!is_endpoint).then(|| format!("no EndpointSlice of Service {name} has it as ready"))
    }
}

fn selects(service: &Service, pod: &Pod) -> bool {
    let Some(spec) = &service.spec else { return false };
    let Some(selector) = spec.selector.as_ref().filter(|s| !s.is_empty()) else {
        return false;
    };
    let labels = pod.metadata.labels.as_ref();
    spec.type_.as_deref() != Some("ExternalName")
        && selector
            .iter()
            .all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use knarr_api::Kind;
    use knarr_api::registry::{ENDPOINT_SLICE, SERVICE};
    use serde_json::{Value, json};

    use super::*;

    fn stored(kind: &Kind, object: Value, revision: u64) -> Arc<Object> {
        let mut typed = kind.ops.decode(object.to_string().as_bytes()).unwrap().object;
        let stored = Object::encode_for_store(&mut *typed);
        Arc::new(Object::from_stored(kind, typed, &stored, revision))
    }

    fn service(name: &str, spec: Value) -> Arc<Object> {
        stored(
            &SERVICE,
            json!({"metadata": {"namespace": "a", "name": name}, "spec": spec}),
            1,
        )
    }

    fn slice(service: &str, endpoint: Value, revision: u64) -> Arc<Object> {
        let slice = json!({
            "metadata": {"namespace": "a", "name": format!("{service}-{revision}"), "labels": {SERVICE_NAME: service}},
            "addressType": "IPv4", "endpoints": [endpoint],
        });
        stored(&ENDPOINT_SLICE, slice, revision)
    }

    fn endpoint(uid: &str, ready: bool) -> Value {
        json!({"addresses": ["10.0.0.1"], "targetRef": {"uid": uid}, "conditions": {"ready": ready}})
    }

    #[test]
    fn b6_b7_a_pod_is_served_when_each_of_its_services_has_it_as_a_ready_endpoint() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"uid": "u", "labels": {"app": "web", "tier": "1"}}}))
                .unwrap();
        let web = || service("web", json!({"selector": {"app": "web"}}));
        let none = "no EndpointSlice of Service web has it as ready";
        for (what, services, slices, expected) in [
            ("no service", vec![], vec![], None),
            (
                "an endpoint",
                vec![web()],
                vec![slice("web", endpoint("u", true), 10)],
                None,
            ),
            (
                "an endpoint of one of two slices",
                vec![web()],
                vec![
                    slice("web", endpoint("v", true), 9),
                    slice("web", endpoint("u", true), 11),
                ],
                None,
            ),
            (
                "one of two Services",
                vec![service("api", json!({"selector": {"app": "web"}})), web()],
                vec![slice("api", endpoint("u", true), 9)],
                Some(none),
            ),
            ("no slice", vec![web()], vec![], Some(none)),
            (
                "not ready",
                vec![web()],
                vec![slice("web", endpoint("u", false), 9)],
                Some(none),
            ),
            (
                "another pod's",
                vec![web()],
                vec![slice("web", endpoint("v", true), 9)],
                Some(none),
            ),
            (
                "services that do not select it",
                vec![
                    service("other", json!({"selector": {"app": "web", "tier": "2"}})),
                    service("all", json!({"selector": {}})),
                    service("manual", json!({})),
                    service(
                        "name",
                        json!({"type": "ExternalName", "selector": {"app": "web"}, "externalName": "x.example"}),
                    ),
                ],
                vec![],
                None,
            ),
        ] {
            let served = Served { services, slices };
            assert_eq!(served.unserved(&pod).as_deref(), expected, "{what}");
        }
    }
}
