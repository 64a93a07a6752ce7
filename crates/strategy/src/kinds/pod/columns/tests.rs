//! Rows of pods in states that the recorded transcripts do not contain.

use serde_json::json;

use super::*;

fn cells(pod: serde_json::Value) -> Vec<Cell> {
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    row(&pod, "2026-01-01T01:00:00Z".parse().expect("a time"))
}

fn status_of(pod: serde_json::Value) -> (String, String, String) {
    let cells = cells(pod);
    let text = |i: usize| cells[i].as_str().expect("text").to_string();
    (text(1), text(2), text(3))
}

fn row_of(ready: &str, status: &str, restarts: &str) -> (String, String, String) {
    (ready.into(), status.into(), restarts.into())
}

#[test]
fn l13_restarts_show_when_the_last_run_finished() {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
            "restartCount": 2, "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:54:30Z"}}}]}});
    assert_eq!(status_of(pod), row_of("1/1", "Running", "2 (5m30s ago)"));
}

#[test]
fn s4_a_terminating_pod_of_a_lost_node_is_unknown() {
    let pod = |reason: &str| {
        json!({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running", "reason": reason}})
    };
    assert_eq!(status_of(pod("NodeLost")), row_of("0/1", "Unknown", "0"));
    assert_eq!(status_of(pod("")), row_of("0/1", "Terminating", "0"));
}

#[test]
fn l13_gated_pods_and_readiness_gates() {
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c"}], "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"},
            {"type": "a", "status": "True"}]}});
    assert_eq!(status_of(pod.clone()), row_of("0/1", "SchedulingGated", "0"));
    assert_eq!(cells(pod)[8], "1/2");
}

#[test]
fn l10_a_started_sidecar_counts_as_ready_and_its_restarts_stay() {
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]},
        "status": {"phase": "Running",
            "initContainerStatuses": [{"name": "s", "image": "", "imageID": "", "ready": true, "started": true,
                "restartCount": 3, "state": {"running": {}}}],
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 1,
                "state": {"running": {}}}]}});
    assert_eq!(status_of(pod), row_of("2/2", "Running", "4"));
}
