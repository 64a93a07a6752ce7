//! S7, of staged volumes: a volume is attached to one node at a time, staged on a node only while it is attached to
//! it (or while the node is logged in at its target), and neither unstaged, logged out of nor detached while a pod of
//! the node has it.
//!
//! A VolumeAttachment alone is no attachment: one that a controller requested, gave up and decided otherwise about may
//! be committed late, in addition to another node's, and the driver rejects it.
//!
//! What a node had when a user or a fence agent declared it dead neither excuses nor prevents another node's next
//! step.

use crate::finding::Finding;
use crate::world::{Observation, Step, Storage, Ties, World, is_out_of_service};

/// Another node that has the volume.
fn other<'a>(ties: &'a Ties, volume: &str, node: &str) -> Option<&'a str> {
    let mut of_volume = ties
        .iter()
        .filter(|((of, _), given_up)| of == volume && !**given_up);
    let found = of_volume.find(|((_, on), _)| on != node);
    found.map(|((_, on), _)| on.as_str())
}

/// What on the node uses the volume: a mount for a pod, or a process.
fn user(world: &World, volume: &str, node: &str) -> Option<String> {
    let disk = world.disks.get(volume)?;
    let given_up = |uid: &str| world.pods.get(uid).is_some_and(|life| life.given_up);
    let mut of_node = disk
        .open
        .keys()
        .filter(|holder| holder.node == node && !given_up(&holder.uid));
    of_node.next().map(|holder| format!("pod {} has it", holder.uid))
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Stored(step) = seen else {
        return Ok(());
    };
    let (volume, node) = step.of();
    let key = (volume.to_string(), node.to_string());
    let storage = &world.storage;
    // An order may have been in progress when its node was declared dead.
    let is_gone = world.nodes.get(node).is_none_or(is_out_of_service);
    let broken = match step {
        Step::Attached(..) => {
            let other = other(&storage.attached, volume, node);
            other.map(|other| format!("is attached to {node} while it is to {other}"))
        }
        _ if is_gone => None,
        Step::Staged(..) => match other(&storage.staged, volume, node) {
            Some(other) => Some(format!("is staged on {node} while it is on {other}")),
            None if !storage.attached.contains_key(&key) && !storage.sessions.contains_key(&key) => {
                Some(format!("is staged on {node}, to which it is not attached"))
            }
            None => None,
        },
        Step::Unstaged(..) => {
            let user = user(world, volume, node);
            user.map(|user| format!("is unstaged on {node}, where {user}"))
        }
        Step::Detached(..) | Step::LoggedOut(..) => match storage.staged.get(&key) {
            Some(false) => Some(format!("is detached from {node}, where it is staged")),
            _ => user(world, volume, node).map(|user| format!("is detached from {node}, where {user}")),
        },
        Step::LoggedIn(..) => None,
    };
    broken.map_or(Ok(()), |what| Err(Finding(format!("volume {volume} {what}"))))
}

/// At rest: a volume of a node that no pod of it uses.
pub(crate) fn at_rest(world: &World, is_used: impl Fn(&str, &str) -> bool) -> Result<(), Finding> {
    let Storage {
        attached,
        staged,
        sessions,
    } = &world.storage;
    for (ties, what) in [
        (attached, "attached to"),
        (staged, "staged on"),
        (sessions, "logged in at from"),
    ] {
        if let Some((volume, node)) = ties.keys().find(|(volume, node)| !is_used(volume, node)) {
            return Err(Finding(format!(
                "volume {volume} is still {what} {node}, for no pod"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::jiff::Timestamp;
    use knarr_api::k8s_openapi;

    use super::*;
    use crate::world::{Disk, DiskUser, Holder};

    fn world(steps: &[Step]) -> World {
        let mut world = World::default();
        for node in ["n1", "n2"] {
            world.nodes.insert(node.into(), Node::default());
        }
        steps.iter().for_each(|step| world.storage.take(step));
        world
    }

    fn with_user(mut world: World) -> World {
        let holder = Holder {
            node: "n1".into(),
            uid: "u".into(),
            by: DiskUser::Process("c1".into()),
        };
        let mut disk = Disk::default();
        disk.open.insert(holder, Timestamp::UNIX_EPOCH);
        world.disks.insert("v".into(), disk);
        world
    }

    fn of(step: fn(String, String) -> Step, node: &str) -> Step {
        step("v".into(), node.into())
    }

    #[test]
    fn s7_a_volume_on_two_nodes_or_taken_from_its_users_is_seen() {
        use Step::{Attached, Detached, LoggedIn, LoggedOut, Staged, Unstaged};
        let one = [of(Attached, "n1"), of(Staged, "n1")];
        for (before, step, is_used, is_right) in [
            (vec![], of(Attached, "n1"), false, true),
            (vec![of(Attached, "n1")], of(Staged, "n1"), false, true),
            (vec![of(LoggedIn, "n1")], of(Staged, "n1"), false, true),
            (one.to_vec(), of(Unstaged, "n1"), false, true),
            (vec![of(Attached, "n1")], of(Detached, "n1"), false, true),
            (vec![of(Attached, "n1")], of(Attached, "n2"), false, false),
            (vec![], of(Staged, "n1"), false, false),
            (one.to_vec(), of(Unstaged, "n1"), true, false),
            (one.to_vec(), of(Detached, "n1"), false, false),
            (vec![of(Attached, "n1")], of(Detached, "n1"), true, false),
            (
                vec![of(LoggedIn, "n1"), of(Staged, "n1")],
                of(LoggedOut, "n1"),
                false,
                false,
            ),
            (
                vec![of(LoggedIn, "n1"), of(Staged, "n1"), of(LoggedIn, "n2")],
                of(Staged, "n2"),
                false,
                false,
            ),
        ] {
            let mut world = world(&before);
            world = if is_used { with_user(world) } else { world };
            world.storage.take(&step);
            let found = check(&Observation::Stored(&step), &world);
            assert_eq!(found.is_ok(), is_right, "{before:?} {step:?}: {found:?}");
        }
    }

    #[test]
    fn s7_a_node_that_is_gone_for_good_keeps_no_volume_from_another() {
        let mut world = world(&[of(Step::Attached, "n1"), of(Step::Staged, "n1")]);
        world.storage.give_up("n1");
        for step in [of(Step::Attached, "n2"), of(Step::Staged, "n2")] {
            world.storage.take(&step);
            assert_eq!(check(&Observation::Stored(&step), &world), Ok(()));
        }
    }

    #[test]
    fn s7_what_no_pod_uses_is_seen_at_rest() {
        let world = world(&[of(Step::Attached, "n1"), of(Step::Staged, "n1")]);
        assert_eq!(at_rest(&world, |_, _| true), Ok(()));
        let found = at_rest(&world, |volume, node| (volume, node) == ("v", "n2"));
        assert!(found.unwrap_err().0.contains("attached to n1"));
    }
}
