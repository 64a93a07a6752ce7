//! Configuration files, and what is parsed from them or reported about them.

use super::*;

/// The errors, one per line.
fn errors(text: &str) -> String {
    match parse(text) {
        Ok(_) => String::new(),
        Err(errors) => errors.iter().map(|e| format!("{e}\n")).collect(),
    }
}

fn v1(rest: &str) -> String {
    format!("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{rest}")
}

/// The one profile of a file.
fn profile(text: &str) -> KubeSchedulerProfile {
    let configuration = parse(text).unwrap();
    assert_eq!(configuration.profiles.len(), 1);
    configuration.profiles.into_iter().next().unwrap()
}

fn names(profile: &KubeSchedulerProfile, point: ExtensionPoint) -> Vec<&'static str> {
    profile.plugins.at(point).iter().map(|p| p.name).collect()
}

#[test]
fn p6_an_empty_configuration_is_the_default() {
    let read = parse(&v1("")).unwrap();
    assert_eq!(read, KubeSchedulerConfiguration::default());
    assert_eq!(read.profiles[0].scheduler_name, "default-scheduler");
    assert_eq!(read.pod_initial_backoff, SignedDuration::from_secs(1));
    assert_eq!(read.pod_max_backoff, SignedDuration::from_secs(10));
}

#[test]
fn p6_the_default_plugins_are_those_of_v1_36_in_their_order() {
    let profile = KubeSchedulerProfile::default();
    assert_eq!(
        names(&profile, ExtensionPoint::Filter),
        [
            "NodeUnschedulable",
            "NodeName",
            "TaintToleration",
            "NodeAffinity",
            "NodePorts",
            "NodeResourcesFit",
            "VolumeRestrictions",
            "NodeVolumeLimits",
            "VolumeBinding",
            "VolumeZone",
            "PodTopologySpread",
            "InterPodAffinity",
            "DynamicResources",
            "NodeDeclaredFeatures",
        ]
    );
    assert_eq!(
        names(&profile, ExtensionPoint::PostFilter),
        ["DynamicResources", "DefaultPreemption"]
    );
    let weights: Vec<(&str, i32)> = [
        "TaintToleration",
        "NodeAffinity",
        "PodTopologySpread",
        "InterPodAffinity",
        "NodeResourcesFit",
        "NodeResourcesBalancedAllocation",
        "ImageLocality",
        "NodeName",
    ]
    .map(|name| (name, profile.plugins.weight(name)))
    .to_vec();
    assert_eq!(
        weights,
        [
            ("TaintToleration", 3),
            ("NodeAffinity", 2),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("NodeResourcesFit", 1),
            ("NodeResourcesBalancedAllocation", 1),
            ("ImageLocality", 1),
            ("NodeName", 0),
        ]
    );
}

#[test]
fn p6_the_documents_v1alpha1_file_turns_preemption_off() {
    let file = "apiVersion: kubescheduler.config.k8s.io/v1alpha1
kind: KubeSchedulerConfiguration
algorithmSource:
  provider: DefaultProvider

...

disablePreemption: true
";
    let read = profile(file);
    assert!(
        !read
            .plugins
            .is_enabled(ExtensionPoint::PostFilter, "DefaultPreemption")
    );
    // Everything else is the default.
    let mut default = KubeSchedulerProfile::default();
    assert!(
        default
            .plugins
            .is_enabled(ExtensionPoint::PostFilter, "DefaultPreemption")
    );
    for point in [ExtensionPoint::PostFilter, ExtensionPoint::PreEnqueue] {
        default.plugins.disable(point, "DefaultPreemption");
    }
    assert_eq!(read, default);
}

#[test]
fn p6_v1alpha1_has_the_other_fields_at_the_top_level_too() {
    let read = parse(
        "apiVersion: kubescheduler.config.k8s.io/v1alpha1
kind: KubeSchedulerConfiguration
schedulerName: packing
algorithmSource: {provider: ClusterAutoscalerProvider}
hardPodAffinitySymmetricWeight: 7
bindTimeoutSeconds: 5
healthzBindAddress: 0.0.0.0:10251
disablePreemption: false
leaderElection: {lockObjectName: mine, lockObjectNamespace: here}
",
    )
    .unwrap();
    let profile = &read.profiles[0];
    assert_eq!(profile.scheduler_name, "packing");
    assert_eq!(
        profile.args.node_resources_fit.scoring_strategy,
        ScoringStrategy::MostAllocated
    );
    assert_eq!(profile.args.inter_pod_affinity.hard_pod_affinity_weight, 7);
    assert_eq!(profile.args.bind_timeout_seconds, 5);
    assert!(
        profile
            .plugins
            .is_enabled(ExtensionPoint::PostFilter, "DefaultPreemption")
    );
    assert_eq!(read.leader_election.resource_name, "mine");
    assert_eq!(read.leader_election.resource_namespace, "here");
    assert_eq!(read.notes, ["healthzBindAddress: has no effect"]);
}

