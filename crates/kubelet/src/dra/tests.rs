//! Tables of claims on a node, after v1.36's tests of the DRA manager.

use serde_json::{Value, json};

use super::*;

fn pod(uid: &str, claims: Value, container: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"resourceClaims": claims, "containers": [{"name": "a", "resources": {"claims": container}}]},
        "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made"}, {"name": "none"}]},
    }))
    .unwrap()
}

fn claim(name: &str, uid: &str, drivers: &[&str], pods: &[&str]) -> ResourceClaim {
    let result = |driver: &&str| json!({"request": "r", "driver": driver, "pool": "p", "device": "d"});
    let results: Vec<Value> = drivers.iter().map(result).collect();
    let reserved = pods
        .iter()
        .map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}));
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": {},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved.collect::<Vec<_>>()},
    }))
    .unwrap()
}

fn device(requests: &[&str], cdi: &str) -> Device {
    Device {
        request_names: requests.iter().map(|r| r.to_string()).collect(),
        cdi_device_ids: vec![cdi.into()],
        ..Device::default()
    }
}

#[test]
fn l4_a_claim_is_prepared_for_its_first_pod_and_unprepared_after_its_last() {
    let mut claims = Claims::default();
    let shared = [claim("c", "u", &["d1.example", "d2.example"], &["1", "2"])];
    let batches = claims.add_pod(&"1".into(), &shared).unwrap();
    assert_eq!(batches.keys().collect::<Vec<_>>(), ["d1.example", "d2.example"]);
    // Until it is prepared, every pod that uses it has it prepared.
    assert_eq!(claims.add_pod(&"2".into(), &shared), Ok(batches.clone()));
    claims.mark_prepared(&batches);
    assert_eq!(claims.add_pod(&"2".into(), &shared), Ok(Batches::new()));
    assert_eq!(
        claims.begin_unprepare(&"1".into()),
        Batches::new(),
        "the other still uses it"
    );
    claims.remove_pod(&"1".into());
    assert!(claims.get("ns", "c").unwrap().is_prepared);
    assert_eq!(claims.begin_unprepare(&"2".into()), batches);
    assert!(claims.are_used_by(&"2".into()), "until the drivers have answered");
    claims.remove_pod(&"2".into());
    assert!(!claims.are_used_by(&"2".into()));
    assert_eq!(claims, Claims::default());
}

#[test]
fn l4_pods_are_found_by_their_devices_also_after_a_restart() {
    let uids = |pods: &[&str]| -> BTreeSet<PodUid> { pods.iter().map(|uid| PodUid::from(*uid)).collect() };
    let mut before = Claims::default();
    for (name, uid, driver, device_name, pods) in [
        ("c1", "u1", "d1.example", "x", &["1"][..]),
        ("c2", "u2", "d2.example", "y", &["2", "3"]),
    ] {
        let object = [claim(name, uid, &[driver], pods)];
        for pod in uids(pods) {
            let batches = before.add_pod(&pod, &object).unwrap();
            let device = Device {
                pool_name: "p".into(),
                device_name: device_name.into(),
                ..Device::default()
            };
            before.prepared(driver, &batches[driver][0], vec![device]);
        }
    }
    let recorded = before
        .iter()
        .map(|(namespace, name, claim)| (namespace.to_string(), name.to_string(), claim.clone()));
    let claims = Claims::restored(recorded);
    assert_eq!(claims, before);
    assert_eq!(claims.pods(), uids(&["1", "2", "3"]));
    for (driver, device_name, pods) in [
        ("d1.example", "x", &["1"][..]),
        ("d1.example", "y", &[]),
        ("d2.example", "x", &[]),
        ("d2.example", "y", &["2", "3"]),
    ] {
        let devices = BTreeSet::from([("p".to_string(), device_name.to_string())]);
        assert_eq!(
            claims.pods_with(driver, &devices),
            uids(pods),
            "{driver} {device_name}"
        );
    }
}

