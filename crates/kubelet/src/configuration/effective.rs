//! A node's effective settings as a KubeletConfiguration (`/configz`).
//!
//! The values are what the kubelet does, not what the file says: a field without effect has the value that matches knarr's
//! behaviour, or is left out if there is none. Read again, the result is the same.

use serde_json::{Map, Value, json};

use super::rules::go;
use super::{API_VERSION, CgroupDriver, KIND, KubeletConfiguration};
use crate::eviction::Signal;
use crate::eviction::threshold::{self, Threshold};

/// Settings that come from the command line and the host, not from a file.
#[derive(Clone, Copy, Debug)]
pub struct EnvironmentSettings<'a> {
    /// The address on which the kubelet listens.
    pub address: &'a str,
    pub port: u16,
    /// The endpoint of its containerd.
    pub runtime_endpoint: &'a str,
}

impl KubeletConfiguration {
    pub fn effective(&self, environment: EnvironmentSettings) -> Value {
        let mut shown = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "address": environment.address,
            "port": environment.port,
            "containerRuntimeEndpoint": environment.runtime_endpoint,
            "maxPods": self.max_pods,
            "podPidsLimit": self.pod_pids_limit.map_or(json!(-1), |n| json!(n)),
            "fileCheckFrequency": go(self.file_check_frequency),
            "nodeStatusUpdateFrequency": go(self.node_status_update_frequency),
            "nodeStatusReportFrequency": go(self.node_status_report_frequency),
            "nodeLeaseDurationSeconds": self.node_lease_duration_seconds,
            "nodeStatusMaxImages": self.node_status_max_images.map_or(json!(-1), |n| json!(n)),
            "registerNode": self.register_node,
            "imageGCHighThresholdPercent": self.image_gc.high_percent,
            "imageGCLowThresholdPercent": self.image_gc.low_percent,
            "imageMinimumGCAge": go(self.image_gc.min_age),
            "imageMaximumGCAge": go(self.image_gc.max_age),
            "containerLogMaxSize": bytes(self.container_logs.max_bytes),
            "containerLogMaxFiles": self.container_logs.max_files,
            "containerLogMonitorInterval": go(self.container_logs.interval),
            "shutdownGracePeriod": go(self.shutdown.grace),
            "shutdownGracePeriodCriticalPods": go(self.shutdown.critical),
            "crashLoopBackOff": {"maxContainerRestartPeriod": go(self.max_container_restart_period)},
            "cgroupDriver": match self.cgroup_driver {
                CgroupDriver::Cgroupfs => "cgroupfs",
                CgroupDriver::Systemd => "systemd",
            },
            "enforceNodeAllocatable": [if self.enforces_allocatable { "pods" } else { "none" }],
            "cpuCFSQuota": self.cpu_cfs_quota,
            "cpuCFSQuotaPeriod": go(self.cpu_cfs_quota_period),
            "enableSystemLogHandler": self.system_log_handler,
            "enableDebuggingHandlers": self.debugging_handlers,
            "seccompDefault": self.seccomp_default,
            "localStorageCapacityIsolation": self.eviction.local_storage_capacity_isolation,
            "evictionPressureTransitionPeriod": go(self.eviction.pressure_transition_period),
        });
        if let Value::Object(fields) = &mut shown {
            self.add_optional_fields(fields);
            self.add_eviction(fields);
            self.resource_managers.add_to(fields);
            add_fixed_fields(fields);
        }
        shown
    }

    /// Fields that are left out if they are not set.
    fn add_optional_fields(&self, fields: &mut Map<String, Value>) {
        let mut add = |name: &str, value: Value| {
            let is_empty = match &value {
                Value::Null => true,
                Value::String(text) => text.is_empty(),
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::Number(n) => n.as_i64() == Some(0),
                Value::Bool(_) => false,
            };
            if !is_empty {
                fields.insert(name.into(), value);
            }
        };
        add("staticPodPath", json!(self.static_pod_path));
        add("podLogsDir", json!(self.pod_logs_dir));
        add("podsPerCore", json!(self.pods_per_core));
        add("clusterDNS", json!(self.cluster_dns));
        add("clusterDomain", json!(self.cluster_domain));
        add("resolvConf", json!(self.resolv_conf));
        add("registerWithTaints", json!(self.register_with_taints));
        add("providerID", json!(self.provider_id));
        add("allowedUnsafeSysctls", json!(self.allowed_unsafe_sysctls));
        add("singleProcessOOMKill", json!(self.single_process_oom_kill));
        for (name, reserved) in [
            ("systemReserved", &self.system_reserved),
            ("kubeReserved", &self.kube_reserved),
        ] {
            let amounts = reserved
                .iter()
                .map(|(resource, q)| (resource.clone(), json!(q.to_string())));
            add(name, amounts.collect());
        }
        let by_priority = self.shutdown.by_priority.iter();
        let by_priority = by_priority
            .map(|(priority, seconds)| json!({"priority": priority, "shutdownGracePeriodSeconds": seconds}));
        add("shutdownGracePeriodByPodPriority", by_priority.collect());
        match self.image_pulls {
            None => {}
            Some(1) => add("serializeImagePulls", json!(true)),
            // Not limited.
            Some(u32::MAX) => add("serializeImagePulls", json!(false)),
            Some(n) => {
                add("serializeImagePulls", json!(false));
                add("maxParallelImagePulls", json!(n));
            }
        }
    }

    fn add_eviction(&self, fields: &mut Map<String, Value>) {
        let configured = || {
            let all = self.eviction.thresholds.iter();
            // It follows from memory.available.
            all.filter(|t| t.signal != Signal::AllocatableMemoryAvailable)
        };
        let map = |of: &mut dyn Iterator<Item = (&Threshold, String)>| -> Value {
            of.map(|(t, text)| (t.signal.name().to_string(), json!(text)))
                .collect()
        };
        let amounts = |hard| {
            configured()
                .filter(move |t| t.is_hard() == hard)
                .map(|t| (t, text(&t.value)))
        };
        // An empty mapping means no thresholds, which is not the default.
        fields.insert("evictionHard".into(), map(&mut amounts(true)));
        let soft = configured().filter(|t| !t.is_hard());
        let reclaimed = configured().filter_map(|t| Some((t, text(t.min_reclaim.as_ref()?))));
        for (name, value) in [
            ("evictionSoft", map(&mut amounts(false))),
            (
                "evictionSoftGracePeriod",
                map(&mut soft.map(|t| (t, go(t.grace_period)))),
            ),
            ("evictionMinimumReclaim", map(&mut reclaimed.into_iter())),
        ] {
            if value.as_object().is_some_and(|map| !map.is_empty()) {
                fields.insert(name.into(), value);
            }
        }
        if self.eviction.max_pod_grace_seconds != 0 {
            let seconds = self.eviction.max_pod_grace_seconds;
            fields.insert("evictionMaxPodGracePeriod".into(), json!(seconds));
        }
    }
}