#[test]
fn d4_the_documents_v1beta3_files_set_the_default_constraints() {
    let file = |args: &str| {
        format!(
            "apiVersion: kubescheduler.config.k8s.io/v1beta3
kind: KubeSchedulerConfiguration

profiles:
  - schedulerName: default-scheduler
    pluginConfig:
      - name: PodTopologySpread
        args:
{args}
          defaultingType: List
"
        )
    };
    let one = profile(&file(
        "          defaultConstraints:
            - maxSkew: 1
              topologyKey: topology.kubernetes.io/zone
              whenUnsatisfiable: ScheduleAnyway",
    ));
    let PodTopologySpreadArgs::List(constraints) = &one.args.pod_topology_spread else {
        panic!("{:?}", one.args.pod_topology_spread);
    };
    assert_eq!(constraints.len(), 1);
    assert_eq!(constraints[0].max_skew, 1);
    assert_eq!(constraints[0].topology_key, "topology.kubernetes.io/zone");
    assert_eq!(constraints[0].when_unsatisfiable, "ScheduleAnyway");

    let none = profile(&file("          defaultConstraints: []"));
    assert_eq!(
        none.args.pod_topology_spread,
        PodTopologySpreadArgs::List(Vec::new())
    );
}

#[test]
fn p6_plugins_are_enabled_disabled_and_weighted_with_kube_schedulers_precedence() {
    use ExtensionPoint::{Filter, PreScore, Score};
    // A plugin that is enabled again at one point comes first there, and counts once unless a weight is given.
    let read = profile(&v1("
profiles:
- plugins:
    score:
      enabled: [{name: ImageLocality, weight: 9}, {name: TaintToleration}]
      disabled: [{name: NodeAffinity}]
"));
    assert_eq!(
        names(&read, Score)[..3],
        ["ImageLocality", "TaintToleration", "NodeResourcesFit"]
    );
    assert_eq!(read.plugins.weight("ImageLocality"), 9);
    assert_eq!(read.plugins.weight("TaintToleration"), 1);
    assert_eq!(read.plugins.weight("NodeAffinity"), 0);
    assert!(read.plugins.is_enabled(Filter, "NodeAffinity"));

    // `*` in `disabled` leaves what the point itself enables.
    let read = profile(&v1("
profiles:
- plugins:
    score: {enabled: [{name: NodeResourcesFit, weight: 5}], disabled: [{name: '*'}]}
"));
    assert_eq!(names(&read, Score), ["NodeResourcesFit"]);
    assert_eq!(names(&read, Filter).len(), 14);

    // multiPoint reaches every extension point of a plugin; a default plugin that is enabled again keeps its
    // position.
    let read = profile(&v1("
profiles:
- plugins:
    multiPoint: {enabled: [{name: TaintToleration, weight: 8}], disabled: [{name: InterPodAffinity}]}
"));
    assert_eq!(
        names(&read, Filter)[..3],
        ["NodeUnschedulable", "NodeName", "TaintToleration"]
    );
    assert_eq!(read.plugins.weight("TaintToleration"), 8);
    for point in [Filter, PreScore, Score] {
        assert!(!read.plugins.is_enabled(point, "InterPodAffinity"), "{point:?}");
    }

    // Only what is enabled.
    let read = profile(&v1("
profiles:
- plugins:
    multiPoint:
      disabled: [{name: '*'}]
      enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodeResourcesFit, weight: 2}]
"));
    assert_eq!(names(&read, Filter), ["NodeResourcesFit"]);
    assert_eq!(names(&read, ExtensionPoint::PostFilter), [""; 0]);
    assert_eq!(read.plugins.weight("NodeResourcesFit"), 2);
}

#[test]
fn p6_arguments_are_read() {
    let read = profile(&v1("
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResources: [example.com/foo]
      ignoredResourceGroups: [example.org]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 3}, {name: example.com/gpu}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 0, ignorePreferredTermsOfExistingPods: true}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [a]}]}]
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: cpu}, {name: example.com/gpu, weight: 1}]}
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 0}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 30}
"));
    let spec = |name: &str, weight| ResourceSpec {
        name: name.into(),
        weight,
    };
    let fit = &read.args.node_resources_fit;
    assert_eq!(fit.resources, [spec("cpu", 3), spec("example.com/gpu", 1)]);
    let point = |utilization, score| UtilizationShapePoint { utilization, score };
    assert_eq!(
        fit.scoring_strategy,
        ScoringStrategy::RequestedToCapacityRatio(vec![point(0, 0), point(100, 10)])
    );
    assert!(fit.ignored_resources.contains("example.com/foo"));
    assert!(fit.ignored_resource_groups.contains("example.org"));
    assert_eq!(read.args.inter_pod_affinity.hard_pod_affinity_weight, 0);
    assert!(
        read.args
            .inter_pod_affinity
            .ignore_preferred_terms_of_existing_pods
    );
    let added = read.args.added_node_affinity.unwrap();
    let required = added.required_during_scheduling_ignored_during_execution.unwrap();
    assert_eq!(required.node_selector_terms.len(), 1);
    assert_eq!(read.args.balanced_allocation_resources.len(), 2);
    assert_eq!(read.args.default_preemption.min_candidate_nodes_percentage, 0);
    assert_eq!(read.args.bind_timeout_seconds, 30);
}

