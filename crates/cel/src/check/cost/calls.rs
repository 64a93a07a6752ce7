//! The estimated cost of calls: of CEL's functions, of the extensions and of Kubernetes' libraries.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};

use super::{CostEstimator, Entries, LIST, Node, PER_CHARACTER, PER_PATTERN_CHARACTER, Range, SELECT};
use crate::check::types::Type;

/// An authorization check costs so much that two of them fit into one expression.
const ACCESS_CHECK: Range = Range::fixed(350_000);
/// The longest regular expression of a named format.
const FORMAT_PATTERN_MAX: f64 = 128.0;
const FORMAT_MAX: u64 = 64;
/// An address in bytes.
const ADDRESS: Range = Range { min: 4, max: 16 };
/// A requirement of a selector takes at least two characters, and a list and a struct.
const REQUIREMENTS_PER_CHARACTER: f64 = 0.5;
const PER_REQUIREMENT: f64 = 50.0;

/// What a call costs in addition to its arguments, and how large its result is.
struct Call {
    cost: Range,
    size: Option<Range>,
}

impl From<Range> for Call {
    fn from(cost: Range) -> Self {
        Call { cost, size: None }
    }
}

fn sized(cost: Range, size: Range) -> Call {
    Call {
        cost,
        size: Some(size),
    }
}

