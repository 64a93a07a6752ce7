//! The arguments of plugins.

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use knarr_api::field::Path;
use knarr_api::k8s_openapi;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::reader::Reader;
use crate::plugins::{
    default_preemption, inter_pod_affinity, node_affinity, node_resources_balanced_allocation,
    node_resources_fit, pod_topology_spread,
};
use crate::pod_info::SpreadConstraint;
use crate::profile::{Profile, ResourceWeight, ShapePoint, SpreadArgs, Strategy, system_default_constraints};

pub(super) fn read(plugin: &str, mut args: Reader<'_>, profile: &mut Profile) {
    args.take("apiVersion");
    args.take("kind");
    match plugin {
        default_preemption::NAME => {
            // All nodes are considered always.
            args.between("minCandidateNodesPercentage", 0..=100);
            args.between("minCandidateNodesAbsolute", 0..=i64::from(i32::MAX));
        }
        inter_pod_affinity::NAME => {
            let of = &mut profile.inter_pod_affinity;
            if let Some(weight) = args.between("hardPodAffinityWeight", 0..=100) {
                of.hard_pod_affinity_weight = weight;
            }
            if let Some(ignored) = args.boolean("ignorePreferredTermsOfExistingPods") {
                of.ignore_preferred_terms_of_existing_pods = ignored;
            }
        }
        node_affinity::NAME => {
            if let Some(affinity) = typed::<NodeAffinity>(&mut args, "addedAffinity") {
                profile.node_affinity.required = affinity.required_during_scheduling_ignored_during_execution;
                profile.node_affinity.preferred = affinity
                    .preferred_during_scheduling_ignored_during_execution
                    .unwrap_or_default();
            }
        }
        node_resources_balanced_allocation::NAME => {
            if let Some(resources) = resources(&mut args, 1) {
                profile.balanced = resources;
            }
        }
        node_resources_fit::NAME => fit(&mut args, profile),
        pod_topology_spread::NAME => spread(&mut args, profile),
        // Plugins without a bearing on the choice of a node here: their arguments are accepted.
        _ => return,
    }
    args.finish();
}

fn typed<T: DeserializeOwned>(args: &mut Reader<'_>, name: &str) -> Option<T> {
    let (path, value) = args.child(name)?;
    convert(args, &path, value)
}

fn convert<T: DeserializeOwned>(args: &mut Reader<'_>, path: &Path, value: Value) -> Option<T> {
    match serde_json::from_value(value.clone()) {
        Ok(typed) => Some(typed),
        Err(error) => {
            args.errors().invalid(path, value, error.to_string());
            None
        }
    }
}

/// `None`: not given. Weights up to `most`.
fn resources(args: &mut Reader<'_>, most: i64) -> Option<Vec<ResourceWeight>> {
    let all = args.list("resources");
    let mut resources: Vec<ResourceWeight> = Vec::new();
    for (path, value) in all {
        let mut resource = Reader::new(&path, &value, args.errors());
        let name = resource.string("name").unwrap_or_default();
        let weight = resource.between("weight", 1..=most).unwrap_or(1);
        resource.finish();
        if name.is_empty() {
            args.errors().required(&path.child("name"), "");
        } else if resources.iter().any(|r| r.name == name) {
            args.errors().duplicate(&path.child("name"), name.as_str());
        }
        resources.push(ResourceWeight { name, weight });
    }
    Some(resources).filter(|r| !r.is_empty())
}

fn names(args: &mut Reader<'_>, list: &str) -> Vec<(Path, String)> {
    let mut names = Vec::new();
    for (path, value) in args.list(list) {
        match value {
            Value::String(name) => names.push((path, name)),
            other => args.errors().type_invalid(&path, other, "must be a string"),
        }
    }
    names
}