#[test]
fn p6_every_error_is_listed_with_its_path() {
    let found = errors(&v1("
parallelism: 0
percentageOfNodesToScore: 101
podInitialBackoffSeconds: 20
podMaxBackoffSeconds: 10
leaderElection: {leaseDuration: 5s, resourceLock: endpoints}
clientConnection: {burst: -1, qps: many}
nonsense: 1
extenders: [{urlPrefix: 'http://x'}]
profiles:
- schedulerName: a
  plugins:
    score: {enabled: [{name: Nope}, {name: NodeName}, {weight: 2}, {name: ImageLocality, weight: -1}]}
    filter: {enabled: [{name: EBSLimits}, {name: NodePorts}, {name: NodePorts}]}
    queueSort: {disabled: [{name: '*'}]}
    bogus: {}
- schedulerName: a
- percentageOfNodesToScore: -1
  pluginConfig:
  - name: PodTopologySpread
    args:
      defaultConstraints:
      - {maxSkew: 0, topologyKey: '', whenUnsatisfiable: Never}
      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}
      - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 101}
  - name: InterPodAffinity
  - name: NodeResourcesFit
    args:
      kind: PodTopologySpreadArgs
      ignoredResourceGroups: [a/b]
      scoringStrategy:
        type: Best
        resources: [{name: cpu, weight: 200}]
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Near}]}]
"));
    let expected = r#"leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"
leaderElection.leaseDuration: Invalid value: "PT5S": must be greater than `RenewDeadline`
clientConnection.qps: Invalid value: "many": must be a number
clientConnection.burst: Invalid value: -1: must be non-negative
percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]
podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds
parallelism: Invalid value: 0: should be an integer value greater than zero
profiles[0].plugins.queueSort: Required value: pods must be sorted; enable PrioritySort
"#;
    for line in expected.lines() {
        assert!(found.contains(line), "{line}\nnot in\n{found}");
    }
    let paths: Vec<&str> = found.lines().filter_map(|l| l.split(": ").next()).collect();
    assert_eq!(
        paths,
        [
            "leaderElection.resourceLock",
            "leaderElection.leaseDuration",
            "clientConnection.qps",
            "clientConnection.burst",
            "percentageOfNodesToScore",
            "podMaxBackoffSeconds",
            "parallelism",
            "profiles[0].plugins.filter.enabled[0].name",
            "profiles[0].plugins.filter.enabled[2].name",
            "profiles[0].plugins.score.enabled[0].name",
            "profiles[0].plugins.score.enabled[1].name",
            "profiles[0].plugins.score.enabled[2].name",
            "profiles[0].plugins.score.enabled[3].weight",
            "profiles[0].plugins.bogus",
            "profiles[0].plugins.queueSort",
            "profiles[1].schedulerName",
            "profiles[2].schedulerName",
            "profiles[2].percentageOfNodesToScore",
            "profiles[2].pluginConfig[0].args.defaultConstraints[0].maxSkew",
            "profiles[2].pluginConfig[0].args.defaultConstraints[0].topologyKey",
            "profiles[2].pluginConfig[0].args.defaultConstraints[0].whenUnsatisfiable",
            "profiles[2].pluginConfig[0].args.defaultConstraints[1].labelSelector",
            "profiles[2].pluginConfig[0].args.defaultConstraints[2]",
            "profiles[2].pluginConfig[0].args.defaultingType",
            "profiles[2].pluginConfig[1].args.hardPodAffinityWeight",
            "profiles[2].pluginConfig[2]",
            "profiles[2].pluginConfig[3].args.kind",
            "profiles[2].pluginConfig[3].args.ignoredResourceGroups[0]",
            "profiles[2].pluginConfig[3].args.scoringStrategy.resources[0].weight",
            "profiles[2].pluginConfig[3].args.scoringStrategy.type",
            "profiles[2].pluginConfig[4].args.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
             nodeSelectorTerms[0].matchExpressions[0].operator",
            "extenders",
            "nonsense",
        ],
        "{found}"
    );
}