impl CostEstimator<'_> {
    pub(super) fn cost_of_call(&mut self, e: &IdedExpr, call: &CallExpr) -> Range {
        if let ("dyn", [arg]) = (call.func_name.as_str(), call.args.as_slice()) {
            let cost = self.cost(arg) + Range::fixed(1);
            if let Some(size) = self.size(arg) {
                self.sizes.insert(e.id, size);
            }
            if let Some(entries) = self.entries_of(arg) {
                self.entries.insert(e.id, entries);
            }
            return cost;
        }
        let costs: Vec<Range> = call.args.iter().map(|arg| self.cost(arg)).collect();
        let args: Vec<Node<'_>> = call.args.iter().map(|arg| self.node(arg)).collect();
        let overloads = self.checked.overloads(e).to_vec();
        if overloads.is_empty() {
            return Range::default();
        }
        let namespaced = self.checked.namespaced(e);
        let function = namespaced.unwrap_or(&call.func_name).to_string();
        let mut sum = Range::default();
        let target = match &call.target {
            Some(target) if namespaced.is_none() => {
                sum = self.cost(target);
                Some(self.node(target))
            }
            _ => None,
        };
        let mut cost = Range::none(false);
        let mut size: Option<Range> = None;
        for overload in overloads {
            let one = self.overload(e, &function, overload, target.as_ref(), &args, &costs);
            cost = cost.union(one.cost);
            size = match (size, one.size) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            let below = match overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(below), Some(of)) = (below, call.args.first()) {
                size = self.entries_of(of).map(|entries| entries.value);
                let path = self.path_below(of, below);
                self.paths.insert(e.id, path);
            }
            if size.is_none() {
                size = self.size(e);
            }
        }
        if let Some(size) = size {
            self.sizes.insert(e.id, size);
        }
        sum + cost
    }

    /// One overload with its arguments.
    fn overload(
        &mut self,
        e: &IdedExpr,
        function: &str,
        overload: &str,
        target: Option<&Node<'_>>,
        args: &[Node<'_>],
        costs: &[Range],
    ) -> Call {
        match (overload, costs, args) {
            // One side may decide the result.
            ("logical_or" | "logical_and", [a, b], _) => {
                return Range {
                    min: a.min,
                    max: (*a + *b).max,
                }
                .into();
            }
            ("conditional", [condition, a, b], [_, left, right]) => {
                let size = known(left).union(known(right));
                let (a_entries, b_entries) = (self.entries_in(left), self.entries_in(right));
                if let Some(both) = joined(a_entries, b_entries) {
                    self.entries.insert(e.id, both);
                }
                return sized(*condition + a.union(*b), size);
            }
            _ => {}
        }
        let found = self
            .extension(overload, target, args)
            .or_else(|| self.library(function, overload, target, args))
            .or_else(|| self.standard(e, overload, target, args));
        let found = found.unwrap_or_else(|| SELECT.into());
        Call {
            cost: costs.iter().fold(found.cost, |sum, cost| sum + *cost),
            size: found.size,
        }
    }

    fn entries_in(&self, node: &Node<'_>) -> Option<Entries> {
        node.expression.and_then(|e| self.entries_of(e))
    }

    /// The size of a node, from the expression or from the schema.
    fn size_of(&self, node: &Node<'_>) -> Range {
        node.size
            .or_else(|| self.declared_size(&node.path))
            .unwrap_or(Range::UNKNOWN)
    }

    /// CEL's own functions that do more than one thing.
    fn standard(
        &mut self,
        e: &IdedExpr,
        overload: &str,
        target: Option<&Node<'_>>,
        args: &[Node<'_>],
    ) -> Option<Call> {
        Some(match (overload, target, args) {
            ("string_format", Some(format), _) => known(format).scaled(PER_CHARACTER).into(),
            ("string_to_bytes", _, [text]) => {
                let size = known(text);
                let max = size.max.wrapping_mul(4);
                sized(size.scaled(PER_CHARACTER), Range { min: size.min, max })
            }
            ("bytes_to_string", _, [bytes]) => {
                let size = known(bytes);
                let min = size.min / 4;
                sized(size.scaled(PER_CHARACTER), Range { min, max: size.max })
            }
            ("strings_quote", _, [text]) => {
                let size = known(text);
                let quoted = Range {
                    min: size.min.wrapping_add(2),
                    max: size.max.wrapping_mul(2).wrapping_add(2),
                };
                sized(size.scaled(PER_CHARACTER), quoted)
            }
            ("starts_with_string" | "ends_with_string", _, [part]) => {
                known(part).scaled(PER_CHARACTER).into()
            }
            ("in_list", _, [_, list]) => known(list).into(),
            ("matches_string", Some(text), [pattern]) => matching(known(text), known(pattern)).into(),
            ("contains_string", Some(text), [part]) => {
                (known(text).scaled(PER_CHARACTER) * known(part).scaled(PER_CHARACTER)).into()
            }
            ("add_string" | "add_bytes" | "add_list", _, [left, right]) => {
                let size = known(left) + known(right);
                if let Some(both) = joined(self.entries_in(left), self.entries_in(right)) {
                    self.entries.insert(e.id, both);
                }
                match overload {
                    "add_list" => sized(Range::fixed(1), size),
                    _ => sized(size.scaled(PER_CHARACTER), size),
                }
            }
            (
                "less_string"
                | "greater_string"
                | "less_equals_string"
                | "greater_equals_string"
                | "less_bytes"
                | "greater_bytes"
                | "less_equals_bytes"
                | "greater_equals_bytes"
                | "equals"
                | "not_equals",
                _,
                [left, right],
            ) => {
                let max = known(left).max.min(known(right).max);
                let min = u64::from(max > 0);
                Range { min, max }.scaled(PER_CHARACTER).into()
            }
            _ => return None,
        })
    }

    /// CEL's extensions on lists.
    fn extension(&mut self, overload: &str, target: Option<&Node<'_>>, args: &[Node<'_>]) -> Option<Call> {
        let listed = |factor: f64, size: Range| sized(size.scaled(factor) + Range::fixed(1) + LIST, size);
        Some(match (overload, target, args) {
            ("list_sets_contains_list" | "list_sets_intersects_list", _, [a, b]) => {
                (self.size_of(a) * self.size_of(b) + Range::fixed(1)).into()
            }
            ("list_sets_equivalent_list", _, [a, b]) => {
                ((self.size_of(a) * self.size_of(b)).scaled(2.0) + Range::fixed(1)).into()
            }
            ("list_slice", Some(list), [from, to]) => {
                let size = self.size_of(list);
                let (from, to) = (
                    literal_int(from).unwrap_or(0),
                    literal_int(to).unwrap_or(size.max),
                );
                listed(1.0, Range::fixed(to.wrapping_sub(from)))
            }
            ("list_flatten", Some(list), []) => listed(1.0, self.size_of(list)),
            ("list_flatten_int", Some(list), [depth]) => {
                listed(literal_int(depth).unwrap_or(u64::MAX) as f64, self.size_of(list))
            }
            ("lists_range", _, [n]) => listed(1.0, Range::fixed(literal_int(n).unwrap_or(u64::MAX))),
            ("list_reverse", Some(list), []) => listed(1.0, self.size_of(list)),
            ("list_distinct", Some(list), []) => {
                let size = self.size_of(list);
                listed(2.0, size * size)
            }
            (overload, Some(list), _) if overload.ends_with("_sort") => sorting(overload, self.size_of(list)),
            (overload, Some(_), [keys]) if overload.ends_with("_sortByAssociatedKeys") => {
                sorting(overload, self.size_of(keys))
            }
            _ => return None,
        })
    }

    /// Kubernetes' libraries.
    fn library(
        &mut self,
        function: &str,
        overload: &str,
        target: Option<&Node<'_>>,
        args: &[Node<'_>],
    ) -> Option<Call> {
        let one = || Range::fixed(1);
        Some(match (function, target, args) {
            ("check", ..) => ACCESS_CHECK.into(),
            (
                "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name"
                | "allowed" | "reason" | "error" | "errored",
                ..,
            ) => one().into(),
            ("fieldSelector" | "labelSelector", _, [selector]) => {
                let length = self.size_of(selector);
                let requirements = length.scaled(REQUIREMENTS_PER_CHARACTER).scaled(PER_REQUIREMENT);
                (LIST + length.scaled(PER_CHARACTER) + requirements).into()
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(of), _) => {
                let size = self.size_of(of);
                match self.items(of) {
                    Some(item) => {
                        let mut each = one();
                        if matches!(item.of, Type::String | Type::Bytes) {
                            each = each + self.size_of(&item).scaled(PER_CHARACTER);
                        }
                        (size * each).into()
                    }
                    None => size.scaled(PER_CHARACTER).into(),
                }
            }
            ("url" | "jsonpatch.escapeKey", _, [text]) => {
                let size = self.size_of(text);
                sized(size.scaled(PER_CHARACTER), size)
            }
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => {
                let size = self.size_of(text);
                sized(size.scaled(PER_CHARACTER), size)
            }
            ("replace", Some(text), [from, to, ..]) => {
                let size = self.size_of(text);
                let replaced = replaced(size, self.size_of(from), self.size_of(to));
                sized(size.scaled(2.0 * PER_CHARACTER), replaced)
            }
            ("split", Some(text), _) => {
                let size = self.size_of(text);
                let max = args.get(1).and_then(literal_int).unwrap_or(size.max);
                sized(size.scaled(2.0 * PER_CHARACTER), Range::upto(max))
            }
            ("join", Some(list), _) => {
                let count = self.size_of(list);
                let mut size = match self.items(list) {
                    Some(item) => count * self.size_of(&item),
                    None => Range::default(),
                };
                if let Some(between) = args.first() {
                    let separators = Range {
                        min: count.min.saturating_sub(1),
                        max: count.max.saturating_sub(1),
                    };
                    size = size + self.size_of(between) * separators;
                }
                sized(size.scaled(PER_CHARACTER), size)
            }
            ("find" | "findAll", Some(text), [pattern, ..]) => {
                let size = self.size_of(text);
                sized(matching(size, self.size_of(pattern)), Range::upto(size.max))
            }
            ("ip", ..) if overload == "cidr_ip" => one().into(),
            (
                "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver",
                _,
                [text, ..],
            ) => self.size_of(text).scaled(PER_CHARACTER).into(),
            ("ip.isCanonical", _, [text]) => self.size_of(text).scaled(2.0 * PER_CHARACTER).into(),
            (
                "masked"
                | "prefixLength"
                | "family"
                | "isUnspecified"
                | "isLoopback"
                | "isLinkLocalMulticast"
                | "isLinkLocalUnicast"
                | "isGlobalUnicast",
                ..,
            ) => one().into(),
            ("containsIP" | "containsCIDR", _, [other]) => {
                let mut cost = (ADDRESS + ADDRESS).scaled(PER_CHARACTER);
                if function == "containsCIDR" {
                    cost = cost + ADDRESS.scaled(PER_CHARACTER) + one();
                }
                if overload.ends_with("_string") {
                    cost = cost + self.size_of(other).scaled(PER_CHARACTER);
                }
                cost.into()
            }
            ("validate", _, [text]) => {
                let walked = self.size_of(text).scaled(PER_CHARACTER);
                walked.scaled(FORMAT_PATTERN_MAX * PER_PATTERN_CHARACTER).into()
            }
            ("format.named", ..) => one().into(),
            (
                "sign" | "asInteger" | "isInteger" | "asApproximateFloat" | "isGreaterThan" | "isLessThan"
                | "compareTo" | "add" | "sub" | "major" | "minor" | "patch",
                ..,
            ) => one().into(),
            ("getScheme" | "getHostname" | "getHost" | "getPort" | "getEscapedPath" | "getQuery", ..) => {
                one().into()
            }
            ("_==_", _, [left, right]) if left.of == right.of => equality(left, right)?.into(),
            _ => return None,
        })
    }

    /// The items of a list as an argument.
    fn items<'e>(&self, list: &Node<'_>) -> Option<Node<'e>> {
        let of = match &list.of {
            Type::List(of) => (**of).clone(),
            // The first variable of a map is its key.
            Type::Map(key, _) => (**key).clone(),
            other => other.inside_optional()?.clone(),
        };
        let mut path = list.path.clone();
        if !path.is_empty() {
            path.push("@items".into());
        }
        Some(Node {
            path,
            of,
            expression: None,
            size: None,
        })
    }
}

