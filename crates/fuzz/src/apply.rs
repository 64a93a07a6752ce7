//! Server-side apply (the input: kind, live object, applied configuration), and the sets of fields in managedFields.
//!
//! Applying the same configuration again changes neither the object nor managedFields. The entries
//! of managedFields read back as they were written, and sets of fields obey the laws of sets.

use jiff::Timestamp;
use knarr_api::managed_fields::{ApplyError, FieldSet, Managed, ManagerId, Operation, blank};
use serde_json::Value;

use crate::{PART, Target, byte_of, encoded, object_and_change, seeds};

pub const TARGET: Target = Target {
    name: "apply",
    check,
    seeds: || {
        let mut all = Vec::new();
        for object in seeds::OBJECTS {
            let Some(kind) = seeds::kind_of(object) else {
                continue;
            };
            let head = [byte_of(kind), 1];
            all.push([&head, object.as_bytes(), &[PART], object.as_bytes()].concat());
            for patch in seeds::MERGE_PATCHES {
                all.push([&head, object.as_bytes(), &[PART], patch.as_bytes()].concat());
                all.push([&head, patch.as_bytes(), &[PART], object.as_bytes()].concat());
            }
        }
        all
    },
};

fn check(data: &[u8]) {
    let Some((kind, force, live, config)) = object_and_change(data) else {
        return;
    };
    let (Ok(decoded), Ok(config)) = (kind.ops.decode(live), serde_json::from_slice::<Value>(config)) else {
        return;
    };
    let json = encoded(&*decoded.object);
    let live: Value = serde_json::from_slice(&json).expect("what is encoded is JSON");
    let by = |name: &str, operation| ManagerId::new(name, operation, kind, "");
    let now = Timestamp::UNIX_EPOCH;
    let managed = Managed::create(kind, &*decoded.object, by("creator", Operation::Update), now);
    let managed = managed.expect("what decodes serializes");
    let updated = Managed::default().update(kind, blank(kind), &live, by("creator", Operation::Update), now);
    assert_eq!(
        managed,
        updated.encode(),
        "managedFields from create and from update of an empty object differ for {live}"
    );
    let managed = Managed::decode(&managed.unwrap_or_default()).expect("entries that were written are read");
    let me = by("applier", Operation::Apply);
    let first = match managed.apply(kind, &live, &config, me.clone(), force % 2 == 1, now) {
        Ok(first) => first,
        Err(ApplyError::Conflicts(conflicts)) => {
            assert!(!conflicts.0.is_empty(), "a conflict error without conflicts");
            return;
        }
        Err(_) => return,
    };
    let new = first.object.unwrap_or(live);
    let managed_fields = first.managed.clone().encode();
    let again = reread(first.managed).apply(kind, &new, &config, me, false, now);
    let again = again.unwrap_or_else(|e| panic!("the same configuration is rejected the second time: {e:?}"));
    assert_eq!(
        again.object, None,
        "the second apply changed the object; the first made {new}"
    );
    assert_eq!(
        again.managed.encode(),
        managed_fields,
        "the second apply changed managedFields"
    );
}

/// `managed`, encoded and decoded again.
fn reread(managed: Managed) -> Managed {
    let Some(entries) = managed.clone().encode() else {
        return managed;
    };
    let read = Managed::decode(&entries).expect("entries that were written are read");
    assert_eq!(read.clone().encode(), Some(entries));
    read
}

pub const FIELDS: Target = Target {
    name: "fields",
    check: |data| {
        let mut parts = data.splitn(2, |byte| *byte == PART).map(|part| {
            let value: Value = serde_json::from_slice(part).ok()?;
            FieldSet::read(&value)
        });
        let Some(Some(a)) = parts.next() else { return };
        let b = parts.next().flatten().unwrap_or_default();
        assert_eq!(
            FieldSet::read(&Value::String(a.to_text())).as_ref(),
            Some(&a),
            "a set does not read back"
        );
        let _ = a.paths();
        // A field without children can be written in two ways; a union has the same one of them.
        let (a, b) = (a.clone().union(a), b.clone().union(b));
        assert_eq!(a.clone().union(a.clone()), a, "the union of a set with itself");
        assert_eq!(
            a.clone().union(b.clone()),
            b.clone().union(a.clone()),
            "the union depends on the order"
        );
        assert!(
            a.clone().difference(&a).is_empty(),
            "the difference of a set and itself"
        );
        assert_eq!(a.intersection(&a), a, "the intersection of a set with itself");
        let (difference, intersection) = (a.clone().difference(&b), a.intersection(&b));
        assert_eq!(
            difference.union(intersection),
            a,
            "the union of difference and intersection"
        );
        let _ = a.recursive_difference(&b);
    },
    seeds: || {
        [
            r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:replicas":{}}}"#,
            "{\"f:spec\":{\"f:containers\":{\"k:{\\\"name\\\":\\\"a\\\"}\":{\".\":{},\"f:image\":{}}}}}\x1e{\"f:spec\":{\"f:containers\":{\"k:{\\\"name\\\":\\\"a\\\"}\":{\".\":{}}}}}",
            "{\"f:metadata\":{\"f:finalizers\":{\".\":{},\"v:\\\"x\\\"\":{},\"i:3\":{}}}}\x1e{\"f:metadata\":{\"f:finalizers\":{}}}",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into()
    },
};
