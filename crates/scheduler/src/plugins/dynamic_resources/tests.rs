//! Pods with claims and the whole scheduler: its messages, what it reserves, and which events requeue which pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use knarr_api::Object;
use knarr_api::registry::Registered;
use serde_json::{Value, json};

use super::*;
use crate::scheduler::{Action, Scheduler};

fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

/// A scheduler with nodes, their claims, and the current second.
struct World {
    scheduler: Scheduler,
    second: i64,
    version: u64,
}

impl World {
    /// Nodes, each with one CPU and so many devices, and the class `gpu`.
    fn new(nodes: &[(&str, usize)]) -> Self {
        let mut world = World {
            scheduler: Scheduler::default(),
            second: 0,
            version: 1,
        };
        for (name, devices) in nodes {
            let node: Shared<Node> = shared(json!({
                "metadata": {"name": name, "uid": name},
                "spec": {},
                "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "10"}},
            }));
            world.scheduler.node_changed(name, Some(node), at(0));
            if *devices > 0 {
                world.slice(name, *devices);
            }
        }
        world.class("gpu");
        world
    }

    fn change(&mut self, change: &Change) {
        self.scheduler.devices_changed(change, at(self.second));
    }

    fn class(&mut self, name: &str) {
        let after: Shared<DeviceClass> = shared(json!({"metadata": {"name": name}, "spec": {}}));
        let (before, after) = (None, Some(after));
        self.change(&Change::Class { before, after });
    }

    fn slice(&mut self, node: &str, devices: usize) {
        let devices: Value = (0..devices)
            .map(|n| json!({"name": format!("{node}-{n}")}))
            .collect();
        let after: Shared<ResourceSlice> = shared(json!({"metadata": {"name": node}, "spec": {
            "driver": "gpu.example", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        }}));
        let (before, after) = (None, Some(after));
        self.change(&Change::Slice { before, after });
    }

    /// A claim for `count` devices of the class; `with` has further fields of the object.
    fn claim(&mut self, name: &str, class: &str, count: i64, with: Value) -> Shared<ResourceClaim> {
        self.version += 1;
        let mut claim = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                         "resourceVersion": self.version.to_string()},
            "spec": {"devices": {"requests": [
                {"name": "r", "exactly": {"deviceClassName": class, "count": count}}]}},
        });
        knarr_api::patch::merge::apply(&mut claim, &with);
        let claim: Shared<ResourceClaim> = shared(claim);
        let (before, after) = (None, Some(claim.clone()));
        self.change(&Change::Claim { before, after });
        claim
    }

    fn pod(&mut self, name: &str, spec: Value, status: Value) {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [{"name": "c"}]},
            "status": status,
        });
        knarr_api::patch::merge::apply(&mut pod, &json!({ "spec": spec }));
        self.scheduler
            .pod_changed(None, Some(&shared(pod)), at(self.second));
    }

    /// How many pods the event has requeued.
    fn added(&self, event: &str) -> u64 {
        let all = self.scheduler.incoming_pods().iter();
        all.filter(|((of, _), _)| *of == event)
            .map(|(_, pods)| pods)
            .sum()
    }

    /// A pod that uses these claims.
    fn user(&mut self, name: &str, claims: &[&str]) {
        let claims = claims.iter();
        let claims: Value = claims
            .map(|c| json!({"name": c, "resourceClaimName": c}))
            .collect();
        self.pod(name, json!({ "resourceClaims": claims }), json!({}));
    }

    fn next(&mut self) -> Option<Action> {
        self.second += 60;
        self.scheduler.schedule_one(at(self.second))
    }

    /// `pod -> node: device …` or `pod: message`.
    fn step(&mut self) -> String {
        match self.next() {
            None => "nothing".into(),
            Some(Action::Bind {
                pod, node, claims, ..
            }) => {
                let claims = claims.map(|c| (*c).clone()).unwrap_or_default();
                let new = claims.claims.iter().filter_map(|(_, new)| new.as_ref());
                let new = new.chain(claims.extended.as_ref().map(|(_, new)| new));
                let devices = new.flat_map(|new| new.devices.as_ref()?.results.clone());
                let devices: Vec<String> = devices.flatten().map(|d| d.device).collect();
                format!("{} -> {node}: {}", pod.object().name(), devices.join(" "))
            }
            Some(Action::Report {
                pod,
                message,
                deallocate,
                ..
            }) => {
                let claim = deallocate.map(|c| format!(" [deallocate {}]", c.object().name()));
                format!("{}: {message}{}", pod.object().name(), claim.unwrap_or_default())
            }
            Some(Action::Preempt { pod, node, .. }) => format!("{} preempts on {node}", pod.object().name()),
        }
    }
}

