//! Times that the server writes into a status when somebody changes what they are of: the rules of a kind have no clock.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::strategy::Part;
use knarr_api::time::seconds;
use knarr_api::{AnyObject, k8s_openapi};

/// Puts the times into `new`, which an update of `part` makes of `old`.
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

/// A condition without its times gets them; one that has not turned keeps when it did.
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

/// A phase that changes takes its time along, unless its writer gave one.
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
    fn a_phase_takes_its_time_along() {
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
