//! The checks that many kinds share, with Kubernetes' messages: names, labels, selectors, ports, addresses, numbers.
//!
//! Each takes a value and its path and adds its errors to an [`ErrorList`]; none needs the whole object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
pub use knarr_api::kinds::text;
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::field::{ErrorList, Path, Shown};
use knarr_apimachinery::{codec, names};
use serde::Serialize;

use knarr_apimachinery::meta;

use crate::facts;

/// Protocols of ports, sorted as most fields list them.
pub const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub const NOT_GREATER_THAN_ZERO: &str = "must be greater than 0";
pub const IMMUTABLE: &str = "field is immutable";

/// A value that error messages show as JSON, as Kubernetes shows structs, lists and maps.
pub struct Json(pub String);

impl Shown for Json {
    fn shown(&self) -> String {
        self.0.clone()
    }
}

/// `value` as JSON in the order of its Rust type's fields.
pub fn json(value: &(impl Serialize + ?Sized)) -> Json {
    Json(codec::to_plain_string(value).unwrap_or_else(|e| format!("<{e}>")))
}

/// A list as Go marshals it: an empty one is `null`.
pub fn json_list<T: Serialize>(values: &[T]) -> Json {
    if values.is_empty() {
        Json("null".into())
    } else {
        json(values)
    }
}

/// A label selector as Go marshals it: `matchLabels` before `matchExpressions`.
pub fn json_selector(selector: &LabelSelector) -> String {
    let mut parts = Vec::new();
    if let Some(labels) = selector.match_labels.as_ref().filter(|l| !l.is_empty()) {
        parts.push(format!("\"matchLabels\":{}", json(labels).0));
    }
    if let Some(expressions) = selector.match_expressions.as_ref().filter(|l| !l.is_empty()) {
        let shown: Vec<String> = expressions
            .iter()
            .map(|e| {
                let mut text = format!(
                    "{{\"key\":{},\"operator\":{}",
                    json(&e.key).0,
                    json(&e.operator).0
                );
                if let Some(values) = e.values.as_ref().filter(|v| !v.is_empty()) {
                    text += &format!(",\"values\":{}", json(values).0);
                }
                text + "}"
            })
            .collect();
        parts.push(format!("\"matchExpressions\":[{}]", shown.join(",")));
    }
    format!("{{{}}}", parts.join(","))
}

pub fn dns_label(errors: &mut ErrorList, path: &Path, value: &str) {
    errors.all_invalid(path, value, names::dns1123_label(value));
}

pub fn dns_subdomain(errors: &mut ErrorList, path: &Path, value: &str) {
    errors.all_invalid(path, value, names::dns1123_subdomain(value));
}

/// Checks a qualified name (`name` or `prefix/name`): a label key, an application protocol, a load balancer class.
pub fn qualified_name(errors: &mut ErrorList, path: &Path, value: &str) {
    errors.all_invalid(path, value, names::qualified_name(value));
}

/// A finalizer without a domain must be a standard one.
pub fn standard_finalizer(errors: &mut ErrorList, path: &Path, name: &str) {
    const STANDARD: &[&str] = &["kubernetes", "orphan", "foregroundDeletion"];
    if !name.contains('/') && !STANDARD.contains(&name) {
        errors.invalid(
            path,
            name,
            "name is neither a standard finalizer name nor is it fully qualified",
        );
    }
}

/// Checks the keys and values of labels (or of a map selector).
pub fn labels(errors: &mut ErrorList, path: &Path, labels: &BTreeMap<String, String>) {
    errors.extend(meta::labels(Some(labels), path));
}

/// Checks a meta/v1 LabelSelector.
pub fn label_selector(errors: &mut ErrorList, path: &Path, selector: &LabelSelector) {
    errors.extend(meta::label_selector(Some(selector), path));
}

pub fn not_negative<T: Shown + Copy + Into<i64>>(errors: &mut ErrorList, path: &Path, value: T) {
    if value.into() < 0 {
        errors.invalid(path, value, NOT_NEGATIVE);
    }
}

pub fn port_number(errors: &mut ErrorList, path: &Path, port: i32) {
    errors.all_invalid(path, port, names::port_number(port.into()));
}

/// Checks a port number or the name of a container port.
pub fn port_number_or_name(errors: &mut ErrorList, path: &Path, port: &IntOrString) {
    match port {
        IntOrString::Int(number) => port_number(errors, path, *number),
        IntOrString::String(name) => errors.all_invalid(path, name.as_str(), names::port_name(name)),
    }
}

/// Checks a count or a percentage; neither may be negative.
pub fn not_negative_or_percent(errors: &mut ErrorList, path: &Path, value: &IntOrString) {
    match value {
        IntOrString::Int(number) => not_negative(errors, path, *number),
        IntOrString::String(text) => {
            errors.all_invalid(path, text.as_str(), names::percent(text));
        }
    }
}

/// The number of a percentage: 25 of `25%`.
pub fn percent(text: &str) -> Option<i32> {
    let digits = text.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(i32::MAX))
}

