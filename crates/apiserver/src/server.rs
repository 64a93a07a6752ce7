//! The composition of the API server: its configuration, and the one place where its parts are constructed and started.
//!
//! No part has the whole server: each names in its fields the parts that it uses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use knarr_api::emulation::Emulation;
use knarr_api::registry::ServedKinds;
use knarr_apimachinery::Error;
use knarr_client::{Component, Identities, NodeDialer};
use knarr_store::Store;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::aggregation::{Aggregation, ApiServiceController, ExtensionServers};
use crate::allocation::{Allocations, ServiceRange};
use crate::api_services::ApiServiceRegistration;
use crate::audit::Audit;
use crate::authn::certificate::PeerCertificate;
use crate::authn::service_account::Tokens;
use crate::authn::token_key::{KeyFiles, TokenError};
use crate::authn::{Authenticator, StaticTokens};
use crate::authz::{Authorizer, StandardAuthorizer};
use crate::bootstrap::BootstrapController;
use crate::cache::maintenance::CacheMaintenance;
use crate::cache::{Cache, Decoded};
use crate::controllers::Controllers;
use crate::conversion::{ConversionMetrics, Converter};
use crate::custom::DefinitionController;
use crate::encryption::{AtRest, Encryption};
use crate::endpoint_leases::EndpointReconciler;
use crate::flow_control::{self, FlowControl, FlowControlController};
use crate::http::chain::HandlerChain;
use crate::http::connections::{Connections, Limits};
use crate::http::frontend::Frontend;
use crate::http::raw::NonResources;
use crate::http::resource::Resources;
use crate::http::{Protocol, Timeouts};
use crate::identity::Identity;
use crate::in_process::{ComponentUsers, Components, InProcess, InProcessServer};
use crate::loopback::LoopbackClient;
use crate::metrics::Metrics;
use crate::pipeline::Pipeline;
use crate::resource_metrics::ResourceMetrics;
use crate::seams::{Clock, Entropy};
use crate::subresource::Subresources;
use crate::subresource::node_stream::Connector;
use crate::tls::Tls;
use crate::user::User;
use crate::{cluster_authentication, joining};

/// The default issuer of service-account tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// The revision of a store that was never written.
const EMPTY_STORE: u64 = 1;
/// The configuration of an API server.
pub struct Config {
    /// The address that clients use: `host:port`.
    pub advertised: String,
    /// The address on which it listens; see [`Options::advertise`] for the endpoints of the Service `kubernetes`.
    pub address: std::net::IpAddr,
    pub port: u16,
    pub service_range: ServiceRange,
    pub static_tokens: StaticTokens,
    /// Issuer of service-account tokens, see [`ISSUER`].
    pub issuer: String,
    /// The keys that sign and verify them, see [`crate::pki::Pki::service_account_key`].
    pub service_account_key: KeyFiles,
    pub options: Options,
}

/// As kube-apiserver's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// As kube-apiserver's `--event-ttl`.
const EVENT_TTL: Duration = Duration::from_secs(60 * 60);

/// Configuration with defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether a request without credentials is `system:anonymous`'s (kube-apiserver's `--anonymous-auth`); otherwise it is rejected with 401.
    pub anonymous: bool,
    /// Where in-cluster clients and other servers reach it (kube-apiserver's `--advertise-address`), for the endpoints
    /// of the Service `kubernetes`; `None`: the address on which it listens, or the address of the host's default route if it listens
    /// on all. Port 0 is the port on which it listens.
    pub advertise: Option<std::net::SocketAddr>,
    /// Further issuers whose tokens are accepted.
    pub other_issuers: Vec<String>,
    /// Audiences of service-account tokens; empty: the issuer.
    pub audiences: Vec<String>,
    /// Where the keys of service-account tokens are published, if not at this server.
    pub jwks_uri: Option<String>,
    /// Encryption at rest.
    pub encryption: Option<Arc<Encryption>>,
    /// Decoded objects that it shares with other servers of this process over the same store, if there are any.
    pub decoded: Option<Arc<Decoded>>,
    /// Whether writes of components in this process update `managedFields`. Only a process that simulates a cluster does without: nothing reads
    /// them there, and they are half of most objects.
    pub tracks_fields_in_process: bool,
    /// Authorizes requests, instead of the standard authorizer (kube-apiserver's `--authorization-config`).
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// The audit policy and log.
    pub audit: Option<Audit>,
    /// How many read-only and how many mutating requests are in flight at once: together the seats of all priority levels.
    pub max_in_flight: (usize, usize),
    /// The timeout of requests that are not watches or streams.
    pub request_timeout: Duration,
    /// How long an Event is kept after its last write (kube-apiserver's `--event-ttl`); `None`: for ever. Of the servers of one store the
    /// shortest time counts.
    pub event_ttl: Option<Duration>,
    /// The timeouts of a connection.
    pub timeouts: Timeouts,
    /// How many connections are served at once.
    pub connections: Limits,
    /// The client certificate with which it authenticates at extension API servers as front proxy (kube-apiserver's
    /// `--proxy-client-cert-file`). Without it they treat its requests as anonymous.
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
            event_ttl: Some(EVENT_TTL),
            timeouts: Timeouts::default(),
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
    Key(#[from] TokenError),
    #[error("the bootstrap objects of the cluster cannot be created: {0}")]
    Bootstrap(Error),
}

