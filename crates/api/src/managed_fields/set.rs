//! Sets of field paths, in the form in which clients see them (`fieldsV1`).
//!
//! A set is a JSON object: a member per path element (`f:name`, `k:{"name":"c"}`, `v:"x"`), below it the longer paths, and
//! `"."` where the path up to there is in the set itself in addition to longer ones. `{}` is a path that ends and is in the
//! set. All operations work on that form, so nothing is translated on a write.

use serde_json::{Map, Value};

/// The member that marks a path as in the set in addition to longer paths.
pub(super) const SELF: &str = ".";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Map<String, Value>);

pub(super) type Node = Map<String, Value>;

fn node(value: &Value) -> Option<&Node> {
    value.as_object()
}

/// Whether the path up to here is in the set.
pub(super) fn owns(node: &Node) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

fn below(node: &Node) -> impl Iterator<Item = (&String, &Value)> {
    node.iter().filter(|(key, _)| *key != SELF)
}

/// Sets whether a node without [`SELF`] has its own path in the set.
fn mark(node: &mut Node, own: bool) {
    if own && !node.is_empty() {
        node.insert(SELF.into(), Value::Object(Map::new()));
    }
}

/// Removes the paths of `b` from `a`; with `behind` also those below them. The cost is linear in `b`.
fn subtract(a: &mut Node, b: &Node, behind: bool) {
    for (key, right) in below(b) {
        let Some((left, right)) = a.get_mut(key).and_then(Value::as_object_mut).zip(node(right)) else {
            continue;
        };
        let removed = owns(right);
        let own = owns(left) && !removed;
        left.remove(SELF);
        if removed && behind {
            left.clear();
        } else {
            subtract(left, right, behind);
        }
        if own || !left.is_empty() {
            mark(left, own);
        } else {
            a.remove(key);
        }
    }
}

/// A node with this path and these children; `None` for an empty one.
fn node_of(own: bool, mut children: Node) -> Option<Value> {
    mark(&mut children, own);
    (own || !children.is_empty()).then_some(Value::Object(children))
}

impl FieldSet {
    /// Reads `fieldsV1` as clients send it or as typed objects have it; `None` if it is invalid.
    pub fn read(fields: &Value) -> Option<FieldSet> {
        if let Value::String(text) = fields {
            let fields: Value = serde_json::from_str(text).ok()?;
            return FieldSet::read_tree(fields);
        }
        FieldSet::read_tree(fields.clone())
    }

    fn read_tree(fields: Value) -> Option<FieldSet> {
        fn known(key: &String) -> bool {
            key == SELF || matches!(key.get(..2), Some("f:" | "k:" | "v:" | "i:"))
        }
        fn fine(value: &Value) -> bool {
            node(value).is_some_and(|n| n.iter().all(|(key, value)| known(key) && fine(value)))
        }
        match fields {
            Value::Object(mut set) if set.values().all(fine) && set.keys().all(known) => {
                set.remove(SELF);
                Some(FieldSet(set))
            }
            _ => None,
        }
    }

