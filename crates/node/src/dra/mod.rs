//! Dynamic resource allocation: has drivers prepare the ResourceClaims of pods before their sandboxes are made, and
//! unprepare them when no process of the pod is left.
//!
//! Which claims are prepared for which pods is decided by [`knarr_kubelet::dra`]; here the API and the drivers are
//! called, each driver with v1.36's deadline. A pod waits for its own drivers only.

pub mod cdi;
mod checkpoint;
pub mod drivers;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_client::{Api, Clock, TypedApi};
use knarr_kubelet::dra::{Batches, ClaimError, ClaimRef, Claims, claim};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::plugins::CallError;
use crate::plugins::call::call_method;
use crate::untrusted_fs::Pool;
use drivers::{Drivers, DriversHealth};

/// `defaultClientCallTimeout`.
const CALL: Duration = Duration::from_secs(45);
/// The pool's key for these file operations.
const FILES: &str = "dra";

/// Why a pod's claims are not prepared or unprepared, with v1.36's messages.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("fetch ResourceClaim {name}: {source}")]
    Fetch {
        name: String,
        source: knarr_apimachinery::Error,
    },
    #[error(transparent)]
    ClaimError(#[from] ClaimError),
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    #[error("checkpoint ResourceClaim state: {0}")]
    Checkpoint(#[source] std::io::Error),
    #[error("{method}: {source}")]
    Call { method: &'static str, source: CallError },
    #[error("{method} failed for ResourceClaim {name}: {why}")]
    Failed {
        method: &'static str,
        name: String,
        why: String,
    },
    #[error("{method} returned result for unknown claim UID {uid}")]
    UnknownClaim { method: &'static str, uid: String },
    #[error("{method} skipped {count} ResourceClaims")]
    Skipped { method: &'static str, count: usize },
    #[error("the pod has terminated")]
    Terminated,
}

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

/// See the module.
pub struct Dra {
    api: Arc<dyn Api>,
    root: PathBuf,
    files: Pool,
    drivers: Arc<Drivers>,
    health: Arc<DriversHealth>,
    claims: Arc<Mutex<Claims>>,
    /// Pods that have terminated and are still known: nothing is prepared for them any more.
    terminated: Mutex<BTreeSet<PodUid>>,
    /// Held while the checkpoint is written; contains what was written last.
    checkpoint: tokio::sync::Mutex<Vec<u8>>,
}

impl Dra {
    /// `root` is the kubelet's directory.
    pub fn new(
        root: &Path,
        files: Pool,
        api: Arc<dyn Api>,
        node: NodeName,
        clock: Arc<dyn Clock>,
        health_changed: mpsc::UnboundedSender<PodUid>,
    ) -> Self {
        let claims: Arc<Mutex<Claims>> = Arc::default();
        let health = Arc::new(DriversHealth {
            clock,
            claims: claims.clone(),
            devices: Mutex::default(),
            changed: health_changed,
        });
        Dra {
            drivers: Drivers::new(api.clone(), node, health.clone()),
            health,
            api,
            root: root.to_path_buf(),
            files,
            claims,
            terminated: Mutex::default(),
            checkpoint: tokio::sync::Mutex::default(),
        }
    }

    pub fn drivers(&self) -> Arc<Drivers> {
        self.drivers.clone()
    }

    /// Restores the checkpoint of an earlier kubelet.
    pub async fn restore(&self) {
        let root = self.root.clone();
        match self.files.run(FILES, move || checkpoint::read(&root)).await {
            Ok(Some(claims)) => *self.claims.lock() = claims,
            Ok(None) => {}
            Err(error) => warn!(%error, "cannot read which claims are prepared; they will be prepared again"),
        }
    }

    /// Reads the state.
    pub fn with<T>(&self, read: impl FnOnce(&Claims) -> T) -> T {
        read(&self.claims.lock())
    }

    /// Has a pod's claims prepared, as far as they are not.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), Error> {
        if !claim::uses_any(pod) {
            return Ok(());
        }
        let uid = &PodUid::of(&pod.metadata);
        let claims = self.claims_of(pod).await?;
        if self.terminated.lock().contains(uid) {
            return Err(Error::Terminated);
        }
        let batches = self.claims.lock().add_pod(uid, &claims)?;
        self.save().await?;
        for (driver, claims) in &batches {
            self.prepare_with(driver, claims).await?;
        }
        self.claims.lock().mark_prepared(&batches);
        self.save().await?;
        // The pod may have terminated meanwhile.
        let has_terminated = self.terminated.lock().contains(uid);
        match has_terminated {
            true => {
                self.unprepare(uid).await?;
                Err(Error::Terminated)
            }
            false => Ok(()),
        }
    }

    /// The claims that the pod uses, if it may and their drivers are here.
    async fn claims_of(&self, pod: &Pod) -> Result<Vec<ResourceClaim>, Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let mut claims = Vec::new();
        for used in claim::of_pod(pod)? {
            let found = self.api.get_as::<ResourceClaim>(namespace, &used.name).await;
            let found = found.map_err(|source| Error::Fetch {
                name: used.name.clone(),
                source,
            })?;
            claim::is_usable(pod, &used, &found)?;
            let (_, drivers) = claim::allocated(&found)?;
            for driver in drivers {
                self.driver(&driver)?;
            }
            claims.push((*found).clone());
        }
        Ok(claims)
    }

    fn driver(&self, name: &str) -> Result<(PathBuf, wire::Version), Error> {
        let found = self.drivers.get(name);
        found.ok_or_else(|| Error::NotRegistered(name.to_string()))
    }

    async fn prepare_with(&self, driver: &str, claims: &[ClaimRef]) -> Result<(), Error> {
        let method = PREPARE;
        let (socket, version) = self.driver(driver)?;
        let request = wire::NodePrepareResourcesRequest {
            claims: claims.iter().map(wire::Claim::from).collect(),
        };
        let answer = call_method(&socket, version.prepare(), request, CALL).await;
        let answer = answer.map_err(|source| Error::Call { method, source })?;
        let count = answer.claims.len();
        let results: BTreeMap<_, _> = answer.claims.into_iter().collect();
        for (uid, result) in results {
            let of = find(claims, method, uid)?;
            fail_with(method, of, result.error)?;
            let devices = result.devices.into_iter().map(Into::into).collect();
            self.claims.lock().prepared(driver, of, devices);
        }
        check_all_in_response(claims, method, count)
    }

    /// A pod has no processes left: has the claims unprepared that no other pod uses.
    pub async fn unprepare(&self, uid: &PodUid) -> Result<(), Error> {
        self.terminated.lock().insert(uid.clone());
        if !self.claims.lock().are_used_by(uid) {
            return Ok(());
        }
        let batches: Batches = self.claims.lock().begin_unprepare(uid);
        for (driver, claims) in &batches {
            self.unprepare_with(driver, claims).await?;
        }
        self.claims.lock().remove_pod(uid);
        self.save().await
    }

    async fn unprepare_with(&self, driver: &str, claims: &[ClaimRef]) -> Result<(), Error> {
        let method = UNPREPARE;
        let (socket, version) = self.driver(driver)?;
        let request = wire::NodeUnprepareResourcesRequest {
            claims: claims.iter().map(wire::Claim::from).collect(),
        };
        let answer = call_method(&socket, version.unprepare(), request, CALL).await;
        let answer = answer.map_err(|source| Error::Call { method, source })?;
        let count = answer.claims.len();
        for (uid, result) in answer.claims {
            let of = find(claims, method, uid)?;
            fail_with(method, of, result.error)?;
        }
        check_all_in_response(claims, method, count)
    }

    /// No further call concerns this pod.
    pub fn forget(&self, uid: &PodUid) {
        self.terminated.lock().remove(uid);
    }

    /// The pods that use claims.
    pub fn pods(&self) -> BTreeSet<PodUid> {
        self.claims.lock().pods()
    }

    /// The container status's `allocatedResourcesStatus` of its claims' devices.
    pub fn resources_status(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Vec<ResourceStatus>, ClaimError> {
        let health = self.health.devices.lock().clone();
        let now = self.health.clock.now();
        self.claims.lock().resources_status(pod, container, &health, now)
    }

    /// The CDI devices of a container.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, ClaimError> {
        self.claims.lock().cdi_devices(pod, container)
    }

    async fn save(&self) -> Result<(), Error> {
        let mut written = self.checkpoint.lock().await;
        let bytes = checkpoint::encode(&self.claims.lock()).map_err(Error::Checkpoint)?;
        if *written == bytes {
            return Ok(());
        }
        let (root, content) = (self.root.clone(), bytes.clone());
        let done = self
            .files
            .run(FILES, move || checkpoint::write(&root, &content))
            .await;
        done.map_err(|e| Error::Checkpoint(e.into()))?;
        debug!("what claims are prepared is written down");
        *written = bytes;
        Ok(())
    }
}

fn find<'a>(claims: &'a [ClaimRef], method: &'static str, uid: String) -> Result<&'a ClaimRef, Error> {
    let found = claims.iter().find(|claim| claim.uid == uid);
    found.ok_or(Error::UnknownClaim { method, uid })
}

fn fail_with(method: &'static str, of: &ClaimRef, why: String) -> Result<(), Error> {
    match why.is_empty() {
        true => Ok(()),
        false => Err(Error::Failed {
            method,
            name: of.name.clone(),
            why,
        }),
    }
}

fn check_all_in_response(claims: &[ClaimRef], method: &'static str, count: usize) -> Result<(), Error> {
    match claims.len().saturating_sub(count) {
        0 => Ok(()),
        count => Err(Error::Skipped { method, count }),
    }
}
