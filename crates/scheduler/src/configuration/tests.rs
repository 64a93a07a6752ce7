//! Files as users have them, and files with mistakes.

use super::*;
use crate::profile::Strategy;

#[test]
fn p6_the_documents_old_forms_are_read() {
    let old = "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\n\
               algorithmSource:\n  provider: DefaultProvider\ndisablePreemption: true\n";
    assert!(!parse(old).unwrap().profiles[0].preemption);
    let list = "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\nprofiles:\n\
                - schedulerName: default-scheduler\n  pluginConfig:\n  - name: PodTopologySpread\n    args:\n      \
                defaultConstraints:\n      - maxSkew: 1\n        topologyKey: topology.kubernetes.io/zone\n        \
                whenUnsatisfiable: ScheduleAnyway\n      defaultingType: List\n";
    let spread = &parse(list).unwrap().profiles[0].spread;
    assert!(!spread.system);
    assert_eq!(spread.default_constraints.len(), 1);
    let none = "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\nprofiles:\n\
                - pluginConfig:\n  - name: PodTopologySpread\n    args: {defaultConstraints: [], defaultingType: List}\n";
    assert!(
        parse(none).unwrap().profiles[0]
            .spread
            .default_constraints
            .is_empty()
    );
}

#[test]
fn p6_plugins_are_turned_off_and_on_and_weighed() {
    let file = r"
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 2
profiles:
- schedulerName: one
  plugins:
    score:
      disabled: [{name: ImageLocality}, {name: NodeAffinity}]
      enabled: [{name: NodeAffinity, weight: 7}]
    postFilter: {disabled: [{name: '*'}]}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}]}
- schedulerName: two
  plugins: {multiPoint: {disabled: [{name: TaintToleration}]}}
";
    let configuration = parse(file).unwrap();
    let [one, two] = configuration.profiles.as_slice() else {
        panic!("two profiles")
    };
    assert_eq!(configuration.backoffs.initial, SignedDuration::from_secs(2));
    assert_eq!((one.weight("ImageLocality"), one.weight("NodeAffinity")), (0, 7));
    assert!(!one.preemption && one.filters("TaintToleration"));
    assert_eq!(one.fit.strategy, Strategy::MostAllocated);
    assert_eq!(one.fit.resources.len(), 1);
    assert!(two.preemption && !two.filters("TaintToleration"));
    assert_eq!(two.weight("TaintToleration"), 0);
}

#[test]
fn p6_every_mistake_is_listed_with_its_path() {
    let file = r"
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 101
podMaxBackoffSeconds: soon
profils: []
profiles:
- schedulerName: a
  plugins: {score: {enabled: [{name: NodeAfinity}]}}
  pluginConfig:
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 1000}
  - name: PodTopologySpread
    args: {defaultConstraints: [{maxSkew: 0, topologyKey: zone, whenUnsatisfiable: Never}], defaultingType: List}
- schedulerName: a
";
    let mistakes = parse(file).unwrap_err();
    let paths: std::collections::BTreeSet<&str> = mistakes
        .iter()
        .filter_map(|m| m.split_once(": ").map(|(path, _)| path))
        .collect();
    let expected = [
        "percentageOfNodesToScore",
        "podMaxBackoffSeconds",
        "profiles[0].pluginConfig[0].args.hardPodAffinityWeight",
        "profiles[0].pluginConfig[1].args.defaultConstraints[0].maxSkew",
        "profiles[0].pluginConfig[1].args.defaultConstraints[0].whenUnsatisfiable",
        "profiles[0].plugins.score.enabled[0].name",
        "profiles[1].schedulerName",
        "profils",
    ];
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), expected, "{mistakes:#?}");
}
