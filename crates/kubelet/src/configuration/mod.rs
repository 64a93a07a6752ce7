//! KubeletConfiguration v1beta1: what an administrator says of a node, in the file that kubelets take.
//!
//! A file is read to its end and every mistake is reported with its path; a field nobody knows is a mistake. What is
//! accepted and changes nothing here is kept as a note, so that nobody wonders. Defaults are v1.36's.

mod accepted;
pub mod registration;
mod resource_managers;
mod rules;
mod shown;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::document::{Fields, Report};
use knarr_api::field::{Errors, Path};
use knarr_api::k8s_openapi;
use knarr_api::quantity::Quantity;
use serde_json::Value;

use crate::eviction;
use crate::eviction::threshold::{self, Statements};
pub use resource_managers::ResourceManagers;
pub use shown::Place;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// When images go that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGc {
    /// Of the images' disk: above it images go, …
    pub high_percent: u32,
    /// … until it is used no more than this.
    pub low_percent: u32,
    /// Younger ones stay.
    pub min_age: SignedDuration,
    /// What was not used for so long goes anyway; zero: never.
    pub max_age: SignedDuration,
}

impl Default for ImageGc {
    fn default() -> Self {
        ImageGc {
            high_percent: 85,
            low_percent: 80,
            min_age: SignedDuration::from_secs(120),
            max_age: SignedDuration::ZERO,
        }
    }
}

/// How containers' logs are kept from filling the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerLogs {
    pub max_bytes: u64,
    pub max_files: usize,
    pub interval: SignedDuration,
}

impl Default for ContainerLogs {
    fn default() -> Self {
        ContainerLogs {
            max_bytes: 10 << 20,
            max_files: 5,
            interval: SignedDuration::from_secs(10),
        }
    }
}

/// What pods are given when the node shuts down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    pub grace: SignedDuration,
    /// The part of it that is kept for critical pods.
    pub critical: SignedDuration,
    /// Instead of both: seconds by the least priority that is given them.
    pub by_priority: Vec<(i32, i64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// See the module. [`Default`] is a kubelet without a file.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletConfiguration {
    /// Where the node's own pods are described; none: it has none.
    pub static_pod_path: Option<String>,
    /// Between looks at it; changes are heard of in between.
    pub file_check_frequency: SignedDuration,
    /// Where pods' logs are kept; none: below the data directory.
    pub pod_logs_dir: Option<String>,
    pub max_pods: u32,
    /// At most so many pods for each core; 0: no such limit.
    pub pods_per_core: u32,
    /// Of all processes of a pod; none: the node's.
    pub pod_pids_limit: Option<u64>,
    /// At a time; none: not said.
    pub image_pulls: Option<u32>,
    pub cluster_dns: Vec<String>,
    /// Empty: not said.
    pub cluster_domain: String,
    pub resolv_conf: Option<String>,
    pub node_status_update_frequency: SignedDuration,
    pub node_status_report_frequency: SignedDuration,
    pub node_lease_duration_seconds: i32,
    /// Images named in the node's status; none: all.
    pub node_status_max_images: Option<usize>,
    /// Whether the node makes an object of its own where there is none.
    pub register_node: bool,
    pub register_with_taints: Vec<Taint>,
    /// From the command line only.
    pub node_labels: BTreeMap<String, String>,
    pub provider_id: String,
    /// Not given to pods.
    pub system_reserved: BTreeMap<String, Quantity>,
    pub kube_reserved: BTreeMap<String, Quantity>,
    pub resource_managers: ResourceManagers,
    pub eviction: eviction::Settings,
    pub image_gc: ImageGc,
    pub container_logs: ContainerLogs,
    pub shutdown: Shutdown,
    /// The longest wait before a container that crashes is started again.
    pub max_container_restart_period: SignedDuration,
    pub cgroup_driver: CgroupDriver,
    /// Whether what is reserved is kept from pods.
    pub enforces_allocatable: bool,
    /// Whether CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: SignedDuration,
    /// `/logs` is served.
    pub system_log_handler: bool,
    /// Logs, exec, attach, port-forward and the like are served.
    pub debugging_handlers: bool,
    /// Containers that say nothing of seccomp get the runtime's own profile.
    pub seccomp_default: bool,
    /// Names of sysctls that pods may set beside the safe ones; `*` at the end stands for anything.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Whether only the process goes that memory runs out for, and not all of its container; none: as the version of
    /// cgroups has it.
    pub single_process_oom_kill: Option<bool>,
    /// `path: words`, on what was accepted and has no effect.
    pub notes: Vec<String>,
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        KubeletConfiguration {
            static_pod_path: None,
            file_check_frequency: SignedDuration::from_secs(20),
            pod_logs_dir: None,
            max_pods: 110,
            pods_per_core: 0,
            pod_pids_limit: None,
            image_pulls: None,
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            resolv_conf: None,
            node_status_update_frequency: SignedDuration::from_secs(10),
            node_status_report_frequency: SignedDuration::from_secs(300),
            node_lease_duration_seconds: 40,
            node_status_max_images: Some(50),
            register_node: true,
            register_with_taints: Vec::new(),
            node_labels: BTreeMap::new(),
            provider_id: String::new(),
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            resource_managers: ResourceManagers::default(),
            enforces_allocatable: true,
            eviction: eviction::Settings::default(),
            image_gc: ImageGc::default(),
            container_logs: ContainerLogs::default(),
            shutdown: Shutdown::default(),
            max_container_restart_period: crate::backoff::MAX,
            cgroup_driver: CgroupDriver::Cgroupfs,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: SignedDuration::from_millis(100),
            system_log_handler: true,
            debugging_handlers: true,
            seccomp_default: false,
            allowed_unsafe_sysctls: Vec::new(),
            single_process_oom_kill: None,
            notes: Vec::new(),
        }
    }
}

