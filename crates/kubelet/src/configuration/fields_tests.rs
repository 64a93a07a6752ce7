//! Every field of KubeletConfiguration v1beta1 at v1.36, with a value that is not the default: none is ignored silently.

use serde_json::json;

use super::*;

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The field changes the node's behaviour.
    InForce,
    /// knarr always behaves like this.
    Always,
    /// Noted as without effect.
    Noted,
    /// An error with its path.
    Rejected,
}

use Outcome::{Always, InForce, Noted, Rejected};

fn outcome(name: &str, value: Value) -> Outcome {
    let mut document = json!({"apiVersion": API_VERSION, "kind": KIND});
    document[name] = value;
    match read(&document) {
        Err(errors) => {
            for error in errors.iter() {
                assert!(error.field.to_string().starts_with(name), "{name}: {error}");
                assert!(!error.to_string().contains("unknown field"), "{error}");
            }
            Rejected
        }
        Ok(read) if !read.notes.is_empty() => {
            assert!(
                read.notes.iter().all(|note| note.starts_with(name)),
                "{name}: {:?}",
                read.notes
            );
            assert_eq!(read.notes.len(), 1);
            Noted
        }
        Ok(read) if read != KubeletConfiguration::default() => InForce,
        Ok(_) => Always,
    }
}

