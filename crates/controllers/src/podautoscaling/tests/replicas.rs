//! From metrics to a number of replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde_json::json;

use super::super::Settings;
use super::super::replicas::{Calculated, ReplicaError, Target, Tolerances};
use super::super::samples::PodMetric;

const NOW: i64 = 1_000_000;
const COOL: i64 = NOW - 600;
const READY: (&str, &str, i64) = ("Running", "True", COOL);
const UNREADY: (&str, &str, i64) = ("Running", "False", COOL);
const HOT: (&str, &str, i64) = ("Running", "True", NOW);
const HOT_UNREADY: (&str, &str, i64) = ("Running", "False", NOW);
const FAILED: (&str, &str, i64) = ("Failed", "False", COOL);
const PENDING: (&str, &str, i64) = ("Pending", "False", COOL);
const DELETING: (&str, &str, i64) = ("deleting", "True", COOL);

fn second(n: i64) -> Timestamp {
    Timestamp::from_second(n).unwrap()
}

/// Phase, readiness and start; it became as it is when it started.
fn pods(states: &[(&str, &str, i64)]) -> Vec<Pod> {
    let pod = |(i, (phase, ready, started)): (usize, &(&str, &str, i64))| {
        let started = second(*started).to_string();
        let mut pod = json!({"metadata": {"name": format!("p{i}")},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": phase, "startTime": started,
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": started}]}});
        if *phase == "deleting" {
            pod["status"]["phase"] = json!("Running");
            pod["metadata"]["deletionTimestamp"] = json!(started);
        }
        serde_json::from_value(pod).unwrap()
    };
    states.iter().enumerate().map(pod).collect()
}

fn samples(values: &[i64]) -> BTreeMap<String, PodMetric> {
    let sample = |value: &i64| PodMetric {
        value: *value,
        at: second(NOW),
        window: Duration::from_secs(60),
    };
    let named = values.iter().enumerate();
    named.map(|(i, v)| (format!("p{i}"), sample(v))).collect()
}

fn settings() -> Settings {
    Settings {
        cpu_initialization_period: Duration::from_secs(120),
        initial_readiness_delay: Duration::from_secs(10),
        ..Settings::default()
    }
}

fn on<T>(states: &[(&str, &str, i64)], replicas: i32, check: impl Fn(Target<'_>) -> T) -> T {
    let (pods, settings) = (pods(states), settings());
    check(Target {
        replicas,
        observed_replicas: replicas,
        pods: &pods.iter().collect::<Vec<_>>(),
        tolerances: Tolerances {
            scale_down: 0.1,
            scale_up: 0.1,
        },
        settings: &settings,
        now: second(NOW),
    })
}

#[test]
fn utilization_proposes_what_kubernetes_proposes() {
    type Row<'a> = (&'a [(&'a str, &'a str, i64)], &'a [i64], i32, i32, i32, i32);
    #[rustfmt::skip]
    let table: &[Row<'_>] = &[
        // pods, samples, target percent, replicas, expected replicas, expected utilization
        (&[READY; 3], &[300, 500, 700], 30, 3, 5, 50),
        (&[UNREADY, READY, READY], &[300, 500, 700], 30, 3, 4, 60),
        (&[HOT, READY, READY], &[300, 500, 700], 30, 3, 4, 60),
        (&[READY, UNREADY, UNREADY], &[400, 500, 700], 30, 3, 3, 40),
        (&[READY, HOT_UNREADY, HOT_UNREADY], &[400, 500, 700], 30, 3, 3, 40),
        (&[READY, READY, FAILED, FAILED], &[500, 700], 30, 2, 4, 60),
        (&[READY, READY, DELETING, DELETING], &[500, 700], 30, 2, 4, 60),
        (&[READY, READY, PENDING], &[500, 700], 30, 3, 4, 60),
        (&[READY; 4], &[400, 95], 100, 4, 3, 24),
        (&[READY; 2], &[1000], 100, 2, 2, 100),
        (&[READY; 2], &[1900], 100, 2, 2, 190),
        (&[READY; 2], &[600], 100, 2, 2, 60),
        (&[UNREADY, READY, READY], &[100, 450], 50, 3, 3, 45),
        (&[HOT, READY, READY], &[100, 450], 50, 3, 3, 45),
        (&[UNREADY, READY, READY], &[100, 2000], 50, 3, 4, 200),
        (&[HOT_UNREADY, READY, READY], &[100, 2000], 50, 3, 4, 200),
        (&[UNREADY, READY, READY, READY], &[100, 100, 100], 50, 4, 3, 10),
        // A rolling update with maxSurge: more pods than replicas.
        (&[READY; 3], &[100, 100], 50, 2, 2, 10),
    ];
    for (i, (states, values, percent, replicas, expected, utilization)) in table.iter().enumerate() {
        let found = on(states, *replicas, |t| {
            t.by_utilization(&samples(values), "cpu", None, *percent)
        });
        let found = found.map(|f| (f.replicas, f.utilization));
        assert_eq!(found, Ok((*expected, Some(*utilization))), "row {i}");
    }
}

#[test]
fn a_missing_sample_counts_as_the_target_where_that_is_above_the_request() {
    let (mut pods, settings) = (pods(&[UNREADY, READY, READY, READY]), settings());
    for pod in &mut pods[2..] {
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        let requests = container.resources.as_mut().unwrap().requests.as_mut().unwrap();
        requests.insert("cpu".into(), Quantity("2".into()));
    }
    let target = Target {
        replicas: 4,
        observed_replicas: 4,
        pods: &pods.iter().collect::<Vec<_>>(),
        tolerances: Tolerances {
            scale_down: 0.1,
            scale_up: 0.1,
        },
        settings: &settings,
        now: second(NOW),
    };
    let found = target.by_utilization(&samples(&[200, 100, 100]), "cpu", None, 300);
    let found = found.map(|f| (f.replicas, f.utilization, f.usage));
    assert_eq!(found, Ok((2, Some(6), 100)));
}

#[test]
fn an_average_value_proposes_what_kubernetes_proposes() {
    type Row<'a> = (&'a [(&'a str, &'a str, i64)], &'a [i64], i64, i32, i32, i64);
    #[rustfmt::skip]
    let table: &[Row<'_>] = &[
        (&[READY; 3], &[20_000, 10_000, 30_000], 15_000, 3, 4, 20_000),
        // Readiness counts for CPU only.
        (&[READY, READY, HOT_UNREADY], &[50_000, 10_000, 30_000], 15_000, 3, 6, 30_000),
        (&[HOT_UNREADY, READY, HOT_UNREADY], &[50_000, 15_000, 30_000], 15_000, 3, 7, 31_666),
        (&[READY; 5], &[20_000, 19_000, 21_000], 20_000, 5, 5, 20_000),
        (&[READY; 3], &[10_000, 10_000], 17_000, 2, 2, 10_000),
    ];
    for (i, (states, values, goal, replicas, expected, usage)) in table.iter().enumerate() {
        let found = on(states, *replicas, |t| t.by_usage(&samples(values), None, *goal));
        let found = found.map(|f| (f.replicas, f.usage));
        assert_eq!(found, Ok((*expected, *usage)), "row {i}");
    }
}

#[test]
fn one_value_proposes_what_kubernetes_proposes() {
    let by_value = |states: &[_], replicas, usage, goal| {
        on(states, replicas, |t| t.by_value(usage, goal)).map(|f| f.replicas)
    };
    assert_eq!(by_value(&[READY; 3], 3, 20_000, 15_000), Ok(4));
    assert_eq!(by_value(&[UNREADY, READY, UNREADY], 3, 50_000, 10_000), Ok(5));
    assert_eq!(by_value(&[READY; 3], 3, i64::MAX, 1), Ok(i32::MAX));
    assert_eq!(by_value(&[], 0, 20_000, 15_000), Ok(2));
    assert_eq!(by_value(&[], 0, 0, 15_000), Ok(0));
    assert_eq!(by_value(&[], 3, 10_000, 10_500), Ok(3));
    assert!(by_value(&[], 3, 50_000, 10_000).is_err());
    let shared = |replicas, usage, goal| {
        let Calculated { replicas, usage, .. } = on(&[], replicas, |t| t.by_shared_value(usage, goal));
        (replicas, usage)
    };
    assert_eq!(shared(3, 20_000, 5_000), (4, 6_667));
    assert_eq!(shared(1, i64::MAX, 1), (i32::MAX, i64::MAX));
    assert_eq!(shared(1, i64::MAX, i64::MAX), (1, i64::MAX));
    assert_eq!(shared(0, 20_000, 5_000), (4, 20_000));
}

#[test]
fn what_cannot_be_calculated_is_reported_as_in_kubernetes() {
    let failed = |states: &[_], values: &[i64], container: Option<&str>| {
        on(states, 1, |t| {
            t.by_utilization(&samples(values), "cpu", container, 100)
        })
        .unwrap_err()
        .to_string()
    };
    assert_eq!(
        failed(&[], &[1], None),
        "no pods returned by selector while calculating replica count"
    );
    assert_eq!(
        failed(&[UNREADY], &[1], None),
        "did not receive metrics for targeted pods (pods might be unready)"
    );
    assert_eq!(
        failed(&[READY], &[1], Some("other")),
        "container other not found in Pod p0"
    );
    let memory = on(&[READY], 1, |t| {
        t.by_utilization(&samples(&[1]), "memory", None, 100)
    });
    assert_eq!(
        memory.unwrap_err().to_string(),
        "missing request for memory in container main of Pod p0"
    );
    // Metrics of pods that do not exist any more.
    let mut older = samples(&[]);
    older.extend(samples(&[1, 1]).remove("p1").map(|m| ("older".to_string(), m)));
    let disjoint = on(&[READY], 1, |t| t.by_utilization(&older, "cpu", None, 100));
    assert_eq!(disjoint, Err(ReplicaError::NoMatch));
}