/// Rejects percentages over 100 (`IsNotMoreThan100Percent`).
pub fn not_more_than_100_percent(errors: &mut ErrorList, path: &Path, value: &IntOrString) {
    if let IntOrString::String(text) = value
        && percent(text).is_some_and(|p| p > 100)
    {
        errors.invalid(path, text, "must not be greater than 100%");
    }
}

/// The count, or the number before the percent sign.
pub fn count_or_percent(value: &IntOrString) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => percent(text).unwrap_or(0),
    }
}

/// Checks an IP address: no leading zeros, no IPv4-mapped IPv6 address. Values of the old object (`existing`) may stay as
/// they are.
pub fn ip(errors: &mut ErrorList, path: &Path, value: &str, existing: &[String]) -> bool {
    if existing.iter().any(|e| e == value) {
        return true;
    }
    let message = match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return true,
        Err(_) if without_leading_zeros(value).parse::<IpAddr>().is_ok() => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    errors.invalid(path, value, message);
    false
}

/// An address without the leading zeros in its IPv4 octets, which Go's older parser ignored.
fn without_leading_zeros(value: &str) -> String {
    let plain = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_string(),
        rest => rest.to_string(),
    };
    let (before, last) = value.rsplit_once(':').map_or(("", value), |(b, l)| (b, l));
    let last: Vec<String> = last.split('.').map(plain).collect();
    match before {
        "" if !value.starts_with(':') => last.join("."),
        before => format!("{before}:{}", last.join(".")),
    }
}

/// The messages about an IP address that must also be in canonical form.
pub fn canonical_ip(value: &str) -> Vec<String> {
    let mut errors = ErrorList::new();
    if ip(&mut errors, &Path::default(), value, &[])
        && let Ok(address) = value.parse::<IpAddr>()
        && address.to_string() != value
    {
        return vec![format!("must be in canonical form ({:?})", address.to_string())];
    }
    errors.iter().map(|e| e.detail.clone()).collect()
}

