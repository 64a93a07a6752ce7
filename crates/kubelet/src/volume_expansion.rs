//! Expansion of a claimed volume on its node: whether the driver's NodeExpandVolume is called, and the claim's status after
//! that.
//!
//! The external resizer has expanded the volume before, and recorded that in the PersistentVolume and in the claim's status
//! (KEP 284, KEP 1790). Resizers older than `allocatedResourceStatuses` record it in the PersistentVolume's capacity alone.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

const STORAGE: &str = "storage";
/// The resizer sets this annotation on claims whose volumes need no expansion on nodes.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const ERROR_CONDITION: &str = "NodeResizeError";
/// The conditions of an expansion.
const CONDITIONS: [&str; 4] = [
    "FileSystemResizePending",
    "Resizing",
    "ControllerResizeError",
    ERROR_CONDITION,
];

/// The state of a volume on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeVolume {
    /// Its size on this node.
    pub size: Quantity,
    /// The driver has failed with a final error: no expansion is in progress.
    pub has_failed: bool,
    /// The driver does not expand volumes in use: it is not called again.
    pub is_skipped: bool,
}

impl NodeVolume {
    /// A volume that was just set up has the size of its claim's status.
    pub fn new(claim: &PersistentVolumeClaim) -> Self {
        NodeVolume {
            size: capacity(claim),
            has_failed: false,
            is_skipped: false,
        }
    }

    /// Whether the PersistentVolume is larger than the volume on this node.
    pub fn is_behind(&self, volume: &PersistentVolume) -> bool {
        volume_size(volume) > self.size
    }
}

/// A call of the driver (NodeExpandVolume).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub to: Quantity,
    /// The claim's status has the new size already: the expansion was finished on another node, or by the resizer.
    is_recorded: bool,
    /// The resizer records the steps of an expansion in the claim's status, and so does the node.
    has_steps: bool,
    /// The user has requested another size since an attempt failed: the resizer handles a failure.
    is_superseded: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// No call now.
    Wait,
    /// The volume has this size without a call on this node.
    Done(Quantity),
    Expand(Plan),
}

/// Why the driver has not expanded a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It does not expand volumes on nodes.
    NotSupported(String),
    /// It does not expand volumes in use.
    InUse(String),
    /// It cannot expand the volume to this size.
    Infeasible(String),
    /// No expansion is in progress.
    Final(String),
    /// An expansion may be in progress.
    Uncertain(String),
}

impl Failure {
    pub fn message(&self) -> &str {
        match self {
            Failure::NotSupported(m)
            | Failure::InUse(m)
            | Failure::Infeasible(m)
            | Failure::Final(m)
            | Failure::Uncertain(m) => m,
        }
    }
}

/// The consequence of a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// No expansion is needed on nodes.
    Done,
    /// It is not retried as long as the volume is in use.
    Skipped,
    /// It is retried, unless the claim's status says otherwise; that is to be written if it is `Some`.
    Failed(Option<PersistentVolumeClaimStatus>),
}

fn amount(of: Option<&Wire>) -> Quantity {
    // The API server has validated it.
    of.and_then(|size| Quantity::of(size).ok())
        .unwrap_or_else(|| Quantity::from_value(0, knarr_apimachinery::quantity::Notation::BinarySi))
}

/// The size in the claim's status.
fn capacity(claim: &PersistentVolumeClaim) -> Quantity {
    let capacity = claim.status.as_ref().and_then(|s| s.capacity.as_ref());
    amount(capacity.and_then(|c| c.get(STORAGE)))
}

fn volume_size(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref());
    amount(capacity.and_then(|c| c.get(STORAGE)))
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    let requests = requests.and_then(|r| r.requests.as_ref());
    amount(requests.and_then(|r| r.get(STORAGE)))
}

fn step(claim: &PersistentVolumeClaim) -> Option<&str> {
    let steps = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    steps.get(STORAGE).map(String::as_str).filter(|s| !s.is_empty())
}

/// Whether the claim's status alone could require an expansion.
pub fn may_concern(claim: &PersistentVolumeClaim, known: &NodeVolume) -> bool {
    !known.is_skipped
        && (step(claim).is_some() || requested(claim) > known.size || capacity(claim) > known.size)
}