    /// The encoded `fieldsV1`.
    pub fn to_text(&self) -> String {
        // A map of strings always encodes.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    pub(super) fn root(&self) -> &Node {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A set of one child of the root: the path `element`, if `own`, and those of `children` behind it.
    pub(super) fn add(&mut self, element: String, own: bool, children: FieldSet) {
        if let Some(node) = node_of(own, children.0) {
            self.0.insert(element, node);
        }
    }

    /// Whether a path of one element is in the set.
    pub(super) fn has(&self, element: &str) -> bool {
        self.0.get(element).and_then(node).is_some_and(owns)
    }

    /// The paths below `element`.
    pub(super) fn below(&self, element: &str) -> FieldSet {
        let node = self.0.get(element).and_then(node);
        FieldSet(node.map_or_else(Map::new, |n| {
            below(n).map(|(k, v)| (k.clone(), v.clone())).collect()
        }))
    }

    /// Adds a path of field names.
    pub fn with(mut self, path: &[impl AsRef<str>]) -> FieldSet {
        if let Some((first, rest)) = path.split_first() {
            let element = format!("f:{}", first.as_ref());
            let own = rest.is_empty() || self.has(&element);
            let behind = self.below(&element).with(rest);
            self.add(element, own, behind);
        }
        self
    }

    pub fn union(mut self, other: FieldSet) -> FieldSet {
        fn walk(a: &mut Node, b: Node) {
            for (key, right) in b {
                match (a.get_mut(&key), right) {
                    (Some(Value::Object(left)), Value::Object(mut right)) => {
                        let own = owns(left) || owns(&right);
                        left.remove(SELF);
                        right.remove(SELF);
                        walk(left, right);
                        mark(left, own);
                    }
                    (_, right) => {
                        a.insert(key, right);
                    }
                }
            }
        }
        if self.0.is_empty() {
            return other;
        }
        walk(&mut self.0, other.0);
        self
    }

    /// The paths of this set that are not in the other.
    pub fn difference(mut self, other: &FieldSet) -> FieldSet {
        subtract(&mut self.0, &other.0, false);
        self
    }

    /// The paths of this set that are not in the other, nor below one that is.
    pub fn recursive_difference(mut self, other: &FieldSet) -> FieldSet {
        subtract(&mut self.0, &other.0, true);
        self
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        fn walk(a: &Node, b: &Node) -> Node {
            let kept = below(a).filter_map(|(key, left)| {
                let (l, r) = node(left).zip(b.get(key).and_then(node))?;
                Some((key.clone(), node_of(owns(l) && owns(r), walk(l, r))?))
            });
            kept.collect()
        }
        FieldSet(walk(&self.0, &other.0))
    }

    /// Each child: its element, whether it is in the set, and the paths below it.
    pub(super) fn children(&self) -> impl Iterator<Item = (&String, bool, FieldSet)> {
        below(&self.0).map(|(key, value)| (key, node(value).is_some_and(owns), self.below(key)))
    }

    /// Rebuilds the set: `own` decides for each child whether it is in the set, `go` makes the paths below it.
    pub(super) fn rebuild(
        &self,
        mut own: impl FnMut(&str, bool) -> bool,
        mut go: impl FnMut(&str, FieldSet) -> FieldSet,
    ) -> FieldSet {
        let mut out = FieldSet::default();
        for (key, value) in below(&self.0) {
            let has = node(value).is_some_and(owns);
            let behind = go(key, self.below(key));
            out.add(key.clone(), own(key, has), behind);
        }
        out
    }

    /// Every path in readable form: `.spec.containers[name="c"].image`.
    pub fn paths(&self) -> Vec<String> {
        fn walk(node_: &Node, path: &str, out: &mut Vec<String>) {
            for (key, value) in below(node_) {
                let path = format!("{path}{}", shown(key));
                let Some(child) = node(value) else { continue };
                if owns(child) {
                    out.push(path.clone());
                }
                walk(child, &path, out);
            }
        }
        let mut out = Vec::new();
        walk(&self.0, "", &mut out);
        out
    }
}

/// A path element in readable form.
pub(super) fn shown(element: &str) -> String {
    let (form, rest) = element.split_at_checked(2).unwrap_or((element, ""));
    match form {
        "f:" => format!(".{rest}"),
        "k:" => match serde_json::from_str::<Map<String, Value>>(rest) {
            Ok(keys) => {
                let keys: Vec<String> = keys
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                format!("[{}]", keys.join(","))
            }
            Err(_) => format!("[{rest}]"),
        },
        "v:" => format!("[={rest}]"),
        _ => format!("[{rest}]"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn set(value: Value) -> FieldSet {
        FieldSet::read(&value).unwrap()
    }

    #[test]
    fn sets_contain_their_paths() {
        let a = set(json!({"f:a": {}, "f:b": {".": {}, "f:c": {}, "f:d": {"v:1": {}}}}));
        let b = set(json!({"f:b": {"f:c": {}}, "f:e": {}}));
        assert_eq!(a.paths(), [".a", ".b", ".b.c", ".b.d[=1]"]);
        assert_eq!(
            a.clone().union(b.clone()).paths(),
            [".a", ".b", ".b.c", ".b.d[=1]", ".e"]
        );
        assert_eq!(a.clone().difference(&b).paths(), [".a", ".b", ".b.d[=1]"]);
        assert_eq!(b.clone().difference(&a).paths(), [".e"]);
        assert_eq!(a.intersection(&b).paths(), [".b.c"]);
        assert_eq!(
            a.clone().recursive_difference(&set(json!({"f:b": {}}))).paths(),
            [".a"]
        );
        assert_eq!(
            set(json!({"k:{\"name\":\"c\",\"port\":80}": {}})).paths(),
            ["[name=\"c\",port=80]"]
        );
        for wrong in [json!([]), json!({"x": {}}), json!({"f:a": 1}), json!({"é": {}})] {
            assert!(FieldSet::read(&wrong).is_none(), "{wrong}");
        }
    }

    fn sets() -> impl Strategy<Value = FieldSet> {
        let leaf = Just(json!({}));
        let tree = leaf.prop_recursive(3, 16, 4, |inner| {
            (prop::collection::btree_map("f:[abc]", inner, 1..4), any::<bool>())
                .prop_map(|(children, own)| node_of(own, children.into_iter().collect()).unwrap())
        });
        prop::collection::btree_map("f:[abc]", tree, 0..4)
            .prop_map(|children| FieldSet(children.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn set_laws_hold(a in sets(), b in sets()) {
            let paths = |s: &FieldSet| s.paths().into_iter().collect::<std::collections::BTreeSet<_>>();
            let (pa, pb) = (paths(&a), paths(&b));
            prop_assert_eq!(paths(&a.clone().union(b.clone())), &pa | &pb);
            prop_assert_eq!(paths(&a.intersection(&b)), &pa & &pb);
            prop_assert_eq!(paths(&a.clone().difference(&b)), &pa - &pb);
            let above = |p: &str| pb.iter().any(|q| p == q || p.strip_prefix(&**q).is_some_and(|r| r.starts_with('.')));
            let left = pa.iter().filter(|p| !above(p)).cloned().collect();
            prop_assert_eq!(paths(&a.clone().recursive_difference(&b)), left);
            prop_assert_eq!(a.clone().union(a.clone()), a.clone());
            prop_assert!(a.clone().difference(&a).is_empty());
        }
    }
}
