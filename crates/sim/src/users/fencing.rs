//! What administrators with fence agents do about lost nodes: they create a FencingPolicy, request the fencing of
//! nodes themselves, and switch on hosts that are off when no fencing will.

use k8s_openapi::api::core::v1::Node;
use knarr_api::{k8s_openapi, registry};
use knarr_client::{Error, ListOptions, Patch};
use knarr_control::fencing_kinds::{Custom, FencingPolicy, NodeFencing, Phase};
use serde_json::json;

use super::{Users, unless_late};
use crate::coverage::Scope;
use crate::fence_agents::{AGENTS, Agents};
use crate::finding::Finding;
use crate::random::Stream;
use crate::switches::Switch;
use crate::world::is_ready;

/// The annotation that requests a node's fencing.
const FENCE_ANNOTATION: &str = "knarr.io/fence";
/// The phases of a fencing in which its node may be switched on by hand.
const RELEASED: &str = "all pods and volumes are released";

impl Users {
    /// Creates a policy. The kinds exist once the controllers run: tried again until then.
    pub async fn create_fencing_policy(&mut self, chance: &mut Stream) -> Result<bool, Error> {
        let agent = |name: &str, chance: &mut Stream| {
            json!({
                "agent": name,
                "timeoutSeconds": chance.between(4, 20),
                "retries": chance.between(0, 2),
            })
        };
        let mut levels = Vec::new();
        for name in AGENTS.iter().take(chance.pick(&[1, 1, 2]).copied().unwrap_or(1)) {
            let action = if chance.per_mille(250) { "reboot" } else { "off" };
            levels.push(json!({"name": name, "action": action, "agents": [agent(name, chance)]}));
        }
        let spec = json!({
            "automatic": chance.per_mille(750),
            "workloads": if chance.per_mille(500) { "Any" } else { "AtMostOne" },
            "unreachableSeconds": chance.between(0, 30),
            "maxConcurrent": chance.between(1, 2),
            "maxPerHour": chance.between(2, 20),
            "maxLostPercent": if chance.per_mille(500) { 50 } else { 100 },
            "retrySeconds": chance.between(10, 120),
            "automaticReturn": chance.per_mille(600),
            "levels": levels,
        });
        let policy = json!({
            "apiVersion": "safety.knarr.io/v1alpha1",
            "kind": "FencingPolicy",
            "metadata": {"name": "power"},
            "spec": spec,
        });
        match self.create(FencingPolicy::kind(), policy).await {
            Ok(_) => self.note(format!("create policy: {spec}")),
            Err(e) if e.is_not_found() => return Ok(false),
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// As `kubectl annotate node`: mostly of a node that is not reporting.
    pub async fn ask_for_fencing(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let nodes = self
            .api
            .list(&registry::NODE, ListOptions::default())
            .await?
            .items;
        let silent: Vec<_> = nodes
            .iter()
            .filter(|n| n.get::<Node>().is_some_and(|node| !is_ready(node)))
            .collect();
        let all: Vec<_> = nodes.iter().collect();
        let from = if silent.is_empty() || chance.per_mille(150) {
            &all
        } else {
            &silent
        };
        let Some(node) = chance.pick(from) else {
            return Ok(());
        };
        if !self.plan.does(Switch::AskForFencing) {
            return Ok(());
        }
        self.note(format!("fence {}", node.name()));
        self.observer
            .strikes(Switch::AskForFencing, Scope::Node(node.name()));
        let patch = Patch::Merge(json!({"metadata": {"annotations": {FENCE_ANNOTATION: "a user's wish"}}}));
        let asked = self.api.patch(&registry::NODE, "", node.name(), "", patch).await;
        unless_late(asked)
    }

    async fn fencings(&self) -> Result<Vec<NodeFencing>, Error> {
        match self.api.list(NodeFencing::kind(), ListOptions::default()).await {
            Ok(list) => Ok(list.items.iter().filter_map(|o| NodeFencing::of(o)).collect()),
            // The kinds are not defined yet.
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Switches on what is off, unless its fencing will, or has not finished with it.
    pub async fn switch_on(&mut self, agents: &Agents) -> Result<(), Error> {
        let off = agents.off();
        if off.is_empty() {
            return Ok(());
        }
        let fencings = self.fencings().await?;
        let policies = self
            .api
            .list(FencingPolicy::kind(), ListOptions::default())
            .await?;
        let mut policies = policies.items.iter().filter_map(|o| FencingPolicy::of(o));
        let automatic = policies.any(|p| p.spec.automatic_return);
        for node in off {
            let waits = fencings
                .iter()
                .filter(|f| f.spec.node_name == node.name)
                .any(|f| match f.status.phase {
                    Phase::Fencing | Phase::Returning => true,
                    Phase::Fenced => automatic || !f.status.message.starts_with(RELEASED),
                    Phase::Pending | Phase::Failed | Phase::Returned | Phase::Cancelled => false,
                });
            if !waits {
                self.note(format!("switch {} on", node.name));
                agents.switch_on(&node);
            }
        }
        Ok(())
    }

    /// A fencing that has not finished, or what is left of one.
    pub async fn unfinished_fencing(&self) -> Result<Option<Finding>, Error> {
        let over = |f: &NodeFencing| matches!(f.status.phase, Phase::Returned | Phase::Cancelled);
        let found = self.fencings().await?.into_iter().find(|f| !over(f)).map(|f| {
            Finding(format!(
                "{}'s fencing is still {:?}: {}",
                f.spec.node_name, f.status.phase, f.status.message
            ))
        });
        if found.is_some() {
            return Ok(found);
        }
        let nodes = self
            .api
            .list(&registry::NODE, ListOptions::default())
            .await?
            .items;
        let tainted = nodes
            .iter()
            .find(|n| n.get::<Node>().is_some_and(crate::world::is_fenced));
        Ok(tainted.map(|node| {
            Finding(format!(
                "{} is tainted as fenced, and no fencing is there",
                node.name()
            ))
        }))
    }
}
