//! A critical pod that waits for its victims to terminate.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;

use super::status::Origin;

pub(super) struct WaitingPod {
    pub(super) pod: Arc<core::Pod>,
    pub(super) origin: Origin,
    /// By uid; true once it was evicted.
    pub(super) victims: BTreeMap<PodUid, bool>,
}
