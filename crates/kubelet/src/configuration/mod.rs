//! KubeletConfiguration v1beta1, read from a file as upstream's kubelet does.
//!
//! All errors of a file are reported, each with its path; an unknown field is an error. A field that is accepted and has no
//! effect is noted, so that the administrator sees it. Defaults are v1.36's.

mod effective;
pub mod registration;
mod resource_managers;
mod rules;
mod without_effect;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;
use serde_json::Value;

use crate::eviction;
use crate::eviction::threshold::{self, ThresholdFields};
pub use effective::EnvironmentSettings;
pub use resource_managers::ResourceManagers;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Settings of the image garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGc {
    /// Usage of the image filesystem above which images are deleted, …
    pub high_percent: u32,
    /// … until the usage is not above this.
    pub low_percent: u32,
    /// Younger images are not deleted.
    pub min_age: SignedDuration,
    /// Images that were unused for this long are always deleted; zero: never.
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

/// Settings of the container log rotation.
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

/// Settings of the graceful node shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    pub grace: SignedDuration,
    /// The part of it that is for critical pods.
    pub critical: SignedDuration,
    /// In place of both: grace periods in seconds, by the lowest priority that they apply to.
    pub by_priority: Vec<(i32, i64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

/// The settings of a kubelet. [`Default`] is a kubelet without a file.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletConfiguration {
    /// The file or directory of static pods; `None`: there are none.
    pub static_pod_path: Option<String>,
    /// The interval in which it is read again; changes are watched as well.
    pub file_check_frequency: SignedDuration,
    /// The directory of pods' logs; `None`: in the data directory.
    pub pod_logs_dir: Option<String>,
    pub max_pods: u32,
    /// The most pods for each core; 0: no such limit.
    pub pods_per_core: u32,
    /// The most processes of a pod; `None`: the node's limit.
    pub pod_pids_limit: Option<u64>,
    /// The most parallel image pulls; `None`: not set.
    pub image_pulls: Option<u32>,
    pub cluster_dns: Vec<String>,
    /// Empty: not set.
    pub cluster_domain: String,
    pub resolv_conf: Option<String>,
    pub node_status_update_frequency: SignedDuration,
    pub node_status_report_frequency: SignedDuration,
    pub node_lease_duration_seconds: i32,
    /// The most images in the node's status; `None`: all.
    pub node_status_max_images: Option<usize>,
    /// Whether the kubelet creates its Node object.
    pub register_node: bool,
    pub register_with_taints: Vec<Taint>,
    /// Set on the command line only.
    pub node_labels: BTreeMap<String, String>,
    pub provider_id: String,
    /// Resources that are not allocatable to pods.
    pub system_reserved: BTreeMap<String, Quantity>,
    pub kube_reserved: BTreeMap<String, Quantity>,
    pub resource_managers: ResourceManagers,
    pub eviction: eviction::Settings,
    pub image_gc: ImageGc,
    pub container_logs: ContainerLogs,
    pub shutdown: Shutdown,
    /// The longest back-off before a crashed container is restarted.
    pub max_container_restart_period: SignedDuration,
    pub cgroup_driver: CgroupDriver,
    /// Whether reservations are enforced on pods (`pods` in `enforceNodeAllocatable`).
    pub enforces_allocatable: bool,
    /// Whether CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: SignedDuration,
    /// Whether `/logs` is served.
    pub system_log_handler: bool,
    /// Whether logs, exec, attach and port-forward are served.
    pub debugging_handlers: bool,
    /// Whether containers without a seccomp profile get RuntimeDefault.
    pub seccomp_default: bool,
    /// Names of sysctls that pods may set in addition to the safe ones; a `*` at the end matches any suffix.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Whether the OOM killer kills single processes and not all of a container; `None`: the default of the cgroup version.
    pub single_process_oom_kill: Option<bool>,
    /// `path: message` for fields that were accepted and have no effect.
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

/// Reads the document of a file.
pub fn read(document: &Value) -> Result<KubeletConfiguration, ErrorList> {
    let mut report = Report::default();
    let mut configuration = KubeletConfiguration::default();
    let root = Path::default();
    if document.is_null() {
        let message = format!("the file is empty; expected a {KIND}");
        report.errors.required(&root, message);
    } else {
        let mut fields = Fields::new(document, root, &mut report);
        if is_ours(&mut fields, &mut report) {
            configuration.take(&mut fields, &mut report);
            without_effect::take(&mut fields, &mut report);
            fields.finish(&mut report);
        }
    }
    if !report.errors.is_empty() {
        return Err(report.errors);
    }
    configuration.notes = report.notes;
    Ok(configuration)
}

/// Whether kind and version match. The fields of other kinds are not read: each would be an error.
fn is_ours(fields: &mut Fields, report: &mut Report) -> bool {
    let mut good = true;
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let at = fields.at(name);
        match fields.text(name, report) {
            Some(found) if found == expected => continue,
            Some(found) => report.errors.not_supported(&at, found, &[expected]),
            None => report.errors.required(&at, format!("expected {expected}")),
        }
        good = false;
    }
    good
}

/// Zero counts as not set.
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
        // Negative or not set: the node's limit.
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
                    let message = "must be set between 1s and 300s";
                    report
                        .errors
                        .invalid(&of.at(NAME), rules::go(longest).as_str(), message);
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
            Some(n) if n.is_negative() => {
                report
                    .errors
                    .invalid(&fields.at(LEASE), n, "must be greater than 0")
            }
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
        let mut statements = ThresholdFields::default();
        let hard = fields.text_map("evictionHard", report);
        let merge = fields.boolean("mergeDefaultEvictionSettings", report) == Some(true);
        let is_set = hard.is_some();
        statements.hard = hard.unwrap_or_default();
        if !is_set || merge {
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
                let message = "must be a positive time duration greater than or equal to 3s";
                let shown = rules::go(interval);
                report
                    .errors
                    .invalid(&fields.at(INTERVAL), shown.as_str(), message);
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
                let message = "must be between 1ms and 1sec, inclusive";
                report.errors.invalid(&fields.at(PERIOD), shown.as_str(), message);
            }
            self.cpu_cfs_quota_period = period;
        }
    }
}

#[cfg(test)]
mod fields_tests;
#[cfg(test)]
mod tests;
