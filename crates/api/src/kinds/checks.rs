//! The checks that many kinds share, with Kubernetes' words: names, labels, selectors, ports, addresses, numbers.
//!
//! Each takes what was found and where, and adds the mistakes to an [`Errors`]; none looks at a whole object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use crate::field::{Errors, Path, Shown};
use crate::{codec, meta, names};

/// Protocols of ports, sorted as most fields list them.
pub const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub const NOT_GREATER_THAN_ZERO: &str = "must be greater than 0";
pub const IMMUTABLE: &str = "field is immutable";

/// A value shown as its JSON, as Kubernetes shows structs, lists and maps.
pub struct Json(pub String);

impl Shown for Json {
    fn shown(&self) -> String {
        self.0.clone()
    }
}

/// `value` as JSON in the order of its Rust type's fields.
pub fn json(value: &(impl Serialize + ?Sized)) -> Json {
    Json(serde_json::to_string(value).unwrap_or_else(|e| format!("<{e}>")))
}

/// A list as Go shows it: a missing one is `null`.
pub fn json_list<T: Serialize>(values: &[T]) -> Json {
    if values.is_empty() {
        Json("null".into())
    } else {
        json(values)
    }
}

/// A label selector as Go shows it: `matchLabels` before `matchExpressions`.
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

/// The text of an optional field; empty where it is absent, as Go has it.
pub fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("")
}

/// One `Invalid` for each of the mistakes a name check found.
pub fn each(errors: &mut Errors, path: &Path, value: impl Shown + Copy, mistakes: Vec<String>) {
    for mistake in mistakes {
        errors.invalid(path, value, mistake);
    }
}

pub fn dns_label(errors: &mut Errors, path: &Path, value: &str) {
    each(errors, path, value, names::dns1123_label(value));
}

pub fn dns_subdomain(errors: &mut Errors, path: &Path, value: &str) {
    each(errors, path, value, names::dns1123_subdomain(value));
}

/// `name` or `prefix/name`: label keys, protocols, classes of load balancers.
pub fn qualified_name(errors: &mut Errors, path: &Path, value: &str) {
    each(errors, path, value, names::qualified_name(value));
}

/// A finalizer without a domain must be one of Kubernetes' own.
pub fn standard_finalizer(errors: &mut Errors, path: &Path, name: &str) {
    const STANDARD: &[&str] = &["kubernetes", "orphan", "foregroundDeletion"];
    if !name.contains('/') && !STANDARD.contains(&name) {
        errors.invalid(
            path,
            name,
            "name is neither a standard finalizer name nor is it fully qualified",
        );
    }
}

/// Keys and values of labels (or of a selector of that form).
pub fn labels(errors: &mut Errors, path: &Path, labels: &BTreeMap<String, String>) {
    errors.extend(meta::labels(Some(labels), path));
}

/// A meta/v1 LabelSelector.
pub fn label_selector(errors: &mut Errors, path: &Path, selector: &LabelSelector) {
    errors.extend(meta::label_selector(Some(selector), path));
}

/// Whether a label selector has no requirement at all.
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

pub fn not_negative<T: Shown + Copy + Into<i64>>(errors: &mut Errors, path: &Path, value: T) {
    if value.into() < 0 {
        errors.invalid(path, value, NOT_NEGATIVE);
    }
}

/// As [`not_negative`], of a field that may be absent.
pub fn not_negative_if_set<T: Shown + Copy + Into<i64>>(errors: &mut Errors, path: &Path, value: Option<T>) {
    if let Some(value) = value {
        not_negative(errors, path, value);
    }
}

pub fn port_number(errors: &mut Errors, path: &Path, port: i32) {
    each(errors, path, port, names::port_number(port.into()));
}

/// A port by number, or by the name of a container's port.
pub fn port_number_or_name(errors: &mut Errors, path: &Path, port: &IntOrString) {
    match port {
        IntOrString::Int(number) => port_number(errors, path, *number),
        IntOrString::String(name) => each(errors, path, name.as_str(), names::port_name(name)),
    }
}

