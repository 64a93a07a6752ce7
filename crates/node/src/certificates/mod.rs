//! The doing half of a node's certificates: keys are generated here and never leave the node, requests are sent and
//! watched, and the issued certificate is kept in a file and passed to its users. When and what to request is decided
//! in [`knarr_kubelet::certificates`].

mod file;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use knarr_client::{Api, Clock};
use knarr_kubelet::certificates::{Held, Next, next};
pub use knarr_kubelet::certificates::{Wanted, client, network_agent, serving};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio_util::sync::CancellationToken;

pub use file::FileError;
pub use request::RequestError;

/// The longest sleep between two checks: the clock may be set meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// A certificate and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(…)")
    }
}

/// One certificate that is kept in a file and renewed.
pub struct Rotation {
    wanted: Wanted,
    file: PathBuf,
    clock: Arc<dyn Clock>,
    rng: StdRng,
    /// Where in the span of renewal the certificate of the moment is renewed.
    chance: f64,
    held: Option<(Held, Identity)>,
    failed: Option<(u32, Timestamp)>,
}

impl Rotation {
    /// Loads the file's certificate if it is valid for `wanted`.
    pub fn open(
        wanted: Wanted,
        file: PathBuf,
        clock: Arc<dyn Clock>,
        mut rng: StdRng,
    ) -> Result<Self, FileError> {
        let held = file::read(&file, clock.now())?;
        let held = held.filter(|(held, _)| held.is_for(&wanted));
        Ok(Rotation {
            chance: rng.random(),
            wanted,
            file,
            clock,
            rng,
            held,
            failed: None,
        })
    }

    /// What is held and counts now.
    pub fn current(&self) -> Option<&Identity> {
        let now = self.clock.now();
        let held = self.held.as_ref().filter(|(held, _)| held.counts(now));
        held.map(|(_, identity)| identity)
    }

    /// What is held is not used any more; another is requested at once.
    pub fn discard(&mut self) {
        self.held = None;
    }

    /// When the current certificate expires or has expired.
    pub fn ends(&self) -> Option<Timestamp> {
        self.held.as_ref().map(|(held, _)| held.until)
    }

    /// Requests a certificate once, now.
    pub async fn ask(&mut self, api: &dyn Api) -> Result<&Identity, RequestError> {
        let identity = request::ask(api, &self.wanted).await?;
        let held = file::describe(&identity, self.clock.now())?;
        file::write(&self.file, &identity)?;
        self.chance = self.rng.random();
        let (held, identity) = self.held.insert((held, identity));
        tracing::info!(signer = self.wanted.signer, until = %held.until, "received a new certificate");
        Ok(identity)
    }

    /// Rotates until `cancel`. Requests are sent through `first` with the current certificate, through `bootstrap`
    /// where that has expired. Each new certificate is passed to `take`, whose error is the reason why it cannot be
    /// used.
    pub async fn run(
        mut self,
        first: Arc<dyn Api>,
        bootstrap: Option<Arc<dyn Api>>,
        take: impl Fn(&Identity) -> Result<(), String> + Send,
        cancel: CancellationToken,
    ) {
        loop {
            let now = self.clock.now();
            let held = self.held.as_ref().map(|(held, _)| held);
            if let Next::Wait(left) = next(held, &self.wanted, self.chance, self.failed, now) {
                let nap = left.unsigned_abs().min(CHECK_INTERVAL);
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(nap) => continue,
                }
            }
            let api = match &bootstrap {
                Some(bootstrap) if self.current().is_none() => bootstrap.clone(),
                _ => first.clone(),
            };
            let asked = tokio::select! {
                () = cancel.cancelled() => return,
                asked = self.ask(&*api) => asked.map_err(|e| e.to_string()),
            };
            match asked.and_then(&take) {
                Ok(()) => self.failed = None,
                Err(error) => {
                    let times = self.failed.map_or(0, |(times, _)| times).saturating_add(1);
                    self.failed = Some((times, self.clock.now()));
                    let ends = self.ends().map(|t| t.to_string()).unwrap_or_default();
                    tracing::warn!(
                        signer = self.wanted.signer,
                        error,
                        times,
                        ends,
                        "cannot renew the node's certificate yet"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
