//! The values that v1.36 publishes for fields that take one of a few.
//!
//! They are for reading (`kubectl explain`); what is refused, the kinds' validation says.

const ACCESS_MODE: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const ALLOCATION_MODE: &[&str] = &["All", "ExactCount"];
const DEVICE_TAINT_EFFECT: &[&str] = &["NoExecute", "NoSchedule", "None"];
const FAILURE_POLICY: &[&str] = &["Fail", "Ignore"];
const INCLUSION: &[&str] = &["Honor", "Ignore"];
const MATCH_POLICY: &[&str] = &["Equivalent", "Exact"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const PREEMPTION_POLICY: &[&str] = &["Never", "PreemptLowerPriority"];
const PROFILE: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const PROTOCOL: &[&str] = &["SCTP", "TCP", "UDP"];
const PULL_POLICY: &[&str] = &["Always", "IfNotPresent", "Never"];
const QUOTA_SCOPE: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
const RECLAIM_POLICY: &[&str] = &["Delete", "Recycle", "Retain"];
const REINVOCATION: &[&str] = &["IfNeeded", "Never"];
const RULE_SCOPE: &[&str] = &["*", "Cluster", "Namespaced"];
const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];
const SIGNAL: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
const TAINT_EFFECT: &[&str] = &["NoExecute", "NoSchedule", "PreferNoSchedule"];
const TERMINATION_MESSAGE: &[&str] = &["FallbackToLogsOnError", "File"];
const TRAFFIC_POLICY: &[&str] = &["Cluster", "Local"];
const UPDATE_STRATEGY: &[&str] = &["OnDelete", "RollingUpdate"];
const VOLUME_MODE: &[&str] = &["Block", "Filesystem"];

