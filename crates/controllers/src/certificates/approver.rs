//! Approves a kubelet's request for a client certificate if the requester is allowed to make it: a node for itself
//! (`selfnodeclient`), a bootstrap token for any node (`nodeclient`).

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use knarr_api::certificates::{CertificateRequest, KUBELET_CLIENT_SIGNER};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use super::{approved, is_pending, kubelet_client, request};
use crate::action::{Action, LiveCheck};
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are requests.
pub struct Approver;

impl Controller for Approver {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-approving-controller"
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
        if !is_pending(&csr, KUBELET_CLIENT_SIGNER) {
            return Vec::new();
        }
        let Ok(parsed) = CertificateRequest::decode(&csr.spec.request.0) else {
            return Vec::new();
        };
        if kubelet_client(&parsed, csr.spec.usages.as_deref().unwrap_or_default()).is_err() {
            return Vec::new();
        }
        let own = csr.spec.username.as_deref() == Some(parsed.common_name());
        let permissions: &[&str] = if own {
            &["selfnodeclient", "nodeclient"]
        } else {
            &["nodeclient"]
        };
        let who = |permission: &&str| SubjectAccessReviewSpec {
            user: csr.spec.username.clone(),
            uid: csr.spec.uid.clone(),
            groups: csr.spec.groups.clone(),
            extra: csr.spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("certificates.k8s.io".into()),
                resource: Some("certificatesigningrequests".into()),
                verb: Some("create".into()),
                subresource: Some((*permission).to_string()),
                version: Some("*".into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let kind = if own { "self kubelet" } else { "kubelet" };
        let message = format!("Auto approving {kind} client certificate after SubjectAccessReview.");
        vec![
            Action::Require(LiveCheck::Allowed {
                about: context.key.clone(),
                any_of: permissions.iter().map(who).collect(),
            }),
            Action::update_subresource(approved(&csr, &message, context.now), "approval"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{csr, decide};
    use super::*;
    use crate::world::{World, at, lines};
    use serde_json::json;

    #[test]
    fn only_kubelet_client_requests_are_approved_and_only_if_the_requester_is_allowed() {
        let node = json!({"cn": "system:node:n", "o": ["system:nodes"]});
        let client = ["digital signature", "client auth"];
        let approves = [
            "require x may create certificatesigningrequests",
            "update certificatesigningrequests/approval x",
        ];
        let none: [&str; 0] = [];
        let fine = csr("x", KUBELET_CLIENT_SIGNER, &client, node.clone());
        let mut approved = fine.clone();
        decide(&mut approved, "Approved", at(0));
        let mut denied = fine.clone();
        decide(&mut denied, "Denied", at(0));
        let with = |key: &str, value| {
            let mut node = node.clone();
            node[key] = value;
            csr("x", KUBELET_CLIENT_SIGNER, &client, node)
        };
        let rsa = ["key encipherment", "digital signature", "client auth"];
        for (csr, expected) in [
            (fine, &approves[..]),
            (csr("x", KUBELET_CLIENT_SIGNER, &rsa, node.clone()), &approves[..]),
            (approved, &none[..]),
            (denied, &none[..]),
            (
                csr("x", "kubernetes.io/kubelet-serving", &client, node.clone()),
                &none[..],
            ),
            (
                csr("x", KUBELET_CLIENT_SIGNER, &["client auth"], node.clone()),
                &none[..],
            ),
            (
                csr(
                    "x",
                    KUBELET_CLIENT_SIGNER,
                    &["digital signature", "server auth"],
                    node.clone(),
                ),
                &none[..],
            ),
            (with("o", json!(["system:masters"])), &none[..]),
            (with("o", json!(["system:nodes", "system:masters"])), &none[..]),
            (with("cn", json!("admin")), &none[..]),
            (with("cn", json!("system:node:")), &none[..]),
            (with("ou", json!(["x"])), &none[..]),
            (with("dns", json!(["n"])), &none[..]),
            (with("ip", json!(["10.0.0.1"])), &none[..]),
        ] {
            let mut world = World::default();
            world.put(csr.clone());
            let actions = world.run(&Approver, ("", "x"), at(0));
            assert_eq!(lines(&actions), expected, "{csr:?}");
        }
    }

    #[test]
    fn a_node_that_requests_for_itself_has_a_permission_of_its_own() {
        let node = json!({"cn": "system:node:n", "o": ["system:nodes"]});
        let mut own = csr(
            "x",
            KUBELET_CLIENT_SIGNER,
            &["digital signature", "client auth"],
            node,
        );
        for (user, expected) in [
            ("system:node:n", vec!["selfnodeclient", "nodeclient"]),
            ("system:bootstrap:abcdef", vec!["nodeclient"]),
        ] {
            own.spec.username = Some(user.into());
            let mut world = World::default();
            world.put(own.clone());
            let actions = world.run(&Approver, ("", "x"), at(0));
            let Some(Action::Require(LiveCheck::Allowed { any_of, .. })) = actions.first() else {
                panic!("{actions:?}");
            };
            let checked: Vec<_> = any_of
                .iter()
                .filter_map(|s| s.resource_attributes.as_ref()?.subresource.clone())
                .collect();
            assert_eq!(checked, expected);
            assert!(any_of.iter().all(|s| s.user.as_deref() == Some(user)));
        }
    }
}
