//! The plugins' arguments (`pluginConfig[].args`), with the defaults and the rules of v1.36.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::node_affinity::validate_node_affinity;
use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use serde_json::Value;

use super::plugins;
use super::version::{GROUP, Version};
use crate::profile::PreemptionBudgets;

/// The name in `pluginConfig` of the arguments that are knarr's own. kube-scheduler ignores the arguments of plugins that
/// it does not have, but rejects a file with an unknown field in those of DefaultPreemption.
const PREEMPTION_EXTENSION: &str = "knarr.io/Preemption";

/// The highest score in a shape point.
const MAX_CUSTOM_PRIORITY_SCORE: i32 = 10;

/// The fewest candidate nodes that a dry run of preemption may stop at. Here all nodes are tried, which satisfies any
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPreemptionArgs {
    pub min_candidate_nodes_percentage: i32,
    pub min_candidate_nodes_absolute: i32,
}

/// What knarr's preemption does beyond kube-scheduler's (SPEC B5, B6), off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreemptionExtensionArgs {
    pub budgets: PreemptionBudgets,
    /// Whether pods may request cross-node preemption.
    pub cross_node: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterPodAffinityArgs {
    /// 0 to 100: the weight in scores of the required affinity terms of existing pods (`hardPodAffinityWeight`).
    pub hard_pod_affinity_weight: i32,
    pub ignore_preferred_terms_of_existing_pods: bool,
}

/// A resource and its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceSpec {
    pub name: String,
    pub weight: i64,
}

/// A point of the piecewise linear function from utilization to score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilizationShapePoint {
    /// Percent.
    pub utilization: i32,
    /// 0 to 10.
    pub score: i32,
}

/// The scoring strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScoringStrategy {
    LeastAllocated,
    MostAllocated,
    /// In increasing order of utilization, at least one.
    RequestedToCapacityRatio(Vec<UtilizationShapePoint>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeResourcesFitArgs {
    pub ignored_resources: BTreeSet<String>,
    /// The part of a resource name before the `/` (`ignoredResourceGroups`).
    pub ignored_resource_groups: BTreeSet<String>,
    pub scoring_strategy: ScoringStrategy,
    pub resources: Vec<ResourceSpec>,
}

/// The default topology spread constraints.
#[derive(Clone, Debug, PartialEq)]
pub enum PodTopologySpreadArgs {
    /// The built-in ones.
    System,
    /// These; they have no selectors.
    List(Vec<TopologySpreadConstraint>),
}

/// The arguments of all plugins.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginArgs {
    pub default_preemption: DefaultPreemptionArgs,
    pub preemption: PreemptionExtensionArgs,
    pub inter_pod_affinity: InterPodAffinityArgs,
    /// `addedAffinity`: node affinity that is added to the one of every pod.
    pub added_node_affinity: Option<NodeAffinity>,
    pub balanced_allocation_resources: Vec<ResourceSpec>,
    pub node_resources_fit: NodeResourcesFitArgs,
    pub pod_topology_spread: PodTopologySpreadArgs,
    /// `bindTimeoutSeconds`: how long binding waits for volumes.
    pub bind_timeout_seconds: i64,
}

fn cpu_and_memory() -> Vec<ResourceSpec> {
    let spec = |name: &str| ResourceSpec {
        name: name.into(),
        weight: 1,
    };
    vec![spec("cpu"), spec("memory")]
}

impl Default for PluginArgs {
    fn default() -> Self {
        PluginArgs {
            default_preemption: DefaultPreemptionArgs {
                min_candidate_nodes_percentage: 10,
                min_candidate_nodes_absolute: 100,
            },
            preemption: PreemptionExtensionArgs::default(),
            inter_pod_affinity: InterPodAffinityArgs {
                hard_pod_affinity_weight: 1,
                ignore_preferred_terms_of_existing_pods: false,
            },
            added_node_affinity: None,
            balanced_allocation_resources: cpu_and_memory(),
            node_resources_fit: NodeResourcesFitArgs {
                ignored_resources: BTreeSet::new(),
                ignored_resource_groups: BTreeSet::new(),
                scoring_strategy: ScoringStrategy::LeastAllocated,
                resources: cpu_and_memory(),
            },
            pod_topology_spread: PodTopologySpreadArgs::System,
            bind_timeout_seconds: 600,
        }
    }
}

