//! The answer about a connection, for people.

use super::connect::{Answer, ConnectAnswer, EndAnswer, PathAnswer, SideAnswer};

/// So many endpoints of a path are shown, those that are not reached first; `-o json` has all.
const SHOWN: usize = 8;

pub fn shown(answer: &ConnectAnswer) -> String {
    let mut text = format!("From {}\nTo {}\n", answer.from, answer.to);
    for path in &answer.paths {
        text += &format!("\n{}\n", headline(path));
        let mut ends: Vec<&EndAnswer> = path.ends.iter().collect();
        ends.sort_by_key(|end| end.allowed);
        for end in ends.iter().take(SHOWN) {
            shown_end(path, end, &mut text);
        }
        if let Some(more) = ends.get(SHOWN..).filter(|more| !more.is_empty()) {
            let denied = more.iter().filter(|end| !end.allowed).count();
            text += &format!(
                "  and {} more endpoints, {denied} of them not reached\n",
                more.len()
            );
        }
    }
    if !answer.notes.is_empty() {
        text.push('\n');
        for note in &answer.notes {
            text += &format!("Note: {note}\n");
        }
    }
    text += match answer.verdict {
        Answer::Allowed => "\nAllowed.\n",
        Answer::PartlyDenied => "\nNot always: some connections do not arrive.\n",
        Answer::Denied => "\nNot allowed: no connection arrives.\n",
        Answer::NoEndpoint => "\nThere is nothing that a connection could arrive at.\n",
    };
    text
}

fn headline(path: &PathAnswer) -> String {
    let (source, destination) = (path.source, &path.destination);
    let proxy = match &path.proxied_on {
        Some(node) => format!("the proxy of node {node}"),
        None => "no proxy".to_string(),
    };
    let what = match path.outcome {
        "Sent" if path.ends.len() == 1 => format!("{proxy} sends it to"),
        "Sent" => format!("{proxy} sends it to one of"),
        "Unchanged" => "goes there directly".into(),
        "Rejected" => format!("{proxy} rejects it: the Service has no endpoint that can take connections"),
        "Dropped" => format!(
            "{proxy} drops it: a Local traffic policy without an endpoint there, loadBalancerSourceRanges, or a \
             Service address that nobody has"
        ),
        _ => format!("{proxy} may lose it"),
    };
    format!("{source} to {destination}: {what}")
}

fn shown_end(path: &PathAnswer, end: &EndAnswer, text: &mut String) {
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
    let word = if end.allowed { "allowed" } else { "NOT REACHED" };
    *text += &format!("  {}{pod}{node}{seen_as}: {word}\n", end.address);
    for (direction, side) in [("egress", &end.egress), ("ingress", &end.ingress)] {
        if let Some(side) = side {
            shown_side(direction, side, text);
        }
    }
    for fault in &end.faults {
        *text += &format!("    {fault}\n");
    }
}

fn shown_side(direction: &str, side: &SideAnswer, text: &mut String) {
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
