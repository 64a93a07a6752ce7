//! A size or a cost as a range from a minimum to a maximum. It saturates at the largest number
//! that can.

use std::ops::{Add, Mul};

/// The least and the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub const UNKNOWN: Range = Range {
        min: 0,
        max: u64::MAX,
    };

    pub const fn fixed(n: u64) -> Range {
        Range { min: n, max: n }
    }

    pub const fn upto(max: u64) -> Range {
        Range { min: 0, max }
    }

    /// The range of no values: the union with another one is the other. `really`: there will be no values.
    pub const fn none(really: bool) -> Range {
        Range {
            min: if really { 0 } else { u64::MAX },
            max: 0,
        }
    }

    pub fn union(self, other: Range) -> Range {
        Range {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// Times a factor, rounded up.
    pub fn scaled(self, by: f64) -> Range {
        Range {
            min: scaled(self.min, by),
            max: scaled(self.max, by),
        }
    }
}

impl Add for Range {
    type Output = Range;
    fn add(self, other: Range) -> Range {
        Range {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }
}

impl Mul for Range {
    type Output = Range;
    fn mul(self, other: Range) -> Range {
        Range {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }
}

/// A conversion from a float saturates.
fn scaled(n: u64, by: f64) -> u64 {
    let n = n as f64;
    if n > 0.0 && by > 0.0 && n > u64::MAX as f64 / by {
        return u64::MAX;
    }
    (n * by).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_saturate() {
        let most = Range::fixed(u64::MAX);
        assert_eq!(most + Range::fixed(1), most);
        assert_eq!(most * Range::fixed(2), most);
        assert_eq!(most.scaled(2.0), most);
        assert_eq!(Range::upto(11).scaled(0.1), Range { min: 0, max: 2 });
        assert_eq!(Range::none(false).union(Range::fixed(3)), Range::fixed(3));
    }
}
