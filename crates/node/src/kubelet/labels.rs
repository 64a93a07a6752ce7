//! The labels and annotations by which a sandbox or container is known again, as every kubelet writes them.

use std::collections::HashMap;

use knarr_kubelet::self_fencing::TerminationMode;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// On containers that their node terminates by itself when it is cut off, and how: a restarted kubelet recognises them
/// by it.
pub const SELF_FENCED: &str = "knarr.io/self-fenced";
pub const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// The value of [`SELF_FENCED`].
pub fn of_termination_mode(termination_mode: TerminationMode) -> &'static str {
    match termination_mode {
        TerminationMode::Terminate => "terminate",
        TerminationMode::Kill => "kill",
    }
}

/// The value of [`SELF_FENCED`]. Any unknown value means TERM.
pub fn termination_mode(annotations: &HashMap<String, String>) -> Option<TerminationMode> {
    annotations.get(SELF_FENCED).map(|value| match value.as_str() {
        "kill" => TerminationMode::Kill,
        _ => TerminationMode::Terminate,
    })
}
