//! The fields of an APIService that define which extension API server serves it, and how that server is reached.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::k8s_openapi;

const HTTPS_PORT: u16 = 443;

/// The fields of an APIService that define how its server is reached. A change of them needs a new client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub group: String,
    pub version: String,
    /// The Service's namespace.
    pub namespace: String,
    pub service: String,
    pub port: u16,
    /// CA certificates in PEM; if empty, the system's CAs.
    pub ca_bundle: Vec<u8>,
    pub insecure: bool,
}

impl Spec {
    /// `None` if the group version is served by this server itself.
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
