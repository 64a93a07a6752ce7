//! What the server itself sets in an object of some kinds: times, since the rules of a kind have no clock, and the requester.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::resource::v1::ResourceSlice;
use knarr_api::certificates::{IN_PROCESS, KUBELET_SERVING_SIGNER, REMOTE_ADDRESS};
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::{AnyObject, k8s_openapi};
use knarr_apimachinery::time::seconds;
use knarr_strategy::Part;

use crate::request::{Ctx, Origin};

/// Defaults that are times: a device taint's `timeAdded` is the time of the write, unless the client set it.
pub(super) fn default_times(object: &mut dyn AnyObject, now: Timestamp) {
    let Some(slice) = object.as_any_mut().downcast_mut::<ResourceSlice>() else {
        return;
    };
    for device in slice.spec.devices.iter_mut().flatten() {
        for taint in device.taints.iter_mut().flatten() {
            taint.time_added.get_or_insert_with(|| seconds(now));
        }
    }
}

/// Records the requester of a CertificateSigningRequest and, where its signer decides by it, the client's address, replacing what the client sent.
pub(super) fn record_requester(ctx: &Ctx, object: &mut dyn AnyObject) {
    if let Some(csr) = object.as_any_mut().downcast_mut::<CertificateSigningRequest>() {
        let user = &ctx.user;
        csr.spec.username = Some(user.name.clone()).filter(|n| !n.is_empty());
        csr.spec.uid = Some(user.uid.clone()).filter(|u| !u.is_empty());
        csr.spec.groups = Some(user.groups.clone()).filter(|g| !g.is_empty());
        let mut extra = user.extra.clone();
        // Only the server sets this.
        extra.remove(REMOTE_ADDRESS);
        // Requests for serving certificates are approved by the client's address.
        if csr.spec.signer_name == KUBELET_SERVING_SIGNER {
            let origin = match ctx.origin {
                Origin::Unknown => None,
                Origin::InProcess => Some(IN_PROCESS.to_string()),
                Origin::Remote(address) => Some(address.to_canonical().to_string()),
            };
            extra.extend(origin.map(|o| (REMOTE_ADDRESS.to_string(), vec![o])));
        }
        csr.spec.extra = Some(extra).filter(|e| !e.is_empty());
    }
}

/// Sets the times in `new`, which is an update of `part` of `old`.
pub(super) fn stamp(new: &mut dyn AnyObject, old: &dyn AnyObject, part: Part, now: Timestamp) {
    if part == Part::Main {
        return;
    }
    if let (Some(new), Some(old)) = (
        new.as_any_mut().downcast_mut::<CertificateSigningRequest>(),
        old.as_any().downcast_ref(),
    ) {
        certificate_signing_request(new, old, now);
    } else if let (Some(new), Some(old)) = (
        new.as_any_mut().downcast_mut::<PersistentVolume>(),
        old.as_any().downcast_ref(),
    ) {
        persistent_volume(new, old, now);
    }
}

/// A condition without times gets them; one whose status has not changed keeps its transition time.
fn certificate_signing_request(
    new: &mut CertificateSigningRequest,
    old: &CertificateSigningRequest,
    now: Timestamp,
) {
    let before = old.status.as_ref().and_then(|s| s.conditions.as_deref());
    let conditions = new
        .status
        .iter_mut()
        .flat_map(|s| s.conditions.iter_mut().flatten());
    for condition in conditions {
        condition.last_update_time.get_or_insert_with(|| seconds(now));
        if condition.last_transition_time.is_none() {
            let mut same = before.unwrap_or_default().iter();
            let same = same.find(|c| c.type_ == condition.type_ && c.status == condition.status);
            let turned = same.and_then(|c| c.last_transition_time.clone());
            condition.last_transition_time = Some(turned.unwrap_or_else(|| seconds(now)));
        }
    }
}

/// A change of the phase sets its transition time, unless the client set one.
fn persistent_volume(new: &mut PersistentVolume, old: &PersistentVolume, now: Timestamp) {
    let before = old.status.clone().unwrap_or_default();
    let status = new.status.get_or_insert_default();
    let given = status.last_phase_transition_time.is_some()
        && status.last_phase_transition_time != before.last_phase_transition_time;
    if status.phase != before.phase && !given {
        status.last_phase_transition_time = Some(seconds(now));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeStatus;

    use super::*;

    #[test]
    fn a1_a_device_taints_time_added_is_the_time_of_the_write_unless_it_is_set() {
        let given = "2020-01-01T00:00:00Z";
        let taint = |key: &str| serde_json::json!({"key": key, "effect": "NoSchedule"});
        let mut with_time = taint("b");
        with_time["timeAdded"] = given.into();
        let device = serde_json::json!({"name": "d", "taints": [taint("a"), with_time]});
        let pool = serde_json::json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        let slice = serde_json::json!({"metadata": {"name": "s"},
            "spec": {"driver": "d", "pool": pool, "devices": [device]}});
        let mut slice: ResourceSlice = serde_json::from_value(slice).unwrap();
        default_times(&mut slice, Timestamp::UNIX_EPOCH);
        let slice = serde_json::to_value(slice).unwrap();
        let times = &slice["spec"]["devices"][0]["taints"];
        assert_eq!(times[0]["timeAdded"], "1970-01-01T00:00:00Z");
        assert_eq!(times[1]["timeAdded"], given);
    }

    #[test]
    fn a_change_of_the_phase_sets_its_transition_time() {
        let of = |phase: &str, at: Option<i64>| PersistentVolume {
            status: Some(PersistentVolumeStatus {
                phase: Some(phase.into()),
                last_phase_transition_time: at.map(|s| seconds(Timestamp::from_second(s).unwrap())),
                ..PersistentVolumeStatus::default()
            }),
            ..PersistentVolume::default()
        };
        let now = Timestamp::from_second(9).unwrap();
        for (new, stamped) in [
            (of("Bound", None), Some(9)),
            (of("Bound", Some(1)), Some(9)),
            (of("Bound", Some(5)), Some(5)),
            (of("Available", Some(1)), Some(1)),
        ] {
            let mut volume = new;
            stamp(&mut volume, &of("Available", Some(1)), Part::Status, now);
            let phase = volume.status.clone().unwrap().phase.unwrap();
            assert_eq!(volume, of(&phase, stamped));
        }
    }
}
