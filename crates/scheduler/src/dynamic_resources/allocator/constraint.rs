//! Constraints of a claim on its devices: an attribute that must be the same on all of them (matchAttribute), or
//! different on each (distinctAttribute).

use k8s_openapi::api::resource::v1::{DeviceAttribute, ResourceClaim};
use knarr_api::k8s_openapi;

use super::{AllocationError, Candidate, Variant, claim_name};

/// See the module.
#[derive(Debug)]
pub(super) struct Constraint<'a> {
    attribute: &'a str,
    /// matchAttribute; otherwise no two devices may have the same value.
    all_alike: bool,
    /// The requests that the constraint applies to; empty: all.
    requests: &'a [String],
    /// The devices added so far, in this order.
    values: Vec<&'a DeviceAttribute>,
}

impl<'a> Constraint<'a> {
    pub(super) fn of_claim(claim: &'a ResourceClaim) -> Result<Vec<Self>, AllocationError> {
        let devices = claim.spec.devices.as_ref();
        let all = devices.and_then(|d| d.constraints.as_ref()).into_iter().flatten();
        let all = all.enumerate().map(|(index, constraint)| {
            let (attribute, all_alike) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
                (Some(attribute), _) => (attribute, true),
                (None, Some(attribute)) => (attribute, false),
                (None, None) => {
                    let claim = claim_name(claim);
                    return Err(AllocationError::EmptyConstraint { claim, index });
                }
            };
            Ok(Constraint {
                attribute,
                all_alike,
                requests: constraint.requests.as_deref().unwrap_or_default(),
                values: Vec::new(),
            })
        });
        all.collect()
    }

    fn is_about(&self, request: &Variant<'_>) -> bool {
        let mut requests = self.requests.iter();
        self.requests.is_empty() || requests.any(|r| r == request.base || *r == request.name)
    }

    /// Adds the device if the constraint allows it, and returns whether it does.
    pub(super) fn add(&mut self, request: &Variant<'_>, candidate: &Candidate<'a>) -> bool {
        if !self.is_about(request) {
            return true;
        }
        let Some(value) = attribute(candidate, self.attribute) else {
            return false;
        };
        let fits = match self.all_alike {
            true => self.values.first().is_none_or(|first| is_same(first, value)),
            false => !self.values.iter().any(|other| is_same(other, value)),
        };
        // A value of an unknown type matches nothing, but the first of a set is not compared.
        if fits {
            self.values.push(value);
        }
        fits
    }

    /// Removes the device that was added last for the request.
    pub(super) fn remove(&mut self, request: &Variant<'_>) {
        if self.is_about(request) {
            self.values.pop();
        }
    }
}

/// By the fully qualified name, or by the name alone if the domain is the driver's.
fn attribute<'a>(candidate: &Candidate<'a>, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = candidate.device.attributes.as_ref()?;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        attributes
            .get(id)
            .filter(|_| domain == candidate.slice.spec.driver)
    })
}

fn is_same(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    match (a, b) {
        (DeviceAttribute { string: Some(a), .. }, DeviceAttribute { string: Some(b), .. }) => a == b,
        (DeviceAttribute { int: Some(a), .. }, DeviceAttribute { int: Some(b), .. }) => a == b,
        (DeviceAttribute { bool: Some(a), .. }, DeviceAttribute { bool: Some(b), .. }) => a == b,
        (DeviceAttribute { version: Some(a), .. }, DeviceAttribute { version: Some(b), .. }) => a == b,
        _ => false,
    }
}
