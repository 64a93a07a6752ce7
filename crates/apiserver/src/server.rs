//! The server put together: what it is made of and how it starts.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use knarr_api::Error;
use knarr_api::emulation::Emulation;
use knarr_api::registry::Served;
use knarr_client::{Component, Identities, NodeDialer};
use knarr_store::Store;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::admission::Ledger;
use crate::aggregation::{Aggregation, look_after_extension_servers};
use crate::allocation::{Allocations, ServiceRange};
use crate::audit::Audit;
use crate::authn::StaticTokens;
use crate::authn::service_account::Tokens;
use crate::authn::token_key::KeyFiles;
use crate::authz::{Authorizer, Standard};
use crate::bootstrap::look_after_basics;
use crate::cache::{Cache, Decoded};
use crate::conversion::{ConversionMetrics, Converter};
use crate::custom::look_after_definitions;
use crate::encryption::{AtRest, Encryption};
use crate::endpoint_leases::Leases;
use crate::flow_control::{self, FlowControl, look_after_flows};
use crate::http::connections::{Connections, Limits};
use crate::http::{Document, Patience};
use crate::in_process::{Components, InProcess};
use crate::metrics::Metrics;
use crate::pki::Identity;
use crate::seams::{Clock, Entropy};
use crate::user::User;

/// Who issues service-account tokens, by default.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// The revision of a store that was never written.
const EMPTY_STORE: u64 = 1;
/// How long the store keeps history, for lists that go on; Kubernetes' etcd compaction interval.
const COMPACT_EVERY: Duration = Duration::from_secs(5 * 60);

/// Lets the store forget what is older than one to two intervals.
async fn compact(server: Weak<Server>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(COMPACT_EVERY).await;
        let Some(server) = server.upgrade() else { return };
        if before > 0
            && let Err(e) = server.cache.store().compact(before).await
        {
            // Another server of the same cluster may have been further.
            tracing::debug!("compaction to {before}: {e}");
        }
        before = server.cache.revision();
    }
}

/// How often typed values that somebody asked for, and most likely nobody needs any more, are let go.
const SLIM_EVERY: Duration = Duration::from_secs(30);

async fn slim(server: Weak<Server>) {
    loop {
        tokio::time::sleep(SLIM_EVERY).await;
        let Some(server) = server.upgrade() else { return };
        server.cache.slim();
    }
}

/// What the server is told when it starts.
pub struct Config {
    /// Where clients reach it: `host:port`.
    pub advertised: String,
    /// Where it listens; see [`Options::advertise`] for what the `kubernetes` Service leads to.
    pub address: std::net::IpAddr,
    pub port: u16,
    pub service_range: ServiceRange,
    pub static_tokens: StaticTokens,
    /// Issuer of service-account tokens, see [`ISSUER`].
    pub issuer: String,
    /// Their keys, see [`crate::pki::Pki::service_account_key`].
    pub service_account_key: KeyFiles,
    pub options: Options,
}

/// As kube-apiserver's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What has a default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether who shows no credential is `system:anonymous`; else he is refused.
    pub anonymous: bool,
    /// Where in-cluster clients and other servers reach it (kube-apiserver's `--advertise-address`), for the endpoints
    /// of the Service `kubernetes`; `None`: where it listens, or the address of the machine's default route if it listens
    /// everywhere. Port 0 is the one it listens on.
    pub advertise: Option<std::net::SocketAddr>,
    /// Further issuers whose tokens are taken.
    pub other_issuers: Vec<String>,
    /// What service-account tokens are good for; empty: the issuer.
    pub audiences: Vec<String>,
    /// Where the keys of service-account tokens are published, if not at this server.
    pub jwks_uri: Option<String>,
    /// How values are encrypted in the store.
    pub encryption: Option<Arc<Encryption>>,
    /// What it shares with other servers of this process over the same store, if there are any.
    pub decoded: Option<Arc<Decoded>>,
    /// Whether what components of this process write says who set which field (`managedFields`). Only a process that plays a
    /// cluster for its own sake goes without: nobody reads it there, and it is half of most objects.
    pub tracks_fields_in_process: bool,
    /// Says who may do what, instead of [`Standard`] (kube-apiserver's `--authorization-config`).
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// What is written down of requests, and where.
    pub audit: Option<Audit>,
    /// How many requests that only read, and how many others, are worked on at once: together the seats of all priority
    /// levels.
    pub max_in_flight: (usize, usize),
    /// How long a request may take that is no watch or stream.
    pub request_timeout: Duration,
    /// How long one client is waited for.
    pub patience: Patience,
    /// How many connections are served at once.
    pub connections: Limits,
    /// What it shows to extension API servers, that they believe for whom it asks (kube-apiserver's
    /// `--proxy-client-cert-file`). Without it they take its requests for anonymous ones.
    pub front_proxy: Option<Identity>,
    /// The version whose API is served (kube-apiserver's `--emulated-version`).
    pub emulation: Emulation,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            anonymous: true,
            advertise: None,
            other_issuers: Vec::new(),
            audiences: Vec::new(),
            jwks_uri: None,
            encryption: None,
            decoded: None,
            tracks_fields_in_process: true,
            authorizer: None,
            audit: None,
            max_in_flight: (flow_control::READ_ONLY, flow_control::MUTATING),
            request_timeout: REQUEST_TIMEOUT,
            patience: Patience::default(),
            connections: Limits::default(),
            front_proxy: None,
            emulation: Emulation::default(),
        }
    }
}

