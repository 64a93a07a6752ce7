//! Whether an APIService is available: the condition `Available` with kube-aggregator's reasons and messages.
//!
//! First the Service and its EndpointSlices are checked, then the group version is requested from the endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::Method;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::time::seconds;

use super::ExtensionServers;
use super::backend::Backend;
use super::endpoint::is_ready;
use super::proxy::{FetchError, FetchRequest};
use super::spec::Spec;
use crate::user::{MASTERS, User};

const AVAILABLE: &str = "Available";
/// How long an endpoint may take to respond.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// Endpoints that are checked concurrently; one that responds is enough.
const ENDPOINTS_CHECKED: usize = 5;
/// The largest response that is read. Its content is discarded.
const RESPONSE_MAX_BYTES: usize = 4 << 20;

/// Why an endpoint does not serve the group version, in kube-aggregator's words.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("failing or missing response from {url}: Get {url:?}: {error}")]
    Fetch { url: String, error: FetchError },
    #[error("failing or missing response from {url}: bad status from {url}: {status}")]
    Status { url: String, status: u16 },
}

/// The condition `Available` of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AvailableCondition {
    pub available: bool,
    pub reason: &'static str,
    pub message: String,
}

impl AvailableCondition {
    fn unavailable(reason: &'static str, message: String) -> Self {
        AvailableCondition {
            available: false,
            reason,
            message,
        }
    }

    pub fn passed() -> Self {
        AvailableCondition {
            available: true,
            reason: "Passed",
            message: "all checks passed".into(),
        }
    }

    pub fn local() -> Self {
        AvailableCondition {
            available: true,
            reason: "Local",
            message: "Local APIServices are always available".into(),
        }
    }

    /// Sets the condition of an APIService. True if that changes it.
    pub fn write(&self, api_service: &mut APIService, now: Timestamp) -> bool {
        let status = if self.available { "True" } else { "False" };
        let all = api_service.status.get_or_insert_default();
        let all = all.conditions.get_or_insert_default();
        let Some(condition) = all.iter_mut().find(|c| c.type_ == AVAILABLE) else {
            all.push(APIServiceCondition {
                type_: AVAILABLE.into(),
                status: status.into(),
                last_transition_time: Some(seconds(now)),
                reason: Some(self.reason.into()),
                message: Some(self.message.clone()),
            });
            return true;
        };
        let before = condition.clone();
        if condition.status != status {
            condition.status = status.into();
            condition.last_transition_time = Some(seconds(now));
        }
        condition.reason = Some(self.reason.into());
        condition.message = Some(self.message.clone());
        *condition != before
    }
}

/// Why the Service and its EndpointSlices cannot serve the APIService; `None` if they can.
pub(super) fn check_service<'a>(
    spec: &Spec,
    service: Option<&Service>,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> Option<AvailableCondition> {
    let (name, namespace, port) = (&spec.service, &spec.namespace, spec.port);
    let Some(service) = service else {
        return Some(AvailableCondition::unavailable(
            "ServiceNotFound",
            format!("service/{name} in {namespace:?} is not present"),
        ));
    };
    let service = service.spec.as_ref()?;
    if service.type_.as_deref().is_some_and(|t| t != "ClusterIP") {
        return None;
    }
    let mut ports = service.ports.iter().flatten();
    let Some(found) = ports.find(|p| p.port == i32::from(port)) else {
        return Some(AvailableCondition::unavailable(
            "ServicePortError",
            format!("service/{name} in {namespace:?} is not listening on port {port}"),
        ));
    };
    let port_name = found.name.as_deref().unwrap_or_default();
    let slices: Vec<&EndpointSlice> = slices.collect();
    if slices.is_empty() {
        return Some(AvailableCondition::unavailable(
            "EndpointsNotFound",
            format!("cannot find endpointslices for service/{name} in {namespace:?}"),
        ));
    }
    let serves = |slice: &&EndpointSlice| {
        let ready = slice.endpoints.iter().flatten().any(is_ready);
        let mut ports = slice.ports.iter().flatten();
        ready && ports.any(|p| p.name.as_deref().unwrap_or_default() == port_name && p.port.is_some())
    };
    (!slices.iter().any(serves)).then(|| {
        AvailableCondition::unavailable(
            "MissingEndpoints",
            format!(
                "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
            ),
        )
    })
}

