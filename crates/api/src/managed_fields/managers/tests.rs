//! Ownership of fields after updates and applies, compared with kube-apiserver's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, Time};
use serde_json::json;

use super::*;
use crate::registry::{CONFIG_MAP, HORIZONTAL_POD_AUTOSCALER, HORIZONTAL_POD_AUTOSCALER_V1, POD};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn id(name: &str, operation: Operation) -> ManagerId {
    ManagerId::new(name, operation, &CONFIG_MAP, "")
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn owned(managed: &Managed) -> Vec<String> {
    let sets = managed.clone().encode().unwrap_or_default().into_iter().map(|e| {
        let fields = e
            .fields_v1
            .and_then(|f| f.0.as_str().map(str::to_string))
            .unwrap_or_default();
        format!(
            "{} {} {fields}",
            e.manager.unwrap_or_default(),
            e.operation.unwrap_or_default()
        )
    });
    sets.collect()
}

fn apply(
    managed: Managed,
    live: &Value,
    config: &Value,
    by: &str,
    force: bool,
) -> Result<(Value, Managed), ApplyError> {
    let applied = managed.apply(&CONFIG_MAP, live, config, id(by, Operation::Apply), force, at(2))?;
    Ok((applied.object.unwrap_or_else(|| live.clone()), applied.managed))
}

#[test]
fn a_client_owns_the_fields_it_creates_and_changes() {
    let new = map(json!({"k": "v"}));
    let managed = Managed::default().update(
        &CONFIG_MAP,
        blank(&CONFIG_MAP),
        &new,
        id("a", Operation::Update),
        at(1),
    );
    assert_eq!(owned(&managed), [r#"a Update {"f:data":{".":{},"f:k":{}}}"#]);
    let changed = map(json!({"k": "w", "l": "x"}));
    let managed = managed.update(&CONFIG_MAP, &new, &changed, id("b", Operation::Update), at(2));
    assert_eq!(
        owned(&managed),
        [
            r#"a Update {"f:data":{".":{}}}"#,
            r#"b Update {"f:data":{"f:k":{},"f:l":{}}}"#
        ]
        .map(|s| s.replace(r#"{".":{}}"#, "{}"))
    );
}

#[test]
fn a_creator_owns_each_owner_reference_as_an_atomic_item() {
    let json = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "2"},
        {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "1", "controller": true}]}});
    let object = CONFIG_MAP.ops.decode(json.to_string().as_bytes()).unwrap().object;
    let made = Managed::create(&CONFIG_MAP, &*object, id("a", Operation::Update), at(1)).unwrap();
    assert_eq!(
        owned(&Managed::decode(&made.unwrap()).unwrap()),
        [
            r#"a Update {"f:metadata":{"f:ownerReferences":{".":{},"k:{\"uid\":\"1\"}":{},"k:{\"uid\":\"2\"}":{}}}}"#
        ]
    );
}

