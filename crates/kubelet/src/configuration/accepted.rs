//! Fields that change nothing here. Each is read, and its type checked; a value that says what knarr does anyway is
//! taken without a word, one that does nothing is noted, and one that asks for something else, which whoever relies
//! on it would miss, is refused with its path.

use knarr_api::document::{Fields, Report};
use serde_json::Value;

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

/// A value that says what knarr does.
#[derive(Clone, Copy)]
enum Same {
    Is(bool),
    Count(i64),
    Word(&'static str),
}

use Same::{Count, Is, Word};

impl Same {
    fn is(self, value: &Value) -> bool {
        match self {
            Is(same) => value.as_bool() == Some(same),
            Count(same) => value.as_i64() == Some(same),
            Word(same) => value.as_str() == Some(same),
        }
    }

    fn shown(self) -> String {
        match self {
            Is(same) => same.to_string(),
            Count(same) => same.to_string(),
            Word(same) => same.to_string(),
        }
    }
}

/// Values that are taken without a word, and what is said of others.
type Row = (&'static str, Type, &'static [Same], &'static str);

const LISTEN: &str = "--kubelet-listen says where the kubelet listens";
const CONTAINERD: &str = "knarr runs a containerd of its own";
const OWN_CERTIFICATE: &str = "the kubelet's certificate is knarr's own";
const RENEWED: &str = "certificates are renewed by themselves";
const LET_IN: &str = "only the cluster's own certificates are let in";
const HEALTH: &str = "health is told at the kubelet's own port";
const TLS: &str = "rustls chooses, among what is safe";
const PULLS: &str = "maxParallelImagePulls says how many images are pulled at a time";
const EVENTS: &str = "events are limited by what they are about";
const REQUESTS: &str = "a kubelet's requests are limited by the API server's flow control";
const OWN_GROUP: &str = "knarr stays in the control group it was started in";
const NO_PROFILES: &str = "there are no such handlers";
const NO_CHAINS: &str = "the kubelet makes no packet filter rules";

/// Others do nothing, and that is noted.
const NOTED: &[Row] = &[
    ("address", Text, &[], LISTEN),
    ("port", Integer, &[Count(0)], LISTEN),
    ("podCIDR", Text, &[], "--pod-cidr says which addresses pods get"),
    ("containerRuntimeEndpoint", Text, &[], CONTAINERD),
    ("imageServiceEndpoint", Text, &[], CONTAINERD),
    ("tlsCertFile", Text, &[], OWN_CERTIFICATE),
    ("tlsPrivateKeyFile", Text, &[], OWN_CERTIFICATE),
    ("rotateCertificates", Boolean, &[Is(true)], RENEWED),
    ("serverTLSBootstrap", Boolean, &[Is(true)], RENEWED),
    ("authentication", Mapping, &[], LET_IN),
    ("authorization", Mapping, &[], LET_IN),
    (
        "logging",
        Mapping,
        &[],
        "--log and --log-format say what is logged",
    ),
    (
        "syncFrequency",
        Duration,
        &[],
        "a pod is looked at when something happens to it",
    ),
    ("httpCheckFrequency", Duration, &[], "staticPodURL is not read"),
    ("staticPodURLHeader", Mapping, &[], "staticPodURL is not read"),
    (
        "readOnlyPort",
        Integer,
        &[Count(0)],
        "there is no port without authentication",
    ),
    ("tlsCipherSuites", Texts, &[], TLS),
    ("tlsCurvePreferences", List, &[], TLS),
    (
        "tlsMinVersion",
        Text,
        &[Word("VersionTLS12")],
        "TLS 1.2 and 1.3 are spoken",
    ),
    ("registryPullQPS", Integer, &[Count(0)], PULLS),
    ("registryBurst", Integer, &[Count(0)], PULLS),
    (
        "imagePullCredentialsVerificationPolicy",
        Text,
        &[Word("NeverVerify")],
        "images that are on the node are used without asking their registry",
    ),
    (
        "preloadedImagesVerificationAllowlist",
        Texts,
        &[],
        "images that are on the node are used without asking their registry",
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
        "knarr keeps the one it was started with",
    ),
    (
        "streamingConnectionIdleTimeout",
        Duration,
        &[],
        "streams stay open until one side ends them",
    ),
    (
        "volumeStatsAggPeriod",
        Duration,
        &[],
        "volumes are measured when figures are asked for",
    ),
    ("kubeletCgroups", Text, &[], OWN_GROUP),
    ("systemCgroups", Text, &[], OWN_GROUP),
    ("systemReservedCgroup", Text, &[], "only pods are limited"),
    ("kubeReservedCgroup", Text, &[], "only pods are limited"),
    (
        "runtimeRequestTimeout",
        Duration,
        &[],
        "each request to the runtime has a time of its own",
    ),
    (
        "maxOpenFiles",
        Integer,
        &[],
        "knarr keeps the limit it was started with",
    ),
    (
        "contentType",
        Text,
        &[
            Word("application/json"),
            Word("application/vnd.kubernetes.protobuf"),
        ],
        "the API server is asked in JSON",
    ),
    ("kubeAPIQPS", Integer, &[], REQUESTS),
    ("kubeAPIBurst", Integer, &[], REQUESTS),
    (
        "protectKernelDefaults",
        Boolean,
        &[Is(false)],
        "the kernel's settings are neither changed nor checked",
    ),
    ("makeIPTablesUtilChains", Boolean, &[Is(false)], NO_CHAINS),
    ("iptablesMasqueradeBit", Integer, &[], NO_CHAINS),
    ("iptablesDropBit", Integer, &[], NO_CHAINS),
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
        "a node with swap is started all the same",
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
        "volumes of ConfigMaps and Secrets are brought up to date by themselves",
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
        "there are no volume plugins of the node's own",
    ),
    (
        "kernelMemcgNotification",
        Boolean,
        &[Is(false)],
        "memory is looked at every ten seconds",
    ),
    (
        "memoryThrottlingFactor",
        Number,
        &[],
        "memory is limited, not throttled",
    ),
    ("tracing", Mapping, &[], "there are no traces"),
    ("userNamespaces", Mapping, &[], "containerd maps users"),
    (
        "failCgroupV1",
        Boolean,
        &[Is(false)],
        "both versions of cgroups are worked with",
    ),
];

const KNOWN_CGROUPS: &str = "pods' control groups are by class of service, below the root";

/// Others are refused: what they ask for would be missed.
const REFUSED: &[Row] = &[
    (
        "enableServer",
        Boolean,
        &[Is(true)],
        "logs, exec and figures come through the kubelet's port",
    ),
    (
        "staticPodURL",
        Text,
        &[],
        "static pods are read from staticPodPath only",
    ),
    (
        "runOnce",
        Boolean,
        &[Is(false)],
        "a node that ends with its pods is not offered",
    ),
    ("cgroupRoot", Text, &[Word("/")], KNOWN_CGROUPS),
    ("cgroupsPerQOS", Boolean, &[Is(true)], KNOWN_CGROUPS),
    (
        "qosReserved",
        Mapping,
        &[],
        "memory is not reserved by class of service",
    ),
    (
        "memoryReservationPolicy",
        Text,
        &[Word("None")],
        "memory that is asked for is not reserved",
    ),
    (
        "hairpinMode",
        Text,
        &[Word("hairpin-veth"), Word("promiscuous-bridge"), Word("none")],
        "a pod reaches itself through its own Service always",
    ),
    (
        "enableControllerAttachDetach",
        Boolean,
        &[Is(true)],
        "volumes are attached by the controller",
    ),
    (
        "enableSystemLogQuery",
        Boolean,
        &[Is(false)],
        "the logs of the system's services are not served",
    ),
];

pub(super) fn take(fields: &mut Fields, report: &mut Report) {
    for (name, type_, same, why) in NOTED.iter().copied() {
        if other(fields, name, type_, same, report).is_some() {
            report.note(&fields.at(name), &format!("has no effect: {why}"));
        }
    }
    for (name, type_, same, why) in REFUSED.iter().copied() {
        let Some(found) = other(fields, name, type_, same, report) else {
            continue;
        };
        let wanted: Vec<String> = same.iter().map(|s| s.shown()).collect();
        let words = match wanted.as_slice() {
            [] => format!("is not supported: {why}"),
            wanted => format!("only {} is supported: {why}", wanted.join(" or ")),
        };
        report.errors.invalid(&fields.at(name), &found, words);
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

/// What a field is set to, if that is none of what knarr does anyway. Text, durations, lists and mappings that are
/// empty are as good as not set.
fn other(
    fields: &mut Fields,
    name: &'static str,
    type_: Type,
    same: &[Same],
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
    (!empty && !same.iter().any(|s| s.is(value))).then(|| value.clone())
}
