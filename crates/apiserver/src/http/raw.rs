//! Non-resource paths: health, version, discovery, OpenAPI, keys, metrics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY,
};
use http::{Method, Response, StatusCode};
use knarr_api::emulation::{self, Emulation};
use knarr_api::feature_gates;
use knarr_api::registry::{self, ServedKinds};
use knarr_apimachinery::Error;
use knarr_client::metrics::{self, Samples};
use knarr_openapi as openapi;
use knarr_openapi::discovery;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Http;
use super::accept::{self, MediaTypeOptions, Offered, OpenApiMedia};
use super::body::{Body, full, gzip};
use super::health::health;
use super::resource::not_found;
use super::response::{HandlerResponse, text};
use crate::aggregation::{self, Aggregation, Backend, add_backends_to_index, merge, with_backends};
use crate::audit::Audit;
use crate::authn::Authenticator;
use crate::cache::Cache;
use crate::cache::change::Filter;
use crate::flow_control::FlowControl;
use crate::metrics::Metrics;
use crate::metrics::pod_resources;
use crate::request::{not_allowed, not_served};
use crate::resource_metrics::{self, ResourceMetrics};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The content type for both of its names.
const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// A document that changes only with the served kinds, plain and gzipped.
pub(crate) struct Document {
    plain: Bytes,
    gzip: Bytes,
    etag: String,
    content_type: &'static str,
}

impl Document {
    pub fn new(value: &Value, content_type: &'static str) -> Result<Self, Error> {
        let plain = serde_json::to_vec(value).map_err(Error::internal)?;
        let etag = format!("\"{}\"", openapi::hash(value));
        Document::encoded(plain, etag, content_type)
    }

    fn encoded(plain: Vec<u8>, etag: String, content_type: &'static str) -> Result<Self, Error> {
        Ok(Document {
            gzip: gzip(&plain).map_err(Error::internal)?.into(),
            // Without the spare capacity of a buffer that has grown.
            plain: plain.into_boxed_slice().into(),
            etag,
            content_type,
        })
    }

