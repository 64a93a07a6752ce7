//! Signs approved requests for Kubernetes' own signers with the signer's CA, if they meet the signer's rules.
//!
//! `kubernetes.io/legacy-unknown` is not signed: certificates.k8s.io/v1 admits no request for it, and each CA here has one
//! purpose.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use knarr_api::certificates::{
    CLIENT_SIGNER, CertificateRequest, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER, RequestError,
};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};
use knarr_apimachinery::time::seconds;

use super::{
    Authority, Ca, InvalidRequest, SignError, certificate, client, has_condition, kubelet_client,
    kubelet_serving, request,
};
use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are requests.
pub struct Signer(pub Arc<dyn Authority>);

impl Controller for Signer {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-signing-controller"
    }

    fn account(&self) -> &'static str {
        "certificate-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::CERTIFICATE_SIGNING_REQUEST]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        changed
            .key_of(&registry::CERTIFICATE_SIGNING_REQUEST)
            .into_iter()
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(csr) = request(context) else {
            return Vec::new();
        };
        let open = has_condition(&csr, "Approved")
            && !has_condition(&csr, "Denied")
            && !has_condition(&csr, "Failed");
        let ours = [CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER]
            .contains(&csr.spec.signer_name.as_str());
        if !open || !ours || certificate(&csr).is_some() {
            return Vec::new();
        }
        let mut new = (*csr).clone();
        let status = new.status.get_or_insert_default();
        match self.signed(&csr, context) {
            Ok(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
            Err(why) => status
                .conditions
                .get_or_insert_default()
                .push(CertificateSigningRequestCondition {
                    type_: "Failed".into(),
                    status: "True".into(),
                    reason: Some("SignerValidationFailure".into()),
                    message: Some(why.to_string()),
                    last_update_time: Some(seconds(context.now)),
                    last_transition_time: Some(seconds(context.now)),
                }),
        }
        vec![Action::update_status(new)]
    }
}

/// Why a request is not signed: the message of its condition Failed, which has the cause in it, as in Kubernetes.
#[derive(Debug, thiserror::Error)]
enum SignerError {
    #[error("unable to parse csr {name:?}: {source}")]
    Unreadable { name: String, source: RequestError },
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error(transparent)]
    Authority(SignError),
}

impl Signer {
    fn signed(&self, csr: &CertificateSigningRequest, context: &Context<'_>) -> Result<String, SignerError> {
        let usages = csr.spec.usages.as_deref().unwrap_or_default();
        let request =
            CertificateRequest::decode(&csr.spec.request.0).map_err(|source| SignerError::Unreadable {
                name: csr.metadata.name.clone().unwrap_or_default(),
                source,
            })?;
        let ca = match csr.spec.signer_name.as_str() {
            KUBELET_SERVING_SIGNER => {
                kubelet_serving(&request, usages)?;
                Ca::KubeletServing
            }
            KUBELET_CLIENT_SIGNER => {
                kubelet_client(&request, usages)?;
                Ca::Client
            }
            _ => {
                client(usages)?;
                Ca::Client
            }
        };
        self.0
            .sign(ca, &request, usages, csr.spec.expiration_seconds, context.now)
            .map_err(SignerError::Authority)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, csr, decide};
    use super::*;
    use crate::world::{World, at, lines, updated};
    use serde_json::json;

