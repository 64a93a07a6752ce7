//! Access to devices that are in use (`adminAccess`, KEP-5018) is requested and granted only in namespaces with the label
//! `resource.kubernetes.io/admin-access: "true"`, which their users cannot set.

use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequestAllocationResult, ResourceClaim, ResourceClaimTemplate,
};
use knarr_api::{AnyObject, Object, k8s_openapi, registry};
use knarr_apimachinery::field::{ErrorList, Path};

use crate::cache::Cache;
use crate::request::Target;

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// The admin access that a claim or template requests or is granted against its namespace's label; empty for other kinds.
pub(crate) fn authorize_admin_access(
    cache: &Cache,
    target: &Target<'_>,
    old: Option<&Object>,
    new: &dyn AnyObject,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let Some(path) = new_admin_access(target.subresource, old, new) else {
        return errors;
    };
    let namespace = cache.get(&registry::NAMESPACE, "", target.namespace);
    let labels = namespace.as_ref().and_then(|of| of.metadata().labels.as_ref());
    let is_allowed = labels.and_then(|of| of.get(LABEL)).is_some_and(|of| of == "true");
    if !is_allowed {
        let message =
            format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
        errors.forbidden(&path, message);
    }
    errors
}

/// The field in which admin access is newly requested or granted.
fn new_admin_access(subresource: &str, old: Option<&Object>, new: &dyn AnyObject) -> Option<Path> {
    let any = new.as_any();
    if subresource == "status" {
        let was = old.and_then(|old| old.get::<ResourceClaim>());
        let was_granted = was.is_some_and(|claim| granted(claim).is_some());
        let path = any.downcast_ref::<ResourceClaim>().and_then(granted)?;
        return (!was_granted).then_some(path);
    }
    // The requests of a claim are immutable.
    if old.is_some() {
        return None;
    }
    let devices = match any.downcast_ref::<ResourceClaim>() {
        Some(claim) => claim.spec.devices.as_ref(),
        None => any
            .downcast_ref::<ResourceClaimTemplate>()?
            .spec
            .spec
            .devices
            .as_ref(),
    };
    devices.and_then(requested)
}

fn requested(devices: &DeviceClaim) -> Option<Path> {
    let mut requests = devices.requests.iter().flatten();
    let index = requests.position(|request| {
        let exactly = request.exactly.as_ref();
        exactly.and_then(|of| of.admin_access) == Some(true)
    })?;
    let path = Path::new("spec").child("devices").child("requests");
    Some(path.index(index).child("adminAccess"))
}

fn granted(claim: &ResourceClaim) -> Option<Path> {
    let allocation = claim.status.as_ref().and_then(|of| of.allocation.as_ref());
    let devices = allocation.and_then(|of| of.devices.as_ref());
    let mut results = devices.and_then(|of| of.results.as_ref()).into_iter().flatten();
    let index = results.position(|of: &DeviceRequestAllocationResult| of.admin_access == Some(true))?;
    let path = Path::new("status").child("allocation").child("devices");
    Some(path.child("results").index(index).child("adminAccess"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(admin: bool, granted: bool) -> ResourceClaim {
        let exactly = json!({"deviceClassName": "gpu", "adminAccess": admin});
        let result =
            json!({"request": "r", "driver": "d", "pool": "p", "device": "d", "adminAccess": granted});
        let claim: Value = json!({"metadata": {"name": "c", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
            "status": {"allocation": {"devices": {"results": [result]}}}});
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn a2_only_new_admin_access_is_checked() {
        let old = |claim: ResourceClaim| Object::from_typed(&registry::RESOURCE_CLAIM, Box::new(claim));
        let (granted, plain) = (old(claim(true, true)), old(claim(true, false)));
        let requests = "spec.devices.requests[0].adminAccess";
        let grants = "status.allocation.devices.results[0].adminAccess";
        for (subresource, old, new, expect) in [
            ("", None, claim(true, false), Some(requests)),
            ("", None, claim(false, false), None),
            // The requests of a claim are immutable.
            ("", Some(&plain), claim(true, false), None),
            ("status", Some(&plain), claim(true, true), Some(grants)),
            ("status", Some(&plain), claim(true, false), None),
            ("status", Some(&granted), claim(true, true), None),
        ] {
            let found = new_admin_access(subresource, old, &new);
            assert_eq!(found.as_ref().map(Path::as_str), expect, "{subresource}");
        }
    }
}
