//! A volume that has grown, on its node: the driver grows what is on it (NodeExpandVolume).

use std::path::Path;

use knarr_kubelet::volume_expansion::Failure;
use tonic::Code;

use super::super::plugin::{MountTerms, Tools};
use super::{Csi, wire};
use crate::plugins::CallError;

/// The operation that failed where there is no driver, with kubelet's message.
const EXPAND: &str = "expander.NodeExpand failed to create newCsiDriverClient";

impl Csi {
    /// Grows the volume to so many bytes. Idempotent.
    pub async fn expand(
        &self,
        tools: &Tools,
        staged: Option<&Path>,
        target: &Path,
        terms: &MountTerms,
        bytes: i64,
    ) -> Result<(), Failure> {
        let socket = self.socket(tools, EXPAND).map_err(uncertain)?;
        let can = self.can(tools, &socket).await.map_err(|why| {
            Failure::Uncertain(format!(
                "Expander.NodeExpand failed to check if node supports expansion : {why}"
            ))
        })?;
        if !can.expand {
            let driver = &self.driver;
            return Err(Failure::NotSupported(format!(
                "NodeExpand is not supported by the CSI driver {driver}"
            )));
        }
        let secrets = self
            .secret(tools, self.expand_secret.as_ref(), "NodeExpandSecretRef")
            .await;
        let request = wire::ExpandRequest {
            volume_id: self.handle.clone(),
            volume_path: target.display().to_string(),
            capacity_range: Some(wire::CapacityRange {
                required_bytes: bytes,
                limit_bytes: 0,
            }),
            staging_target_path: staged
                .filter(|_| can.stage)
                .map(|p| p.display().to_string())
                .unwrap_or_default(),
            volume_capability: Some(self.capability(&can, terms)),
            secrets: secrets.map_err(uncertain)?,
        };
        // The size that it answers may be left out, and the volume's is known.
        wire::call(&*tools.host, &socket, request)
            .await
            .map(drop)
            .map_err(failure)
    }
}

/// What was done is not known: it is tried again.
pub fn uncertain(error: impl std::fmt::Display) -> Failure {
    Failure::Uncertain(error.to_string())
}

/// What a driver's error means, by its code.
fn failure(error: CallError) -> Failure {
    match error.code {
        Code::FailedPrecondition => Failure::InUse(format!(
            "Expander.NodeExpand failed to expand the volume : {error}"
        )),
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
            Failure::Infeasible(format!("Expander.NodeExpand failed to expand the volume {error}"))
        }
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => Failure::Uncertain(format!(
            "Expander.NodeExpand failed to expand the volume : {error}"
        )),
        _ => Failure::Final(format!(
            "Expander.NodeExpand failed to expand the volume : {error}"
        )),
    }
}
