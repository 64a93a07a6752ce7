//! Objects with nothing set, with which creations are compared.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::codec;
use crate::kind::Kind;
use crate::registry;
use crate::schema::{self, Shape};

/// An object of the kind with nothing set, as Go encodes it: structs that are no pointers are there, some lists null; of
/// Events also times and names.
///
/// Every creation is compared with it, so it is made once a kind.
pub fn blank(kind: &Kind) -> &'static Value {
    static EMPTY: LazyLock<Value> = LazyLock::new(|| json!({}));
    match Shape::of(kind) {
        Some(shape) => shape.blank.get_or_init(|| fill_blank(kind, shape)),
        None => &EMPTY,
    }
}

fn fill_blank(kind: &Kind, shape: &Shape) -> Value {
    fn fill(shape: &Shape, of: &str) -> Value {
        let mut out = Map::new();
        let go_name = of.rsplit('.').next().unwrap_or(of);
        for (name, field) in shape.type_named(of).into_iter().flat_map(|t| t.fields()) {
            match &field.value {
                schema::Value::Struct(of) if name == "metadata" || codec::is_always_object(go_name, name) => {
                    let value = if name == "metadata" {
                        json!({})
                    } else {
                        fill(shape, of)
                    };
                    out.insert(name.clone(), value);
                }
                schema::Value::List(_) if codec::is_null_unset(go_name, name) => {
                    out.insert(name.clone(), Value::Null);
                }
                _ => {}
            }
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
        _ => fill(shape, shape.root()),
    };
    blank["apiVersion"] = kind.api_version().into();
    blank["kind"] = kind.kind().into();
    blank
}
