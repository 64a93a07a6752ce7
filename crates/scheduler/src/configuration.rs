//! KubeSchedulerConfiguration (SPEC P6): v1, the fields of v1beta3, and what the documents show of v1alpha1.
//!
//! A file is read whole: every mistake is listed with the path of its field.

mod args;
mod reader;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::field::{Errors, Path};
use knarr_api::k8s_openapi;
use serde_json::Value;

use crate::plugins::{
    default_preemption, image_locality, inter_pod_affinity, node_affinity, node_name, node_ports,
    node_resources_balanced_allocation, node_resources_fit, node_unschedulable, pod_topology_spread,
    taint_toleration,
};
use crate::profile::Profile;
use crate::queue::Backoffs;
use reader::Reader;

/// What a file comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    pub profiles: Vec<Profile>,
    pub backoffs: Backoffs,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            profiles: vec![Profile::default()],
            backoffs: Backoffs::default(),
        }
    }
}

const GROUP: &str = "kubescheduler.config.k8s.io/";
const KIND: &str = "KubeSchedulerConfiguration";

/// The plugins that filter or score, which is what can be turned off and weighed.
const PLUGINS: &[&str] = &[
    node_unschedulable::NAME,
    node_name::NAME,
    taint_toleration::NAME,
    node_affinity::NAME,
    node_ports::NAME,
    node_resources_fit::NAME,
    pod_topology_spread::NAME,
    inter_pod_affinity::NAME,
    node_resources_balanced_allocation::NAME,
    image_locality::NAME,
    default_preemption::NAME,
];

/// Names of v1.36 that a file may carry, too.
const OTHERS: &[&str] = &[
    "SchedulingGates",
    "PrioritySort",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "DynamicResources",
    "NodeDeclaredFeatures",
    "GangScheduling",
    "DefaultBinder",
];

const POINTS: &[&str] = &[
    "multiPoint",
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
];

/// Reads a file (YAML or JSON). The mistakes, one to a line.
pub fn parse(text: &str) -> Result<Configuration, Vec<String>> {
    let value: Value = serde_saphyr::from_str(text).map_err(|e| vec![format!("not YAML: {e}")])?;
    let mut errors = Errors::new();
    let configuration = read(&value, &mut errors);
    if errors.is_empty() {
        Ok(configuration)
    } else {
        Err(errors.iter().map(ToString::to_string).collect())
    }
}

fn read(value: &Value, errors: &mut Errors) -> Configuration {
    let mut file = Reader::new(&Path::new(""), value, errors);
    let version = file.string("apiVersion").unwrap_or_default().to_string();
    let versions = ["v1", "v1beta3", "v1beta2", "v1alpha1"].map(|v| format!("{GROUP}{v}"));
    if !versions.contains(&version) {
        let known: Vec<&str> = versions.iter().map(String::as_str).collect();
        file.not_supported("apiVersion", &version, &known);
    }
    let kind = file.string("kind").unwrap_or_default().to_string();
    if kind != KIND {
        file.not_supported("kind", &kind, &[KIND]);
    }
    let old = version.ends_with("v1alpha1");
    // How kube-scheduler serves, talks and elects is configured otherwise here.
    for name in [
        "leaderElection",
        "clientConnection",
        "enableProfiling",
        "enableContentionProfiling",
        "delayCacheUntilActive",
        "featureGates",
    ] {
        file.take(name);
    }
    file.between("parallelism", 1..=i64::from(i32::MAX));
    // All nodes are considered always.
    file.between("percentageOfNodesToScore", 0..=100);
    let mut configuration = Configuration::default();
    if let Some(seconds) = file.between("podInitialBackoffSeconds", 1..=i64::from(i32::MAX)) {
        configuration.backoffs.initial = SignedDuration::from_secs(seconds);
    }
    let initial = configuration.backoffs.initial.as_secs();
    if let Some(seconds) = file.between("podMaxBackoffSeconds", initial..=i64::from(i32::MAX)) {
        configuration.backoffs.max = SignedDuration::from_secs(seconds);
    }
    configuration.backoffs.max = configuration.backoffs.max.max(configuration.backoffs.initial);
    if file.list("extenders").next().is_some() {
        file.forbidden("extenders", "extenders are not supported");
    }
    if old {
        let mut profile = Profile::default();
        old_fields(&mut file, &mut profile);
        configuration.profiles = vec![profile];
    } else {
        if !version.ends_with("/v1") {
            file.take("healthzBindAddress");
            file.take("metricsBindAddress");
        }
        let profiles: Vec<Profile> = file
            .list("profiles")
            .map(|(path, value)| (path, value.clone()))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(path, value)| profile(Reader::new(&path, &value, file.errors())))
            .collect();
        for (i, profile) in profiles.iter().enumerate() {
            let name = &profile.scheduler_name;
            if profiles[..i].iter().any(|p| p.scheduler_name == *name) {
                let path = Path::new("profiles").index(i).child("schedulerName");
                file.errors().duplicate(&path, name.as_str());
            }
        }
        if !profiles.is_empty() {
            configuration.profiles = profiles;
        }
    }
    file.finish();
    configuration
}

