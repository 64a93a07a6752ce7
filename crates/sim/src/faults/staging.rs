//! Kubelets, hosts and the attacher that die between two steps of a volume.

use std::time::Duration;

use tokio::time::timeout;

use super::Faults;
use crate::coverage::Scope;
use crate::later::later;
use crate::random::Stream;
use crate::switches::Switch;

/// A fault that waits for a step gives up after that.
const WAITS_FOR_STEP: Duration = Duration::from_secs(30);
/// Faults between steps that hit the attacher, and those of a node that hit its host, per mille.
const ATTACHERS_PER_MILLE: u32 = 250;
const REBOOTS_PER_MILLE: u32 = 400;

impl Faults {
    /// A node's kubelet or host dies right after the next step of a volume on it, before the kubelet gets the result;
    /// or the attacher is stopped for some time.
    pub fn crash_between_steps(&self, chance: &mut Stream) {
        let length = self.lengths.draw(chance);
        let Some(node) = chance.pick(&self.nodes).cloned() else {
            return;
        };
        let (of_attacher, reboots) = (
            chance.per_mille(ATTACHERS_PER_MILLE),
            chance.per_mille(REBOOTS_PER_MILLE),
        );
        let millis = length.as_millis();
        let (scope, what) = match (of_attacher, reboots) {
            (true, _) => (Scope::Cluster, "the external-attacher is gone".to_string()),
            (false, true) => (
                Scope::Node(&node.name),
                format!("{} reboots after a volume's next step", node.name),
            ),
            (false, false) => (
                Scope::Node(&node.name),
                format!("crash of {}'s kubelet after a volume's next step", node.name),
            ),
        };
        self.observer.strikes(Switch::StagingCrash, scope);
        self.observer.note(&format!("fault: {what} for {millis} ms"));
        if of_attacher {
            self.attacher.iter().for_each(|attacher| attacher.crash(length));
            return;
        }
        let attacher = self.attacher.clone();
        tokio::spawn(async move {
            let steps = node.host.staging.steps.clone();
            let stepped = timeout(WAITS_FOR_STEP, steps.notified()).await.is_ok();
            if !stepped || attacher.is_some_and(|attacher| attacher.is_healed()) {
                return;
            }
            match reboots {
                true => node.reboot(),
                false => node.crash(),
            }
            later(length, move || node.start());
        });
        self.report_health();
    }
}
