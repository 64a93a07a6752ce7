//! Why a container waits, as its status shows it (`state.waiting`).

/// The reason of a waiting container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pod) enum WaitingReason {
    /// It has not been created, in a pod without init containers.
    ContainerCreating,
    /// It has not been created, in a pod with init containers.
    PodInitializing,
    CrashLoopBackOff,
    CreateContainerConfigError,
    CreateContainerError,
    ErrImageNeverPull,
    ErrImagePull,
    ImageInspectError,
    ImagePullBackOff,
    InvalidImageName,
    PostStartHookError,
    /// It was removed for `RestartAllContainers`, and no container has been restarted yet.
    RestartingAllContainers,
    RunContainerError,
}

impl WaitingReason {
    pub(in crate::pod) fn as_str(self) -> &'static str {
        match self {
            WaitingReason::ContainerCreating => "ContainerCreating",
            WaitingReason::PodInitializing => "PodInitializing",
            WaitingReason::CrashLoopBackOff => "CrashLoopBackOff",
            WaitingReason::CreateContainerConfigError => "CreateContainerConfigError",
            WaitingReason::CreateContainerError => "CreateContainerError",
            WaitingReason::ErrImageNeverPull => "ErrImageNeverPull",
            WaitingReason::ErrImagePull => "ErrImagePull",
            WaitingReason::ImageInspectError => "ImageInspectError",
            WaitingReason::ImagePullBackOff => "ImagePullBackOff",
            WaitingReason::InvalidImageName => "InvalidImageName",
            WaitingReason::PostStartHookError => "PostStartHookError",
            WaitingReason::RestartingAllContainers => "RestartingAllContainers",
            WaitingReason::RunContainerError => "RunContainerError",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pod) struct Waiting {
    reason: WaitingReason,
    message: String,
}

impl Waiting {
    pub(in crate::pod) fn new(reason: WaitingReason, message: impl Into<String>) -> Self {
        Waiting {
            reason,
            message: message.into(),
        }
    }

    pub(in crate::pod) fn reason(&self) -> WaitingReason {
        self.reason
    }

    pub(in crate::pod) fn message(&self) -> &str {
        &self.message
    }
}
