//! Configuration files of administrators.

use serde_json::json;

use super::*;

fn with(fields: Value) -> Value {
    let mut document = json!({"apiVersion": API_VERSION, "kind": KIND});
    for (name, value) in fields.as_object().unwrap() {
        document[name] = value.clone();
    }
    document
}

fn errors(fields: Value) -> Vec<String> {
    let errors = read(&with(fields)).unwrap_err();
    errors.iter().map(|e| e.field.to_string()).collect()
}

#[test]
fn t8_an_empty_file_has_v1_36s_defaults() {
    assert_eq!(read(&with(json!({}))).unwrap(), KubeletConfiguration::default());
}

#[test]
fn t8_fields_that_are_set_take_effect() {
    let read = read(&with(json!({
        "maxPods": 20, "podPidsLimit": 100, "serializeImagePulls": false,
        "evictionHard": {"memory.available": "5%"},
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1m30s"},
        "evictionPressureTransitionPeriod": "30s", "evictionMaxPodGracePeriod": 7,
        "imageGCHighThresholdPercent": 50, "imageGCLowThresholdPercent": 40, "imageMaximumGCAge": "48h",
        "containerLogMaxSize": "1Mi", "containerLogMaxFiles": 3,
        "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        "systemReserved": {"cpu": "100m", "memory": "200Mi"},
        "staticPodPath": "/etc/static", "cgroupDriver": "systemd",
        "registerWithTaints": [{"key": "a", "effect": "NoSchedule"}],
        "nodeStatusUpdateFrequency": "5s",
    })))
    .unwrap();
    assert_eq!(read.max_pods, 20);
    assert_eq!(read.pod_pids_limit, Some(100));
    assert_eq!(read.image_pulls, Some(u32::MAX));
    let thresholds: Vec<_> = read
        .eviction
        .thresholds
        .iter()
        .map(|t| (t.signal.name(), t.grace_period.as_secs()))
        .collect();
    let expected = [
        ("memory.available", 0),
        ("memory.available", 90),
        ("allocatableMemory.available", 0),
    ];
    assert_eq!(thresholds, expected);
    assert_eq!(read.eviction.max_pod_grace_seconds, 7);
    assert_eq!(read.image_gc.low_percent, 40);
    assert_eq!(read.container_logs.max_bytes, 1 << 20);
    assert_eq!(read.shutdown.critical.as_secs(), 10);
    assert_eq!(read.max_container_restart_period.as_secs(), 5);
    assert_eq!(read.system_reserved["cpu"].to_string(), "100m");
    assert_eq!(read.static_pod_path.as_deref(), Some("/etc/static"));
    assert_eq!(read.cgroup_driver, CgroupDriver::Systemd);
    assert_eq!(read.register_with_taints[0].key, "a");
    assert_eq!(read.node_status_report_frequency.as_secs(), 5);
    assert!(read.notes.is_empty(), "{:?}", read.notes);
}

#[test]
fn t8_hard_thresholds_replace_the_defaults_unless_they_are_to_be_merged() {
    let names = |fields| -> Vec<&str> {
        let read = read(&with(fields)).unwrap();
        let thresholds = read.eviction.thresholds.iter();
        thresholds.map(|t| t.signal.name()).collect()
    };
    assert_eq!(
        names(json!({"evictionHard": {"pid.available": "5%"}})),
        ["pid.available"]
    );
    let merged =
        names(json!({"evictionHard": {"pid.available": "5%"}, "mergeDefaultEvictionSettings": true}));
    assert_eq!(merged.len(), 7, "{merged:?}");
    assert_eq!(
        names(json!({"evictionHard": {"memory.available": "0%"}})),
        [""; 0]
    );
}

