//! Deletes CertificateSigningRequests that are no longer needed: approved, denied or failed an hour ago, pending for a day,
//! or with an expired certificate.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::{Kind, registry};

use super::{Authority, certificate};
use crate::action::{Action, Delete};
use crate::controller::View;
use crate::sweep::Sweep;

const DECIDED_KEPT: SignedDuration = SignedDuration::from_hours(1);
const PENDING_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// See the module.
pub struct Cleaner(pub Arc<dyn Authority>);

impl Sweep for Cleaner {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-cleaner-controller"
    }

    fn account(&self) -> &'static str {
        "certificate-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::CERTIFICATE_SIGNING_REQUEST]
    }

    fn period(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn sweep(&mut self, view: &dyn View, now: Timestamp) -> Vec<Vec<Action>> {
        view.list(&registry::CERTIFICATE_SIGNING_REQUEST, "")
            .iter()
            .filter(|o| o.get().is_some_and(|csr| self.is_no_longer_needed(csr, now)))
            .map(|o| vec![Action::Delete(Delete::of(o))])
            .collect()
    }
}

impl Cleaner {
    fn is_no_longer_needed(&self, csr: &CertificateSigningRequest, now: Timestamp) -> bool {
        let made = csr.metadata.creation_timestamp.as_ref().map(|t| t.0);
        let conditions: Vec<_> = csr
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .collect();
        if conditions.is_empty() {
            return made.is_some_and(|t| t + PENDING_KEPT < now);
        }
        let issued = certificate(csr);
        conditions.iter().any(|c| {
            let old = c
                .last_update_time
                .as_ref()
                .is_some_and(|t| t.0 + DECIDED_KEPT < now);
            match c.type_.as_str() {
                "Denied" | "Failed" => old,
                "Approved" => match issued {
                    Some(pem) => old || self.0.expires(pem).is_some_and(|t| t < now),
                    // It was not signed for a day.
                    None => c
                        .last_update_time
                        .as_ref()
                        .is_some_and(|t| t.0 + PENDING_KEPT < now),
                },
                _ => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, csr, decide};
    use super::*;
    use crate::world::{World, at};
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    #[test]
    fn requests_are_deleted_when_they_are_no_longer_needed() {
        let (hour, day) = (3600, 24 * 3600);
        for (what, ends, after, expected) in [
            (None, None, day, false),
            (None, None, day + 1, true),
            (Some("Denied"), None, hour, false),
            (Some("Denied"), None, hour + 1, true),
            (Some("Failed"), None, hour + 1, true),
            (Some("Approved"), None, hour + 1, false),
            (Some("Approved"), None, day + 1, true),
            (Some("Approved"), Some(day), hour + 1, true),
            (Some("Approved"), Some(60), 60, false),
            (Some("Approved"), Some(60), 61, true),
        ] {
            let mut found = csr("x", "s/x", &["client auth"], json!({}));
            found.metadata.creation_timestamp = Some(Time(at(0)));
            if let Some(type_) = what {
                decide(&mut found, type_, at(0));
            }
            if let Some(ends) = ends {
                let pem = json!({"ends": at(ends).as_second()}).to_string();
                found.status.get_or_insert_default().certificate = Some(ByteString(pem.into_bytes()));
            }
            let mut world = World::default();
            world.put(found);
            let deleted = !Cleaner(Arc::new(Fake)).sweep(&world, at(after)).is_empty();
            assert_eq!(deleted, expected, "{what:?} {ends:?} after {after} s");
        }
    }
}
