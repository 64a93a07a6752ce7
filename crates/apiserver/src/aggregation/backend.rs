//! One APIService that names a Service, and what is known of the extension API server behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::k8s_openapi;
use knarr_client::NodeDialer;
use parking_lot::Mutex;
use serde_json::Value;

use super::channel::Channel;
use super::openapi::Spec as OpenApi;
use crate::pki::Identity;

const HTTPS_PORT: u16 = 443;

/// What an APIService says of how its server is reached. Another one means another connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub group: String,
    pub version: String,
    /// The Service's.
    pub namespace: String,
    pub service: String,
    pub port: u16,
    /// In PEM; empty: the system's authorities.
    pub ca_bundle: Vec<u8>,
    pub insecure: bool,
}

impl Spec {
    /// `None` if it is served by this server itself.
    pub fn of(api_service: &APIService) -> Option<Self> {
        let spec = api_service.spec.as_ref()?;
        let service = spec.service.as_ref()?;
        Some(Spec {
            group: spec.group.clone().unwrap_or_default(),
            version: spec.version.clone().unwrap_or_default(),
            namespace: service.namespace.clone().unwrap_or_default(),
            service: service.name.clone().unwrap_or_default(),
            port: service
                .port
                .and_then(|port| u16::try_from(port).ok())
                .unwrap_or(HTTPS_PORT),
            ca_bundle: spec.ca_bundle.as_ref().map(|b| b.0.clone()).unwrap_or_default(),
            insecure: spec.insecure_skip_tls_verify == Some(true),
        })
    }

    pub fn group_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// Where it stands among groups, and among the versions of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Priorities {
    pub group: i32,
    pub version: i32,
}

/// What its server shows of itself, as it was downloaded last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Documents {
    pub priorities: Priorities,
    /// Its APIVersionDiscovery without `freshness`; `None` while there is none.
    pub discovery: Option<Value>,
    /// Whether the last download of it succeeded.
    pub fresh: bool,
    /// ETag of the discovery document.
    pub etag: Option<String>,
    pub openapi: Option<Arc<OpenApi>>,
    /// The query of its OpenAPI v3 document; `None` if there is no such document.
    pub openapi_v3: Option<String>,
}

/// See the module.
pub(crate) struct Backend {
    /// The APIService's.
    pub name: String,
    pub spec: Spec,
    /// How it is reached, or why it cannot be.
    pub(super) channel: Result<Channel, String>,
    /// As the APIService's condition says.
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
            channel: Channel::new(&spec, identity, nodes),
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

    /// Takes over what the object says now; whether that changes what discovery shows.
    pub(super) fn follow(&self, api_service: &APIService) -> bool {
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
            // As kube-aggregator shows it: there, with nothing in it, and stale.
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

/// Whether its condition says that it is available.
pub(super) fn available(api_service: &APIService) -> bool {
    let conditions = api_service.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c.type_ == "Available" && c.status == "True")
}
