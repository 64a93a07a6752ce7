//! Patches of the three types, applied to objects (the input: kind, patch type, object, patch).
//!
//! A patch fails, or makes a document whose object, if it decodes, passes [`objects::check_lifecycle`]. The document is no
//! larger than object, patch and the limit of copied bytes together. Applying a merge patch twice equals applying it once.

use knarr_api::patch::{json, merge, strategic};
use serde_json::Value;

use crate::{PART, Target, byte_of, encoded, object_and_change, objects, seeds};

pub const TARGET: Target = Target {
    name: "patches",
    check,
    seeds: || {
        let mut all = Vec::new();
        for object in seeds::OBJECTS {
            let Some(kind) = seeds::kind_of(object) else {
                continue;
            };
            for (patch_type, patches) in [
                seeds::JSON_PATCHES,
                seeds::MERGE_PATCHES,
                seeds::STRATEGIC_PATCHES,
            ]
            .iter()
            .enumerate()
            {
                for patch in *patches {
                    let head = [byte_of(kind), u8::try_from(patch_type).unwrap_or(0)];
                    all.push([&head, object.as_bytes(), &[PART], patch.as_bytes()].concat());
                }
            }
        }
        all
    },
};

fn check(data: &[u8]) {
    let Some((kind, patch_type, object, patch_bytes)) = object_and_change(data) else {
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
    let applied = match patch_type % 3 {
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
    if patch_type % 3 == 1 {
        let mut twice = doc.clone();
        merge::apply(&mut twice, &patch);
        assert_eq!(twice, doc, "applying the merge patch twice differs from once");
    }
    if let Ok(new) = kind.ops.decode(&after) {
        objects::check_lifecycle(kind, new.object);
    }
}
