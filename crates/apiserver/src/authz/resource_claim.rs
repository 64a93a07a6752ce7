//! Parts of a ResourceClaim's status have permissions of their own (KEP-4817, DRAResourceClaimGranularStatusAuthorization):
//! changing the allocation or the reservations needs `resourceclaims/binding`, and changing the status of a driver's devices
//! needs `resourceclaims/driver` for that driver, both in addition to `resourceclaims/status`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim, ResourceClaimStatus};
use knarr_api::{AnyObject, Object, k8s_openapi};
use knarr_apimachinery::field::{ErrorList, Path};

use super::{Attributes, Authorizer, forbidden_with_reason};
use crate::request::{Ctx, Target};
use crate::user::User;

/// The user extra of a service account token that is bound to a pod: the pod's node.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The changes of a claim's status that the user may not make; empty for other kinds and subresources.
pub(crate) fn authorize_claim_status(
    authorizer: &dyn Authorizer,
    ctx: &Ctx,
    target: &Target<'_>,
    old: &Object,
    new: &dyn AnyObject,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let (Some(old), Some(new)) = (old.get::<ResourceClaim>(), new.as_any().downcast_ref()) else {
        return errors;
    };
    if target.subresource != "status" {
        return errors;
    }
    let status = |claim: &ResourceClaim| claim.status.clone().unwrap_or_default();
    let (old, new) = (status(old), status(new));
    let base = Attributes {
        verb: ctx.verb,
        group: target.kind.group(),
        resource: target.kind.plural(),
        ..Attributes::default()
    };
    let path = Path::new("status");
    if binding(&old) != binding(&new) {
        let request = Attributes {
            subresource: "binding",
            ..base
        };
        if let Some(why) = denial_reason(authorizer, ctx, &[request]) {
            let verb = ctx.verb;
            errors.forbidden(
                &path.child("allocation"),
                format!(
                    "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
verb=\"{verb}\" permission: {why}"
                ),
            );
        }
    }
    if new.allocation.is_none() {
        return errors;
    }
    let mut verbs = vec![format!("arbitrary-node:{}", ctx.verb)];
    if allocated_node(&new).is_some_and(|node| is_associated_with(&ctx.user, node)) {
        verbs.insert(0, format!("associated-node:{}", ctx.verb));
    }
    for driver in changed_drivers(&old, &new) {
        let any: Vec<Attributes<'_>> = verbs
            .iter()
            .map(|verb| Attributes {
                verb,
                subresource: "driver",
                namespace: target.namespace,
                name: driver,
                ..base
            })
            .collect();
        if let Some(why) = denial_reason(authorizer, ctx, &any) {
            errors.forbidden(
                &path.child("devices"),
                format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: \
{why}",
                    verbs.join(" ")
                ),
            );
        }
    }
    errors
}

/// Why none of these requests is allowed; `None` if one is.
fn denial_reason(authorizer: &dyn Authorizer, ctx: &Ctx, any: &[Attributes<'_>]) -> Option<String> {
    if any.iter().any(|request| authorizer.allows(&ctx.user, request)) {
        return None;
    }
    let first = any.first()?;
    Some(
        forbidden_with_reason(authorizer, &ctx.user, first)
            .message()
            .to_string(),
    )
}

/// The allocation and its consumers.
fn binding(status: &ResourceClaimStatus) -> impl PartialEq {
    (
        status.allocation.clone(),
        status.reserved_for.clone().unwrap_or_default(),
    )
}

/// The drivers of devices whose status is added, removed or changed.
fn changed_drivers<'a>(old: &'a ResourceClaimStatus, new: &'a ResourceClaimStatus) -> BTreeSet<&'a str> {
    let by_device = |status: &'a ResourceClaimStatus| -> BTreeMap<_, &'a AllocatedDeviceStatus> {
        let devices = status.devices.iter().flatten();
        devices
            .map(|d| {
                (
                    (&d.driver, &d.pool, &d.device, d.share_id.as_deref().unwrap_or("")),
                    d,
                )
            })
            .collect()
    };
    let (was, is) = (by_device(old), by_device(new));
    let all: BTreeSet<_> = was.keys().chain(is.keys()).collect();
    let changed = all.into_iter().filter(|key| was.get(*key) != is.get(*key));
    changed.map(|key| key.0.as_str()).collect()
}

/// The single node of the allocation, if its selector names one by `metadata.name`.
fn allocated_node(status: &ResourceClaimStatus) -> Option<&str> {
    let selector = status.allocation.as_ref()?.node_selector.as_ref()?;
    let [term] = &selector.node_selector_terms[..] else {
        return None;
    };
    let (expressions, fields) = (&term.match_expressions, &term.match_fields);
    let [field] = fields.as_deref().unwrap_or_default() else {
        return None;
    };
    let by_name = field.key == "metadata.name" && field.operator == "In";
    match field.values.as_deref().unwrap_or_default() {
        [name] if by_name && expressions.iter().flatten().next().is_none() => Some(name),
        _ => None,
    }
}

/// Whether the user is a service account whose token is bound to a pod of this node.
fn is_associated_with(user: &User, node: &str) -> bool {
    let nodes = user.extra.get(NODE_NAME).map(Vec::as_slice).unwrap_or_default();
    user.as_service_account().is_some() && nodes == [node]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(value: serde_json::Value) -> ResourceClaimStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a2_drivers_are_those_of_added_removed_or_changed_devices() {
        let device = |driver: &str, ready: &str| {
            json!({"driver": driver, "pool": "p", "device": "d", "conditions": [{"type": "Ready", "status": ready,
                "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let old = status(
            json!({"devices": [device("same", "True"), device("removed", "True"), device("toggled", "True")]}),
        );
        let new = status(
            json!({"devices": [device("same", "True"), device("added", "True"), device("toggled", "False")]}),
        );
        let changed: Vec<&str> = changed_drivers(&old, &new).into_iter().collect();
        assert_eq!(changed, ["added", "removed", "toggled"]);
    }

    #[test]
    fn a2_only_a_pod_of_the_one_allocated_node_is_associated() {
        let by = |terms: serde_json::Value| {
            status(json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}))
        };
        let name = |names: &[&str]| json!({"key": "metadata.name", "operator": "In", "values": names});
        let one = by(json!([{"matchFields": [name(&["n1"])]}]));
        assert_eq!(allocated_node(&one), Some("n1"));
        for terms in [
            json!([{"matchFields": [name(&["n1", "n2"])]}]),
            json!([{"matchFields": [name(&["n1"])]}, {"matchFields": [name(&["n2"])]}]),
            json!([{"matchFields": [name(&["n1"])], "matchExpressions": [{"key": "a", "operator": "Exists"}]}]),
            json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]),
        ] {
            assert_eq!(allocated_node(&by(terms.clone())), None, "{terms}");
        }
        let mut account = User::service_account("a", "driver", "");
        assert!(!is_associated_with(&account, "n1"));
        account.extra.insert(NODE_NAME.into(), vec!["n1".into()]);
        assert!(is_associated_with(&account, "n1") && !is_associated_with(&account, "n2"));
        account.name = "ann".into();
        assert!(!is_associated_with(&account, "n1"));
    }
}