#[test]
fn appliers_share_conflict_and_force() {
    let (live, managed) = apply(
        Managed::default(),
        blank(&CONFIG_MAP),
        &map(json!({"k": "v", "l": "w"})),
        "m1",
        false,
    )
    .unwrap();
    assert_eq!(owned(&managed), [r#"m1 Apply {"f:data":{"f:k":{},"f:l":{}}}"#]);
    // The same value is shared; the second's entry has no time because nothing changed.
    let (live, managed) = apply(managed, &live, &map(json!({"k": "v"})), "m2", false).unwrap();
    let times: Vec<bool> = managed
        .clone()
        .encode()
        .unwrap()
        .iter()
        .map(|e| e.time.is_some())
        .collect();
    assert_eq!(times, [false, true]);
    // Another value conflicts with both.
    let error = apply(managed.clone(), &live, &map(json!({"k": "x"})), "m3", false).unwrap_err();
    let ApplyError::Conflicts(conflicts) = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        conflicts.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .data.k\nconflicts with \"m2\":\n- .data.k"
    );
    let (live, managed) = apply(managed, &live, &map(json!({"k": "x"})), "m3", true).unwrap();
    assert_eq!(live["data"], json!({"k": "x", "l": "w"}));
    assert_eq!(
        owned(&managed),
        [
            r#"m1 Apply {"f:data":{"f:l":{}}}"#,
            r#"m3 Apply {"f:data":{"f:k":{}}}"#
        ]
    );
    // A field that no manager has any more is removed.
    let (live, managed) = apply(managed, &live, &map(json!({})), "m1", false).unwrap();
    assert_eq!(live["data"], json!({"k": "x"}));
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let (live, managed) = apply(managed, &live, &config, "m3", false).unwrap();
    assert!(live["data"].as_object().is_none_or(|d| d.is_empty()), "{live}");
    assert!(owned(&managed).iter().all(|h| !h.starts_with("m3")));
}

#[test]
fn lists_merge_by_key_and_unknown_fields_are_rejected() {
    let pod = |containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": containers}});
    let by = |name| ManagerId::new(name, Operation::Apply, &POD, "");
    let one = pod(json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]));
    let first = Managed::default()
        .apply(&POD, blank(&POD), &one, by("m1"), false, at(1))
        .unwrap();
    assert_eq!(
        owned(&first.managed),
        [
            r#"m1 Apply {"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}"#
        ]
    );
    let live = first.object.unwrap();
    let two = pod(json!([{"name": "d", "image": "j"}]));
    let second = first
        .managed
        .apply(&POD, &live, &two, by("m2"), false, at(2))
        .unwrap();
    let names: Vec<&str> = second.object.as_ref().unwrap()["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["c", "d"]);
    for (wrong, why) in [
        (
            json!([{"name": "c", "imagee": "i"}]),
            ".spec.containers[name=\"c\"].imagee: field not declared in schema",
        ),
        (
            json!([{"name": "c"}, {"name": "c"}]),
            ".spec.containers: duplicate entries for key [name=\"c\"]",
        ),
    ] {
        match Managed::default().apply(&POD, blank(&POD), &pod(wrong), by("m"), false, at(1)) {
            Err(ApplyError::Schema(found)) => assert_eq!(found, [why]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_manager_of_another_version_is_compared_in_its_own() {
    let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "D", "name": "d"}}});
    let kind = &HORIZONTAL_POD_AUTOSCALER_V1;
    let by = ManagerId::new("m1", Operation::Apply, kind, "");
    let first = Managed::default()
        .apply(kind, blank(kind), &v1, by, false, at(1))
        .unwrap();
    let kind = &HORIZONTAL_POD_AUTOSCALER;
    let (_, live) = Conversions::default()
        .object(
            &HORIZONTAL_POD_AUTOSCALER_V1,
            &first.object.unwrap(),
            "autoscaling/v2",
        )
        .unwrap();
    let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 4}});
    let by = ManagerId::new("m2", Operation::Apply, kind, "");
    match first.managed.apply(kind, &live, &v2, by, false, at(2)) {
        Err(ApplyError::Conflicts(conflicts)) => assert_eq!(
            conflicts.to_string(),
            "Apply failed with 1 conflict: conflict with \"m1\": .spec.maxReplicas"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_many_updaters_the_oldest_are_merged() {
    let mut managed = Managed::default();
    let mut live = blank(&CONFIG_MAP).clone();
    for n in 0..14 {
        let mut new = map(live.get("data").cloned().unwrap_or(json!({})));
        new["data"][format!("k{n:02}")] = "v".into();
        managed = managed.update(
            &CONFIG_MAP,
            &live,
            &new,
            id(&format!("m{n:02}"), Operation::Update),
            at(n),
        );
        live = new;
    }
    let names: Vec<String> = managed
        .encode()
        .unwrap()
        .into_iter()
        .filter_map(|e| e.manager)
        .collect();
    assert_eq!(names.len(), MAX_UPDATE_MANAGERS);
    assert_eq!((names[0].as_str(), names[9].as_str()), (ANCIENT, "m13"));
}

/// A node with a label, two conditions and their times, as numbers of each; `None`: it is not there.
fn node(label: Option<u8>, conditions: [Option<(u8, u8)>; 2]) -> Value {
    let all: Vec<Value> = ["Ready", "DiskPressure"]
        .iter()
        .zip(conditions)
        .filter_map(|(kind, c)| {
            let (status, at) = c?;
            Some(json!({"type": kind, "status": status.to_string(), "lastHeartbeatTime": at.to_string()}))
        })
        .collect();
    let labels = label.map_or(json!({}), |l| json!({"l": l.to_string()}));
    let spec = label.map_or(json!({}), |l| json!({"providerID": l.to_string()}));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": labels}, "spec": spec,
        "status": {"conditions": all}})
}

