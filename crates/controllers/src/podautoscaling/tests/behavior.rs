//! Stabilization windows and policies.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerBehavior;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use super::super::Settings;
use super::super::behavior::{Dated, History, Normalized, Proposal};

const NOW: i64 = 1_000_000;

fn second(n: i64) -> Timestamp {
    Timestamp::from_second(n).unwrap()
}

fn dated(entries: &[(i32, i64)]) -> Vec<Dated> {
    let entry = |(replicas, ago): &(i32, i64)| Dated {
        replicas: *replicas,
        at: second(NOW - ago),
    };
    entries.iter().map(entry).collect()
}

/// Policies of pods and percent, each with its period; no period, no policy.
fn rules(pods: (i32, i32), percent: (i32, i32), window: i32) -> Value {
    let policies: Vec<Value> = [("Pods", pods), ("Percent", percent)]
        .into_iter()
        .filter(|(_, (_, period))| *period > 0)
        .map(|(type_, (value, period))| json!({"type": type_, "value": value, "periodSeconds": period}))
        .collect();
    json!({"policies": policies, "selectPolicy": "Max", "stabilizationWindowSeconds": window})
}

fn default_up() -> Value {
    rules((4, 15), (100, 15), 0)
}

fn default_down() -> Value {
    rules((0, 0), (100, 15), 300)
}

fn behavior(up: Value, down: Value) -> HorizontalPodAutoscalerBehavior {
    serde_json::from_value(json!({"scaleUp": up, "scaleDown": down})).unwrap()
}

/// Minimum, maximum, current, desired.
fn normalize(
    history: &mut History,
    behavior: Option<&HorizontalPodAutoscalerBehavior>,
    (min, max, current, desired): (i32, i32, i32, i32),
) -> Normalized {
    let proposal = Proposal {
        min,
        max,
        current,
        desired,
    };
    history.normalize(behavior, proposal, &Settings::default(), second(NOW))
}

#[test]
fn without_a_behavior_the_number_is_bounded_and_at_most_doubles() {
    #[rustfmt::skip]
    let table = [
        ((3, 8, 5, 7), 7, "DesiredWithinRange"),
        ((2, 8, 3, 1), 2, "TooFewReplicas"),
        ((0, 10, 1, 0), 0, "DesiredWithinRange"),
        ((1, 10, 20, 1000), 10, "TooManyReplicas"),
        ((1, 2000, 3, 1000), 6, "ScaleUpLimit"),
        ((1, 2000, 1, 1000), 4, "ScaleUpLimit"),
    ];
    for (bounds, expected, reason) in table {
        let found = normalize(&mut History::default(), None, bounds);
        assert_eq!((found.replicas, found.scaling_limited.reason), (expected, reason));
        assert_eq!(found.limited, reason != "DesiredWithinRange");
    }
}

#[test]
fn policies_limit_the_change_as_in_kubernetes() {
    let (up, down) = (default_up, default_down);
    #[rustfmt::skip]
    let table = [
        (rules((1, 60), (0, 0), 0), down(), (1, 2000, 3, 1000), 4, "ScaleUpLimit"),
        (up(), rules((20, 60), (0, 0), 0), (3, 2000, 1000, 3), 980, "ScaleDownLimit"),
        (up(), down(), (1, 1000, 10, 50), 20, "ScaleUpLimit"),
        (rules((100, 60), (100, 60), 0), down(), (1, 1000, 10, 500), 110, "ScaleUpLimit"),
        (rules((2, 60), (100, 60), 0), down(), (1, 1000, 10, 500), 20, "ScaleUpLimit"),
        (rules((100, 60), (0, 0), 0), down(), (1, 1000, 10, 50), 50, "DesiredWithinRange"),
        (rules((30, 60), (0, 0), 0), down(), (1, 1000, 10, 50), 40, "ScaleUpLimit"),
        (rules((0, 0), (200, 60), 0), down(), (1, 1000, 10, 50), 30, "ScaleUpLimit"),
        (up(), rules((20, 60), (1, 60), 300), (1, 1000, 100, 2), 80, "ScaleDownLimit"),
        (up(), rules((2, 60), (1, 60), 300), (1, 1000, 100, 2), 98, "ScaleDownLimit"),
        (up(), rules((100, 60), (0, 0), 300), (1, 1000, 10, 0), 1, "TooFewReplicas"),
        (up(), rules((0, 0), (100, 60), 300), (5, 1000, 10, 2), 5, "TooFewReplicas"),
        (up(), rules((5, 60), (0, 0), 300), (1, 1000, 10, 2), 5, "ScaleDownLimit"),
        (up(), rules((0, 0), (50, 60), 300), (1, 1000, 10, 5), 5, "DesiredWithinRange"),
    ];
    for (up, down, bounds, expected, reason) in table {
        let found = normalize(&mut History::default(), Some(&behavior(up, down)), bounds);
        let found = (found.replicas, found.scaling_limited.reason);
        assert_eq!(found, (expected, reason), "{bounds:?}");
    }
}

