//! Both controllers: objects as JSON, results as lines of actions and written objects.

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use knarr_api::k8s_openapi;
use knarr_api::well_known::CLAIM_DELETE_PROTECTION;
use serde_json::{Value, json};

use super::claims::ResourceClaims;
use super::pods::PodResourceClaims;
use super::*;
use crate::action::Action;
use crate::controller::{Controller, ObjectChange};
use crate::world::{World, at, lines, updated};

fn pod(over: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"namespace": "a", "name": "p"},
        "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
    });
    knarr_api::patch::merge::apply(&mut pod, &over);
    serde_json::from_value(pod).unwrap()
}

fn template() -> ResourceClaimTemplate {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let template = json!({
        "metadata": {"namespace": "a", "name": "t"},
        "spec": {
            "metadata": {"labels": {"l": "1"}, "annotations": {"n": "2"}},
            "spec": {"devices": {"requests": [request]}},
        },
    });
    serde_json::from_value(template).unwrap()
}

/// A claim that was created for the pod p.
fn claim(name: &str, over: Value) -> ResourceClaim {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true});
    let mut claim = json!({
        "metadata": {"namespace": "a", "name": name, "ownerReferences": [owner],
                     "annotations": {POD_CLAIM: "gpu"}},
        "spec": {},
    });
    knarr_api::patch::merge::apply(&mut claim, &over);
    serde_json::from_value(claim).unwrap()
}

/// Allocated, with the finalizer, and reserved for these pods.
fn in_use(users: &[&str]) -> Value {
    let users = users.iter();
    let users: Value = users
        .map(|name| json!({"resource": "pods", "name": name, "uid": format!("uid-{name}")}))
        .collect();
    json!({
        "metadata": {"finalizers": [CLAIM_DELETE_PROTECTION]},
        "status": {"allocation": {"devices": {}}, "reservedFor": users},
    })
}

fn named(name: &str) -> Value {
    json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}]}})
}

fn of_pod(world: &World) -> Vec<Action> {
    world.run(&PodResourceClaims, ("a", "p"), at(0))
}

fn of_claim(world: &World, name: &str) -> Vec<Action> {
    world.run(&ResourceClaims, ("a", name), at(0))
}

#[test]
fn a_claim_is_created_from_the_template_once_and_is_in_the_pods_status() {
    let mut world = World::default();
    world.put(pod(json!({})));
    world.put(template());
    let actions = of_pod(&world);
    assert_eq!(lines(&actions), ["create resourceclaims a/p-gpu-*"]);
    let [Action::Create(create)] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    let made: &ResourceClaim = create.object.as_any().downcast_ref().unwrap();
    let annotations = made.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        (annotations["n"].as_str(), annotations[POD_CLAIM].as_str()),
        ("2", "gpu")
    );
    assert_eq!(made.metadata.labels.as_ref().unwrap()["l"], "1");
    assert!(is_for(made, "uid-p"));
    assert_eq!(made.spec, template().spec.spec);
    world.take(&actions);
    let actions = of_pod(&world);
    assert_eq!(lines(&actions), ["update pods/status a/p"]);
    let changed: Pod = updated(&actions, "status").unwrap();
    assert_eq!(made_for(&changed, "gpu"), Some(Some("p-gpu-1")));
    world.take(&actions);
    assert!(of_pod(&world).is_empty());
}

#[test]
fn long_names_are_truncated_in_proportion() {
    let mut world = World::default();
    let (long, entry) = ("x".repeat(63), "y".repeat(63));
    let entries = json!([{"name": entry, "resourceClaimTemplateName": "t"}]);
    world.put(pod(
        json!({"metadata": {"name": long}, "spec": {"resourceClaims": entries}}),
    ));
    world.put(template());
    let actions = world.run(&PodResourceClaims, ("a", &long), at(0));
    let expect = format!("create resourceclaims a/{}-{}*", "x".repeat(28), "y".repeat(28));
    assert_eq!(lines(&actions), [expect]);
}

#[test]
fn a_claim_that_was_deleted_or_has_another_owner_is_created_again() {
    for (over, expect) in [
        (None, vec!["create resourceclaims a/p-gpu-*"]),
        (Some(json!({})), vec![]),
        (
            Some(json!({"metadata": {"ownerReferences": null}})),
            vec!["create resourceclaims a/p-gpu-*"],
        ),
    ] {
        let mut world = World::default();
        world.put(pod(named("c")));
        world.put(template());
        if let Some(over) = over.clone() {
            world.put(claim("c", over));
        }
        assert_eq!(lines(&of_pod(&world)), expect, "{over:?}");
    }
}

#[test]
fn no_claim_is_created_for_finished_pods_or_those_that_need_none() {
    let none = json!({"status": {"resourceClaimStatuses": [{"name": "gpu"}]}});
    for over in [
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}}),
        none,
    ] {
        let mut world = World::default();
        world.put(pod(over.clone()));
        world.put(template());
        assert!(of_pod(&world).is_empty(), "{over}");
    }
}

#[test]
fn a_missing_template_is_reported_and_its_creation_enqueues_the_pod() {
    let mut world = World::default();
    world.put(pod(json!({})));
    let expect = "event FailedResourceClaimCreation: PodResourceClaim gpu: resource claim template \"t\": \
                  resourceclaimtemplate.resource.k8s.io \"t\" not found";
    assert_eq!(lines(&of_pod(&world)), [expect]);
    let template = world.put(template());
    let changed = ObjectChange {
        kind: template.kind(),
        old: None,
        new: Some(&template),
    };
    let keys = PodResourceClaims.keys(&world, changed);
    assert_eq!(keys, [knarr_api::ObjectKey::new("a", "p")]);
}

