//! Approves a node's request for the client certificate of its own network agent, if the node is allowed to make it
//! (`certificatesigningrequests/selfnetworkagent`).

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use knarr_api::certificates::{CLIENT_SIGNER, CertificateRequest};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use super::{approved, is_pending, network_agent_client, request};
use crate::action::{Action, LiveCheck};
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are requests.
pub struct NetworkAgentApprover;

impl Controller for NetworkAgentApprover {
    fn name(&self) -> &'static str {
        "network-agent-approving-controller"
    }

    fn account(&self) -> &'static str {
        "knarr-network-agent-approver"
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
        // The requester is the node itself, by its user name and group.
        let user = csr.spec.username.as_deref().unwrap_or_default();
        let groups = csr.spec.groups.as_deref().unwrap_or_default();
        let node = user.strip_prefix("system:node:").filter(|node| !node.is_empty());
        let (true, Some(node), true) = (
            is_pending(&csr, CLIENT_SIGNER),
            node,
            groups.iter().any(|group| group == "system:nodes"),
        ) else {
            return Vec::new();
        };
        let Ok(requested) = CertificateRequest::decode(&csr.spec.request.0) else {
            return Vec::new();
        };
        let usages = csr.spec.usages.as_deref().unwrap_or_default();
        if network_agent_client(&requested, usages, node).is_err() {
            return Vec::new();
        }
        let review = SubjectAccessReviewSpec {
            user: csr.spec.username.clone(),
            uid: csr.spec.uid.clone(),
            groups: csr.spec.groups.clone(),
            extra: csr.spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("certificates.k8s.io".into()),
                resource: Some("certificatesigningrequests".into()),
                verb: Some("create".into()),
                subresource: Some("selfnetworkagent".into()),
                version: Some("*".into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let message =
            "Auto approving the client certificate of the node's network agent after SubjectAccessReview.";
        vec![
            Action::Require(LiveCheck::Allowed {
                about: context.key.clone(),
                any_of: vec![review],
            }),
            Action::update_subresource(approved(&csr, message, context.now), "approval"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::certificates::KUBELET_CLIENT_SIGNER;
    use serde_json::json;

    use super::super::fake::csr;
    use super::super::{NETWORK_AGENT_PREFIX, NETWORK_AGENTS};
    use super::*;
    use crate::world::{World, at, lines};

    #[test]
    fn a4_a_node_gets_a_certificate_for_its_own_network_agent_only() {
        let own = json!({"cn": format!("{NETWORK_AGENT_PREFIX}n"), "o": [NETWORK_AGENTS]});
        let with = |key: &str, value| {
            let mut requested = own.clone();
            requested[key] = value;
            requested
        };
        let client = ["digital signature", "client auth"];
        let node = ("system:node:n", "system:nodes");
        for (what, (user, group), signer, usages, requested, approves) in [
            ("its own", node, CLIENT_SIGNER, client, own.clone(), true),
            (
                "another node's",
                ("system:node:m", "system:nodes"),
                CLIENT_SIGNER,
                client,
                own.clone(),
                false,
            ),
            (
                "a user of that name",
                ("system:node:n", "people"),
                CLIENT_SIGNER,
                client,
                own.clone(),
                false,
            ),
            (
                "another user",
                ("ann", "system:nodes"),
                CLIENT_SIGNER,
                client,
                own.clone(),
                false,
            ),
            (
                "a nameless node",
                ("system:node:", "system:nodes"),
                CLIENT_SIGNER,
                client,
                own.clone(),
                false,
            ),
            (
                "a server",
                node,
                CLIENT_SIGNER,
                ["digital signature", "server auth"],
                own.clone(),
                false,
            ),
            (
                "another signer",
                node,
                KUBELET_CLIENT_SIGNER,
                client,
                own.clone(),
                false,
            ),
            (
                "masters",
                node,
                CLIENT_SIGNER,
                client,
                with("o", json!(["system:masters"])),
                false,
            ),
            (
                "masters, too",
                node,
                CLIENT_SIGNER,
                client,
                with("o", json!([NETWORK_AGENTS, "system:masters"])),
                false,
            ),
            (
                "another name",
                node,
                CLIENT_SIGNER,
                client,
                with("cn", json!("admin")),
                false,
            ),
            (
                "a unit",
                node,
                CLIENT_SIGNER,
                client,
                with("ou", json!(["x"])),
                false,
            ),
            (
                "a host",
                node,
                CLIENT_SIGNER,
                client,
                with("dns", json!(["n"])),
                false,
            ),
        ] {
            let mut request = csr("x", signer, &usages, requested);
            request.spec.username = Some(user.into());
            request.spec.groups = Some(vec![group.into()]);
            let mut world = World::default();
            world.put(request);
            let actions = world.run(&NetworkAgentApprover, ("", "x"), at(0));
            assert_eq!(!lines(&actions).is_empty(), approves, "{what}");
        }
    }
}
