//! The filter plugins on one node and on all, with and without the pods that are nominated to it.

use std::borrow::Cow;
use std::sync::Arc;

use super::nominated_in_domains::ChangedPod;
use super::{ClassState, CycleState};
use crate::cluster::{Cluster, NodeIndex};
use crate::node_info::NodeInfo;
use crate::plugins::{self, UnschedulableStatus, node_name};
use crate::pod_info::PodInfo;
use crate::profile::Profile;
use crate::verdict::{FEASIBLE, NO_NODE};

impl ClassState {
    /// Runs the filters that read one node only; `None`: there is no such node.
    pub(super) fn filter_node(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        node: &NodeInfo,
        pod_changes: &[(&PodInfo, i64)],
    ) -> Option<Result<(), UnschedulableStatus>> {
        node.node.as_ref()?;
        if let Some(named) = &self.named
            && !named.contains(&node.name)
        {
            return Some(Err(UnschedulableStatus {
                plugin: "",
                reasons: vec![Cow::Borrowed("node(s) didn't satisfy plugin(s) [NodeAffinity]")],
                resolvable: false,
            }));
        }
        if profile.filters(node_name::NAME)
            && let Err(rejection) = node_name::filter(&self.node_name, node)
        {
            // A cordoned node is rejected for that first.
            let first = plugins::FILTERS.first().filter(|(name, _)| profile.filters(name));
            let earlier = first.and_then(|(_, filter)| filter(profile, &self.class, node).err());
            return Some(Err(earlier.unwrap_or(rejection)));
        }
        let verdict = plugins::filter(profile, &self.class, node);
        Some(match &self.storage {
            Some(storage) => verdict.and_then(|()| storage.filter(cluster.volumes(), node, pod_changes)),
            None => verdict,
        })
    }

    /// The same, with and without the pods of equal or higher priority that are nominated to the node.
    pub(super) fn filter_local(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        node: &NodeInfo,
    ) -> Option<Result<(), UnschedulableStatus>> {
        let ahead = node.nominated.iter();
        let mut ahead = ahead.filter(|n| n.priority() >= self.class.priority).peekable();
        if ahead.peek().is_some() {
            let mut with = node.clone();
            let mut more: Vec<(&PodInfo, i64)> = Vec::new();
            for nominated in ahead {
                with.add_pod(nominated);
                more.push((nominated, 1));
            }
            match self.filter_node(profile, cluster, &with, &more) {
                Some(Ok(())) => {}
                verdict => return verdict,
            }
        }
        self.filter_node(profile, cluster, node, &[])
    }

    /// Runs all filters on a node, with these pods added (1) or removed (-1) compared with the snapshot.
    fn filter_with_changes(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        index: NodeIndex,
        node: &NodeInfo,
        pod_changes: &[(&PodInfo, i64)],
    ) -> Result<(), UnschedulableStatus> {
        match self.filter_node(profile, cluster, node, pod_changes) {
            None => return Err(UnschedulableStatus::unresolvable("", "node not found")),
            Some(verdict) => verdict?,
        }
        let spread = pod_changes
            .iter()
            .map(|(p, one)| (&self.known(p.class.id).spread, *one));
        if self.spread.filters() {
            self.spread.filter(cluster, index, spread)?;
        }
        let affinity = pod_changes
            .iter()
            .map(|(p, one)| (&self.known(p.class.id).affinity, *one));
        if self.affinity.filters() {
            self.affinity.filter(cluster, index, affinity)?;
        }
        Ok(())
    }

    /// Prepares [`ClassState::filter_with_nominated_pods`] for the pods nominated to a node.
    pub fn add_nominated_interactions(&mut self, cluster: &mut Cluster, index: NodeIndex) {
        let nominated = cluster.at(index).nominated.clone();
        for pod in nominated {
            if !self.interactions.contains_key(&pod.class.id) {
                self.interaction(cluster, &pod.class);
            }
        }
    }

    /// Runs all filters on a node, which may be a simulated one, with the nominated pods of equal or higher priority
    /// and without them; both must pass (RunFilterPluginsWithNominatedPods in kube-scheduler). So must the pod next to what
    /// pods keep that are nominated in topology domains (SPEC B5).
    pub fn filter_with_nominated_pods(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        pod: &PodInfo,
        index: NodeIndex,
        node: &NodeInfo,
        pod_changes: &[(&PodInfo, i64)],
    ) -> Result<(), UnschedulableStatus> {
        let nominated = cluster.at(index).nominated.iter();
        let nominated: Vec<&Arc<PodInfo>> = nominated
            .filter(|n| n.priority() >= pod.priority() && n.uid() != pod.uid())
            .collect();
        if !nominated.is_empty() {
            let mut with = node.clone();
            let mut more = pod_changes.to_vec();
            for nominated in nominated {
                with.add_pod(nominated);
                more.push((nominated, 1));
            }
            self.filter_with_changes(profile, cluster, index, &with, &more)?;
        }
        self.filter_with_changes(profile, cluster, index, node, pod_changes)?;
        // Then what pods that are nominated to other nodes keep here.
        let removed = pod_changes.iter().map(|(pod, count)| ChangedPod {
            node: index,
            pod,
            count: *count,
        });
        self.filter_with_nominated_in_domains(profile, cluster, pod, index, removed)
    }

    /// Filters all nodes for a pod of the class; [`CycleState::collect`] then has the feasible ones. `own` is the
    /// node that the pod itself is nominated to.
    pub fn filter(
        &mut self,
        profile: &Profile,
        cluster: &mut Cluster,
        pod: &PodInfo,
        own: Option<NodeIndex>,
        cycle: &mut CycleState,
    ) {
        // Where only filters that read one node apply, the columns include nominated pods already.
        let nominations: Vec<NodeIndex> = if self.is_local() {
            own.into_iter().collect()
        } else {
            cluster.nominations().iter().copied().collect()
        };
        for index in &nominations {
            self.add_nominated_interactions(cluster, *index);
        }
        let (spread, affinity) = (self.spread.filters(), self.affinity.filters());
        cycle.verdicts.clear();
        cycle.verdicts.extend_from_slice(&self.local);
        let verdicts = cycle.verdicts.as_mut_slice();
        let statuses = &mut self.statuses;
        if spread {
            self.spread.filter_all(cluster, verdicts, |r| statuses.number(r));
        }
        if affinity {
            self.affinity
                .filter_all(cluster, verdicts, |r| statuses.number(r));
        }
        for index in nominations {
            let node = cluster.at(index);
            let at = index as usize;
            let matters = node.nominated.iter().any(|n| n.priority() >= pod.priority());
            let open = own == Some(index) || self.local.get(at) == Some(&FEASIBLE);
            if matters && open && cycle.verdicts.get(at).is_some_and(|v| *v != NO_NODE) {
                cycle.verdicts[at] =
                    match self.filter_with_nominated_pods(profile, cluster, pod, index, node, &[]) {
                        Ok(()) => FEASIBLE,
                        Err(rejection) => self.statuses.number(rejection),
                    };
            }
        }
        self.filter_all_with_nominated_in_domains(profile, cluster, pod, &mut cycle.verdicts);
    }

    /// Whether one node fits the pod.
    pub fn takes(
        &mut self,
        profile: &Profile,
        cluster: &mut Cluster,
        pod: &PodInfo,
        index: NodeIndex,
    ) -> bool {
        self.add_nominated_interactions(cluster, index);
        let node = cluster.at(index);
        self.filter_with_nominated_pods(profile, cluster, pod, index, node, &[])
            .is_ok()
    }
}
