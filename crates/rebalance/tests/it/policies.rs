//! Policies are read whole: every impossible value is an error with its path, and what has no meaning here is named.

use knarr_rebalance::policy::descheduler::parse;
use knarr_rebalance::policy::{
    Budgets, Names, PriorityThreshold, ProtectedClaims, Rule, TopologySpread, rebalance_policy,
};
use serde_json::{Value, json};

const HEAD: &str = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n";

/// The paths of all errors.
fn paths(errors: knarr_apimachinery::field::ErrorList) -> Vec<String> {
    errors.into_iter().map(|error| error.field).collect()
}

fn errors_of(spec: Value) -> Vec<String> {
    paths(rebalance_policy::read("p", "", &spec).expect_err("impossible values"))
}

#[test]
fn b3_a_descheduler_file_with_all_ten_strategies_is_read() {
    let file = format!(
        r#"{HEAD}
nodeSelector: "pool=general"
maxNoOfPodsToEvictPerNode: 5
maxNoOfPodsToEvictPerNamespace: 6
maxNoOfPodsToEvictTotal: 7
gracePeriodSeconds: 60
metricsProviders:
- source: KubernetesMetrics
profiles:
- name: all
  pluginConfig:
  - name: DefaultEvictor
    args:
      nodeFit: true
      minReplicas: 2
      minPodAge: 5m
      noEvictionPolicy: Mandatory
      nodeSelector: "role=worker"
      priorityThreshold: {{name: important}}
      podProtections:
        defaultDisabled: [PodsWithLocalStorage]
        extraEnabled: [PodsWithPVC, PodsWithoutPDB]
        config:
          PodsWithPVC:
            protectedStorageClasses: [{{name: local}}]
  - name: RemovePodsViolatingTopologySpreadConstraint
    args: {{constraints: [DoNotSchedule, ScheduleAnyway], namespaces: {{exclude: [kube-system]}}}}
  - name: RemovePodsViolatingNodeTaints
    args: {{excludedTaints: [dedicated=special-user], includePreferNoSchedule: true}}
  - name: RemovePodsViolatingNodeAffinity
    args: {{nodeAffinityType: [requiredDuringSchedulingIgnoredDuringExecution]}}
  - name: RemoveDuplicates
    args: {{excludeOwnerKinds: [ReplicaSet]}}
  - name: LowNodeUtilization
    args:
      thresholds: {{cpu: 20, memory: 20, pods: 20}}
      targetThresholds: {{cpu: 50, memory: 50, pods: 50}}
      metricsUtilization: {{source: KubernetesMetrics}}
  - name: HighNodeUtilization
    args: {{thresholds: {{cpu: 20}}, evictionModes: [OnlyThresholdingResources]}}
  - name: PodLifeTime
    args: {{maxPodLifeTimeSeconds: 86400, states: [Pending, PodInitializing]}}
  - name: RemovePodsHavingTooManyRestarts
    args: {{podRestartThreshold: 100, includingInitContainers: true}}
  - name: RemoveFailedPods
    args: {{reasons: [OutOfcpu], exitCodes: [1], minPodLifetimeSeconds: 3600}}
  plugins:
    deschedule:
      enabled:
      - RemovePodsViolatingNodeTaints
      - RemovePodsViolatingInterPodAntiAffinity
      - RemovePodsViolatingNodeAffinity
      - PodLifeTime
      - RemovePodsHavingTooManyRestarts
      - RemoveFailedPods
    balance:
      enabled:
      - RemovePodsViolatingTopologySpreadConstraint
      - RemoveDuplicates
      - LowNodeUtilization
      - HighNodeUtilization
"#
    );
    let read = parse(&file).expect("a valid file");
    let policy = read.policy;
    assert_eq!(
        policy.budgets,
        Budgets {
            per_hour: Some(7),
            per_node: Some(5),
            per_namespace: Some(6),
            ..Budgets::UNLIMITED
        }
    );
    assert!(policy.dry_run && policy.grace_period_seconds == Some(60));
    let profile = &policy.profiles[0];
    let protections = &profile.protections;
    assert!(!protections.local_storage && protections.system_critical && protections.preference_is_mandatory);
    assert!(protections.without_disruption_budget && protections.min_replicas == 2);
    let threshold = PriorityThreshold::Class("important".into());
    assert_eq!(protections.priority_threshold, Some(threshold));
    let classes = ProtectedClaims::StorageClasses(["local".to_string()].into());
    assert_eq!(protections.persistent_volume_claims, Some(classes));
    let names: Vec<&str> = profile.strategies.iter().map(|s| s.rule.name()).collect();
    assert_eq!(
        names,
        [
            "NodeTaints",
            "PodAntiAffinity",
            "NodeAffinity",
            "PodLifeTime",
            "TooManyRestarts",
            "FailedPods",
            "TopologySpread",
            "Duplicates",
            "LowNodeUtilization",
            "HighNodeUtilization"
        ]
    );
    let spread = &profile.strategies[6];
    let both = TopologySpread {
        do_not_schedule: true,
        schedule_anyway: true,
    };
    assert_eq!(spread.rule, Rule::TopologySpread(both));
    assert_eq!(
        spread.scope.namespaces,
        Names::Except(["kube-system".to_string()].into())
    );
    // What is different here is said.
    assert_eq!(
        read.ignored,
        [
            "maxNoOfPodsToEvictTotal: counts per hour, not per cycle",
            "maxNoOfPodsToEvictPerNode: counts per hour, not per cycle",
            "maxNoOfPodsToEvictPerNamespace: counts per hour, not per cycle",
            "metricsProviders[0].source: has no effect: usage is read from the metrics API",
        ]
    );
}

