//! Nominated pods that keep their place in topology domains (SPEC B5): those of preemption across nodes. They count on
//! all nodes for pods of equal or lower priority, where other nominated pods count on their own node only.

use std::sync::Arc;

use super::NodeIndex;
use crate::pod_info::PodInfo;

/// A pod with the node that it is nominated to.
#[derive(Clone, Debug)]
pub struct NominatedPod {
    pub node: NodeIndex,
    pub pod: Arc<PodInfo>,
}

/// See the module. There are few: one more in 10 s at most, until it is bound.
#[derive(Clone, Debug, Default)]
pub struct NominatedInDomains {
    pods: Vec<NominatedPod>,
    /// Incremented with every change.
    version: u64,
}

impl NominatedInDomains {
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &NominatedPod> {
        self.pods.iter()
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn add(&mut self, node: NodeIndex, pod: &Arc<PodInfo>) {
        self.remove(pod.uid());
        self.version += 1;
        let pod = pod.clone();
        self.pods.push(NominatedPod { node, pod });
    }

    pub(super) fn remove(&mut self, uid: &str) {
        let before = self.pods.len();
        self.pods.retain(|nominated| nominated.pod.uid() != uid);
        self.version += u64::from(self.pods.len() != before);
    }
}
