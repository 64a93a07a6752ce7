//! The runtime cost of calls that depends on sizes.

use crate::check::cost::{PER_CHARACTER, PER_PATTERN_CHARACTER};

/// How the cost follows from the sizes of the arguments or of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Price {
    /// Two values are compared, to the end of the shorter one.
    Compared,
    /// A string is traversed once, or twice.
    Walked,
    WalkedTwice,
    /// Every item is visited.
    Items,
    /// A string is searched in another.
    Contained,
    /// A string is matched against a regular expression.
    Matched,
    /// Every item of one list is compared with every item of another, once or twice.
    Product,
    ProductTwice,
    /// Every item is compared with every item.
    Square,
    /// The result is traversed once, or twice.
    Made,
    MadeTwice,
    /// A string is matched against the regular expression of a named format.
    Validated,
}

const ALL: [Price; 12] = [
    Price::Compared,
    Price::Walked,
    Price::WalkedTwice,
    Price::Items,
    Price::Contained,
    Price::Matched,
    Price::Product,
    Price::ProductTwice,
    Price::Square,
    Price::Made,
    Price::MadeTwice,
    Price::Validated,
];

/// The cost of a list that is made from another.
const LIST_MADE: u64 = 11;
/// The longest regular expression of a named format.
const FORMAT_PATTERN_MAX: u64 = 128;

fn walked(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

fn matched(text: u64, pattern: u64) -> u64 {
    walked(text.saturating_add(1), PER_CHARACTER).saturating_mul(walked(pattern, PER_PATTERN_CHARACTER))
}

impl Price {
    /// Its number in rewritten expressions.
    pub fn number(self) -> i64 {
        ALL.iter()
            .position(|p| *p == self)
            .and_then(|at| i64::try_from(at).ok())
            .unwrap_or_default()
    }

    /// `a`, `b`: the sizes of the arguments; `made`: the size of the result, if it is a string.
    pub fn cost(number: u64, a: u64, b: u64, made: Option<u64>) -> u64 {
        let price = usize::try_from(number).ok().and_then(|at| ALL.get(at));
        let made = made.map_or(1, |size| walked(size, PER_CHARACTER));
        match price {
            None => 1,
            Some(Price::Compared) => walked(a.min(b), PER_CHARACTER),
            Some(Price::Walked) => walked(a, PER_CHARACTER),
            Some(Price::WalkedTwice) => walked(a, 2.0 * PER_CHARACTER),
            Some(Price::Items) => a,
            Some(Price::Contained) => walked(a, PER_CHARACTER).saturating_mul(walked(b, PER_CHARACTER)),
            Some(Price::Matched) => matched(a, b),
            Some(Price::Product) => a.saturating_mul(b).saturating_add(1),
            Some(Price::ProductTwice) => a.saturating_mul(b).saturating_mul(2).saturating_add(1),
            Some(Price::Square) => a.saturating_mul(a).saturating_mul(2).saturating_add(LIST_MADE),
            Some(Price::Made) => made,
            Some(Price::MadeTwice) => made.saturating_mul(2),
            Some(Price::Validated) => matched(a, FORMAT_PATTERN_MAX),
        }
    }

    /// The cost model of a function, and which of its arguments count, the target first; `None` where the cost is always
    /// the same.
    pub fn of(function: &str) -> Option<(Price, &'static [usize])> {
        Some(match function {
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => (Price::Compared, &[0, 1]),
            "_+_" => (Price::Made, &[]),
            "@in" => (Price::Items, &[1]),
            "startsWith"
            | "endsWith"
            | "format"
            | "bytes"
            | "strings.quote"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "url"
            | "isURL"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "ip"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver" => (Price::Walked, &[0]),
            "replace" | "split" | "ip.isCanonical" => (Price::WalkedTwice, &[0]),
            "contains" => (Price::Contained, &[0, 1]),
            "matches" | "find" | "findAll" => (Price::Matched, &[0, 1]),
            "join" => (Price::MadeTwice, &[]),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "reverse" | "slice"
            | "flatten" => (Price::Items, &[0]),
            "sets.contains" | "sets.intersects" => (Price::Product, &[0, 1]),
            "sets.equivalent" => (Price::ProductTwice, &[0, 1]),
            "sort" | "distinct" | "@sortByAssociatedKeys" => (Price::Square, &[0]),
            "validate" => (Price::Validated, &[1]),
            _ => return None,
        })
    }

    /// The most that a comparison with a literal of this size costs, so that no size has to be measured.
    pub fn with_literal(self, size: usize) -> Option<u64> {
        (self == Price::Compared).then(|| walked(size as u64, PER_CHARACTER))
    }
}