#[test]
fn b3_what_has_no_meaning_here_is_named_with_its_path() {
    let file = format!(
        r#"{HEAD}
evictionFailureEventNotification: true
profiles:
- name: p
  pluginConfig:
  - name: DefaultEvictor
    args: {{evictDaemonSetPods: true, evictFailedBarePods: true, nodeFit: false}}
  - name: Unknown
    args: {{x: 1}}
  plugins:
    sort: {{enabled: [ByWhim]}}
    filter: {{enabled: [DefaultEvictor, Other]}}
    deschedule: {{enabled: [Unknown, RemovePodsViolatingInterPodAntiAffinity]}}
"#
    );
    let read = parse(&file).expect("a valid file");
    assert_eq!(read.policy.profiles[0].strategies.len(), 1);
    assert_eq!(
        read.ignored,
        [
            "evictionFailureEventNotification: has no effect: every failed eviction has an event",
            "profiles[0].pluginConfig[0].args.nodeFit: has no effect: a pod is moved only where the scheduler would place it",
            "profiles[0].pluginConfig[0].args.evictDaemonSetPods: has no effect: pods of DaemonSets are never moved",
            "profiles[0].pluginConfig[0].args.evictFailedBarePods: has no effect: pods without a controller are never moved",
            "profiles[0].plugins.deschedule.enabled[0]: Unknown has no meaning here",
            "profiles[0].plugins.sort.enabled[0]: ByWhim has no effect: the order of moves is fixed",
            "profiles[0].plugins.filter.enabled[1]: Other has no meaning here",
            "profiles[0].pluginConfig[1].args: has no effect: Unknown is not enabled or has no meaning here",
        ]
    );
}

