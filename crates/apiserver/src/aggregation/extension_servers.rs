//! Requests to extension API servers: those of clients, of components of this process, and this server's own checks and downloads.

use std::sync::Arc;
use std::time::Duration;

use knarr_client::NodeDialer;

use super::Aggregation;
use crate::authz::Authorizer;
use crate::cache::Cache;
use crate::seams::Entropy;

/// Sends requests to the extension API servers of [`Aggregation`].
pub(crate) struct ExtensionServers {
    pub aggregation: Arc<Aggregation>,
    /// Services and their EndpointSlices.
    pub cache: Arc<Cache>,
    /// Reaches the pods of an extension API server.
    pub nodes: Arc<dyn NodeDialer>,
    /// Selects one of several endpoints.
    pub entropy: Arc<dyn Entropy>,
    /// Authorizes requests of components of this process; those of clients were authorized before.
    pub authorizer: Arc<dyn Authorizer>,
    /// The timeout of clients' requests that are not watches or streams.
    pub request_timeout: Duration,
}
