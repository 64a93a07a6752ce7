//! How the lists and maps of v1.36's types merge: list types, patch strategies and merge keys.
//!
//! The facts of the published API (`x-kubernetes-list-*`, `x-kubernetes-map-type`, `x-kubernetes-patch-*`), for
//! every type that can be reached from a served kind. Strategic merge patch walks them, OpenAPI documents show them.
//! What stands in no row is a granular map or an atomic list.

/// How a list is one value, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Replaced whole.
    Atomic,
    /// Of different scalars.
    Set,
    /// Of objects that differ in these fields.
    Map(&'static [&'static str]),
}

/// Whether a map's fields are set one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    Atomic,
    Granular,
}

/// What a strategic merge patch does with a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Maps are merged, lists replaced.
    #[default]
    Default,
    Merge,
    Replace,
}

/// The rule of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub field: &'static str,
    pub list: Option<List>,
    pub map: Option<Map>,
    pub strategy: Strategy,
    /// Of a merged list of objects; empty for scalars.
    pub merge_key: &'static str,
    /// Whether patches say with `$retainKeys` which keys stay (unions).
    pub retain_keys: bool,
}

const fn plain(field: &'static str) -> Rule {
    Rule {
        field,
        list: None,
        map: None,
        strategy: Strategy::Default,
        merge_key: "",
        retain_keys: false,
    }
}

const fn atomic(field: &'static str) -> Rule {
    Rule {
        list: Some(List::Atomic),
        ..plain(field)
    }
}

const fn set(field: &'static str) -> Rule {
    Rule {
        list: Some(List::Set),
        ..plain(field)
    }
}

const fn map(field: &'static str, keys: &'static [&'static str]) -> Rule {
    Rule {
        list: Some(List::Map(keys)),
        ..plain(field)
    }
}

const fn atomic_map(field: &'static str) -> Rule {
    Rule {
        map: Some(Map::Atomic),
        ..plain(field)
    }
}

const fn granular_map(field: &'static str) -> Rule {
    Rule {
        map: Some(Map::Granular),
        ..plain(field)
    }
}

impl Rule {
    const fn merged(self) -> Self {
        Rule {
            strategy: Strategy::Merge,
            ..self
        }
    }

    const fn merged_by(self, merge_key: &'static str) -> Self {
        Rule {
            merge_key,
            ..self.merged()
        }
    }

    const fn replaced(self) -> Self {
        Rule {
            strategy: Strategy::Replace,
            ..self
        }
    }

    const fn retaining_keys(self) -> Self {
        Rule {
            retain_keys: true,
            ..self
        }
    }

    /// `x-kubernetes-patch-strategy`, empty where there is none.
    pub fn patch_strategy(&self) -> &'static str {
        match (self.strategy, self.retain_keys) {
            (Strategy::Default, false) => "",
            (Strategy::Default, true) => "retainKeys",
            (Strategy::Merge, false) => "merge",
            (Strategy::Merge, true) => "merge,retainKeys",
            (Strategy::Replace, _) => "replace",
        }
    }
}

type Row = (&'static str, &'static [Rule]);

const fn of(name: &'static str, rules: &'static [Rule]) -> Row {
    (name, rules)
}

/// All published type names begin so.
const PREFIX: &str = "io.k8s.";

/// The rules of a type's fields; empty for one without.
pub fn of_type(name: &str) -> &'static [Rule] {
    name.strip_prefix(PREFIX)
        .and_then(|name| RULES.binary_search_by_key(&name, |row| row.0).ok())
        .map_or(&[], |at| RULES[at].1)
}

/// The rule of a type's field, if there is one.
pub fn of_field(name: &str, field: &str) -> Option<&'static Rule> {
    of_type(name).iter().find(|rule| rule.field == field)
}

/// Whether values of a type are set as a whole (`x-kubernetes-map-type: atomic`).
pub fn is_atomic(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|name| ATOMIC.binary_search(&name).is_ok())
}