/// The API server: composes its parts, and starts them. See the crate.
pub struct Server {
    pub(crate) pipeline: Arc<Pipeline>,
    client: LoopbackClient,
    frontend: Arc<Frontend>,
    in_process: Arc<InProcessServer>,
}

impl Server {
    /// Fills the cache, creates the bootstrap objects, and is ready to serve.
    // Boxed, as the futures below: they are compiled once, here, and not in each program that polls them.
    pub fn new(
        config: Config,
        seams: Seams,
        store: Arc<dyn Store>,
    ) -> BoxFuture<'static, Result<Arc<Self>, StartError>> {
        Box::pin(Self::start(config, seams, store))
    }

    async fn start(config: Config, seams: Seams, store: Arc<dyn Store>) -> Result<Arc<Self>, StartError> {
        let Config {
            advertised,
            address,
            port,
            service_range,
            static_tokens,
            issuer,
            service_account_key,
            options,
        } = config;
        let Seams {
            clock,
            entropy,
            nodes,
        } = seams;
        let issuers = [std::slice::from_ref(&issuer), &options.other_issuers[..]].concat();
        let tokens =
            Tokens::new(&issuers, &options.audiences, &service_account_key)?.with_jwks_uri(options.jwks_uri);
        let at_rest = options.encryption.map(|encryption| AtRest {
            encryption,
            entropy: entropy.clone(),
        });
        let metrics = Arc::<Metrics>::default();

        let cache = Cache::with(store, at_rest, metrics.clone(), options.decoded);
        cache.emulate(options.emulation);
        let (feed, stop) = oneshot::channel();
        cache.start(stop).await?;
        let fresh = cache.revision() <= EMPTY_STORE;

        let standard = || -> Arc<dyn Authorizer> { Arc::new(StandardAuthorizer::new(cache.clone())) };
        let authorizer = options.authorizer.unwrap_or_else(standard);
        let authenticator = Arc::new(Authenticator {
            static_tokens,
            tokens,
            anonymous: options.anonymous,
            cache: cache.clone(),
            authorizer: authorizer.clone(),
        });

        let conversions = Arc::new(ConversionMetrics::new(metrics.registry()));
        let converter = Converter::new(cache.clone(), entropy.clone(), conversions);
        let admission = Admission::new(
            cache.clone(),
            authorizer.clone(),
            converter.clone(),
            entropy.clone(),
            metrics.clone(),
        );
        let pipeline = Arc::new(Pipeline {
            cache: cache.clone(),
            converter,
            admission,
            allocations: Allocations::new(service_range, entropy.clone()),
            authorizer: authorizer.clone(),
            clock: clock.clone(),
            entropy: entropy.clone(),
            metrics: metrics.clone(),
            _feed: feed,
        });
        let client = LoopbackClient::new(pipeline.clone());

        let (read_only, mutating) = options.max_in_flight;
        let flow_control = Arc::new(FlowControl::new(read_only.saturating_add(mutating)));
        let aggregation = Arc::new(Aggregation::new(options.front_proxy));
        let extension_servers = Arc::new(ExtensionServers {
            aggregation: aggregation.clone(),
            cache: cache.clone(),
            nodes: nodes.clone(),
            entropy: entropy.clone(),
            authorizer: authorizer.clone(),
            request_timeout: options.request_timeout,
        });
        let listen = SocketAddr::new(address, port);
        let endpoints = Arc::new(EndpointReconciler::new(client.clone(), listen, options.advertise));
        let api_services = ApiServiceRegistration::new(client.clone());
        let controllers = Arc::new(Controllers {
            clock: clock.clone(),
            maintenance: Arc::new(CacheMaintenance { cache: cache.clone() }),
            event_ttl: options.event_ttl,
            bootstrap: Arc::new(BootstrapController {
                client: client.clone(),
                endpoints: endpoints.clone(),
                api_services: api_services.clone(),
                service_range,
                port,
            }),
            definitions: Arc::new(DefinitionController {
                client: client.clone(),
                api_services,
            }),
            api_services: Arc::new(ApiServiceController {
                servers: extension_servers.clone(),
                client: client.clone(),
            }),
            flow_control: Arc::new(FlowControlController {
                client: client.clone(),
                flow_control: flow_control.clone(),
            }),
        });

        let subresources = Arc::new(Subresources {
            pipeline: pipeline.clone(),
            authenticator: authenticator.clone(),
            connector: Connector {
                pipeline: pipeline.clone(),
                nodes: nodes.clone(),
            },
        });
        let resource_metrics = Arc::new(ResourceMetrics {
            pipeline: pipeline.clone(),
            aggregation: aggregation.clone(),
            nodes,
        });
        let resources = Resources {
            pipeline: pipeline.clone(),
            subresources: subresources.clone(),
            metrics: metrics.clone(),
        };
        let non_resources = NonResources {
            cache: cache.clone(),
            metrics: metrics.clone(),
            authenticator: authenticator.clone(),
            aggregation,
            resource_metrics: resource_metrics.clone(),
            flow_control: flow_control.clone(),
            audit: options.audit.clone(),
            advertised,
            documents: Mutex::default(),
        };
        let chain = Arc::new(HandlerChain {
            clock: clock.clone(),
            entropy,
            cache: cache.clone(),
            metrics,
            timeouts: options.timeouts,
            authenticator,
            audit: options.audit,
            flow_control,
            request_timeout: options.request_timeout,
            authorizer,
            extension_servers: extension_servers.clone(),
            resource_metrics: resource_metrics.clone(),
            resources,
            non_resources,
        });
        let frontend = Arc::new(Frontend {
            chain,
            connections: Connections::new(options.connections),
            timeouts: options.timeouts,
            clock,
            endpoints,
            _controllers: controllers.clone(),
        });
        let in_process = Arc::new(InProcessServer {
            users: ComponentUsers::default(),
            pipeline: pipeline.clone(),
            subresources,
            extension_servers,
            resource_metrics,
            tracks_fields: options.tracks_fields_in_process,
            _controllers: controllers.clone(),
        });

        let bootstrapped = controllers.bootstrap.bootstrap().await;
        bootstrapped.map_err(StartError::Bootstrap)?;
        controllers.flow_control.reload();
        controllers.api_services.sync_backends();
        if fresh {
            // No client may see the revisions from before the bootstrap objects existed.
            cache.forget_history().await?;
        }
        controllers.start();
        Ok(Arc::new(Server {
            pipeline,
            client,
            frontend,
            in_process,
        }))
    }

    /// Serves TLS connections until `stop`, then gives requests in flight some time to finish.
    pub fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Tls,
        stop: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        self.serve_some(listener, tls, Box::new(|_| true), stop)
    }

    /// Like [`Server::serve`], only for clients from addresses that `admits` accepts; other connections are closed at once.
    pub fn serve_some(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Tls,
        admits: Box<dyn Fn(IpAddr) -> bool + Send>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.frontend.clone().serve(listener, tls, admits, stop).await })
    }

    /// Serves HTTP over a stream whose client has the certificate of `client`.
    pub async fn serve_connection(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocol: Protocol,
        client: Arc<PeerCertificate>,
        stop: CancellationToken,
    ) {
        let frontend = self.frontend.clone();
        frontend
            .serve_connection(stream, protocol, client, None, stop)
            .await;
    }

    /// Lets nodes join at `server` (a URL) with this CA and these settings.
    pub async fn let_nodes_join(
        &self,
        server: &str,
        ca_pem: &str,
        settings: BTreeMap<String, String>,
    ) -> Result<(), Error> {
        joining::let_nodes_join(&self.client, server, ca_pem, settings).await
    }

    /// Publishes the CA of client certificates for kubelets, and the CA of the front proxy for extension API servers.
    pub async fn publish_client_authorities(
        &self,
        client_ca_pem: &str,
        front_proxy_ca_pem: &str,
    ) -> Result<(), Error> {
        let client = &self.client;
        cluster_authentication::publish_client_authorities(client, client_ca_pem, front_proxy_ca_pem).await
    }

    /// Removes this server's endpoint before it stops: new connections go to the other servers, if there are any.
    pub async fn withdraw_endpoints(&self) {
        self.frontend.endpoints.withdraw().await;
    }

    /// Adds another component's metrics to `/metrics`.
    pub fn show_metrics(&self, source: impl Fn() -> String + Send + Sync + 'static) {
        self.pipeline.metrics.show(Box::new(source));
    }

    /// The kinds that are served now, with those of custom resources.
    pub fn served(&self) -> ServedKinds {
        self.pipeline.cache.served()
    }

    /// The revision of the last write that this server's cache has.
    pub fn revision(&self) -> u64 {
        self.pipeline.cache.revision()
    }

    /// The API as one of knarr's own components, without HTTP in between.
    pub fn api(&self, component: &Component) -> Arc<dyn knarr_client::Api> {
        Arc::new(InProcess::of_component(
            self.in_process.clone(),
            component.clone(),
        ))
    }

    /// The API for all components of this process, each as its own user.
    pub fn identities(&self) -> Arc<dyn Identities> {
        Arc::new(Components::new(self.in_process.clone()))
    }

    /// The API as any user: for tests and load generators. A cluster's components use [`Server::api`], which
    /// has no member of `system:masters`.
    pub fn api_as(
        &self,
        user: &str,
        groups: impl IntoIterator<Item = impl Into<String>>,
    ) -> Arc<dyn knarr_client::Api> {
        Arc::new(InProcess::of_user(
            self.in_process.clone(),
            User::new(user, groups).authenticated(),
        ))
    }

    /// The denied requests of components so far: requests that their roles do not allow. None is expected, except of kubelets.
    pub fn denied_components(&self) -> Vec<String> {
        self.pipeline.metrics.denied_components()
    }
}
