//! Sets of fields as text, which is how objects carry them (`fieldsV1`).
//!
//! As a tree such a set would be the largest part of most objects, and nobody looks into it but this room. So the codec
//! leaves it as it is written: a typed object has it as [`Value::String`], and on the wire it is the object it stands
//! for. [`FieldSet::read`](super::FieldSet::read) takes both.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use serde_json::Value;

/// `fieldsV1` of a set that is written down already.
pub(super) fn fields_v1(text: String) -> FieldsV1 {
    FieldsV1(Value::String(text))
}

/// Appends a string as JSON has it.
pub(super) fn push_string(out: &mut String, text: &str) {
    let plain = |b: u8| b >= b' ' && b != b'"' && b != b'\\';
    if text.bytes().all(plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}

/// Writes a set down element by element. Elements of one node are to come in the order of their bytes, as all readers
/// have seen them so far.
#[derive(Debug)]
pub(super) struct Writer {
    out: String,
}

/// An element that was begun: where its text begins, and where its children's do.
pub(super) struct Element {
    from: usize,
    children: usize,
}

impl Writer {
    pub fn new() -> Self {
        Writer {
            out: String::from("{"),
        }
    }

    /// `form` is `f:`, or empty where the element says its form itself.
    pub fn begin(&mut self, form: &str, element: &str) -> Element {
        let from = self.out.len();
        if !self.out.ends_with('{') {
            self.out.push(',');
        }
        let key = self.out.len();
        push_string(&mut self.out, element);
        self.out.insert_str(key + 1, form);
        self.out.push_str(":{");
        Element {
            from,
            children: self.out.len(),
        }
    }

    /// `own`: the path up to here is itself in the set. An element that is not, and has nothing behind it, is left out.
    pub fn end(&mut self, element: &Element, own: bool) {
        let is_bare = self.out.len() == element.children;
        if is_bare && !own {
            self.out.truncate(element.from);
            return;
        }
        if own && !is_bare {
            // The first of all elements.
            self.out.insert_str(element.children, r#"".":{},"#);
        }
        self.out.push('}');
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.out.len() == 1
    }

    pub fn finish(mut self) -> String {
        self.out.push('}');
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_as_a_tree_would_be() {
        let mut writer = Writer::new();
        assert!(writer.is_empty());
        let a = writer.begin("f:", "a");
        for (element, own) in [("k:{\"name\":\"x\"}", true), ("v:1", false)] {
            let item = writer.begin("", element);
            let b = writer.begin("f:", "b\"\n");
            writer.end(&b, own);
            writer.end(&item, own);
        }
        writer.end(&a, false);
        let gone = writer.begin("f:", "c");
        writer.end(&gone, false);
        let text = writer.finish();
        let read: Value = serde_json::from_str(&text).unwrap();
        let tree = serde_json::json!({"f:a": {"k:{\"name\":\"x\"}": {".": {}, "f:b\"\n": {}}}});
        assert_eq!(read, tree);
        assert_eq!(text, tree.to_string(), "byte by byte");
    }
}
