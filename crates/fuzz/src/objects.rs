//! Objects of every built-in kind, as JSON and as protobuf.
//!
//! An object that decodes can be encoded and decoded again without a change; defaulting twice equals defaulting once; an
//! object that decodes can be defaulted, prepared, validated, stored, listed and updated without a panic, and a valid object
//! is still valid after it was stored.

use jiff::Timestamp;
use knarr_api::fields;
use knarr_api::{AnyObject, Kind, Object, registry};
use knarr_apimachinery::protobuf;
use knarr_strategy::KindStrategy;
use knarr_strategy::{DeletionRequest, Part};

use crate::{Target, byte_of, encoded, escaped, kind, seeds};

pub const TARGET: Target = Target {
    name: "objects",
    check: |data| {
        let Some((kind, json)) = kind(data) else { return };
        let Ok(decoded) = kind.ops.decode(json) else {
            return;
        };
        check_lifecycle(kind, decoded.object);
    },
    seeds: || {
        seeds::OBJECTS
            .iter()
            .filter_map(|json| {
                let mut input = vec![byte_of(seeds::kind_of(json)?)];
                input.extend_from_slice(json.as_bytes());
                Some(input)
            })
            .collect()
    },
};

/// Runs everything on a decoded object that a request may run: encode, default, validate, update, store, select.
pub fn check_lifecycle(kind: &Kind, sent: Box<dyn AnyObject>) {
    let once = encoded(&*sent);
    let again = kind.ops.decode(&once);
    let again =
        again.unwrap_or_else(|e| panic!("{} does not decode again: {e}: {}", kind.kind(), escaped(&once)));
    let twice = encoded(&*again.object);
    let settled = kind.ops.decode(&twice).expect("what decoded once");
    assert_eq!(
        escaped(&twice),
        escaped(&encoded(&*settled.object)),
        "{} changes each time it is decoded and encoded",
        kind.kind()
    );
    assert!(
        again.strict_errors.is_empty(),
        "{} encodes fields that its decoder does not know: {:?}",
        kind.kind(),
        again.strict_errors
    );
    let mut object = sent;
    let of_kind = "the object is of this kind";
    kind.strategy().set_defaults(&mut *object).expect(of_kind);
    let defaulted = encoded(&*object);
    kind.strategy().set_defaults(&mut *object).expect(of_kind);
    assert_eq!(
        escaped(&defaulted),
        escaped(&encoded(&*object)),
        "defaulting {} twice differs from once",
        kind.kind()
    );
    kind.strategy().prepare_for_create(&mut *object).expect(of_kind);
    let errors = kind.strategy().validate(&*object).expect(of_kind);
    let _ = kind
        .strategy()
        .validate_name(object.metadata().name.as_deref().unwrap_or_default());
    kind.strategy().warnings(&*object).expect(of_kind);
    kind.strategy().early_warnings(&*object).expect(of_kind);
    for grace_period_seconds in [None, Some(-1), Some(i64::MAX)] {
        let request = DeletionRequest {
            now: Timestamp::UNIX_EPOCH,
            grace_period_seconds,
            orphan_dependents: None,
            propagation: None,
        };
        let mut marked = object.clone_box();
        kind.strategy()
            .plan_deletion(&*object, &mut *marked, &request)
            .expect(of_kind);
        kind.strategy()
            .plan_deletion(&*marked, &mut *marked.clone_box(), &request)
            .expect(of_kind);
    }
    for path in kind.ops.selectable_fields().iter() {
        kind.ops.field(&*object, path).expect(of_kind);
    }
    kind.strategy()
        .row(&*object, Timestamp::UNIX_EPOCH)
        .expect(of_kind);
    for part in [Part::Main, Part::Status] {
        let mut new = object.clone_box();
        kind.strategy()
            .prepare_for_update(&mut *new, &*object, part)
            .expect(of_kind);
        let _ = kind
            .strategy()
            .validate_update(&*new, &*object, part)
            .expect(of_kind);
    }
    let mut stored = object.clone_box();
    let json = Object::encode_for_store(&mut *stored);
    let whole = Object::from_stored(kind, stored, &json, 7);
    let read = kind.ops.decode(whole.json());
    let read = read
        .unwrap_or_else(|e| panic!("a stored {} does not decode: {e}", kind.kind()))
        .object;
    assert_eq!(
        read.metadata().resource_version.as_deref(),
        Some("7"),
        "{}",
        kind.kind()
    );
    if errors.is_empty() {
        // An invalid object may lose an empty field; it is never stored.
        assert_eq!(
            escaped(&once),
            escaped(&twice),
            "{} is not the same after it was encoded and decoded",
            kind.kind()
        );
        let errors = kind.strategy().validate(&*read).expect(of_kind);
        assert!(
            errors.is_empty(),
            "a stored {} is no longer valid: {errors:?}",
            kind.kind()
        );
    }
    if let Ok(everything) = fields::Selector::parse(kind, "metadata.name!=x") {
        let _ = everything.matches(&whole);
    }
}

pub const PROTOBUF: Target = Target {
    name: "protobuf",
    check: |data| {
        let Ok(body) = protobuf::read(data) else { return };
        let json = serde_json::to_vec(&body.object).expect("a value is JSON");
        if let Some(kind) = registry::by_kind(&body.api_version, &body.kind)
            && let Ok(decoded) = kind.ops.decode(&json)
        {
            check_lifecycle(kind, decoded.object);
        }
    },
    seeds: || {
        let envelope = |version: &[u8], kind: &[u8], object: &[u8]| {
            let mut meta = Vec::new();
            for (field, text) in [(0x0a, version), (0x12, kind)] {
                meta.extend([field, text.len() as u8]);
                meta.extend(text);
            }
            let mut out = b"k8s\0".to_vec();
            for (field, part) in [(0x0a, &meta[..]), (0x12, object)] {
                out.extend([field, part.len() as u8]);
                out.extend(part);
            }
            out
        };
        // metadata{name, namespace, labels{a: b}}, then the first fields of each kind.
        let named = b"\x0a\x10\x0a\x01n\x1a\x02ns\x5a\x06\x0a\x01a\x12\x01b\x28\x01";
        let pod = [
            &named[..],
            b"\x12\x0f\x12\x0d\x0a\x01c\x12\x01i\x2a\x02-x\x40\x01x",
        ]
        .concat();
        let data = [&named[..], b"\x12\x06\x0a\x01k\x12\x01v"].concat();
        vec![
            envelope(b"v1", b"Pod", &pod),
            envelope(b"v1", b"ConfigMap", &data),
            envelope(b"apps/v1", b"Deployment", &pod),
            envelope(b"v1", b"Node", named),
            envelope(b"v1", b"Secret", &data),
            envelope(b"coordination.k8s.io/v1", b"Lease", named),
        ]
    },
};