#[test]
fn t8_every_error_is_reported_with_its_path() {
    for (fields, want) in [
        (json!({"maxPodz": 1}), "maxPodz"),
        (json!({"maxPods": "many"}), "maxPods"),
        (json!({"maxPods": -1}), "maxPods"),
        (
            json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "301s"}}),
            "crashLoopBackOff.maxContainerRestartPeriod",
        ),
        (
            json!({"crashLoopBackOff": {"most": "3s"}}),
            "crashLoopBackOff.most",
        ),
        (
            json!({"imageGCHighThresholdPercent": 70}),
            "imageGCLowThresholdPercent",
        ),
        (
            json!({"imageGCHighThresholdPercent": 101}),
            "imageGCHighThresholdPercent",
        ),
        (json!({"imageMaximumGCAge": "1m"}), "imageMaximumGCAge"),
        (json!({"containerLogMaxSize": "big"}), "containerLogMaxSize"),
        (json!({"containerLogMaxFiles": 1}), "containerLogMaxFiles"),
        (
            json!({"containerLogMonitorInterval": "2s"}),
            "containerLogMonitorInterval",
        ),
        (
            json!({"shutdownGracePeriod": "5s", "shutdownGracePeriodCriticalPods": "6s"}),
            "shutdownGracePeriodCriticalPods",
        ),
        (json!({"shutdownGracePeriod": "500ms"}), "shutdownGracePeriod"),
        (json!({"containerLogMaxSize": "0"}), "containerLogMaxSize"),
        (
            json!({"nodeLeaseDurationSeconds": -1}),
            "nodeLeaseDurationSeconds",
        ),
        (json!({"maxParallelImagePulls": 0}), "maxParallelImagePulls"),
        (json!({"systemReserved": {"cpu": "-1"}}), "systemReserved[cpu]"),
        (
            json!({"allowedUnsafeSysctls": ["net.core.Somaxconn"]}),
            "allowedUnsafeSysctls[0]",
        ),
        (
            json!({"shutdownGracePeriod": "5s", "shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 2}]}),
            "shutdownGracePeriodByPodPriority",
        ),
        (
            json!({"serializeImagePulls": true, "maxParallelImagePulls": 2}),
            "maxParallelImagePulls",
        ),
        (json!({"cgroupDriver": "runit"}), "cgroupDriver"),
        (json!({"systemReserved": {"gpu": "1"}}), "systemReserved[gpu]"),
        (
            json!({"registerWithTaints": [{"key": "a", "effect": "Never"}]}),
            "registerWithTaints[0].effect",
        ),
        (
            json!({"evictionHard": {"memory.available": true}}),
            "evictionHard[memory.available]",
        ),
        (json!({"hairpinMode": 3}), "hairpinMode"),
    ] {
        assert_eq!(errors(fields.clone()), [want], "{fields}");
    }
    assert_eq!(
        errors(json!({"maxPods": -1, "nope": 1, "cgroupDriver": ""})),
        ["maxPods", "nope"]
    );
}

#[test]
fn t8_an_error_about_a_value_names_those_that_are_supported() {
    for (fields, message) in [
        (json!({"enableServer": false}), "only true is supported: "),
        (
            json!({"hairpinMode": "bridge"}),
            "only hairpin-veth or promiscuous-bridge or none is supported: ",
        ),
        (
            json!({"staticPodURL": "http://example.com"}),
            "is not supported: ",
        ),
        (
            json!({"enforceNodeAllocatable": ["system-reserved"]}),
            "only pods is supported: ",
        ),
        (
            json!({"enforceNodeAllocatable": ["cpus"]}),
            "supported values: \"pods\", ",
        ),
    ] {
        let errors = read(&with(fields.clone())).unwrap_err().to_string();
        assert!(errors.contains(message), "{fields}: {errors}");
    }
}

#[test]
fn t8_values_at_the_limits_are_accepted() {
    let read = |fields| read(&with(fields)).unwrap();
    for (fields, pulls) in [
        (json!({"maxParallelImagePulls": 1}), 1),
        (
            json!({"maxParallelImagePulls": 1, "serializeImagePulls": true}),
            1,
        ),
        (
            json!({"maxParallelImagePulls": 4, "serializeImagePulls": false}),
            4,
        ),
    ] {
        assert_eq!(read(fields.clone()).image_pulls, Some(pulls), "{fields}");
    }
    let grace = read(json!({"shutdownGracePeriod": "1s"})).shutdown.grace;
    assert_eq!(grace.as_secs(), 1);
    for none in [0, -1] {
        assert_eq!(read(json!({"podPidsLimit": none})).pod_pids_limit, None, "{none}");
    }
}

#[test]
fn t8_other_kinds_are_rejected_without_errors_about_their_fields() {
    let errors = read(&json!({"apiVersion": "v1", "kind": "Pod", "spec": {}})).unwrap_err();
    let fields: Vec<_> = errors.iter().map(|e| e.field.to_string()).collect();
    assert_eq!(fields, ["apiVersion", "kind"]);
    assert!(read(&Value::Null).is_err());
}

#[test]
fn t8_fields_without_effect_are_accepted_and_noted() {
    let read = read(&with(
        json!({"port": 10250, "featureGates": {"A": true}, "logging": {"format": "json"}}),
    ));
    let notes = read.unwrap().notes;
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(
        notes[0].starts_with("port: has no effect: --kubelet-listen"),
        "{notes:?}"
    );
}
