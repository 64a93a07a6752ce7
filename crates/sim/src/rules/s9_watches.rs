//! S9: API servers show to their clients what the store committed. A list is the state as of its revision; a watch
//! reports each commit after its revision once, in order, or ends; and a write that is acknowledged exists, at the
//! revision in the response. (Kubernetes' API concepts, "Efficient detection of changes".)

use std::collections::BTreeMap;

use knarr_client::{List, Object, WatchEvent};

use crate::commits::Commits;
use crate::finding::Finding;

fn name_of(object: &Object) -> String {
    format!("{}/{}", object.namespace(), object.name())
}

/// Whether a list of all pods, or its pages together, has the pods as of its revision.
pub(crate) fn lists(pages: &[List], commits: &Commits) -> Result<(), Finding> {
    let Some(first) = pages.first() else {
        return Ok(());
    };
    let revision = first.resource_version;
    let expected = commits.pods_at(revision);
    let objects = pages.iter().flat_map(|page| &page.items);
    let found: Vec<_> = objects.map(|o| (name_of(o), o.revision())).collect();
    let listed: BTreeMap<&str, u64> = found.iter().map(|(name, at)| (name.as_str(), *at)).collect();
    if listed.len() != found.len() {
        return Err(Finding(format!(
            "a list as of {revision} has a pod twice: {found:?}"
        )));
    }
    if listed == expected {
        return Ok(());
    }
    let of = |from: &BTreeMap<&str, u64>, other: &BTreeMap<&str, u64>| {
        let differ = from.iter().filter(|(name, at)| other.get(*name) != Some(*at));
        differ
            .map(|(name, at)| format!("{name} at {at}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    Err(Finding(format!(
        "a list as of {revision} has [{}], expected [{}]",
        of(&listed, &expected),
        of(&expected, &listed)
    )))
}

/// The position of a watch of all pods after an event that came at `position`.
pub(crate) fn follows(position: u64, event: &WatchEvent, commits: &Commits) -> Result<u64, Finding> {
    let next = commits.next_of_pods(position);
    let (object, is_deletion) = match event {
        WatchEvent::Bookmark(revision) => {
            return match next.filter(|next| next.revision <= *revision) {
                Some(next) => Err(Finding(format!(
                    "a watch at {position} has a bookmark at {revision} and was not shown {} of {}",
                    next.revision, next.name
                ))),
                None => Ok(position.max(*revision)),
            };
        }
        WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
        WatchEvent::Deleted(object) => (object, true),
    };
    let (name, revision) = (name_of(object), object.revision());
    let is_next = next
        .is_some_and(|next| (next.revision, &next.name, next.is_deletion) == (revision, &name, is_deletion));
    match is_next {
        true => Ok(revision),
        false => Err(Finding(format!(
            "a watch at {position} is shown {name} at {revision} (deleted: {is_deletion}), expected {next:?}"
        ))),
    }
}

/// Whether the object in the response to a write is one that was committed.
pub(crate) fn is_committed(object: &Object, commits: &Commits) -> Result<(), Finding> {
    // This is checked for each write of each component, and only histories with readers keep the commits.
    if !commits.are_kept() {
        return Ok(());
    }
    let kind = &object.kind().stored();
    let group = match kind.group() {
        "" => "core",
        group => group,
    };
    let name = match object.namespace() {
        "" => object.name().to_string(),
        _ => name_of(object),
    };
    let (revision, plural) = (object.revision(), kind.plural());
    // Reviews are answered and not stored.
    if revision == 0 && group.starts_with("auth") {
        return Ok(());
    }
    match commits.has(revision, &format!("{group}/{plural}/{name}")) {
        true => Ok(()),
        false => Err(Finding(format!(
            "a write of {plural} {name} is answered with revision {revision}, at which it was not written"
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use knarr_api::{k8s_openapi, registry};

    use super::*;

    /// a: written at 2 and 5; b: written at 3, deleted at 6. 4 is a write of another kind.
    fn commits() -> Commits {
        let mut commits = Commits::default();
        commits.keep();
        for (revision, key, is_deletion) in [
            (2, "core/pods/ns/a", false),
            (3, "core/pods/ns/b", false),
            (4, "core/nodes/n", false),
            (5, "core/pods/ns/a", false),
            (6, "core/pods/ns/b", true),
        ] {
            commits.add(revision, key, is_deletion);
        }
        commits
    }

    fn pod(name: &str, revision: u64) -> Arc<Object> {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.resource_version = Some(revision.to_string());
        Arc::new(Object::from_typed(&registry::POD, Box::new(pod)))
    }

    #[test]
    fn s9_a_list_that_is_not_the_state_of_its_revision_is_seen() {
        let list = |at: u64, pods: &[(&str, u64)]| List {
            resource_version: at,
            items: pods.iter().map(|(name, revision)| pod(name, *revision)).collect(),
            ..List::default()
        };
        for (pages, is_right) in [
            (vec![list(5, &[("a", 5), ("b", 3)])], true),
            (vec![list(5, &[("a", 5)]), list(5, &[("b", 3)])], true),
            (vec![list(6, &[("a", 5)])], true),
            (vec![list(6, &[("a", 5), ("b", 3)])], false),
            (vec![list(5, &[("a", 2), ("b", 3)])], false),
            (vec![list(5, &[("b", 3)])], false),
            (vec![list(5, &[("a", 5), ("b", 3)]), list(5, &[("b", 3)])], false),
        ] {
            assert_eq!(lists(&pages, &commits()).is_ok(), is_right, "{pages:?}");
        }
    }

    #[test]
    fn s9_a_watch_that_leaves_out_repeats_or_reorders_is_seen() {
        use WatchEvent::{Added, Bookmark, Deleted, Modified};
        for (position, event, expect) in [
            (1, Added(pod("a", 2)), Some(2)),
            (3, Modified(pod("a", 5)), Some(5)),
            (5, Deleted(pod("b", 6)), Some(6)),
            (3, Bookmark(4), Some(4)),
            (6, Bookmark(9), Some(9)),
            // Left out, repeated, out of order, wrongly deleted, invented.
            (2, Modified(pod("a", 5)), None),
            (5, Modified(pod("a", 5)), None),
            (1, Added(pod("b", 3)), None),
            (5, Modified(pod("b", 6)), None),
            (6, Modified(pod("a", 7)), None),
            (3, Bookmark(5), None),
        ] {
            assert_eq!(
                follows(position, &event, &commits()).ok(),
                expect,
                "{position} {event:?}"
            );
        }
    }

    #[test]
    fn s9_an_answer_that_was_not_committed_is_seen() {
        for (name, revision, is_right) in [("a", 5, true), ("b", 6, true), ("b", 5, false), ("a", 0, false)] {
            let found = is_committed(&pod(name, revision), &commits());
            assert_eq!(found.is_ok(), is_right, "{name} {revision}: {found:?}");
        }
        assert!(
            is_committed(&pod("a", 9), &Commits::default()).is_ok(),
            "nothing is kept"
        );
    }
}