/// Parses `pluginConfig`, a list of names and arguments.
pub(super) fn read(list: Vec<(&Value, Path)>, version: Version, report: &mut Report) -> PluginArgs {
    let mut args = PluginArgs::default();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (item, path) in list {
        let mut fields = Fields::new(item, path.clone(), report);
        let name = fields.text("name", report);
        let of = fields.object("args", report);
        fields.finish(report);
        let Some(name) = name.filter(|n| !n.is_empty()) else {
            if item.is_object() && !item.get("name").is_some_and(|n| !n.is_null() && !n.is_string()) {
                report.errors.required(&path.child("name"), "");
            }
            continue;
        };
        if !seen.insert(name) {
            report.errors.duplicate(&path, name);
            continue;
        }
        if !plugins::is_known(name) && name != PREEMPTION_EXTENSION {
            report.note(&path.child("name"), "has no effect: unknown plugin");
            continue;
        }
        if let Some(of) = of {
            args.read_one(name, of, version, report);
        }
    }
    args
}

impl PluginArgs {
    fn read_one(&mut self, name: &str, mut fields: Fields, version: Version, report: &mut Report) {
        check_type(name, &mut fields, version, report);
        match name {
            "DefaultPreemption" => self.read_default_preemption(&mut fields, report),
            PREEMPTION_EXTENSION => self.read_preemption_extension(&mut fields, report),
            "InterPodAffinity" => self.read_inter_pod_affinity(&mut fields, report),
            "NodeAffinity" => self.read_node_affinity(&mut fields, report),
            "NodeResourcesBalancedAllocation" => self.read_balanced_allocation(&mut fields, report),
            "NodeResourcesFit" => self.read_fit(&mut fields, report),
            "PodTopologySpread" => self.read_spread(&mut fields, report),
            "VolumeBinding" => self.read_volume_binding(&mut fields, report),
            "DynamicResources" => read_dynamic_resources(&mut fields, report),
            _ => {}
        }
        fields.finish(report);
    }

    fn read_default_preemption(&mut self, fields: &mut Fields, report: &mut Report) {
        let args = &mut self.default_preemption;
        const PERCENTAGE: &str = "minCandidateNodesPercentage";
        const ABSOLUTE: &str = "minCandidateNodesAbsolute";
        if let Some(percentage) = fields.integer(PERCENTAGE, report) {
            args.min_candidate_nodes_percentage = percentage;
        }
        if let Some(absolute) = fields.integer(ABSOLUTE, report) {
            args.min_candidate_nodes_absolute = absolute;
        }
        let (percentage, absolute) = (
            args.min_candidate_nodes_percentage,
            args.min_candidate_nodes_absolute,
        );
        let errors = &mut report.errors;
        if !(0..=100).contains(&percentage) {
            errors.invalid(&fields.at(PERCENTAGE), percentage, "not in valid range [0, 100]");
        }
        if absolute < 0 {
            errors.invalid(&fields.at(ABSOLUTE), absolute, "not in valid range [0, inf)");
        }
        if percentage == 0 && absolute == 0 {
            let both = |other: &str| format!("cannot be zero at the same time as {other}");
            errors.invalid(&fields.at(PERCENTAGE), percentage, both(ABSOLUTE));
            errors.invalid(&fields.at(ABSOLUTE), absolute, both(PERCENTAGE));
        }
    }

    fn read_preemption_extension(&mut self, fields: &mut Fields, report: &mut Report) {
        const BUDGETS: &str = "podDisruptionBudgets";
        const VALUES: [&str; 2] = ["BestEffort", "Hard"];
        match fields.text(BUDGETS, report) {
            None | Some("BestEffort") => {}
            Some("Hard") => self.preemption.budgets = PreemptionBudgets::Hard,
            Some(other) => report.errors.not_supported(&fields.at(BUDGETS), other, &VALUES),
        }
        if let Some(cross_node) = fields.boolean("crossNode", report) {
            self.preemption.cross_node = cross_node;
        }
    }

