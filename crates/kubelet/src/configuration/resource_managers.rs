//! The fields of the CPU, memory and topology manager, with v1.36's defaults and messages.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::resources::is_hugepages;
use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::quantity::{Notation, Quantity};
use serde_json::{Map, Value, json};

use super::rules::go;
use super::{KubeletConfiguration, set_duration};
use crate::cpumanager::{self, CpuSet, Gates, PolicyError as CpuError, cpuset};
use crate::memorymanager::{MEMORY, PolicyError as MemoryError, ReservedMemory};
use crate::topologymanager::{self, Policy, Scope};

const CPU_POLICY: &str = "cpuManagerPolicy";
const CPU_OPTIONS: &str = "cpuManagerPolicyOptions";
const CPU_PERIOD: &str = "cpuManagerReconcilePeriod";
const RESERVED_CPUS: &str = "reservedSystemCPUs";
const MEMORY_POLICY: &str = "memoryManagerPolicy";
const RESERVED_MEMORY: &str = "reservedMemory";
const TOPOLOGY_POLICY: &str = "topologyManagerPolicy";
const TOPOLOGY_SCOPE: &str = "topologyManagerScope";
const TOPOLOGY_OPTIONS: &str = "topologyManagerPolicyOptions";

/// The settings of the CPU, memory and topology manager.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceManagers {
    /// The policy `static`; else `none`.
    pub is_cpu_static: bool,
    pub cpu_options: cpumanager::Options,
    /// The interval in which containers' CPUs are checked.
    pub cpu_reconcile_period: SignedDuration,
    /// CPUs for the system; empty: as many as are reserved, chosen by the topology.
    pub reserved_cpus: CpuSet,
    /// The policy `Static`; else `None`.
    pub is_memory_static: bool,
    pub reserved_memory: Vec<ReservedMemory>,
    pub topology_policy: Policy,
    pub topology_scope: Scope,
    pub topology_options: topologymanager::Options,
    /// The options as they were configured.
    cpu_options_given: BTreeMap<String, String>,
    topology_options_given: BTreeMap<String, String>,
}

impl Default for ResourceManagers {
    fn default() -> Self {
        ResourceManagers {
            is_cpu_static: false,
            cpu_options: cpumanager::Options::default(),
            cpu_reconcile_period: SignedDuration::from_secs(10),
            reserved_cpus: CpuSet::new(),
            is_memory_static: false,
            reserved_memory: Vec::new(),
            topology_policy: Policy::None,
            topology_scope: Scope::Container,
            topology_options: topologymanager::Options::default(),
            cpu_options_given: BTreeMap::new(),
            topology_options_given: BTreeMap::new(),
        }
    }
}

impl KubeletConfiguration {
    /// Reads the fields; reservations have been read before.
    pub(super) fn take_resource_managers(&mut self, fields: &mut Fields, report: &mut Report) {
        self.take_reserved_cpus(fields, report);
        self.resource_managers.take_cpu(fields, report);
        self.resource_managers.take_memory(fields, report);
        self.resource_managers.take_topology(fields, report);
        if self.resource_managers.is_cpu_static && self.reserved_milli_cpus() <= 0 {
            let message = CpuError::NoneReserved.to_string();
            report.errors.invalid(&fields.at(CPU_POLICY), "static", message);
        }
    }

    /// They replace the CPU of `systemReserved` and `kubeReserved`.
    fn take_reserved_cpus(&mut self, fields: &mut Fields, report: &mut Report) {
        let Some(text) = fields.text(RESERVED_CPUS, report).filter(|t| !t.is_empty()) else {
            return;
        };
        let at = fields.at(RESERVED_CPUS);
        let of_group = |name| {
            fields
                .take(name)
                .and_then(Value::as_str)
                .is_some_and(|t| !t.is_empty())
        };
        if ["systemReservedCgroup", "kubeReservedCgroup"]
            .map(of_group)
            .contains(&true)
        {
            let message = "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup \
                         (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)";
            report.errors.invalid(&at, text, message);
        }
        match cpuset::parse(text) {
            Ok(cpus) => {
                self.kube_reserved.remove("cpu");
                let count = i64::try_from(cpus.len()).unwrap_or(i64::MAX);
                let count = Quantity::from_value(count, Notation::DecimalSi);
                self.system_reserved.insert("cpu".into(), count);
                self.resource_managers.reserved_cpus = cpus;
            }
            Err(error) => {
                let message =
                    format!("unable to parse reservedSystemCPUs (--reserved-cpus) {text}, error: {error}");
                report.errors.invalid(&at, text, message);
            }
        }
    }