#[test]
fn l4_nothing_is_recorded_for_a_pod_whose_claims_cannot_be_prepared() {
    let mut claims = Claims::default();
    let mut unallocated = claim("c", "u", &[], &["1"]);
    unallocated.status = None;
    let all = [claim("a", "u", &["d"], &["1"]), unallocated];
    let error = claims.add_pod(&"1".into(), &all).unwrap_err();
    assert_eq!(error.to_string(), "ResourceClaim c: not allocated");
    assert_eq!(claims, Claims::default());
    claims
        .add_pod(&"1".into(), &[claim("c", "old", &["d"], &["1"])])
        .unwrap();
    assert_eq!(
        claims
            .add_pod(&"2".into(), &[claim("c", "new", &["d"], &["2"])])
            .unwrap_err()
            .to_string(),
        "old ResourceClaim with same name c and different UID old still exists (previous pod force-deleted?!)"
    );
}

#[test]
fn l4_a_pod_uses_claims_that_are_its_own_or_reserved_for_it() {
    let made = json!([{"name": "made", "resourceClaimTemplateName": "t"}]);
    let used = |name: &str, is_owned| claim::PodClaim {
        name: name.into(),
        is_owned,
    };
    for (claims, want) in [
        (
            json!([{"name": "x", "resourceClaimName": "c"}]),
            Ok(vec![used("c", false)]),
        ),
        (made.clone(), Ok(vec![used("p-made", true)])),
        (
            json!([{"name": "none", "resourceClaimTemplateName": "t"}]),
            Ok(vec![]),
        ),
        (
            json!([{"name": "late", "resourceClaimTemplateName": "t"}]),
            Err(r#"pod "ns/1": ResourceClaim not created yet"#),
        ),
        (
            json!([{"name": "x"}]),
            Err(r#"pod "ns/1", spec.resourceClaim "x": none of the supported fields are set"#),
        ),
    ] {
        let found = claim::of_pod(&pod("1", claims, json!([])));
        assert_eq!(found.map_err(|e| e.to_string()), want.map_err(String::from));
    }
    let pod = pod("1", made, json!([]));
    let mut owned = claim("p-made", "u", &[], &["1"]);
    let error = claim::is_usable(&pod, &used("p-made", true), &owned).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ResourceClaim ns/p-made was not created for Pod ns/1 (Pod is not owner)"
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "1", "uid": "1", "controller": true}]);
    owned.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
    assert_eq!(claim::is_usable(&pod, &used("p-made", true), &owned), Ok(()));
    let others = claim("c", "u", &[], &["2"]);
    assert_eq!(
        claim::is_usable(&pod, &used("c", false), &others)
            .unwrap_err()
            .to_string(),
        "pod 1 (1) is not allowed to use ResourceClaim c (u)"
    );
}

#[test]
fn l4_a_container_gets_the_devices_of_the_requests_that_it_names() {
    let mut claims = Claims::default();
    let object = [claim("c", "u", &["d.example"], &["1"])];
    let batches = claims.add_pod(&"1".into(), &object).unwrap();
    let devices = vec![
        device(&["r1"], "d.example/c=1"),
        device(&["r2"], "d.example/c=2"),
        device(&[], "d.example/c=all"),
    ];
    claims.prepared("d.example", &batches["d.example"][0], devices);
    for (container, want) in [
        (json!([]), vec![]),
        (
            json!([{"name": "x"}]),
            vec!["d.example/c=1", "d.example/c=2", "d.example/c=all"],
        ),
        (
            json!([{"name": "x", "request": "r2"}]),
            vec!["d.example/c=2", "d.example/c=all"],
        ),
    ] {
        let pod = pod("1", json!([{"name": "x", "resourceClaimName": "c"}]), container);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        assert_eq!(claims.cdi_devices(&pod, container).unwrap(), want);
        let health = DevicesHealth::default();
        let status = claims
            .resources_status(&pod, container, &health, Timestamp::UNIX_EPOCH)
            .unwrap();
        let ids = status.iter().flat_map(|s| s.resources.iter().flatten());
        let mut ids: Vec<_> = ids.map(|r| r.resource_id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, want);
    }
}

