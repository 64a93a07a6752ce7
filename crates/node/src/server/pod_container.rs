//! Selects the container that a request names, and explains why it has no log or stream.
//!
//! Works on the pod's status alone, with the kubelet's messages.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use knarr_api::k8s_openapi;

/// Is there a container of this name in the pod's spec?
pub(super) fn is_specified(pod: &Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    spec.containers.iter().chain(init).any(|c| c.name == container)
        || ephemeral.into_iter().any(|c| c.name == container)
}

/// Does the container of this name run in a terminal?
pub(super) fn has_tty(pod: &Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let init = spec.init_containers.iter().flatten();
    let own = spec
        .containers
        .iter()
        .chain(init)
        .find(|c| c.name == container)
        .map(|c| c.tty);
    let ephemeral = || {
        spec.ephemeral_containers
            .iter()
            .flatten()
            .find(|c| c.name == container)
            .map(|c| c.tty)
    };
    own.or_else(ephemeral).flatten().unwrap_or(false)
}

/// Why there is no log, of the container in the pod; the client's error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoLog {
    #[error("{0} is not available")]
    NotAvailable(String),
    #[error("previous terminated {0} not found")]
    NoPrevious(String),
    #[error("{0} is waiting to start - no logs yet")]
    NotStarted(String),
    #[error("{0} is waiting to start: {1}")]
    Waiting(String, String),
    #[error("{0} is terminated")]
    Terminated(String),
}

/// The id of the run whose log is requested.
pub(super) fn logged_run(pod: &Pod, container: &str, previous: bool) -> Result<String, NoLog> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let this = format!("container {container:?} in pod {name:?}");
    let Some(status) = status_of(pod, container) else {
        return Err(NoLog::NotAvailable(this));
    };
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let last_run = last
        .and_then(|t| t.container_id.as_deref())
        .filter(|id| !id.is_empty());
    if previous {
        return match last_run {
            Some(id) => Ok(bare(id)),
            None => Err(NoLog::NoPrevious(this)),
        };
    }
    let state = status.state.clone().unwrap_or_default();
    if state.running.is_some() {
        return match status.container_id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => Ok(bare(id)),
            None => Err(NoLog::NotStarted(this)),
        };
    }
    if let Some(terminated) = &state.terminated {
        // A run that was never started has no log; the one before it has.
        let run = terminated
            .container_id
            .as_deref()
            .filter(|id| !id.is_empty())
            .or(last_run);
        return run.map(bare).ok_or(NoLog::Terminated(this));
    }
    if last.is_some() {
        return last_run.map(bare).ok_or(NoLog::Terminated(this));
    }
    let reason = state.waiting.and_then(|w| w.reason);
    Err(match reason.as_deref() {
        Some("ErrImagePull") => NoLog::Waiting(this, "image can't be pulled".into()),
        Some("ImagePullBackOff") => NoLog::Waiting(this, "trying and failing to pull image".into()),
        Some(reason) => NoLog::Waiting(this, reason.into()),
        None => NoLog::NotStarted(this),
    })
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flat_map(|statuses| statuses.iter().flatten())
    .find(|status| status.name == container)
}

/// Without the runtime's name: `containerd://abc` is `abc`.
fn bare(id: &str) -> String {
    id.split_once("://").map_or(id, |(_, id)| id).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(state: Value, last_state: Value) -> Pod {
        let status = json!({
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "containerd://now", "state": state, "lastState": last_state,
        });
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "tty": true}], "initContainers": [{"name": "i"}]},
            "status": {"containerStatuses": [status]},
        }))
        .unwrap()
    }

    #[test]
    fn l13_logs_are_of_the_newest_run_there_was() {
        let running = json!({"running": {}});
        let terminated = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let none = json!({});
        for (state, last, previous, expected) in [
            (&running, &none, false, Ok("now")),
            (
                &running,
                &none,
                true,
                Err("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (&running, &terminated("containerd://before"), true, Ok("before")),
            (&terminated("containerd://a"), &none, false, Ok("a")),
            (&terminated(""), &terminated("b"), false, Ok("b")),
            (
                &terminated(""),
                &none,
                false,
                Err("container \"c\" in pod \"p\" is terminated"),
            ),
            (&waiting("CrashLoopBackOff"), &terminated("b"), false, Ok("b")),
            (
                &waiting("ContainerCreating"),
                &none,
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
            (
                &waiting("ErrImagePull"),
                &none,
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
            ),
            (
                &none,
                &none,
                false,
                Err("container \"c\" in pod \"p\" is waiting to start - no logs yet"),
            ),
        ] {
            let found = logged_run(&pod(state.clone(), last.clone()), "c", previous);
            let expected = expected.map(str::to_string).map_err(str::to_string);
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, expected, "{state} {last} {previous}");
        }
        let other = logged_run(&pod(running, none), "d", false);
        assert_eq!(
            other.unwrap_err().to_string(),
            "container \"d\" in pod \"p\" is not available"
        );
    }

    #[test]
    fn containers_are_those_of_the_spec() {
        let pod = pod(json!({}), json!({}));
        assert!(is_specified(&pod, "c") && is_specified(&pod, "i") && !is_specified(&pod, "x"));
        assert!(has_tty(&pod, "c") && !has_tty(&pod, "i"));
    }
}
