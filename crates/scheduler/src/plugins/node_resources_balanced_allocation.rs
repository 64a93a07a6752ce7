//! NodeResourcesBalancedAllocation: a node scores higher if the pod makes the used fractions of its resources more
//! equal.

use super::MAX_NODE_SCORE;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodeResourcesBalancedAllocation";

/// A pod without requests changes no balance (best-effort pods are skipped).
pub fn scores(profile: &Profile, pod: &PodClass) -> bool {
    profile
        .balanced
        .iter()
        .any(|r| pod.requests.resources.get(&r.name) != 0)
}

pub fn score(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> i64 {
    let half = MAX_NODE_SCORE / 2;
    let mut with = Balance::default();
    let mut without = Balance::default();
    for resource in &profile.balanced {
        let name = resource.name.as_str();
        let (has, used, asks) = match name {
            "cpu" => (
                node.allocatable.milli_cpu,
                node.requested.milli_cpu,
                pod.requests.resources.milli_cpu,
            ),
            "memory" => (
                node.allocatable.memory_bytes,
                node.requested.memory_bytes,
                pod.requests.resources.memory_bytes,
            ),
            _ => (
                node.allocatable.get(name),
                node.requested.get(name),
                pod.requests.resources.get(name),
            ),
        };
        let is_scalar = !matches!(name, "cpu" | "memory" | "ephemeral-storage");
        if has == 0 || (is_scalar && asks == 0) {
            continue;
        }
        with.add(used.saturating_add(asks), has);
        without.add(used, has);
    }
    half + (half + with.score() - without.score()) / 2
}

/// The used fractions of resources.
#[derive(Default)]
struct Balance {
    /// The first two; more are rare.
    two: [f64; 2],
    more: Vec<f64>,
    count: usize,
}

impl Balance {
    fn add(&mut self, used: i64, has: i64) {
        let share = (used as f64 / has as f64).min(1.0);
        match self.two.get_mut(self.count) {
            Some(place) => *place = share,
            None => self.more.push(share),
        }
        self.count += 1;
    }

    /// 100 if all are equal, less the further they are apart; truncated, not rounded, as in kube-scheduler.
    fn score(&self) -> i64 {
        let deviation = match self.count {
            0 | 1 => 0.0,
            2 => ((self.two[0] - self.two[1]) / 2.0).abs(),
            n => {
                let all = || self.two.iter().chain(&self.more);
                let mean = all().sum::<f64>() / n as f64;
                let squares: f64 = all().map(|share| (share - mean) * (share - mean)).sum();
                (squares / n as f64).sqrt()
            }
        };
        ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
    }
}
