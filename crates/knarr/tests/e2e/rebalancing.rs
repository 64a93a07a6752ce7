//! RebalancePolicies with kubectl (SPEC B3): they are explained, planned by default only, and carried out when a user wants it.

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[(
    "b3_a_policy_shows_its_plan_and_moves_pods_only_without_dry_run",
    rebalancing,
)];

/// A Job that fails once, and whose pod stays; a policy that deletes failed pods.
const FAILS: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: { name: fails }
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [ { name: c, image: localhost/knarr/busybox:1, command: [ "false" ] } ]
---
apiVersion: placement.knarr.io/v1alpha1
kind: RebalancePolicy
metadata: { name: tidy }
spec:
  strategies: { failedPods: {} }
"#;

fn rebalancing(ns: &Namespace) -> Outcome {
    has(
        &ns.run(&["explain", "rebalancepolicy.spec.budgets.perHour"])?,
        "Moves within an hour",
    )?;
    ns.apply(FAILS)?;
    // The default is a dry run: the plan is shown, and the pod stays.
    let shown = ns.eventually_run(&["get", "rebalancepolicy", "tidy", "--no-headers"], |out| {
        out.split_whitespace()
            .take(5)
            .eq(["tidy", "true", "1", "True", "DryRun"])
    })?;
    has(&shown, "DryRun")?;
    has(
        &ns.run(&[
            "get",
            "pods",
            "-l",
            "job-name=fails",
            "-o",
            "jsonpath={.items[*].status.phase}",
        ])?,
        "Failed",
    )?;
    ns.eventually_run(&["describe", "rebalancepolicy", "tidy"], |out| {
        out.contains("RebalancePlanned")
    })?;
    ns.run(&[
        "patch",
        "rebalancepolicy",
        "tidy",
        "--type=merge",
        "-p",
        r#"{"spec":{"dryRun":false}}"#,
    ])?;
    ns.eventually_run(&["get", "pods", "-l", "job-name=fails", "-o", "name"], |out| {
        out.trim().is_empty()
    })?;
    let status = [
        "get",
        "rebalancepolicy",
        "tidy",
        "-o",
        "jsonpath={.status.movesLastHour} {.status.recentMoves[*].rule}",
    ];
    let moved = ns.eventually_run(&status, |out| out.starts_with('1'))?;
    same(moved.trim(), "1 FailedPods")?;
    // What the schema cannot say is in the condition.
    let thresholds = r#"{"spec":{"strategies":{"lowNodeUtilization":{"thresholds":{"cpu":20},"targetThresholds":{"memory":50}}}}}"#;
    ns.run(&[
        "patch",
        "rebalancepolicy",
        "tidy",
        "--type=merge",
        "-p",
        thresholds,
    ])?;
    let invalid = ns.eventually_run(
        &[
            "get",
            "rebalancepolicy",
            "tidy",
            "-o",
            "jsonpath={.status.conditions[?(@.type=='Ready')].message}",
        ],
        |out| out.contains("Thresholds"),
    )?;
    has(
        &invalid,
        "spec.strategies.lowNodeUtilization.targetThresholds[cpu]",
    )
}