fn allocated(node: &str, device: &str, reserved: &[&str]) -> Value {
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let users = reserved.iter();
    let users: Value = users
        .map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}))
        .collect();
    json!({"status": {
        "allocation": {
            "devices": {"results": [
                {"request": "r", "driver": "gpu.example", "pool": node, "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        },
        "reservedFor": users,
    }})
}

const NOT_SCHEDULABLE: &str = "still not schedulable, preemption: 0/1 nodes are available: \
                               1 Preemption is not helpful for scheduling.";

#[test]
fn a_pod_is_scheduled_where_the_devices_of_its_claims_are() {
    let mut world = World::new(&[("a", 0), ("b", 2), ("c", 1)]);
    world.claim("two", "gpu", 2, json!({}));
    world.user("p", &["two"]);
    assert_eq!(world.step(), "p -> b: b-0 b-1");
    world.claim("one", "gpu", 1, json!({}));
    world.user("q", &["one"]);
    assert_eq!(
        world.step(),
        "q -> c: c-0",
        "those of b are kept before the API knows"
    );
    world.claim("more", "gpu", 1, json!({}));
    world.user("r", &["more"]);
    let message = world.step();
    let expect = "r: 0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, \
                  preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
    assert_eq!(message, expect);
}

#[test]
fn an_allocated_claim_is_used_where_it_is_allocated() {
    let mut world = World::new(&[("a", 1), ("b", 1)]);
    world.claim("there", "gpu", 1, allocated("b", "b-0", &["x"]));
    world.user("p", &["there"]);
    assert_eq!(world.step(), "p -> b: ");
    world.claim("new", "gpu", 1, json!({}));
    world.user("q", &["new"]);
    assert_eq!(
        world.step(),
        "q -> a: a-0",
        "an allocated device is not allocated again"
    );
}

#[test]
fn p3_a_pod_is_not_tried_before_its_claims_are_created() {
    let mut world = World::new(&[("a", 1)]);
    let entry = json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]});
    world.pod("p", entry.clone(), json!({}));
    assert_eq!(world.step(), "nothing");
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    world.claim(
        "p-gpu-x",
        "gpu",
        1,
        json!({"metadata": {"ownerReferences": owners}}),
    );
    assert_eq!(world.step(), "nothing", "the pod does not name it yet");
    let named = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]});
    let of = |status: Value| -> Shared<Pod> {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "p"},
            "spec": {"containers": [{"name": "c"}]},
            "status": status,
        });
        knarr_api::patch::merge::apply(&mut pod, &json!({"spec": entry}));
        shared(pod)
    };
    let (old, new) = (of(json!({})), of(named));
    world
        .scheduler
        .pod_changed(Some(&old), Some(&new), at(world.second));
    assert_eq!(world.step(), "p -> a: a-0");
}

#[test]
fn p3_a_pod_whose_claim_is_named_waits_for_it() {
    let mut world = World::new(&[("a", 1)]);
    world.user("p", &["later"]);
    assert_eq!(world.step(), "nothing");
    world.claim("other", "gpu", 1, json!({}));
    assert_eq!(world.step(), "nothing");
    world.claim("later", "gpu", 1, json!({}));
    assert_eq!(world.step(), "p -> a: a-0");
}