fn fields() -> Vec<(&'static str, Value, Outcome)> {
    vec![
        ("enableServer", json!(false), Rejected),
        ("staticPodPath", json!("/etc/kubernetes/manifests"), InForce),
        ("podLogsDir", json!("/logs"), InForce),
        ("syncFrequency", json!("2m"), Noted),
        ("fileCheckFrequency", json!("5s"), InForce),
        ("httpCheckFrequency", json!("5s"), Noted),
        ("staticPodURL", json!("http://example.com/pods"), Rejected),
        ("staticPodURLHeader", json!({"a": ["b"]}), Noted),
        ("address", json!("10.0.0.1"), Noted),
        ("port", json!(10251), Noted),
        ("readOnlyPort", json!(10255), Noted),
        ("tlsCertFile", json!("/c"), Noted),
        ("tlsPrivateKeyFile", json!("/k"), Noted),
        ("tlsCipherSuites", json!(["TLS_AES_128_GCM_SHA256"]), Noted),
        ("tlsCurvePreferences", json!([29]), Noted),
        ("tlsMinVersion", json!("VersionTLS13"), Noted),
        ("rotateCertificates", json!(true), Always),
        ("serverTLSBootstrap", json!(false), Noted),
        ("authentication", json!({"anonymous": {"enabled": true}}), Noted),
        ("authorization", json!({"mode": "AlwaysAllow"}), Noted),
        ("registryPullQPS", json!(1), Noted),
        ("registryBurst", json!(1), Noted),
        (
            "imagePullCredentialsVerificationPolicy",
            json!("AlwaysVerify"),
            Noted,
        ),
        ("preloadedImagesVerificationAllowlist", json!(["a"]), Noted),
        ("eventRecordQPS", json!(1), Noted),
        ("eventBurst", json!(1), Noted),
        ("enableDebuggingHandlers", json!(false), InForce),
        ("enableContentionProfiling", json!(true), Noted),
        ("healthzPort", json!(10248), Noted),
        ("healthzBindAddress", json!("0.0.0.0"), Noted),
        ("oomScoreAdj", json!(-999), Noted),
        ("clusterDomain", json!("example.org"), InForce),
        ("clusterDNS", json!(["10.0.0.10"]), InForce),
        ("streamingConnectionIdleTimeout", json!("1h"), Noted),
        ("nodeStatusUpdateFrequency", json!("7s"), InForce),
        ("nodeStatusReportFrequency", json!("7m"), InForce),
        ("nodeLeaseDurationSeconds", json!(60), InForce),
        ("imageMinimumGCAge", json!("1m"), InForce),
        ("imageMaximumGCAge", json!("72h"), InForce),
        ("imageGCHighThresholdPercent", json!(90), InForce),
        ("imageGCLowThresholdPercent", json!(60), InForce),
        ("volumeStatsAggPeriod", json!("2m"), Noted),
        ("kubeletCgroups", json!("/kubelet"), Noted),
        ("systemCgroups", json!("/system"), Noted),
        ("cgroupRoot", json!("/elsewhere"), Rejected),
        ("cgroupsPerQOS", json!(false), Rejected),
        ("cgroupDriver", json!("systemd"), InForce),
        ("cpuManagerPolicy", json!("static"), Rejected),
        ("singleProcessOOMKill", json!(true), InForce),
        (
            "cpuManagerPolicyOptions",
            json!({"full-pcpus-only": "true"}),
            Rejected,
        ),
        ("cpuManagerReconcilePeriod", json!("1s"), InForce),
        ("memoryManagerPolicy", json!("Static"), Rejected),
        ("topologyManagerPolicy", json!("restricted"), InForce),
        ("topologyManagerScope", json!("pod"), InForce),
        ("topologyManagerPolicyOptions", json!({"a": "b"}), Rejected),
        ("qosReserved", json!({"memory": "50%"}), Rejected),
        ("runtimeRequestTimeout", json!("1m"), Noted),
        ("hairpinMode", json!("hairpin-veth"), Always),
        ("maxPods", json!(20), InForce),
        ("podCIDR", json!("10.0.0.0/24"), Noted),
        ("podPidsLimit", json!(100), InForce),
        ("resolvConf", json!("/etc/resolv.other"), InForce),
        ("runOnce", json!(true), Rejected),
        ("cpuCFSQuota", json!(false), InForce),
        ("cpuCFSQuotaPeriod", json!("10ms"), InForce),
        ("nodeStatusMaxImages", json!(-1), InForce),
        ("maxOpenFiles", json!(1000), Noted),
        ("contentType", json!("application/yaml"), Noted),
        ("kubeAPIQPS", json!(1), Noted),
        ("kubeAPIBurst", json!(1), Noted),
        ("serializeImagePulls", json!(false), InForce),
        ("maxParallelImagePulls", json!(3), InForce),
        ("evictionHard", json!({"memory.available": "5%"}), InForce),
        ("evictionSoft", json!({"memory.available": "5%"}), Rejected),
        (
            "evictionSoftGracePeriod",
            json!({"memory.available": "x"}),
            Rejected,
        ),
        ("evictionPressureTransitionPeriod", json!("1m"), InForce),
        ("evictionMaxPodGracePeriod", json!(10), InForce),
        (
            "evictionMinimumReclaim",
            json!({"memory.available": "1Gi"}),
            InForce,
        ),
        ("mergeDefaultEvictionSettings", json!(true), Always),
        ("podsPerCore", json!(5), InForce),
        ("enableControllerAttachDetach", json!(false), Rejected),
        ("protectKernelDefaults", json!(true), Noted),
        ("makeIPTablesUtilChains", json!(true), Noted),
        ("iptablesMasqueradeBit", json!(3), Noted),
        ("iptablesDropBit", json!(3), Noted),
        ("featureGates", json!({"A": true}), Noted),
        ("failSwapOn", json!(true), Noted),
        ("memorySwap", json!({"swapBehavior": "LimitedSwap"}), Rejected),
        ("containerLogMaxSize", json!("1Mi"), InForce),
        ("containerLogMaxFiles", json!(3), InForce),
        ("containerLogMaxWorkers", json!(3), Noted),
        ("containerLogMonitorInterval", json!("3s"), InForce),
        ("configMapAndSecretChangeDetectionStrategy", json!("Get"), Noted),
        ("systemReserved", json!({"cpu": "1"}), InForce),
        ("kubeReserved", json!({"cpu": "1"}), InForce),
        ("reservedSystemCPUs", json!("0-1"), InForce),
        ("showHiddenMetricsForVersion", json!("1.35"), Noted),
        ("systemReservedCgroup", json!("/system"), Noted),
        ("kubeReservedCgroup", json!("/kube"), Noted),
        ("enforceNodeAllocatable", json!(["kube-reserved"]), Rejected),
        ("allowedUnsafeSysctls", json!(["net.core.somaxconn"]), InForce),
        ("volumePluginDir", json!("/plugins"), Noted),
        ("providerID", json!("cloud://1"), InForce),
        ("kernelMemcgNotification", json!(true), Noted),
        ("logging", json!({"format": "json"}), Noted),
        ("enableSystemLogHandler", json!(false), InForce),
        ("enableSystemLogQuery", json!(true), Rejected),
        ("shutdownGracePeriod", json!("30s"), InForce),
        ("shutdownGracePeriodCriticalPods", json!("10s"), Rejected),
        (
            "shutdownGracePeriodByPodPriority",
            json!([{"priority": 1, "shutdownGracePeriodSeconds": 2}]),
            InForce,
        ),
        (
            "crashLoopBackOff",
            json!({"maxContainerRestartPeriod": "5s"}),
            InForce,
        ),
        ("reservedMemory", json!([{"numaNode": 0, "limits": {}}]), InForce),
        ("enableProfilingHandler", json!(true), Noted),
        ("enableDebugFlagsHandler", json!(true), Noted),
        ("seccompDefault", json!(true), InForce),
        ("memoryThrottlingFactor", json!(0.5), Noted),
        ("memoryReservationPolicy", json!("TieredReservation"), Rejected),
        (
            "registerWithTaints",
            json!([{"key": "a", "effect": "NoSchedule"}]),
            InForce,
        ),
        ("registerNode", json!(false), InForce),
        ("tracing", json!({"endpoint": "x"}), Noted),
        ("localStorageCapacityIsolation", json!(false), InForce),
        ("containerRuntimeEndpoint", json!("unix:///x"), Noted),
        ("imageServiceEndpoint", json!("unix:///x"), Noted),
        ("failCgroupV1", json!(true), Noted),
        ("userNamespaces", json!({"idsPerPod": 65536}), Noted),
    ]
}

