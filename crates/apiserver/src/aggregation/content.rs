//! Requests of components of this process to extension API servers: reading objects, and deleting the contents of a
//! terminating namespace.

use std::fmt::Display;
use std::time::Duration;

use http::Method;
use knarr_apimachinery::Error;
use serde_json::Value;

use super::ExtensionServers;
use super::backend::Backend;
use super::proxy::{FetchRequest, FetchResponse};
use crate::authz::{Attributes, Selectors, forbidden};
use crate::request::RequestInfo;
use crate::user::User;

/// The timeout of one request.
const LIMIT: Duration = Duration::from_secs(30);
/// The largest response, such as a list of all objects in a namespace.
const MAX_BYTES: usize = 32 << 20;

/// A namespaced resource that can be deleted.
struct Deletable {
    plural: String,
    collection: bool,
}

/// The deletable resources in a backend's discovery document.
fn deletable(backend: &Backend) -> Vec<Deletable> {
    let documents = backend.documents.lock();
    let resources = documents
        .discovery
        .as_ref()
        .and_then(|d| d["resources"].as_array());
    let has = |resource: &Value, verb: &str| {
        let mut verbs = resource["verbs"].as_array().into_iter().flatten();
        verbs.any(|v| v == verb)
    };
    resources
        .into_iter()
        .flatten()
        .filter(|r| r["scope"] == "Namespaced" && has(r, "list") && has(r, "delete"))
        .filter_map(|r| {
            Some(Deletable {
                plural: r["resource"].as_str()?.to_string(),
                collection: has(r, "deletecollection"),
            })
        })
        .collect()
}

/// The response's body, or its error.
fn into_result(path: &str, response: FetchResponse) -> Result<Value, Error> {
    let body: Option<Value> = serde_json::from_slice(&response.body).ok();
    if response.status.is_success() {
        return body.ok_or_else(|| Error::internal(format!("{path}: the response is not JSON")));
    }
    let message = body.as_ref().and_then(|b| b["message"].as_str());
    let message = message.map_or_else(|| format!("{path}: {}", response.status), str::to_string);
    let reason = match response.status.as_u16() {
        404 => "NotFound",
        403 => "Forbidden",
        401 => "Unauthorized",
        409 => "Conflict",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    Err(Error::new(response.status.as_u16(), reason, message))
}

impl ExtensionServers {
    /// GET or DELETE of a resource of an extension API server, as a component of this process. `None` if no extension API
    /// server serves it.
    pub(crate) async fn request_extension_server(
        &self,
        user: &User,
        method: Method,
        path: &str,
    ) -> Result<Option<Value>, Error> {
        let uri: http::Uri = path
            .parse()
            .map_err(|e| Error::bad_request(format!("{path}: {e}")))?;
        let info = RequestInfo::parse(&method, uri.path(), false);
        let Some(backend) = self.aggregation.backend(&info.group, &info.version) else {
            return Ok(None);
        };
        if info.unreadable {
            return Err(Error::bad_request(format!(
                "{path:?} is not the path of a resource"
            )));
        }
        let attributes = Attributes::of(&info, Selectors::default());
        if !self.authorizer.allows(user, &attributes) {
            return Err(forbidden(user, &attributes));
        }
        let unavailable = |why: &dyn Display| Error::unavailable(format!("{path}: {why}"));
        if !backend.is_available() {
            return Err(unavailable(
                &"the server is currently unable to handle the request",
            ));
        }
        let fetch = FetchRequest {
            method,
            path,
            accept: "application/json",
            etag: None,
            user,
            max_bytes: MAX_BYTES,
            limit: LIMIT,
        };
        let response = self.fetch(&backend, fetch).await;
        into_result(path, response.map_err(|e| unavailable(&e))?).map(Some)
    }

    /// Deletes the objects of extension API servers in a namespace. An error as long as objects remain, or a server's discovery
    /// is stale.
    pub(crate) async fn delete_extension_content(&self, user: &User, namespace: &str) -> Result<(), Error> {
        let mut remaining = Vec::new();
        let mut failed = None;
        for backend in self.aggregation.backends().iter() {
            let group_version = backend.spec.group_version();
            if !backend.documents.lock().fresh {
                failed = Some(Error::unavailable(format!(
                    "unable to retrieve the complete list of server APIs: {group_version}: stale GroupVersion \
discovery: {group_version}"
                )));
                continue;
            }
            for resource in deletable(backend) {
                let plural = &resource.plural;
                let path = format!("/apis/{group_version}/namespaces/{namespace}/{plural}");
                match self
                    .delete_extension_collection(user, &path, resource.collection)
                    .await
                {
                    Ok(0) => {}
                    Ok(count) => {
                        let group = &backend.spec.group;
                        remaining.push(format!("{plural}.{group} has {count} resource instances"));
                    }
                    Err(e) => failed = Some(e),
                }
            }
        }
        match failed {
            Some(e) => Err(e),
            None if remaining.is_empty() => Ok(()),
            None => Err(Error::new(
                409,
                "Conflict",
                format!("Some resources are remaining: {}", remaining.join(", ")),
            )),
        }
    }

    /// Deletes all objects of a resource in a namespace. Returns how many remain.
    async fn delete_extension_collection(
        &self,
        user: &User,
        path: &str,
        collection: bool,
    ) -> Result<usize, Error> {
        let list = || async {
            let list = self.request_extension_server(user, Method::GET, path).await?;
            let items = list.as_ref().and_then(|l| l["items"].as_array());
            Ok::<_, Error>(items.cloned().unwrap_or_default())
        };
        let existing = list().await?;
        if existing.is_empty() {
            return Ok(0);
        }
        if collection {
            self.request_extension_server(user, Method::DELETE, path).await?;
            return Ok(list().await?.len());
        }
        for item in &existing {
            let Some(name) = item["metadata"]["name"].as_str() else {
                continue;
            };
            let one = format!("{path}/{name}");
            match self.request_extension_server(user, Method::DELETE, &one).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(list().await?.len())
    }
}
