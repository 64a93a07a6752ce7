//! Each validation rule for the status of a ResourceClaim with a value that violates it.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use crate::{Part, Strategy};

const SHARE: &str = "6c1f2a52-6f1c-4b7e-9a90-0d2b4b6f7a11";

fn claim(status: &Value) -> ResourceClaim {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let claim = json!({"metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}}, "status": status});
    serde_json::from_value(claim).unwrap()
}

fn errors(new: &Value, old: &Value) -> Vec<String> {
    let (mut new, old) = (claim(new), claim(old));
    new.prepare_for_update(&old, Part::Status);
    let errors = new.validate_update(&old, Part::Status);
    errors.iter().map(ToString::to_string).collect()
}

fn result(with: &Value) -> Value {
    let mut result = json!({"request": "r", "driver": "gpu.example", "pool": "p", "device": "d"});
    knarr_api::patch::merge::apply(&mut result, with);
    result
}

fn allocation(with: &Value) -> Value {
    json!({"devices": {"results": [result(with)]}})
}

fn reserved(uid: &str) -> Value {
    json!({"resource": "pods", "name": "pod", "uid": uid})
}

#[test]
fn a1_an_allocation_refers_to_existing_requests_and_is_immutable() {
    let of = |with: Value| json!({"allocation": allocation(&with)});
    assert_eq!(errors(&of(json!({})), &json!({})), Vec::<String>::new());
    let at = "status.allocation.devices.results[0]";
    for (with, expect) in [
        (
            json!({"request": "x"}),
            "request: Invalid value: \"x\": must be the name of a request in the claim or the name of a \
             request and a subrequest separated by '/'",
        ),
        (json!({"driver": ""}), "driver: Required value"),
        (json!({"pool": ""}), "pool: Required value"),
        (
            json!({"shareID": "x"}),
            "shareID: Invalid value: \"x\": error validating uid: invalid UUID length: 1",
        ),
    ] {
        assert_eq!(errors(&of(with), &json!({})), [format!("{at}.{expect}")]);
    }
    let other = errors(&of(json!({"device": "e"})), &of(json!({})));
    assert!(
        other[0].starts_with("status.allocation: Invalid value: "),
        "{other:?}"
    );
    assert!(other[0].ends_with(": field is immutable"), "{other:?}");
    assert_eq!(errors(&json!({}), &of(json!({}))), Vec::<String>::new());
}

#[test]
fn a1_only_an_allocated_claim_is_reserved_and_no_terminating_one_again() {
    let of = |uids: &[&str]| {
        let reserved: Vec<Value> = uids.iter().map(|uid| reserved(uid)).collect();
        json!({"allocation": allocation(&json!({})), "reservedFor": reserved})
    };
    assert_eq!(errors(&of(&["u1"]), &json!({})), Vec::<String>::new());
    let unallocated = json!({"reservedFor": [reserved("u1")]});
    let expect = "status.reservedFor: Forbidden: may not be specified when `allocated` is not set";
    assert_eq!(errors(&unallocated, &json!({})), [expect]);
    let expect = "status.reservedFor[1]: Duplicate value: \"u1\"";
    assert_eq!(errors(&of(&["u1", "u1"]), &json!({})), [expect]);
    let expect = "status.reservedFor[0].uid: Required value";
    assert_eq!(errors(&of(&[""]), &json!({})), [expect]);
    let deleted = |status: Value| {
        let mut claim = claim(&status);
        let at = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        claim.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
        claim
    };
    let (old, fewer, more) = (
        deleted(of(&["u1", "u2"])),
        deleted(of(&["u1"])),
        deleted(of(&["u1", "u3"])),
    );
    assert!(fewer.validate_update(&old, Part::Status).is_empty());
    let errors = more.validate_update(&old, Part::Status);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let expect = "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or \
                  `deletionTimestamp` are set";
    assert_eq!(errors, [expect]);
}

#[test]
fn a1_drivers_report_only_allocated_devices() {
    let device = |with: Value| {
        let mut device = json!({"driver": "gpu.example", "pool": "p", "device": "d"});
        knarr_api::patch::merge::apply(&mut device, &with);
        device
    };
    let of = |devices: Value| json!({"allocation": allocation(&json!({})), "devices": devices});
    let old = json!({"allocation": allocation(&json!({}))});
    let network = |ip: &str| json!({"networkData": {"interfaceName": "eth0", "ips": [ip]}});
    for (with, expect) in [
        (json!({}), vec![]),
        (network("10.9.8.7/24"), vec![]),
        (
            network("2001:DB8::1/64"),
            vec![
                "status.devices[0].networkData.ips[0]: Invalid value: \"2001:DB8::1/64\": must be in canonical \
                 form (\"2001:db8::1/64\")",
            ],
        ),
        (
            network("10.9.8.7"),
            vec![
                "status.devices[0].networkData.ips[0]: Invalid value: \"10.9.8.7\": must be a valid address in \
                 CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
            ],
        ),
        (
            json!({"shareID": SHARE}),
            vec![
                "status.devices[0]: Invalid value: \"gpu.example/p/d/6c1f2a52-6f1c-4b7e-9a90-0d2b4b6f7a11\": must \
                 be an allocated device in the claim",
            ],
        ),
        (
            json!({"data": "text"}),
            vec!["status.devices[0].data: Invalid value: \"<value omitted>\": must be a valid JSON object"],
        ),
    ] {
        assert_eq!(errors(&of(json!([device(with.clone())])), &old), expect, "{with}");
    }
    let twice = of(json!([device(json!({})), device(json!({}))]));
    let expect = "status.devices[1]: Duplicate value: \"gpu.example/p/d\"";
    assert_eq!(errors(&twice, &old), [expect]);
    // Device statuses are dropped together with the allocation.
    let mut released = claim(&json!({"devices": [device(json!({}))]}));
    released.prepare_for_update(&claim(&of(json!([device(json!({}))]))), Part::Status);
    assert_eq!(released.status.unwrap().devices, None);
}
