//! Paths that are no resource's: health, version, discovery, OpenAPI, keys, metrics.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY,
};
use http::{Method, Response, StatusCode};
use knarr_api::emulation::{self, Emulation};
use knarr_api::registry::Served;
use knarr_api::{Error, discovery, openapi};
use serde_json::{Value, json};

use super::Http;
use super::accept::{self, Form, Offered, OpenApiMedia};
use super::answer::{Answer, text};
use super::body::{Body, full, gzip};
use super::resource::not_found;
use crate::aggregation::{self, Backend, add_to_index, merge, with_all};
use crate::metrics;
use crate::pipeline::{Ctx, not_allowed, not_served};
use crate::resource_metrics;
use crate::server::Server;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// What is answered for either of its two names.
const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// A document that changes only with what is served, in both encodings.
pub struct Document {
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
            plain: plain.into(),
            etag,
            content_type,
        })
    }

    fn answer(&self, http: &Http) -> Response<Body> {
        let fresh = http
            .header(IF_NONE_MATCH)
            .split(',')
            .any(|t| t.trim() == self.etag);
        let compressed = http.wants.gzip && self.plain.len() > self.gzip.len();
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

impl Server {
    pub(super) async fn raw(
        self: &Arc<Self>,
        ctx: &Ctx,
        http: &mut Http,
        accepts: &str,
    ) -> Result<Response<Body>, Error> {
        let path = http.info.path.clone();
        let path = if path.len() > 1 {
            path.trim_end_matches('/')
        } else {
            &path
        };
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        // These answer whatever the method, as kube-apiserver's.
        match segments.as_slice() {
            ["healthz" | "livez" | "readyz", ..] => return Ok(self.health(http, &segments)),
            ["metrics", "slis"] => return Ok(text(StatusCode::OK, self.metrics.slis())),
            ["metrics"] => return Ok(text(StatusCode::OK, self.metrics_text())),
            ["openapi", ..] => return self.openapi(http, &segments[1..]),
            _ => {}
        }
        // The index, the list of groups and each group, too; everything else answers GET alone.
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
                return published(&self.tokens.jwks(), "application/jwk-set+json");
            }
            [".well-known", "openid-configuration"] => {
                let here = format!("https://{}", self.config.advertised);
                return published(&self.tokens.discovery(&here), "application/json");
            }
            _ => {}
        }
        let form = |http: &mut Http, discovery: bool| -> Result<Form, Error> {
            let offered = Offered {
                discovery,
                tables: !discovery,
                streams: false,
            };
            http.wants.form = accept::negotiate(accepts, "", offered)?;
            Ok(http.wants.form)
        };
        let served = self.cache.served();
        let value = match segments.as_slice() {
            ["version"] => Some(version(self.cache.served().emulation())),
            ["api"] if form(http, true)?.aggregated => return self.aggregated(http, true),
            ["apis"] if form(http, true)?.aggregated => return self.aggregated(http, false),
            ["api"] => Some(discovery::api_versions(&self.config.advertised)),
            ["apis"] => {
                let mut list = discovery::group_list(&served);
                if let Some(groups) = list["groups"].as_array_mut() {
                    if self.serves_resource_metrics() {
                        groups.push(resource_metrics::group());
                    }
                    merge(groups, &self.aggregation.backends(), aggregation::Form::Legacy);
                }
                Some(list)
            }
            ["apis", resource_metrics::GROUP, rest @ ..] if self.serves_resource_metrics() => match rest {
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
                form(http, false)?;
                Some(discovery::resource_list(&served, "", version).ok_or_else(not_served)?)
            }
            ["apis", group] if self.aggregation.has_group(group) => {
                let of_group = |b: &&Arc<Backend>| b.spec.group == *group;
                let backends = self.aggregation.backends();
                let backends: Vec<Arc<Backend>> = backends.iter().filter(of_group).cloned().collect();
                let mut groups: Vec<Value> = discovery::group(&served, group).into_iter().collect();
                merge(&mut groups, &backends, aggregation::Form::Legacy);
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
        let _ = ctx;
        match value {
            Some(value) => {
                form(http, false)?;
                Answer::Document(StatusCode::OK, value).render(http.wants)
            }
            None => unknown(&served, &segments),
        }
    }

    fn aggregated(&self, http: &Http, core: bool) -> Result<Response<Body>, Error> {
        let metrics = !core && self.serves_resource_metrics();
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
                merge(items, &self.aggregation.backends(), aggregation::Form::Aggregated);
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
                // Kubernetes says nothing more either.
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
                add_to_index(&mut index, &self.aggregation.backends());
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

    /// What this server serves, and extension API servers.
    fn openapi_v2(&self) -> Value {
        let own = openapi::v2(&self.cache.served());
        with_all(own, &self.aggregation.backends())
    }

    /// The document in its other form, with the ETag of the JSON that it is made of.
    fn openapi_v2_protobuf(&self, http: &Http) -> Result<Response<Body>, Error> {
        self.kept(http, "openapi/v2 protobuf", || {
            let document = self.openapi_v2();
            let etag = format!("\"{}\"", openapi::hash(&document));
            let encoded = openapi::v2_protobuf(&document).map_err(Error::internal)?;
            Document::encoded(encoded, etag, OPENAPI_V2_PROTOBUF).map(Some)
        })
    }

    /// A JSON document made on first use and kept.
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

    /// Grows whenever a document changes.
    fn documents_changes(&self) -> u64 {
        let served = self.cache.served_changes();
        served.wrapping_add(self.aggregation.changes())
    }

    /// Whatever document is kept under `key`; made on first use, and 404 if there is none.
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
                return Ok(document.answer(http));
            }
        }
        let Some(document) = make()?.map(Arc::new) else {
            // Kubernetes says nothing more either.
            let mut response = Response::new(full(Bytes::new()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok(response);
        };
        let mut kept = self.documents.lock();
        // What was made while something changed is right for this answer only.
        if kept.0 == changes && self.documents_changes() == changes {
            kept.1.insert(key.to_string(), document.clone());
        }
        drop(kept);
        Ok(document.answer(http))
    }

    fn metrics_text(&self) -> String {
        let mut out = self.metrics.text();
        self.flows.write_metrics(&mut out);
        if let Some(audit) = &self.config.options.audit {
            let name = "apiserver_audit_error_total";
            metrics::head(&mut out, name, "counter", "Audit events that were dropped.");
            out += &format!("{name}{{plugin=\"log\"}} {}\n", audit.dropped());
        }
        for name in ["apiserver_storage_objects", "apiserver_resource_objects"] {
            let of_old = name == "apiserver_storage_objects";
            metrics::head(&mut out, name, "gauge", "Objects there are.");
            let mut objects: Vec<_> = self
                .cache
                .objects()
                .map(|(k, n)| match of_old {
                    true => (format!("resource=\"{}\"", k.qualified()), n),
                    false => (format!("group=\"{}\",resource=\"{}\"", k.group(), k.plural()), n),
                })
                .collect();
            objects.sort();
            for (labels, n) in objects {
                out += &format!("{name}{{{labels}}} {n}\n");
            }
        }
        metrics::head(
            &mut out,
            "knarr_cache_revision",
            "gauge",
            "The last write the caches show.",
        );
        out += &format!("knarr_cache_revision {}\n", self.cache.revision());
        out + &self.aggregation.metrics_text() + &self.metrics.others()
    }
}

/// The answer to a path that names nothing.
fn unknown(served: &Served, segments: &[&str]) -> Result<Response<Body>, Error> {
    match segments {
        ["version", ..] | ["api", ..] => Err(not_served()),
        ["apis", group, rest @ ..] => {
            let version = rest.first().copied().unwrap_or("");
            not_found(served, group, version)
        }
        _ => Ok(text(StatusCode::NOT_FOUND, "404 page not found\n")),
    }
}

/// What whoever checks service-account tokens reads, in the one form it has, and keeps for an hour as with Kubernetes.
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

fn root_paths(served: &Served, backends: &[Arc<Backend>]) -> Vec<String> {
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