/// Whether a volume that a pod of this node uses, and has mounted writable, is expanded now.
pub fn decide(claim: &PersistentVolumeClaim, volume: &PersistentVolume, known: &NodeVolume) -> Decision {
    let volume_size = volume_size(volume);
    if known.is_skipped || !known.is_behind(volume) {
        return Decision::Wait;
    }
    let status = claim.status.as_ref();
    let allocated = status.and_then(|s| s.allocated_resources.as_ref());
    let has_steps = step(claim).is_some() || allocated.is_some();
    if !has_steps {
        return Decision::Expand(Plan {
            to: volume_size,
            is_recorded: capacity(claim) >= volume_size,
            has_steps,
            is_superseded: false,
        });
    }
    let to = amount(allocated.and_then(|a| a.get(STORAGE)));
    let is_recorded = step(claim).is_none() && capacity(claim) >= to;
    let plan = Plan {
        to,
        is_recorded,
        has_steps,
        is_superseded: known.has_failed && requested(claim) != to,
    };
    if is_recorded {
        let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_ref());
        let is_shared = modes.is_some_and(|m| m.iter().any(|mode| mode == "ReadWriteMany"));
        let annotations = claim.metadata.annotations.as_ref();
        let is_required = !annotations.is_some_and(|a| a.contains_key(NOT_REQUIRED));
        // Every node that has it mounted has to expand it.
        return match is_shared && is_required {
            true => Decision::Expand(plan),
            false => Decision::Done(to),
        };
    }
    match step(claim) {
        Some(PENDING | IN_PROGRESS) => Decision::Expand(plan),
        _ => Decision::Wait,
    }
}

impl Plan {
    /// The claim's status before the driver is called; `None`: as it is.
    pub fn begun(&self, claim: &PersistentVolumeClaim) -> Option<PersistentVolumeClaimStatus> {
        if !self.has_steps || self.is_recorded || step(claim) == Some(IN_PROGRESS) {
            return None;
        }
        let mut status = claim.status.clone().unwrap_or_default();
        let steps = status.allocated_resource_statuses.get_or_insert_default();
        steps.insert(STORAGE.into(), IN_PROGRESS.into());
        Some(status)
    }