/// A count or a percentage, neither negative.
pub fn not_negative_or_percent(errors: &mut Errors, path: &Path, value: &IntOrString) {
    match value {
        IntOrString::Int(number) => not_negative(errors, path, *number),
        IntOrString::String(text) => {
            each(errors, path, text.as_str(), names::percent(text));
        }
    }
}

/// `25%` as 25.
pub fn percent(text: &str) -> Option<i32> {
    let digits = text.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(i32::MAX))
}

/// Refuses percentages over 100.
pub fn not_more_than_all(errors: &mut Errors, path: &Path, value: &IntOrString) {
    if let IntOrString::String(text) = value
        && percent(text).is_some_and(|p| p > 100)
    {
        errors.invalid(path, text, "must not be greater than 100%");
    }
}

/// A count, or the number before the percent sign.
pub fn count_or_percent(value: &IntOrString) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => percent(text).unwrap_or(0),
    }
}

/// An IP address in its plain form. What was there already may stay as it is.
pub fn ip(errors: &mut Errors, path: &Path, value: &str, existing: &[String]) -> bool {
    if existing.iter().any(|e| e == value) {
        return true;
    }
    let mistake = match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return true,
        Err(_) if without_leading_zeros(value).parse::<IpAddr>().is_ok() => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    errors.invalid(path, value, mistake);
    false
}

/// An address as older readers understood it, which passed over zeros before the decimal numbers of IPv4.
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

/// As [`ip`], and in the one form that the address is written in.
pub fn canonical_ip(value: &str) -> Vec<String> {
    let mut errors = Errors::new();
    if ip(&mut errors, &Path::default(), value, &[])
        && let Ok(address) = value.parse::<IpAddr>()
        && address.to_string() != value
    {
        return vec![format!("must be in canonical form ({:?})", address.to_string())];
    }
    errors.iter().map(|e| e.detail.clone()).collect()
}

