//! What administrators do with nodes: they drain and uncordon them, and set the out-of-service taint.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use knarr_api::{k8s_openapi, registry};
use knarr_client::{DeleteOptions, Error, ListOptions, Patch, TypedApi};
use serde_json::json;

use super::{Users, unless_late};
use crate::coverage::Scope;
use crate::random::Stream;
use crate::switches::Switch;
use crate::world::{OUT_OF_SERVICE, is_ready, node_of};

/// The value of that taint when a user sets it.
const DECLARED_DEAD: &str = "nodeshutdown";

/// What may be done to a node, with its weight; none: it is undone.
const ACTIONS: [(Option<Switch>, u64); 3] = [
    (Some(Switch::Drain), 4),
    (Some(Switch::OutOfService), 4),
    (None, 2),
];

fn is_users(taint: &Taint) -> bool {
    taint.key == OUT_OF_SERVICE && taint.value.as_deref() == Some(DECLARED_DEAD)
}

impl Users {
    /// One user action on a node.
    pub async fn act_on_a_node(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let plan = self.plan;
        let done = match chance.weighted(&ACTIONS, |action| action.is_none_or(|action| plan.draws(action))) {
            None => Ok(()),
            Some(Some(action)) if !plan.does(action) => Ok(()),
            Some(Some(Switch::Drain)) => self.drain(chance).await,
            Some(Some(_)) => self.declare_dead(chance).await,
            Some(None) => self.give_nodes_back().await,
        };
        match done {
            // Another request was faster.
            Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
            other => other,
        }
    }

    async fn nodes(&self) -> Result<Vec<Node>, Error> {
        let nodes = self.api.list(&registry::NODE, ListOptions::default()).await?;
        Ok(nodes
            .items
            .iter()
            .filter_map(|node| node.get::<Node>().cloned())
            .collect())
    }

    pub(super) async fn cordon(&self, name: &str, unschedulable: bool) -> Result<(), Error> {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        let patched = self.api.patch(&registry::NODE, "", name, "", patch).await;
        patched.map(drop)
    }

    /// As `kubectl drain`: the node is cordoned, and its pods are evicted.
    async fn drain(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let nodes = self.nodes().await?;
        let Some(name) = chance.pick(&nodes).and_then(|node| node.metadata.name.clone()) else {
            return Ok(());
        };
        self.note(format!("drain {name}"));
        self.observer.strikes(Switch::Drain, Scope::Node(&name));
        self.cordon(&name, true).await?;
        for pod in self.pods().await? {
            let on_it = pod.get::<Pod>().is_some_and(|pod| node_of(pod) == name);
            if !on_it || pod.metadata().deletion_timestamp.is_some() {
                continue;
            }
            self.evict(&pod).await?;
        }
        Ok(())
    }

    /// Deletes these Nodes, as a cloud's controller does when their machines are gone.
    pub async fn delete_nodes(&mut self, names: &[String]) -> Result<(), Error> {
        for name in names {
            self.note(format!("delete node {name}"));
            let deleted = self
                .api
                .delete(&registry::NODE, "", name, DeleteOptions::default());
            unless_late(deleted.await)?;
        }
        Ok(())
    }

    /// Declares a node that is not ready as down (out-of-service taint), whether it is or not: its answer is not
    /// waited for.
    async fn declare_dead(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let mut nodes = self.nodes().await?;
        nodes.retain(|node| !is_ready(node));
        let Some(mut node) = chance.pick(&nodes).cloned() else {
            return Ok(());
        };
        let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
        if taints.iter().any(|t| t.key == OUT_OF_SERVICE) {
            return Ok(());
        }
        taints.push(Taint {
            key: OUT_OF_SERVICE.into(),
            value: Some(DECLARED_DEAD.into()),
            effect: "NoExecute".into(),
            time_added: None,
        });
        let name = node.metadata.name.clone().unwrap_or_default();
        self.note(format!("{name} is out of service"));
        self.observer.strikes(Switch::OutOfService, Scope::Node(&name));
        self.api.update_as(node).await.map(drop)
    }

    /// Uncordons nodes and removes their taints, at least of those that are ready.
    pub async fn give_nodes_back(&mut self) -> Result<(), Error> {
        for mut node in self.nodes().await? {
            let name = node.metadata.name.clone().unwrap_or_default();
            let ready = is_ready(&node);
            let Some(spec) = &mut node.spec else { continue };
            let cordoned = spec.unschedulable == Some(true);
            let declared_dead = spec.taints.iter().flatten().any(is_users);
            if !(cordoned || declared_dead && ready) {
                continue;
            }
            self.note(format!("give {name} back"));
            spec.unschedulable = None;
            if ready {
                spec.taints.get_or_insert_default().retain(|t| !is_users(t));
            }
            unless_late(self.api.update_as(node).await)?;
        }
        Ok(())
    }
}