/// Ordered by name.
#[rustfmt::skip]
const ATOMIC: &[&str] = &[
    "api.admissionregistration.v1.MatchResources", "api.admissionregistration.v1.NamedRuleWithOperations",
    "api.admissionregistration.v1.ParamKind", "api.admissionregistration.v1.ParamRef",
    "api.admissionregistration.v1.Variable", "api.autoscaling.v1.CrossVersionObjectReference",
    "api.core.v1.ConfigMapKeySelector", "api.core.v1.EndpointAddress", "api.core.v1.EndpointPort",
    "api.core.v1.FileKeySelector", "api.core.v1.LocalObjectReference", "api.core.v1.NodeSelector",
    "api.core.v1.NodeSelectorTerm", "api.core.v1.ObjectFieldSelector", "api.core.v1.ObjectReference",
    "api.core.v1.ResourceFieldSelector", "api.core.v1.ScopeSelector", "api.core.v1.SecretKeySelector",
    "api.core.v1.SecretReference", "api.core.v1.TopologySelectorTerm",
    "api.core.v1.TypedLocalObjectReference", "api.discovery.v1.EndpointPort",
    "api.networking.v1.ServiceBackendPort", "api.rbac.v1.RoleRef", "api.rbac.v1.Subject",
    "apimachinery.pkg.apis.meta.v1.LabelSelector", "apimachinery.pkg.apis.meta.v1.OwnerReference",
];