/// An address traffic can be sent to: not unspecified, loopback or link-local.
pub fn endpoint_ip(errors: &mut Errors, path: &Path, value: &str) {
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

/// An address range in its plain form: no host bits. What was there already may stay as it is.
pub fn cidr(errors: &mut Errors, path: &Path, value: &str, existing: &[String]) {
    if existing.iter().any(|e| e == value) {
        return;
    }
    let mistake = match (super::service_ips::Cidr::parse(value), value.split_once('/')) {
        (Some(range), _) if range.is_ipv4_mapped() => "must not have an IPv4-mapped IPv6 address",
        (Some(range), _) if range.has_host_bits() => "must not have bits set beyond the prefix length",
        (Some(_), _) => return,
        (None, Some((address, length)))
            if super::service_ips::Cidr::parse(&format!(
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
    errors.invalid(path, value, mistake);
}

/// As [`cidr`], and in the one form that the range is written in.
pub fn canonical_cidr(errors: &mut Errors, path: &Path, value: &str) {
    let before = errors.len();
    cidr(errors, path, value, &[]);
    if errors.len() == before
        && let Some(range) = super::service_ips::Cidr::parse(value)
        && range.to_string() != value
    {
        let words = format!("must be in canonical form ({:?})", range.to_string());
        errors.invalid(path, value, words);
    }
}

/// A field that may not change.
pub fn immutable<T: PartialEq + Serialize>(errors: &mut Errors, path: &Path, new: &T, old: &T) {
    if new != old {
        errors.invalid(path, json(new), IMMUTABLE);
    }
}

/// A selector that may not change.
pub fn immutable_selector(errors: &mut Errors, path: &Path, new: &LabelSelector, old: &LabelSelector) {
    if new != old {
        let shown = match *new == LabelSelector::default() {
            true => "null".into(),
            false => json_selector(new),
        };
        errors.invalid(path, Json(shown), IMMUTABLE);
    }
}

/// Carries the generation over from the old object; one more where what it counts has changed.
pub fn count_generation(meta: &mut ObjectMeta, old: &ObjectMeta, changed: bool) {
    meta.generation = if changed {
        Some(old.generation.unwrap_or(0) + 1)
    } else {
        old.generation
    };
}

/// A string list or map that Go leaves out when it is empty.
pub fn drop_empty<T: Default + PartialEq>(value: &mut Option<T>) {
    if value.as_ref().is_some_and(|v| *v == T::default()) {
        *value = None;
    }
}

/// The usual two parts of an object: users write spec (counted by `metadata.generation`) and controllers
/// write status, each through its own door.
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
            $crate::kinds::checks::count_generation(&mut self.metadata, &old.metadata, spec_changed);
        }
    };
}
pub(crate) use spec_and_status;

/// The conditions of a status, of kinds that have meta/v1's type for them.
pub fn conditions(errors: &mut Errors, path: &Path, conditions: Option<&[Condition]>) {
    const STATUSES: &[&str] = &["False", "True", "Unknown"];
    const REASON_BYTES: usize = 1024;
    const MESSAGE_BYTES: usize = 32 * 1024;
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.unwrap_or_default().iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(&condition.type_) {
            errors.duplicate(&path.child("type"), condition.type_.as_str());
        }
        qualified_name(errors, &path.child("type"), &condition.type_);
        if !STATUSES.contains(&condition.status.as_str()) {
            errors.not_supported(&path.child("status"), condition.status.as_str(), STATUSES);
        }
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
        } else if let Some(mistake) = names::condition_reason(&condition.reason) {
            errors.invalid(&at, condition.reason.as_str(), mistake);
        }
        if condition.reason.len() > REASON_BYTES {
            errors.too_long(&at, REASON_BYTES);
        }
        if condition.message.len() > MESSAGE_BYTES {
            errors.too_long(&path.child("message"), MESSAGE_BYTES);
        }
    }
}

/// A quantity that must not be negative.
pub fn not_negative_quantity(errors: &mut Errors, path: &Path, value: &Quantity) {
    match crate::quantity::Quantity::parse(&value.0) {
        Err(why) => errors.invalid(path, value.0.as_str(), why),
        Ok(parsed) if parsed < crate::quantity::Quantity::default() => {
            errors.invalid(path, value.0.as_str(), NOT_NEGATIVE);
        }
        Ok(_) => {}
    }
}

/// `domain/path`, such as the name of a controller.
pub fn domain_prefixed_path(errors: &mut Errors, path: &Path, value: &str) {
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
    for mistake in names::dns1123_subdomain(domain) {
        errors.invalid(path, domain, mistake);
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:%".contains(&b);
    if !rest.bytes().all(allowed) {
        errors.invalid(path, rest, "Invalid path (e.g. '/bar/baz')");
    }
}

/// An amount of whatever it is: not less than nothing, as a whole number shows it.
pub fn basic_resource(errors: &mut Errors, path: &Path, value: &Quantity) {
    let whole = quantity_of(value).map_or(0, |q| q.value());
    if whole < 0 {
        errors.invalid(path, whole, "must be a valid resource quantity");
    }
}

/// A quantity that must be more than nothing.
pub fn positive_quantity(errors: &mut Errors, path: &Path, value: &Quantity) {
    match crate::quantity::Quantity::parse(&value.0) {
        Err(why) => errors.invalid(path, value.0.as_str(), why),
        Ok(parsed) if parsed <= crate::quantity::Quantity::default() => {
            errors.invalid(path, value.0.as_str(), "must be greater than zero");
        }
        Ok(_) => {}
    }
}

/// The exact amount, if it parses.
pub fn quantity_of(wire: &Quantity) -> Option<crate::quantity::Quantity> {
    crate::quantity::Quantity::parse(&wire.0).ok()
}
