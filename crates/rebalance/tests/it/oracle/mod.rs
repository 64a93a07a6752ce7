//! The violations of a cluster, counted pod by pod from the objects as they are in JSON, without any code of the planner or
//! the scheduler. Only for what the random clusters have.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::world::World;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violation {
    pub amount: u64,
    /// Whether the policy restores the rule.
    pub is_goal: bool,
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or("")
}

fn list<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value
        .pointer(path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn label<'a>(node: &'a Value, key: &str) -> Option<&'a str> {
    node["metadata"]["labels"].get(key).and_then(Value::as_str)
}

fn app(pod: &Value) -> &str {
    text(pod, "/metadata/labels/app")
}

fn milli_cpu(text: &str) -> u64 {
    match text.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap(),
        None => text.parse::<u64>().unwrap() * 1000,
    }
}

fn matches_selector(pod: &Value, node: &Value) -> bool {
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    let mut all = selector.into_iter().flatten();
    all.all(|(key, value)| label(node, key) == value.as_str())
}

fn tolerates(pod: &Value) -> bool {
    list(pod, "/spec/tolerations").next().is_some()
}

fn taints<'a>(pod: &Value, node: &'a Value, effects: &'a [&str]) -> usize {
    if tolerates(pod) {
        return 0;
    }
    let taints = list(node, "/spec/taints");
    taints.filter(|t| effects.contains(&text(t, "/effect"))).count()
}

struct Counter<'a> {
    world: &'a World,
    names: &'a [&'a str],
    found: BTreeMap<String, Violation>,
}

/// All violations that a plan for these strategies may not make worse.
pub fn violations(world: &World, names: &[&str]) -> BTreeMap<String, Violation> {
    let mut counter = Counter {
        world,
        names,
        found: BTreeMap::new(),
    };
    counter.spread();
    counter.pod_affinity("podAntiAffinity", true);
    counter.pod_affinity("podAffinity", false);
    counter.on_pods();
    counter.duplicates();
    counter.utilization();
    counter.found
}

