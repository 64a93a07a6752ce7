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
pub use knarr_kubelet::certificates::{CertificateTemplate, client, network_agent, serving};
use knarr_kubelet::certificates::{CurrentCertificate, RotationDecision, decide_rotation};
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
    template: CertificateTemplate,
    file: PathBuf,
    clock: Arc<dyn Clock>,
    rng: StdRng,
    /// Where in the span of renewal the certificate of the moment is renewed.
    chance: f64,
    current: Option<(CurrentCertificate, Identity)>,
    failed: Option<(u32, Timestamp)>,
}

impl Rotation {
    /// Loads the file's certificate if it is valid for `template`.
    pub fn open(
        template: CertificateTemplate,
        file: PathBuf,
        clock: Arc<dyn Clock>,
        mut rng: StdRng,
    ) -> Result<Self, FileError> {
        let current = file::read(&file, clock.now())?;
        let current = current.filter(|(current, _)| current.matches(&template));
        Ok(Rotation {
            chance: rng.random(),
            template,
            file,
            clock,
            rng,
            current,
            failed: None,
        })
    }

    /// What is held and counts now.
    pub fn current(&self) -> Option<&Identity> {
        let now = self.clock.now();
        let current = self.current.as_ref().filter(|(current, _)| current.is_valid(now));
        current.map(|(_, identity)| identity)
    }

    /// What is held is not used any more; another is requested at once.
    pub fn discard(&mut self) {
        self.current = None;
    }

    /// When the current certificate expires or has expired.
    pub fn ends(&self) -> Option<Timestamp> {
        self.current.as_ref().map(|(current, _)| current.until)
    }

    /// Requests a certificate once, now.
    pub async fn ask(&mut self, api: &dyn Api) -> Result<&Identity, RequestError> {
        let identity = request::ask(api, &self.template).await?;
        let current = file::describe(&identity, self.clock.now())?;
        file::write(&self.file, &identity)?;
        self.chance = self.rng.random();
        let (current, identity) = self.current.insert((current, identity));
        tracing::info!(signer = self.template.signer, until = %current.until, "received a new certificate");
        Ok(identity)
    }

    /// Rotates until `cancel`. Requests are sent through `first` with the current certificate, through `bootstrap`
    /// where that has expired. Each new certificate is passed to `take`, whose error is the reason why it cannot be
    /// used.
    pub async fn run<E: std::fmt::Display>(
        mut self,
        first: Arc<dyn Api>,
        bootstrap: Option<Arc<dyn Api>>,
        take: impl Fn(&Identity) -> Result<(), E> + Send,
        cancel: CancellationToken,
    ) {
        loop {
            let now = self.clock.now();
            let current = self.current.as_ref().map(|(current, _)| current);
            if let RotationDecision::Wait(left) =
                decide_rotation(current, &self.template, self.chance, self.failed, now)
            {
                let sleep_time = left.unsigned_abs().min(CHECK_INTERVAL);
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(sleep_time) => continue,
                }
            }
            let api = match &bootstrap {
                Some(bootstrap) if self.current().is_none() => bootstrap.clone(),
                _ => first.clone(),
            };
            let result = tokio::select! {
                () = cancel.cancelled() => return,
                result = self.ask(&*api) => result,
            };
            let error = match result {
                Ok(identity) => take(identity).err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            match error {
                None => self.failed = None,
                Some(error) => {
                    let times = self.failed.map_or(0, |(times, _)| times).saturating_add(1);
                    self.failed = Some((times, self.clock.now()));
                    let ends = self.ends().map(|t| t.to_string()).unwrap_or_default();
                    tracing::warn!(
                        signer = self.template.signer,
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