#[test]
fn b3_impossible_values_of_a_descheduler_file_are_errors_with_their_paths() {
    let file = format!(
        r#"{HEAD}
nodeSelector: "pool in"
maxNoOfPodsToEvictPerNode: -1
surprise: 1
profiles:
- name: p
  pluginConfig:
  - name: DefaultEvictor
    args:
      minPodAge: -5m
      noEvictionPolicy: Sometimes
      evictLocalStoragePods: true
      podProtections: {{defaultDisabled: [Everything, Everything]}}
      priorityThreshold: {{name: a, value: 1}}
  - name: LowNodeUtilization
    args: {{thresholds: {{cpu: 60, memory: 20}}, targetThresholds: {{cpu: 50, pods: 101}}}}
  - name: RemovePodsHavingTooManyRestarts
    args: {{podRestartThreshold: 0, states: [Sleeping]}}
  - name: RemovePodsViolatingNodeTaints
    args: {{includedTaints: [a], excludedTaints: [b], namespaces: {{include: [a], exclude: [b]}}}}
  - name: RemovePodsViolatingTopologySpreadConstraint
    args: {{constraints: [Never]}}
  plugins:
    deschedule:
      enabled: [RemovePodsHavingTooManyRestarts, RemovePodsViolatingNodeTaints, PodLifeTime, RemovePodsViolatingNodeAffinity]
    balance:
      enabled: [LowNodeUtilization, RemovePodsViolatingTopologySpreadConstraint, RemoveFailedPods]
"#
    );
    let mut found = paths(parse(&file).expect_err("impossible values"));
    found.sort();
    let args = |n: usize, field: &str| format!("profiles[0].pluginConfig[{n}].args{field}");
    let mut expected = vec![
        "maxNoOfPodsToEvictPerNode".to_string(),
        "nodeSelector".to_string(),
        "surprise".to_string(),
        "profiles[0].plugins.balance.enabled[2]".to_string(),
        args(0, ".minPodAge"),
        args(0, ".noEvictionPolicy"),
        args(0, ".podProtections"),
        args(0, ".podProtections.defaultDisabled[0]"),
        args(0, ".podProtections.defaultDisabled[1]"),
        args(0, ".podProtections.defaultDisabled[1]"),
        args(0, ".priorityThreshold"),
        args(1, ".targetThresholds[cpu]"),
        args(1, ".targetThresholds[memory]"),
        args(1, ".targetThresholds[pods]"),
        args(2, ".podRestartThreshold"),
        args(2, ".states[0]"),
        args(3, ".excludedTaints"),
        args(3, ".namespaces"),
        args(4, ".constraints[0]"),
        "profiles[0].pluginConfig[PodLifeTime].args".to_string(),
        "profiles[0].pluginConfig[RemovePodsViolatingNodeAffinity].args.nodeAffinityType".to_string(),
    ];
    expected.sort();
    assert_eq!(found, expected);
    for text in [
        "",
        "{",
        "apiVersion: descheduler/v1alpha1\nkind: DeschedulerPolicy\n",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn b3_a_life_time_without_an_age_cannot_replace_healthy_pods_for_ever() {
    for (states, is_possible) in [
        (json!(["Running"]), false),
        (json!(["Pending"]), false),
        (json!(["CrashLoopBackOff"]), true),
    ] {
        let args = json!({"states": states});
        let spec = json!({"strategies": {"podLifeTime": args}});
        let read = rebalance_policy::read("p", "", &spec);
        assert_eq!(read.is_ok(), is_possible, "{states}");
        let spec = json!({"strategies": {"podLifeTime": {"states": states, "maxPodLifeTimeSeconds": 60}}});
        assert!(rebalance_policy::read("p", "", &spec).is_ok(), "{states}");
    }
}

#[test]
fn b3_impossible_values_of_a_rebalance_policy_are_errors_with_their_paths() {
    let spec = json!({
        "dryRun": "yes",
        "namespaces": {"include": ["a"], "exclude": ["b"]},
        "budgets": {"perHour": -1, "atOncePerWorkload": 0, "perDay": 3},
        "strategies": {"lowNodeUtilization": {"thresholds": {"cpu": 120}, "targetThresholds": {"cpu": 130}}, "magic": {}},
        "protections": {"minPodAge": "soon", "minReplicas": -2, "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
    });
    let mut found = errors_of(spec);
    found.sort();
    assert_eq!(
        found,
        [
            "spec.budgets.atOncePerWorkload",
            "spec.budgets.perDay",
            "spec.budgets.perHour",
            "spec.dryRun",
            "spec.namespaces",
            "spec.protections.labelSelector",
            "spec.protections.minPodAge",
            "spec.protections.minReplicas",
            "spec.strategies.lowNodeUtilization.targetThresholds[cpu]",
            "spec.strategies.lowNodeUtilization.thresholds[cpu]",
            "spec.strategies.magic",
        ]
    );
    assert_eq!(errors_of(json!({})), ["spec.strategies"]);
    let twice = json!({
        "namespaces": {"include": ["a"]}, "strategies": {"duplicates": {"namespaces": {"include": ["b"]}}},
    });
    assert_eq!(errors_of(twice), ["spec.strategies.duplicates.namespaces"]);
}

#[test]
fn b3_a_policy_of_a_namespace_is_for_its_pods_only() {
    let spec = json!({"strategies": {"duplicates": {}}});
    let policy = rebalance_policy::read("p", "team", &spec).expect("possible values");
    let scope = &policy.profiles[0].strategies[0].scope;
    assert_eq!(scope.namespaces, Names::Only(["team".to_string()].into()));
    let other = json!({"namespaces": {"include": ["other"]}, "strategies": {"duplicates": {}}});
    let errors = rebalance_policy::read("p", "team", &other).expect_err("another namespace");
    assert!(paths(errors).contains(&"spec.namespaces".to_string()));
}
