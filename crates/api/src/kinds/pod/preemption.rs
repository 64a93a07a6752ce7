//! The annotations about preemption (SPEC B5, B6).

use std::collections::BTreeMap;
use std::fmt;

/// Annotation of a PriorityClass: how preemption for its pods treats PodDisruptionBudgets, [`HARD`] or [`BEST_EFFORT`].
/// Admission copies `Hard` to the pods of the class, where the scheduler reads it.
pub const PREEMPTION_BUDGETS: &str = "knarr.io/preemption-budgets";
/// Preemption never violates a PodDisruptionBudget.
pub const HARD: &str = "Hard";
/// Preemption prefers victims whose eviction violates no PodDisruptionBudget, as in kube-scheduler. The default.
pub const BEST_EFFORT: &str = "BestEffort";

/// Annotation of a pod: `"true"` requests cross-node preemption for it, if its scheduler's profile allows that.
pub const CROSS_NODE_PREEMPTION: &str = "knarr.io/cross-node-preemption";

type Annotations = BTreeMap<String, String>;

fn get<'a>(annotations: Option<&'a Annotations>, name: &str) -> Option<&'a str> {
    annotations?.get(name).map(String::as_str)
}

/// Whether the annotation of a PriorityClass or pod is `Hard`. Any other value has no effect.
pub fn has_hard_budgets(annotations: Option<&Annotations>) -> bool {
    get(annotations, PREEMPTION_BUDGETS) == Some(HARD)
}

/// Whether a pod requests cross-node preemption. Any value but `"true"` has no effect.
pub fn requests_cross_node_preemption(annotations: Option<&Annotations>) -> bool {
    get(annotations, CROSS_NODE_PREEMPTION) == Some("true")
}

/// An annotation about preemption whose value has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownValue {
    pub annotation: &'static str,
    pub found: String,
    pub expected: [&'static str; 2],
}

impl fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = self.expected;
        write!(
            f,
            "unknown value {:?} has no effect; expected {one:?} or {other:?}",
            self.found
        )
    }
}

/// The annotations about preemption that have no effect because of their value.
pub fn unknown_preemption_values(annotations: Option<&Annotations>) -> Vec<UnknownValue> {
    let known = [
        (PREEMPTION_BUDGETS, [BEST_EFFORT, HARD]),
        (CROSS_NODE_PREEMPTION, ["true", "false"]),
    ];
    let unknown = known.into_iter().filter_map(|(annotation, expected)| {
        let found = get(annotations, annotation)?;
        (!expected.contains(&found)).then(|| UnknownValue {
            annotation,
            found: found.to_string(),
            expected,
        })
    });
    unknown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(name: &str, value: &str) -> Annotations {
        [(name.to_string(), value.to_string())].into()
    }

    #[test]
    fn b6_only_the_exact_value_makes_budgets_hard_and_others_are_warned_about() {
        assert!(!has_hard_budgets(None));
        assert_eq!(unknown_preemption_values(None), []);
        for (value, is_hard, warns) in [
            ("Hard", true, false),
            ("BestEffort", false, false),
            ("hard", false, true),
            ("", false, true),
        ] {
            let annotations = annotated(PREEMPTION_BUDGETS, value);
            assert_eq!(has_hard_budgets(Some(&annotations)), is_hard, "{value:?}");
            let unknown = unknown_preemption_values(Some(&annotations));
            assert_eq!(unknown.len(), usize::from(warns), "{value:?}: {unknown:?}");
        }
    }

    #[test]
    fn b5_only_true_requests_cross_node_preemption_and_unknown_values_are_warned_about() {
        for (value, requests, warns) in [
            ("true", true, false),
            ("false", false, false),
            ("yes", false, true),
        ] {
            let annotations = annotated(CROSS_NODE_PREEMPTION, value);
            assert_eq!(
                requests_cross_node_preemption(Some(&annotations)),
                requests,
                "{value:?}"
            );
            let unknown = unknown_preemption_values(Some(&annotations));
            assert_eq!(unknown.len(), usize::from(warns), "{value:?}: {unknown:?}");
        }
    }
}