#[test]
fn scale_events_of_the_period_count_against_its_policy() {
    let recent = dated(&[(1, 110), (5, 60), (9, 10)]);
    let after_scaling_up = |up| {
        let mut history = History {
            scaled_up: recent.clone(),
            ..History::default()
        };
        let behavior = behavior(up, default_down());
        normalize(&mut history, Some(&behavior), (1, 1000, 100, 500)).replicas
    };
    // 85 at the start of the period.
    assert_eq!(after_scaling_up(rules((150, 120), (0, 0), 0)), 235);
    assert_eq!(after_scaling_up(rules((0, 0), (200, 120), 0)), 255);
    // More was added than the policy allows: no further, but not back either.
    assert_eq!(after_scaling_up(rules((5, 120), (0, 0), 0)), 100);
    let mut both = History {
        scaled_up: dated(&[(4, 60)]),
        scaled_down: dated(&[(2, 60)]),
        ..History::default()
    };
    let triple = behavior(rules((0, 0), (300, 300), 0), default_down());
    // (6 - 4 + 2) * 4.
    assert_eq!(normalize(&mut both, Some(&triple), (1, 1000, 6, 24)).replicas, 16);
}

#[test]
fn a_disabled_direction_keeps_the_number_and_min_selects_the_smallest_change() {
    let select = |mut rules: Value, policy: &str| {
        rules["selectPolicy"] = json!(policy);
        rules
    };
    let run =
        |up, down, bounds| normalize(&mut History::default(), Some(&behavior(up, down)), bounds).replicas;
    let disabled = || select(default_down(), "Disabled");
    assert_eq!(run(default_up(), disabled(), (1, 100, 10, 1)), 10);
    let disabled = || select(default_up(), "Disabled");
    assert_eq!(run(disabled(), default_down(), (1, 100, 10, 50)), 10);
    let least = || select(default_up(), "Min");
    assert_eq!(run(least(), default_down(), (1, 100, 10, 50)), 14);
    let least = || select(rules((2, 60), (50, 60), 0), "Min");
    assert_eq!(run(default_up(), least(), (1, 100, 10, 1)), 8);
}

#[test]
fn scaling_down_waits_for_the_highest_recommendation_of_the_window() {
    let mut history = History {
        recommendations: dated(&[(9, 301), (7, 299), (3, 10)]),
        ..History::default()
    };
    let found = normalize(&mut history, None, (1, 100, 8, 2));
    assert_eq!(found.replicas, 7);
    assert_eq!(found.able_to_scale.reason, "ScaleDownStabilized");
    // The one that no window covers is dropped, the new one remembered.
    assert_eq!(history.recommendations, dated(&[(7, 299), (3, 10), (2, 0)]));
}

#[test]
fn windows_of_the_behavior_hold_scaling_back_in_both_directions() {
    let behavior = behavior(rules((100, 15), (0, 0), 60), rules((100, 15), (0, 0), 120));
    let with = |entries: &[(i32, i64)], current, desired| {
        let mut history = History {
            recommendations: dated(entries),
            ..History::default()
        };
        let found = normalize(&mut history, Some(&behavior), (1, 1000, current, desired));
        (found.replicas, found.able_to_scale.reason)
    };
    assert_eq!(with(&[(5, 61)], 4, 9), (9, "ReadyForNewScale"));
    assert_eq!(with(&[(5, 59)], 4, 9), (5, "ScaleUpStabilized"));
    assert_eq!(with(&[(8, 121)], 9, 4), (4, "ReadyForNewScale"));
    assert_eq!(with(&[(8, 119)], 9, 4), (8, "ScaleDownStabilized"));
    // Recommendations on both sides: it stays where it is.
    assert_eq!(with(&[(2, 10), (9, 10)], 5, 5).0, 5);
}