fn fit(args: &mut Reader<'_>, profile: &mut Profile) {
    let ignored = names(args, "ignoredResources");
    profile.fit.ignored_resources = ignored.into_iter().map(|(_, name)| name).collect();
    for (path, group) in names(args, "ignoredResourceGroups") {
        if group.contains('/') {
            let detail = "resource group name can't contain '/'";
            args.errors().invalid(&path, group.as_str(), detail);
        }
        profile.fit.ignored_resource_groups.insert(group);
    }
    let Some((path, value)) = args.child("scoringStrategy") else {
        return;
    };
    let mut strategy = Reader::new(&path, &value, args.errors());
    let kind = strategy.string("type").unwrap_or_else(|| "LeastAllocated".into());
    if let Some(resources) = resources(&mut strategy, 100) {
        profile.fit.resources = resources;
    }
    let ratio = strategy.child("requestedToCapacityRatio");
    profile.fit.strategy = match (kind.as_str(), ratio) {
        ("RequestedToCapacityRatio", Some((path, value))) => {
            let mut ratio = Reader::new(&path, &value, strategy.errors());
            let shape = shape(&mut ratio);
            ratio.finish();
            Strategy::RequestedToCapacityRatio(shape)
        }
        ("RequestedToCapacityRatio", None) => {
            let path = strategy.at("requestedToCapacityRatio");
            let detail = "must be specified when type is RequestedToCapacityRatio";
            strategy.errors().required(&path, detail);
            Strategy::LeastAllocated
        }
        (_, Some((path, _))) => {
            let detail = "must be nil when type is not RequestedToCapacityRatio";
            strategy.errors().forbidden(&path, detail);
            Strategy::LeastAllocated
        }
        ("LeastAllocated", None) => Strategy::LeastAllocated,
        ("MostAllocated", None) => Strategy::MostAllocated,
        (other, None) => {
            let known = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
            strategy.not_supported("type", other, &known);
            Strategy::LeastAllocated
        }
    };
    strategy.finish();
}

fn shape(ratio: &mut Reader<'_>) -> Vec<ShapePoint> {
    let mut shape: Vec<ShapePoint> = Vec::new();
    for (path, value) in ratio.list("shape") {
        let mut point = Reader::new(&path, &value, ratio.errors());
        let utilization = point.between("utilization", 0..=100).unwrap_or(0);
        let score = point.between("score", 0..=10).unwrap_or(0);
        point.finish();
        if shape
            .last()
            .is_some_and(|before| before.utilization >= utilization)
        {
            let detail = "values must be sorted in increasing order";
            ratio
                .errors()
                .invalid(&path.child("utilization"), Value::from(utilization), detail);
        }
        shape.push(ShapePoint { utilization, score });
    }
    if shape.is_empty() {
        let path = ratio.at("shape");
        ratio
            .errors()
            .required(&path, "at least one point must be specified");
    }
    shape
}

fn spread(args: &mut Reader<'_>, profile: &mut Profile) {
    let kind = args.string("defaultingType").unwrap_or_else(|| "System".into());
    let list = args.at("defaultConstraints");
    let mut constraints: Vec<SpreadConstraint> = Vec::new();
    let all: Vec<(Path, Value)> = args.list("defaultConstraints").collect();
    let given = !all.is_empty();
    for (path, value) in all {
        let Some(constraint) = convert::<TopologySpreadConstraint>(args, &path, value) else {
            continue;
        };
        let errors = args.errors();
        if constraint.max_skew <= 0 {
            let detail = "not in valid range (0, inf)";
            errors.invalid(&path.child("maxSkew"), Value::from(constraint.max_skew), detail);
        }
        if constraint.topology_key.is_empty() {
            errors.required(&path.child("topologyKey"), "can not be empty");
        }
        let when = constraint.when_unsatisfiable.as_str();
        if when.is_empty() {
            errors.required(&path.child("whenUnsatisfiable"), "can not be empty");
        } else if !["DoNotSchedule", "ScheduleAnyway"].contains(&when) {
            let known = ["DoNotSchedule", "ScheduleAnyway"];
            errors.not_supported(&path.child("whenUnsatisfiable"), when, &known);
        }
        if constraint.label_selector.is_some() {
            let detail = "constraint must not define a selector, as they deduced for each pod";
            errors.forbidden(&path.child("labelSelector"), detail);
        }
        let Ok(read) = SpreadConstraint::read(&constraint, None) else {
            continue;
        };
        let same = |c: &SpreadConstraint| c.topology_key == read.topology_key && c.hard == read.hard;
        if constraints.iter().any(same) {
            let shown = format!("{{{}, {when}}}", read.topology_key);
            errors.duplicate(&path, shown.as_str());
        }
        constraints.push(read);
    }
    match kind.as_str() {
        "List" => {
            profile.spread = SpreadArgs {
                default_constraints: constraints,
                system: false,
            };
        }
        "System" => {
            if given {
                let path = args.at("defaultingType");
                let detail = format!(
                    "when .{} are not empty",
                    list.as_str().rsplit('.').next().unwrap_or("")
                );
                args.errors().invalid(&path, kind.as_str(), detail);
            }
            profile.spread = SpreadArgs {
                default_constraints: system_default_constraints(),
                system: true,
            };
        }
        other => args.not_supported("defaultingType", other, &["System", "List"]),
    }
}
