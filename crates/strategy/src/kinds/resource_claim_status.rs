//! The status of a ResourceClaim: which devices are allocated to it, for whom they are reserved, and what their drivers
//! report of them. An allocation is immutable: it is only set and removed as a whole.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceRequestAllocationResult, NetworkDeviceData, ResourceClaim,
    ResourceClaimStatus,
};
use knarr_api::kinds::node_affinity::node_selector;
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{conditions, dns_label, immutable};
use super::device_requests::{
    self, at_most, binding_conditions, configuration, driver_data, driver_name, pool_name, references, unique,
};
use crate::facts;

const RESERVED_FOR_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
/// Maximum number of configurations in an allocation: those of the class and of the claim.
const CONFIGURATIONS_MAX: usize = 2 * 32;
const CONDITIONS_MAX: usize = 8;
const ADDRESSES_MAX: usize = 16;
const INTERFACE_NAME_MAX_BYTES: usize = 256;
const HARDWARE_ADDRESS_MAX_BYTES: usize = 128;

/// A device, or a share of one that several claims use, as messages show it.
fn shown(driver: &str, pool: &str, device: &str, share: Option<&str>) -> String {
    let parts = [
        Some(driver),
        Some(pool),
        Some(device),
        share.filter(|s| !s.is_empty()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

fn shown_status(of: &AllocatedDeviceStatus) -> String {
    shown(&of.driver, &of.pool, &of.device, of.share_id.as_deref())
}

fn shown_result(of: &DeviceRequestAllocationResult) -> String {
    shown(&of.driver, &of.pool, &of.device, of.share_id.as_deref())
}

fn allocated(status: &ResourceClaimStatus) -> BTreeSet<String> {
    let devices = status.allocation.as_ref().and_then(|of| of.devices.as_ref());
    let results = devices.and_then(|of| of.results.as_ref());
    results.into_iter().flatten().map(shown_result).collect()
}

/// Drops the device statuses of devices that are no longer allocated.
pub fn drop_deallocated(status: &mut ResourceClaimStatus, old: &ResourceClaimStatus) {
    let still_allocated = allocated(status);
    let deallocated: BTreeSet<String> = allocated(old).difference(&still_allocated).cloned().collect();
    if let Some(devices) = &mut status.devices {
        devices.retain(|device| !deallocated.contains(&shown_status(device)));
    }
    status.devices = status.devices.take().filter(|devices| !devices.is_empty());
}

pub fn validate(errors: &mut ErrorList, claim: &ResourceClaim, old: &ResourceClaim) {
    let path = Path::new("status");
    let (status, old_status) = (
        claim.status.clone().unwrap_or_default(),
        old.status.clone().unwrap_or_default(),
    );
    let names = claim.spec.devices.as_ref().map(device_requests::request_names);
    let names = names.unwrap_or_default();
    reservations(errors, &path.child("reservedFor"), &status);
    let allocated_devices = allocated(&status);
    let at = path.child("devices");
    let devices = status.devices.as_deref().unwrap_or_default();
    for (i, of) in devices.iter().enumerate() {
        device(errors, &at.index(i), of, &allocated_devices);
    }
    let shown: Vec<String> = devices.iter().map(shown_status).collect();
    unique(errors, &at, shown.iter().map(String::as_str));
    let reserved = status.reserved_for.as_deref().unwrap_or_default();
    let old_reserved = old_status.reserved_for.as_deref().unwrap_or_default();
    let at = path.child("reservedFor");
    if !reserved.is_empty() && status.allocation.is_none() {
        errors.forbidden(&at, "may not be specified when `allocated` is not set");
    } else if claim.metadata.deletion_timestamp.is_some()
        && reserved.iter().any(|of| !old_reserved.contains(of))
    {
        let detail =
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.forbidden(&at, detail);
    }
    let at = path.child("allocation");
    match (&status.allocation, &old_status.allocation) {
        (Some(new), Some(old)) => immutable(errors, &at, new, old),
        (Some(new), None) => allocation(errors, &at, new, &names),
        (None, _) => {}
    }
}

fn reservations(errors: &mut ErrorList, path: &Path, status: &ResourceClaimStatus) {
    let reserved = status.reserved_for.as_deref().unwrap_or_default();
    if !at_most(errors, path, reserved, RESERVED_FOR_MAX) {
        return;
    }
    for (i, of) in reserved.iter().enumerate() {
        for (field, value) in [("resource", &of.resource), ("name", &of.name), ("uid", &of.uid)] {
            if value.is_empty() {
                errors.required(&path.index(i).child(field), "");
            }
        }
    }
    unique(errors, path, reserved.iter().map(|of| of.uid.as_str()));
}

fn allocation(errors: &mut ErrorList, path: &Path, allocation: &AllocationResult, names: &BTreeSet<String>) {
    let at = path.child("devices");
    if let Some(devices) = &allocation.devices {
        let results = devices.results.as_deref().unwrap_or_default();
        let at_results = at.child("results");
        if at_most(errors, &at_results, results, RESULTS_MAX) {
            for (i, of) in results.iter().enumerate() {
                result(errors, &at_results.index(i), of, names);
            }
        }
        let configurations = devices.config.as_deref().unwrap_or_default();
        let at = at.child("config");
        if at_most(errors, &at, configurations, CONFIGURATIONS_MAX) {
            for (i, of) in configurations.iter().enumerate() {
                let at = at.index(i);
                facts::check(errors, &at, of, &["source"]);
                let requests = of.requests.as_deref().unwrap_or_default();
                references(errors, &at.child("requests"), requests, names);
                configuration(errors, &at, of.opaque.as_ref());
            }
        }
    }
    if let Some(selector) = &allocation.node_selector {
        node_selector(selector, &path.child("nodeSelector"), errors);
    }
}

fn result(errors: &mut ErrorList, path: &Path, of: &DeviceRequestAllocationResult, names: &BTreeSet<String>) {
    device_requests::reference(errors, &path.child("request"), &of.request, names);
    driver_name(errors, &path.child("driver"), &of.driver);
    pool_name(errors, &path.child("pool"), &of.pool);
    dns_label(errors, &path.child("device"), &of.device);
    let failures = of.binding_failure_conditions.as_deref();
    binding_conditions(errors, path, of.binding_conditions.as_deref(), failures);
    share_id(errors, &path.child("shareID"), of.share_id.as_deref());
}

fn share_id(errors: &mut ErrorList, path: &Path, id: Option<&str>) {
    let Some(id) = id else { return };
    let is_uuid = id.len() == 36
        && id.char_indices().all(|(i, c)| match i {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        });
    if !is_uuid {
        let detail = match id.len() {
            36 => "error validating uid: invalid UUID format".to_string(),
            length => format!("error validating uid: invalid UUID length: {length}"),
        };
        errors.invalid(path, id, detail);
    } else if id.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let detail = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase \
                     hexadecimal characters";
        errors.invalid(path, id, detail);
    }
}

fn device(errors: &mut ErrorList, path: &Path, of: &AllocatedDeviceStatus, allocated: &BTreeSet<String>) {
    driver_name(errors, &path.child("driver"), &of.driver);
    pool_name(errors, &path.child("pool"), &of.pool);
    dns_label(errors, &path.child("device"), &of.device);
    share_id(errors, &path.child("shareID"), of.share_id.as_deref());
    let shown = shown_status(of);
    if !allocated.contains(&shown) {
        errors.invalid(path, shown, "must be an allocated device in the claim");
    }
    let list = of.conditions.as_deref();
    let at = path.child("conditions");
    at_most(errors, &at, list.unwrap_or_default(), CONDITIONS_MAX);
    conditions(errors, &at, list);
    if let Some(data) = &of.data {
        driver_data(errors, &path.child("data"), &data.0);
    }
    if let Some(network) = &of.network_data {
        network_data(errors, &path.child("networkData"), network);
    }
}

fn network_data(errors: &mut ErrorList, path: &Path, data: &NetworkDeviceData) {
    for (field, value, max_bytes) in [
        ("interfaceName", &data.interface_name, INTERFACE_NAME_MAX_BYTES),
        (
            "hardwareAddress",
            &data.hardware_address,
            HARDWARE_ADDRESS_MAX_BYTES,
        ),
    ] {
        if value.as_ref().is_some_and(|value| value.len() > max_bytes) {
            errors.too_long(&path.child(field), max_bytes);
        }
    }
    let addresses = data.ips.as_deref().unwrap_or_default();
    let at = path.child("ips");
    if at_most(errors, &at, addresses, ADDRESSES_MAX) {
        for (i, address) in addresses.iter().enumerate() {
            interface_address(errors, &at.index(i), address);
        }
        unique(errors, &at, addresses.iter().map(String::as_str));
    }
}

/// Checks an interface address with its prefix length, such as `10.9.8.7/24`.
fn interface_address(errors: &mut ErrorList, path: &Path, value: &str) {
    let parsed = value
        .split_once('/')
        .and_then(|(address, bits)| Cidr::new(address.parse().ok()?, bits.parse().ok()?));
    let Some(parsed) = parsed else {
        let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(path, value, detail);
    };
    // An IPv4-mapped IPv6 address is treated as the IPv4 address.
    let canonical = parsed.address().to_canonical();
    let bits = if canonical.is_ipv4() && parsed.is_ipv6() {
        parsed.prefix_len().saturating_sub(96)
    } else {
        parsed.prefix_len()
    };
    let canonical = format!("{canonical}/{bits}");
    if value != canonical {
        errors.invalid(path, value, format!("must be in canonical form ({canonical:?})"));
    }
}

#[cfg(test)]
mod tests;