    #[test]
    fn what_was_approved_is_signed_if_it_is_what_the_signer_signs() {
        let node = json!({"cn": "system:node:n", "o": ["system:nodes"]});
        let serving = json!({"cn": "system:node:n", "o": ["system:nodes"], "ip": ["10.0.0.1"]});
        let for_client = ["digital signature", "client auth"];
        let for_server = ["digital signature", "server auth"];
        for (signer, usages, request, wrong) in [
            (KUBELET_CLIENT_SIGNER, for_client, node.clone(), None),
            (
                KUBELET_CLIENT_SIGNER,
                for_server,
                node.clone(),
                Some("usages did not match [client auth digital signature key encipherment]"),
            ),
            (KUBELET_SERVING_SIGNER, for_server, serving.clone(), None),
            (
                KUBELET_SERVING_SIGNER,
                for_server,
                node.clone(),
                Some("DNS or IP subjectAltName is required"),
            ),
            (
                KUBELET_SERVING_SIGNER,
                for_server,
                json!({"cn": "x", "o": ["system:nodes"], "ip": ["::1"]}),
                Some("subject common name does not begin with system:node:"),
            ),
            (CLIENT_SIGNER, for_client, json!({"cn": "ann"}), None),
            (
                CLIENT_SIGNER,
                for_server,
                json!({"cn": "ann"}),
                Some("invalid usage for client certificate: server auth"),
            ),
        ] {
            let mut approved = csr("x", signer, &usages, request);
            decide(&mut approved, "Approved", at(0));
            let mut world = World::default();
            world.put(approved);
            let run = |world: &World| world.run(&Signer(Arc::new(Fake)), ("", "x"), at(0));
            let actions = run(&world);
            let new: CertificateSigningRequest = updated(&actions, "status").unwrap();
            let failed = new.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let failed = failed.into_iter().find(|c| c.type_ == "Failed");
            assert_eq!(failed.and_then(|c| c.message.as_deref()), wrong, "{signer}");
            assert_eq!(certificate(&new).is_some(), wrong.is_none(), "{signer}");
            world.take(&actions);
            assert!(run(&world).is_empty(), "it is signed once: {signer}");
        }
    }

    #[test]
    fn a4_each_signer_has_its_own_ca() {
        let serving = json!({"cn": "system:node:n", "o": ["system:nodes"], "ip": ["10.0.0.1"]});
        let client = json!({"cn": "system:node:n", "o": ["system:nodes"]});
        for (signer, usage, request, ca) in [
            (CLIENT_SIGNER, "client auth", client.clone(), "Client"),
            (KUBELET_CLIENT_SIGNER, "client auth", client, "Client"),
            (KUBELET_SERVING_SIGNER, "server auth", serving, "KubeletServing"),
        ] {
            let mut approved = csr("x", signer, &["digital signature", usage], request);
            decide(&mut approved, "Approved", at(0));
            let mut world = World::default();
            world.put(approved);
            let actions = world.run(&Signer(Arc::new(Fake)), ("", "x"), at(0));
            let new: CertificateSigningRequest = updated(&actions, "status").unwrap();
            let signed: serde_json::Value = serde_json::from_slice(certificate(&new).unwrap()).unwrap();
            assert_eq!(signed["ca"], ca, "{signer}");
        }
    }

    #[test]
    fn a1_a_request_that_cannot_be_read_fails_with_the_reason() {
        let mut approved = csr("x", CLIENT_SIGNER, &["client auth"], json!({"cn": "ann"}));
        approved.spec.request.0.extend(b"and more");
        decide(&mut approved, "Approved", at(0));
        let mut world = World::default();
        world.put(approved);
        let actions = world.run(&Signer(Arc::new(Fake)), ("", "x"), at(0));
        let new: CertificateSigningRequest = updated(&actions, "status").unwrap();
        assert!(certificate(&new).is_none());
        let conditions = new.status.and_then(|s| s.conditions).unwrap_or_default();
        let failed = conditions.iter().find(|c| c.type_ == "Failed").unwrap();
        assert_eq!(failed.reason.as_deref(), Some("SignerValidationFailure"));
        let message = failed.message.as_deref().unwrap();
        assert!(message.contains("must be one PEM block"), "{message}");
    }

    #[test]
    fn nothing_is_signed_without_approval_or_for_other_signers() {
        let request = json!({"cn": "ann"});
        let open = csr("x", CLIENT_SIGNER, &["client auth"], request.clone());
        let mut denied = open.clone();
        decide(&mut denied, "Approved", at(0));
        decide(&mut denied, "Denied", at(0));
        let mut foreign = csr("x", "example.com/x", &["client auth"], request.clone());
        decide(&mut foreign, "Approved", at(0));
        let mut legacy = csr("x", "kubernetes.io/legacy-unknown", &["client auth"], request);
        decide(&mut legacy, "Approved", at(0));
        for csr in [open, denied, foreign, legacy] {
            let mut world = World::default();
            world.put(csr);
            let actions = world.run(&Signer(Arc::new(Fake)), ("", "x"), at(0));
            assert!(lines(&actions).is_empty(), "{actions:?}");
        }
    }
}
