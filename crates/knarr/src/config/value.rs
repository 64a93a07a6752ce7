//! Why the text of a flag or of a key of the file is rejected. Errors are shown with the name of the setting and its text.

use std::borrow::Cow;

use knarr_node::kubelet::configuration::registration;

/// Why a text is no value of a setting.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("expected {0}")]
    Expected(Cow<'static, str>),
    #[error("{0:?} is not an IP address")]
    Address(String),
    #[error("{name:?}: expected some of {known}")]
    Part { name: String, known: String },
    /// Kubernetes' message.
    #[error("{0}")]
    Name(String),
    #[error(transparent)]
    Path(#[from] std::io::Error),
    #[error(transparent)]
    FeatureGates(#[from] knarr_api::feature_gates::Error),
    #[error(transparent)]
    Emulation(#[from] knarr_api::emulation::Error),
    #[error(transparent)]
    Kubelet(#[from] registration::FlagError),
    #[error(transparent)]
    FenceAgents(#[from] knarr_control::fencing::AllowError),
    #[error(transparent)]
    LogFilter(#[from] tracing_subscriber::filter::ParseError),
}

impl ValueError {
    pub(super) fn expected(what: impl Into<Cow<'static, str>>) -> Self {
        ValueError::Expected(what.into())
    }
}
