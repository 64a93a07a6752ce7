//! Fields without effect. Each is read, and its type is checked. A value that knarr's behaviour matches is accepted; other
//! values are either noted as without effect, or rejected with their path if the administrator would rely on them.

use knarr_apimachinery::document::{Fields, Report};
use serde_json::Value;

#[derive(Clone, Copy)]
enum Type {
    Boolean,
    Integer,
    Number,
    Text,
    Texts,
    Duration,
    /// A mapping whose fields are not read.
    Mapping,
    List,
}

use Type::{Boolean, Duration, Integer, List, Mapping, Number, Text, Texts};

/// A value that matches what knarr does.
#[derive(Clone, Copy)]
enum Supported {
    Is(bool),
    Count(i64),
    Literal(&'static str),
}

use Supported::{Count, Is, Literal};

impl Supported {
    fn is(self, value: &Value) -> bool {
        match self {
            Is(supported) => value.as_bool() == Some(supported),
            Count(supported) => value.as_i64() == Some(supported),
            Literal(supported) => value.as_str() == Some(supported),
        }
    }

    fn to_text(self) -> String {
        match self {
            Is(supported) => supported.to_string(),
            Count(supported) => supported.to_string(),
            Literal(supported) => supported.to_string(),
        }
    }
}

/// Field, type, the values that are accepted, and the reason why others have no effect.
type Row = (&'static str, Type, &'static [Supported], &'static str);

const LISTEN: &str = "--kubelet-listen sets the address and the port";
const CONTAINERD: &str = "knarr runs its own containerd";
const OWN_CERTIFICATE: &str = "knarr manages the kubelet's certificates";
const RENEWED: &str = "certificates are always rotated";
const AUTHENTICATION: &str = "only client certificates of the cluster are accepted";
const HEALTH: &str = "/healthz is served on the kubelet's port";
const TLS: &str = "rustls chooses among safe ones";
const PULLS: &str = "maxParallelImagePulls limits image pulls";
const EVENTS: &str = "events are limited for each involved object";
const REQUESTS: &str = "the API server's flow control limits the kubelet's requests";
const OWN_CGROUP: &str = "knarr stays in the cgroup in which it was started";
const NO_PROFILES: &str = "these handlers do not exist";
const NO_IPTABLES: &str = "the kubelet does not create iptables rules";

/// Fields whose other values have no effect, which is noted.
const IGNORED_FIELDS: &[Row] = &[
    ("address", Text, &[], LISTEN),
    ("port", Integer, &[Count(0)], LISTEN),
    ("podCIDR", Text, &[], "--pod-cidr sets the addresses of pods"),
    ("containerRuntimeEndpoint", Text, &[], CONTAINERD),
    ("imageServiceEndpoint", Text, &[], CONTAINERD),
    ("tlsCertFile", Text, &[], OWN_CERTIFICATE),
    ("tlsPrivateKeyFile", Text, &[], OWN_CERTIFICATE),
    ("rotateCertificates", Boolean, &[Is(true)], RENEWED),
    ("serverTLSBootstrap", Boolean, &[Is(true)], RENEWED),
    ("authentication", Mapping, &[], AUTHENTICATION),
    ("authorization", Mapping, &[], AUTHENTICATION),
    (
        "logging",
        Mapping,
        &[],
        "--log and --log-format configure logging",
    ),
    (
        "syncFrequency",
        Duration,
        &[],
        "pods are synced when something about them changes",
    ),
    ("httpCheckFrequency", Duration, &[], "staticPodURL is not read"),
    ("staticPodURLHeader", Mapping, &[], "staticPodURL is not read"),
    ("readOnlyPort", Integer, &[Count(0)], "there is no read-only port"),
    ("tlsCipherSuites", Texts, &[], TLS),
    ("tlsCurvePreferences", List, &[], TLS),
    (
        "tlsMinVersion",
        Text,
        &[Literal("VersionTLS12")],
        "TLS 1.2 and 1.3 are supported",
    ),
    ("registryPullQPS", Integer, &[Count(0)], PULLS),
    ("registryBurst", Integer, &[Count(0)], PULLS),
    (
        "imagePullCredentialsVerificationPolicy",
        Text,
        &[Literal("NeverVerify")],
        "images on the node are used without verifying pull credentials",
    ),
    (
        "preloadedImagesVerificationAllowlist",
        Texts,
        &[],
        "images on the node are used without verifying pull credentials",
    ),
    ("eventRecordQPS", Integer, &[Count(0)], EVENTS),
    ("eventBurst", Integer, &[Count(0)], EVENTS),
    ("enableContentionProfiling", Boolean, &[Is(false)], NO_PROFILES),
    ("enableProfilingHandler", Boolean, &[Is(false)], NO_PROFILES),
    ("enableDebugFlagsHandler", Boolean, &[Is(false)], NO_PROFILES),
    ("healthzPort", Integer, &[Count(0)], HEALTH),
    ("healthzBindAddress", Text, &[], HEALTH),
    (
        "oomScoreAdj",
        Integer,
        &[Count(0)],
        "knarr keeps the value that it was started with",
    ),
    (
        "streamingConnectionIdleTimeout",
        Duration,
        &[],
        "streams stay open until one side closes them",
    ),
    (
        "volumeStatsAggPeriod",
        Duration,
        &[],
        "volume stats are measured on request",
    ),
    ("kubeletCgroups", Text, &[], OWN_CGROUP),
    ("systemCgroups", Text, &[], OWN_CGROUP),
    (
        "systemReservedCgroup",
        Text,
        &[],
        "only pods' cgroups are limited",
    ),
    ("kubeReservedCgroup", Text, &[], "only pods' cgroups are limited"),
    (
        "runtimeRequestTimeout",
        Duration,
        &[],
        "each call to the runtime has its own timeout",
    ),
    (
        "maxOpenFiles",
        Integer,
        &[],
        "knarr keeps the limit that it was started with",
    ),
    (
        "contentType",
        Text,
        &[
            Literal("application/json"),
            Literal("application/vnd.kubernetes.protobuf"),
        ],
        "requests to the API server are in JSON",
    ),
    ("kubeAPIQPS", Integer, &[], REQUESTS),
    ("kubeAPIBurst", Integer, &[], REQUESTS),
    (
        "protectKernelDefaults",
        Boolean,
        &[Is(false)],
        "kernel settings are neither changed nor checked",
    ),
    ("makeIPTablesUtilChains", Boolean, &[Is(false)], NO_IPTABLES),
    ("iptablesMasqueradeBit", Integer, &[], NO_IPTABLES),
    ("iptablesDropBit", Integer, &[], NO_IPTABLES),
    (
        "featureGates",
        Mapping,
        &[],
        "of the kubelet's gates only CPUManagerPolicyAlphaOptions and CPUManagerPolicyBetaOptions are read",
    ),
    (
        "failSwapOn",
        Boolean,
        &[Is(false)],
        "the kubelet starts on a node with swap",
    ),
    (
        "containerLogMaxWorkers",
        Integer,
        &[Count(1)],
        "one task rotates the logs",
    ),
    (
        "configMapAndSecretChangeDetectionStrategy",
        Text,
        &[],
        "ConfigMaps and Secrets are always watched",
    ),
    (
        "showHiddenMetricsForVersion",
        Text,
        &[],
        "there are no hidden metrics",
    ),
    (
        "volumePluginDir",
        Text,
        &[],
        "FlexVolume plugins are not supported",
    ),
    (
        "kernelMemcgNotification",
        Boolean,
        &[Is(false)],
        "memory is measured every ten seconds",
    ),
    ("memoryThrottlingFactor", Number, &[], "memory.high is not set"),
    (
        "tracing",
        Mapping,
        &[],
        "traces are exported as the flag --tracing-config-file says",
    ),
    (
        "userNamespaces",
        Mapping,
        &[],
        "containerd assigns user namespaces",
    ),
    (
        "failCgroupV1",
        Boolean,
        &[Is(false)],
        "cgroup v1 and v2 are supported",
    ),
];

const KNOWN_CGROUPS: &str = "pods' cgroups are below the QoS classes' cgroups in the root";

/// Fields whose other values are rejected, because the administrator would rely on them.
const UNSUPPORTED_FIELDS: &[Row] = &[
    (
        "enableServer",
        Boolean,
        &[Is(true)],
        "logs, exec and stats are served on the kubelet's port",
    ),
    (
        "staticPodURL",
        Text,
        &[],
        "static pods are read from staticPodPath only",
    ),
    ("runOnce", Boolean, &[Is(false)], "this mode is not implemented"),
    ("cgroupRoot", Text, &[Literal("/")], KNOWN_CGROUPS),
    ("cgroupsPerQOS", Boolean, &[Is(true)], KNOWN_CGROUPS),
    ("qosReserved", Mapping, &[], "memory is not reserved by QoS class"),
    (
        "memoryReservationPolicy",
        Text,
        &[Literal("None")],
        "requested memory is not reserved",
    ),
    (
        "hairpinMode",
        Text,
        &[
            Literal("hairpin-veth"),
            Literal("promiscuous-bridge"),
            Literal("none"),
        ],
        "a pod can always connect to itself through its own Service",
    ),
    (
        "enableControllerAttachDetach",
        Boolean,
        &[Is(true)],
        "the attach/detach controller attaches volumes",
    ),
    (
        "enableSystemLogQuery",
        Boolean,
        &[Is(false)],
        "logs of system services are not served",
    ),
];

pub(super) fn take(fields: &mut Fields, report: &mut Report) {
    for (name, type_, supported, why) in IGNORED_FIELDS.iter().copied() {
        if differing_value(fields, name, type_, supported, report).is_some() {
            report.note(&fields.at(name), &format!("has no effect: {why}"));
        }
    }
    for (name, type_, supported, why) in UNSUPPORTED_FIELDS.iter().copied() {
        let Some(found) = differing_value(fields, name, type_, supported, report) else {
            continue;
        };
        let expected: Vec<String> = supported.iter().map(|s| s.to_text()).collect();
        let message = match expected.as_slice() {
            [] => format!("is not supported: {why}"),
            expected => format!("only {} is supported: {why}", expected.join(" or ")),
        };
        report.errors.invalid(&fields.at(name), &found, message);
    }
    swap(fields, report);
}

fn swap(fields: &mut Fields, report: &mut Report) {
    let Some(mut swap) = fields.object("memorySwap", report) else {
        return;
    };
    const NAME: &str = "swapBehavior";
    match swap.text(NAME, report) {
        None | Some("" | "NoSwap") => {}
        Some(other) => {
            report
                .errors
                .invalid(&swap.at(NAME), other, "only NoSwap is supported");
        }
    }
    swap.finish(report);
}

/// A field's value, if it is set and not one of the supported values. Empty text, durations, lists and mappings count as
/// not set.
fn differing_value(
    fields: &mut Fields,
    name: &'static str,
    type_: Type,
    supported: &[Supported],
    report: &mut Report,
) -> Option<Value> {
    let is_set = match type_ {
        Boolean => fields.boolean(name, report).is_some(),
        Integer => fields.long(name, report).is_some(),
        Number => fields.number(name, report).is_some(),
        Text => fields.text(name, report).is_some_and(|text| !text.is_empty()),
        Texts => !fields.texts(name, report).is_empty(),
        Duration => fields.duration(name, report).is_some_and(|d| !d.is_zero()),
        List => fields.list(name, report).is_some_and(|list| !list.is_empty()),
        Mapping => fields.object(name, report).is_some(),
    };
    let value = fields.take(name).filter(|_| is_set)?;
    let empty = matches!(value, Value::Object(map) if map.is_empty());
    (!empty && !supported.iter().any(|s| s.is(value))).then(|| value.clone())
}