    /// The claim's status after the driver has expanded the volume; `None`: as it is.
    pub fn finished(&self, claim: &PersistentVolumeClaim) -> Option<PersistentVolumeClaimStatus> {
        if self.is_recorded {
            return None;
        }
        let mut status = claim.status.clone().unwrap_or_default();
        let capacity = status.capacity.get_or_insert_default();
        capacity.insert(STORAGE.into(), self.to.to_wire());
        if let Some(steps) = &mut status.allocated_resource_statuses {
            steps.remove(STORAGE);
        }
        status.allocated_resource_statuses = status
            .allocated_resource_statuses
            .filter(|steps| !steps.is_empty());
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|c| !CONDITIONS.contains(&c.type_.as_str()));
        }
        status.conditions = status.conditions.filter(|c| !c.is_empty());
        Some(status)
    }

    /// Applies a failure of the driver to the volume's state, and returns its consequence for the claim.
    pub fn failed(
        &self,
        claim: &PersistentVolumeClaim,
        known: &mut NodeVolume,
        failure: &Failure,
        now: Timestamp,
    ) -> Outcome {
        match failure {
            Failure::NotSupported(_) if self.is_recorded || !self.has_steps => {
                known.size = self.to;
                return Outcome::Done;
            }
            Failure::InUse(_) => {
                known.is_skipped = true;
                return Outcome::Skipped;
            }
            Failure::Uncertain(_) => return Outcome::Failed(None),
            Failure::NotSupported(_) | Failure::Infeasible(_) | Failure::Final(_) => {}
        }
        known.has_failed = true;
        if !self.has_steps {
            return Outcome::Failed(None);
        }
        let mut status = claim.status.clone().unwrap_or_default();
        if self.is_superseded || matches!(failure, Failure::Infeasible(_)) {
            let steps = status.allocated_resource_statuses.get_or_insert_default();
            steps.insert(STORAGE.into(), INFEASIBLE.into());
        }
        let conditions = status.conditions.get_or_insert_default();
        // An existing condition stays as it is.
        if !conditions
            .iter()
            .any(|c| c.type_ == ERROR_CONDITION && c.status == "True")
        {
            conditions.retain(|c| c.type_ != ERROR_CONDITION);
            conditions.push(PersistentVolumeClaimCondition {
                type_: ERROR_CONDITION.into(),
                status: "True".into(),
                last_transition_time: Some(Time(now)),
                message: Some(format!("failed to expand pvc with {}", failure.message())),
                ..PersistentVolumeClaimCondition::default()
            });
        }
        Outcome::Failed((Some(&status) != claim.status.as_ref()).then_some(status))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(status: Value) -> PersistentVolumeClaim {
        let claim = json!({
            "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
            "status": status,
        });
        serde_json::from_value(claim).unwrap()
    }

    fn volume(size: &str) -> PersistentVolume {
        serde_json::from_value(json!({"spec": {"capacity": {"storage": size}}})).unwrap()
    }

    fn size(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    fn known(text: &str) -> NodeVolume {
        NodeVolume {
            size: size(text),
            has_failed: false,
            is_skipped: false,
        }
    }

    fn stepped(step: &str) -> PersistentVolumeClaim {
        claim(json!({
            "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": step},
        }))
    }

    fn plan(claim: &PersistentVolumeClaim, known: &NodeVolume) -> Plan {
        match decide(claim, &volume("2Gi"), known) {
            Decision::Expand(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_claim_concerns_a_node_whose_volume_may_be_smaller() {
        let recorded = |size: &str| claim(json!({"capacity": {"storage": size}}));
        let left = NodeVolume {
            is_skipped: true,
            ..known("1Gi")
        };
        // Each claim requests 2Gi.
        for (why, claim, known, expected) in [
            ("a step", stepped(PENDING), known("2Gi"), true),
            ("not while it is used", stepped(PENDING), left, false),
            ("requested", recorded("1Gi"), known("1Gi"), true),
            ("recorded", recorded("3Gi"), known("2Gi"), true),
            ("equal", recorded("2Gi"), known("2Gi"), false),
            ("larger on the node", recorded("1Gi"), known("4Gi"), false),
        ] {
            assert_eq!(may_concern(&claim, &known), expected, "{why}");
        }
    }

    #[test]
    fn the_driver_is_called_when_the_resizer_has_left_it_to_the_node() {
        let finished =
            || claim(json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}));
        let shared = |annotations: Value| {
            let mut shared = finished();
            shared.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteMany".into()]);
            shared.metadata.annotations = serde_json::from_value(annotations).unwrap();
            shared
        };
        let left = NodeVolume {
            is_skipped: true,
            ..known("1Gi")
        };
        for (why, claim, volume_size, known, expected) in [
            ("not expanded", stepped(PENDING), "1Gi", known("1Gi"), "wait"),
            (
                "the resizer works",
                stepped("ControllerResizeInProgress"),
                "2Gi",
                known("1Gi"),
                "wait",
            ),
            ("the node's turn", stepped(PENDING), "2Gi", known("1Gi"), "expand"),
            (
                "begun before a restart",
                stepped(IN_PROGRESS),
                "2Gi",
                known("1Gi"),
                "expand",
            ),
            ("given up", stepped(INFEASIBLE), "2Gi", known("1Gi"), "wait"),
            (
                "the resizer has not begun",
                claim(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}})),
                "2Gi",
                known("1Gi"),
                "wait",
            ),
            ("not while it is used", stepped(PENDING), "2Gi", left, "wait"),
            ("finished elsewhere", finished(), "2Gi", known("1Gi"), "done"),
            (
                "shared: each node",
                shared(json!({})),
                "2Gi",
                known("1Gi"),
                "expand",
            ),
            (
                "shared, nothing on nodes",
                shared(json!({NOT_REQUIRED: "true"})),
                "2Gi",
                known("1Gi"),
                "done",
            ),
            (
                "an old resizer",
                claim(json!({"capacity": {"storage": "1Gi"}})),
                "2Gi",
                known("1Gi"),
                "expand",
            ),
            ("this node has it", finished(), "2Gi", known("2Gi"), "wait"),
        ] {
            let decided = match decide(&claim, &volume(volume_size), &known) {
                Decision::Wait => "wait",
                Decision::Done(to) => {
                    assert_eq!(to, size("2Gi"), "{why}");
                    "done"
                }
                Decision::Expand(plan) => {
                    assert_eq!(plan.to, size("2Gi"), "{why}");
                    "expand"
                }
            };
            assert_eq!(decided, expected, "{why}");
        }
    }

    #[test]
    fn the_claims_status_shows_each_step() {
        let pending = claim(json!({
            "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": PENDING},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Mine", "status": "True"}],
        }));
        let plan = plan(&pending, &known("1Gi"));
        let begun = plan.begun(&pending).unwrap();
        assert_eq!(
            begun.allocated_resource_statuses.as_ref().unwrap()[STORAGE],
            IN_PROGRESS
        );
        let mut claim = pending.clone();
        claim.status = Some(begun);
        assert_eq!(plan.begun(&claim), None);
        let finished = plan.finished(&claim).unwrap();
        assert_eq!(
            serde_json::to_value(finished).unwrap(),
            json!({
                "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"},
                "conditions": [{"type": "Mine", "status": "True"}],
            })
        );
    }

    #[test]
    fn a_step_is_recorded_if_the_resizer_records_steps_and_the_size_if_it_is_new() {
        let old = |size: &str| claim(json!({"capacity": {"storage": size}}));
        let mut shared =
            claim(json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}));
        shared.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteMany".into()]);
        for (why, claim, is_step_recorded, is_size_recorded) in [
            ("an old resizer", old("1Gi"), false, true),
            ("an old resizer, recorded", old("2Gi"), false, false),
            ("another node has recorded it", shared, false, false),
            ("a step", stepped(PENDING), true, true),
        ] {
            let plan = plan(&claim, &known("1Gi"));
            assert_eq!(plan.begun(&claim).is_some(), is_step_recorded, "{why}");
            assert_eq!(plan.finished(&claim).is_some(), is_size_recorded, "{why}");
        }
    }

    #[test]
    fn a_failure_is_in_the_claims_status_and_decides_whether_it_is_retried() {
        let text = || "no".to_string();
        let now = Timestamp::UNIX_EPOCH;
        let mut of = known("1Gi");
        let claim = stepped(IN_PROGRESS);
        let plan_of = plan(&claim, &of);
        assert_eq!(
            plan_of.failed(&claim, &mut of, &Failure::Uncertain(text()), now),
            Outcome::Failed(None)
        );
        assert!(!of.has_failed);
        // The user requests less: the resizer may begin again.
        let mut smaller = claim.clone();
        let resources = smaller.spec.as_mut().unwrap().resources.as_mut().unwrap();
        let requests = resources.requests.as_mut().unwrap();
        requests.insert(STORAGE.into(), Wire("1536Mi".into()));
        for (claim, has_failed, failure, step) in [
            (&claim, false, Failure::Final(text()), IN_PROGRESS),
            (&claim, true, Failure::Final(text()), IN_PROGRESS),
            (&smaller, false, Failure::Final(text()), IN_PROGRESS),
            (&smaller, true, Failure::Final(text()), INFEASIBLE),
            (&claim, false, Failure::Infeasible(text()), INFEASIBLE),
            (&claim, false, Failure::NotSupported(text()), IN_PROGRESS),
        ] {
            let mut of = NodeVolume {
                has_failed,
                ..known("1Gi")
            };
            let plan = plan(claim, &of);
            let Outcome::Failed(Some(status)) = plan.failed(claim, &mut of, &failure, now) else {
                panic!("{failure:?} does not change the status");
            };
            assert!(of.has_failed, "{failure:?}");
            let steps = status.allocated_resource_statuses.as_ref().unwrap();
            assert_eq!(steps[STORAGE], step, "{failure:?}, {has_failed}");
        }
        let mut of = known("1Gi");
        assert_eq!(
            plan_of.failed(&claim, &mut of, &Failure::InUse(text()), now),
            Outcome::Skipped
        );
        assert_eq!(decide(&claim, &volume("2Gi"), &of), Decision::Wait);
    }

    #[test]
    fn failures_are_one_condition_with_the_time_of_the_first() {
        let now = Timestamp::UNIX_EPOCH;
        let condition = |kind: &str, status: &str| PersistentVolumeClaimCondition {
            type_: kind.into(),
            status: status.into(),
            ..PersistentVolumeClaimCondition::default()
        };
        let failed = || PersistentVolumeClaimCondition {
            last_transition_time: Some(Time(now)),
            message: Some("failed to expand pvc with no".into()),
            ..condition("NodeResizeError", "True")
        };
        let mine = || condition("Mine", "True");
        for (before, after) in [
            (vec![], Some(vec![failed()])),
            (vec![mine()], Some(vec![mine(), failed()])),
            (
                vec![condition(ERROR_CONDITION, "False"), mine()],
                Some(vec![mine(), failed()]),
            ),
            (vec![condition(ERROR_CONDITION, "True"), mine()], None),
        ] {
            let mut claim = stepped(IN_PROGRESS);
            claim.status.as_mut().unwrap().conditions = Some(before.clone());
            let mut of = known("1Gi");
            let plan = plan(&claim, &of);
            let failure = Failure::Final("no".into());
            let Outcome::Failed(status) = plan.failed(&claim, &mut of, &failure, now) else {
                panic!("it is retried");
            };
            assert_eq!(status.and_then(|s| s.conditions), after, "{before:?}");
        }
    }

    #[test]
    fn a_driver_without_node_expansion_does_not_fail_if_no_status_requires_it() {
        let old = claim(json!({"capacity": {"storage": "1Gi"}}));
        let mut of = known("1Gi");
        let plan = plan(&old, &of);
        let failure = Failure::NotSupported("no".into());
        let outcome = plan.failed(&old, &mut of, &failure, Timestamp::UNIX_EPOCH);
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(of.size, size("2Gi"));
    }
}