    fn read_inter_pod_affinity(&mut self, fields: &mut Fields, report: &mut Report) {
        if let Some(weight) = fields.integer("hardPodAffinityWeight", report) {
            self.set_hard_pod_affinity_weight(
                weight,
                &fields.at("hardPodAffinityWeight"),
                &mut report.errors,
            );
        }
        if let Some(ignore) = fields.boolean("ignorePreferredTermsOfExistingPods", report) {
            self.inter_pod_affinity.ignore_preferred_terms_of_existing_pods = ignore;
        }
    }

    pub(super) fn set_hard_pod_affinity_weight(&mut self, weight: i32, path: &Path, errors: &mut ErrorList) {
        if !(0..=100).contains(&weight) {
            errors.invalid(path, weight, "not in valid range [0, 100]");
        }
        self.inter_pod_affinity.hard_pod_affinity_weight = weight;
    }

    fn read_node_affinity(&mut self, fields: &mut Fields, report: &mut Report) {
        let at = fields.at("addedAffinity");
        let Some(value) = fields.take("addedAffinity") else {
            return;
        };
        match serde_json::from_value::<NodeAffinity>(value.clone()) {
            Ok(affinity) => {
                report.errors.extend(validate_node_affinity(&affinity, &at));
                self.added_node_affinity = Some(affinity);
            }
            Err(error) => {
                report
                    .errors
                    .type_invalid(&at, value, format!("is not a valid node affinity: {error}"))
            }
        }
    }

    fn read_balanced_allocation(&mut self, fields: &mut Fields, report: &mut Report) {
        let Some(resources) = read_resources(fields, "resources", report) else {
            return;
        };
        let mut seen = BTreeSet::new();
        for (resource, path) in &resources {
            if !seen.insert(&resource.name) {
                report.errors.duplicate(&path.child("name"), &resource.name);
            }
            if resource.weight != 1 {
                report
                    .errors
                    .invalid(&path.child("weight"), resource.weight, "must be 1");
            }
        }
        self.balanced_allocation_resources = resources.into_iter().map(|(resource, _)| resource).collect();
    }

    fn read_fit(&mut self, fields: &mut Fields, report: &mut Report) {
        let args = &mut self.node_resources_fit;
        for (resource, path) in fields.texts("ignoredResources", report) {
            report.errors.extend(meta::label_name(resource, &path));
            args.ignored_resources.insert(resource.to_string());
        }
        for (group, path) in fields.texts("ignoredResourceGroups", report) {
            if group.contains('/') {
                report
                    .errors
                    .invalid(&path, group, "resource group name can't contain '/'");
            }
            report.errors.extend(meta::label_name(group, &path));
            args.ignored_resource_groups.insert(group.to_string());
        }
        let Some(mut strategy) = fields.object("scoringStrategy", report) else {
            return;
        };
        if let Some(resources) = read_resources(&mut strategy, "resources", report) {
            for (resource, path) in &resources {
                if !(1..=100).contains(&resource.weight) {
                    let detail = format!("resource weight of {} not in valid range (0, 100]", resource.name);
                    report
                        .errors
                        .invalid(&path.child("weight"), resource.weight, detail);
                }
            }
            args.resources = resources.into_iter().map(|(resource, _)| resource).collect();
        }
        const RATIO: &str = "RequestedToCapacityRatio";
        const TYPES: [&str; 3] = ["LeastAllocated", "MostAllocated", RATIO];
        let is_text = strategy.take("type").is_none_or(Value::is_string);
        let kind = strategy.text("type", report).unwrap_or_default();
        let at = strategy.at("requestedToCapacityRatio");
        let ratio = strategy.object("requestedToCapacityRatio", report);
        let has_ratio = ratio.is_some();
        let shape = ratio.map(|mut ratio| {
            let shape = read_shape(&mut ratio, report);
            ratio.finish(report);
            shape
        });
        args.scoring_strategy = match kind {
            "MostAllocated" => ScoringStrategy::MostAllocated,
            RATIO => ScoringStrategy::RequestedToCapacityRatio(shape.unwrap_or_default()),
            _ => ScoringStrategy::LeastAllocated,
        };
        if !TYPES.contains(&kind) && is_text {
            report.errors.not_supported(&strategy.at("type"), kind, &TYPES);
        }
        match (kind == RATIO, has_ratio) {
            (true, false) => report
                .errors
                .required(&at, "must be specified when type is RequestedToCapacityRatio"),
            (false, true) => report
                .errors
                .forbidden(&at, "must be nil when type is not RequestedToCapacityRatio"),
            _ => {}
        }
        strategy.finish(report);
    }