#[test]
fn t8_no_field_of_the_type_is_passed_over_in_silence() {
    let mut wrong = Vec::new();
    for (name, value, want) in fields() {
        let got = outcome(name, value.clone());
        if got != want {
            wrong.push(format!("{name}: {value}: {got:?}, not {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // TypeMeta's two and these are all that v1beta1 has.
    assert_eq!(fields().len(), 125);
}

#[test]
fn l13_the_logs_directory_is_an_absolute_path() {
    for (directory, good) in [
        ("/var/log/pods", true),
        ("logs", false),
        ("/", false),
        ("/a/../b", false),
        ("/é", false),
    ] {
        let document = json!({"apiVersion": API_VERSION, "kind": KIND, "podLogsDir": directory});
        let read = read(&document);
        assert_eq!(read.is_ok(), good, "{directory}");
        if let Ok(read) = read {
            assert_eq!(read.pod_logs_dir.as_deref(), Some(directory));
        }
    }
}

#[test]
fn t8_policies_and_enforcements_that_are_what_knarr_does_are_taken() {
    for (name, value) in [
        ("cpuManagerPolicy", json!("none")),
        ("memoryManagerPolicy", json!("None")),
        ("topologyManagerPolicy", json!("none")),
        ("memorySwap", json!({"swapBehavior": "NoSwap"})),
        ("memorySwap", json!({})),
        ("enforceNodeAllocatable", json!(["pods"])),
        ("cgroupRoot", json!("/")),
        ("cgroupRoot", json!("")),
        ("cpuManagerReconcilePeriod", json!("0s")),
    ] {
        assert_eq!(outcome(name, value.clone()), Always, "{name}: {value}");
    }
    for (value, at) in [
        (json!(["pods", "none"]), "enforceNodeAllocatable[1]"),
        (json!(["pods", "pods"]), "enforceNodeAllocatable[1]"),
        (json!(["cpus"]), "enforceNodeAllocatable[0]"),
        (json!(["system-reserved"]), "enforceNodeAllocatable[0]"),
    ] {
        let document = json!({"apiVersion": API_VERSION, "kind": KIND, "enforceNodeAllocatable": value});
        let errors = read(&document).unwrap_err();
        let found: Vec<String> = errors.iter().map(|e| e.field.to_string()).collect();
        assert_eq!(found, [at], "{value}");
    }
}

#[test]
fn l4_policies_of_the_resource_managers_are_validated_with_the_kubelets_messages() {
    let errors = |mut document: Value| {
        document["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
        document["kind"] = json!("KubeletConfiguration");
        match super::read(&document) {
            Ok(_) => String::new(),
            Err(errors) => errors.to_string(),
        }
    };
    let reserved = |limits: Value| json!({"reservedMemory": [{"numaNode": 1, "limits": limits}]});
    for (document, message) in [
        (
            json!({"cpuManagerPolicy": "static"}),
            "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
        ),
        (
            json!({"cpuManagerPolicy": "dynamic"}),
            "unknown policy: \"dynamic\"",
        ),
        (
            json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
            "None policy: received unsupported options=map[full-pcpus-only:true]",
        ),
        (
            json!({"reservedSystemCPUs": "0-x"}),
            "unable to parse reservedSystemCPUs (--reserved-cpus) 0-x, error: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            json!({"reservedSystemCPUs": "0", "kubeReservedCgroup": "/kube"}),
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup",
        ),
        (
            json!({"memoryManagerPolicy": "Static"}),
            "[memorymanager] you should specify the system reserved memory",
        ),
        (
            reserved(json!({"cpu": "1"})),
            "the limit type \"cpu\" for NUMA node 1 is not supported, only [memory hugepages-<HugePageSize>] is accepted",
        ),
        (
            reserved(json!({"memory": "0"})),
            "reserved memory may not be zero for NUMA node 1 and resource \"memory\"",
        ),
        (
            json!({"topologyManagerPolicy": "best"}),
            "\"best\" must be one of: [\"none\" \"best-effort\" \"restricted\" \"single-numa-node\"]",
        ),
        (
            json!({"topologyManagerScope": "node"}),
            "\"node\" must be one of: \"container\", or \"pod\"",
        ),
        (
            json!({"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "4"}}),
            "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8",
        ),
    ] {
        let found = errors(document.clone());
        assert!(found.contains(message), "{document}: {found}");
    }
    let reserving = json!({"cpuManagerPolicy": "static", "systemReserved": {"cpu": "100m"}});
    assert_eq!(errors(reserving), "");
    let by_socket = |alpha: bool| {
        errors(json!({
            "cpuManagerPolicy": "static", "kubeReserved": {"cpu": "1"},
            "cpuManagerPolicyOptions": {"align-by-socket": "true"},
            "featureGates": {"CPUManagerPolicyAlphaOptions": alpha},
        }))
    };
    assert_eq!(by_socket(true), "");
    assert!(by_socket(false).contains("CPU Manager Policy Alpha-level Options not enabled"));
}
