//! What a violation is about.

use std::collections::BTreeSet;

use crate::world::{Life, Observation, World};

/// How much of a UID is shown.
const SHORT_UID: usize = 8;

/// The names that a violation is about: pods with the prefixes of their UIDs, their owners, nodes and disks.
pub(crate) fn concerned(seen: Option<&Observation<'_>>, what: &str, world: &World) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut uids = BTreeSet::new();
    match seen {
        Some(Observation::PodWritten { uid, .. } | Observation::PodRemoved { uid, .. }) => {
            uids.insert(*uid);
        }
        Some(
            Observation::Started(process) | Observation::Asked(process) | Observation::Ended(process, _),
        ) => {
            names.insert(process.node.clone());
            uids.insert(process.uid.as_str());
        }
        Some(Observation::Opened { disk, by }) => {
            names.insert((*disk).into());
            names.insert(by.node.clone());
            uids.insert(by.uid.as_str());
        }
        Some(
            Observation::Fenced { node, .. }
            | Observation::Ranges { node }
            | Observation::Policed { node }
            | Observation::Programmed { node }
            | Observation::Resolved { node, .. },
        ) => {
            names.insert((*node).into());
        }
        Some(Observation::Leased { node, sandbox }) => {
            names.insert((*node).into());
            names.insert((*sandbox).into());
        }
        Some(
            Observation::Led { key, .. }
            | Observation::Written { key }
            | Observation::Metered { key }
            | Observation::Defined { key },
        ) => {
            names.extend(key.rsplit('/').next().map(String::from));
        }
        Some(Observation::DeleteAsked { name, .. } | Observation::MoveAsked { name }) => {
            names.insert((*name).into());
        }
        Some(Observation::BudgetWritten { after, .. }) => names.extend(after.metadata.name.clone()),
        Some(Observation::Stored(step)) => {
            let (volume, node) = step.of();
            names.extend([volume.to_string(), node.to_string()]);
        }
        Some(Observation::Tick) | None => {}
    }
    let words: BTreeSet<&str> = words(what).collect();
    names.extend(
        words
            .iter()
            .filter(|w| world.nodes.contains_key(**w))
            .map(|w| w.to_string()),
    );
    let is_named = |life: &Life| {
        let name = life.pod.metadata.name.as_deref().unwrap_or_default();
        words.contains(name) || names.contains(name)
    };
    let lives = world.pods.iter();
    let lives: Vec<_> = lives
        .filter(|(uid, life)| uids.contains(uid.as_str()) || is_named(life))
        .collect();
    for (uid, life) in lives {
        let meta = &life.pod.metadata;
        names.extend(meta.name.clone());
        names.extend(uid.get(..SHORT_UID).map(String::from));
        names.extend(
            meta.owner_references
                .iter()
                .flatten()
                .map(|owner| owner.name.clone()),
        );
        names.extend(Some(life.node().to_string()).filter(|node| !node.is_empty()));
    }
    // Further names in it: a workload, a disk, a policy.
    let ends = |word: &&&str| word.len() > 2 && word.ends_with(|c: char| c.is_ascii_digit());
    names.extend(words.iter().filter(ends).map(|word| word.to_string()));
    names
}

/// The names in a line.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    let apart = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.');
    line.split(apart)
        .map(|word| word.trim_matches('.'))
        .filter(|word| !word.is_empty())
}
