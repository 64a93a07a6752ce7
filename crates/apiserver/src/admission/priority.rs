//! Priority (SPEC P2): a pod's priority and preemption policy come from its class; at most one class is the
//! global default.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use knarr_api::{AnyObject, Error, k8s_openapi, registry};

use super::shown_name;
use crate::cache::change::Filter;
use crate::server::Server;

pub(super) fn admit_pod(server: &Server, pod: &mut Pod) -> Result<(), Error> {
    let name = shown_name(&pod.metadata).to_string();
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let refused = |why: String| Err(Error::forbidden(registry::POD.about(&name), &why));
    let (priority, policy) = match spec.priority_class_name.as_deref().unwrap_or("") {
        "" => match global_default(server)? {
            Some(class) => {
                spec.priority_class_name.clone_from(&class.metadata.name);
                (class.value.unwrap_or(0), class.preemption_policy)
            }
            None => (0, None),
        },
        class => match server.cache.get(&registry::PRIORITY_CLASS, "", class) {
            Some(found) => match found.get::<PriorityClass>() {
                Some(class) => (class.value.unwrap_or(0), class.preemption_policy.clone()),
                None => return Err(Error::internal("a PriorityClass that is none")),
            },
            None => return refused(format!("no PriorityClass with name {class} was found")),
        },
    };
    if let Some(given) = spec.priority.filter(|p| *p != priority) {
        return refused(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
controller computed {priority} from the given PriorityClass name"
        ));
    }
    spec.priority = Some(priority);
    let policy = policy.unwrap_or_else(|| "PreemptLowerPriority".into());
    match spec.preemption_policy.as_deref() {
        None | Some("") => spec.preemption_policy = Some(policy),
        Some(given) if given != policy => {
            return refused(format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
controller computed {policy} from the given PriorityClass name"
            ));
        }
        Some(_) => {}
    }
    Ok(())
}

/// The class for pods that name none: of several (which racing writers can bring about) the lowest.
fn global_default(server: &Server) -> Result<Option<PriorityClass>, Error> {
    let classes = server
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

/// Refuses a second global default.
pub(super) fn admit_class(server: &Server, object: &dyn AnyObject) -> Result<(), Error> {
    let Some(class) = object.as_any().downcast_ref::<PriorityClass>() else {
        return Ok(());
    };
    if class.global_default != Some(true) {
        return Ok(());
    }
    match global_default(server)? {
        Some(other) if other.metadata.name != class.metadata.name => Err(Error::forbidden(
            registry::PRIORITY_CLASS.about(class.metadata.name.as_deref().unwrap_or("")),
            &format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.metadata.name.as_deref().unwrap_or("")
            ),
        )),
        _ => Ok(()),
    }
}
