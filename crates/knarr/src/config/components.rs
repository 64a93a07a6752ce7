//! Configuration files of components (KubeletConfiguration, KubeSchedulerConfiguration), and the flags that override them.

use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_control::node_lifecycle::{EvictionRates, LEASE_SECONDS, Lifecycle};
use knarr_control::scheduler_config::{self, KubeSchedulerConfiguration};
use knarr_node::kubelet::configuration::{KubeletConfiguration, registration};
use serde_json::Value;

use super::Flags;
use super::reader::Reader;
use super::value::ValueError;

impl Reader {
    /// The kubelet's configuration, from its file and from flags; errors of the file are errors of this configuration.
    pub(super) fn kubelet(&mut self, flags: &Flags) -> KubeletConfiguration {
        let manifests = &flags.pod_manifest_path;
        let file = self.get(
            "kubeletConfig",
            "--kubelet-config",
            &flags.kubelet_config,
            "",
            |s| Ok((!s.is_empty()).then(|| s.to_string())),
        );
        let manifests: Option<String> =
            self.get("podManifestPath", "--pod-manifest-path", manifests, "", |s| {
                Ok((!s.is_empty()).then(|| s.to_string()))
            });
        let mut kubelet = match file {
            Some(file) => self.kubelet_file(&file),
            None => KubeletConfiguration::default(),
        };
        if manifests.is_some() {
            kubelet.static_pod_path = manifests;
        }
        kubelet.node_labels = self.get("nodeLabels", "--node-labels", &flags.node_labels, "", |s| {
            Ok(registration::labels(s)?)
        });
        let taints = self.get(
            "registerWithTaints",
            "--register-with-taints",
            &flags.register_with_taints,
            "",
            |s| Ok(registration::taints(s)?),
        );
        if !taints.is_empty() {
            kubelet.register_with_taints = taints;
        }
        // The kubelet may run in another working directory.
        if let Some(path) = &mut kubelet.static_pod_path
            && let Ok(absolute) = std::path::absolute(&*path)
        {
            *path = absolute.display().to_string();
        }
        kubelet
    }

    pub(super) fn kubelet_file(&mut self, file: &str) -> KubeletConfiguration {
        let document = std::fs::read_to_string(file)
            .map_err(|e| format!("cannot be read: {e}"))
            .and_then(|text| match text.trim() {
                "" => Ok(Value::Null),
                _ => serde_saphyr::from_str::<Value>(&text).map_err(|e| e.to_string()),
            });
        let document = match document {
            Ok(document) => document,
            Err(why) => {
                self.errors.push(format!("{file}: {why}"));
                return KubeletConfiguration::default();
            }
        };
        knarr_node::kubelet::configuration::read(&document).unwrap_or_else(|errors| {
            let errors = errors.iter().map(|e| format!("{file}: {e}"));
            self.errors.extend(errors);
            KubeletConfiguration::default()
        })
    }

    /// The scheduler's configuration, from its file; errors of the file are errors of this configuration.
    pub(super) fn scheduler(&mut self, flag: &Option<String>) -> KubeSchedulerConfiguration {
        let file = self.get("schedulerConfig", "--scheduler-config", flag, "", |s| {
            Ok((!s.is_empty()).then(|| s.to_string()))
        });
        let Some(file) = file else {
            return KubeSchedulerConfiguration::default();
        };
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) => {
                self.errors.push(format!("{file}: cannot be read: {e}"));
                return KubeSchedulerConfiguration::default();
            }
        };
        scheduler_config::parse(&text).unwrap_or_else(|errors| {
            let errors = errors.iter().map(|e| format!("{file}: {e}"));
            self.errors.extend(errors);
            KubeSchedulerConfiguration::default()
        })
    }

    /// When a node is lost, and at what rate pods are evicted from lost nodes.
    pub(super) fn node_lifecycle(&mut self, flags: &Flags) -> Lifecycle {
        let seconds = self.get(
            "nodeMonitorGracePeriod",
            "--node-monitor-grace-period",
            &flags.node_monitor_grace_period,
            "40",
            |s| {
                s.parse().ok().filter(|n| *n >= LEASE_SECONDS).ok_or_else(|| {
                    ValueError::expected(format!(
                        "whole seconds, at least {LEASE_SECONDS}, the duration of a node's Lease"
                    ))
                })
            },
        );
        let rate = |s: &str| {
            let rate = s.parse().ok().filter(|r: &f64| r.is_finite() && *r >= 0.0);
            rate.ok_or_else(|| ValueError::expected("a number of nodes per second, such as 0.1"))
        };
        let rates = EvictionRates {
            node_eviction_rate: self.get(
                "nodeEvictionRate",
                "--node-eviction-rate",
                &flags.node_eviction_rate,
                "0.1",
                rate,
            ),
            secondary_node_eviction_rate: self.get(
                "secondaryNodeEvictionRate",
                "--secondary-node-eviction-rate",
                &flags.secondary_node_eviction_rate,
                "0.01",
                rate,
            ),
            large_cluster_size_threshold: self.get(
                "largeClusterSizeThreshold",
                "--large-cluster-size-threshold",
                &flags.large_cluster_size_threshold,
                "50",
                |s| s.parse().map_err(|_| ValueError::expected("a number of nodes")),
            ),
            unhealthy_zone_threshold: self.get(
                "unhealthyZoneThreshold",
                "--unhealthy-zone-threshold",
                &flags.unhealthy_zone_threshold,
                "0.55",
                |s| {
                    let part = s.parse().ok().filter(|p| (0.0..=1.0).contains(p));
                    part.ok_or_else(|| ValueError::expected("a fraction from 0 to 1"))
                },
            ),
        };
        Lifecycle {
            grace: SignedDuration::from_secs(seconds),
            rates,
        }
    }
}