/// Ordered by name, a row a type.
#[rustfmt::skip]
const RULES: &[Row] = &[
    of("api.admissionregistration.v1.MatchResources", &[atomic("excludeResourceRules"), atomic("resourceRules")]),
    of("api.admissionregistration.v1.MutatingAdmissionPolicySpec", &[map("matchConditions", &["name"]).merged_by("name"), atomic("mutations"), atomic("variables")]),
    of("api.admissionregistration.v1.MutatingWebhook", &[atomic("admissionReviewVersions"), map("matchConditions", &["name"]).merged_by("name"), atomic("rules")]),
    of("api.admissionregistration.v1.MutatingWebhookConfiguration", &[map("webhooks", &["name"]).merged_by("name")]),
    of("api.admissionregistration.v1.NamedRuleWithOperations", &[atomic("apiGroups"), atomic("apiVersions"), atomic("operations"), atomic("resourceNames"), atomic("resources")]),
    of("api.admissionregistration.v1.RuleWithOperations", &[atomic("apiGroups"), atomic("apiVersions"), atomic("operations"), atomic("resources")]),
    of("api.admissionregistration.v1.TypeChecking", &[atomic("expressionWarnings")]),
    of("api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec", &[set("validationActions")]),
    of("api.admissionregistration.v1.ValidatingAdmissionPolicySpec", &[atomic("auditAnnotations"), map("matchConditions", &["name"]).merged_by("name"), atomic("validations"), map("variables", &["name"]).merged_by("name")]),
    of("api.admissionregistration.v1.ValidatingAdmissionPolicyStatus", &[map("conditions", &["type"])]),
    of("api.admissionregistration.v1.ValidatingWebhook", &[atomic("admissionReviewVersions"), map("matchConditions", &["name"]).merged_by("name"), atomic("rules")]),
    of("api.admissionregistration.v1.ValidatingWebhookConfiguration", &[map("webhooks", &["name"]).merged_by("name")]),
    of("api.apps.v1.DaemonSetStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.apps.v1.DeploymentSpec", &[plain("strategy").retaining_keys()]),
    of("api.apps.v1.DeploymentStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.apps.v1.ReplicaSetStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.apps.v1.StatefulSetSpec", &[atomic("volumeClaimTemplates")]),
    of("api.apps.v1.StatefulSetStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.authentication.v1.TokenRequestSpec", &[atomic("audiences")]),
    of("api.authentication.v1.TokenReviewSpec", &[atomic("audiences")]),
    of("api.authentication.v1.TokenReviewStatus", &[atomic("audiences")]),
    of("api.authentication.v1.UserInfo", &[atomic("groups")]),
    of("api.authorization.v1.FieldSelectorAttributes", &[atomic("requirements")]),
    of("api.authorization.v1.LabelSelectorAttributes", &[atomic("requirements")]),
    of("api.authorization.v1.NonResourceRule", &[atomic("nonResourceURLs"), atomic("verbs")]),
    of("api.authorization.v1.ResourceRule", &[atomic("apiGroups"), atomic("resourceNames"), atomic("resources"), atomic("verbs")]),
    of("api.authorization.v1.SubjectAccessReviewSpec", &[atomic("groups")]),
    of("api.authorization.v1.SubjectRulesReviewStatus", &[atomic("nonResourceRules"), atomic("resourceRules")]),
    of("api.autoscaling.v2.HPAScalingRules", &[atomic("policies")]),
    of("api.autoscaling.v2.HorizontalPodAutoscalerSpec", &[atomic("metrics")]),
    of("api.autoscaling.v2.HorizontalPodAutoscalerStatus", &[map("conditions", &["type"]).merged_by("type"), atomic("currentMetrics")]),
    of("api.batch.v1.CronJobStatus", &[atomic("active")]),
    of("api.batch.v1.JobStatus", &[atomic("conditions").merged_by("type")]),
    of("api.batch.v1.PodFailurePolicy", &[atomic("rules")]),
    of("api.batch.v1.PodFailurePolicyOnExitCodesRequirement", &[set("values")]),
    of("api.batch.v1.PodFailurePolicyRule", &[atomic("onPodConditions")]),
    of("api.batch.v1.SuccessPolicy", &[atomic("rules")]),
    of("api.batch.v1.UncountedTerminatedPods", &[set("failed"), set("succeeded")]),
    of("api.certificates.v1.CertificateSigningRequestSpec", &[atomic("groups"), atomic("usages")]),
    of("api.certificates.v1.CertificateSigningRequestStatus", &[map("conditions", &["type"])]),
    of("api.core.v1.Capabilities", &[atomic("add"), atomic("drop")]),
    of("api.core.v1.CephFSPersistentVolumeSource", &[atomic("monitors")]),
    of("api.core.v1.CephFSVolumeSource", &[atomic("monitors")]),
    of("api.core.v1.ComponentStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.core.v1.ConfigMapProjection", &[atomic("items")]),
    of("api.core.v1.ConfigMapVolumeSource", &[atomic("items")]),
    of("api.core.v1.Container", &[atomic("args"), atomic("command"), map("env", &["name"]).merged_by("name"), atomic("envFrom"), map("ports", &["containerPort", "protocol"]).merged_by("containerPort"), atomic("resizePolicy"), atomic("restartPolicyRules"), map("volumeDevices", &["devicePath"]).merged_by("devicePath"), map("volumeMounts", &["mountPath"]).merged_by("mountPath")]),
    of("api.core.v1.ContainerImage", &[atomic("names")]),
    of("api.core.v1.ContainerRestartRuleOnExitCodes", &[set("values")]),
    of("api.core.v1.ContainerStatus", &[map("allocatedResourcesStatus", &["name"]).merged_by("name"), map("volumeMounts", &["mountPath"]).merged_by("mountPath")]),
    of("api.core.v1.DownwardAPIProjection", &[atomic("items")]),
    of("api.core.v1.DownwardAPIVolumeSource", &[atomic("items")]),
    of("api.core.v1.EndpointSubset", &[atomic("addresses"), atomic("notReadyAddresses"), atomic("ports")]),
    of("api.core.v1.Endpoints", &[atomic("subsets")]),
    of("api.core.v1.EphemeralContainer", &[atomic("args"), atomic("command"), map("env", &["name"]).merged_by("name"), atomic("envFrom"), map("ports", &["containerPort", "protocol"]).merged_by("containerPort"), atomic("resizePolicy"), atomic("restartPolicyRules"), map("volumeDevices", &["devicePath"]).merged_by("devicePath"), map("volumeMounts", &["mountPath"]).merged_by("mountPath")]),
    of("api.core.v1.ExecAction", &[atomic("command")]),
    of("api.core.v1.FCVolumeSource", &[atomic("targetWWNs"), atomic("wwids")]),
    of("api.core.v1.HTTPGetAction", &[atomic("httpHeaders")]),
    of("api.core.v1.HostAlias", &[atomic("hostnames")]),
    of("api.core.v1.ISCSIPersistentVolumeSource", &[atomic("portals")]),
    of("api.core.v1.ISCSIVolumeSource", &[atomic("portals")]),
    of("api.core.v1.LimitRangeSpec", &[atomic("limits")]),
    of("api.core.v1.LinuxContainerUser", &[atomic("supplementalGroups")]),
    of("api.core.v1.LoadBalancerIngress", &[atomic("ports")]),
    of("api.core.v1.LoadBalancerStatus", &[atomic("ingress")]),
    of("api.core.v1.NamespaceSpec", &[atomic("finalizers")]),
    of("api.core.v1.NamespaceStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.core.v1.NodeAffinity", &[atomic("preferredDuringSchedulingIgnoredDuringExecution")]),
    of("api.core.v1.NodeAllocatableResourceClaimStatus", &[set("containers")]),
    of("api.core.v1.NodeSelector", &[atomic("nodeSelectorTerms")]),
    of("api.core.v1.NodeSelectorRequirement", &[atomic("values")]),
    of("api.core.v1.NodeSelectorTerm", &[atomic("matchExpressions"), atomic("matchFields")]),
    of("api.core.v1.NodeSpec", &[set("podCIDRs").merged(), atomic("taints")]),
    of("api.core.v1.NodeStatus", &[map("addresses", &["type"]).merged_by("type"), map("conditions", &["type"]).merged_by("type"), atomic("declaredFeatures"), atomic("images"), atomic("runtimeHandlers"), atomic("volumesAttached"), atomic("volumesInUse")]),
    of("api.core.v1.PersistentVolumeClaimSpec", &[atomic("accessModes")]),
    of("api.core.v1.PersistentVolumeClaimStatus", &[atomic("accessModes"), granular_map("allocatedResourceStatuses"), map("conditions", &["type"]).merged_by("type")]),
    of("api.core.v1.PersistentVolumeSpec", &[atomic("accessModes"), granular_map("claimRef"), atomic("mountOptions")]),
    of("api.core.v1.PodAffinity", &[atomic("preferredDuringSchedulingIgnoredDuringExecution"), atomic("requiredDuringSchedulingIgnoredDuringExecution")]),
    of("api.core.v1.PodAffinityTerm", &[atomic("matchLabelKeys"), atomic("mismatchLabelKeys"), atomic("namespaces")]),
    of("api.core.v1.PodAntiAffinity", &[atomic("preferredDuringSchedulingIgnoredDuringExecution"), atomic("requiredDuringSchedulingIgnoredDuringExecution")]),
    of("api.core.v1.PodDNSConfig", &[atomic("nameservers"), atomic("options"), atomic("searches")]),
    of("api.core.v1.PodExtendedResourceClaimStatus", &[atomic("requestMappings")]),
    of("api.core.v1.PodSecurityContext", &[atomic("supplementalGroups"), atomic("sysctls")]),
    of("api.core.v1.PodSpec", &[map("containers", &["name"]).merged_by("name"), map("ephemeralContainers", &["name"]).merged_by("name"), map("hostAliases", &["ip"]).merged_by("ip"), map("imagePullSecrets", &["name"]).merged_by("name"), map("initContainers", &["name"]).merged_by("name"), atomic_map("nodeSelector"), atomic("readinessGates"), map("resourceClaims", &["name"]).merged_by("name").retaining_keys(), map("schedulingGates", &["name"]).merged_by("name"), atomic("tolerations"), map("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]).merged_by("topologyKey"), map("volumes", &["name"]).merged_by("name").retaining_keys()]),
    of("api.core.v1.PodStatus", &[map("conditions", &["type"]).merged_by("type"), atomic("containerStatuses"), atomic("ephemeralContainerStatuses"), atomic("hostIPs").merged_by("ip"), atomic("initContainerStatuses"), atomic("nodeAllocatableResourceClaimStatuses"), map("podIPs", &["ip"]).merged_by("ip"), map("resourceClaimStatuses", &["name"]).merged_by("name").retaining_keys()]),
    of("api.core.v1.ProjectedVolumeSource", &[atomic("sources")]),
    of("api.core.v1.RBDPersistentVolumeSource", &[atomic("monitors")]),
    of("api.core.v1.RBDVolumeSource", &[atomic("monitors")]),
    of("api.core.v1.ReplicationControllerSpec", &[atomic_map("selector")]),
    of("api.core.v1.ReplicationControllerStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.core.v1.ResourceQuotaSpec", &[atomic("scopes")]),
    of("api.core.v1.ResourceRequirements", &[map("claims", &["name"])]),
    of("api.core.v1.ResourceStatus", &[map("resources", &["resourceID"])]),
    of("api.core.v1.ScopeSelector", &[atomic("matchExpressions")]),
    of("api.core.v1.ScopedResourceSelectorRequirement", &[atomic("values")]),
    of("api.core.v1.SecretProjection", &[atomic("items")]),
    of("api.core.v1.SecretVolumeSource", &[atomic("items")]),
    of("api.core.v1.ServiceAccount", &[atomic("imagePullSecrets"), map("secrets", &["name"]).merged_by("name")]),
    of("api.core.v1.ServiceSpec", &[atomic("clusterIPs"), atomic("externalIPs"), atomic("ipFamilies"), atomic("loadBalancerSourceRanges"), map("ports", &["port", "protocol"]).merged_by("port"), atomic_map("selector")]),
    of("api.core.v1.ServiceStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.core.v1.TopologySelectorLabelRequirement", &[atomic("values")]),
    of("api.core.v1.TopologySelectorTerm", &[atomic("matchLabelExpressions")]),
    of("api.core.v1.TopologySpreadConstraint", &[atomic("matchLabelKeys")]),
    of("api.discovery.v1.Endpoint", &[set("addresses")]),
    of("api.discovery.v1.EndpointHints", &[atomic("forNodes"), atomic("forZones")]),
    of("api.discovery.v1.EndpointSlice", &[atomic("endpoints"), atomic("ports")]),
    of("api.flowcontrol.v1.FlowSchemaSpec", &[atomic("rules")]),
    of("api.flowcontrol.v1.FlowSchemaStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.flowcontrol.v1.NonResourcePolicyRule", &[set("nonResourceURLs"), set("verbs")]),
    of("api.flowcontrol.v1.PolicyRulesWithSubjects", &[atomic("nonResourceRules"), atomic("resourceRules"), atomic("subjects")]),
    of("api.flowcontrol.v1.PriorityLevelConfigurationStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.flowcontrol.v1.ResourcePolicyRule", &[set("apiGroups"), set("namespaces"), set("resources"), set("verbs")]),
    of("api.networking.v1.HTTPIngressRuleValue", &[atomic("paths")]),
    of("api.networking.v1.IPBlock", &[atomic("except")]),
    of("api.networking.v1.IngressLoadBalancerIngress", &[atomic("ports")]),
    of("api.networking.v1.IngressLoadBalancerStatus", &[atomic("ingress")]),
    of("api.networking.v1.IngressSpec", &[atomic("rules"), atomic("tls")]),
    of("api.networking.v1.IngressTLS", &[atomic("hosts")]),
    of("api.networking.v1.NetworkPolicyEgressRule", &[atomic("ports"), atomic("to")]),
    of("api.networking.v1.NetworkPolicyIngressRule", &[atomic("from"), atomic("ports")]),
    of("api.networking.v1.NetworkPolicySpec", &[atomic("egress"), atomic("ingress"), atomic("policyTypes")]),
    of("api.networking.v1.ServiceCIDRSpec", &[atomic("cidrs")]),
    of("api.networking.v1.ServiceCIDRStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.node.v1.Scheduling", &[atomic_map("nodeSelector"), atomic("tolerations")]),
    of("api.policy.v1.PodDisruptionBudgetSpec", &[plain("selector").replaced()]),
    of("api.policy.v1.PodDisruptionBudgetStatus", &[map("conditions", &["type"]).merged_by("type")]),
    of("api.rbac.v1.AggregationRule", &[atomic("clusterRoleSelectors")]),
    of("api.rbac.v1.ClusterRole", &[atomic("rules")]),
    of("api.rbac.v1.ClusterRoleBinding", &[atomic("subjects")]),
    of("api.rbac.v1.PolicyRule", &[atomic("apiGroups"), atomic("nonResourceURLs"), atomic("resourceNames"), atomic("resources"), atomic("verbs")]),
    of("api.rbac.v1.Role", &[atomic("rules")]),
    of("api.rbac.v1.RoleBinding", &[atomic("subjects")]),
    of("api.resource.v1.AllocatedDeviceStatus", &[map("conditions", &["type"])]),
    of("api.resource.v1.CapacityRequestPolicy", &[atomic("validValues")]),
    of("api.resource.v1.Device", &[atomic("bindingConditions"), atomic("bindingFailureConditions"), atomic("consumesCounters"), atomic("taints")]),
    of("api.resource.v1.DeviceAllocationConfiguration", &[atomic("requests")]),
    of("api.resource.v1.DeviceAllocationResult", &[atomic("config"), atomic("results")]),
    of("api.resource.v1.DeviceAttribute", &[atomic("bools"), atomic("ints"), atomic("strings"), atomic("versions")]),
    of("api.resource.v1.DeviceClaim", &[atomic("config"), atomic("constraints"), atomic("requests")]),
    of("api.resource.v1.DeviceClaimConfiguration", &[atomic("requests")]),
    of("api.resource.v1.DeviceClassSpec", &[atomic("config"), atomic("selectors")]),
    of("api.resource.v1.DeviceConstraint", &[atomic("requests")]),
    of("api.resource.v1.DeviceRequest", &[atomic("firstAvailable")]),
    of("api.resource.v1.DeviceRequestAllocationResult", &[atomic("bindingConditions"), atomic("bindingFailureConditions"), atomic("tolerations")]),
    of("api.resource.v1.DeviceSubRequest", &[atomic("selectors"), atomic("tolerations")]),
    of("api.resource.v1.ExactDeviceRequest", &[atomic("selectors"), atomic("tolerations")]),
    of("api.resource.v1.NetworkDeviceData", &[atomic("ips")]),
    of("api.resource.v1.ResourceClaimStatus", &[map("devices", &["driver", "device", "pool", "shareID"]), map("reservedFor", &["uid"]).merged_by("uid")]),
    of("api.resource.v1.ResourceSliceSpec", &[atomic("devices"), atomic("sharedCounters")]),
    of("api.storage.v1.CSIDriverSpec", &[atomic("tokenRequests"), set("volumeLifecycleModes")]),
    of("api.storage.v1.CSINodeDriver", &[atomic("topologyKeys")]),
    of("api.storage.v1.CSINodeSpec", &[map("drivers", &["name"]).merged_by("name")]),
    of("api.storage.v1.StorageClass", &[atomic("allowedTopologies"), atomic("mountOptions")]),
    of("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionNames", &[atomic("categories"), atomic("shortNames")]),
    of("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec", &[atomic("versions")]),
    of("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus", &[map("conditions", &["type"]), atomic("storedVersions")]),
    of("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionVersion", &[atomic("additionalPrinterColumns"), atomic("selectableFields")]),
    of("apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps", &[atomic("allOf"), atomic("anyOf"), atomic("enum"), atomic("oneOf"), atomic("required"), atomic("x-kubernetes-list-map-keys"), map("x-kubernetes-validations", &["rule"]).merged_by("rule")]),
    of("apiextensions-apiserver.pkg.apis.apiextensions.v1.WebhookConversion", &[atomic("conversionReviewVersions")]),
    of("apimachinery.pkg.apis.meta.v1.APIGroup", &[atomic("serverAddressByClientCIDRs"), atomic("versions")]),
    of("apimachinery.pkg.apis.meta.v1.APIGroupList", &[atomic("groups")]),
    of("apimachinery.pkg.apis.meta.v1.APIResource", &[atomic("categories"), atomic("shortNames")]),
    of("apimachinery.pkg.apis.meta.v1.APIResourceList", &[atomic("resources")]),
    of("apimachinery.pkg.apis.meta.v1.APIVersions", &[atomic("serverAddressByClientCIDRs"), atomic("versions")]),
    of("apimachinery.pkg.apis.meta.v1.DeleteOptions", &[atomic("dryRun")]),
    of("apimachinery.pkg.apis.meta.v1.FieldSelectorRequirement", &[atomic("values")]),
    of("apimachinery.pkg.apis.meta.v1.LabelSelector", &[atomic("matchExpressions")]),
    of("apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement", &[atomic("values")]),
    of("apimachinery.pkg.apis.meta.v1.ObjectMeta", &[set("finalizers").merged(), atomic("managedFields"), map("ownerReferences", &["uid"]).merged_by("uid")]),
    of("apimachinery.pkg.apis.meta.v1.StatusDetails", &[atomic("causes")]),
    of("kube-aggregator.pkg.apis.apiregistration.v1.APIServiceSpec", &[atomic("caBundle")]),
    of("kube-aggregator.pkg.apis.apiregistration.v1.APIServiceStatus", &[map("conditions", &["type"]).merged_by("type")]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_as_the_search_needs_them() {
        assert!(RULES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(ATOMIC.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_rule_is_found_by_type_and_field() {
        let rule = of_field("io.k8s.api.core.v1.Container", "ports").expect("a rule");
        assert_eq!(
            (rule.strategy, rule.merge_key),
            (Strategy::Merge, "containerPort")
        );
        assert_eq!(rule.list, Some(List::Map(&["containerPort", "protocol"])));
        assert_eq!(of_field("io.k8s.api.core.v1.Container", "name"), None);
        assert_eq!(of_field("Container", "ports"), None);
        let strategy = of_field("io.k8s.api.apps.v1.DeploymentSpec", "strategy").map(Rule::patch_strategy);
        assert_eq!(strategy, Some("retainKeys"));
        assert!(is_atomic("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"));
        assert!(!is_atomic("io.k8s.api.core.v1.Pod"));
    }
}