/// Checks an endpoint's address: not unspecified, loopback or link-local.
pub fn endpoint_ip(errors: &mut ErrorList, path: &Path, value: &str) {
    let Ok(address) = value.parse::<IpAddr>() else {
        return errors.invalid(path, value, "must be a valid IP address");
    };
    if address.is_unspecified() {
        errors.invalid(path, value, format!("may not be unspecified ({value})"));
    }
    if address.is_loopback() {
        errors.invalid(
            path,
            value,
            "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        );
    }
    let (link_local, multicast) = match address {
        IpAddr::V4(a) => (a.is_link_local(), a.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(a) => (a.is_unicast_link_local(), a.segments()[0] & 0xff0f == 0xff02),
    };
    if link_local {
        errors.invalid(
            path,
            value,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        );
    }
    if multicast {
        errors.invalid(
            path,
            value,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        );
    }
}

/// Checks a CIDR: no bits beyond the prefix length. Values of the old object (`existing`) may stay as they are.
pub fn cidr(errors: &mut ErrorList, path: &Path, value: &str, existing: &[String]) {
    if existing.iter().any(|e| e == value) {
        return;
    }
    let message = match (Cidr::parse(value), value.split_once('/')) {
        (Some(range), _) if range.is_ipv4_mapped() => "must not have an IPv4-mapped IPv6 address",
        (Some(range), _) if range.has_host_bits() => "must not have bits set beyond the prefix length",
        (Some(_), _) => return,
        (None, Some((address, length)))
            if Cidr::parse(&format!(
                "{}/{}",
                without_leading_zeros(address),
                without_leading_zeros(length)
            ))
            .is_some() =>
        {
            "must not have leading 0s in IP or prefix length"
        }
        (None, _) => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
    };
    errors.invalid(path, value, message);
}

/// [`cidr`], which must also be in canonical form.
pub fn canonical_cidr(errors: &mut ErrorList, path: &Path, value: &str) {
    let before = errors.len();
    cidr(errors, path, value, &[]);
    if errors.len() == before
        && let Some(range) = Cidr::parse(value)
        && range.to_string() != value
    {
        let detail = format!("must be in canonical form ({:?})", range.to_string());
        errors.invalid(path, value, detail);
    }
}

/// Checks that a field did not change.
pub fn immutable<T: PartialEq + Serialize>(errors: &mut ErrorList, path: &Path, new: &T, old: &T) {
    if new != old {
        errors.invalid(path, json(new), IMMUTABLE);
    }
}

/// Checks that a selector did not change.
pub fn immutable_selector(errors: &mut ErrorList, path: &Path, new: &LabelSelector, old: &LabelSelector) {
    if new != old {
        let shown = match *new == LabelSelector::default() {
            true => "null".into(),
            false => json_selector(new),
        };
        errors.invalid(path, Json(shown), IMMUTABLE);
    }
}

/// Sets `metadata.generation` to that of the old object, incremented if `changed`.
pub fn update_generation(meta: &mut ObjectMeta, old: &ObjectMeta, changed: bool) {
    meta.generation = if changed {
        Some(old.generation.unwrap_or(0) + 1)
    } else {
        old.generation
    };
}

/// Makes an empty list or map absent, as Go's `omitempty` does.
pub fn drop_empty<T: Default + PartialEq>(value: &mut Option<T>) {
    if value.as_ref().is_some_and(|v| *v == T::default()) {
        *value = None;
    }
}

/// The preparation for the two usual parts of an object: an update of the main resource keeps `status` and counts changes of
/// `spec` in `metadata.generation`; an update of the `status` subresource keeps everything else.
macro_rules! spec_and_status {
    () => {
        fn prepare_for_create(&mut self) {
            self.status = Some(Default::default());
            self.metadata.generation = Some(1);
        }

        fn prepare_for_update(&mut self, old: &Self, part: $crate::strategy::Part) {
            let mut spec_changed = false;
            match part {
                $crate::strategy::Part::Status => self.spec = old.spec.clone(),
                $crate::strategy::Part::Main | $crate::strategy::Part::Other(_) => {
                    self.status = old.status.clone();
                    spec_changed = self.spec != old.spec;
                }
            }
            $crate::kinds::checks::update_generation(&mut self.metadata, &old.metadata, spec_changed);
        }
    };
}
pub(crate) use spec_and_status;

/// Checks the conditions of a status that are of type meta/v1 Condition.
pub fn conditions(errors: &mut ErrorList, path: &Path, conditions: Option<&[Condition]>) {
    const REASON_BYTES: usize = 1024;
    const MESSAGE_BYTES: usize = 32 * 1024;
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.unwrap_or_default().iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(&condition.type_) {
            errors.duplicate(&path.child("type"), condition.type_.as_str());
        }
        qualified_name(errors, &path.child("type"), &condition.type_);
        facts::check(errors, &path, condition, &["status"]);
        if let Some(generation) = condition.observed_generation.filter(|g| *g < 0) {
            let at = path.child("observedGeneration");
            errors.invalid(&at, generation, "must be greater than or equal to zero");
        }
        if codec::is_unset(&condition.last_transition_time) {
            errors.required(&path.child("lastTransitionTime"), "");
        }
        let at = path.child("reason");
        if condition.reason.is_empty() {
            errors.required(&at, "");
        } else if let Some(message) = names::condition_reason(&condition.reason) {
            errors.invalid(&at, condition.reason.as_str(), message);
        }
        if condition.reason.len() > REASON_BYTES {
            errors.too_long(&at, REASON_BYTES);
        }
        if condition.message.len() > MESSAGE_BYTES {
            errors.too_long(&path.child("message"), MESSAGE_BYTES);
        }
    }
}

/// Checks that a quantity is not negative.
pub fn not_negative_quantity(errors: &mut ErrorList, path: &Path, value: &Quantity) {
    match knarr_apimachinery::quantity::Quantity::parse(&value.0) {
        Err(detail) => errors.invalid(path, value.0.as_str(), detail),
        Ok(parsed) if parsed < knarr_apimachinery::quantity::Quantity::default() => {
            errors.invalid(path, value.0.as_str(), NOT_NEGATIVE);
        }
        Ok(_) => {}
    }
}

/// Checks a domain-prefixed path, such as the name of a controller.
pub fn domain_prefixed_path(errors: &mut ErrorList, path: &Path, value: &str) {
    let Some((domain, rest)) = value
        .split_once('/')
        .filter(|(d, r)| !d.is_empty() && !r.is_empty())
    else {
        if value.is_empty() {
            return errors.required(path, "");
        }
        return errors.invalid(
            path,
            value,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        );
    };
    for message in names::dns1123_subdomain(domain) {
        errors.invalid(path, domain, message);
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:%".contains(&b);
    if !rest.bytes().all(allowed) {
        errors.invalid(path, rest, "Invalid path (e.g. '/bar/baz')");
    }
}

/// Checks that the integer value of a quantity is not negative.
pub fn basic_resource(errors: &mut ErrorList, path: &Path, value: &Quantity) {
    let whole = quantity_of(value).map_or(0, |q| q.value());
    if whole < 0 {
        errors.invalid(path, whole, "must be a valid resource quantity");
    }
}

/// Checks that a quantity is greater than zero.
pub fn positive_quantity(errors: &mut ErrorList, path: &Path, value: &Quantity) {
    match knarr_apimachinery::quantity::Quantity::parse(&value.0) {
        Err(detail) => errors.invalid(path, value.0.as_str(), detail),
        Ok(parsed) if parsed <= knarr_apimachinery::quantity::Quantity::default() => {
            errors.invalid(path, value.0.as_str(), "must be greater than zero");
        }
        Ok(_) => {}
    }
}

/// The parsed quantity; `None` if it does not parse.
pub fn quantity_of(wire: &Quantity) -> Option<knarr_apimachinery::quantity::Quantity> {
    knarr_apimachinery::quantity::Quantity::parse(&wire.0).ok()
}
