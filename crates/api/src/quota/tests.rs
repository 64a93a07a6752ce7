//! The usage of objects, and what a quota denies, by tables.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use knarr_strategy::Strategy;
use serde_json::{Value, json};

use super::*;
use crate::Object;
use crate::kinds::pod::resources::Amounts;
use crate::registry::{CONFIG_MAP, DEPLOYMENT, EVENT, NODE, POD, RESOURCE_CLAIM, SERVICE};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn shown(amounts: &Amounts) -> Vec<String> {
    amounts
        .iter()
        .map(|(name, amount)| format!("{name}={}", amount.to_wire().0))
        .collect()
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
}

fn one_container(requests: Value, limits: Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]})
}

/// A quota whose status is known.
fn quota(spec: Value, used: Value) -> ResourceQuota {
    let hard = spec["hard"].clone();
    let mut quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": {"name": "q", "uid": "u"}, "spec": spec, "status": {"hard": hard, "used": used},
    }))
    .unwrap();
    quota.set_defaults();
    quota
}

fn try_create(quota: &ResourceQuota, new: &dyn AnyObject, kind: &Kind) -> Result<Vec<String>, String> {
    let change = Change {
        evaluator: &Evaluator::of(kind).unwrap(),
        subresource: "",
        old: None,
        new,
        now: at(0),
        devices: &Devices::default(),
    };
    Ok(check(&[quota], &change)
        .map_err(|e| e.to_string())?
        .iter()
        .flat_map(|c| shown(&c.amounts))
        .collect())
}

#[test]
fn every_stored_kind_of_a_namespace_but_events_is_counted() {
    assert_eq!(Evaluator::of(&POD), Some(Evaluator::Pods));
    let deployments = Evaluator::of(&DEPLOYMENT).unwrap();
    for (name, counted) in [
        ("count/deployments.apps", true),
        ("count/deployments", false),
        ("count/deployments.apps.x", false),
        ("deployments", false),
    ] {
        assert_eq!(deployments.counts(name), counted, "{name}");
    }
    assert!(Evaluator::of(&CONFIG_MAP).unwrap().counts("configmaps"));
    assert_eq!(Evaluator::of(&EVENT), None);
    assert_eq!(Evaluator::of(&NODE), None);
}

#[test]
fn a_pod_uses_its_largest_requests_until_it_is_terminal() {
    let spec = json!({
        "containers": [{"name": "c", "resources": {
            "requests": {"cpu": "100m", "memory": "1Gi", "hugepages-2Mi": "2Mi", "example.com/gpu": "2"},
            "limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi", "example.com/gpu": "2"},
        }}],
        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "300m"}}}],
        "overhead": {"cpu": "50m"},
    });
    let whole = [
        "count/pods=1",
        "cpu=350m",
        "hugepages-2Mi=2Mi",
        "limits.cpu=1050m",
        "limits.memory=1Gi",
        "memory=1Gi",
        "pods=1",
        "requests.cpu=350m",
        "requests.example.com/gpu=2",
        "requests.hugepages-2Mi=2Mi",
        "requests.memory=1Gi",
    ];
    let with = |change: fn(&mut Pod)| {
        let mut pod = pod(spec.clone());
        change(&mut pod);
        shown(&Evaluator::Pods.usage(&pod, at(100), &Devices::default()))
    };
    assert_eq!(with(|_| {}), whole);
    assert_eq!(
        with(|p| p.status.get_or_insert_default().phase = Some("Failed".into())),
        ["count/pods=1"]
    );
    let ending = |p: &mut Pod, since: i64| {
        p.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(since)));
        p.metadata.deletion_grace_period_seconds = Some(30);
    };
    assert_eq!(with(|_| {}).len(), whole.len());
    let mut stuck = pod(spec.clone());
    ending(&mut stuck, 69);
    assert_eq!(
        shown(&Evaluator::Pods.usage(&stuck, at(100), &Devices::default())),
        ["count/pods=1"]
    );
    ending(&mut stuck, 70);
    assert_eq!(
        shown(&Evaluator::Pods.usage(&stuck, at(100), &Devices::default())),
        whole
    );
}

