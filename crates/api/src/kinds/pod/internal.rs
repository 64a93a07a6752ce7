//! Pods as Kubernetes' messages show them.
//!
//! Where a message holds a whole object, it is printed in the API server's internal form: other names (`DNSPolicy`),
//! every field present, host namespaces inside the security context. Clients see that, so knarr prints the same.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::{Map, Value};

use super::diff;

/// The fields of metadata that templates have, in Go's order; it is written in the API's form.
const METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
];

struct Field {
    name: &'static str,
    /// As the API calls it.
    key: String,
    of: &'static str,
}

static TYPES: LazyLock<BTreeMap<&'static str, Vec<Field>>> =
    LazyLock::new(|| parse(include_str!("internal_types.txt")));

fn parse(text: &'static str) -> BTreeMap<&'static str, Vec<Field>> {
    let mut types = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or("");
        let fields = words.filter_map(|word| {
            let (name, of) = word.split_once(':')?;
            let (name, key) = match name.split_once('=') {
                Some((name, key)) => (name, key.to_string()),
                None => (name, lower_first(name)),
            };
            Some(Field { name, key, of })
        });
        types.insert(name, fields.collect());
    }
    types
}

fn lower_first(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map_or_else(String::new, |first| {
        format!("{}{}", first.to_ascii_lowercase(), chars.as_str())
    })
}

/// JSON whose keys keep their order.
enum Node {
    Scalar(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// The node of a value in the API's form that is of type `of` internally.
    fn build(of: &str, value: Option<&Value>) -> Node {
        let value = value.filter(|v| !v.is_null());
        let null = || Node::Scalar("null".into());
        let kind = of.chars().next().unwrap_or('j');
        let inner = of.get(1..).unwrap_or("");
        match (kind, value) {
            ('*' | '[' | '{', None) => null(),
            // A list that is always there in a typed object is one that was not given.
            ('[', Some(Value::Array(items))) if items.is_empty() => null(),
            ('*', value) => Node::build(inner, value),
            ('[', Some(Value::Array(items))) => {
                Node::List(items.iter().map(|item| Node::build(inner, Some(item))).collect())
            }
            ('{', Some(Value::Object(map))) => Node::Object(
                map.iter()
                    .map(|(key, value)| (key.clone(), Node::build(inner, Some(value))))
                    .collect(),
            ),
            _ => match of {
                "s" => Node::Scalar(value.map_or_else(|| "\"\"".into(), scalar)),
                "b" => Node::Scalar(value.map_or_else(|| "false".into(), scalar)),
                "i" | "j" => Node::Scalar(value.map_or_else(|| "0".into(), scalar)),
                "q" => Node::Scalar(value.map_or_else(|| "\"0\"".into(), scalar)),
                "l" => Node::of_selector(value),
                "r" => value.map_or_else(null, Node::plain),
                of => Node::of_struct(of, value),
            },
        }
    }

    fn of_struct(of: &str, value: Option<&Value>) -> Node {
        let mut object = Vec::new();
        for field in TYPES.get(of).into_iter().flatten() {
            let value = value.and_then(|v| v.get(&field.key));
            if field.of == "o" {
                let metadata = value.and_then(Value::as_object);
                let known = METADATA.iter().filter_map(|k| metadata?.get_key_value(*k));
                let others = metadata.into_iter().flatten();
                let others = others.filter(|(k, _)| !METADATA.contains(&k.as_str()));
                object.extend(known.chain(others).map(|(k, v)| (k.clone(), Node::plain(v))));
            } else {
                object.push((field.name.to_string(), Node::build(field.of, value)));
            }
        }
        Node::Object(object)
    }

    /// A label selector has the API's form internally too, in its own order.
    fn of_selector(value: Option<&Value>) -> Node {
        let get = |key: &str| value.and_then(|v| v.get(key));
        let mut object = Vec::new();
        if let Some(labels) = get("matchLabels") {
            object.push(("matchLabels".into(), Node::plain(labels)));
        }
        if let Some(Value::Array(expressions)) = get("matchExpressions") {
            let ordered = |expression: &Value| {
                let fields = ["key", "operator", "values"];
                let given = fields
                    .iter()
                    .filter_map(|f| Some((f.to_string(), Node::plain(expression.get(f)?))));
                Node::Object(given.collect())
            };
            object.push((
                "matchExpressions".into(),
                Node::List(expressions.iter().map(ordered).collect()),
            ));
        }
        Node::Object(object)
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

    /// With `indent` as Go's `MarshalIndent` with one space; without it on one line.
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

/// A JSON string as Go writes it: safe inside of HTML.
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

/// Internally the host's namespaces are the security context's.
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
    // The types of k8s-openapi always serialize; were one not to, the message would show null.
    let mut value = serde_json::to_value(value).unwrap_or(Value::Null);
    let spec = match of {
        "PodSpec" => Some(&mut value),
        "PodTemplateSpec" => value.get_mut("spec"),
        _ => None,
    };
    if let Some(spec) = spec.and_then(Value::as_object_mut) {
        host_fields_moved(spec);
    }
    Node::build(of, Some(&value))
}

/// One line of JSON, of a value whose internal type is `of`.
pub(in crate::kinds) fn json<T: Serialize>(of: &str, value: &T) -> String {
    let mut out = String::new();
    node(of, value).write(&mut out, None);
    out
}

/// How two values differ, as Kubernetes shows it to users.
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
    fn every_type_is_described() {
        for (name, fields) in TYPES.iter() {
            for field in fields {
                let of = field.of.trim_start_matches(['*', '[', '{']);
                let known =
                    matches!(of, "s" | "b" | "i" | "q" | "r" | "j" | "l" | "o") || TYPES.contains_key(of);
                assert!(known, "{name}.{}: {}", field.name, field.of);
            }
        }
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