#[test]
fn a_pod_with_a_node_has_its_allocated_claims_reserved() {
    let bound = || {
        let mut bound = named("c");
        bound["spec"] = json!({"nodeName": "n"});
        pod(bound)
    };
    for (over, expect) in [
        (in_use(&[]), vec!["update resourceclaims/status a/c"]),
        (in_use(&["p"]), vec![]),
        (json!({}), vec![]),
    ] {
        let mut world = World::default();
        world.put(bound());
        world.put(claim("c", over.clone()));
        let actions = of_pod(&world);
        assert_eq!(lines(&actions), expect, "{over}");
        if let Some(changed) = updated::<ResourceClaim>(&actions, "status") {
            assert_eq!(reserved_for(&changed)[0].uid, "uid-p");
        }
    }
}

#[test]
fn reservations_are_removed_with_their_pods_and_the_allocation_with_the_last() {
    let finished = json!({"status": {"phase": "Failed"}});
    let never_ran = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let ends = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n"}});
    let replaced = json!({"metadata": {"uid": "another"}});
    // Without the owner, so that nothing is deleted.
    let user_made = |users: &[&str]| {
        let mut claim = claim("c", in_use(users));
        claim.metadata.owner_references = None;
        claim
    };
    let update = "update resourceclaims/status a/c";
    for (over, expect) in [
        (json!({}), vec![]),
        (ends, vec![]),
        (finished.clone(), vec![update]),
        (never_ran, vec![update]),
        // Which of both pods is the newer one the caches do not say.
        (replaced, vec!["require pods a/p gone", update]),
    ] {
        let mut world = World::default();
        world.put(pod(over.clone()));
        world.put(user_made(&["p"]));
        let actions = of_claim(&world, "c");
        assert_eq!(lines(&actions), expect, "{over}");
        if expect.is_empty() {
            continue;
        }
        let changed: ResourceClaim = updated(&actions, "status").unwrap();
        assert!(reserved_for(&changed).is_empty() && !is_allocated(&changed));
    }
    // Another one still uses it.
    let mut world = World::default();
    world.put(pod(finished));
    world.put(pod(json!({"metadata": {"name": "q"}})));
    world.put(user_made(&["p", "q"]));
    let changed: ResourceClaim = updated(&of_claim(&world, "c"), "status").unwrap();
    assert_eq!(reserved_for(&changed).len(), 1);
    assert!(is_allocated(&changed));
}

#[test]
fn a_pod_that_is_not_in_the_caches_is_read_live_first() {
    let mut world = World::default();
    world.put(claim("c", in_use(&["p"])));
    let expect = ["require pods a/p gone", "update resourceclaims/status a/c"];
    assert_eq!(lines(&of_claim(&world, "c")), expect);
}

#[test]
fn a_claim_that_is_reserved_for_another_kind_is_not_changed() {
    let mut world = World::default();
    let users = json!([{"apiGroup": "example.com", "resource": "jobs", "name": "p", "uid": "x"}]);
    let mut over = in_use(&[]);
    over["status"]["reservedFor"] = users;
    world.put(claim("c", over));
    assert!(of_claim(&world, "c").is_empty());
}

#[test]
fn a_deleted_claim_loses_allocation_and_finalizer_when_it_is_not_in_use() {
    let mut world = World::default();
    world.put(pod(json!({})));
    let mut over = in_use(&["p"]);
    over["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    world.put(claim("c", over.clone()));
    assert!(of_claim(&world, "c").is_empty());
    over["status"]["reservedFor"] = json!([]);
    world.put(claim("c", over));
    let actions = of_claim(&world, "c");
    assert_eq!(lines(&actions), ["update resourceclaims/status a/c"]);
    world.take(&actions);
    let actions = of_claim(&world, "c");
    assert_eq!(lines(&actions), ["update resourceclaims a/c"]);
    let changed: ResourceClaim = updated(&actions, "").unwrap();
    assert_eq!(changed.metadata.finalizers, Some(Vec::new()));
}

#[test]
fn a_claim_that_was_created_for_a_pod_is_deleted_when_the_pod_is_finished() {
    for (over, expect) in [
        (json!({}), vec![]),
        (
            json!({"status": {"phase": "Succeeded"}}),
            vec!["delete resourceclaims a/c"],
        ),
        (
            json!({"metadata": {"uid": "another"}}),
            vec!["require pods a/p gone", "delete resourceclaims a/c"],
        ),
    ] {
        let mut world = World::default();
        world.put(pod(over.clone()));
        world.put(claim("c", json!({})));
        assert_eq!(lines(&of_claim(&world, "c")), expect, "{over}");
    }
}

#[test]
fn a_finished_pod_enqueues_its_claims() {
    let mut world = World::default();
    let running = world.put(pod(named("c")));
    let mut over = named("c");
    over["status"]["phase"] = json!("Succeeded");
    let finished = world.put(pod(over));
    let keys = |old, new| {
        let kind = finished.kind();
        ResourceClaims.keys(&world, ObjectChange { kind, old, new })
    };
    assert!(keys(None, Some(&*running)).is_empty());
    let expect = [knarr_api::ObjectKey::new("a", "c")];
    assert_eq!(keys(Some(&*running), Some(&*finished)), expect);
    assert_eq!(keys(Some(&*running), None), expect);
}