mod entries_as_they_are_written {
    use proptest::prelude::*;

    use super::*;
    use crate::registry::NODE;

    fn nodes() -> impl Strategy<Value = Value> {
        let condition = || prop::option::weighted(0.9, (0..2_u8, 0..4_u8));
        (prop::option::weighted(0.9, 0..2_u8), condition(), condition()).prop_map(|(l, a, b)| node(l, [a, b]))
    }

    fn bytes(value: &Value) -> Vec<u8> {
        serde_json::to_vec(value).unwrap()
    }

    proptest! {
        #[test]
        fn entries_are_those_of_the_sets(
            first in nodes(),
            writes in prop::collection::vec((nodes(), 0..3_usize, any::<bool>()), 1..24),
            is_stored in any::<bool>(),
        ) {
            let by = |who: usize, status: bool| {
                let subresource = if status { "status" } else { "" };
                ManagerId::new(["a", "b", "c"][who], Operation::Update, &NODE, subresource)
            };
            let created = Managed::default().update(&NODE, blank(&NODE), &first, by(0, false), at(1));
            let created = created.encode();
            let (mut entries, mut live) = (created.unwrap(), first);
            for (second, (new, who, status)) in writes.into_iter().enumerate() {
                let now = at(2 + i64::try_from(second).unwrap() / 2);
                // A stored object has a resourceVersion, and a patched one has none.
                if is_stored {
                    live["metadata"]["resourceVersion"] = "7".into();
                }
                let slowly = Managed::decode(&entries).unwrap().update(&NODE, &live, &new, by(who, status), now);
                let json = (bytes(&live), bytes(&new));
                let found = Managed::update_entries(&entries, &NODE, (&json.0, &json.1), by(who, status), now);
                let found = found.unwrap();
                prop_assert_eq!(&found, &slowly.encode());
                let Some(found) = found else { break };
                (entries, live) = (found, new);
            }
        }
    }
}

/// Most writes of a cluster take the short path.
#[test]
fn a_heartbeat_changes_a_time_and_nothing_else() {
    let kubelet = ManagerId::new("kubelet", Operation::Update, &crate::registry::NODE, "status");
    let beats = [1, 2].map(|at| node(Some(1), [Some((1, at)), Some((0, at))]));
    let created = Managed::default().update(
        &crate::registry::NODE,
        blank(&crate::registry::NODE),
        &beats[0],
        kubelet.clone(),
        at(1),
    );
    let entries = created.encode().unwrap();
    let c = values::compare(
        type_of_kind(&crate::registry::NODE).unwrap(),
        &beats[0],
        &beats[1],
    );
    let after = entries_if_others_unchanged(&entries, &c.modified, &kubelet, at(9)).unwrap();
    assert_eq!(after[0].fields_v1, entries[0].fields_v1);
    assert_eq!(after[0].time, Some(Time(at(9))));
    let other = ManagerId::new("other", Operation::Update, &crate::registry::NODE, "status");
    assert_eq!(
        entries_if_others_unchanged(&entries, &c.modified, &other, at(9)),
        None
    );
}

/// No manager owns the resourceVersion, which a patched object does not have.
#[test]
fn an_entry_may_own_the_resource_version_only_if_its_text_has_it() {
    for (fields, may) in [
        (json!(r#"{"f:status":{"f:phase":{}}}"#), false),
        (json!(r#"{"f:metadata":{"f:resourceVersion":{}}}"#), true),
        (json!(r#"{"f:metadata":{"f:resource\u0056ersion":{}}}"#), true),
        (json!({"f:status": {}}), true),
    ] {
        let entry = ManagedFieldsEntry {
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        };
        assert_eq!(may_own_version(&entry), may, "{entry:?}");
    }
    assert!(may_own_version(&ManagedFieldsEntry::default()));
}

/// What is ignored in an update of a status must not count in it.
#[test]
fn no_kinds_specification_is_written_through_its_status() {
    let spec = FieldSet::default().with(&["spec", "x"]);
    for kind in crate::registry::ALL {
        let kept = Reset::of(kind, STATUS).keep(spec.clone());
        assert!(kept.is_empty(), "{kind:?}: {}", kept.to_text());
    }
}
