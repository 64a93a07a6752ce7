//! Why an at-most-one pod may not be started on this node at all.

/// Shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartDenied {
    #[error("the pod is ending")]
    Terminating,
    #[error("another pod has its name by now, or none")]
    Replaced,
    #[error("another pod has its name by now")]
    GivenAway,
    #[error("cannot see whether the pod is still this node's: {source}")]
    Unconfirmed { source: knarr_client::Error },
}
