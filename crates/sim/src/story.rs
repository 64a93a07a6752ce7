//! A broken history for people: which component knew what when, and what it did, for the objects of the broken rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use crate::observer::Violation;
use crate::observer::about::words;
use crate::simulation::Report;

/// Fields in the lines of every object that no story needs.
const NOISE: [&str; 2] = ["core/events/", " events "];
/// The rule for which the renewals of nodes' leases matter.
const ABOUT_LEASES: &str = "B4";
/// The most characters of a line that are shown: statuses are long.
const MOST_CHARACTERS: usize = 180;

/// The component that a line is about, and what it does.
fn teller(text: &str) -> (String, String) {
    let first = text.split(' ').next().unwrap_or_default();
    let rest = text.get(first.len()..).unwrap_or_default().trim_start();
    let whole = |who: &str| (who.to_string(), text.to_string());
    if let Some(what) = text.strip_prefix("user: ") {
        return ("users".into(), what.into());
    }
    if let Some(what) = text.strip_prefix("fault: ") {
        return ("FAULT".into(), what.into());
    }
    if text == "faults end" {
        return ("FAULT".into(), "all faults end".into());
    }
    if text.starts_with("VIOLATION") {
        return whole("RULE");
    }
    if first.parse::<u64>().is_ok() {
        return whole("store");
    }
    if let Some(what) = rest.strip_prefix("is to ") {
        return (format!("node/{first}"), format!("asks its runtime to {what}"));
    }
    if let Some(rest) = text.strip_prefix("kubelet of ") {
        let node = rest.split(' ').next().unwrap_or_default();
        return (format!("node/{node}"), text.into());
    }
    for verb in ["sees ", "asks to ", "is answered: "] {
        if rest.starts_with(verb) {
            return (first.into(), rest.into());
        }
    }
    if rest.ends_with("Started")
        || rest.ends_with("Asked")
        || rest.contains("Ended(")
        || rest.contains(" runs in ")
    {
        return (format!("runtime {first}"), rest.into());
    }
    whole("")
}

struct Line<'a> {
    at: Timestamp,
    text: &'a str,
}

fn lines(trace: &[String]) -> impl Iterator<Item = Line<'_>> {
    trace.iter().filter_map(|line| {
        let (at, text) = line.split_once(' ')?;
        Some(Line {
            at: at.parse().ok()?,
            text,
        })
    })
}

/// Containers and sandboxes of these pods, by node and id.
fn ids<'a>(trace: &'a [String], about: &BTreeSet<String>) -> BTreeSet<(&'a str, &'a str)> {
    let mut found = BTreeSet::new();
    for line in lines(trace) {
        let parts: Vec<&str> = line.text.split(' ').collect();
        if let [node, id, of, "runs", "in", sandbox] = parts[..]
            && of.split('/').next().is_some_and(|pod| about.contains(pod))
        {
            found.insert((node, id));
            found.insert((node, sandbox));
        }
    }
    found
}

fn belongs(text: &str, violation: &Violation, ids: &BTreeSet<(&str, &str)>) -> bool {
    let always = ["user: ", "fault: ", "VIOLATION", "faults end"];
    let starts_or_stops =
        text.ends_with(" starts") || text.ends_with(" dies") || text.contains(" is switched ");
    if always.iter().any(|start| text.starts_with(start)) || starts_or_stops {
        return true;
    }
    if NOISE.iter().any(|noise| text.contains(noise)) {
        return false;
    }
    let lease = text.contains("leases");
    if lease && violation.rule != ABOUT_LEASES {
        return false;
    }
    let words: BTreeSet<&str> = words(text).collect();
    if ids
        .iter()
        .any(|(node, id)| words.contains(node) && words.contains(id))
    {
        return true;
    }
    // A node's name is in most lines: only those with writes of its objects count.
    let is_node = |name: &str| text.contains(&format!("core/nodes/{name}"));
    let named = |name: &&String| words.contains(name.as_str());
    let nodes = |name: &&String| name.starts_with('n') && name[1..].parse::<u32>().is_ok();
    let mut named = violation.about.iter().filter(named);
    named.any(|name| !nodes(&name) || is_node(name) || lease)
}