#[test]
fn p6_an_invalid_configuration_is_rejected_with_a_message() {
    let table = [
        ("", "Required value"),
        ("a: [", "invalid YAML"),
        ("- 1", "must be a mapping"),
        ("kind: KubeSchedulerConfiguration", "apiVersion: Required value"),
        (
            "{apiVersion: v1, kind: KubeSchedulerConfiguration}",
            "apiVersion: Unsupported value: \"v1\"",
        ),
        (
            "{apiVersion: kubescheduler.config.k8s.io/v1, kind: Policy}",
            "kind: Unsupported value: \"Policy\"",
        ),
        (
            "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: 3}",
            "profiles: Invalid value: 3: must be a list",
        ),
        (
            "{apiVersion: 7, kind: 8}",
            "kind: Invalid value: 8: must be a string",
        ),
        (
            "{apiVersion: kubescheduler.config.k8s.io/v1alpha1, kind: KubeSchedulerConfiguration, \
             algorithmSource: {provider: Mine, policy: {}}, profiles: []}",
            "algorithmSource.provider: Unsupported value: \"Mine\"",
        ),
    ];
    for (text, detail) in table {
        let found = errors(text);
        assert!(found.contains(detail), "{text}: {found:?} lacks {detail:?}");
    }
    let two = v1("---\nnext: 1\n");
    assert!(
        errors(&two).contains("a file holds one configuration"),
        "{}",
        errors(&two)
    );
}

#[test]
fn p6_fields_without_effect_become_notes() {
    let read = parse(&v1("
percentageOfNodesToScore: 30
profiles:
- plugins:
    score: {disabled: [{name: Typo}]}
  pluginConfig: [{name: ThirdPartys, args: {a: 1}}]
"))
    .unwrap();
    assert_eq!(read.percentage_of_nodes_to_score, Some(30));
    assert_eq!(
        read.notes,
        [
            "percentageOfNodesToScore: has no effect: all nodes are considered",
            "profiles[0].plugins.score.disabled[0].name: no such plugin to disable",
            "profiles[0].pluginConfig[0].name: has no effect: unknown plugin",
        ]
    );
}

#[test]
fn p6_the_default_configuration_is_the_default_profile() {
    let read = parse(&v1("")).unwrap();
    let of = crate::Profile::from(&read.profiles[0]);
    let expected = crate::Profile::default();
    // Plugins that do not score here accept weights too.
    let weights = |p: &crate::Profile| {
        let names: Vec<&str> = expected.weights.keys().copied().collect();
        names.into_iter().map(|n| (n, p.weight(n))).collect::<Vec<_>>()
    };
    assert_eq!(weights(&of), weights(&expected));
    let rest = |p: crate::Profile| crate::Profile {
        weights: Default::default(),
        ..p
    };
    assert_eq!(rest(of), rest(expected.clone()));
}

#[test]
fn p6_a_profile_applies_to_the_pods_that_name_it() {
    let text = v1("
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  plugins:
    filter: {disabled: [{name: NodePorts}]}
    postFilter: {disabled: [{name: '*'}]}
    score: {enabled: [{name: NodeResourcesFit, weight: 4}], disabled: [{name: '*'}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 2}]}}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
");
    let read = parse(&text).unwrap();
    let packing = crate::Profile::from(&read.profiles[1]);
    assert_eq!(packing.scheduler_name, "packing");
    assert!(!packing.filters("NodePorts") && packing.filters("NodeAffinity"));
    assert!(!packing.preemption);
    assert_eq!(packing.weight("NodeResourcesFit"), 4);
    assert_eq!(packing.weight("TaintToleration"), 0);
    assert_eq!(packing.fit.strategy, crate::profile::Strategy::MostAllocated);
    assert_eq!(packing.fit.resources[0].weight, 2);
    assert!(!packing.spread.system);
    let constraint = &packing.spread.default_constraints[0];
    assert!(constraint.hard && constraint.max_skew == 2 && constraint.topology_key == "rack");
}