#[test]
fn a_claim_of_another_pod_or_a_terminating_one_is_not_used() {
    let devices = Devices::default();
    let pod: Shared<Pod> = shared(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "p"},
        "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]},
    }));
    let error = claims_of(&devices, &pod).unwrap_err();
    assert_eq!(error.to_string(), "could not find resource claim \"default/c\"");
    let claim = |with: Value| -> Devices {
        let mut claim = json!({"metadata": {"name": "c", "namespace": "default", "uid": "c"}, "spec": {}});
        knarr_api::patch::merge::apply(&mut claim, &json!({ "metadata": with }));
        let mut devices = Devices::default();
        devices.set_claim(&shared(claim));
        devices
    };
    let error = claims_of(&claim(json!({})), &pod).unwrap_err();
    let expect = "ResourceClaim default/c was not created for Pod default/p (Pod is not owner)";
    assert_eq!(error.to_string(), expect);
    let ends = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let error = claims_of(&claim(ends), &pod).unwrap_err();
    assert_eq!(error.to_string(), "resourceclaim \"c\" is being deleted");
    // The entry needs no claim.
    let none: Shared<Pod> = shared(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "p"},
        "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "gpu"}]},
    }));
    assert!(claims_of(&devices, &none).unwrap().is_empty());
}

#[test]
fn p3_only_events_that_may_free_devices_requeue_a_pod() {
    let mut world = World::new(&[("a", 0)]);
    world.claim("c", "gone", 1, json!({}));
    world.user("p", &["c"]);
    let expect = "p: 0/1 nodes are available: request r: device class gone does not exist. no new claims \
                  to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for \
                  scheduling.";
    assert_eq!(world.step(), expect);
    assert_eq!(world.step(), "nothing");
    world.class("gone");
    let expect = format!("p: 0/1 nodes are available: 1 cannot allocate all claims. {NOT_SCHEDULABLE}");
    assert_eq!(world.step(), expect);
    world.claim("unrelated", "gpu", 1, json!({}));
    assert_eq!(world.step(), "nothing");
    world.slice("a", 1);
    assert_eq!(world.step(), "p -> a: a-0");
    for event in [
        "resource.k8s.io/DeviceClassAdd",
        "resource.k8s.io/ResourceSliceAdd",
    ] {
        assert_eq!(world.added(event), 1, "{event}");
    }
}

#[test]
fn p3_a_deallocated_claim_requeues_the_pods_that_wait_for_its_devices() {
    let mut world = World::new(&[("a", 1)]);
    let before = world.claim("first", "gpu", 1, allocated("a", "a-0", &[]));
    world.claim("second", "gpu", 1, json!({}));
    world.user("p", &["second"]);
    let expect = format!("p: 0/1 nodes are available: 1 cannot allocate all claims. {NOT_SCHEDULABLE}");
    assert_eq!(world.step(), expect);
    let mut after: ResourceClaim = (*before).clone();
    after.status = None;
    after.metadata.resource_version = Some("100".into());
    let after = shared(serde_json::to_value(after).unwrap());
    let (before, after) = (Some(before), Some(after));
    world.change(&Change::Claim { before, after });
    assert_eq!(world.step(), "p -> a: a-0");
    assert_eq!(world.added("resource.k8s.io/ResourceClaimUpdate"), 1);
}

#[test]
fn devices_are_free_again_when_binding_fails() {
    let mut world = World::new(&[("a", 1)]);
    world.claim("c", "gpu", 1, json!({}));
    world.user("p", &["c"]);
    let Some(Action::Bind { pod, .. }) = world.next() else {
        panic!("not placed");
    };
    world.claim("d", "gpu", 1, json!({}));
    world.user("q", &["d"]);
    assert!(
        world
            .step()
            .starts_with("q: 0/1 nodes are available: 1 cannot allocate all claims.")
    );
    world.scheduler.binding_failed(&pod, at(world.second));
    assert_eq!(world.step(), "p -> a: a-0");
}

#[test]
fn a_written_allocation_counts_although_the_caches_lag_behind() {
    let mut world = World::new(&[("a", 1)]);
    let old = world.claim("c", "gpu", 1, json!({}));
    world.user("p", &["c"]);
    let Some(Action::Bind { pod, .. }) = world.next() else {
        panic!("not placed");
    };
    let mut written: ResourceClaim = (*old).clone();
    let status = serde_json::from_value(allocated("a", "a-0", &["p"])["status"].clone()).unwrap();
    written.status = Some(status);
    written.metadata.resource_version = Some("100".into());
    world
        .scheduler
        .claim_written(&shared(serde_json::to_value(written).unwrap()));
    // The binding fails, and only now do the caches show the claim as it was before.
    let (before, after) = (Some(old.clone()), Some(old));
    world.change(&Change::Claim { before, after });
    world.scheduler.binding_failed(&pod, at(world.second));
    world.claim("d", "gpu", 1, json!({}));
    world.user("q", &["d"]);
    let steps = [world.step(), world.step()];
    assert!(steps.contains(&"p -> a: ".to_string()), "{steps:?}");
    assert!(
        steps
            .iter()
            .any(|s| s.starts_with("q: 0/1 nodes are available: 1 cannot")),
        "{steps:?}"
    );
}

