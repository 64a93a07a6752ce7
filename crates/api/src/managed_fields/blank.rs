//! Empty objects, with which creations are compared.

use std::sync::LazyLock;

use knarr_apimachinery::descriptors::{self, TypeDescriptor};
use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::registry;
use crate::shape::Shape;
use crate::shapes::shape_of;

/// An empty object of the kind, as Go encodes it: with structs that are not pointers, and some lists null; in
/// Events also with times and names.
///
/// Every creation is compared with it, so it is made once for each kind.
pub fn blank(kind: &Kind) -> &'static Value {
    static EMPTY: LazyLock<Value> = LazyLock::new(|| json!({}));
    match shape_of(kind) {
        Some(shape) => shape.blank.get_or_init(|| fill_blank(kind, shape)),
        None => &EMPTY,
    }
}

fn fill_blank(kind: &Kind, shape: &Shape) -> Value {
    fn fill(of: &'static TypeDescriptor) -> Value {
        let mut out = Map::new();
        for field in of.fields() {
            let value = match field.of.named() {
                Some(of) if field.is_always_object() => fill(of),
                _ if field.is_null_list() => Value::Null,
                _ => continue,
            };
            out.insert(field.name.to_string(), value);
        }
        Value::Object(out)
    }
    let mut blank = match kind {
        _ if *kind == registry::EVENT => json!({
            "involvedObject": {}, "source": {}, "eventTime": null, "firstTimestamp": null, "lastTimestamp": null,
            "reportingComponent": "", "reportingInstance": "", "metadata": {},
        }),
        _ if *kind == registry::EVENTS_EVENT => json!({
            "regarding": {}, "deprecatedSource": {}, "eventTime": null, "deprecatedFirstTimestamp": null,
            "deprecatedLastTimestamp": null, "metadata": {},
        }),
        _ => descriptors::published(shape.root()).map_or_else(|| json!({}), fill),
    };
    blank["apiVersion"] = kind.api_version().into();
    blank["kind"] = kind.kind().into();
    blank
}