#[test]
fn a_pods_own_resources_replace_its_containers_and_a_resize_counts_with_the_most() {
    let mut spec = one_container(json!({"cpu": "1"}), json!({}));
    spec["resources"] = json!({"requests": {"cpu": "3"}, "limits": {"cpu": "4"}});
    let used = shown(&Evaluator::Pods.usage(&pod(spec), at(0), &Devices::default()));
    assert_eq!(
        used,
        [
            "count/pods=1",
            "cpu=3",
            "limits.cpu=4",
            "pods=1",
            "requests.cpu=3"
        ]
    );

    let mut resized = pod(one_container(json!({"cpu": "1"}), json!({})));
    resized.status = serde_json::from_value(json!({"containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1500m"},
    }]}))
    .unwrap();
    let used = Evaluator::Pods.usage(&resized, at(0), &Devices::default());
    assert_eq!(used["requests.cpu"].to_wire().0, "2");
}

#[test]
fn services_use_the_ports_they_request() {
    for (spec, ports, balancers) in [
        (json!({"type": "ClusterIP", "ports": [{"port": 1}]}), 0, 0),
        (
            json!({"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}),
            2,
            0,
        ),
        (json!({"type": "LoadBalancer", "ports": [{"port": 1}]}), 1, 1),
        (
            json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                   "ports": [{"port": 1}, {"port": 2, "nodePort": 30000}]}),
            1,
            1,
        ),
    ] {
        let service: Service = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let used = Evaluator::Services.usage(&service, at(0), &Devices::default());
        assert_eq!(used["services.nodeports"].value(), ports, "{spec}");
        assert_eq!(used["services.loadbalancers"].value(), balancers, "{spec}");
        assert_eq!(used["services"].value(), 1);
    }
}

#[test]
fn claims_use_storage_in_all_and_of_their_class() {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {}, "spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"allocatedResources": {"storage": "2Gi"}},
    }))
    .unwrap();
    assert_eq!(
        shown(&Evaluator::PersistentVolumeClaims.usage(&claim, at(0), &Devices::default())),
        [
            "count/persistentvolumeclaims=1",
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1",
            "gold.storageclass.storage.k8s.io/requests.storage=2Gi",
            "persistentvolumeclaims=1",
            "requests.storage=2Gi",
        ]
    );
    let counts = |name: &str| Evaluator::PersistentVolumeClaims.counts(name);
    assert!(counts("silver.storageclass.storage.k8s.io/requests.storage"));
    assert!(!counts("silver.storageclass.storage.k8s.io/pods"));
}

#[test]
fn resource_claims_use_the_most_devices_of_their_alternatives() {
    let claim: k8s_openapi::api::resource::v1::ResourceClaim = serde_json::from_value(json!({
        "metadata": {}, "spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
            {"name": "b", "firstAvailable": [
                {"name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
                {"name": "y", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3},
                {"name": "z", "deviceClassName": "nic", "allocationMode": "All"},
            ]},
        ]}},
    }))
    .unwrap();
    let evaluator = Evaluator::of(&RESOURCE_CLAIM).unwrap();
    assert_eq!(
        shown(&evaluator.usage(&claim, at(0), &Devices::default())),
        [
            "count/resourceclaims.resource.k8s.io=1",
            "gpu.deviceclass.resource.k8s.io/devices=5",
            "nic.deviceclass.resource.k8s.io/devices=32",
        ]
    );
}

