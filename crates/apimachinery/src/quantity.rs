//! Resource quantities: `100m`, `1Gi`, `2e3`, with exact arithmetic and Kubernetes' canonical form.
//!
//! A quantity is an integral number of nanos and the notation it was written in. Kubernetes rounds away from zero to
//! nanos too, so nothing is lost, up to ±1.7e29; beyond that values are held at that bound.

use std::cmp::Ordering;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;

/// Why a text is no quantity, worded as apimachinery's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl From<QuantityError> for String {
    /// Its text, where the message of a field's error is expected.
    fn from(error: QuantityError) -> Self {
        error.to_string()
    }
}

/// Nanos in one.
const ONE: i128 = 1_000_000_000;
/// Nanos in one thousandth.
const MILLI: i128 = 1_000_000;
/// Binary quantities end at 2^63 - 1.
const BINARY_MAX: i128 = i64::MAX as i128 * ONE;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// From 10^-9 in steps of 10^3.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// How a quantity is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
}

/// An exact quantity. Compared by value: `1024Mi` equals `1Gi`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Digits before the point, without leading zeros, at least one.
    integer: &'a str,
    /// Digits after the point.
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let negative = text.starts_with('-');
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let (integer, rest) = rest.split_at(digits(rest));
        let integer = match integer.trim_start_matches('0') {
            "" => "0",
            significant => significant,
        };
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|c| b"eEinumkKMGTP".contains(c)).count();
        let exponent = suffix[letters..]
            .strip_prefix(['-', '+'])
            .unwrap_or(&suffix[letters..]);
        if exponent.bytes().any(|c| !c.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        Ok(Parts {
            negative,
            integer,
            fraction,
            suffix,
        })
    }
}

impl Parts<'_> {
    /// All digits as one number, where it is an `i64`.
    fn number(&self) -> Option<i64> {
        let digits = self.integer.bytes().chain(self.fraction.bytes());
        digits
            .map(|c| i64::from(c - b'0'))
            .try_fold(0_i64, |n, digit| n.checked_mul(10)?.checked_add(digit))
    }

    /// Nanos, rounded up and capped, however many digits there are.
    fn scaled(&self, base: u32, exponent: i64) -> i128 {
        let digits = [self.integer, self.fraction].concat();
        let fraction = self.fraction.len() as i64;
        if base == 10 {
            return scaled(&digits, exponent.saturating_add(9).saturating_sub(fraction));
        }
        // At most 2^60: multiply the digits first, so that rounding happens once.
        let factor = 1_i128 << exponent;
        let number = digits.trim_start_matches('0').parse::<i128>().ok();
        match number.and_then(|d| d.checked_mul(factor)) {
            Some(product) => scaled(&product.to_string(), 9 - fraction),
            None if digits.bytes().all(|c| c == b'0') => 0,
            None => scaled(&digits, 9 - fraction).saturating_mul(factor),
        }
    }
}

/// `number` × `base`^`exponent` without its last `fraction` digits, in nanos rounded up; `None` where that takes more than
/// an `i128` on the way. Almost all quantities go this way.
fn scaled_few(number: i64, base: u32, exponent: i64, fraction: i64) -> Option<i128> {
    let number = i128::from(number);
    let (number, tens) = match base {
        10 => (number, exponent.checked_add(9)?.checked_sub(fraction)?),
        _ => (number << exponent, 9 - fraction),
    };
    let factor = 10_i128.checked_pow(u32::try_from(tens.unsigned_abs()).ok()?)?;
    match tens >= 0 {
        true => number.checked_mul(factor),
        false => Some(number / factor + i128::from(number % factor != 0)),
    }
}

