//! The conditions of a CustomResourceDefinition: NamesAccepted, Established, Terminating.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition as Condition,
    CustomResourceDefinitionNames as Names, CustomResourceDefinitionStatus as Status,
};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::time::seconds;

pub const ESTABLISHED: &str = "Established";
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
pub const TERMINATING: &str = "Terminating";

/// The finalizer that keeps a definition until all its objects are deleted.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Whether the condition exists and is True.
pub fn is_true(status: &Status, of: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| c.type_ == of && c.status == "True")
}

/// Whether objects of this definition are served.
pub fn is_established(crd: &CustomResourceDefinition) -> bool {
    crd.status.as_ref().is_some_and(|s| is_true(s, ESTABLISHED))
}

/// Writes a condition. Its time moves only when its status does.
pub fn set(status: &mut Status, of: &str, is: &str, reason: &str, message: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    let now = Some(seconds(now));
    let fresh = Condition {
        type_: of.into(),
        status: is.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_transition_time: now,
        ..Condition::default()
    };
    match conditions.iter_mut().find(|c| c.type_ == of) {
        Some(there) => {
            let since = there.last_transition_time.clone().filter(|_| there.status == is);
            *there = Condition {
                last_transition_time: since.or(fresh.last_transition_time.clone()),
                ..fresh
            };
        }
        None => conditions.push(fresh),
    }
}

/// The names in use by a group's other definitions and its built-in kinds.
#[derive(Default)]
struct NamesInUse {
    resources: Vec<String>,
    kinds: Vec<String>,
}

/// The status with the accepted names and the conditions (`calculateNamesAndConditions`); `None` where nothing changes. `others`: all
/// definitions.
pub fn names_and_conditions<'a>(
    crd: &CustomResourceDefinition,
    others: impl IntoIterator<Item = &'a CustomResourceDefinition>,
    now: Timestamp,
) -> Option<Status> {
    let mut taken = NamesInUse::default();
    for other in others {
        if other.spec.group != crd.spec.group || other.metadata.name == crd.metadata.name {
            continue;
        }
        let Some(names) = other.status.as_ref().and_then(|s| s.accepted_names.as_ref()) else {
            continue;
        };
        taken.resources.push(names.plural.clone());
        taken.resources.extend(names.singular.clone());
        taken
            .resources
            .extend(names.short_names.iter().flatten().cloned());
        taken.kinds.push(names.kind.clone());
        taken.kinds.extend(names.list_kind.clone());
    }
    let before = crd.status.clone().unwrap_or_default();
    let mut status = before.clone();
    let (accepted, conflict) = accept(&crd.spec.names, before.accepted_names.unwrap_or_default(), &taken);
    status.accepted_names = Some(accepted);
    match conflict {
        Some((reason, message)) => {
            set(&mut status, NAMES_ACCEPTED, "False", reason, &message, now);
            if !is_true(&status, ESTABLISHED) {
                let message = "not all names are accepted";
                set(&mut status, ESTABLISHED, "False", "NotAccepted", message, now);
            }
        }
        None => {
            set(
                &mut status,
                NAMES_ACCEPTED,
                "True",
                "NoConflicts",
                "no conflicts found",
                now,
            );
            if !is_true(&status, ESTABLISHED) {
                let message = "the initial names have been accepted";
                set(
                    &mut status,
                    ESTABLISHED,
                    "True",
                    "InitialNamesAccepted",
                    message,
                    now,
                );
            }
        }
    }
    (Some(&status) != crd.status.as_ref()).then_some(status)
}

/// The accepted names, and the last conflict of the others.
fn accept(requested: &Names, mut had: Names, taken: &NamesInUse) -> (Names, Option<(&'static str, String)>) {
    let mut conflict = None;
    let in_use = |name: &str| format!("{} is already in use", knarr_apimachinery::field::quoted(name));
    let is_taken = |list: &[String], name: &str| !name.is_empty() && list.iter().any(|t| t == name);
    match is_taken(&taken.resources, &requested.plural) {
        true => conflict = Some(("PluralConflict", in_use(&requested.plural))),
        false => had.plural = requested.plural.clone(),
    }
    let singular = requested.singular.as_deref().unwrap_or_default();
    match is_taken(&taken.resources, singular) {
        true => conflict = Some(("SingularConflict", in_use(singular))),
        false => had.singular = requested.singular.clone(),
    }
    let shorts: Vec<String> = requested.short_names.iter().flatten().cloned().collect();
    let clashing: Vec<String> = shorts
        .iter()
        .filter(|s| is_taken(&taken.resources, s))
        .map(|s| in_use(s))
        .collect();
    match clashing.as_slice() {
        [] => had.short_names = requested.short_names.clone(),
        [one] => conflict = Some(("ShortNamesConflict", one.clone())),
        many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
    }
    match is_taken(&taken.kinds, &requested.kind) {
        true => conflict = Some(("KindConflict", in_use(&requested.kind))),
        false => had.kind = requested.kind.clone(),
    }
    let list = requested.list_kind.as_deref().unwrap_or_default();
    match is_taken(&taken.kinds, list) {
        true => conflict = Some(("ListKindConflict", in_use(list))),
        false => had.list_kind = requested.list_kind.clone(),
    }
    had.categories = requested.categories.clone();
    (had, conflict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(plural: &str, kind: &str) -> CustomResourceDefinition {
        serde_json::from_value(json!({"metadata": {"name": format!("{plural}.a.b")},
            "spec": {"group": "a.b", "scope": "Cluster", "versions": [],
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"),
                    "shortNames": ["x"]}}}))
        .unwrap()
    }

    fn conditions_of(status: &Status) -> Vec<String> {
        let conditions = status.conditions.iter().flatten();
        let lines = conditions.map(|c| {
            let reason = c.reason.as_deref().unwrap_or_default();
            format!(
                "{}={} {reason} {}",
                c.type_,
                c.status,
                c.message.as_deref().unwrap_or_default()
            )
        });
        lines.collect()
    }

    #[test]
    fn the_first_definition_gets_the_names() {
        let mut first = crd("widgets", "Widget");
        let then = Timestamp::from_second(100).unwrap();
        first.status = names_and_conditions(&first, [], then);
        let status = first.status.clone().unwrap();
        assert_eq!(
            conditions_of(&status),
            [
                "NamesAccepted=True NoConflicts no conflicts found",
                "Established=True InitialNamesAccepted the initial names have been accepted"
            ]
        );
        assert_eq!(
            names_and_conditions(&first, [&first.clone()], then),
            None,
            "settled once"
        );

        let mut second = crd("gadgets", "Gadget");
        second.status = names_and_conditions(&second, [&first], then);
        let status = second.status.clone().unwrap();
        assert_eq!(
            conditions_of(&status),
            [
                "NamesAccepted=False ShortNamesConflict \"x\" is already in use",
                "Established=False NotAccepted not all names are accepted"
            ]
        );
        assert_eq!(status.accepted_names.unwrap().plural, "gadgets");
        // The other definition is deleted, and its names are free.
        let later = Timestamp::from_second(200).unwrap();
        second.status = names_and_conditions(&second, [], later);
        assert!(is_established(&second));
        let since = second.status.unwrap().conditions.unwrap()[0]
            .last_transition_time
            .clone();
        assert_eq!(since.unwrap().0, later);
    }
}