#[test]
fn l4_a_container_gets_the_devices_of_its_extended_resources() {
    let mut pod = pod(
        "1",
        json!([{"name": "x", "resourceClaimName": "c"}]),
        json!([{"name": "x"}]),
    );
    let extended = json!({"resourceClaimName": "e", "requestMappings": [
        {"containerName": "a", "resourceName": "example.com/gpu", "requestName": "r1"},
        {"containerName": "a", "resourceName": "example.com/none", "requestName": "r2"},
        {"containerName": "a", "resourceName": "cpu", "requestName": "r3"},
        {"containerName": "b", "resourceName": "example.com/gpu", "requestName": "r4"},
    ]});
    pod.status.as_mut().unwrap().extended_resource_claim_status = serde_json::from_value(extended).unwrap();
    let mut container = pod.spec.as_ref().unwrap().containers[0].clone();
    let requests = json!({"example.com/gpu": "1", "example.com/none": "0", "cpu": "1"});
    container.resources.as_mut().unwrap().requests = serde_json::from_value(requests).unwrap();
    let mut claims = Claims::default();
    let objects = ["c", "e"].map(|name| claim(name, name, &["d.example"], &["1"]));
    let batches = claims.add_pod(&"1".into(), &objects).unwrap();
    let batch = &batches["d.example"];
    claims.prepared("d.example", &batch[0], vec![device(&[], "d.example/c=1")]);
    let devices = ["r1", "r2", "r3", "r4"].map(|request| device(&[request], request));
    claims.prepared("d.example", &batch[1], devices.to_vec());
    assert_eq!(
        claims.cdi_devices(&pod, &container).unwrap(),
        ["d.example/c=1", "r1"]
    );
    assert_eq!(
        claim::of_container(&pod, &container),
        Ok(BTreeSet::from(["c".to_string(), "e".to_string()]))
    );
    let used = |name: &str| claim::PodClaim {
        name: name.into(),
        is_owned: false,
    };
    assert_eq!(claim::of_pod(&pod), Ok(vec![used("c"), used("e")]));
}

#[test]
fn l4_the_status_of_a_container_shows_the_health_of_its_devices() {
    let mut claims = Claims::default();
    let object = [claim("c", "u", &["d.example"], &["1"])];
    let batches = claims.add_pod(&"1".into(), &object).unwrap();
    let prepared = Device {
        pool_name: "p".into(),
        device_name: "d".into(),
        ..Device::default()
    };
    claims.prepared("d.example", &batches["d.example"][0], vec![prepared]);
    let pod = pod(
        "1",
        json!([{"name": "x", "resourceClaimName": "c"}]),
        json!([{"name": "x"}]),
    );
    let container = &pod.spec.as_ref().unwrap().containers[0];
    for (health, shown) in [
        (health::Health::Unknown, "Unknown"),
        (health::Health::Healthy, "Healthy"),
        (health::Health::Unhealthy, "Unhealthy"),
    ] {
        let report = health::Report {
            health,
            message: "why".into(),
            ..health::Report::default()
        };
        let mut reported = DevicesHealth::default();
        let now = Timestamp::UNIX_EPOCH;
        reported.report("d.example", [(("p".to_string(), "d".to_string()), report)], now);
        let status = claims.resources_status(&pod, container, &reported, now).unwrap();
        let expected = json!([{"name": "claim:x",
            "resources": [{"resourceID": "d.example/p/d", "health": shown, "message": "why"}]}]);
        assert_eq!(serde_json::to_value(status).unwrap(), expected);
    }
}
