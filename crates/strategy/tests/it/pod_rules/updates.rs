//! Updates: of the subresources, of statuses, and of gated pods.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_strategy::{Part, Strategy};
use serde_json::{Value, json};

use super::{overlay, pod};

#[test]
fn an_update_of_a_subresource_leaves_the_other_parts_unchanged() {
    let old = pod(json!({}));
    let mut changed = old.clone();
    changed.spec.as_mut().unwrap().containers[0].image = Some("i:2".into());
    changed.status.as_mut().unwrap().phase = Some("Running".into());
    let after = |part| {
        let mut pod = changed.clone();
        pod.prepare_for_update(&old, part);
        let image = pod.spec.unwrap().containers[0].image.clone().unwrap();
        (image, pod.status.unwrap().phase.unwrap(), pod.metadata.generation)
    };
    assert_eq!(after(Part::Main), ("i:2".into(), "Pending".into(), Some(2)));
    assert_eq!(after(Part::Status), ("i:1".into(), "Running".into(), Some(1)));
    assert_eq!(
        after(Part::Other("resize")),
        ("i:1".into(), "Pending".into(), Some(1))
    );
    assert_eq!(
        after(Part::Other("ephemeralcontainers")),
        ("i:1".into(), "Pending".into(), Some(1))
    );
}

#[test]
fn writers_that_do_not_know_observed_generation_do_not_lose_it() {
    let mut old = pod(json!({}));
    let status = old.status.as_mut().unwrap();
    status.observed_generation = Some(3);
    status.conditions = serde_json::from_value(json!([
        {"type": "Ready", "status": "True", "observedGeneration": 2},
    ]))
    .unwrap();
    let mut new = old.clone();
    let status = new.status.as_mut().unwrap();
    status.observed_generation = None;
    status.conditions.as_mut().unwrap()[0].observed_generation = None;
    new.prepare_for_update(&old, Part::Status);
    assert_eq!(new.status, old.status);
}

#[test]
fn a_terminated_container_that_is_not_restarted_stays_terminated() {
    let with_state = |spec: Value, state: Value| {
        let mut pod = pod(spec);
        pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([
            {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]))
        .unwrap();
        pod
    };
    let terminated = |code: i32| json!({"terminated": {"exitCode": code}});
    let running = json!({"running": {}});
    for (policy, code, restarted) in [
        ("Always", 0, true),
        ("OnFailure", 1, true),
        ("OnFailure", 0, false),
        ("Never", 1, false),
    ] {
        let spec = json!({"restartPolicy": policy});
        let old = with_state(spec.clone(), terminated(code));
        let new = with_state(spec, running.clone());
        let errors_of: Vec<String> = new
            .validate_update(&old, Part::Status)
            .iter()
            .map(ToString::to_string)
            .collect();
        let want: &[&str] = if restarted {
            &[]
        } else {
            &["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
        };
        assert_eq!(errors_of, want, "{policy} {code}");
    }
}

#[test]
fn gated_pods_may_narrow_node_selector_and_affinity() {
    let gated = |more: Value| {
        let mut spec = json!({"schedulingGates": [{"name": "g"}], "nodeSelector": {"a": "b"}});
        overlay(&mut spec, &more);
        pod(spec)
    };
    let old = gated(json!({}));
    let errors_of = |new: &Pod| -> Vec<String> {
        let mut new = new.clone();
        new.prepare_for_update(&old, Part::Main);
        new.validate_update(&old, Part::Main)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        errors_of(&gated(json!({"nodeSelector": {"c": "d"}}))),
        Vec::<String>::new()
    );
    assert_eq!(
        errors_of(&gated(json!({"nodeSelector": {"a": "x"}}))),
        [
            "spec.nodeSelector: Invalid value: {\"a\":\"x\"}: only additions to spec.nodeSelector are allowed (no \
          mutations or deletions)"
        ]
    );
    let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}}}});
    assert_eq!(errors_of(&gated(affinity)), Vec::<String>::new());
}
