//! One APIService that names a Service, and the state of the extension API server behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::k8s_openapi;
use knarr_client::NodeDialer;
use parking_lot::Mutex;
use serde_json::Value;

use super::openapi::OpenApiV2;
use super::spec::Spec;
use super::transport::{Transport, TransportError};
use crate::identity::Identity;

/// The priorities that order groups, and the versions of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Priorities {
    pub group: i32,
    pub version: i32,
}

/// The server's discovery and OpenAPI documents, as downloaded last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Documents {
    pub priorities: Priorities,
    /// Its APIVersionDiscovery without `freshness`; `None` before the first download.
    pub discovery: Option<Value>,
    /// Whether the last download of `discovery` succeeded.
    pub fresh: bool,
    /// ETag of the discovery document.
    pub etag: Option<String>,
    pub openapi: Option<Arc<OpenApiV2>>,
    /// The query of its OpenAPI v3 document's URL; `None` if it has no such document.
    pub openapi_v3: Option<String>,
}

/// An APIService that is served by an extension API server.
pub(crate) struct Backend {
    /// The APIService's name.
    pub name: String,
    pub spec: Spec,
    /// The client for its endpoints, or why there is none.
    pub(super) transport: Result<Transport, TransportError>,
    /// Whether the APIService's condition `Available` is `True`.
    available: AtomicBool,
    pub(super) documents: Mutex<Documents>,
}

impl Backend {
    pub(super) fn new(
        name: &str,
        spec: Spec,
        identity: Option<&Identity>,
        nodes: &Arc<dyn NodeDialer>,
    ) -> Self {
        Backend {
            name: name.to_string(),
            transport: Transport::new(&spec, identity, nodes),
            spec,
            available: AtomicBool::new(false),
            documents: Mutex::default(),
        }
    }

    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.spec.group == group && self.spec.version == version
    }

    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// Updates the state from the APIService. True if that changes discovery.
    pub(super) fn update(&self, api_service: &APIService) -> bool {
        let available = available(api_service);
        self.available.store(available, Ordering::Release);
        let spec = api_service.spec.as_ref();
        let priorities = Priorities {
            group: spec.map_or(0, |s| s.group_priority_minimum),
            version: spec.map_or(0, |s| s.version_priority),
        };
        let mut documents = self.documents.lock();
        let before = documents.clone();
        documents.priorities = priorities;
        if !available {
            // As in kube-aggregator: listed without resources, and stale.
            documents.discovery = None;
            documents.etag = None;
            documents.fresh = false;
        }
        *documents != before
    }

    pub(super) fn priorities(&self) -> Priorities {
        self.documents.lock().priorities
    }
}

/// Whether the condition `Available` is `True`.
pub(super) fn available(api_service: &APIService) -> bool {
    let conditions = api_service.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c.type_ == "Available" && c.status == "True")
}