/// Fields whose value does not depend on the settings.
fn add_fixed_fields(fields: &mut Map<String, Value>) {
    let Value::Object(always) = json!({
        "enableServer": true,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {}},
        "authorization": {"mode": "Webhook", "webhook": {}},
        "rotateCertificates": true,
        "serverTLSBootstrap": true,
        "tlsMinVersion": "VersionTLS12",
        "healthzPort": 0,
        "enableProfilingHandler": false,
        "enableDebugFlagsHandler": false,
        "cgroupsPerQOS": true,
        "cgroupRoot": "/",
        "memoryReservationPolicy": "None",
        "memorySwap": {},
        "hairpinMode": "hairpin-veth",
        "failSwapOn": false,
        "failCgroupV1": false,
        "makeIPTablesUtilChains": false,
        "enableControllerAttachDetach": true,
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "containerLogMaxWorkers": 1,
        "contentType": "application/json",
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "mergeDefaultEvictionSettings": false,
        "enableSystemLogQuery": false,
        "oomScoreAdj": 0,
    }) else {
        return;
    };
    fields.extend(always);
}

/// A threshold's value as in a file.
fn text(value: &threshold::Value) -> String {
    match value {
        threshold::Value::Quantity(quantity) => quantity.to_string(),
        threshold::Value::Share(share) => {
            // The percentage is stored as f32, whose product has more digits.
            let percent = (f64::from(*share) * 1e6).round() / 1e4;
            format!("{percent}%")
        }
    }
}