impl Report {
    /// The story of a broken history that was recorded in full (see [`crate::Simulation::story`]): a line for each
    /// event of the objects of the broken rule, with its component, and at the end what each component knew of them.
    /// None if every rule held.
    pub fn story(&self) -> Option<String> {
        let violation = self.violation.as_ref()?;
        let ids = ids(&self.trace, &violation.about);
        let mut story = format!("{} was broken: {}\n", violation.rule, violation.what);
        let about: Vec<_> = violation.about.iter().map(String::as_str).collect();
        // Writing to a String does not fail.
        let _ = writeln!(story, "It is about {}.\n", about.join(", "));
        let began = lines(&self.trace).next().map(|line| line.at);
        let mut seen_before = BTreeSet::new();
        // The newest version of an object that each component has seen, and when; that of the store under "".
        let mut known: BTreeMap<&str, BTreeMap<String, (u64, String)>> = BTreeMap::new();
        for line in lines(&self.trace) {
            if !belongs(line.text, violation, &ids) {
                continue;
            }
            let (who, what) = teller(line.text);
            let sees = what.starts_with("sees ");
            if sees && !seen_before.insert((who.clone(), what.clone())) {
                continue;
            }
            let passed = line.at.duration_since(began.unwrap_or(line.at));
            let (seconds, millis) = (passed.as_secs(), passed.subsec_millis());
            let at = format!("{:>3}:{:02}.{millis:03}", seconds / 60, seconds % 60);
            let short: String = what.chars().take(MOST_CHARACTERS).collect();
            let more = if short.len() < what.len() { "…" } else { "" };
            let _ = writeln!(story, "{at}  {who:<16}  {short}{more}");
            if line.text.starts_with("VIOLATION") {
                // What comes after was not checked any more.
                break;
            }
            if let Some((object, revision)) = pod_of(line.text) {
                let who = if sees { who } else { String::new() };
                known.entry(object).or_default().insert(who, (revision, at));
            }
        }
        for (pod, by) in known {
            let newest = by.get("").map_or(0, |(revision, _)| *revision);
            let _ = writeln!(
                story,
                "\nWhat they had seen last of pod {pod}, of which the store has revision {newest}:"
            );
            for (who, (revision, at)) in by.iter().filter(|(who, _)| !who.is_empty()) {
                let behind = if *revision < newest { "  (behind)" } else { "" };
                let _ = writeln!(story, "  {who:<16}  revision {revision}, at {at}{behind}");
            }
        }
        Some(story)
    }
}

/// The pod and its revision in a line of the store or of a component that sees it.
fn pod_of(text: &str) -> Option<(&str, u64)> {
    let parts: Vec<&str> = text.split(' ').collect();
    let (revision, name) = match parts[..] {
        [_, "sees", revision, "pods", name, ..] => (revision, name),
        [revision, "pod", name, ..] => (revision, name),
        _ => return None,
    };
    Some((name, revision.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_attributed_to_their_component() {
        for (text, who, what) in [
            ("user: delete a grace None", "users", "delete a grace None"),
            ("fault: n1 reboots for 3 ms", "FAULT", "n1 reboots for 3 ms"),
            ("12 pod default/a is gone", "store", "12 pod default/a is gone"),
            (
                "n1 is to stop c1 within 3 s",
                "node/n1",
                "asks its runtime to stop c1 within 3 s",
            ),
            (
                "node/n1 sees 12 pods default/a",
                "node/n1",
                "sees 12 pods default/a",
            ),
            ("n1 c1 a/obeys Started", "runtime n1", "c1 a/obeys Started"),
            ("kubelet of n1 dies", "node/n1", "kubelet of n1 dies"),
        ] {
            assert_eq!(teller(text), (who.into(), what.into()));
        }
    }

    #[test]
    fn what_concerns_other_objects_is_left_out() {
        let violation = Violation {
            rule: "T3",
            what: "a was killed".into(),
            at: Timestamp::UNIX_EPOCH,
            about: ["a", "n1"].map(String::from).into(),
        };
        let trace = ["2026-01-01T00:00:00Z n1 c7 a/obeys runs in s3".to_string()];
        let ids = ids(&trace, &violation.about);
        for (text, expect) in [
            ("12 pod default/a is gone", true),
            ("12 pod default/ab is gone", false),
            ("n1 is to stop c7 within 3 s", true),
            ("n1 is to make obeys in s3", true),
            ("n2 is to stop c7 within 3 s", false),
            ("n1 is to stop c8 within 3 s", false),
            ("12 put core/nodes/n1, ready: True", true),
            ("12 put coordination.k8s.io/leases/kube-node-lease/n1", false),
            ("12 put core/events/default/a", false),
            ("fault: n2 reboots for 3 ms", true),
        ] {
            assert_eq!(belongs(text, &violation, &ids), expect, "{text}");
        }
    }
}
