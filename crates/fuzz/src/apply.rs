//! Server-side apply: kind, live object and configuration; and the sets of fields that managers hold.
//!
//! An applied configuration that is applied again changes nothing, neither the object nor who holds what. The entries
//! of managedFields read back as they were written, and sets of fields obey the laws of sets.

use jiff::Timestamp;
use knarr_api::managed_fields::{FieldSet, Managed, ManagerId, Operation, Refused, blank};
use serde_json::Value;

use crate::{PART, Target, byte_of, encoded, object_and_more, seeds};

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
    let Some((kind, force, live, config)) = object_and_more(data) else {
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
    let long = Managed::default().update(kind, blank(kind), &live, by("creator", Operation::Update), now);
    assert_eq!(
        managed,
        long.encode(),
        "the quick way and the long one for {live}"
    );
    let managed = Managed::decode(&managed.unwrap_or_default()).expect("entries that were written are read");
    let me = by("applier", Operation::Apply);
    let first = match managed.apply(kind, &live, &config, me.clone(), force % 2 == 1, now) {
        Ok(first) => first,
        Err(Refused::Conflicts(conflicts)) => {
            assert!(!conflicts.0.is_empty(), "refused for conflicts that are none");
            return;
        }
        Err(_) => return,
    };
    let new = first.object.unwrap_or(live);
    let held = first.managed.clone().encode();
    let again = reread(first.managed).apply(kind, &new, &config, me, false, now);
    let again = again.unwrap_or_else(|e| panic!("what was applied is refused: {e:?}"));
    assert_eq!(
        again.object, None,
        "applied twice is not as once, the first made {new}"
    );
    assert_eq!(again.managed.encode(), held, "who holds what is not the same");
}

/// As it comes back out of an object.
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
        // A field without any below it is written in two ways; sets that were put together have one of them.
        let (a, b) = (a.clone().union(a), b.clone().union(b));
        assert_eq!(a.clone().union(a.clone()), a, "a set and itself");
        assert_eq!(
            a.clone().union(b.clone()),
            b.clone().union(a.clone()),
            "either order"
        );
        assert!(a.clone().difference(&a).is_empty(), "a set less itself");
        assert_eq!(a.intersection(&a), a, "what a set has in common with itself");
        let (only, both) = (a.clone().difference(&b), a.intersection(&b));
        assert_eq!(only.union(both), a, "what is not in the other and what is");
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