/// Reads the one document of a file.
pub fn read(document: &Value) -> Result<KubeletConfiguration, Errors> {
    let mut report = Report::default();
    let mut configuration = KubeletConfiguration::default();
    let root = Path::default();
    if document.is_null() {
        let words = format!("the file is empty; expected a {KIND}");
        report.errors.required(&root, words);
    } else {
        let mut fields = Fields::new(document, root, &mut report);
        if is_ours(&mut fields, &mut report) {
            configuration.take(&mut fields, &mut report);
            accepted::take(&mut fields, &mut report);
            fields.finish(&mut report);
        }
    }
    if !report.errors.is_empty() {
        return Err(report.errors);
    }
    configuration.notes = report.notes;
    Ok(configuration)
}

/// Other kinds and versions are not read on: each of their fields would be a mistake.
fn is_ours(fields: &mut Fields, report: &mut Report) -> bool {
    let mut good = true;
    for (name, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let at = fields.at(name);
        match fields.text(name, report) {
            Some(found) if found == wanted => continue,
            Some(found) => report.errors.not_supported(&at, found, &[wanted]),
            None => report.errors.required(&at, format!("expected {wanted}")),
        }
        good = false;
    }
    good
}

/// A field that is zero is as good as not set.
fn set_duration(to: &mut SignedDuration, fields: &mut Fields, name: &'static str, report: &mut Report) {
    if let Some(value) = fields.duration(name, report).filter(|d| !d.is_zero()) {
        *to = value;
    }
}

impl KubeletConfiguration {
    fn take(&mut self, fields: &mut Fields, report: &mut Report) {
        let text = |fields: &mut Fields, name, report: &mut Report| {
            let text = fields.text(name, report).map(str::to_string);
            text.filter(|t| !t.is_empty())
        };
        self.static_pod_path = text(fields, "staticPodPath", report);
        set_duration(
            &mut self.file_check_frequency,
            fields,
            "fileCheckFrequency",
            report,
        );
        self.pod_logs_dir = rules::logs_dir(fields, report);
        self.take_limits(fields, report);
        let listed = fields.texts("clusterDNS", report);
        self.cluster_dns = listed.into_iter().map(|(dns, _)| dns.to_string()).collect();
        self.cluster_domain = text(fields, "clusterDomain", report).unwrap_or_default();
        self.resolv_conf = text(fields, "resolvConf", report);
        self.provider_id = text(fields, "providerID", report).unwrap_or_default();
        self.take_node(fields, report);
        self.take_resource_managers(fields, report);
        self.take_eviction(fields, report);
        self.take_image_gc(fields, report);
        self.take_logs(fields, report);
        self.take_shutdown(fields, report);
        self.take_cgroups(fields, report);
        self.system_log_handler = fields.boolean("enableSystemLogHandler", report).unwrap_or(true);
        self.debugging_handlers = fields.boolean("enableDebuggingHandlers", report).unwrap_or(true);
        self.seccomp_default = fields.boolean("seccompDefault", report).unwrap_or(false);
        self.allowed_unsafe_sysctls = rules::unsafe_sysctls(fields, report);
        self.single_process_oom_kill = fields.boolean("singleProcessOOMKill", report);
    }

