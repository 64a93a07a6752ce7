//! The text output of `knarr net connect`.

use super::connect::{ConnectEndpoint, ConnectReport, PathReport, PolicyResult, Reachability};

/// How many endpoints of a path are to_text, those that are not reached first; `-o json` has all.
const SHOWN: usize = 8;

pub fn to_text(report: &ConnectReport) -> String {
    let mut text = format!("From {}\nTo {}\n", report.from, report.to);
    for path in &report.paths {
        text += &format!("\n{}\n", headline(path));
        let mut ends: Vec<&ConnectEndpoint> = path.ends.iter().collect();
        ends.sort_by_key(|end| end.allowed);
        for end in ends.iter().take(SHOWN) {
            show_endpoint(path, end, &mut text);
        }
        if let Some(more) = ends.get(SHOWN..).filter(|more| !more.is_empty()) {
            let denied = more.iter().filter(|end| !end.allowed).count();
            text += &format!(
                "  and {} more endpoints, {denied} of them not reached\n",
                more.len()
            );
        }
    }
    if !report.notes.is_empty() {
        text.push('\n');
        for note in &report.notes {
            text += &format!("Note: {note}\n");
        }
    }
    text += match report.verdict {
        Reachability::Allowed => "\nAllowed.\n",
        Reachability::PartlyDenied => "\nPartly denied: some endpoints are not reached.\n",
        Reachability::Denied => "\nDenied: no endpoint is reached.\n",
        Reachability::NoEndpoint => {
            "\nNo endpoint: the destination has none that a connection could reach.\n"
        }
    };
    text
}

fn headline(path: &PathReport) -> String {
    let (source, destination) = (path.source, &path.destination);
    let proxy = match &path.proxied_on {
        Some(node) => format!("the proxy of node {node}"),
        None => "no proxy".to_string(),
    };
    let what = match path.outcome {
        "Sent" if path.ends.len() == 1 => format!("{proxy} sends it to"),
        "Sent" => format!("{proxy} sends it to one of"),
        "Unchanged" => "sent there directly".into(),
        "Rejected" => format!("{proxy} rejects it: the Service has no serving endpoint"),
        "Dropped" => format!(
            "{proxy} drops it: a Local traffic policy without an endpoint there, loadBalancerSourceRanges, or a \
             address of the Service range that no Service has"
        ),
        _ => format!("{proxy} may lose it"),
    };
    format!("{source} to {destination}: {what}")
}

fn show_endpoint(path: &PathReport, end: &ConnectEndpoint, text: &mut String) {
    let pod = end
        .pod
        .as_ref()
        .map_or_else(String::new, |pod| format!(" pod {pod}"));
    let node = end
        .node
        .as_ref()
        .map_or_else(String::new, |node| format!(" on {node}"));
    let seen_as = match end.seen_as == path.source {
        true => String::new(),
        false => format!(" (sees {} as client)", end.seen_as),
    };
    let state = if end.allowed { "allowed" } else { "NOT REACHED" };
    *text += &format!("  {}{pod}{node}{seen_as}: {state}\n", end.address);
    for (direction, side) in [("egress", &end.egress), ("ingress", &end.ingress)] {
        if let Some(side) = side {
            show_policies(direction, side, text);
        }
    }
    for fault in &end.faults {
        *text += &format!("    {fault}\n");
    }
}

fn show_policies(direction: &str, side: &PolicyResult, text: &mut String) {
    let of = format!("    {direction} of {}", side.pod);
    if let Some(why) = side.exempt {
        *text += &format!("{of}: allowed, {why}\n");
        return;
    }
    let by = side.isolated_by.join(", ");
    match (side.isolated_by.is_empty(), side.allowed) {
        (true, _) => *text += &format!("{of}: allowed, no policy isolates it\n"),
        (false, true) => *text += &format!("{of}: allowed; isolated by {by}\n"),
        (false, false) => *text += &format!("{of}: DROPPED; isolated by {by}\n"),
    }
    let is_shown = |says: &str| !side.allowed || says == "allows the connection";
    for rule in side.rules.iter().filter(|rule| is_shown(&rule.says)) {
        *text += &format!(
            "      {} {direction}[{}] ({}): {}\n",
            rule.policy, rule.index, rule.rule, rule.says
        );
    }
    if !side.allowed && side.rules.is_empty() {
        *text += "      none of them has a rule for this direction\n";
    }
    if let Some(needed) = &side.needed {
        *text += &format!("      {needed}\n");
    }
}
