//! The API servers: one or several over one store, each with its own cache, clock and way to the store. One that dies
//! comes back empty and fills its cache anew.

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

/// Histories in which components' writes say who set which field, in thousandths. No rule asks for that, and it is a fifth of
/// what a history costs.
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
    /// What the servers have read and written, so that none decodes what another has.
    decoded: Arc<Decoded>,
    tracks_fields: bool,
    running: Mutex<Option<Running>>,
}

/// One incarnation, and what rings when it is no more.
struct Running {
    server: Arc<Server>,
    gone: CancellationToken,
}

impl ApiServer {
    /// Also started.
    pub async fn start_new(
        seed: u64,
        number: usize,
        store: &Arc<ObservedStore>,
        clock: Arc<dyn Clock>,
        directory: &Path,
    ) -> std::io::Result<Arc<Self>> {
        let name = format!("api-{number}");
        // The first draws what the only one would.
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
            // Of its own, and the same for all servers.
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
        let gone = CancellationToken::new();
        *self.running.lock() = Some(Running { server, gone });
        Ok(())
    }

    /// Starts it if it does not run, as often as it takes. Without a way to the store it ends at once again, so that it is not
    /// even tried then: reading its keys is most of what a start costs.
    pub async fn revive(&self) {
        while self.running.lock().is_none() {
            if self.link.is_cut() || self.start().await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            }
        }
    }

    /// A component that was denied something by its own role is a broken history (SPEC A4).
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
            running.gone.cancel();
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.lock().is_some()
    }

    /// The incarnation that runs, and what rings when that dies.
    pub fn running(&self) -> Option<(CancellationToken, Arc<Server>)> {
        let running = self.running.lock();
        let running = running.as_ref()?;
        Some((running.gone.clone(), running.server.clone()))
    }

    /// The API of the incarnation that runs, as its administrator sees it.
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

/// Nobody execs into what does not exist.
struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _node: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}