    fn take_limits(&mut self, fields: &mut Fields, report: &mut Report) {
        for (name, to) in [
            ("maxPods", &mut self.max_pods),
            ("podsPerCore", &mut self.pods_per_core),
        ] {
            let Some(value) = fields.integer(name, report).filter(|n| *n != 0) else {
                continue;
            };
            match u32::try_from(value) {
                Ok(value) => *to = value,
                Err(_) => report
                    .errors
                    .invalid(&fields.at(name), value, "must not be a negative number"),
            }
        }
        // Negative and none at all: as the node has it.
        let pids = fields.long("podPidsLimit", report);
        self.pod_pids_limit = pids.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        let parallel = fields.integer("maxParallelImagePulls", report);
        let serial = fields.boolean("serializeImagePulls", report);
        let at = fields.at("maxParallelImagePulls");
        match (serial, parallel) {
            (_, Some(n)) if n < 1 => report.errors.invalid(&at, n, "must be a positive number"),
            (Some(true), Some(n)) if n > 1 => report.errors.invalid(
                &at,
                n,
                "cannot be larger than 1 unless serializeImagePulls is set to false",
            ),
            (_, Some(n)) => self.image_pulls = u32::try_from(n).ok(),
            (Some(true), None) => self.image_pulls = Some(1),
            (Some(false), None) => self.image_pulls = Some(u32::MAX),
            _ => {}
        }
        let restarts = fields.object("crashLoopBackOff", report);
        if let Some(mut of) = restarts {
            const NAME: &str = "maxContainerRestartPeriod";
            if let Some(longest) = of.duration(NAME, report) {
                let bounds = SignedDuration::from_secs(1)..=crate::backoff::MAX;
                if bounds.contains(&longest) {
                    self.max_container_restart_period = longest;
                } else {
                    let words = "must be set between 1s and 300s";
                    report
                        .errors
                        .invalid(&of.at(NAME), rules::go(longest).as_str(), words);
                }
            }
            of.finish(report);
        }
    }

    fn take_node(&mut self, fields: &mut Fields, report: &mut Report) {
        let mut update = SignedDuration::ZERO;
        set_duration(&mut update, fields, "nodeStatusUpdateFrequency", report);
        if !update.is_zero() {
            self.node_status_update_frequency = update;
            self.node_status_report_frequency = update;
        }
        set_duration(
            &mut self.node_status_report_frequency,
            fields,
            "nodeStatusReportFrequency",
            report,
        );
        const LEASE: &str = "nodeLeaseDurationSeconds";
        match fields.integer(LEASE, report) {
            None | Some(0) => {}
            Some(n) if n < 0 => report
                .errors
                .invalid(&fields.at(LEASE), n, "must be greater than 0"),
            Some(n) => self.node_lease_duration_seconds = n,
        }
        const IMAGES: &str = "nodeStatusMaxImages";
        match fields.integer(IMAGES, report) {
            None => {}
            Some(-1) => self.node_status_max_images = None,
            Some(n) => match usize::try_from(n) {
                Ok(n) => self.node_status_max_images = Some(n),
                Err(_) => report
                    .errors
                    .invalid(&fields.at(IMAGES), n, "must be -1 or greater"),
            },
        }
        self.register_node = fields.boolean("registerNode", report).unwrap_or(true);
        for (item, path) in fields.list("registerWithTaints", report).unwrap_or_default() {
            match serde_json::from_value::<Taint>(item.clone()) {
                Ok(taint) => {
                    registration::check_taint(&taint, &path, &mut report.errors);
                    self.register_with_taints.push(taint);
                }
                Err(error) => report.errors.invalid(&path, item, error.to_string()),
            }
        }
        self.system_reserved = rules::reserved(fields, "systemReserved", report);
        self.kube_reserved = rules::reserved(fields, "kubeReserved", report);
    }

    fn take_eviction(&mut self, fields: &mut Fields, report: &mut Report) {
        let mut statements = Statements::default();
        let hard = fields.text_map("evictionHard", report);
        let merge = fields.boolean("mergeDefaultEvictionSettings", report) == Some(true);
        let is_said = hard.is_some();
        statements.hard = hard.unwrap_or_default();
        if !is_said || merge {
            for (signal, value) in threshold::DEFAULT_HARD {
                let known = statements.hard.entry(signal.to_string());
                known.or_insert_with(|| value.to_string());
            }
        }
        for (name, to) in [
            ("evictionSoft", &mut statements.soft),
            ("evictionSoftGracePeriod", &mut statements.soft_grace_period),
            ("evictionMinimumReclaim", &mut statements.minimum_reclaim),
        ] {
            *to = fields.text_map(name, report).unwrap_or_default();
        }
        let pods = rules::enforces_pods(fields, report);
        self.enforces_allocatable = pods;
        self.eviction.thresholds = threshold::parse(&statements, pods, &mut report.errors);
        set_duration(
            &mut self.eviction.pressure_transition_period,
            fields,
            "evictionPressureTransitionPeriod",
            report,
        );
        if let Some(seconds) = fields.integer("evictionMaxPodGracePeriod", report) {
            self.eviction.max_pod_grace_seconds = i64::from(seconds);
        }
        if let Some(isolated) = fields.boolean("localStorageCapacityIsolation", report) {
            self.eviction.local_storage_capacity_isolation = isolated;
        }
    }