pub(super) fn bytes(count: u64) -> String {
    use knarr_apimachinery::quantity::{Notation, Quantity};
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    Quantity::from_value(count, Notation::BinarySi).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    const ENVIRONMENT: EnvironmentSettings<'static> = EnvironmentSettings {
        address: "10.0.0.1",
        port: 10250,
        runtime_endpoint: "unix:///run/containerd.sock",
    };

    fn shown(document: &Value) -> Value {
        let mut document = document.clone();
        document["apiVersion"] = json!(API_VERSION);
        document["kind"] = json!(KIND);
        read(&document).unwrap().effective(ENVIRONMENT)
    }

    #[test]
    fn l13_the_settings_without_a_file_are_v1_36s_defaults() {
        let shown = KubeletConfiguration::default().effective(ENVIRONMENT);
        for (name, value) in [
            ("maxPods", json!(110)),
            ("podPidsLimit", json!(-1)),
            ("fileCheckFrequency", json!("20s")),
            ("nodeStatusUpdateFrequency", json!("10s")),
            ("nodeStatusReportFrequency", json!("5m0s")),
            ("nodeLeaseDurationSeconds", json!(40)),
            ("imageMinimumGCAge", json!("2m0s")),
            ("imageMaximumGCAge", json!("0s")),
            ("containerLogMaxSize", json!("10Mi")),
            ("containerLogMaxFiles", json!(5)),
            ("cpuCFSQuotaPeriod", json!("100ms")),
            ("crashLoopBackOff", json!({"maxContainerRestartPeriod": "5m0s"})),
            ("evictionPressureTransitionPeriod", json!("5m0s")),
            ("enforceNodeAllocatable", json!(["pods"])),
            (
                "evictionHard",
                json!({
                    "memory.available": "100Mi",
                    "nodefs.available": "10%",
                    "nodefs.inodesFree": "5%",
                    "imagefs.available": "15%",
                    "imagefs.inodesFree": "5%",
                }),
            ),
            ("address", json!("10.0.0.1")),
            ("rotateCertificates", json!(true)),
            ("authorization", json!({"mode": "Webhook", "webhook": {}})),
        ] {
            assert_eq!(shown[name], value, "{name}");
        }
        assert_eq!(shown.get("evictionSoft"), None);
    }

    #[test]
    fn l13_the_effective_settings_read_again_are_the_same() {
        for document in [
            json!({}),
            json!({"evictionHard": {}}),
            json!({"maxParallelImagePulls": 3}),
            json!({"serializeImagePulls": false}),
            json!({"serializeImagePulls": true}),
            json!({
                "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                "cpuManagerReconcilePeriod": "5s",
                "reservedSystemCPUs": "0,2-3",
                "systemReserved": {"cpu": "3"},
                "memoryManagerPolicy": "Static",
                "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}],
                "topologyManagerPolicy": "single-numa-node",
                "topologyManagerScope": "pod",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            }),
            json!({"shutdownGracePeriodByPodPriority": [
                {"priority": 0, "shutdownGracePeriodSeconds": 10},
                {"priority": 1000, "shutdownGracePeriodSeconds": 20},
            ]}),
            json!({
                "staticPodPath": "/manifests",
                "fileCheckFrequency": "5s",
                "podLogsDir": "/logs",
                "maxPods": 20,
                "podsPerCore": 4,
                "podPidsLimit": 100,
                "clusterDNS": ["10.0.0.10"],
                "clusterDomain": "example.local",
                "resolvConf": "/etc/resolv.conf",
                "registerNode": false,
                "registerWithTaints": [{"key": "a", "effect": "NoSchedule"}],
                "providerID": "x://y",
                "systemReserved": {"cpu": "100m", "memory": "1Gi"},
                "kubeReserved": {"pid": "100"},
                "evictionHard": {"memory.available": "1Gi", "nodefs.available": "12.5%", "pid.available": "33%"},
                "evictionSoft": {"memory.available": "2Gi"},
                "evictionSoftGracePeriod": {"memory.available": "1m30s"},
                "evictionMinimumReclaim": {"nodefs.available": "1Gi"},
                "evictionMaxPodGracePeriod": 30,
                "evictionPressureTransitionPeriod": "1m",
                "imageGCHighThresholdPercent": 70,
                "imageGCLowThresholdPercent": 60,
                "imageMaximumGCAge": "48h",
                "containerLogMaxSize": "1500k",
                "containerLogMaxFiles": 3,
                "shutdownGracePeriod": "30s",
                "shutdownGracePeriodCriticalPods": "10s",
                "crashLoopBackOff": {"maxContainerRestartPeriod": "20s"},
                "cgroupDriver": "systemd",
                "enforceNodeAllocatable": ["none"],
                "cpuCFSQuota": false,
                "enableSystemLogHandler": false,
                "enableDebuggingHandlers": false,
                "seccompDefault": true,
                "allowedUnsafeSysctls": ["net.*"],
                "singleProcessOOMKill": true,
                "nodeStatusMaxImages": -1,
                "nodeStatusUpdateFrequency": "4s",
                "localStorageCapacityIsolation": false,
            }),
        ] {
            let once = shown(&document);
            let configured = document.as_object().unwrap();
            let as_configured = |name: &str| match name {
                // Another notation of the same value.
                "evictionPressureTransitionPeriod" => json!("1m0s"),
                "imageMaximumGCAge" => json!("48h0m0s"),
                "containerLogMaxSize" => json!("1500000"),
                name => configured[name].clone(),
            };
            for name in configured.keys() {
                assert_eq!(once[name], as_configured(name), "{name}");
            }
            assert_eq!(shown(&once), once);
        }
    }
}