#[test]
fn an_allocated_claim_that_does_not_fit_is_deallocated_if_no_other_pod_uses_it() {
    for (users, deallocates) in [
        (&[][..], true),
        (&["p"], true),
        (&["p", "x"], false),
        (&["x"], false),
    ] {
        let mut world = World::new(&[("a", 1)]);
        world.claim("c", "gpu", 1, allocated("gone", "gone-0", users));
        world.user("p", &["c"]);
        let why = "p: 0/1 nodes are available: 1 resourceclaim not available on the node.";
        let expect = if deallocates {
            format!("{why} deallocation of ResourceClaim completed [deallocate c]")
        } else {
            format!("{why} {NOT_SCHEDULABLE}")
        };
        assert_eq!(world.step(), expect, "{users:?}");
    }
}

#[test]
fn a_node_with_a_preferred_alternative_scores_higher() {
    for (better, other) in [("a", "b"), ("b", "a")] {
        let mut world = World::new(&[(better, 2), (other, 1)]);
        let alternatives = json!([
            {"name": "two", "deviceClassName": "gpu", "count": 2},
            {"name": "one", "deviceClassName": "gpu", "count": 1},
        ]);
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": null, "firstAvailable": alternatives}]}});
        world.claim("c", "gpu", 1, json!({ "spec": spec }));
        world.user("p", &["c"]);
        assert_eq!(world.step(), format!("p -> {better}: {better}-0 {better}-1"));
    }
}

#[test]
fn a_selector_that_fails_is_an_error_of_the_attempt() {
    let mut world = World::new(&[("a", 1)]);
    let selectors = json!([{"cel": {"expression": "device.attributes[\"x.example\"].y"}}]);
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": selectors}});
    world.claim(
        "c",
        "gpu",
        1,
        json!({"spec": {"devices": {"requests": [request]}}}),
    );
    world.user("p", &["c"]);
    let Some(Action::Report {
        message, is_error, ..
    }) = world.next()
    else {
        panic!("no report");
    };
    assert!(is_error);
    let expect = "running \"DynamicResources\" filter plugin: claim default/c: selector #0: CEL runtime \
                  error: no such key: y";
    assert_eq!(message, expect);
}

#[test]
fn no_pod_is_preempted_where_the_devices_are_not_available() {
    let mut world = World::new(&[("a", 0)]);
    let cpu = |priority: i64| {
        json!({"priority": priority,
               "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]})
    };
    world.pod("low", cpu(0), json!({}));
    assert_eq!(world.step(), "low -> a: ");
    world.claim("c", "gpu", 1, json!({}));
    let mut high = cpu(10);
    high["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"}]);
    world.pod("high", high, json!({}));
    let expect = format!("high: 0/1 nodes are available: 1 Insufficient cpu. {NOT_SCHEDULABLE}");
    assert_eq!(world.step(), expect);
}