    /// The CPU that is not allocatable to pods, in millicores.
    pub fn reserved_milli_cpus(&self) -> i64 {
        let reserved = [&self.system_reserved, &self.kube_reserved];
        let cpus = reserved.into_iter().filter_map(|of| of.get("cpu"));
        cpus.map(Quantity::milli_value).fold(0, i64::saturating_add)
    }
}

impl ResourceManagers {
    fn take_cpu(&mut self, fields: &mut Fields, report: &mut Report) {
        match fields.text(CPU_POLICY, report) {
            None | Some("" | "none") => {}
            Some("static") => self.is_cpu_static = true,
            Some(other) => {
                let message = format!("unknown policy: {other:?}");
                report.errors.invalid(&fields.at(CPU_POLICY), other, message);
            }
        }
        set_duration(&mut self.cpu_reconcile_period, fields, CPU_PERIOD, report);
        if self.cpu_reconcile_period.is_negative() {
            let shown = go(self.cpu_reconcile_period);
            let at = fields.at(CPU_PERIOD);
            report.errors.invalid(&at, shown.as_str(), "must not be negative");
        }
        let gates = gates(fields);
        let given = fields.text_map(CPU_OPTIONS, report).unwrap_or_default();
        let read = match self.is_cpu_static {
            true => cpumanager::Options::parse(&given, gates),
            false => cpumanager::Options::none(&given).map(|()| cpumanager::Options::default()),
        };
        match read {
            Ok(options) => self.cpu_options = options,
            Err(error) => report
                .errors
                .invalid(&fields.at(CPU_OPTIONS), json!(given), error.to_string()),
        }
        self.cpu_options_given = given;
    }

    fn take_memory(&mut self, fields: &mut Fields, report: &mut Report) {
        let at = fields.at(MEMORY_POLICY);
        match fields.text(MEMORY_POLICY, report) {
            None | Some("" | "None") => {}
            Some("Static") => self.is_memory_static = true,
            Some("BestEffort") => {
                let message = "policy \"BestEffort\" is not available for platform \"linux\"";
                report.errors.invalid(&at, "BestEffort", message);
            }
            Some(other) => report
                .errors
                .invalid(&at, other, format!("unknown policy: {other:?}")),
        }
        let mut seen = BTreeSet::new();
        for (item, path) in fields.list(RESERVED_MEMORY, report).unwrap_or_default() {
            let mut of = Fields::new(item, path, report);
            let node = of.integer("numaNode", report).unwrap_or(0);
            let limits = of.text_map("limits", report).unwrap_or_default();
            let at = of.at("limits");
            of.finish(report);
            let mut reserved = ReservedMemory {
                numa_node: u32::try_from(node).unwrap_or(u32::MAX),
                limits: BTreeMap::new(),
            };
            for (resource, text) in limits {
                let at = at.key(&resource);
                let mut reject = |message: String| report.errors.invalid(&at, text.as_str(), message);
                if resource != MEMORY && !is_hugepages(&resource) {
                    reject(format!(
                        "the limit type {resource:?} for NUMA node {node} is not supported, only [memory \
                         hugepages-<HugePageSize>] is accepted"
                    ));
                }
                let bytes = match Quantity::parse(&text) {
                    Ok(amount) => u64::try_from(amount.value()).unwrap_or(0),
                    Err(why) => {
                        reject(why.to_string());
                        continue;
                    }
                };
                if bytes == 0 {
                    reject(format!(
                        "reserved memory may not be zero for NUMA node {node} and resource {resource:?}"
                    ));
                }
                if !seen.insert((node, resource.clone())) {
                    reject(format!(
                        "the reserved memory has a duplicate value for NUMA node {node} and resource {resource:?}"
                    ));
                }
                reserved.limits.insert(resource, bytes);
            }
            self.reserved_memory.push(reserved);
        }
        let has_memory = |of: &ReservedMemory| of.limits.contains_key(MEMORY);
        if self.is_memory_static && !self.reserved_memory.iter().any(has_memory) {
            let message = MemoryError::NoneReserved.to_string();
            report.errors.invalid(&at, "Static", message);
        }
    }

