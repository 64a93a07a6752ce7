//! Consumable capacity (KEP-5075): how much of a device's capacity a request consumes, by the device's request
//! policies, and whether that much is left.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, CapacityRequirements, DeviceCapacity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::{Notation, Quantity, QuantityError};

use super::Consumed;

/// The capacity of a device.
pub type Capacities = BTreeMap<String, DeviceCapacity>;

/// Why it is not known what a request consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    /// The request names a capacity that the device does not have.
    #[error("some requested capacity has not been defined")]
    NotDefined,
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

/// What a request consumes of each capacity.
pub fn consumption(
    request: Option<&CapacityRequirements>,
    capacities: Option<&Capacities>,
) -> Result<Consumed, CapacityError> {
    let requested = request.and_then(|r| r.requests.as_ref());
    let has = |name: &String| capacities.is_some_and(|c| c.contains_key(name));
    if requested.into_iter().flatten().any(|(name, _)| !has(name)) {
        return Err(CapacityError::NotDefined);
    }
    let all = capacities.into_iter().flatten();
    let all = all.map(|(name, capacity)| {
        let requested = requested
            .and_then(|w| w.get(name))
            .map(Quantity::of)
            .transpose()?;
        Ok((name.clone(), consumed(requested, capacity)?))
    });
    all.collect()
}