fn known(node: &Node<'_>) -> Range {
    node.size.unwrap_or(Range::UNKNOWN)
}

fn joined(a: Option<Entries>, b: Option<Entries>) -> Option<Entries> {
    let (a, b) = (a?, b?);
    Some(Entries {
        is_list: a.is_list,
        key: a.key.union(b.key),
        value: a.value.union(b.value),
    })
}

fn literal_int(node: &Node<'_>) -> Option<u64> {
    match node.expression.map(|e| &e.expr) {
        Some(Expr::Literal(LiteralValue::Int(n))) => Some(*n.inner() as u64),
        _ => None,
    }
}

/// A string matched against a regular expression; an empty one has a cost, too.
fn matching(text: Range, pattern: Range) -> Range {
    (text + Range::fixed(1)).scaled(PER_CHARACTER) * pattern.scaled(PER_PATTERN_CHARACTER)
}

/// Each item is compared with each, twice.
fn sorting(overload: &str, size: Range) -> Call {
    let walked = overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
    let factor = if walked { 2.0 + PER_CHARACTER } else { 2.0 };
    let compared = size * size;
    sized(compared.scaled(factor) + Range::fixed(1) + LIST, compared)
}

/// How long a text is after its replacements.
fn replaced(text: Range, from: Range, to: Range) -> Range {
    let (mut count, mut kept) = (Range::default(), Range::default());
    // The longest: an empty text matches around every character; else the shortest is replaced by the longest.
    if from.min == 0 {
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if to.max <= from.min {
        kept.max = text.max;
    } else {
        count.max = (text.max as f64 / from.min as f64).ceil() as u64;
    }
    // And the shortest.
    if from.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if from.max <= to.min {
        kept.min = text.min;
    } else {
        count.min = (text.min as f64 / from.max as f64).ceil() as u64;
    }
    count * to + kept
}

/// Values of Kubernetes' types are compared in one step, or in as many as they are long.
fn equality(left: &Node<'_>, right: &Node<'_>) -> Option<Range> {
    match &left.of {
        Type::Opaque(name, _) if matches!(&**name, "net.IP" | "net.CIDR") => Some(Range::fixed(1)),
        Type::Struct(name) => match &**name {
            "kubernetes.NamedFormat" => Some(
                Range {
                    min: 1,
                    max: FORMAT_MAX,
                }
                .scaled(PER_CHARACTER),
            ),
            "kubernetes.URL" => {
                let max = right.size.map_or(1, |size| size.max);
                Some(Range { min: 1, max }.scaled(PER_CHARACTER))
            }
            "kubernetes.Quantity" | "kubernetes.Semver" => Some(Range::fixed(1)),
            name if name.starts_with("kubernetes.authorization.") => Some(Range::fixed(1)),
            _ => None,
        },
        _ => None,
    }
}
