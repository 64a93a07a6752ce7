//! The API servers: one or several over one store, each with its own cache, clock and connection to the store. One
//! that dies comes back empty and fills its cache again.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_apiserver::cache::Decoded;
use knarr_apiserver::{Config, Options, Seams, Server, ServiceRange};
use knarr_client::{Api, Clock, Conn, NodeDialer};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::observer::Observer;
use crate::random::{SeededEntropy, stream};
use crate::store::{ObservedStore, StoreLink};
use crate::upgrade::Version;

/// Histories in which components' writes have field managers, per mille. No rule needs them, and they are a fifth of
/// the cost of a history.
const FIELDS_TRACKED_PER_MILLE: u32 = 125;

/// One server, over its incarnations.
pub(crate) struct ApiServer {
    pub name: String,
    pub version: Arc<Version>,
    pub link: Arc<StoreLink>,
    clock: Arc<dyn Clock>,
    entropy: Arc<SeededEntropy>,
    observer: Arc<Observer>,
    directory: std::path::PathBuf,
    /// A cache of decoded objects, so that no server decodes what another one has decoded.
    decoded: Arc<Decoded>,
    tracks_fields: bool,
    running: Mutex<Option<Running>>,
}

/// One incarnation, and a token that is cancelled when it dies.
struct Running {
    server: Arc<Server>,
    stopped: CancellationToken,
}

impl ApiServer {
    /// Starts it as well.
    pub async fn start_new(
        seed: u64,
        number: usize,
        store: &Arc<ObservedStore>,
        clock: Arc<dyn Clock>,
        directory: &Path,
    ) -> std::io::Result<Arc<Self>> {
        let name = format!("api-{number}");
        // The first server draws what a single one would.
        let entropy = match number {
            1 => SeededEntropy::new(seed, "apiserver"),
            _ => SeededEntropy::new(seed, &name),
        };
        let version: Arc<Version> = Arc::default();
        let server = Arc::new(ApiServer {
            link: StoreLink::new(
                store.clone(),
                stream(seed, &format!("store/{name}")),
                version.clone(),
            ),
            version,
            clock,
            entropy: Arc::new(entropy),
            observer: store.observer.clone(),
            directory: directory.to_path_buf(),
            decoded: store.decoded.clone(),
            // One of its own, and one that is the same for all servers.
            tracks_fields: stream(seed, "managed fields").per_mille(FIELDS_TRACKED_PER_MILLE),
            running: Mutex::default(),
            name,
        });
        server.start().await?;
        Ok(server)
    }

    async fn start(&self) -> std::io::Result<()> {
        self.observer.note(&format!("{} starts", self.name));
        let seams = Seams {
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            nodes: Arc::new(NoNodes),
        };
        let options = Options {
            decoded: Some(self.decoded.clone()),
            tracks_fields_in_process: self.tracks_fields,
            ..Options::default()
        };
        let config = config(&self.directory, &*self.clock, options)?;
        let server = Server::new(config, seams, self.link.clone())
            .await
            .map_err(std::io::Error::other)?;
        let stopped = CancellationToken::new();
        *self.running.lock() = Some(Running { server, stopped });
        Ok(())
    }

    /// Starts it if it does not run, with retries. Without a connection to the store it would fail at once, so that
    /// is not even tried: reading all keys is most of the cost of a start.
    pub async fn revive(&self) {
        while self.running.lock().is_none() {
            if self.link.is_cut() || self.start().await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            }
        }
    }

    /// A component that was denied a request by its own role is a broken history (SPEC A4).
    pub fn check_denied(&self) {
        let Some((_, server)) = self.running() else { return };
        if let Some(denied) = server.denied_components().first() {
            let what = format!("{} denied a component what it does: {denied}", self.name);
            self.observer.violate("A4", what);
        }
    }

    /// As `kill -9`.
    pub fn crash(&self) {
        self.check_denied();
        if let Some(running) = self.running.lock().take() {
            self.observer.note(&format!("{} dies", self.name));
            running.stopped.cancel();
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.lock().is_some()
    }

    /// The incarnation that runs, and the token that is cancelled when it dies.
    pub fn running(&self) -> Option<(CancellationToken, Arc<Server>)> {
        let running = self.running.lock();
        let running = running.as_ref()?;
        Some((running.stopped.clone(), running.server.clone()))
    }

    /// The API of the incarnation that runs, for an administrator.
    pub fn admin(&self) -> Option<Arc<dyn Api>> {
        let (_, server) = self.running()?;
        Some(server.api_as("admin", ["system:masters"]))
    }
}

fn config(directory: &Path, clock: &dyn Clock, options: Options) -> std::io::Result<Config> {
    let pki = knarr_apiserver::pki::Pki::open(&directory.join("pki"), clock.now())
        .map_err(std::io::Error::other)?;
    Ok(Config {
        advertised: "192.0.2.1:6443".into(),
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        port: 6443,
        service_range: ServiceRange::parse("10.96.0.0/16").map_err(std::io::Error::other)?,
        static_tokens: Default::default(),
        issuer: knarr_apiserver::ISSUER.into(),
        service_account_key: pki.service_account_key().map_err(std::io::Error::other)?,
        options,
    })
}

/// There is no node to exec into.
struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _node: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}
