//! Priority (SPEC P2): a pod's priority and preemption policy come from its class; at most one class is the
//! global default. The same with hard budgets (SPEC B6): the annotation of the class is copied to its pods, because
//! kube-scheduler's role does not read PriorityClasses.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use knarr_api::kinds::pod::{HARD, PREEMPTION_BUDGETS, has_hard_budgets};
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::{Admission, Attributes, resource_name};
use crate::cache::change::Filter;

pub(super) fn mutate_pod(admission: &Admission, pod: &mut Pod) -> Result<(), Error> {
    let name = resource_name(&pod.metadata).to_string();
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let denied = |why: String| Err(Error::forbidden(registry::POD.resource_ref(&name), &why));
    let (priority, policy, hard_budgets) = match spec.priority_class_name.as_deref().unwrap_or("") {
        "" => match global_default(admission)? {
            Some(class) => {
                spec.priority_class_name.clone_from(&class.metadata.name);
                let hard_budgets = has_hard_budgets(class.metadata.annotations.as_ref());
                (class.value.unwrap_or(0), class.preemption_policy, hard_budgets)
            }
            None => (0, None, false),
        },
        class => match admission.cache.get(&registry::PRIORITY_CLASS, "", class) {
            Some(found) => match found.get::<PriorityClass>() {
                Some(class) => (
                    class.value.unwrap_or(0),
                    class.preemption_policy.clone(),
                    has_hard_budgets(class.metadata.annotations.as_ref()),
                ),
                None => {
                    return Err(Error::internal(
                        "an object stored as a PriorityClass does not decode as one",
                    ));
                }
            },
            None => return denied(format!("no PriorityClass with name {class} was found")),
        },
    };
    if let Some(given) = spec.priority.filter(|p| *p != priority) {
        return denied(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
controller computed {priority} from the given PriorityClass name"
        ));
    }
    spec.priority = Some(priority);
    let policy = policy.unwrap_or_else(|| "PreemptLowerPriority".into());
    match spec.preemption_policy.as_deref() {
        None | Some("") => spec.preemption_policy = Some(policy),
        Some(given) if given != policy => {
            return denied(format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
controller computed {policy} from the given PriorityClass name"
            ));
        }
        Some(_) => {}
    }
    if hard_budgets {
        set_hard_budgets(pod);
    }
    Ok(())
}

fn set_hard_budgets(pod: &mut Pod) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(PREEMPTION_BUDGETS.into(), HARD.into());
}

/// An update that omits the priority or the preemption policy keeps the values computed at creation. Hard budgets stay
/// hard: otherwise a user who may update the pod could bypass what the class says.
pub(super) fn keep_computed(attributes: &Attributes<'_>, pod: &mut Pod) {
    let Some(old) = attributes.old.and_then(|old| old.get::<Pod>()) else {
        return;
    };
    if has_hard_budgets(old.metadata.annotations.as_ref()) {
        set_hard_budgets(pod);
    }
    let old = old.spec.as_ref();
    if let (Some(spec), Some(old)) = (&mut pod.spec, old) {
        spec.priority = spec.priority.or(old.priority);
        if spec.preemption_policy.is_none() {
            spec.preemption_policy.clone_from(&old.preemption_policy);
        }
    }
}

/// The global default class; of several (which concurrent writes can create) the one with the lowest value.
fn global_default(admission: &Admission) -> Result<Option<PriorityClass>, Error> {
    let classes = admission
        .cache
        .of(&registry::PRIORITY_CLASS)?
        .list(&Filter::everything(&registry::PRIORITY_CLASS, ""));
    Ok(classes
        .iter()
        .filter_map(|o| o.get::<PriorityClass>())
        .filter(|c| c.global_default == Some(true))
        .min_by_key(|c| c.value)
        .cloned())
}

/// Denies a second global default.
pub(super) fn validate_class(admission: &Admission, object: &dyn AnyObject) -> Result<(), Error> {
    let Some(class) = object.as_any().downcast_ref::<PriorityClass>() else {
        return Ok(());
    };
    if class.global_default != Some(true) {
        return Ok(());
    }
    match global_default(admission)? {
        Some(other) if other.metadata.name != class.metadata.name => Err(Error::forbidden(
            registry::PRIORITY_CLASS.resource_ref(class.metadata.name.as_deref().unwrap_or("")),
            &format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.metadata.name.as_deref().unwrap_or("")
            ),
        )),
        _ => Ok(()),
    }
}
