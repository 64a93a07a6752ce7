//! Patches of the three kinds, applied to objects: kind, sort of patch, object, patch.
//!
//! A patch makes something that decodes or is refused; it makes it no larger than what was sent and what copies may
//! add; a merge patch applied twice is as applied once.

use knarr_api::patch::{json, merge, strategic};
use serde_json::Value;

use crate::{PART, Target, byte_of, encoded, object_and_more, objects, seeds};

pub const TARGET: Target = Target {
    name: "patches",
    check,
    seeds: || {
        let mut all = Vec::new();
        for object in seeds::OBJECTS {
            let Some(kind) = seeds::kind_of(object) else {
                continue;
            };
            for (sort, patches) in [
                seeds::JSON_PATCHES,
                seeds::MERGE_PATCHES,
                seeds::STRATEGIC_PATCHES,
            ]
            .iter()
            .enumerate()
            {
                for patch in *patches {
                    let head = [byte_of(kind), u8::try_from(sort).unwrap_or(0)];
                    all.push([&head, object.as_bytes(), &[PART], patch.as_bytes()].concat());
                }
            }
        }
        all
    },
};

fn check(data: &[u8]) {
    let Some((kind, sort, object, patch_bytes)) = object_and_more(data) else {
        return;
    };
    let (Ok(decoded), Ok(patch)) = (
        kind.ops.decode(object),
        serde_json::from_slice::<Value>(patch_bytes),
    ) else {
        return;
    };
    let before = encoded(&*decoded.object);
    let mut doc: Value = serde_json::from_slice(&before).expect("what is encoded is JSON");
    let applied = match sort % 3 {
        0 => json::apply(&mut doc, &patch),
        1 => merge::check(&patch).map(|()| merge::apply(&mut doc, &patch)),
        _ => strategic::apply(kind, &mut doc, &patch),
    };
    if applied.is_err() {
        return;
    }
    let after = serde_json::to_vec(&doc).expect("a value is JSON");
    let most = before.len() + 8 * patch_bytes.len() + json::MAX_COPIED_BYTES + 1024;
    assert!(
        after.len() <= most,
        "{} bytes out of {} and {}",
        after.len(),
        before.len(),
        patch_bytes.len()
    );
    if sort % 3 == 1 {
        let mut twice = doc.clone();
        merge::apply(&mut twice, &patch);
        assert_eq!(twice, doc, "a merge patch twice is not as once");
    }
    if let Ok(new) = kind.ops.decode(&after) {
        objects::live(kind, new.object);
    }
}