    fn read_spread(&mut self, fields: &mut Fields, report: &mut Report) {
        let at = fields.at("defaultConstraints");
        let list = fields.list("defaultConstraints", report).unwrap_or_default();
        let mut constraints: Vec<TopologySpreadConstraint> = Vec::new();
        for (i, (item, path)) in list.into_iter().enumerate() {
            let constraint = read_constraint(Fields::new(item, path, report), report);
            let same = |other: &&TopologySpreadConstraint| {
                other.topology_key == constraint.topology_key
                    && other.when_unsatisfiable == constraint.when_unsatisfiable
            };
            if constraints.iter().find(same).is_some() {
                let pair = format!(
                    "{{{}, {}}}",
                    constraint.topology_key, constraint.when_unsatisfiable
                );
                report.errors.duplicate(&at.index(i), pair);
            }
            constraints.push(constraint);
        }
        let at = fields.at("defaultingType");
        match fields.text("defaultingType", report).unwrap_or("System") {
            "List" => self.pod_topology_spread = PodTopologySpreadArgs::List(constraints),
            "System" => {
                if !constraints.is_empty() {
                    report
                        .errors
                        .invalid(&at, "System", "when .defaultConstraints are not empty");
                }
            }
            other => report
                .errors
                .not_supported_in_order(&at, other, &["System", "List"]),
        }
    }

    fn read_volume_binding(&mut self, fields: &mut Fields, report: &mut Report) {
        if let Some(seconds) = fields.long("bindTimeoutSeconds", report) {
            self.set_bind_timeout(seconds, &fields.at("bindTimeoutSeconds"), &mut report.errors);
        }
        let at = fields.at("shape");
        if fields.take("shape").is_some() {
            let detail =
                "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
            report.errors.forbidden(&at, detail);
        }
    }

    pub(super) fn set_bind_timeout(&mut self, seconds: i64, path: &Path, errors: &mut ErrorList) {
        if seconds < 0 {
            let detail = "invalid BindTimeoutSeconds, should not be a negative value";
            errors.invalid(path, seconds, detail);
        }
        self.bind_timeout_seconds = seconds;
    }
}

/// `apiVersion` and `kind` are optional and have one allowed value each.
fn check_type(name: &str, fields: &mut Fields, version: Version, report: &mut Report) {
    if let Some(api_version) = fields.text("apiVersion", report)
        && Version::parse(api_version) != Some(version)
    {
        let detail = format!("must be a version of {GROUP}, the same as the file's");
        report
            .errors
            .invalid(&fields.at("apiVersion"), api_version, detail);
    }
    let expected = format!("{name}Args");
    if let Some(kind) = fields.text("kind", report)
        && kind != expected
    {
        let detail = format!("args for plugin {name} must be of kind {expected}");
        report.errors.invalid(&fields.at("kind"), kind, detail);
    }
}

/// `None`: the default.
fn read_resources(
    fields: &mut Fields,
    name: &'static str,
    report: &mut Report,
) -> Option<Vec<(ResourceSpec, Path)>> {
    let list = fields.list(name, report)?;
    let mut resources = Vec::new();
    for (item, path) in list {
        let mut fields = Fields::new(item, path.clone(), report);
        let name = fields.text("name", report).unwrap_or_default();
        let weight = fields.long("weight", report).unwrap_or(0);
        fields.finish(report);
        let resource = ResourceSpec {
            name: name.to_string(),
            weight: if weight == 0 { 1 } else { weight },
        };
        resources.push((resource, path));
    }
    (!resources.is_empty()).then_some(resources)
}

