//! Objects of every built-in kind, as JSON and as protobuf.
//!
//! What is decoded encodes to something that decodes to the same; defaults fill in once; whatever decodes can be
//! defaulted, prepared, judged, stored, listed and updated without a panic, and what is found valid is valid again
//! after it has been stored.

use jiff::Timestamp;
use knarr_api::selector::field;
use knarr_api::strategy::Part;
use knarr_api::{AnyObject, Kind, Object, protobuf, registry};

use crate::{Target, byte_of, encoded, kind, seeds, shown};

pub const TARGET: Target = Target {
    name: "objects",
    check: |data| {
        let Some((kind, json)) = kind(data) else { return };
        let Ok(decoded) = kind.ops.decode(json) else {
            return;
        };
        live(kind, decoded.object);
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

/// A whole life of an object that was decoded.
pub fn live(kind: &Kind, sent: Box<dyn AnyObject>) {
    let once = encoded(&*sent);
    let again = kind.ops.decode(&once);
    let again =
        again.unwrap_or_else(|e| panic!("{} does not decode again: {e}: {}", kind.kind(), shown(&once)));
    let twice = encoded(&*again.object);
    let settled = kind.ops.decode(&twice).expect("what decoded once");
    assert_eq!(
        shown(&twice),
        shown(&encoded(&*settled.object)),
        "{} changes with every round",
        kind.kind()
    );
    assert!(
        again.mistakes.is_empty(),
        "{} writes what it does not know: {:?}",
        kind.kind(),
        again.mistakes
    );
    let mut object = sent;
    let ours = "an object of its own kind is taken";
    kind.ops.set_defaults(&mut *object).expect(ours);
    let defaulted = encoded(&*object);
    kind.ops.set_defaults(&mut *object).expect(ours);
    assert_eq!(
        shown(&defaulted),
        shown(&encoded(&*object)),
        "defaults of {} fill in twice",
        kind.kind()
    );
    kind.ops.prepare_for_create(&mut *object).expect(ours);
    let errors = kind.ops.validate(&*object).expect(ours);
    let _ = kind
        .ops
        .validate_name(object.metadata().name.as_deref().unwrap_or_default());
    kind.ops.warnings(&*object).expect(ours);
    kind.ops.early_warnings(&*object).expect(ours);
    kind.ops.deletion(&*object, Some(-1)).expect(ours);
    kind.ops.deletion(&*object, Some(i64::MAX)).expect(ours);
    for path in kind.ops.selectable_fields().iter() {
        kind.ops.field(&*object, path).expect(ours);
    }
    kind.ops.row(&*object, Timestamp::UNIX_EPOCH).expect(ours);
    for part in [Part::Main, Part::Status] {
        let mut new = object.clone_box();
        kind.ops
            .prepare_for_update(&mut *new, &*object, part)
            .expect(ours);
        let _ = kind.ops.validate_update(&*new, &*object, part).expect(ours);
    }
    let mut stored = object.clone_box();
    let json = Object::encode_for_store(&mut *stored);
    let whole = Object::from_stored(kind, stored, &json, 7);
    let read = kind.ops.decode(whole.json());
    let read = read
        .unwrap_or_else(|e| panic!("a stored {} is not read: {e}", kind.kind()))
        .object;
    assert_eq!(
        read.metadata().resource_version.as_deref(),
        Some("7"),
        "{}",
        kind.kind()
    );
    if errors.is_empty() {
        // One that is not valid may say by an empty field that it was given; it goes nowhere.
        assert_eq!(
            shown(&once),
            shown(&twice),
            "{} is not the same after a round",
            kind.kind()
        );
        let errors = kind.ops.validate(&*read).expect(ours);
        assert!(
            errors.is_empty(),
            "a stored {} is no longer valid: {errors:?}",
            kind.kind()
        );
    }
    if let Ok(everything) = field::Selector::parse(kind, "metadata.name!=x") {
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
            live(kind, decoded.object);
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
        // metadata{name, namespace, labels{a: b}}, then each kind's own beginning.
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