/// v1.36 charges the devices of a class also by its extended resource, less what the pod was charged.
#[test]
fn claims_use_extended_resources_beyond_what_their_pods_were_charged() {
    let object = |kind: &Kind, value: Value| {
        let json = serde_json::to_vec(&value).unwrap();
        let mut decoded = kind.ops.decode(&json).unwrap();
        let encoded = Object::encode_for_store(&mut *decoded.object);
        Arc::new(Object::from_stored(kind, decoded.object, &encoded, 1))
    };
    let gpu = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "example.com/gpu"}});
    let nic = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic"}, "spec": {}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n", "uid": "1"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "2"}}}]}});
    let claim = |name: &str, more: Value| -> ResourceClaim {
        let mut claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"devices": {"requests": [
                {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3}},
                {"name": "b", "exactly": {"deviceClassName": "nic", "allocationMode": "ExactCount", "count": 1}}]}}});
        crate::patch::merge::apply(&mut claim, &more);
        serde_json::from_value(claim).unwrap()
    };
    let made_for = |uid: &str| {
        json!({"metadata": {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]}})
    };
    let own = claim("own", made_for("1"));
    let evaluator = Evaluator::of(&RESOURCE_CLAIM).unwrap();
    let usage = |claim: &ResourceClaim, status: Value| {
        let mut pod = pod.clone();
        pod["status"] = status;
        let devices = Devices::new(|kind| match kind.kind() {
            "DeviceClass" => vec![
                object(&registry::DEVICE_CLASS, gpu.clone()),
                object(&registry::DEVICE_CLASS, nic.clone()),
            ],
            "Pod" => vec![object(&POD, pod.clone())],
            _ => vec![object(&RESOURCE_CLAIM, serde_json::to_value(&own).unwrap())],
        });
        let used = shown(&evaluator.usage(claim, at(0), &devices));
        let extended = used.into_iter().filter(|line| line.starts_with("requests."));
        extended.collect::<Vec<_>>()
    };
    let class = "requests.deviceclass.resource.kubernetes.io/gpu";
    let all = [format!("{class}=3"), "requests.example.com/gpu=3".to_string()];
    let rest = [format!("{class}=3"), "requests.example.com/gpu=1".to_string()];
    assert_eq!(usage(&claim("other", json!({})), json!({})), all);
    assert_eq!(usage(&own, json!({})), rest);
    assert_eq!(
        usage(&claim("own", made_for("2")), json!({})),
        all,
        "another pod's"
    );
    let points_elsewhere =
        json!({"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": []}});
    assert_eq!(usage(&own, points_elsewhere), all);
    let younger = claim("second", made_for("1"));
    assert_eq!(usage(&younger, json!({})), all, "not the pod's first");
    assert!(evaluator.counts("requests.example.com/gpu") && evaluator.counts(class));
    assert!(!evaluator.counts("requests.cpu"));
}

#[test]
fn an_exceeded_quota_is_reported_with_what_is_used_and_limited() {
    for (spec, used, of_pod, expected) in [
        (
            json!({"hard": {"pods": "2"}}),
            json!({"pods": "1"}),
            one_container(json!({}), json!({})),
            Ok(vec!["pods=1"]),
        ),
        (
            json!({"hard": {"pods": "1"}}),
            json!({"pods": "1"}),
            one_container(json!({}), json!({})),
            Err("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
        ),
        (
            json!({"hard": {"requests.cpu": "1", "limits.memory": "1Gi", "pods": "5"}}),
            json!({"requests.cpu": "500m", "limits.memory": "0", "pods": "1"}),
            one_container(json!({"cpu": "600m"}), json!({"memory": "2Gi"})),
            Err(
                "exceeded quota: q, requested: limits.memory=2Gi,requests.cpu=600m, \
used: limits.memory=0,requests.cpu=500m, limited: limits.memory=1Gi,requests.cpu=1",
            ),
        ),
        (
            json!({"hard": {"requests.cpu": "1", "limits.memory": "1Gi"}}),
            json!({"requests.cpu": "0", "limits.memory": "0"}),
            one_container(json!({}), json!({})),
            Err("failed quota: q: must specify limits.memory for: c; requests.cpu for: c"),
        ),
        (
            json!({"hard": {"requests.cpu": "1", "pods": "1"}}),
            json!({"pods": "0"}),
            one_container(json!({"cpu": "1"}), json!({})),
            Err("status unknown for quota: q, resources: pods,requests.cpu"),
        ),
        (
            json!({"hard": {"pods": "0"}, "scopes": ["BestEffort"]}),
            json!({"pods": "0"}),
            one_container(json!({"cpu": "1"}), json!({})),
            Ok(vec![]),
        ),
        (
            json!({"hard": {"requests.ephemeral-storage": "1Gi"}}),
            json!({"requests.ephemeral-storage": "0"}),
            one_container(json!({}), json!({})),
            Ok(vec![]),
        ),
    ] {
        let quota = quota(spec.clone(), used);
        let found = try_create(&quota, &pod(of_pod), &POD);
        assert_eq!(
            found
                .as_ref()
                .map(|c| c.iter().map(String::as_str).collect())
                .map_err(String::as_str),
            expected,
            "{spec}"
        );
    }
}

#[test]
fn scopes_choose_which_pods_a_quota_is_for() {
    let plain = one_container(json!({}), json!({}));
    let with = |field: &str, value: Value| {
        let mut spec = plain.clone();
        spec[field] = value;
        spec
    };
    let class = |operator: &str, values: Value| {
        json!({"hard": {"pods": "9"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values},
        ]}})
    };
    let scope = |name: &str| json!({"hard": {"pods": "9"}, "scopes": [name]});
    let abroad = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "k", "namespaceSelector": {}},
    ]}});
    for (of_quota, of_pod, fits) in [
        (scope("Terminating"), plain.clone(), false),
        (
            scope("Terminating"),
            with("activeDeadlineSeconds", json!(5)),
            true,
        ),
        (scope("NotTerminating"), plain.clone(), true),
        (scope("BestEffort"), plain.clone(), true),
        (scope("NotBestEffort"), plain.clone(), false),
        (scope("PriorityClass"), plain.clone(), false),
        (
            scope("PriorityClass"),
            with("priorityClassName", json!("high")),
            true,
        ),
        (
            class("In", json!(["high"])),
            with("priorityClassName", json!("high")),
            true,
        ),
        (
            class("In", json!(["high"])),
            with("priorityClassName", json!("low")),
            false,
        ),
        (class("NotIn", json!(["high"])), plain.clone(), true),
        (class("DoesNotExist", json!(null)), plain.clone(), true),
        (scope("CrossNamespacePodAffinity"), plain.clone(), false),
        (scope("CrossNamespacePodAffinity"), with("affinity", abroad), true),
        (scope("VolumeAttributesClass"), plain.clone(), false),
    ] {
        let quota = quota(of_quota.clone(), json!({"pods": "0"}));
        let charged = try_create(&quota, &pod(of_pod.clone()), &POD).unwrap();
        assert_eq!(!charged.is_empty(), fits, "{of_quota} {of_pod}");
    }
}