fn read_shape(fields: &mut Fields, report: &mut Report) -> Vec<UtilizationShapePoint> {
    let at = fields.at("shape");
    let mut shape: Vec<UtilizationShapePoint> = Vec::new();
    let mut sorted = true;
    for (item, path) in fields.list("shape", report).unwrap_or_default() {
        let mut fields = Fields::new(item, path, report);
        let point = UtilizationShapePoint {
            utilization: fields.integer("utilization", report).unwrap_or(0),
            score: fields.integer("score", report).unwrap_or(0),
        };
        let errors = &mut report.errors;
        if sorted
            && shape
                .last()
                .is_some_and(|last| last.utilization >= point.utilization)
        {
            // Reported once.
            sorted = false;
            errors.invalid(
                &fields.at("utilization"),
                point.utilization,
                "values must be sorted in increasing order",
            );
        }
        if !(0..=100).contains(&point.utilization) {
            errors.invalid(
                &fields.at("utilization"),
                point.utilization,
                "not in valid range [0, 100]",
            );
        }
        if !(0..=MAX_CUSTOM_PRIORITY_SCORE).contains(&point.score) {
            let detail = format!("not in valid range [0, {MAX_CUSTOM_PRIORITY_SCORE}]");
            errors.invalid(&fields.at("score"), point.score, detail);
        }
        fields.finish(report);
        shape.push(point);
    }
    if shape.is_empty() {
        report
            .errors
            .required(&at, "at least one point must be specified");
    }
    shape
}

fn read_constraint(mut fields: Fields, report: &mut Report) -> TopologySpreadConstraint {
    const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    let owned = |text: Option<&str>| text.map(str::to_string);
    let constraint = TopologySpreadConstraint {
        max_skew: fields.integer("maxSkew", report).unwrap_or(0),
        topology_key: owned(fields.text("topologyKey", report)).unwrap_or_default(),
        when_unsatisfiable: owned(fields.text("whenUnsatisfiable", report)).unwrap_or_default(),
        min_domains: fields.integer("minDomains", report),
        node_affinity_policy: owned(fields.text("nodeAffinityPolicy", report)),
        node_taints_policy: owned(fields.text("nodeTaintsPolicy", report)),
        match_label_keys: Some(
            fields
                .texts("matchLabelKeys", report)
                .into_iter()
                .map(|(key, _)| key.to_string())
                .collect::<Vec<_>>(),
        )
        .filter(|keys| !keys.is_empty()),
        label_selector: fields.take("labelSelector").map(|_| LabelSelector::default()),
    };
    let errors = &mut report.errors;
    if constraint.max_skew <= 0 {
        errors.invalid(
            &fields.at("maxSkew"),
            constraint.max_skew,
            "not in valid range (0, inf)",
        );
    }
    let at = fields.at("topologyKey");
    if constraint.topology_key.is_empty() {
        errors.required(&at, "can not be empty");
    } else {
        errors.extend(meta::label_name(&constraint.topology_key, &at));
    }
    let at = fields.at("whenUnsatisfiable");
    match constraint.when_unsatisfiable.as_str() {
        "" => errors.required(&at, "can not be empty"),
        action if !ACTIONS.contains(&action) => errors.not_supported(&at, action, &ACTIONS),
        _ => {}
    }
    if constraint.label_selector.is_some() {
        errors.forbidden(
            &fields.at("labelSelector"),
            "constraint must not define a selector, as they deduced for each pod",
        );
    }
    fields.finish(report);
    constraint
}

fn read_dynamic_resources(fields: &mut Fields, report: &mut Report) {
    if let Some(timeout) = fields.duration("filterTimeout", report)
        && timeout.is_negative()
    {
        let detail = "must be zero or positive";
        let shown = format!("{timeout}");
        report.errors.invalid(&fields.at("filterTimeout"), shown, detail);
    }
    if let Some(timeout) = fields.duration("bindingTimeout", report)
        && timeout < SignedDuration::from_secs(1)
    {
        let shown = format!("{timeout}");
        report
            .errors
            .invalid(&fields.at("bindingTimeout"), shown, "must be at least 1 second");
    }
}
