//! ResourceClaims: their number, and the most devices of each class that they can get, also by the extended resource of a
//! class ([`super::devices`]).

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;

use super::{Devices, one, whole};
use crate::kinds::pod::resources::{Amounts, DEVICE_CLASS_PREFIX, is_native};

const COUNT: &str = "count/resourceclaims.resource.k8s.io";
/// The suffix after the name of a device class.
const OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The most devices that one claim can get, as for the allocation mode All.
const MOST_DEVICES: usize = 32;

pub(super) fn counts(name: &str) -> bool {
    name == COUNT
        || name.ends_with(OF_CLASS)
        || name
            .strip_prefix("requests.")
            .is_some_and(|of| !is_native(of) || of.starts_with(DEVICE_CLASS_PREFIX))
}

pub(super) fn usage(claim: &ResourceClaim, now: Timestamp, devices: &Devices) -> Amounts {
    let of_classes = of_classes(claim);
    let mut used = devices.usage(claim, &of_classes, now);
    used.insert(COUNT.into(), one());
    let of_classes = of_classes.into_iter();
    used.extend(of_classes.map(|(class, amount)| (format!("{class}{OF_CLASS}"), amount)));
    used
}

/// Devices by the names of their classes.
fn of_classes(claim: &ResourceClaim) -> Amounts {
    let mut used = Amounts::new();
    let requests = claim
        .spec
        .devices
        .iter()
        .flat_map(|d| d.requests.iter().flatten());
    for request in requests {
        // Of alternatives the worst for each class.
        let mut most: BTreeMap<&str, usize> = BTreeMap::new();
        let alternatives = request.first_available.iter().flatten();
        for one in alternatives {
            let devices = devices(one.allocation_mode.as_deref(), one.count);
            let most = most.entry(&one.device_class_name).or_default();
            *most = devices.max(*most);
        }
        if most.is_empty()
            && let Some(exact) = &request.exactly
        {
            let devices = devices(exact.allocation_mode.as_deref(), exact.count);
            most.insert(&exact.device_class_name, devices);
        }
        for (class, devices) in most {
            *used.entry(class.to_string()).or_default() += whole(devices);
        }
    }
    used
}

fn devices(mode: Option<&str>, count: Option<i64>) -> usize {
    match mode {
        Some("ExactCount") => count.and_then(|c| usize::try_from(c).ok()).unwrap_or(0),
        Some("All") => MOST_DEVICES,
        _ => 0,
    }
}
