//! What components of this process ask of extension API servers: to read something, and to empty a namespace that is
//! being deleted.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use knarr_api::Error;
use serde_json::Value;

use super::backend::Backend;
use super::proxy::{Fetch, Fetched};
use crate::authz::{Attributes, Selectors, forbidden};
use crate::request::RequestInfo;
use crate::server::Server;
use crate::user::User;

/// For one request of a component.
const LIMIT: Duration = Duration::from_secs(30);
/// The largest answer, such as a list of all objects in a namespace.
const MAX_BYTES: usize = 32 << 20;

/// A namespaced resource that can be deleted.
struct Deletable {
    plural: String,
    collection: bool,
}

/// Those in a backend's discovery document.
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

/// The answer, or the error it is.
fn accepted(path: &str, answer: Fetched) -> Result<Value, Error> {
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    if answer.status.is_success() {
        return body.ok_or_else(|| Error::internal(format!("{path}: the answer is no JSON")));
    }
    let message = body.as_ref().and_then(|b| b["message"].as_str());
    let message = message.map_or_else(|| format!("{path}: {}", answer.status), str::to_string);
    let reason = match answer.status.as_u16() {
        404 => "NotFound",
        403 => "Forbidden",
        401 => "Unauthorized",
        409 => "Conflict",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    Err(Error::new(answer.status.as_u16(), reason, message))
}

impl Server {
    /// GET or DELETE of a resource of an extension API server, as a component of this process. `None` if no extension API
    /// server serves it.
    pub(crate) async fn ask_extension_server(
        self: &Arc<Self>,
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
            return Err(Error::bad_request(format!("{path:?} is no path of a resource")));
        }
        let attributes = Attributes::of(&info, Selectors::default());
        if !self.authorizer.allows(user, &attributes) {
            return Err(forbidden(user, &attributes));
        }
        let unavailable = |why: String| Error::unavailable(format!("{path}: {why}"));
        if !backend.is_available() {
            return Err(unavailable(
                "the server is currently unable to handle the request".into(),
            ));
        }
        let fetch = Fetch {
            method,
            path,
            accept: "application/json",
            etag: None,
            user,
            max_bytes: MAX_BYTES,
            limit: LIMIT,
        };
        let answer = self.fetch(&backend, fetch).await.map_err(unavailable)?;
        accepted(path, answer).map(Some)
    }

    /// Deletes what extension API servers have in a namespace; an error as long as something is left, or a server cannot
    /// say what it has.
    pub(crate) async fn empty_extension_servers(
        self: &Arc<Self>,
        user: &User,
        namespace: &str,
    ) -> Result<(), Error> {
        let mut left = Vec::new();
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
                match self.empty_collection(user, &path, resource.collection).await {
                    Ok(0) => {}
                    Ok(count) => {
                        let group = &backend.spec.group;
                        left.push(format!("{plural}.{group} has {count} resource instances"));
                    }
                    Err(e) => failed = Some(e),
                }
            }
        }
        match failed {
            Some(e) => Err(e),
            None if left.is_empty() => Ok(()),
            None => Err(Error::new(
                409,
                "Conflict",
                format!("Some resources are remaining: {}", left.join(", ")),
            )),
        }
    }

    /// How many are left afterwards.
    async fn empty_collection(
        self: &Arc<Self>,
        user: &User,
        path: &str,
        collection: bool,
    ) -> Result<usize, Error> {
        let list = || async {
            let list = self.ask_extension_server(user, Method::GET, path).await?;
            let items = list.as_ref().and_then(|l| l["items"].as_array());
            Ok::<_, Error>(items.cloned().unwrap_or_default())
        };
        let there = list().await?;
        if there.is_empty() {
            return Ok(0);
        }
        if collection {
            self.ask_extension_server(user, Method::DELETE, path).await?;
            return Ok(list().await?.len());
        }
        for item in &there {
            let Some(name) = item["metadata"]["name"].as_str() else {
                continue;
            };
            let one = format!("{path}/{name}");
            match self.ask_extension_server(user, Method::DELETE, &one).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(list().await?.len())
    }
}