/// Type, field and values; ordered by the first two.
#[rustfmt::skip]
const VALUES: &[(&str, &str, &[&str])] = &[
    ("api.admissionregistration.v1.MatchResources", "matchPolicy", MATCH_POLICY),
    ("api.admissionregistration.v1.MutatingAdmissionPolicySpec", "failurePolicy", FAILURE_POLICY),
    ("api.admissionregistration.v1.MutatingAdmissionPolicySpec", "reinvocationPolicy", REINVOCATION),
    ("api.admissionregistration.v1.MutatingWebhook", "failurePolicy", FAILURE_POLICY),
    ("api.admissionregistration.v1.MutatingWebhook", "matchPolicy", MATCH_POLICY),
    ("api.admissionregistration.v1.MutatingWebhook", "reinvocationPolicy", REINVOCATION),
    ("api.admissionregistration.v1.MutatingWebhook", "sideEffects", SIDE_EFFECTS),
    ("api.admissionregistration.v1.Mutation", "patchType", &["ApplyConfiguration", "JSONPatch"]),
    ("api.admissionregistration.v1.NamedRuleWithOperations", "operations", OPERATIONS),
    ("api.admissionregistration.v1.NamedRuleWithOperations", "scope", RULE_SCOPE),
    ("api.admissionregistration.v1.RuleWithOperations", "operations", OPERATIONS),
    ("api.admissionregistration.v1.RuleWithOperations", "scope", RULE_SCOPE),
    ("api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec", "validationActions", &["Audit", "Deny", "Warn"]),
    ("api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "failurePolicy", FAILURE_POLICY),
    ("api.admissionregistration.v1.ValidatingWebhook", "failurePolicy", FAILURE_POLICY),
    ("api.admissionregistration.v1.ValidatingWebhook", "matchPolicy", MATCH_POLICY),
    ("api.admissionregistration.v1.ValidatingWebhook", "sideEffects", SIDE_EFFECTS),
    ("api.apps.v1.DaemonSetUpdateStrategy", "type", UPDATE_STRATEGY),
    ("api.apps.v1.DeploymentStrategy", "type", &["Recreate", "RollingUpdate"]),
    ("api.apps.v1.StatefulSetSpec", "podManagementPolicy", &["OrderedReady", "Parallel"]),
    ("api.apps.v1.StatefulSetUpdateStrategy", "type", UPDATE_STRATEGY),
    ("api.batch.v1.CronJobSpec", "concurrencyPolicy", &["Allow", "Forbid", "Replace"]),
    ("api.batch.v1.JobSpec", "completionMode", &["Indexed", "NonIndexed"]),
    ("api.batch.v1.JobSpec", "podReplacementPolicy", &["Failed", "TerminatingOrFailed"]),
    ("api.batch.v1.PodFailurePolicyOnExitCodesRequirement", "operator", &["In", "NotIn"]),
    ("api.batch.v1.PodFailurePolicyRule", "action", &["Count", "FailIndex", "FailJob", "Ignore"]),
    ("api.certificates.v1.CertificateSigningRequestSpec", "usages", &["any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment", "decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing", "timestamping"]),
    ("api.core.v1.AppArmorProfile", "type", PROFILE),
    ("api.core.v1.AzureDiskVolumeSource", "cachingMode", &["None", "ReadOnly", "ReadWrite"]),
    ("api.core.v1.AzureDiskVolumeSource", "kind", &["Dedicated", "Managed", "Shared"]),
    ("api.core.v1.Container", "imagePullPolicy", PULL_POLICY),
    ("api.core.v1.Container", "terminationMessagePolicy", TERMINATION_MESSAGE),
    ("api.core.v1.ContainerPort", "protocol", PROTOCOL),
    ("api.core.v1.ContainerStatus", "stopSignal", SIGNAL),
    ("api.core.v1.EndpointPort", "protocol", PROTOCOL),
    ("api.core.v1.EphemeralContainer", "imagePullPolicy", PULL_POLICY),
    ("api.core.v1.EphemeralContainer", "terminationMessagePolicy", TERMINATION_MESSAGE),
    ("api.core.v1.HTTPGetAction", "scheme", &["HTTP", "HTTPS"]),
    ("api.core.v1.HostPathVolumeSource", "type", &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"]),
    ("api.core.v1.ImageVolumeSource", "pullPolicy", PULL_POLICY),
    ("api.core.v1.Lifecycle", "stopSignal", SIGNAL),
    ("api.core.v1.ModifyVolumeStatus", "status", &["InProgress", "Infeasible", "Pending"]),
    ("api.core.v1.NamespaceStatus", "phase", &["Active", "Terminating"]),
    ("api.core.v1.NodeSelectorRequirement", "operator", &["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"]),
    ("api.core.v1.NodeStatus", "phase", &["Pending", "Running", "Terminated"]),
    ("api.core.v1.PersistentVolumeClaimSpec", "accessModes", ACCESS_MODE),
    ("api.core.v1.PersistentVolumeClaimSpec", "volumeMode", VOLUME_MODE),
    ("api.core.v1.PersistentVolumeClaimStatus", "accessModes", ACCESS_MODE),
    ("api.core.v1.PersistentVolumeClaimStatus", "allocatedResourceStatuses", &["ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizePending"]),
    ("api.core.v1.PersistentVolumeClaimStatus", "phase", &["Bound", "Lost", "Pending"]),
    ("api.core.v1.PersistentVolumeSpec", "accessModes", ACCESS_MODE),
    ("api.core.v1.PersistentVolumeSpec", "persistentVolumeReclaimPolicy", RECLAIM_POLICY),
    ("api.core.v1.PersistentVolumeSpec", "volumeMode", VOLUME_MODE),
    ("api.core.v1.PersistentVolumeStatus", "phase", &["Available", "Bound", "Failed", "Pending", "Released"]),
    ("api.core.v1.PodSecurityContext", "fsGroupChangePolicy", &["Always", "OnRootMismatch"]),
    ("api.core.v1.PodSecurityContext", "supplementalGroupsPolicy", &["Merge", "Strict"]),
    ("api.core.v1.PodSpec", "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ("api.core.v1.PodSpec", "preemptionPolicy", PREEMPTION_POLICY),
    ("api.core.v1.PodSpec", "restartPolicy", &["Always", "Never", "OnFailure"]),
    ("api.core.v1.PodStatus", "phase", &["Failed", "Pending", "Running", "Succeeded", "Unknown"]),
    ("api.core.v1.PodStatus", "qosClass", &["BestEffort", "Burstable", "Guaranteed"]),
    ("api.core.v1.PortStatus", "protocol", PROTOCOL),
    ("api.core.v1.ResourceQuotaSpec", "scopes", QUOTA_SCOPE),
    ("api.core.v1.ScopedResourceSelectorRequirement", "operator", &["DoesNotExist", "Exists", "In", "NotIn"]),
    ("api.core.v1.ScopedResourceSelectorRequirement", "scopeName", QUOTA_SCOPE),
    ("api.core.v1.SeccompProfile", "type", PROFILE),
    ("api.core.v1.SecurityContext", "procMount", &["Default", "Unmasked"]),
    ("api.core.v1.ServicePort", "protocol", PROTOCOL),
    ("api.core.v1.ServiceSpec", "externalTrafficPolicy", TRAFFIC_POLICY),
    ("api.core.v1.ServiceSpec", "internalTrafficPolicy", TRAFFIC_POLICY),
    ("api.core.v1.ServiceSpec", "ipFamilies", &["", "IPv4", "IPv6"]),
    ("api.core.v1.ServiceSpec", "ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"]),
    ("api.core.v1.ServiceSpec", "sessionAffinity", &["ClientIP", "None"]),
    ("api.core.v1.ServiceSpec", "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
    ("api.core.v1.Taint", "effect", TAINT_EFFECT),
    ("api.core.v1.Toleration", "effect", TAINT_EFFECT),
    ("api.core.v1.Toleration", "operator", &["Equal", "Exists", "Gt", "Lt"]),
    ("api.core.v1.TopologySpreadConstraint", "nodeAffinityPolicy", INCLUSION),
    ("api.core.v1.TopologySpreadConstraint", "nodeTaintsPolicy", INCLUSION),
    ("api.core.v1.TopologySpreadConstraint", "whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]),
    ("api.core.v1.VolumeMount", "mountPropagation", &["Bidirectional", "HostToContainer", "None"]),
    ("api.discovery.v1.EndpointPort", "protocol", PROTOCOL),
    ("api.discovery.v1.EndpointSlice", "addressType", &["FQDN", "IPv4", "IPv6"]),
    ("api.networking.v1.HTTPIngressPath", "pathType", &["Exact", "ImplementationSpecific", "Prefix"]),
    ("api.networking.v1.IngressPortStatus", "protocol", PROTOCOL),
    ("api.networking.v1.NetworkPolicyPort", "protocol", PROTOCOL),
    ("api.networking.v1.NetworkPolicySpec", "policyTypes", &["Egress", "Ingress"]),
    ("api.policy.v1.PodDisruptionBudgetSpec", "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]),
    ("api.resource.v1.DeviceAllocationConfiguration", "source", &["FromClaim", "FromClass"]),
    ("api.resource.v1.DeviceSubRequest", "allocationMode", ALLOCATION_MODE),
    ("api.resource.v1.DeviceTaint", "effect", DEVICE_TAINT_EFFECT),
    ("api.resource.v1.DeviceToleration", "effect", DEVICE_TAINT_EFFECT),
    ("api.resource.v1.DeviceToleration", "operator", &["Equal", "Exists"]),
    ("api.resource.v1.ExactDeviceRequest", "allocationMode", ALLOCATION_MODE),
    ("api.scheduling.v1.PriorityClass", "preemptionPolicy", PREEMPTION_POLICY),
    ("api.storage.v1.StorageClass", "reclaimPolicy", RECLAIM_POLICY),
    ("api.storage.v1.StorageClass", "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]),
    ("apiextensions-apiserver.pkg.apis.apiextensions.v1.ValidationRule", "reason", &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"]),
];

/// All published type names begin so.
const PREFIX: &str = "io.k8s.";

/// What a type's field may hold, each item of it for a list; `None` where that is open.
pub fn of_field(name: &str, field: &str) -> Option<&'static [&'static str]> {
    let name = name.strip_prefix(PREFIX)?;
    let at = VALUES
        .binary_search_by_key(&(name, field), |row| (row.0, row.1))
        .ok()?;
    Some(VALUES[at].2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use crate::schema::{Shape, Value};

    #[test]
    fn rows_are_ordered_and_about_fields_that_exist() {
        assert!(VALUES.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)));
        let shapes: Vec<_> = registry::ALL.iter().filter_map(|kind| Shape::of(kind)).collect();
        for (name, field, values) in VALUES {
            let known = shapes
                .iter()
                .find_map(|shape| shape.type_named(&format!("{PREFIX}{name}")))
                .and_then(|t| t.field(field));
            let known = known.unwrap_or_else(|| panic!("{name} has no field {field}"));
            assert!(!matches!(known.value, Value::Struct(_)), "{name}.{field}");
            assert!(values.is_sorted_by(|a, b| a < b), "{name}.{field}");
        }
    }

    #[test]
    fn values_are_found_by_type_and_field() {
        let policy = of_field("io.k8s.api.core.v1.Container", "imagePullPolicy");
        assert_eq!(policy, Some(&["Always", "IfNotPresent", "Never"][..]));
        assert_eq!(of_field("io.k8s.api.core.v1.Container", "image"), None);
    }
}
