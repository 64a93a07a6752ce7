//! Topology spread constraints of pods (SPEC D1), parsed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use knarr_apimachinery::labels::{Selector, SelectorError};

/// One topology spread constraint, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadConstraint {
    /// DoNotSchedule; else ScheduleAnyway.
    pub hard: bool,
    pub max_skew: i64,
    pub min_domains: usize,
    pub topology_key: String,
    /// `None` matches nothing.
    pub selector: Option<Selector>,
    pub honor_node_affinity: bool,
    pub honor_node_taints: bool,
}

impl SpreadConstraint {
    /// `labels` are the pod's: matchLabelKeys take their values from there.
    pub fn read(
        constraint: &TopologySpreadConstraint,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Result<Self, SelectorError> {
        let mut of = constraint.label_selector.clone();
        if let Some(of) = &mut of {
            for key in constraint.match_label_keys.iter().flatten() {
                if let Some(value) = labels.and_then(|l| l.get(key)) {
                    let requirement = LabelSelectorRequirement {
                        key: key.clone(),
                        operator: "In".into(),
                        values: Some(vec![value.clone()]),
                    };
                    of.match_expressions.get_or_insert_default().push(requirement);
                }
            }
        }
        Ok(SpreadConstraint {
            hard: constraint.when_unsatisfiable != "ScheduleAnyway",
            max_skew: constraint.max_skew.into(),
            min_domains: usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(1),
            topology_key: constraint.topology_key.clone(),
            selector: of.as_ref().map(Selector::from_label_selector).transpose()?,
            honor_node_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_node_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        })
    }

    /// Whether it counts a pod with these labels. An empty selector counts none (kube-scheduler's countPodsMatchSelector).
    pub fn counts(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|s| !s.is_everything() && s.matches(labels))
    }
}
