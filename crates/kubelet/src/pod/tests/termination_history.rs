//! The terminations of a pod's containers, and the timeline of its own termination (SPEC B8).

use super::*;

#[test]
fn b8_the_last_five_terminations_of_each_container_are_written_with_the_status() {
    let mut life = Life::new(json!({}));
    life.settle();
    for code in 1..=7 {
        let run = life.running.keys().next().unwrap().clone();
        life.exit(&run, code);
        life.wait(400);
    }
    let history = life.history();
    let codes: Vec<(u32, i32)> = history.containers["c"]
        .iter()
        .map(|e| (e.restart_count, e.exit_code))
        .collect();
    assert_eq!(codes, [(2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]);
    assert_eq!(history.containers["c"][4].reason, "Error");
    assert!(history.timeline.is_empty(), "the pod itself is not terminating");
}

#[test]
fn b8_the_timeline_shows_each_step_of_the_pods_termination() {
    let hooked = json!([{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]);
    let mut life = Life::new(json!({"containers": hooked}));
    life.settle();
    life.delete(30);
    life.now += SignedDuration::from_millis(1500);
    life.hook_done(Hook::PreStop, Err(ActionError::new("no")));
    life.now += SignedDuration::from_secs(2);
    life.exit("c0", 143);
    let began = life.history().timeline[0].at;
    let steps: Vec<String> = life
        .history()
        .timeline
        .into_iter()
        .map(|m| {
            let after = m.at.duration_since(began).as_millis();
            let of = m.container.unwrap_or_default();
            format!("{after} {} {of} {}", m.what, m.detail.unwrap_or_default())
        })
        .collect();
    assert_eq!(
        steps,
        [
            "0 Deleted  30s of grace",
            "0 PreStop c ",
            "1500 PreStopDone c failed",
            "1500 Term c KILL after 29s",
            "3500 Exited c exit code 143",
            "3500 SandboxStopped  ",
        ]
    );
}

#[test]
fn b8_a_restarted_kubelet_continues_the_history() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    let written = life.history();
    let mut object = life.object.clone();
    let text = serde_json::to_string(&written).unwrap();
    object.metadata.annotations = Some(BTreeMap::from([(
        TERMINATION_HISTORY_ANNOTATION.to_string(),
        text,
    )]));
    let mut next = Life::of(object.clone());
    assert_eq!(next.pod.history, RecordedHistory::new(written));
    // An annotation that does not parse is ignored.
    let nonsense = BTreeMap::from([(TERMINATION_HISTORY_ANNOTATION.to_string(), "[1".to_string())]);
    object.metadata.annotations = Some(nonsense);
    assert_eq!(
        Life::of(object).pod.history,
        RecordedHistory::new(TerminationHistory::default())
    );
    next.settle();
}
