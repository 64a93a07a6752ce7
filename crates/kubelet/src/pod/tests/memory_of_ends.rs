//! How a pod's containers ended, and what happened when while it ended itself (SPEC B8).

use super::*;

#[test]
fn b8_the_last_five_terminations_of_each_container_are_told_with_the_statuses() {
    let mut life = Life::new(json!({}));
    life.settle();
    for code in 1..=7 {
        let run = life.running.keys().next().unwrap().clone();
        life.exit(&run, code);
        life.wait(400);
    }
    let ends = life.ends();
    let codes: Vec<(u32, i32)> = ends.containers["c"]
        .iter()
        .map(|e| (e.restart_count, e.exit_code))
        .collect();
    assert_eq!(codes, [(2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]);
    assert_eq!(ends.containers["c"][4].reason, "Error");
    assert!(ends.timeline.is_empty(), "the pod itself does not end");
}

#[test]
fn b8_the_timeline_shows_each_step_of_the_pods_end() {
    let hooked = json!([{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]);
    let mut life = Life::new(json!({"containers": hooked}));
    life.settle();
    life.delete(30);
    life.now += SignedDuration::from_millis(1500);
    life.hook_done(Hook::PreStop, Err("no".into()));
    life.now += SignedDuration::from_secs(2);
    life.exit("c0", 143);
    let began = life.ends().timeline[0].at;
    let steps: Vec<String> = life
        .ends()
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
fn b8_a_kubelet_that_comes_back_goes_on_with_what_the_one_before_has_told() {
    let mut life = Life::new(json!({}));
    life.settle();
    life.exit("c0", 1);
    let told = life.ends();
    let mut object = life.object.clone();
    let text = serde_json::to_string(&told).unwrap();
    object.metadata.annotations = Some(BTreeMap::from([(ENDS_ANNOTATION.to_string(), text)]));
    let mut next = Life::of(object.clone());
    assert_eq!(next.pod.ends, told);
    // What somebody else wrote there is no reason to fail.
    let nonsense = BTreeMap::from([(ENDS_ANNOTATION.to_string(), "[1".to_string())]);
    object.metadata.annotations = Some(nonsense);
    assert_eq!(Life::of(object).pod.ends, Ends::default());
    next.settle();
}