/// v1alpha1 has one profile in the file itself.
fn old_fields(file: &mut Reader<'_>, profile: &mut Profile) {
    for name in [
        "algorithmSource",
        "bindTimeoutSeconds",
        "failureDomains",
        "healthzBindAddress",
        "metricsBindAddress",
    ] {
        file.take(name);
    }
    if let Some(name) = file.string("schedulerName") {
        profile.scheduler_name = name.to_string();
    }
    if let Some(weight) = file.between("hardPodAffinitySymmetricWeight", 0..=100) {
        profile.inter_pod_affinity.hard_pod_affinity_weight = weight;
    }
    if let Some(disabled) = file.boolean("disablePreemption") {
        profile.preemption = !disabled;
    }
}

fn profile(mut from: Reader<'_>) -> Profile {
    let mut profile = Profile::default();
    if let Some(name) = from.string("schedulerName") {
        profile.scheduler_name = name.to_string();
    }
    from.between("percentageOfNodesToScore", 0..=100);
    if let Some((path, value)) = from.child("plugins") {
        plugins(Reader::new(&path, &value, from.errors()), &mut profile);
    }
    let all: Vec<(Path, Value)> = from.list("pluginConfig").map(|(p, v)| (p, v.clone())).collect();
    let mut seen: Vec<String> = Vec::new();
    for (path, value) in all {
        let mut config = Reader::new(&path, &value, from.errors());
        let name = config.string("name").unwrap_or_default().to_string();
        if !is_known(&name) {
            config.not_supported("name", &name, &names());
        } else if seen.contains(&name) {
            config.errors().duplicate(&path, name.as_str());
        }
        if let Some((path, value)) = config.child("args") {
            args::read(&name, Reader::new(&path, &value, config.errors()), &mut profile);
        }
        config.finish();
        seen.push(name);
    }
    from.finish();
    profile
}

fn names() -> Vec<&'static str> {
    PLUGINS.iter().chain(OTHERS).copied().collect()
}

fn is_known(name: &str) -> bool {
    names().contains(&name)
}

/// Turns plugins off and on. What is said for one extension point goes over what is said for all.
fn plugins(mut from: Reader<'_>, profile: &mut Profile) {
    for point in POINTS {
        let Some((path, value)) = from.child(point) else {
            continue;
        };
        let mut set = Reader::new(&path, &value, from.errors());
        for list in ["disabled", "enabled"] {
            let all: Vec<(Path, Value)> = set.list(list).map(|(p, v)| (p, v.clone())).collect();
            for (path, value) in all {
                let mut plugin = Reader::new(&path, &value, set.errors());
                let name = plugin.string("name").unwrap_or_default().to_string();
                let weight = plugin.between("weight", 0..=i64::from(i32::MAX)).unwrap_or(0);
                if name == "*" && list == "disabled" {
                    for name in PLUGINS {
                        switch(profile, point, name, None);
                    }
                } else if let Some(name) = PLUGINS.iter().find(|n| **n == name) {
                    // No weight is 1.
                    switch(profile, point, name, (list == "enabled").then_some(weight.max(1)));
                } else if !is_known(&name) {
                    plugin.not_supported("name", &name, &names());
                }
                plugin.finish();
            }
        }
        set.finish();
    }
    from.finish();
}

/// `on` is the weight.
fn switch(profile: &mut Profile, point: &str, name: &'static str, on: Option<i64>) {
    let all = point == "multiPoint";
    if all || point == "filter" {
        match on {
            Some(_) => profile.filters_off.remove(name),
            None => profile.filters_off.insert(name),
        };
    }
    if (all || point == "postFilter") && name == default_preemption::NAME {
        profile.preemption = on.is_some();
    }
    let scores = Profile::default().weights.contains_key(name);
    if (all || point == "score") && scores {
        match on {
            Some(weight) => profile.weights.insert(name, weight),
            None => profile.weights.remove(name),
        };
    }
}

#[cfg(test)]
mod tests;
