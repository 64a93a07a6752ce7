//! Plans as text and as JSON.
//!
//! The JSON is `{"plans": [{"policy", "waves", "moves", "notMoved", "notListed", "violations", "violationsNotListed"}]}`;
//! docs/rebalancing.md explains the fields.

use std::collections::BTreeMap;

use knarr_rebalance::plan::{Change, Move, NotMoved, Plan, Total};
use serde::{Serialize, Serializer};

use super::policies::NamedPolicy;
use crate::command::columns::{some, table};

/// How many pods of a reason are shown; `-o json` has all that the plan lists.
const NAMED: usize = 4;

/// The result of the command.
#[derive(Serialize)]
pub struct Plans {
    pub plans: Vec<Planned>,
}

/// A policy and its plan.
pub struct Planned {
    pub policy: NamedPolicy,
    pub plan: Plan,
}

impl Serialize for Planned {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'a> {
            policy: &'a NamedPolicy,
            waves: u32,
            moves: &'a [Move],
            not_moved: &'a [NotMoved],
            not_listed: &'a BTreeMap<&'static str, usize>,
            violations: &'a [Total],
            violations_not_listed: usize,
        }
        let Planned { policy, plan } = self;
        let shown = Shown {
            policy,
            waves: plan.waves(),
            moves: &plan.moves,
            not_moved: &plan.not_moved,
            not_listed: &plan.not_listed,
            violations: &plan.violations,
            violations_not_listed: plan.violations_not_listed,
        };
        shown.serialize(to)
    }
}

impl Plans {
    /// `all`: why other pods stay, also if pods are moved.
    pub fn to_text(&self, all: bool) -> String {
        let texts: Vec<String> = self.plans.iter().map(|planned| planned.to_text(all)).collect();
        texts.join("\n")
    }
}

fn heads<const N: usize>(heads: [&str; N]) -> Vec<Vec<String>> {
    vec![heads.map(String::from).to_vec()]
}

fn count(number: usize, of: &str) -> String {
    match number {
        1 => format!("1 {of}"),
        _ => format!("{number} {of}s"),
    }
}

fn destination(step: &Move) -> String {
    let Some(to) = &step.to else {
        return "<deleted>".into();
    };
    match step.equal_nodes.saturating_sub(1) {
        0 => to.to_string(),
        others => format!("{to} or {others} equal"),
    }
}

fn why(step: &Move) -> String {
    let change = |of: &Change| format!("{} {} -> {}", of.constraint, of.before, of.after);
    let changes: Vec<String> = step.changes.iter().map(change).collect();
    format!("{}: {}", step.rule, changes.join("; "))
}

impl Planned {
    fn to_text(&self, all: bool) -> String {
        let Planned { policy, plan } = self;
        let mut text = format!("Policy: {policy}\n");
        for ignored in &policy.ignored {
            text.push_str(&format!("  ignored: {ignored}\n"));
        }
        text.push('\n');
        if !plan.moves.is_empty() {
            text.push_str(&table(&moves(plan)));
            text.push('\n');
        }
        text.push_str(&self.summary(all));
        if !plan.violations.is_empty() {
            let mut rows = heads(["VIOLATED", "BEFORE", "AFTER"]);
            for total in &plan.violations {
                let (before, after) = (total.before.to_string(), total.after.to_string());
                rows.push(vec![total.constraint.to_string(), before, after]);
            }
            text.push('\n');
            text.push_str(&table(&rows));
        }
        if plan.violations_not_listed > 0 {
            text.push_str(&format!("{} more\n", count(plan.violations_not_listed, "rule")));
        }
        if plan.pods_that_stay() > 0 && (all || plan.moves.is_empty()) {
            text.push('\n');
            text.push_str(&table(&reasons(plan)));
        }
        text
    }

    fn summary(&self, all: bool) -> String {
        let plan = &self.plan;
        let stay = match plan.pods_that_stay() {
            0 => String::new(),
            1 => "1 pod violates a rule and stays".into(),
            pods => format!("{pods} pods violate a rule and stay"),
        };
        if plan.moves.is_empty() {
            return match (plan.violations.is_empty(), stay.as_str()) {
                (true, "") => "Nothing to move: no rule of the policy is violated.\n".into(),
                (false, "") => "Nothing to move: no pod that the policy may move violates a rule.\n".into(),
                (_, stay) => format!("Nothing to move: {stay}.\n"),
            };
        }
        let waves = usize::try_from(plan.waves()).unwrap_or(usize::MAX);
        let mut text = format!("{} in {}", count(plan.moves.len(), "move"), count(waves, "wave"));
        if !stay.is_empty() {
            let hint = if all { "" } else { " (--all shows why)" };
            text.push_str(&format!("; {stay}{hint}"));
        }
        text + "\n"
    }
}

fn moves(plan: &Plan) -> Vec<Vec<String>> {
    let mut rows = heads(["WAVE", "POD", "FROM", "TO", "WHY"]);
    for step in &plan.moves {
        let wave = step.wave.to_string();
        let (pod, from) = (step.pod.to_string(), step.from.to_string());
        rows.push(vec![wave, pod, from, destination(step), why(step)]);
    }
    rows
}

/// Pods with the same reason are one row, the most frequent reason first.
fn reasons(plan: &Plan) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for stays in &plan.not_moved {
        let key = (stays.reason.code(), stays.reason.to_string());
        groups.entry(key).or_default().push(stays.pod.to_string());
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, pods)| std::cmp::Reverse(pods.len()));
    let mut rows = heads(["STAY", "REASON", "MESSAGE", "PODS"]);
    for ((code, message), pods) in groups {
        rows.push(vec![
            pods.len().to_string(),
            code.to_string(),
            message,
            some(&pods, NAMED),
        ]);
    }
    for (code, pods) in &plan.not_listed {
        let message = "more of them, which are only counted";
        rows.push(vec![
            pods.to_string(),
            code.to_string(),
            message.into(),
            String::new(),
        ]);
    }
    rows
}
