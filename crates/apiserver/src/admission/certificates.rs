//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: certificates are approved and signed only by
//! those who may for their signer, and none for the API server's clients names the group that may do everything.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use knarr_api::certificates::CertificateRequest;
use knarr_api::{AnyObject, Error, k8s_openapi};

use super::{Attributes, Operation};
use crate::authz;
use crate::pipeline::Ctx;
use crate::server::Server;
use crate::user::MASTERS;

/// Signs for clients of the API server.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub(super) fn validate(
    server: &Server,
    ctx: &Ctx,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let Some(request) = object.as_any().downcast_ref::<CertificateSigningRequest>() else {
        return Ok(());
    };
    let refused = |why: String| Err(attributes.forbidden(&request.metadata, &why));
    let old = attributes
        .old
        .and_then(|old| old.get::<CertificateSigningRequest>());
    let verb = match (attributes.target.subresource, old) {
        ("", _) if attributes.operation == Operation::Create => {
            return match subject_mistake(request) {
                Some(why) => refused(why),
                None => Ok(()),
            };
        }
        ("approval", Some(_)) => "approve",
        ("status", Some(old)) if signs(old, request) => "sign",
        _ => return Ok(()),
    };
    // Of the old one: who may is not chosen by whom is asked.
    let signer = old.map_or("", |old| old.spec.signer_name.as_str());
    if may(server, ctx, verb, signer) {
        return Ok(());
    }
    refused(format!(
        "user not permitted to {verb} requests with signerName {signer:?}"
    ))
}

/// Whether a status brings a certificate or other conditions.
fn signs(old: &CertificateSigningRequest, new: &CertificateSigningRequest) -> bool {
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

/// Whether the user may for this signer, or for all of its domain.
fn may(server: &Server, ctx: &Ctx, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or("");
    [signer, &format!("{domain}/*")].into_iter().any(|name| {
        let question = authz::Attributes {
            verb,
            group: "certificates.k8s.io",
            resource: "signers",
            name,
            ..authz::Attributes::default()
        };
        server.authorizer.allows(&ctx.user, &question)
    })
}

fn subject_mistake(request: &CertificateSigningRequest) -> Option<String> {
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
    fn nobody_becomes_a_master_by_a_certificate() {
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
            assert_eq!(
                subject_mistake(&request(signer, organization)).as_deref(),
                expected
            );
        }
    }

    #[test]
    fn only_a_certificate_or_a_condition_is_a_signature() {
        let plain = request(CLIENT_SIGNER, "dev");
        let mut signed = plain.clone();
        signed.status = serde_json::from_value(json!({"certificate": "YQ=="})).unwrap();
        let mut empty = plain.clone();
        empty.status = Some(Default::default());
        assert!(signs(&plain, &signed));
        assert!(!signs(&plain, &empty));
    }
}