#[test]
fn binding_waits_for_the_conditions_of_devices() {
    let claim = |conditions: Value| -> ResourceClaim {
        let device = json!({"driver": "d", "pool": "p", "device": "x", "conditions": conditions});
        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x",
            "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]});
        let since = "1970-01-01T00:00:00Z";
        let allocation = json!({"allocationTimestamp": since, "devices": {"results": [result]}});
        let status = json!({"allocation": allocation, "devices": [device]});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": status})).unwrap()
    };
    let condition = |type_: &str, status: &str| {
        json!({"type": type_, "status": status, "reason": "Why", "message": "because",
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    assert_eq!(is_ready(&claim(json!([]))), Ok(false));
    assert_eq!(
        is_ready(&claim(json!([condition("attached", "False")]))),
        Ok(false)
    );
    assert_eq!(is_ready(&claim(json!([condition("attached", "True")]))), Ok(true));
    let broken = claim(json!([
        condition("attached", "True"),
        condition("broken", "True")
    ]));
    let expect = "device binding failed: claim=c, reason=Why, message=\"because\"";
    assert_eq!(
        is_ready(&broken).map_err(|e| e.to_string()),
        Err(expect.to_string())
    );
    assert!(!has_timed_out(&broken, at(600)));
    assert!(has_timed_out(&broken, at(601)));
}

/// A pod whose container requests one of the resource.
fn asking(world: &mut World, name: &str, resource: &str) {
    let requests = json!({ resource: "1" });
    let container = json!({"name": "c", "resources": {"requests": requests}});
    world.pod(name, json!({ "containers": [container] }), json!({}));
}

const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/gpu";

#[test]
fn an_extended_resource_is_allocated_as_a_device_where_no_device_plugin_provides_it() {
    let mut world = World::new(&[("a", 1)]);
    asking(&mut world, "p", OF_CLASS);
    assert_eq!(world.step(), "p -> a: a-0");
    asking(&mut world, "q", OF_CLASS);
    let expect = format!("q: 0/1 nodes are available: 1 cannot allocate all claims. {NOT_SCHEDULABLE}");
    assert_eq!(world.step(), expect, "it is kept before the API knows");
}

#[test]
fn an_extended_resource_of_a_device_plugin_is_not_allocated() {
    let mut world = World::new(&[("a", 1)]);
    let node: Shared<Node> = shared(json!({
        "metadata": {"name": "a", "uid": "a"},
        "spec": {},
        "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "10", OF_CLASS: "1"}},
    }));
    world.scheduler.node_changed("a", Some(node), at(0));
    asking(&mut world, "p", OF_CLASS);
    assert_eq!(world.step(), "p -> a: ");
    asking(&mut world, "q", OF_CLASS);
    let message = world.step();
    assert!(
        message.contains("1 Insufficient deviceclass.resource.kubernetes.io/gpu"),
        "{message}"
    );
}

#[test]
fn p3_a_class_for_the_resource_requeues_a_pod_and_one_for_another_does_not() {
    let mut world = World::new(&[("a", 1)]);
    let name = "deviceclass.resource.kubernetes.io/later";
    asking(&mut world, "p", name);
    let message = world.step();
    assert!(
        message.contains("Insufficient deviceclass.resource.kubernetes.io/later"),
        "{message}"
    );
    world.class("other");
    assert_eq!(world.step(), "nothing");
    world.class("later");
    assert_eq!(world.step(), "p -> a: a-0");
}

#[test]
fn the_claim_of_a_failed_attempt_is_deleted_before_the_pod_is_tried_again() {
    let mut world = World::new(&[("a", 2)]);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let annotations = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let with = json!({"metadata": {"ownerReferences": owners, "annotations": annotations}});
    let stale = world.claim("stale", "gpu", 1, with);
    asking(&mut world, "p", OF_CLASS);
    let message = world.step();
    assert!(
        message.contains("cannot schedule extended resource claim"),
        "{message}"
    );
    assert!(
        message.ends_with("deletion of ResourceClaim completed [deallocate stale]"),
        "{message}"
    );
    assert_eq!(world.step(), "nothing");
    let (before, after) = (Some(stale), None);
    world.change(&Change::Claim { before, after });
    assert_eq!(world.step(), "p -> a: a-0");
}

#[test]
fn devices_for_extended_resources_are_free_again_when_binding_fails() {
    let mut world = World::new(&[("a", 1)]);
    asking(&mut world, "p", OF_CLASS);
    let Some(Action::Bind { pod, .. }) = world.next() else {
        panic!("not placed");
    };
    let made = world.claim("made", "gpu", 1, json!({}));
    assert!(world.scheduler.extended_claim_created(&"p".into(), &made));
    asking(&mut world, "q", OF_CLASS);
    let message = world.step();
    assert!(
        message.starts_with("q: 0/1 nodes are available: 1 cannot allocate all claims."),
        "{message}"
    );
    world.scheduler.binding_failed(&pod, at(world.second));
    assert_eq!(world.step(), "p -> a: a-0");
    assert!(!world.scheduler.extended_claim_created(&"gone".into(), &made));
}