    fn response(&self, http: &Http) -> Response<Body> {
        let fresh = http
            .header(IF_NONE_MATCH)
            .split(',')
            .any(|t| t.trim() == self.etag);
        let compressed = http.format.gzip && self.plain.len() > self.gzip.len();
        let mut response = Response::new(match (fresh, compressed) {
            (true, _) => full(Bytes::new()),
            (false, true) => full(self.gzip.clone()),
            (false, false) => full(self.plain.clone()),
        });
        if fresh {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(ETAG, etag);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        if compressed && !fresh {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// Serves these paths.
pub(crate) struct NonResources {
    pub cache: Arc<Cache>,
    pub metrics: Arc<Metrics>,
    pub authenticator: Arc<Authenticator>,
    pub aggregation: Arc<Aggregation>,
    pub resource_metrics: Arc<ResourceMetrics>,
    pub flow_control: Arc<FlowControl>,
    pub audit: Option<Audit>,
    /// The address that clients use: `host:port`.
    pub advertised: String,
    /// OpenAPI documents, kept until the number, which counts changes of what is served, changes.
    pub documents: Mutex<(u64, HashMap<String, Arc<Document>>)>,
}

impl NonResources {
    pub async fn serve(&self, http: &mut Http, accepts: &str) -> Result<Response<Body>, Error> {
        self.forget_outdated_documents();
        let path = http.info.path.clone();
        let path = if path.len() > 1 {
            path.trim_end_matches('/')
        } else {
            &path
        };
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        // These accept any method, as in kube-apiserver.
        match segments.as_slice() {
            ["healthz" | "livez" | "readyz", ..] => {
                return Ok(health(&self.cache, &self.metrics, http, &segments));
            }
            ["metrics", "slis"] => return Ok(metrics_page(self.metrics.slis())),
            ["metrics", "resources"] => return Ok(metrics_page(self.pod_resources_text())),
            ["metrics"] => return Ok(metrics_page(self.metrics_text().await)),
            ["openapi", ..] => return self.openapi(http, &segments[1..]),
            _ => {}
        }
        // So do the index, the list of groups and each group; all other paths accept GET only.
        if http.method != Method::GET && !matches!(segments.as_slice(), ["" | "apis"] | ["apis", _]) {
            let served = self.cache.served();
            let found = match segments.as_slice() {
                ["version" | "api"] | ["openid", "v1", "jwks"] | [".well-known", "openid-configuration"] => {
                    true
                }
                ["api", version] => !served.of("", version).is_empty(),
                ["apis", group, version] => !served.of(group, version).is_empty(),
                _ => false,
            };
            return match found {
                true => Err(not_allowed()),
                false => unknown(&served, &segments),
            };
        }
        match segments.as_slice() {
            ["openid", "v1", "jwks"] => {
                return published(&self.authenticator.tokens.jwks(), "application/jwk-set+json");
            }
            [".well-known", "openid-configuration"] => {
                let here = format!("https://{}", self.advertised);
                return published(&self.authenticator.tokens.discovery(&here), "application/json");
            }
            _ => {}
        }
        let media_type = |http: &mut Http, discovery: bool| -> Result<MediaTypeOptions, Error> {
            let offered = Offered {
                discovery,
                tables: !discovery,
                streams: false,
            };
            http.format.media_type = accept::negotiate(accepts, "", offered)?;
            Ok(http.format.media_type)
        };
        let served = self.cache.served();
        let value = match segments.as_slice() {
            ["version"] => Some(version(self.cache.served().emulation())),
            ["api"] if media_type(http, true)?.aggregated => return self.aggregated(http, true),
            ["apis"] if media_type(http, true)?.aggregated => return self.aggregated(http, false),
            ["api"] => Some(discovery::api_versions(&self.advertised)),
            ["apis"] => {
                let mut list = discovery::group_list(&served);
                if let Some(groups) = list["groups"].as_array_mut() {
                    if self.resource_metrics.is_served() {
                        groups.push(resource_metrics::group());
                    }
                    merge(
                        groups,
                        &self.aggregation.backends(),
                        aggregation::DiscoveryFormat::Legacy,
                    );
                }
                Some(list)
            }
            ["apis", resource_metrics::GROUP, rest @ ..] if self.resource_metrics.is_served() => match rest {
                [] => {
                    let mut group = resource_metrics::group();
                    group["kind"] = "APIGroup".into();
                    group["apiVersion"] = "v1".into();
                    Some(group)
                }
                ["v1beta1"] => Some(resource_metrics::resources()),
                _ => None,
            },
            ["api", version] => {
                media_type(http, false)?;
                Some(discovery::resource_list(&served, "", version).ok_or_else(not_served)?)
            }
            ["apis", group] if self.aggregation.has_group(group) => {
                let of_group = |b: &&Arc<Backend>| b.spec.group == *group;
                let backends = self.aggregation.backends();
                let backends: Vec<Arc<Backend>> = backends.iter().filter(of_group).cloned().collect();
                let mut groups: Vec<Value> = discovery::group(&served, group).into_iter().collect();
                merge(&mut groups, &backends, aggregation::DiscoveryFormat::Legacy);
                groups.pop().map(|mut group| {
                    group["kind"] = "APIGroup".into();
                    group["apiVersion"] = "v1".into();
                    group
                })
            }
            ["apis", group] => discovery::group(&served, group),
            ["apis", group, version] => discovery::resource_list(&served, group, version),
            [""] => Some(json!({"paths": root_paths(&served, &self.aggregation.backends())})),
            _ => None,
        };
        match value {
            Some(value) => {
                media_type(http, false)?;
                HandlerResponse::Document(StatusCode::OK, value).render(http.format)
            }
            None => unknown(&served, &segments),
        }
    }

    fn aggregated(&self, http: &Http, core: bool) -> Result<Response<Body>, Error> {
        let metrics = !core && self.resource_metrics.is_served();
        let key = match (core, metrics) {
            (true, _) => "aggregated/api",
            (false, false) => "aggregated/apis",
            (false, true) => "aggregated/apis and metrics",
        };
        self.document(http, key, AGGREGATED, || {
            let mut list = discovery::aggregated(&self.cache.served(), core);
            if let (true, Some(items)) = (metrics, list["items"].as_array_mut()) {
                items.push(resource_metrics::aggregated());
            }
            if let (false, Some(items)) = (core, list["items"].as_array_mut()) {
                merge(
                    items,
                    &self.aggregation.backends(),
                    aggregation::DiscoveryFormat::Aggregated,
                );
            }
            Some(list)
        })
    }

    fn openapi(&self, http: &Http, segments: &[&str]) -> Result<Response<Body>, Error> {
        match segments {
            ["v2"] => match accept::openapi_v2(http.header(ACCEPT)) {
                Some(OpenApiMedia::Json) => {
                    self.document(http, "openapi/v2", "application/json", || Some(self.openapi_v2()))
                }
                Some(OpenApiMedia::Protobuf) => self.openapi_v2_protobuf(http),
                // Kubernetes' message is empty, too.
                None => {
                    let mut response = Response::new(full(Bytes::new()));
                    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
                    response
                        .headers_mut()
                        .insert(VARY, HeaderValue::from_static("Accept"));
                    Ok(response)
                }
            },
            ["v3"] => self.document(http, "openapi/v3", "text/plain; charset=utf-8", || {
                let mut index = openapi::v3_index(&self.cache.served());
                add_backends_to_index(&mut index, &self.aggregation.backends());
                Some(index)
            }),
            ["v3", rest @ ..] => {
                let path = rest.join("/");
                self.document(http, &format!("openapi/v3/{path}"), "application/json", || {
                    openapi::v3(&self.cache.served(), &path)
                })
            }
            _ => Ok(text(StatusCode::NOT_FOUND, "404 page not found\n")),
        }
    }

    /// The OpenAPI document of this server and of extension API servers.
    fn openapi_v2(&self) -> Value {
        let own = openapi::v2(&self.cache.served());
        with_backends(own, &self.aggregation.backends())
    }

    /// The document in protobuf, with the ETag of the JSON document.
    fn openapi_v2_protobuf(&self, http: &Http) -> Result<Response<Body>, Error> {
        self.kept(http, "openapi/v2 protobuf", || {
            let document = self.openapi_v2();
            let etag = format!("\"{}\"", openapi::hash(&document));
            let encoded = openapi::v2_protobuf(&document).map_err(Error::internal)?;
            Document::encoded(encoded, etag, OPENAPI_V2_PROTOBUF).map(Some)
        })
    }

    /// A JSON document that is built at its first use and cached.
    fn document(
        &self,
        http: &Http,
        key: &str,
        content_type: &'static str,
        make: impl FnOnce() -> Option<Value>,
    ) -> Result<Response<Body>, Error> {
        self.kept(http, key, || {
            make()
                .map(|value| Document::new(&value, content_type))
                .transpose()
        })
    }

    /// Incremented whenever a document changes.
    fn documents_changes(&self) -> u64 {
        let served = self.cache.served_changes();
        served.wrapping_add(self.aggregation.changes())
    }

    /// Drops documents of what was served before, some megabytes. With any request for a non-resource path, such as a health check, because
    /// no client may request a document again.
    fn forget_outdated_documents(&self) {
        let changes = self.documents_changes();
        let mut kept = self.documents.lock();
        if kept.0 != changes {
            *kept = (changes, HashMap::new());
        }
    }

    /// The document that is cached under `key`, built at its first use; 404 if there is none.
    fn kept(
        &self,
        http: &Http,
        key: &str,
        make: impl FnOnce() -> Result<Option<Document>, Error>,
    ) -> Result<Response<Body>, Error> {
        let changes = self.documents_changes();
        {
            let mut kept = self.documents.lock();
            if kept.0 != changes {
                *kept = (changes, HashMap::new());
            } else if let Some(document) = kept.1.get(key).cloned() {
                return Ok(document.response(http));
            }
        }
        let Some(document) = make()?.map(Arc::new) else {
            // Kubernetes' message is empty, too.
            let mut response = Response::new(full(Bytes::new()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok(response);
        };
        let mut kept = self.documents.lock();
        // A document that was built during a change is used for this response only.
        if kept.0 == changes && self.documents_changes() == changes {
            kept.1.insert(key.to_string(), document.clone());
        }
        drop(kept);
        Ok(document.response(http))
    }

    fn pod_resources_text(&self) -> String {
        let pods = self.cache.of(&registry::POD);
        let pods = pods.map(|cache| cache.list(&Filter::everything(&registry::POD, "")));
        let pods = pods.unwrap_or_default();
        pod_resources::text(pods.iter().filter_map(|pod| pod.get()))
    }

    async fn metrics_text(&self) -> String {
        let mut samples = Samples::default();
        self.flow_control.write_metrics(&mut samples);
        if let Some(audit) = &self.audit {
            samples.counter(
                "apiserver_audit_error_total",
                "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.",
            );
            samples.add(&[("plugin", "log")], audit.dropped() as f64);
        }
        self.cache.write_metrics(&mut samples);
        let size = tokio::time::timeout(STORE_SIZE_TIMEOUT, self.cache.store().size_bytes());
        if let Ok(Ok(bytes)) = size.await {
            samples.gauge(
                "apiserver_storage_size_bytes",
                "Size of the storage database file physically allocated in bytes.",
            );
            samples.add(&[("storage_cluster_id", "etcd-0")], bytes as f64);
        }
        self.aggregation.write_metrics(&mut samples);
        samples.gauge(
            "kubernetes_feature_enabled",
            "This metric records the data about the stage and enablement of a k8s feature.",
        );
        let gates = feature_gates::current();
        let scale_to_zero = u8::from(gates.hpa_scale_to_zero);
        samples.add(
            &[("name", "HPAScaleToZero"), ("stage", "ALPHA")],
            scale_to_zero.into(),
        );
        self.metrics.text(samples)
    }
}

/// How long the metrics wait for the store's size.
const STORE_SIZE_TIMEOUT: Duration = Duration::from_secs(1);

/// Metrics in Prometheus' text format.
fn metrics_page(page: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, page);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

/// The response for a path that does not exist.
fn unknown(served: &ServedKinds, segments: &[&str]) -> Result<Response<Body>, Error> {
    match segments {
        ["version", ..] | ["api", ..] => Err(not_served()),
        ["apis", group, rest @ ..] => {
            let version = rest.first().copied().unwrap_or("");
            not_found(served, group, version)
        }
        _ => Ok(text(StatusCode::NOT_FOUND, "404 page not found\n")),
    }
}

/// Documents for verifiers of service-account tokens, in one media type, cacheable for an hour as in Kubernetes.
fn published(document: &Value, content_type: &'static str) -> Result<Response<Body>, Error> {
    let json = serde_json::to_vec(document).map_err(Error::internal)?;
    let mut response = Response::new(full(json));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Ok(response)
}

fn version(emulation: Emulation) -> Value {
    json!({
        "major": "1",
        "minor": emulation::MINOR.to_string(),
        "emulationMajor": "1",
        "emulationMinor": emulation.minor().to_string(),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": emulation.min_compatibility_minor().to_string(),
        "gitVersion": concat!("v1.36.2+knarr-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": concat!("linux/", "amd64"),
    })
}

fn root_paths(served: &ServedKinds, backends: &[Arc<Backend>]) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ]
    .map(String::from)
    .into();
    for (group, versions) in served.groups() {
        if group.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|v| format!("/apis/{group}/{v}")));
    }
    for backend in backends {
        paths.push(format!("/apis/{}", backend.spec.group));
        paths.push(format!("/apis/{}", backend.spec.group_version()));
    }
    paths.sort();
    paths.dedup();
    paths
}
