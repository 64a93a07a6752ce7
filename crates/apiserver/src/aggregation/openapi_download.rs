//! OpenAPI of extension API servers: v2 documents are downloaded and merged into this server's own, v3 documents are proxied
//! by group version.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use knarr_openapi as openapi;
use serde_json::{Value, json};

use super::ExtensionServers;
use super::backend::Backend;
use super::discovery::DownloadError;
use super::openapi::{OpenApiV2, merge};
use super::proxy::{FetchRequest, FetchResponse};
use crate::user::User;

/// The timeout of a download. kube-aggregator's is one minute.
const LIMIT: Duration = Duration::from_secs(20);
/// kube-apiserver's own takes some 4 MB.
const MAX_BYTES: usize = 32 << 20;
/// This server's own document merged with the documents of all extension API servers.
pub(crate) fn with_backends(mut document: Value, backends: &[Arc<Backend>]) -> Value {
    for backend in backends {
        let spec = backend.documents.lock().openapi.clone();
        if let Some(spec) = spec {
            merge(&mut document, &spec);
        }
    }
    document
}

/// Adds the v3 documents of extension API servers to the index.
pub(crate) fn add_backends_to_index(index: &mut Value, backends: &[Arc<Backend>]) {
    for backend in backends {
        let query = backend.documents.lock().openapi_v3.clone();
        let path = format!("apis/{}", backend.spec.group_version());
        match query {
            Some(query) => {
                index["paths"][&path] = json!({"serverRelativeURL": format!("/openapi/v3/{path}{query}")});
            }
            // This server's own document for the group version does not describe what is served.
            None => {
                if let Some(paths) = index["paths"].as_object_mut() {
                    paths.remove(&path);
                }
            }
        }
    }
}

/// The query `?hash=…` of a document's URL; nothing else of the URL is used.
fn query_of(index: &Value, path: &str) -> Option<String> {
    let url = index["paths"].get(path)?["serverRelativeURL"].as_str()?;
    let hash = url.split_once("?hash=").map_or("", |(_, hash)| hash);
    let plain = !hash.is_empty() && hash.len() <= 256 && hash.bytes().all(|b| b.is_ascii_alphanumeric());
    Some(if plain {
        format!("?hash={hash}")
    } else {
        String::new()
    })
}

impl ExtensionServers {
    pub(super) async fn download_openapi(&self, backend: &Backend) -> Result<(), DownloadError> {
        let v2 = self.fetch_v2(backend).await;
        let v3 = self.fetch_v3_index(backend).await;
        let mut documents = backend.documents.lock();
        let before = documents.clone();
        if let Ok(Some(spec)) = &v2 {
            documents.openapi = spec.clone();
        }
        if let Ok(query) = &v3 {
            documents.openapi_v3.clone_from(query);
        }
        if *documents != before {
            self.aggregation.changed();
        }
        v2.map(drop).and(v3.map(drop))
    }

    async fn fetch_document(
        &self,
        backend: &Backend,
        path: &'static str,
        etag: Option<&str>,
    ) -> Result<FetchResponse, DownloadError> {
        let fetch = FetchRequest {
            method: Method::GET,
            path,
            accept: "application/json",
            etag,
            user: &User::new("system:aggregator", [""; 0]),
            max_bytes: MAX_BYTES,
            limit: LIMIT,
        };
        self.fetch(backend, fetch)
            .await
            .map_err(|e| DownloadError::FetchOpenApi(path, e))
    }

    /// `None` if the document has not changed, `Some(None)` if the server has none.
    async fn fetch_v2(&self, backend: &Backend) -> Result<Option<Option<Arc<OpenApiV2>>>, DownloadError> {
        let known = backend.documents.lock().openapi.clone();
        let etag = known.as_ref().and_then(|spec| spec.etag.as_deref());
        let response = self.fetch_document(backend, "/openapi/v2", etag).await?;
        match response.status {
            StatusCode::NOT_MODIFIED => return Ok(None),
            StatusCode::NOT_FOUND => return Ok(Some(None)),
            StatusCode::OK => {}
            other => return Err(DownloadError::Status("/openapi/v2".into(), other)),
        }
        let prefix = format!("/apis/{}/", backend.spec.group_version());
        let etag = response.headers.get(header::ETAG).and_then(|v| v.to_str().ok());
        let etag = etag.map(str::to_string);
        // Some megabytes: parsing would block other requests.
        let read = tokio::task::spawn_blocking(move || {
            let document: Value = serde_json::from_slice(&response.body)
                .map_err(|e| DownloadError::Json("/openapi/v2".into(), e))?;
            let spec = OpenApiV2::of(&document, &prefix, etag);
            // A part that cannot be encoded as protobuf would make the whole document unavailable.
            openapi::v2_protobuf(&spec.document())?;
            Ok::<_, DownloadError>(spec)
        });
        Ok(Some(Some(Arc::new(read.await??))))
    }

    /// The query of the v3 document of the group version, if there is one.
    async fn fetch_v3_index(&self, backend: &Backend) -> Result<Option<String>, DownloadError> {
        let response = self.fetch_document(backend, "/openapi/v3", None).await?;
        match response.status {
            StatusCode::NOT_FOUND => return Ok(None),
            StatusCode::OK => {}
            other => return Err(DownloadError::Status("/openapi/v3".into(), other)),
        }
        let index: Value = serde_json::from_slice(&response.body)
            .map_err(|e| DownloadError::Json("/openapi/v3".into(), e))?;
        Ok(query_of(
            &index,
            &format!("apis/{}", backend.spec.group_version()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_an_index_cannot_lead_to_another_host() {
        let index = |url: &str| json!({"paths": {"apis/g/v1": {"serverRelativeURL": url}}});
        for (url, want) in [
            ("/openapi/v3/apis/g/v1?hash=AB12", "?hash=AB12"),
            ("https://elsewhere.example.com/", ""),
            ("/openapi/v3/apis/g/v1?hash=A&x=/", ""),
        ] {
            assert_eq!(query_of(&index(url), "apis/g/v1"), Some(want.into()), "{url}");
        }
        assert_eq!(query_of(&index(""), "apis/g/v2"), None);
    }
}