/// The outside world: see [`crate::seams`].
pub struct Seams {
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub nodes: Arc<dyn NodeDialer>,
}

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the store cannot be read: {0}")]
    Store(#[from] knarr_store::Error),
    #[error("the service-account key cannot be used: {0}")]
    Key(String),
    #[error("the objects every cluster has cannot be made: {0}")]
    Bootstrap(Error),
}

/// The API server. See the crate.
pub struct Server {
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) nodes: Arc<dyn NodeDialer>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) allocations: Allocations,
    /// Charges to quotas.
    pub(crate) ledger: Ledger,
    pub(crate) tokens: Tokens,
    pub(crate) static_tokens: StaticTokens,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) flows: FlowControl,
    pub(crate) leases: Leases,
    /// Those of all its ports together.
    pub(crate) connections: Arc<Connections>,
    /// Between the versions of custom resources.
    pub(crate) converter: Arc<Converter>,
    pub(crate) policies: crate::admission::extension::Policies,
    pub(crate) aggregation: Aggregation,
    /// Kept as long as what is served does not change, which the number counts.
    pub(crate) documents: Mutex<(u64, HashMap<String, Arc<Document>>)>,
    /// Ends the cache's feed when the server goes.
    _feed: oneshot::Sender<()>,
}

impl Server {
    /// Puts what another component of the process counts on the page `/metrics`, too.
    pub fn show_metrics(&self, source: impl Fn() -> String + Send + Sync + 'static) {
        self.metrics.show(Box::new(source));
    }

    /// Fills the cache, makes what every cluster has, and is ready to serve.
    pub async fn new(
        mut config: Config,
        seams: Seams,
        store: Arc<dyn Store>,
    ) -> Result<Arc<Self>, StartError> {
        let options = &config.options;
        let issuers = [std::slice::from_ref(&config.issuer), &options.other_issuers[..]].concat();
        let tokens = Tokens::new(&issuers, &options.audiences, &config.service_account_key)
            .map_err(StartError::Key)?
            .with_jwks_uri(options.jwks_uri.clone());
        let at_rest = options.encryption.clone().map(|encryption| AtRest {
            encryption,
            entropy: seams.entropy.clone(),
        });
        let (read_only, mutating) = options.max_in_flight;
        let limits = options.connections;
        let flows = FlowControl::new(read_only.saturating_add(mutating));
        let metrics = Arc::<Metrics>::default();
        let cache = Cache::with(store, at_rest, metrics.clone(), options.decoded.clone());
        cache.emulate(options.emulation);
        let (feed, stop) = oneshot::channel();
        cache.start(stop).await?;
        let fresh = cache.revision() <= EMPTY_STORE;
        let static_tokens = std::mem::take(&mut config.static_tokens);
        let standard = || -> Arc<dyn Authorizer> { Arc::new(Standard::new(cache.clone())) };
        let authorizer = config.options.authorizer.clone().unwrap_or_else(standard);
        let aggregation = Aggregation::new(config.options.front_proxy.take());
        let conversions = Arc::<ConversionMetrics>::default();
        let converter = Converter::new(cache.clone(), seams.entropy.clone(), conversions.clone());
        metrics.show(Box::new(move || conversions.text()));
        let server = Arc::new(Server {
            converter,
            allocations: Allocations::new(config.service_range, seams.entropy.clone()),
            ledger: Ledger::default(),
            config,
            clock: seams.clock,
            entropy: seams.entropy,
            nodes: seams.nodes,
            authorizer,
            cache,
            tokens,
            static_tokens,
            metrics,
            flows,
            leases: Leases::default(),
            connections: Connections::new(limits),
            policies: Default::default(),
            aggregation,
            documents: Mutex::default(),
            _feed: feed,
        });
        server.bootstrap().await.map_err(StartError::Bootstrap)?;
        server.settle_flows();
        server.follow_api_services();
        if fresh {
            // Nobody saw the cluster before it had what every cluster has.
            server.cache.forget_history().await?;
        }
        tokio::spawn(compact(Arc::downgrade(&server)));
        tokio::spawn(slim(Arc::downgrade(&server)));
        tokio::spawn(look_after_basics(Arc::downgrade(&server)));
        tokio::spawn(look_after_definitions(Arc::downgrade(&server)));
        tokio::spawn(look_after_extension_servers(Arc::downgrade(&server)));
        tokio::spawn(look_after_flows(Arc::downgrade(&server)));
        tokio::spawn(flow_control::lend(Arc::downgrade(&server)));
        Ok(server)
    }

    /// The kinds that are served now, those that users brought among them.
    pub fn served(&self) -> Served {
        self.cache.served()
    }

    /// Of the last write this server has heard of.
    pub fn revision(&self) -> u64 {
        self.cache.revision()
    }

    /// The API as one of knarr's own components, without HTTP in between.
    pub fn api(self: &Arc<Self>, component: &Component) -> Arc<dyn knarr_client::Api> {
        Arc::new(InProcess::of_component(self.clone(), component.clone()))
    }

    /// The API for all components of this process, each as its own user.
    pub fn identities(self: &Arc<Self>) -> Arc<dyn Identities> {
        Arc::new(Components::new(self.clone()))
    }

    /// The API as any user: for tests and load generators. What runs a cluster takes [`Server::api`], which
    /// knows no member of `system:masters`.
    pub fn api_as(
        self: &Arc<Self>,
        user: &str,
        groups: impl IntoIterator<Item = impl Into<String>>,
    ) -> Arc<dyn knarr_client::Api> {
        Arc::new(InProcess::of_user(
            self.clone(),
            User::new(user, groups).authenticated(),
        ))
    }

    /// What components were denied so far: requests that their roles do not allow. None is expected, kubelets' aside.
    pub fn denied_components(&self) -> Vec<String> {
        self.metrics.denied_components()
    }
}