/// A suffix's base (2 or 10), exponent and notation.
fn suffix(suffix: &str) -> Result<(u32, i64, Notation), QuantityError> {
    if let Some(i) = DECIMAL.iter().position(|s| *s == suffix) {
        return Ok((10, i as i64 * 3 - 9, Notation::DecimalSi));
    }
    if let Some(i) = BINARY.iter().position(|s| *s == suffix) {
        return Ok((2, i as i64 * 10, Notation::BinarySi));
    }
    match suffix.strip_prefix(['e', 'E']) {
        Some(exponent) if !exponent.is_empty() => match exponent.parse() {
            Ok(exponent) => Ok((10, exponent, Notation::DecimalExponent)),
            Err(_) => Err(QuantityError::Suffix),
        },
        _ => Err(QuantityError::Suffix),
    }
}

/// `digits` × 10^`exponent` rounded up to an integer, capped.
fn scaled(digits: &str, exponent: i64) -> i128 {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // An i128 has at most 39 digits: digits further left exceed the cap, digits further right only round up.
    let integer_digits = exponent.saturating_add(digits.len() as i64);
    if integer_digits > 39 {
        return i128::MAX;
    }
    if integer_digits <= 0 {
        return 1;
    }
    let kept = digits.len().min(integer_digits as usize);
    let zeros = integer_digits as usize - kept;
    let number = [&digits[..kept], &"0".repeat(zeros)].concat();
    let more = digits[kept..].bytes().any(|c| c != b'0');
    number
        .parse::<i128>()
        .map_or(i128::MAX, |n| n.saturating_add(i128::from(more)))
}

impl Quantity {
    /// As Kubernetes parses it: a number with a suffix such as `m` or `Gi`, or with an exponent.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        Ok(Self::parse_parts(text)?.0)
    }

    /// The quantity, and whether Kubernetes keeps its text as it was given.
    fn parse_parts(text: &str) -> Result<(Self, bool), QuantityError> {
        let parts = Parts::split(text)?;
        let (base, exponent, notation) = suffix(parts.suffix)?;
        let digits = parts.integer.len() as i64 + parts.fraction.len() as i64;
        let fraction = parts.fraction.len() as i64;
        let number = parts.number();
        let few = number.and_then(|n| scaled_few(n, base, exponent, fraction));
        let mut nanos = few.unwrap_or_else(|| parts.scaled(base, exponent));
        if notation == Notation::BinarySi {
            nanos = nanos.min(BINARY_MAX);
        }
        // Short texts that are nearly canonical are kept; this decides how "1.500" is shown.
        let scale = exponent.saturating_sub(fraction);
        let kept = match (notation, number) {
            (_, None) => false,
            (Notation::BinarySi, Some(n)) => {
                let room = 15 - digits - exponent * 3 / 10 - 1;
                fraction == 0 && room >= 0 && n & 7 != 0
            }
            (_, Some(n)) => {
                let thousands = digits >= 3 && n % 1000 == 0;
                18 - digits >= 0
                    && scale >= -9
                    && scale % 3 == 0
                    && !thousands
                    && !parts.integer.starts_with('0')
            }
        };
        let nanos = if parts.negative { -nanos } else { nanos };
        let small_binary = notation == Notation::BinarySi && nanos > 0 && nanos < ONE;
        let notation = if small_binary {
            Notation::DecimalSi
        } else {
            notation
        };
        Ok((Quantity { nanos, notation }, kept || text == "0"))
    }

    /// The quantity of a typed object's field.
    pub fn of(wire: &Wire) -> Result<Self, QuantityError> {
        Self::parse(wire.0.trim())
    }

    /// The quantity of an integer.
    pub fn from_value(value: i64, notation: Notation) -> Self {
        Quantity {
            nanos: i128::from(value) * ONE,
            notation,
        }
    }

    /// A number of thousandths.
    pub fn from_milli(milli: i64, notation: Notation) -> Self {
        Quantity {
            nanos: i128::from(milli) * MILLI,
            notation,
        }
    }

    /// Rounded up, as Kubernetes' `Value()`.
    pub fn value(&self) -> i64 {
        self.in_units_of(ONE)
    }

    /// Rounded up, as Kubernetes' `MilliValue()`.
    pub fn milli_value(&self) -> i64 {
        self.in_units_of(MILLI)
    }

    /// The nearest floating-point number, as Kubernetes' `AsApproximateFloat64()`.
    pub fn approximate(&self) -> f64 {
        self.nanos as f64 / ONE as f64
    }

    /// Rounded away from zero, capped.
    fn in_units_of(&self, unit: i128) -> i64 {
        let rounded = round_away(self.nanos, unit);
        i64::try_from(rounded / unit).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// Rounded away from zero to thousandths: the finest that resource lists keep.
    pub fn round_up_to_milli(self) -> Self {
        Quantity {
            nanos: round_away(self.nanos, MILLI),
            ..self
        }
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// The notation it is written in.
    pub fn notation(&self) -> Notation {
        self.notation
    }

    /// For a typed object's field, in canonical form.
    pub fn to_wire(self) -> Wire {
        Wire(self.to_string())
    }
}

/// To the next multiple of `unit`, away from zero.
fn round_away(nanos: i128, unit: i128) -> i128 {
    let rest = nanos % unit;
    if rest == 0 {
        nanos
    } else {
        (nanos - rest).saturating_add(unit * rest.signum())
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// The notation of a sum is the left side's, unless that is zero.
impl std::ops::Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Quantity {
            nanos: self.nanos.saturating_add(other.nanos),
            notation: if self.is_zero() {
                other.notation
            } else {
                self.notation
            },
        }
    }
}

impl std::ops::AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Quantity {
            nanos: self.nanos.saturating_sub(other.nanos),
            notation: if self.is_zero() {
                other.notation
            } else {
                self.notation
            },
        }
    }
}

