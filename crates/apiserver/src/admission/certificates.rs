//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: CertificateSigningRequests are approved and
//! signed only by users with permission for their signer, and no request for an API client certificate may name
//! `system:masters`.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use knarr_api::certificates::{CLIENT_SIGNER, CertificateRequest};
use knarr_api::{AnyObject, k8s_openapi};
use knarr_apimachinery::Error;

use super::{Admission, Attributes, Operation};
use crate::authz;
use crate::request::Ctx;
use crate::user::MASTERS;

pub(super) fn validate(
    admission: &Admission,
    ctx: &Ctx,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let Some(request) = object.as_any().downcast_ref::<CertificateSigningRequest>() else {
        return Ok(());
    };
    let denied = |why: String| Err(attributes.forbidden(&request.metadata, &why));
    let old = attributes
        .old
        .and_then(|old| old.get::<CertificateSigningRequest>());
    let verb = match (attributes.target.subresource, old) {
        ("", _) if attributes.operation == Operation::Create => {
            return match subject_error(request) {
                Some(why) => denied(why),
                None => Ok(()),
            };
        }
        ("approval", Some(_)) => "approve",
        ("status", Some(old)) if changes_signature(old, request) => "sign",
        _ => return Ok(()),
    };
    // The old object's signer: an update cannot choose whose permission is checked.
    let signer = old.map_or("", |old| old.spec.signer_name.as_str());
    if is_authorized_for_signer(admission, ctx, verb, signer) {
        return Ok(());
    }
    denied(format!(
        "user not permitted to {verb} requests with signerName {signer:?}"
    ))
}

/// Whether a status update changes the certificate or the conditions.
fn changes_signature(old: &CertificateSigningRequest, new: &CertificateSigningRequest) -> bool {
    let certificate = |r: &CertificateSigningRequest| {
        let status = r.status.as_ref();
        status.and_then(|s| s.certificate.clone()).unwrap_or_default().0
    };
    let conditions = |r: &CertificateSigningRequest| {
        let status = r.status.as_ref();
        status.and_then(|s| s.conditions.clone()).unwrap_or_default()
    };
    certificate(old) != certificate(new) || conditions(old) != conditions(new)
}

/// Whether the user has this verb on the signer, or on all signers of its domain (IsAuthorizedForSignerName).
fn is_authorized_for_signer(admission: &Admission, ctx: &Ctx, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or("");
    [signer, &format!("{domain}/*")].into_iter().any(|name| {
        let request_attributes = authz::Attributes {
            verb,
            group: "certificates.k8s.io",
            resource: "signers",
            name,
            ..authz::Attributes::default()
        };
        admission.authorizer.allows(&ctx.user, &request_attributes)
    })
}

fn subject_error(request: &CertificateSigningRequest) -> Option<String> {
    if request.spec.signer_name != CLIENT_SIGNER {
        return None;
    }
    match CertificateRequest::decode(&request.spec.request.0) {
        Err(why) => Some(format!("failed to parse CSR: {why}")),
        Ok(read) if read.organizations().any(|group| group == MASTERS) => Some(format!(
            "use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"
        )),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    fn request(signer: &str, organization: &str) -> CertificateSigningRequest {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
        let pem = params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        serde_json::from_value(json!({
            "metadata": {"name": "r"},
            "spec": {"signerName": signer, "request": STANDARD.encode(pem), "usages": ["client auth"]},
        }))
        .unwrap()
    }

    #[test]
    fn no_client_certificate_may_name_system_masters() {
        for (signer, organization, expected) in [
            (
                CLIENT_SIGNER,
                "system:masters",
                Some(
                    "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
                ),
            ),
            (CLIENT_SIGNER, "dev", None),
            ("example.com/own", "system:masters", None),
        ] {
            assert_eq!(subject_error(&request(signer, organization)).as_deref(), expected);
        }
    }

    #[test]
    fn only_a_changed_certificate_or_condition_needs_the_sign_permission() {
        let plain = request(CLIENT_SIGNER, "dev");
        let mut signed = plain.clone();
        signed.status = serde_json::from_value(json!({"certificate": "YQ=="})).unwrap();
        let mut empty = plain.clone();
        empty.status = Some(Default::default());
        assert!(changes_signature(&plain, &signed));
        assert!(!changes_signature(&plain, &empty));
    }
}