impl Counter<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    fn put(&mut self, rule: String, amount: u64, is_goal: bool) {
        let entry = self.found.entry(rule).or_default();
        entry.amount += amount;
        entry.is_goal |= is_goal;
    }

    fn node(&self, pod: &Value) -> &Value {
        &self.world.nodes[text(pod, "/spec/nodeName")]
    }

    /// One pod of each app: all of them have the same spec.
    fn examples(&self) -> Vec<Value> {
        let mut apps: BTreeMap<&str, &Value> = BTreeMap::new();
        for pod in self.world.pods.values() {
            apps.insert(app(pod), pod);
        }
        apps.into_values().cloned().collect()
    }

    fn spread(&mut self) {
        for example in self.examples() {
            let constraints: Vec<&Value> = list(&example, "/spec/topologySpreadConstraints").collect();
            let keys: Vec<&str> = constraints.iter().map(|c| text(c, "/topologyKey")).collect();
            for constraint in &constraints {
                let is_hard = text(constraint, "/whenUnsatisfiable") == "DoNotSchedule";
                if !is_hard && !self.has("topologySpread") {
                    continue;
                }
                let key = text(constraint, "/topologyKey");
                let honors = text(constraint, "/nodeTaintsPolicy") == "Honor";
                let counts = |node: &Value| {
                    keys.iter().all(|key| label(node, key).is_some())
                        && matches_selector(&example, node)
                        && (!honors || taints(&example, node, &["NoSchedule"]) == 0)
                };
                let mut domains: BTreeMap<&str, u64> = BTreeMap::new();
                for node in self.world.nodes.values().filter(|node| counts(node)) {
                    domains.insert(label(node, key).unwrap(), 0);
                }
                for pod in self.world.pods.values().filter(|pod| app(pod) == app(&example)) {
                    let node = self.node(pod);
                    if counts(node) {
                        *domains.get_mut(label(node, key).unwrap()).unwrap() += 1;
                    }
                }
                let fewest = domains.values().min().copied().unwrap_or(0);
                let most = fewest + constraint["maxSkew"].as_u64().unwrap();
                let over = domains.values().map(|pods| pods.saturating_sub(most)).sum();
                let goal = self.has("topologySpread");
                self.put(format!("spread of {} over {key}", app(&example)), over, goal);
            }
        }
    }

    /// Pairs that must not be together, and pods that are without those that they need.
    fn pod_affinity(&mut self, name: &str, anti: bool) {
        let path = format!("/spec/affinity/{name}/requiredDuringSchedulingIgnoredDuringExecution");
        let pods: Vec<&Value> = self.world.pods.values().collect();
        let mut found: Vec<(String, u64)> = Vec::new();
        for pod in &pods {
            for term in list(pod, &path) {
                let (key, target) = (
                    text(term, "/topologyKey"),
                    text(term, "/labelSelector/matchLabels/app"),
                );
                let here = label(self.node(pod), key);
                let is_other = |other: &&&Value| !std::ptr::eq(**other, *pod) && app(other) == target;
                let together = |other: &&&Value| here.is_some() && label(self.node(other), key) == here;
                let rule = format!("{name} of {}", app(pod));
                if anti {
                    let pairs = pods.iter().filter(is_other).filter(together).count();
                    found.push((rule, u64::try_from(pairs).unwrap()));
                } else {
                    let near = pods.iter().filter(is_other).any(|other| together(&other));
                    // The first of a group that wants to be together is content anywhere with the key.
                    let anywhere = |other: &&Value| label(self.node(other), key).is_some();
                    let is_first =
                        app(pod) == target && here.is_some() && !pods.iter().filter(is_other).any(anywhere);
                    found.push((rule, u64::from(!near && !is_first)));
                }
            }
        }
        for (rule, amount) in found {
            self.put(rule, amount, self.has(name));
        }
    }

    fn on_pods(&mut self) {
        for pod in self.world.pods.values().cloned().collect::<Vec<_>>() {
            let node = self.node(&pod).clone();
            let goal = self.has("nodeAffinity");
            let name = app(&pod).to_string();
            let matches = matches_selector(&pod, &node);
            self.put(format!("node affinity of {name}"), u64::from(!matches), goal);
            if goal {
                let path = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
                let prefers = list(&pod, path).next().is_some();
                let missed = prefers && label(&node, "disk") != Some("hdd");
                self.put(format!("preferences of {name}"), 5 * u64::from(missed), true);
            }
            if self.has("nodeTaints") {
                let effects = ["NoSchedule", "PreferNoSchedule"];
                let amount = u64::try_from(taints(&pod, &node, &effects)).unwrap();
                self.put(format!("taints of {name}"), amount, true);
            }
            if self.has("tooManyRestarts") {
                let restarts =
                    list(&pod, "/status/containerStatuses").map(|s| s["restartCount"].as_u64().unwrap());
                let is_over = restarts.sum::<u64>() >= 9;
                self.put(format!("restarts of {name}"), u64::from(is_over), true);
            }
        }
    }

    fn duplicates(&mut self) {
        if !self.has("duplicates") {
            return;
        }
        for example in self.examples() {
            let possible = self.world.nodes.values().filter(|node| {
                node["spec"]["unschedulable"] != true
                    && matches_selector(&example, node)
                    && taints(&example, node, &["NoSchedule"]) == 0
            });
            let possible = u64::try_from(possible.count()).unwrap();
            let mut on: BTreeMap<&str, u64> = BTreeMap::new();
            for pod in self.world.pods.values().filter(|pod| app(pod) == app(&example)) {
                *on.entry(text(pod, "/spec/nodeName")).or_default() += 1;
            }
            if possible > 1 {
                let most = on.values().sum::<u64>().div_ceil(possible);
                let over = on.values().map(|pods| pods.saturating_sub(most)).sum();
                self.put(format!("duplicates of {}", app(&example)), over, true);
            }
        }
    }

    fn utilization(&mut self) {
        let names: BTreeSet<String> = self.world.nodes.keys().cloned().collect();
        let all = self.world.nodes.values();
        let capacity: u64 = all
            .map(|node| milli_cpu(text(node, "/status/allocatable/cpu")))
            .sum();
        let all = self.world.pods.values();
        let load: u64 = all
            .map(|pod| milli_cpu(text(pod, "/spec/containers/0/resources/requests/cpu")))
            .sum();
        let target = match self.has("deviation") {
            true => (100.0 * load as f64 / capacity as f64 + 15.0).min(100.0),
            false => 60.0,
        };
        for name in names {
            let has = milli_cpu(text(&self.world.nodes[&name], "/status/allocatable/cpu"));
            let there = self
                .world
                .pods
                .values()
                .filter(|p| text(p, "/spec/nodeName") == name);
            let (mut used, mut pods) = (0, 0);
            for pod in there {
                used += milli_cpu(text(pod, "/spec/containers/0/resources/requests/cpu"));
                pods += 1;
            }
            if self.has("lowNodeUtilization") {
                let over = used.saturating_sub((has as f64 * target / 100.0) as u64);
                self.put(format!("utilization of {name}"), over, true);
            }
            if self.has("highNodeUtilization") {
                let under = if used <= has * 20 / 100 { pods } else { 0 };
                self.put(format!("underutilization of {name}"), under, true);
            }
        }
    }
}
