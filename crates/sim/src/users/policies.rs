//! What users do with NetworkPolicies, and with the labels that they select. No policy is changed: it is deleted, and
//! another one created.

use knarr_api::registry;
use knarr_client::{DeleteOptions, Error, Patch};
use serde_json::{Value, json};

use super::{NAMESPACE, Users, unless_late, workloads};
use crate::random::Stream;

const NAMES: u64 = 5;
/// On pods and on the namespace.
const LABEL: &str = "tier";
const VALUES: [&str; 2] = ["front", "back"];

fn app(chance: &mut Stream) -> Value {
    let prefix = if chance.per_mille(500) { "web" } else { "db" };
    json!({"matchLabels": {"app": format!("{prefix}{}", chance.between(1, workloads::NAMES))}})
}

fn tier(chance: &mut Stream) -> Value {
    json!({"matchLabels": {LABEL: VALUES[usize::from(chance.per_mille(500))]}})
}

/// The peers that a rule allows.
fn peer(chance: &mut Stream) -> Value {
    match chance.between(0, 3) {
        0 => json!({"podSelector": app(chance)}),
        1 => json!({"podSelector": tier(chance)}),
        2 => json!({"namespaceSelector": tier(chance)}),
        _ => json!({"namespaceSelector": tier(chance), "podSelector": app(chance)}),
    }
}

fn spec(chance: &mut Stream) -> (Value, &'static str) {
    let ports = match chance.per_mille(300) {
        true => json!([{"protocol": "TCP", "port": 80}]),
        false => json!([]),
    };
    match chance.between(0, 9) {
        0 | 1 => (
            json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
            "default-deny of all",
        ),
        2..5 => (
            json!({"podSelector": app(chance), "policyTypes": ["Ingress"]}),
            "default-deny of one",
        ),
        5..8 => (
            json!({"podSelector": app(chance), "policyTypes": ["Ingress"],
                   "ingress": [{"from": [peer(chance), peer(chance)], "ports": ports}]}),
            "some ingress",
        ),
        8 => (
            json!({"podSelector": tier(chance), "policyTypes": ["Ingress"],
                   "ingress": [{"from": [{"podSelector": {}}], "ports": ports}]}),
            "ingress from its namespace",
        ),
        _ => (
            json!({"podSelector": app(chance), "policyTypes": ["Egress"],
                   "egress": [{"to": [peer(chance)], "ports": ports}]}),
            "some egress",
        ),
    }
}

impl Users {
    /// One user action with policies.
    pub async fn act_with_policies(&mut self, chance: &mut Stream) -> Result<(), Error> {
        match chance.between(0, 9) {
            0..5 => self.create_policy(chance).await,
            5 | 6 => self.delete_policy(chance).await,
            7 | 8 => self.label_a_pod(chance).await,
            _ => self.label_the_namespace(chance).await,
        }
    }

    pub async fn create_policy(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let name = format!("policy{}", chance.between(1, NAMES));
        let (spec, what) = spec(chance);
        self.note(format!("create networkpolicies {name}: {what}"));
        let policy = json!({"metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec});
        match self.create(&registry::NETWORK_POLICY, policy).await {
            Err(e) if e.is_already_exists() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn delete_policy(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let name = format!("policy{}", chance.between(1, NAMES));
        self.note(format!("delete networkpolicies {name}"));
        let options = DeleteOptions::default();
        let deleted = self
            .api
            .delete(&registry::NETWORK_POLICY, NAMESPACE, &name, options);
        unless_late(deleted.await)
    }

    async fn label_a_pod(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let pods = self.pods().await?;
        let Some(pod) = chance.pick(&pods).cloned() else {
            return Ok(());
        };
        let value = VALUES[usize::from(chance.per_mille(500))];
        self.note(format!("label pod {} {value}", pod.name()));
        let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid(), "labels": {LABEL: value}}}));
        let patched = self
            .api
            .patch(&registry::POD, NAMESPACE, pod.name(), "", patch)
            .await;
        unless_late(patched)
    }

    async fn label_the_namespace(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let value = VALUES[usize::from(chance.per_mille(500))];
        self.note(format!("label namespace {value}"));
        let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: value}}}));
        let patched = self.api.patch(&registry::NAMESPACE, "", NAMESPACE, "", patch);
        patched.await.map(drop)
    }
}
