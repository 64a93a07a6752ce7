//! Pods as Kubernetes' messages show them.
//!
//! Error messages of kube-apiserver that contain a whole object print its internal type: other field names (`DNSPolicy`),
//! every field present, host namespaces inside the security context. knarr prints the same.

use std::fmt::Write;

use knarr_apimachinery::codec;
use knarr_apimachinery::descriptors::{self, Definition, Form, Go, TypeDescriptor};
use serde::Serialize;
use serde_json::{Map, Value};

use super::diff;

/// A JSON value whose keys keep their order.
enum Node {
    Scalar(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// The node of a value of the API whose internal type is `of`.
    fn build(of: &Go, value: Option<&Value>) -> Node {
        let value = value.filter(|v| !v.is_null());
        let scalar_or = |zero: &str| Node::Scalar(value.map_or_else(|| zero.into(), scalar));
        match (of, value) {
            (Go::Pointer(_) | Go::List(_) | Go::Map(_) | Go::Other(_), None) => Node::null(),
            // A list that k8s-openapi always serializes is nil in Go if it is empty.
            (Go::List(_), Some(Value::Array(items))) if items.is_empty() => Node::null(),
            (Go::Pointer(of), value) => Node::build(of, value),
            (Go::List(of), Some(Value::Array(items))) => {
                Node::List(items.iter().map(|item| Node::build(of, Some(item))).collect())
            }
            (Go::Map(of), Some(Value::Object(map))) => {
                let members = map.iter();
                Node::Object(
                    members
                        .map(|(key, value)| (key.clone(), Node::build(of, Some(value))))
                        .collect(),
                )
            }
            (Go::List(_) | Go::Map(_) | Go::Other(_), Some(other)) => Node::plain(other),
            (Go::String | Go::Bytes, _) => scalar_or("\"\""),
            (Go::Bool, _) => scalar_or("false"),
            (Go::Integer(_) | Go::Float, _) => scalar_or("0"),
            (Go::Named(_), value) => match of.named() {
                Some(of) => Node::of_type(of, value),
                None => Node::null(),
            },
        }
    }

    fn null() -> Node {
        Node::Scalar("null".into())
    }

    fn of_type(of: &'static TypeDescriptor, value: Option<&Value>) -> Node {
        let scalar_or = |zero: &str| Node::Scalar(value.map_or_else(|| zero.into(), scalar));
        match &of.definition {
            Definition::Alias(of) => Node::build(of, value),
            Definition::Struct => Node::of_struct(of, value),
            Definition::Form(Form::Quantity) => scalar_or("\"0\""),
            Definition::Form(Form::IntOrString) => scalar_or("0"),
            Definition::Form(_) => value.map_or_else(Node::null, Node::plain),
        }
    }

    fn of_struct(of: &'static TypeDescriptor, value: Option<&Value>) -> Node {
        let mut object = Vec::new();
        Node::add_fields(&mut object, of, value);
        Node::Object(object)
    }

    /// Internal types have no tags: all fields are there, under their names in Go, and those of embedded structs in their place. Metadata and label
    /// selectors have no internal type: they have the API's names.
    fn add_fields(object: &mut Vec<(String, Node)>, of: &'static TypeDescriptor, value: Option<&Value>) {
        let is_internal = of.package.starts_with(descriptors::INTERNAL);
        for field in &of.declared {
            match field.of.named().filter(|_| field.is_inline()) {
                Some(of) if of.package.starts_with(descriptors::INTERNAL) => {
                    Node::add_fields(object, of, value)
                }
                Some(of) => Node::add_fields(object, of, value.and_then(|v| v.get("metadata"))),
                None => {
                    let value = value.and_then(|v| v.get(field.name));
                    if is_internal {
                        object.push((field.go_name.clone(), Node::build(&field.of, value)));
                    } else if value.is_some() || !field.omit_empty {
                        object.push((field.name.to_string(), Node::build(&field.of, value)));
                    }
                }
            }
        }
    }

    fn plain(value: &Value) -> Node {
        match value {
            Value::Array(items) => Node::List(items.iter().map(Node::plain).collect()),
            Value::Object(map) => {
                Node::Object(map.iter().map(|(k, v)| (k.clone(), Node::plain(v))).collect())
            }
            other => Node::Scalar(scalar(other)),
        }
    }

    /// With `indent` like Go's `json.MarshalIndent` with one space; without it on one line.
    fn write(&self, out: &mut String, indent: Option<usize>) {
        let new_line = |out: &mut String, indent: Option<usize>| {
            if let Some(depth) = indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', depth));
            }
        };
        let deeper = indent.map(|depth| depth + 1);
        let (open, close, count) = match self {
            Node::Scalar(text) => return out.push_str(text),
            Node::List(items) => ('[', ']', items.len()),
            Node::Object(fields) => ('{', '}', fields.len()),
        };
        out.push(open);
        for i in 0..count {
            if i > 0 {
                out.push(',');
            }
            new_line(out, deeper);
            match self {
                Node::List(items) => items[i].write(out, deeper),
                Node::Object(fields) => {
                    let (key, value) = &fields[i];
                    let space = if indent.is_some() { " " } else { "" };
                    // Writing to a String cannot fail.
                    let _ = write!(out, "{}:{space}", escaped(key));
                    value.write(out, deeper);
                }
                Node::Scalar(_) => {}
            }
        }
        if count > 0 {
            new_line(out, indent);
        }
        out.push(close);
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(s) => escaped(s),
        other => other.to_string(),
    }
}

