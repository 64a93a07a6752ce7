//! PriorityClass (SPEC P1): a name for a priority. Values above one billion and names with the prefix `system-` are reserved
//! for the system classes.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::{PREEMPTION_BUDGETS, unknown_preemption_values};
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{drop_empty, json, text};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy};

/// `HighestUserDefinablePriority`.
pub const HIGHEST_USER_VALUE: i32 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const PREEMPT: &str = "PreemptLowerPriority";

/// The classes that exist in every cluster.
pub fn system_classes() -> [PriorityClass; 2] {
    [
        (
            "system-node-critical",
            2 * HIGHEST_USER_VALUE + 1000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2 * HIGHEST_USER_VALUE,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
    .map(|(name, value, description)| PriorityClass {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        value: Some(value),
        description: Some(description.into()),
        preemption_policy: Some(PREEMPT.into()),
        global_default: None,
    })
}

impl Strategy for PriorityClass {
    fn set_defaults(&mut self) {
        self.preemption_policy.get_or_insert_with(|| PREEMPT.into());
        self.value.get_or_insert(0);
        drop_empty(&mut self.global_default);
        drop_empty(&mut self.description);
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        self.metadata.generation = old.metadata.generation;
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let name = text(&self.metadata.name);
        if name.starts_with(SYSTEM_PREFIX) {
            let path = Path::new("metadata").child("name");
            let reserved =
                "priority class names with 'system-' prefix are reserved for system use only. error:";
            match system_classes().iter().find(|c| text(&c.metadata.name) == name) {
                None => {
                    errors.forbidden(
                        &path,
                        format!("{reserved} {name} is not a known system priority class"),
                    );
                }
                Some(known) if known.value != self.value => {
                    errors.forbidden(
                        &path,
                        format!(
                            "{reserved} value of {name} PriorityClass must be {}",
                            known.value.unwrap_or(0)
                        ),
                    );
                }
                Some(known) if self.global_default == Some(true) => {
                    let shown = known.global_default.unwrap_or(false);
                    errors.forbidden(
                        &path,
                        format!("{reserved} globalDefault of {name} PriorityClass must be {shown}"),
                    );
                }
                Some(_) => {}
            }
        } else if self.value.unwrap_or(0) > HIGHEST_USER_VALUE {
            errors.forbidden(
                &Path::new("value"),
                format!("maximum allowed value of a user defined priority is {HIGHEST_USER_VALUE}"),
            );
        }
        let path = Path::new("preemptionPolicy");
        match self.preemption_policy.as_deref() {
            None | Some(PREEMPT | "Never") => {}
            Some("") => errors.required(&path, ""),
            Some(other) => errors.not_supported_in_order(&path, other, &[PREEMPT, "Never"]),
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        if self.value != old.value {
            errors.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        if self.preemption_policy != old.preemption_policy {
            errors.invalid(
                &Path::new("preemptionPolicy"),
                json(&self.preemption_policy),
                "field is immutable",
            );
        }
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let annotations = Path::new("metadata").child("annotations");
        let unknown = unknown_preemption_values(self.metadata.annotations.as_ref());
        let of_classes = unknown.iter().filter(|u| u.annotation == PREEMPTION_BUDGETS);
        of_classes
            .map(|unknown| format!("{}: {unknown}", annotations.key(unknown.annotation)))
            .collect()
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::integer("Value"),
            Column::boolean("Global-Default"),
            table::AGE,
            Column::string("PreemptionPolicy"),
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.value.unwrap_or(0).into(),
            self.global_default.unwrap_or(false).into(),
            table::created(&self.metadata, now),
            text(&self.preemption_policy).into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, value: i32) -> PriorityClass {
        PriorityClass {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..ObjectMeta::default()
            },
            value: Some(value),
            ..PriorityClass::default()
        }
    }

    #[test]
    fn p1_user_values_are_at_most_one_billion() {
        assert!(class("high", HIGHEST_USER_VALUE).validate().is_empty());
        assert_eq!(class("high", HIGHEST_USER_VALUE + 1).validate().len(), 1);
        assert!(class("low", i32::MIN).validate().is_empty());
    }

    #[test]
    fn p1_system_names_are_for_the_system_classes_only() {
        for known in system_classes() {
            assert!(known.validate().is_empty());
            let mut other = known.clone();
            other.value = Some(1);
            assert_eq!(other.validate().len(), 1);
        }
        assert_eq!(class("system-mine", 1).validate().len(), 1);
    }

    #[test]
    fn b6_an_unknown_value_of_the_annotation_about_budgets_is_warned_about() {
        let warnings = |value: &str| {
            let mut class = class("c", 1);
            class.metadata.annotations = Some([(PREEMPTION_BUDGETS.to_string(), value.to_string())].into());
            assert!(class.validate().is_empty());
            class.warnings()
        };
        assert!(warnings("Hard").is_empty());
        assert_eq!(
            warnings("strict"),
            [
                "metadata.annotations[knarr.io/preemption-budgets]: unknown value \"strict\" has no effect; expected \"BestEffort\" or \"Hard\""
            ]
        );
    }

    #[test]
    fn p1_value_and_preemption_policy_are_immutable() {
        let old = class("c", 1);
        let mut new = class("c", 2);
        new.preemption_policy = Some("Never".into());
        assert_eq!(new.validate_update(&old, Part::Main).len(), 2);
    }
}