impl std::ops::SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// The canonical form: no fraction, the largest suffix that loses nothing.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let kibi = 1024 * ONE.unsigned_abs();
        if self.notation == Notation::BinarySi && self.nanos % ONE == 0 && self.nanos.unsigned_abs() >= kibi {
            let mut number = self.nanos / ONE;
            let mut step = 0;
            while number % 1024 == 0 && step + 1 < BINARY.len() {
                number /= 1024;
                step += 1;
            }
            return write!(f, "{number}{}", BINARY[step]);
        }
        let mut number = self.nanos;
        let mut exponent = -9;
        while number % 1000 == 0 {
            number /= 1000;
            exponent += 3;
        }
        let step = usize::try_from((exponent + 9) / 3).unwrap_or(usize::MAX);
        match (self.notation, DECIMAL.get(step)) {
            (Notation::DecimalExponent, _) if exponent == 0 => write!(f, "{number}"),
            (Notation::DecimalExponent, _) | (_, None) => write!(f, "{number}e{exponent}"),
            (_, Some(suffix)) => write!(f, "{number}{suffix}"),
        }
    }
}

/// A quantity's text as Kubernetes returns it: canonical, unless it was short and nearly canonical.
pub fn canonical_text(text: &str) -> Result<String, QuantityError> {
    let (quantity, kept) = Quantity::parse_parts(text)?;
    Ok(if kept {
        text.to_string()
    } else {
        quantity.to_string()
    })
}

/// Rewrites a quantity in its canonical form (`1024Mi` becomes `1Gi`); one that does not parse stays as it is
/// (a decoded object has none).
pub fn canonicalize(quantity: &mut Wire) {
    if let Ok(text) = canonical_text(quantity.0.trim()) {
        quantity.0 = text;
    }
}

/// Rewrites an entry of a resource list: canonical and rounded up to thousandths.
pub fn canonicalize_resource(quantity: &mut Wire) {
    if let Ok(q) = Quantity::of(quantity) {
        let rounded = q.round_up_to_milli();
        if rounded == q {
            canonicalize(quantity);
        } else {
            *quantity = rounded.to_wire();
        }
    }
}

#[cfg(test)]
mod tests;