    fn take_topology(&mut self, fields: &mut Fields, report: &mut Report) {
        if let Some(name) = fields.text(TOPOLOGY_POLICY, report).filter(|t| !t.is_empty()) {
            match Policy::parse(name) {
                Some(policy) => self.topology_policy = policy,
                None => {
                    let message = format!(
                        "topologyManagerPolicy (--topology-manager-policy) {name:?} must be one of: [\"none\" \
                         \"best-effort\" \"restricted\" \"single-numa-node\"]"
                    );
                    report.errors.invalid(&fields.at(TOPOLOGY_POLICY), name, message);
                }
            }
        }
        match fields.text(TOPOLOGY_SCOPE, report) {
            None | Some("" | "container") => {}
            Some("pod") => self.topology_scope = Scope::Pod,
            Some(other) => {
                let message = format!(
                    "topologyManagerScope (--topology-manager-scope) {other:?} must be one of: \"container\", or \
                     \"pod\""
                );
                report.errors.invalid(&fields.at(TOPOLOGY_SCOPE), other, message);
            }
        }
        let given = fields.text_map(TOPOLOGY_OPTIONS, report).unwrap_or_default();
        match topologymanager::Options::parse(&given) {
            Ok(options) => self.topology_options = options,
            Err(error) => {
                report
                    .errors
                    .invalid(&fields.at(TOPOLOGY_OPTIONS), json!(given), error.to_string())
            }
        }
        self.topology_options_given = given;
    }

    /// Adds the fields as in a file.
    pub(super) fn add_to(&self, fields: &mut Map<String, Value>) {
        let memory = match self.is_memory_static {
            true => "Static",
            false => "None",
        };
        let cpu = match self.is_cpu_static {
            true => "static",
            false => "none",
        };
        let bytes =
            |(resource, bytes): (&String, &u64)| (resource.clone(), json!(super::effective::bytes(*bytes)));
        let reserved = self.reserved_memory.iter().map(|of| {
            let limits: Map<String, Value> = of.limits.iter().map(bytes).collect();
            json!({"numaNode": of.numa_node, "limits": limits})
        });
        let reserved: Vec<Value> = reserved.collect();
        for (name, value, is_shown) in [
            (CPU_POLICY, json!(cpu), true),
            (CPU_PERIOD, json!(go(self.cpu_reconcile_period)), true),
            (
                CPU_OPTIONS,
                json!(self.cpu_options_given),
                !self.cpu_options_given.is_empty(),
            ),
            (
                RESERVED_CPUS,
                json!(cpuset::format(&self.reserved_cpus)),
                !self.reserved_cpus.is_empty(),
            ),
            (MEMORY_POLICY, json!(memory), true),
            (RESERVED_MEMORY, json!(reserved), !reserved.is_empty()),
            (TOPOLOGY_POLICY, json!(self.topology_policy.name()), true),
            (TOPOLOGY_SCOPE, json!(self.topology_scope.name()), true),
            (
                TOPOLOGY_OPTIONS,
                json!(self.topology_options_given),
                !self.topology_options_given.is_empty(),
            ),
        ] {
            if is_shown {
                fields.insert(name.into(), value);
            }
        }
    }
}

/// The feature gates that are read here; others are noted elsewhere.
fn gates(fields: &mut Fields) -> Gates {
    let default = Gates::default();
    let given = fields.take("featureGates");
    let gate = |name: &str| given.and_then(|g| g.get(name)).and_then(Value::as_bool);
    Gates {
        alpha: gate("CPUManagerPolicyAlphaOptions").unwrap_or(default.alpha),
        beta: gate("CPUManagerPolicyBetaOptions").unwrap_or(default.beta),
    }
}