/// A JSON string as Go writes it, with HTML characters escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

/// Moves the fields for the host's namespaces into the security context, where the internal type has them.
fn host_fields_moved(spec: &mut Map<String, Value>) {
    let host: Vec<(String, Value)> = [
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "shareProcessNamespace",
        "hostUsers",
    ]
    .iter()
    .filter_map(|key| spec.remove_entry(*key))
    .collect();
    let context = spec
        .entry("securityContext")
        .or_insert_with(|| Value::Object(Default::default()));
    if let Some(context) = context.as_object_mut() {
        context.extend(host);
    }
}

fn node<T: Serialize>(of: &str, value: &T) -> Node {
    // The types of k8s-openapi can always be serialized; otherwise the message would show null.
    let mut value = codec::to_plain_value(value).unwrap_or(Value::Null);
    let spec = match of {
        "PodSpec" => Some(&mut value),
        "PodTemplateSpec" => value.get_mut("spec"),
        _ => None,
    };
    if let Some(spec) = spec.and_then(Value::as_object_mut) {
        host_fields_moved(spec);
    }
    match descriptors::internal(of.trim_start_matches('*')) {
        Some(_) if of.starts_with('*') && value.is_null() => Node::null(),
        Some(of) => Node::of_struct(of, Some(&value)),
        None => Node::plain(&value),
    }
}

/// A value whose internal type is `of`, as one line of JSON.
pub(in crate::kinds) fn json<T: Serialize>(of: &str, value: &T) -> String {
    let mut out = String::new();
    node(of, value).write(&mut out, None);
    out
}

/// The diff of two values as Kubernetes shows it to users.
pub(in crate::kinds) fn difference<T: Serialize>(of: &str, old: &T, new: &T) -> String {
    let text = |value: &T| {
        let mut out = String::new();
        node(of, value).write(&mut out, Some(0));
        out
    };
    diff::unified(&text(old), &text(new))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodResourceClaim, PodSpec};

    use super::*;

    #[test]
    fn an_internal_type_has_all_fields_in_gos_order_and_metadata_those_that_are_set() {
        let template = serde_json::json!({"metadata": {"labels": {"a": "b"}, "name": "t"},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}, "selector": {"matchExpressions": [{"values": ["v"], "key": "k", "operator": "In"}]}}});
        assert_eq!(
            json("PersistentVolumeClaimTemplate", &template),
            concat!(
                r#"{"name":"t","labels":{"a":"b"},"Spec":{"AccessModes":null,"Selector":{"matchExpressions":"#,
                r#"[{"key":"k","operator":"In","values":["v"]}]},"Resources":{"Limits":null,"Requests":{"storage":"1Gi"}},"#,
                r#""VolumeName":"","StorageClassName":null,"VolumeMode":null,"DataSource":null,"DataSourceRef":null,"#,
                r#""VolumeAttributesClassName":null}}"#
            )
        );
    }

    #[test]
    fn absent_fields_are_shown() {
        let claim = PodResourceClaim {
            name: "a<b".into(),
            ..PodResourceClaim::default()
        };
        assert_eq!(
            json("PodResourceClaim", &claim),
            r#"{"Name":"a\u003cb","ResourceClaimName":null,"ResourceClaimTemplateName":null}"#
        );
    }

    #[test]
    fn a_changed_field_is_shown_with_three_lines_around_it() {
        let old = PodSpec {
            host_network: Some(true),
            ..PodSpec::default()
        };
        let new = PodSpec {
            priority: Some(10),
            ..old.clone()
        };
        assert_eq!(
            difference("PodSpec", &old, &new),
            r#"@@ -40,7 +40,7 @@
  "Tolerations": null,
  "HostAliases": null,
  "PriorityClassName": "",
- "Priority": null,
+ "Priority": 10,
  "PreemptionPolicy": null,
  "DNSConfig": null,
  "ReadinessGates": null,
"#
        );
    }
}
