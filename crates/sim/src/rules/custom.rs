//! Custom resources live no longer than their CustomResourceDefinition: when a definition is removed from the store
//! it has no objects, none is created without it, and none of an earlier definition exists under the next one of its
//! name. The dependents of a custom resource are collected after it, and not before; informers end up with what is
//! stored.

use crate::definitions::LastWrite;
use crate::finding::Finding;
use crate::world::{Observation, World};

fn first_object(plural: &str, world: &World) -> Option<String> {
    let mut objects = world.definitions.objects_of(plural);
    objects.next().map(|(key, _)| key.to_string())
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Defined { key } = seen else {
        return Ok(());
    };
    let known = &world.definitions;
    match &known.last {
        LastWrite::Created { plural } if !known.definitions.contains_key(plural) => Err(Finding(format!(
            "{key} is created, and there is no definition of {plural}"
        ))),
        LastWrite::Undefined { plural } | LastWrite::Defined { plural } => {
            match first_object(plural, world) {
                Some(left) => Err(Finding(format!(
                    "{key} is written or deleted as a whole, and {left} is there"
                ))),
                None => Ok(()),
            }
        }
        LastWrite::Collected { owner } => match known.object_with(owner) {
            Some(stored) if !stored.is_deleted => {
                Err(Finding(format!("{key} is deleted, and its owner is there")))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// At rest: whether everything is collected.
pub(crate) fn at_rest(world: &World) -> Result<(), Finding> {
    let known = &world.definitions;
    for (plural, stored) in &known.definitions {
        if stored.is_deleted {
            return Err(Finding(format!("the definition of {plural} is being deleted")));
        }
    }
    for ((plural, key), stored) in &known.objects {
        if stored.is_deleted || !known.definitions.contains_key(plural) {
            return Err(Finding(format!("{key} is there, deleted: {}", stored.is_deleted)));
        }
    }
    for (key, owner) in &known.dependents {
        // The garbage collector deletes nothing whose owner is of a kind that is not served, as upstream's attemptToDeleteItem.
        let is_served = known.definitions.contains_key(&owner.plural);
        if is_served && known.object_with(&owner.uid).is_none() {
            return Err(Finding(format!("{key} is there, and its owner is not")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    const DEFINITION: &str = "apiextensions.k8s.io/customresourcedefinitions/widgets.sim.knarr.dev";
    const WIDGET: &str = "sim.knarr.dev/widgets/default/w1";
    const PART: &str = "core/configmaps/default/part-1";

    fn object(uid: &str) -> Option<Value> {
        Some(json!({"metadata": {"uid": uid}}))
    }

    fn deleted(uid: &str) -> Option<Value> {
        Some(json!({"metadata": {"uid": uid, "deletionTimestamp": "2026-01-01T00:00:00Z"}}))
    }

    fn part_of(owner: &str) -> Option<Value> {
        let owner = json!({"apiVersion": "sim.knarr.dev/v1", "kind": "Widget", "name": "w1", "uid": owner});
        Some(json!({"metadata": {"uid": "p", "ownerReferences": [owner]}}))
    }

    /// Whether the last of these writes violates the rule, and whether the state at rest does.
    fn is_broken(written: &[(&str, Option<Value>)]) -> (bool, bool) {
        let mut world = World::default();
        for (path, value) in written {
            let value = value.as_ref().map(Value::to_string);
            let bytes = value.as_deref().map(str::as_bytes);
            assert!(world.definitions.take_in(path, bytes), "{path}");
        }
        let seen = Observation::Defined { key: "key" };
        (check(&seen, &world).is_err(), at_rest(&world).is_err())
    }

    #[test]
    fn objects_without_their_definition_and_of_a_former_life_are_seen() {
        let (crd, widget) = ((DEFINITION, object("d")), (WIDGET, object("w")));
        let deletion = |path| (path, None);
        for (written, at_once, at_rest) in [
            (vec![crd.clone(), widget.clone()], false, false),
            (vec![widget.clone()], true, true),
            (
                vec![crd.clone(), widget.clone(), deletion(DEFINITION)],
                true,
                true,
            ),
            (
                vec![
                    crd.clone(),
                    widget.clone(),
                    deletion(WIDGET),
                    deletion(DEFINITION),
                ],
                false,
                false,
            ),
            (
                vec![crd.clone(), deletion(DEFINITION), widget.clone()],
                true,
                true,
            ),
            (vec![widget, (DEFINITION, object("e"))], true, false),
            (vec![crd.clone(), (DEFINITION, deleted("d"))], false, true),
            (vec![crd, (WIDGET, deleted("w"))], false, true),
        ] {
            assert_eq!(is_broken(&written), (at_once, at_rest), "{written:?}");
        }
    }

    #[test]
    fn what_is_collected_before_its_owner_or_never_is_seen() {
        let crd = (DEFINITION, object("d"));
        let (widget, part) = ((WIDGET, object("w")), (PART, part_of("w")));
        let deletion = |path| (path, None);
        for (written, at_once, at_rest) in [
            (vec![crd.clone(), widget.clone(), part.clone()], false, false),
            (
                vec![crd.clone(), widget.clone(), part.clone(), deletion(PART)],
                true,
                false,
            ),
            (
                vec![
                    crd.clone(),
                    widget.clone(),
                    part.clone(),
                    (WIDGET, deleted("w")),
                    deletion(PART),
                ],
                false,
                true,
            ),
            (vec![crd, widget, part, deletion(WIDGET)], false, true),
        ] {
            assert_eq!(is_broken(&written), (at_once, at_rest), "{written:?}");
        }
    }
}