impl ExtensionServers {
    /// Checks the APIService's Service, then its endpoints.
    pub(super) async fn check_availability(&self, backend: &Backend) -> AvailableCondition {
        let spec = &backend.spec;
        let service = self.cache.get(&registry::SERVICE, &spec.namespace, &spec.service);
        let service = service.as_ref().and_then(|o| o.get::<Service>());
        let slices = self.endpoint_slices(&spec.namespace, &spec.service);
        let slices = slices.iter().filter_map(|o| o.get::<EndpointSlice>());
        if let Some(condition) = check_service(spec, service, slices) {
            return condition;
        }
        let addresses = match self.extension_server_addresses(spec) {
            Ok(addresses) => addresses,
            Err(why) => {
                return AvailableCondition::unavailable("FailedDiscoveryCheck", why.to_string());
            }
        };
        let checks = addresses.iter().take(ENDPOINTS_CHECKED);
        let mut checks: FuturesUnordered<_> = checks.map(|to| self.check_endpoint(backend, *to)).collect();
        let mut last = "no endpoint was checked".to_string();
        while let Some(checked) = checks.next().await {
            match checked {
                Ok(()) => return AvailableCondition::passed(),
                Err(why) => last = why.to_string(),
            }
        }
        AvailableCondition::unavailable("FailedDiscoveryCheck", last)
    }

    async fn check_endpoint(&self, backend: &Backend, to: SocketAddr) -> Result<(), CheckError> {
        let path = format!("/apis/{}", backend.spec.group_version());
        let url = format!("https://{to}{path}");
        let fetch = FetchRequest {
            method: Method::GET,
            path: &path,
            accept: "*/*",
            etag: None,
            user: &User::new("system:kube-aggregator", [MASTERS]),
            max_bytes: RESPONSE_MAX_BYTES,
            limit: CHECK_LIMIT,
        };
        match self.fetch_at(backend, to, fetch).await {
            Ok(response) if response.status.is_success() => Ok(()),
            Ok(response) => {
                let status = response.status.as_u16();
                Err(CheckError::Status { url, status })
            }
            Err(error) => Err(CheckError::Fetch { url, error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec() -> Spec {
        Spec {
            group: "example.com".into(),
            version: "v1".into(),
            namespace: "ns".into(),
            service: "s".into(),
            port: 443,
            ca_bundle: Vec::new(),
            insecure: true,
        }
    }

    fn slice(ready: Option<bool>, port: &str) -> EndpointSlice {
        let value = json!({"addressType": "IPv4", "ports": [{"name": port, "port": 8443}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]});
        serde_json::from_value(value).unwrap()
    }

    /// The cases of the table test of kube-aggregator's remote available controller.
    #[test]
    fn n1_service_and_endpoints_are_reported_as_by_kube_aggregator() {
        let service = |spec: Value| -> Service { serde_json::from_value(json!({ "spec": spec })).unwrap() };
        let api = service(json!({"type": "ClusterIP", "ports": [{"name": "api", "port": 443}]}));
        let other = service(json!({"type": "ClusterIP", "ports": [{"name": "api", "port": 6443}]}));
        let node = service(json!({"type": "NodePort", "ports": [{"name": "api", "port": 6443}]}));
        let fine = slice(Some(true), "api");
        let readiness_unset = slice(None, "api");
        let unready = slice(Some(false), "api");
        let elsewhere = slice(Some(true), "web");
        let missing = Some((
            "MissingEndpoints",
            "endpointslices for service/s in \"ns\" have no addresses with port name \"api\"",
        ));
        for (service, slices, want) in [
            (
                None,
                vec![&fine],
                Some(("ServiceNotFound", "service/s in \"ns\" is not present")),
            ),
            (
                Some(&other),
                vec![&fine],
                Some((
                    "ServicePortError",
                    "service/s in \"ns\" is not listening on port 443",
                )),
            ),
            (
                Some(&api),
                vec![],
                Some((
                    "EndpointsNotFound",
                    "cannot find endpointslices for service/s in \"ns\"",
                )),
            ),
            (Some(&api), vec![&unready], missing),
            (Some(&api), vec![&elsewhere], missing),
            (Some(&api), vec![&unready, &fine], None),
            (Some(&api), vec![&readiness_unset], None),
            // For other Service types only the request is checked.
            (Some(&node), vec![], None),
        ] {
            let found = check_service(&spec(), service, slices.into_iter());
            let found = found.as_ref().map(|v| (v.reason, v.message.as_str()));
            assert_eq!(found, want);
        }
    }

    #[test]
    fn n1_the_condition_keeps_its_time_as_long_as_its_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut api_service = APIService::default();
        assert!(AvailableCondition::passed().write(&mut api_service, at(1)));
        assert!(!AvailableCondition::passed().write(&mut api_service, at(2)));
        let unavailable = |why: &str| AvailableCondition::unavailable("FailedDiscoveryCheck", why.into());
        assert!(unavailable("a").write(&mut api_service, at(3)));
        assert!(unavailable("b").write(&mut api_service, at(4)));
        let conditions = api_service.status.unwrap().conditions.unwrap();
        assert_eq!(conditions.len(), 1);
        let [condition] = conditions.as_slice() else {
            panic!()
        };
        assert_eq!(
            (condition.status.as_str(), condition.message.as_deref()),
            ("False", Some("b"))
        );
        assert_eq!(condition.last_transition_time, Some(seconds(at(3))));
    }
}
