//! Sets of fields as text, the form in which objects have them (`fieldsV1`).
//!
//! As a tree such a set would be the largest part of most objects, and only this module reads it. So the codec
//! leaves it encoded: a typed object has it as [`Value::String`], and on the wire it is the
//! object in that text. [`FieldSet::read`](super::FieldSet::read) reads both.

use std::collections::BTreeMap;
use std::ops::Range;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use serde_json::Value;
use serde_json::value::RawValue;

/// `fieldsV1` of an encoded set.
pub(super) fn fields_v1(text: String) -> FieldsV1 {
    FieldsV1(Value::String(text))
}

/// Appends a string as JSON has it.
pub(super) fn push_string(out: &mut String, text: &str) {
    push_element(out, "", text);
}

/// Appends `form` and `text` as one JSON string; `form` needs no escapes.
fn push_element(out: &mut String, form: &str, text: &str) {
    let plain = |b: u8| b >= b' ' && b != b'"' && b != b'\\';
    out.push('"');
    out.push_str(form);
    if text.bytes().all(plain) {
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&Value::from(text).to_string()[1..]);
    }
}

/// Writes a set element by element. Elements of one node come in the order of their bytes, as all readers
/// have received them so far.
#[derive(Debug)]
pub(super) struct Writer {
    out: String,
}

/// An element that was begun: the offsets of its text and of its children's.
pub(super) struct Element {
    from: usize,
    children: usize,
}

impl Writer {
    pub fn with_capacity(bytes: usize) -> Self {
        let mut out = String::with_capacity(bytes);
        out.push('{');
        Writer { out }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// `form` is `f:`, or empty where the element contains its form.
    pub fn begin(&mut self, form: &str, element: &str) -> Element {
        let from = self.out.len();
        self.key(form, element);
        self.out.push('{');
        Element {
            from,
            children: self.out.len(),
        }
    }

    fn key(&mut self, form: &str, element: &str) {
        if !self.out.ends_with('{') {
            self.out.push(',');
        }
        push_element(&mut self.out, form, element);
        self.out.push(':');
    }

    /// `own`: the path up to here is itself in the set. An element that is not, and has nothing below it, is left out.
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

    /// Inserts the elements of list items, which are known only after the paths below them were written: `items` are the
    /// elements, each with the range of its text, and cover all that was written since `begin`. Of items with the same element
    /// only the element itself is in the set.
    pub fn name(&mut self, begin: usize, mut items: Vec<(String, Range<usize>)>) {
        let written = self.out.split_off(begin);
        items.sort_by(|a, b| a.0.cmp(&b.0));
        for same in items.chunk_by(|a, b| a.0 == b.0) {
            let Some((name, range)) = same.first() else {
                continue;
            };
            let element = self.begin("", name);
            if same.len() == 1 {
                let behind = &written[range.start - begin..range.end - begin];
                self.out.push_str(behind.strip_prefix(',').unwrap_or(behind));
            }
            self.end(&element, true);
        }
    }

    /// Puts the elements written since `begin` in order.
    pub fn sort(&mut self, begin: usize) {
        let written = self.out.split_off(begin);
        let elements = ["{", written.strip_prefix(',').unwrap_or(&written), "}"].concat();
        let Ok(elements) = serde_json::from_str::<BTreeMap<String, &RawValue>>(&elements) else {
            // It was written above, element by element.
            self.out.push_str(&written);
            return;
        };
        for (element, behind) in elements {
            self.key("", &element);
            self.out.push_str(behind.get());
        }
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
    fn elements_are_sorted() {
        let mut writer = Writer::with_capacity(0);
        let first = writer.begin("f:", "a");
        writer.end(&first, true);
        let outer = writer.begin("f:", "b");
        let begin = writer.len();
        for element in ["z", "y\"", "x"] {
            let it = writer.begin("f:", element);
            let behind = writer.begin("f:", "c");
            writer.end(&behind, true);
            writer.end(&it, element == "x");
        }
        writer.sort(begin);
        writer.end(&outer, false);
        let tree = serde_json::json!({"f:a": {}, "f:b": {
            "f:x": {".": {}, "f:c": {}}, "f:y\"": {"f:c": {}}, "f:z": {"f:c": {}}}});
        assert_eq!(writer.finish(), tree.to_string());
    }

    #[test]
    fn a_set_is_written_like_a_tree() {
        let mut writer = Writer::with_capacity(0);
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