    fn take_image_gc(&mut self, fields: &mut Fields, report: &mut Report) {
        for (name, to) in [
            ("imageGCHighThresholdPercent", &mut self.image_gc.high_percent),
            ("imageGCLowThresholdPercent", &mut self.image_gc.low_percent),
        ] {
            let Some(percent) = fields.integer(name, report) else {
                continue;
            };
            match u32::try_from(percent).ok().filter(|p| *p <= 100) {
                Some(percent) => *to = percent,
                None => {
                    report
                        .errors
                        .invalid(&fields.at(name), percent, "must be between 0 and 100, inclusive")
                }
            }
        }
        set_duration(&mut self.image_gc.min_age, fields, "imageMinimumGCAge", report);
        set_duration(&mut self.image_gc.max_age, fields, "imageMaximumGCAge", report);
        rules::image_gc(&self.image_gc, fields, report);
    }

    fn take_logs(&mut self, fields: &mut Fields, report: &mut Report) {
        const SIZE: &str = "containerLogMaxSize";
        if let Some(text) = fields.text(SIZE, report).filter(|t| !t.is_empty()) {
            let bytes = Quantity::parse(text).map(|q| u64::try_from(q.value()).unwrap_or(0));
            match bytes {
                Ok(bytes) if bytes > 0 => self.container_logs.max_bytes = bytes,
                Ok(_) => report
                    .errors
                    .invalid(&fields.at(SIZE), text, "must be a positive quantity"),
                Err(why) => report.errors.invalid(&fields.at(SIZE), text, why),
            }
        }
        const FILES: &str = "containerLogMaxFiles";
        if let Some(files) = fields.integer(FILES, report) {
            match usize::try_from(files).ok().filter(|n| *n > 1) {
                Some(files) => self.container_logs.max_files = files,
                None => report
                    .errors
                    .invalid(&fields.at(FILES), files, "must be greater than 1"),
            }
        }
        const INTERVAL: &str = "containerLogMonitorInterval";
        if let Some(interval) = fields.duration(INTERVAL, report) {
            if interval < SignedDuration::from_secs(3) {
                let words = "must be a positive time duration greater than or equal to 3s";
                let shown = rules::go(interval);
                report.errors.invalid(&fields.at(INTERVAL), shown.as_str(), words);
            }
            self.container_logs.interval = interval;
        }
    }

    fn take_shutdown(&mut self, fields: &mut Fields, report: &mut Report) {
        set_duration(&mut self.shutdown.grace, fields, "shutdownGracePeriod", report);
        set_duration(
            &mut self.shutdown.critical,
            fields,
            "shutdownGracePeriodCriticalPods",
            report,
        );
        let listed = fields.list("shutdownGracePeriodByPodPriority", report);
        for (item, path) in listed.unwrap_or_default() {
            let mut of = Fields::new(item, path, report);
            let priority = of.integer("priority", report).unwrap_or(0);
            let seconds = of.long("shutdownGracePeriodSeconds", report).unwrap_or(0);
            of.finish(report);
            self.shutdown.by_priority.push((priority, seconds));
        }
        rules::shutdown(&self.shutdown, fields, report);
    }

    fn take_cgroups(&mut self, fields: &mut Fields, report: &mut Report) {
        const DRIVER: &str = "cgroupDriver";
        match fields.text(DRIVER, report) {
            None | Some("" | "cgroupfs") => {}
            Some("systemd") => self.cgroup_driver = CgroupDriver::Systemd,
            Some(other) => {
                report
                    .errors
                    .not_supported(&fields.at(DRIVER), other, &["cgroupfs", "systemd"]);
            }
        }
        self.cpu_cfs_quota = fields.boolean("cpuCFSQuota", report).unwrap_or(true);
        const PERIOD: &str = "cpuCFSQuotaPeriod";
        if let Some(period) = fields.duration(PERIOD, report) {
            let bounds = SignedDuration::from_millis(1)..=SignedDuration::from_secs(1);
            if !bounds.contains(&period) {
                let shown = rules::go(period);
                let words = "must be between 1ms and 1sec, inclusive";
                report.errors.invalid(&fields.at(PERIOD), shown.as_str(), words);
            }
            self.cpu_cfs_quota_period = period;
        }
    }
}

#[cfg(test)]
mod fields_tests;
#[cfg(test)]
mod tests;