/// Whether a device has enough capacity left for a request. A request that violates a policy does not fit.
pub fn has_room(
    request: Option<&CapacityRequirements>,
    capacities: Option<&Capacities>,
    taken: &[&Consumed],
) -> Result<bool, CapacityError> {
    let requested = consumption(request, capacities)?;
    for (name, capacity) in capacities.into_iter().flatten() {
        let Some(amount) = requested.get(name) else {
            continue;
        };
        if breaks_policy(*amount, capacity.request_policy.as_ref())? {
            return Ok(false);
        }
        let taken = taken.iter().filter_map(|t| t.get(name));
        let sum = taken.fold(*amount, |sum, taken| sum + *taken);
        if sum > Quantity::of(&capacity.value)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Without a request: the policy's default, or the whole capacity. With one: the request, rounded up as the policy
/// says.
fn consumed(requested: Option<Quantity>, capacity: &DeviceCapacity) -> Result<Quantity, QuantityError> {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        let default = policy.and_then(|p| p.default.as_ref());
        return Quantity::of(default.unwrap_or(&capacity.value));
    };
    let Some(policy) = policy else {
        return Ok(requested);
    };
    if let Some(range) = &policy.valid_range {
        return rounded_up(requested, range);
    }
    for valid in policy.valid_values.iter().flatten() {
        let valid = Quantity::of(valid)?;
        if requested <= valid {
            return Ok(valid);
        }
    }
    Ok(requested)
}

fn rounded_up(requested: Quantity, range: &CapacityRequestPolicyRange) -> Result<Quantity, QuantityError> {
    let min = Quantity::of(&range.min)?;
    if requested < min {
        return Ok(min);
    }
    let Some(step) = step(range)? else {
        return Ok(requested);
    };
    let (min, requested) = (min.value(), requested.value());
    let over = requested.saturating_sub(min);
    let steps = over / step + i64::from(over % step != 0);
    let value = min.saturating_add(step.saturating_mul(steps));
    Ok(Quantity::from_value(value, Notation::BinarySi))
}

/// `None`: there is none, or one that API validation would reject.
fn step(range: &CapacityRequestPolicyRange) -> Result<Option<i64>, QuantityError> {
    let step = range.step.as_ref().map(Quantity::of).transpose()?;
    Ok(step.map(|s| s.value()).filter(|s| *s > 0))
}

fn breaks_policy(amount: Quantity, policy: Option<&CapacityRequestPolicy>) -> Result<bool, QuantityError> {
    let Some(policy) = policy else { return Ok(false) };
    let is = |wire: &Wire| Quantity::of(wire).map(|q| q == amount);
    if let Some(default) = &policy.default
        && is(default)?
    {
        return Ok(false);
    }
    if let Some(range) = &policy.valid_range {
        if let Some(max) = &range.max
            && amount > Quantity::of(max)?
        {
            return Ok(true);
        }
        let over = amount.value().saturating_sub(Quantity::of(&range.min)?.value());
        return Ok(step(range)?.is_some_and(|step| over % step != 0));
    }
    let valid = policy.valid_values.as_deref().unwrap_or_default();
    let among: Vec<bool> = valid.iter().map(is).collect::<Result<_, _>>()?;
    Ok(!among.is_empty() && !among.contains(&true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(text: &str) -> Wire {
        Wire(text.into())
    }

    fn request(amount: Option<&str>) -> Option<CapacityRequirements> {
        let amount = amount?;
        Some(CapacityRequirements {
            requests: Some(BTreeMap::from([("memory".to_string(), wire(amount))])),
        })
    }

    fn capacities(value: &str, policy: Option<CapacityRequestPolicy>) -> Capacities {
        let capacity = DeviceCapacity {
            request_policy: policy,
            value: wire(value),
        };
        BTreeMap::from([("memory".to_string(), capacity)])
    }

    fn range(default: &str, min: &str, max: Option<&str>, step: Option<&str>) -> CapacityRequestPolicy {
        CapacityRequestPolicy {
            default: Some(wire(default)),
            valid_range: Some(CapacityRequestPolicyRange {
                min: wire(min),
                max: max.map(wire),
                step: step.map(wire),
            }),
            valid_values: None,
        }
    }

    fn values(default: &str, valid: &[&str]) -> CapacityRequestPolicy {
        CapacityRequestPolicy {
            default: Some(wire(default)),
            valid_range: None,
            valid_values: Some(valid.iter().map(|v| wire(v)).collect()),
        }
    }

    #[test]
    fn a_request_consumes_what_the_request_policy_says() {
        let all = [
            (None, None, "10"),
            (Some("3"), None, "3"),
            (None, Some(range("1", "1", None, None)), "1"),
            (Some("1"), Some(range("4", "4", None, None)), "4"),
            (Some("5"), Some(range("4", "4", None, None)), "5"),
            (Some("5"), Some(range("4", "4", None, Some("3"))), "7"),
            (Some("7"), Some(range("4", "4", None, Some("3"))), "7"),
            (Some("2"), Some(values("1", &["1", "4", "8"])), "4"),
            (Some("9"), Some(values("1", &["1", "4", "8"])), "9"),
            (None, Some(values("1", &["1", "4", "8"])), "1"),
        ];
        for (requested, policy, expect) in all {
            let of = capacities("10", policy.clone());
            let found = consumption(request(requested).as_ref(), Some(&of)).unwrap();
            let expect = Quantity::parse(expect).unwrap();
            assert_eq!(found.get("memory"), Some(&expect), "{requested:?} {policy:?}");
        }
    }

    #[test]
    fn a_request_fits_if_enough_capacity_is_left_and_the_policy_allows_it() {
        let taken = |n: &str| Consumed::from([("memory".to_string(), Quantity::parse(n).unwrap())]);
        let all = [
            (Some("5"), None, "0", true),
            (Some("5"), None, "5", true),
            (Some("5"), None, "6", false),
            (None, None, "0", true),
            (None, None, "1", false),
            (Some("9"), Some(range("1", "1", Some("8"), None)), "0", false),
            (Some("8"), Some(range("1", "1", Some("8"), None)), "0", true),
            (Some("9"), Some(values("1", &["1", "8"])), "0", false),
            (Some("2"), Some(values("1", &["1", "8"])), "2", true),
            (Some("2"), Some(values("1", &["1", "8"])), "3", false),
        ];
        for (requested, policy, taken_already, expect) in all {
            let of = capacities("10", policy.clone());
            let taken = taken(taken_already);
            let found = has_room(request(requested).as_ref(), Some(&of), &[&taken]);
            assert_eq!(found, Ok(expect), "{requested:?} {policy:?} {taken_already}");
        }
    }

    #[test]
    fn a_capacity_that_is_not_defined_cannot_be_requested() {
        let error = has_room(request(Some("1")).as_ref(), None, &[]).unwrap_err();
        assert_eq!(error, CapacityError::NotDefined);
    }
}