#[test]
fn an_update_is_charged_for_what_it_adds() {
    let service =
        |spec: Value| -> Service { serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap() };
    let quota = quota(
        json!({"hard": {"services": "1", "services.nodeports": "2"}}),
        json!({"services": "1", "services.nodeports": "1"}),
    );
    let old = service(json!({"type": "NodePort", "ports": [{"port": 1}]}));
    for (ports, expected) in [
        (json!([{"port": 1}, {"port": 2}]), Ok(vec!["services.nodeports=1".to_string()])),
        (
            json!([{"port": 1}, {"port": 2}, {"port": 3}]),
            Err("exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=1, limited: services.nodeports=2".to_string()),
        ),
        (json!([]), Ok(vec![])),
    ] {
        let new = service(json!({"type": "NodePort", "ports": ports}));
        let change = Change {
            evaluator: &Evaluator::of(&SERVICE).unwrap(),
            subresource: "",
            old: Some(&old),
            new: &new,
            now: at(0),
            devices: &Devices::default(),
        };
        let found = check(&[&quota], &change)
            .map(|all| all.iter().flat_map(|c| shown(&c.amounts)).collect::<Vec<_>>())
            .map_err(|e| e.to_string());
        assert_eq!(found, expected, "{ports}");
    }
}

#[test]
fn a_charge_is_added_and_subtracted() {
    let mut quota = quota(json!({"hard": {"pods": "3"}}), json!({"pods": "1"}));
    let charge = Charge {
        quota: "q".into(),
        uid: "u".into(),
        amounts: Amounts::from([("pods".into(), one())]),
        reported: false,
    };
    let used = |q: &ResourceQuota| {
        q.status.as_ref().unwrap().used.as_ref().unwrap()["pods"]
            .0
            .clone()
    };
    charge.add_to(&mut quota);
    assert_eq!(used(&quota), "2");
    for expected in ["1", "0", "0"] {
        charge.subtract_from(&mut quota);
        assert_eq!(used(&quota), expected);
    }
}

#[test]
fn a_namespace_is_counted_by_the_limits_of_the_quota() {
    let quota = quota(
        json!({"hard": {"pods": "5", "persistentvolumeclaims": "1", "count/deployments.apps": "2", "count/widgets.example.com": "1"}}),
        json!({}),
    );
    let objects = |kind: &Kind| {
        let pods = [("a", "Running"), ("b", "Succeeded")].map(|(name, phase)| {
            let mut pod = pod(json!({"containers": []}));
            pod.metadata.name = Some(name.into());
            pod.status.get_or_insert_default().phase = Some(phase.into());
            Arc::new(Object::from_typed(&POD, Box::new(pod)))
        });
        if *kind == POD { pods.to_vec() } else { Vec::new() }
    };
    let counted = used(&quota, built_in(), objects, at(0));
    assert_eq!(
        shown(&counted),
        ["count/deployments.apps=0", "persistentvolumeclaims=0", "pods=1"]
    );
}
