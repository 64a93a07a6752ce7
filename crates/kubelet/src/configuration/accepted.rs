//! Fields that are read and change nothing here: their types are checked, and a note says that they do nothing.

use knarr_api::document::{Fields, Report};

#[derive(Clone, Copy)]
enum Type {
    Boolean,
    Integer,
    Number,
    Text,
    Texts,
    Duration,
    /// A mapping that is not looked into.
    Mapping,
    List,
}

use Type::{Boolean, Duration, Integer, List, Mapping, Number, Text, Texts};

/// Settled elsewhere in knarr, and where.
const ELSEWHERE: [(&str, Type, &str); 14] = [
    ("address", Text, "--kubelet-listen says where the kubelet listens"),
    ("port", Integer, "--kubelet-listen says where the kubelet listens"),
    ("podCIDR", Text, "--pod-cidr says which addresses pods get"),
    ("podLogsDir", Text, "logs are kept below the data directory"),
    (
        "containerRuntimeEndpoint",
        Text,
        "knarr runs a containerd of its own",
    ),
    ("imageServiceEndpoint", Text, "knarr runs a containerd of its own"),
    ("tlsCertFile", Text, "the kubelet's certificate is knarr's own"),
    (
        "tlsPrivateKeyFile",
        Text,
        "the kubelet's certificate is knarr's own",
    ),
    (
        "rotateCertificates",
        Boolean,
        "certificates are renewed by themselves",
    ),
    (
        "serverTLSBootstrap",
        Boolean,
        "certificates are renewed by themselves",
    ),
    (
        "authentication",
        Mapping,
        "only the cluster's own certificates are let in",
    ),
    (
        "authorization",
        Mapping,
        "only the cluster's own certificates are let in",
    ),
    ("logging", Mapping, "--log and --log-format say what is logged"),
    ("registerNode", Boolean, "the node always registers itself"),
];

const WITHOUT_EFFECT: [(&str, Type); 68] = [
    ("enableServer", Boolean),
    ("syncFrequency", Duration),
    ("httpCheckFrequency", Duration),
    ("staticPodURL", Text),
    ("staticPodURLHeader", Mapping),
    ("readOnlyPort", Integer),
    ("tlsCipherSuites", Texts),
    ("tlsCurvePreferences", List),
    ("tlsMinVersion", Text),
    ("registryPullQPS", Integer),
    ("registryBurst", Integer),
    ("imagePullCredentialsVerificationPolicy", Text),
    ("preloadedImagesVerificationAllowlist", Texts),
    ("eventRecordQPS", Integer),
    ("eventBurst", Integer),
    ("enableDebuggingHandlers", Boolean),
    ("enableContentionProfiling", Boolean),
    ("healthzPort", Integer),
    ("healthzBindAddress", Text),
    ("oomScoreAdj", Integer),
    ("streamingConnectionIdleTimeout", Duration),
    ("volumeStatsAggPeriod", Duration),
    ("kubeletCgroups", Text),
    ("systemCgroups", Text),
    ("cgroupRoot", Text),
    ("cgroupsPerQOS", Boolean),
    ("cpuManagerPolicy", Text),
    ("singleProcessOOMKill", Boolean),
    ("cpuManagerPolicyOptions", Mapping),
    ("cpuManagerReconcilePeriod", Duration),
    ("memoryManagerPolicy", Text),
    ("topologyManagerPolicy", Text),
    ("topologyManagerScope", Text),
    ("topologyManagerPolicyOptions", Mapping),
    ("qosReserved", Mapping),
    ("runtimeRequestTimeout", Duration),
    ("hairpinMode", Text),
    ("maxOpenFiles", Integer),
    ("contentType", Text),
    ("kubeAPIQPS", Integer),
    ("kubeAPIBurst", Integer),
    ("enableControllerAttachDetach", Boolean),
    ("protectKernelDefaults", Boolean),
    ("makeIPTablesUtilChains", Boolean),
    ("iptablesMasqueradeBit", Integer),
    ("iptablesDropBit", Integer),
    ("featureGates", Mapping),
    ("failSwapOn", Boolean),
    ("memorySwap", Mapping),
    ("containerLogMaxWorkers", Integer),
    ("configMapAndSecretChangeDetectionStrategy", Text),
    ("reservedSystemCPUs", Text),
    ("showHiddenMetricsForVersion", Text),
    ("systemReservedCgroup", Text),
    ("kubeReservedCgroup", Text),
    ("allowedUnsafeSysctls", Texts),
    ("volumePluginDir", Text),
    ("kernelMemcgNotification", Boolean),
    ("enableSystemLogQuery", Boolean),
    ("runOnce", Boolean),
    ("reservedMemory", List),
    ("enableProfilingHandler", Boolean),
    ("enableDebugFlagsHandler", Boolean),
    ("seccompDefault", Boolean),
    ("memoryThrottlingFactor", Number),
    ("memoryReservationPolicy", Text),
    ("tracing", Mapping),
    ("userNamespaces", Mapping),
];

/// On cgroup v1 knarr works as on v2, whatever this says.
const FAIL_CGROUP_V1: &str = "failCgroupV1";

pub(super) fn take(fields: &mut Fields, report: &mut Report) {
    for (name, type_, why) in ELSEWHERE {
        if is_set(fields, name, type_, report) {
            report.note(&fields.at(name), &format!("has no effect: {why}"));
        }
    }
    for (name, type_) in WITHOUT_EFFECT {
        if is_set(fields, name, type_, report) {
            report.note(&fields.at(name), "has no effect here");
        }
    }
    if is_set(fields, FAIL_CGROUP_V1, Boolean, report) {
        report.note(
            &fields.at(FAIL_CGROUP_V1),
            "has no effect: both versions of cgroups are worked with",
        );
    }
}

fn is_set(fields: &mut Fields, name: &'static str, type_: Type, report: &mut Report) -> bool {
    match type_ {
        Boolean => fields.boolean(name, report).is_some(),
        Integer => fields.long(name, report).is_some(),
        Number => fields.number(name, report).is_some(),
        Text => fields.text(name, report).is_some(),
        Texts => !fields.texts(name, report).is_empty(),
        Duration => fields.duration(name, report).is_some(),
        List => fields.list(name, report).is_some(),
        Mapping => fields.object(name, report).is_some(),
    }
}
