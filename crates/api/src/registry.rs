//! Every built-in kind of Kubernetes v1.36 that is served by default: one line each, in discovery's order.
//!
//! Names, scopes, verbs and subresources are those of v1.36's discovery documents. A kind's rules are in its own
//! file under `crates/strategy/src/kinds`.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use crate::any_object::AnyObject;
use crate::api_type::TypedOps;
use crate::custom;
use crate::emulation::Emulation;
use crate::kind::{
    ALL_VERBS, CREATE_ONLY, DecodedAgain, Kind, KindInfo, KindNames, KindOps, NameList, Scope, Subresource,
    Verbs,
};

const STATUS_VERBS: Verbs = &["get", "patch", "update"];
const SCALE: Subresource = sub("scale", ("autoscaling", "v1", "Scale"), STATUS_VERBS);

const fn status(kind: &'static str) -> Subresource {
    sub("status", ("", "", kind), STATUS_VERBS)
}

const fn sub(
    name: &'static str,
    spoken: (&'static str, &'static str, &'static str),
    verbs: Verbs,
) -> Subresource {
    Subresource::new(name, spoken, verbs)
}

/// Declares the kinds: `CONST: RustType, "group"/"version" "plural"/"singular", Scope, short names,
/// categories, verbs, subresources [stored_as CONST];`
macro_rules! kinds {
    ($($name:ident: $t:ty, $g:literal/$v:literal $p:literal/$s:literal, $scope:ident, $short:expr, $cat:expr,
       $verbs:expr, $subs:expr $(, stored_as $stored:ident)?;)*) => {
        $(
            #[doc = concat!("`", $g, "/", $v, "` ", $p)]
            pub static $name: Kind = {
                static INFO: KindInfo = KindInfo {
                    names: KindNames {
                        group: Cow::Borrowed($g),
                        version: Cow::Borrowed($v),
                        kind: Cow::Borrowed(<$t as k8s_openapi::Resource>::KIND),
                        plural: Cow::Borrowed($p),
                        singular: Cow::Borrowed($s),
                    },
                    scope: Scope::$scope,
                    short_names: NameList::BuiltIn($short),
                    categories: NameList::BuiltIn($cat),
                    verbs: $verbs,
                    subresources: $subs,
                    stored_as: kinds!(@stored $($stored)?),
                    ops: KindOps::BuiltIn(&TypedOps::<$t>::new()),
                    decoded_again: DecodedAgain::new(),
                };
                Kind::built_in(&INFO)
            };
            impl Registered for $t {
                fn kind_of() -> &'static Kind {
                    &$name
                }
                // Never inlined: a caller in another crate would compile the type's whole vtable, with its encoder, once more.
                #[inline(never)]
                fn into_object(self) -> Box<dyn AnyObject> {
                    Box::new(self)
                }
                #[inline(never)]
                fn as_object(&self) -> &dyn AnyObject {
                    self
                }
                #[inline(never)]
                fn deep_copy(&self) -> Self {
                    self.clone()
                }
            }
        )*
        /// All of them.
        pub static ALL: &[&Kind] = &[$(&$name),*];
    };
    (@stored) => { None };
    (@stored $stored:ident) => { Some(&$stored) };
}

/// A Rust type that is a kind of the registry.
pub trait Registered: crate::ApiType + 'static {
    fn kind_of() -> &'static Kind;
    /// The same object without its static type. Other crates call this instead of coercing a `Box<Self>`: a coercion compiles the encoder of
    /// the type and of all types in it into the crate that has it (a million lines of LLVM's code for a Pod).
    fn into_object(self) -> Box<dyn AnyObject>;
    /// A reference without the static type; see [`Registered::into_object`].
    fn as_object(&self) -> &dyn AnyObject;
    /// A copy. Other crates call this instead of `clone`, which k8s-openapi derives: derived methods are inline, so a crate that clones a Pod
    /// compiles the clone of all types in it.
    #[must_use]
    fn deep_copy(&self) -> Self;
}

kinds! {

// v1
    BINDING: core::v1::Binding, ""/"v1" "bindings"/"binding", Namespaced, &[], &[], CREATE_ONLY, &[];
    COMPONENT_STATUS: core::v1::ComponentStatus, ""/"v1" "componentstatuses"/"componentstatus", Cluster, &["cs"], &[], &["get", "list"], &[];
    CONFIG_MAP: core::v1::ConfigMap, ""/"v1" "configmaps"/"configmap", Namespaced, &["cm"], &[], ALL_VERBS, &[];
    ENDPOINTS: core::v1::Endpoints, ""/"v1" "endpoints"/"endpoints", Namespaced, &["ep"], &[], ALL_VERBS, &[];
    EVENT: core::v1::Event, ""/"v1" "events"/"event", Namespaced, &["ev"], &[], ALL_VERBS, &[];
    LIMIT_RANGE: core::v1::LimitRange, ""/"v1" "limitranges"/"limitrange", Namespaced, &["limits"], &[], ALL_VERBS, &[];
    NAMESPACE: core::v1::Namespace, ""/"v1" "namespaces"/"namespace", Cluster, &["ns"], &[], &["create", "delete", "get", "list", "patch", "update", "watch"], &[sub("finalize", ("", "", "Namespace"), &["update"]), status("Namespace")];
    NODE: core::v1::Node, ""/"v1" "nodes"/"node", Cluster, &["no"], &[], ALL_VERBS, &[sub("proxy", ("", "", "NodeProxyOptions"), &["create", "delete", "get", "patch", "update"]), status("Node")];
    PERSISTENT_VOLUME_CLAIM: core::v1::PersistentVolumeClaim, ""/"v1" "persistentvolumeclaims"/"persistentvolumeclaim", Namespaced, &["pvc"], &[], ALL_VERBS, &[status("PersistentVolumeClaim")];
    PERSISTENT_VOLUME: core::v1::PersistentVolume, ""/"v1" "persistentvolumes"/"persistentvolume", Cluster, &["pv"], &[], ALL_VERBS, &[status("PersistentVolume")];
    POD: core::v1::Pod, ""/"v1" "pods"/"pod", Namespaced, &["po"], &["all"], ALL_VERBS, &[sub("attach", ("", "", "PodAttachOptions"), &["create", "get"]), sub("binding", ("", "", "Binding"), &["create"]), sub("ephemeralcontainers", ("", "", "Pod"), &["get", "patch", "update"]), sub("eviction", ("policy", "v1", "Eviction"), &["create"]), sub("exec", ("", "", "PodExecOptions"), &["create", "get"]), sub("log", ("", "", "Pod"), &["get"]), sub("portforward", ("", "", "PodPortForwardOptions"), &["create", "get"]), sub("proxy", ("", "", "PodProxyOptions"), &["create", "delete", "get", "patch", "update"]), sub("resize", ("", "", "Pod"), &["get", "patch", "update"]), status("Pod")];
    POD_TEMPLATE: core::v1::PodTemplate, ""/"v1" "podtemplates"/"podtemplate", Namespaced, &[], &[], ALL_VERBS, &[];
    REPLICATION_CONTROLLER: core::v1::ReplicationController, ""/"v1" "replicationcontrollers"/"replicationcontroller", Namespaced, &["rc"], &["all"], ALL_VERBS, &[SCALE, status("ReplicationController")];
    RESOURCE_QUOTA: core::v1::ResourceQuota, ""/"v1" "resourcequotas"/"resourcequota", Namespaced, &["quota"], &[], ALL_VERBS, &[status("ResourceQuota")];
    SECRET: core::v1::Secret, ""/"v1" "secrets"/"secret", Namespaced, &[], &[], ALL_VERBS, &[];
    SERVICE_ACCOUNT: core::v1::ServiceAccount, ""/"v1" "serviceaccounts"/"serviceaccount", Namespaced, &["sa"], &[], ALL_VERBS, &[sub("token", ("authentication.k8s.io", "v1", "TokenRequest"), &["create"])];
    SERVICE: core::v1::Service, ""/"v1" "services"/"service", Namespaced, &["svc"], &["all"], ALL_VERBS, &[sub("proxy", ("", "", "ServiceProxyOptions"), &["create", "delete", "get", "patch", "update"]), status("Service")];

// apiregistration.k8s.io/v1
    API_SERVICE: APIService, "apiregistration.k8s.io"/"v1" "apiservices"/"apiservice", Cluster, &[], &["api-extensions"], ALL_VERBS, &[status("APIService")];

// apps/v1
    CONTROLLER_REVISION: apps::v1::ControllerRevision, "apps"/"v1" "controllerrevisions"/"controllerrevision", Namespaced, &[], &[], ALL_VERBS, &[];
    DAEMON_SET: apps::v1::DaemonSet, "apps"/"v1" "daemonsets"/"daemonset", Namespaced, &["ds"], &["all"], ALL_VERBS, &[status("DaemonSet")];
    DEPLOYMENT: apps::v1::Deployment, "apps"/"v1" "deployments"/"deployment", Namespaced, &["deploy"], &["all"], ALL_VERBS, &[SCALE, status("Deployment")];
    REPLICA_SET: apps::v1::ReplicaSet, "apps"/"v1" "replicasets"/"replicaset", Namespaced, &["rs"], &["all"], ALL_VERBS, &[SCALE, status("ReplicaSet")];
    STATEFUL_SET: apps::v1::StatefulSet, "apps"/"v1" "statefulsets"/"statefulset", Namespaced, &["sts"], &["all"], ALL_VERBS, &[SCALE, status("StatefulSet")];

// events.k8s.io/v1
    EVENTS_EVENT: events::v1::Event, "events.k8s.io"/"v1" "events"/"event", Namespaced, &["ev"], &[], ALL_VERBS, &[], stored_as EVENT;

// authentication.k8s.io/v1
    SELF_SUBJECT_REVIEW: authentication::v1::SelfSubjectReview, "authentication.k8s.io"/"v1" "selfsubjectreviews"/"selfsubjectreview", Cluster, &[], &[], CREATE_ONLY, &[];
    TOKEN_REVIEW: authentication::v1::TokenReview, "authentication.k8s.io"/"v1" "tokenreviews"/"tokenreview", Cluster, &[], &[], CREATE_ONLY, &[];

// authorization.k8s.io/v1
    LOCAL_SUBJECT_ACCESS_REVIEW: authorization::v1::LocalSubjectAccessReview, "authorization.k8s.io"/"v1" "localsubjectaccessreviews"/"localsubjectaccessreview", Namespaced, &[], &[], CREATE_ONLY, &[];
    SELF_SUBJECT_ACCESS_REVIEW: authorization::v1::SelfSubjectAccessReview, "authorization.k8s.io"/"v1" "selfsubjectaccessreviews"/"selfsubjectaccessreview", Cluster, &[], &[], CREATE_ONLY, &[];
    SELF_SUBJECT_RULES_REVIEW: authorization::v1::SelfSubjectRulesReview, "authorization.k8s.io"/"v1" "selfsubjectrulesreviews"/"selfsubjectrulesreview", Cluster, &[], &[], CREATE_ONLY, &[];
    SUBJECT_ACCESS_REVIEW: authorization::v1::SubjectAccessReview, "authorization.k8s.io"/"v1" "subjectaccessreviews"/"subjectaccessreview", Cluster, &[], &[], CREATE_ONLY, &[];

// autoscaling/v2
    HORIZONTAL_POD_AUTOSCALER: autoscaling::v2::HorizontalPodAutoscaler, "autoscaling"/"v2" "horizontalpodautoscalers"/"horizontalpodautoscaler", Namespaced, &["hpa"], &["all"], ALL_VERBS, &[status("HorizontalPodAutoscaler")];

// autoscaling/v1
    HORIZONTAL_POD_AUTOSCALER_V1: autoscaling::v1::HorizontalPodAutoscaler, "autoscaling"/"v1" "horizontalpodautoscalers"/"horizontalpodautoscaler", Namespaced, &["hpa"], &["all"], ALL_VERBS, &[status("HorizontalPodAutoscaler")], stored_as HORIZONTAL_POD_AUTOSCALER;

// batch/v1
    CRON_JOB: batch::v1::CronJob, "batch"/"v1" "cronjobs"/"cronjob", Namespaced, &["cj"], &["all"], ALL_VERBS, &[status("CronJob")];
    JOB: batch::v1::Job, "batch"/"v1" "jobs"/"job", Namespaced, &[], &["all"], ALL_VERBS, &[status("Job")];

// certificates.k8s.io/v1
    CERTIFICATE_SIGNING_REQUEST: certificates::v1::CertificateSigningRequest, "certificates.k8s.io"/"v1" "certificatesigningrequests"/"certificatesigningrequest", Cluster, &["csr"], &[], ALL_VERBS, &[sub("approval", ("", "", "CertificateSigningRequest"), &["get", "patch", "update"]), status("CertificateSigningRequest")];

// networking.k8s.io/v1
    INGRESS_CLASS: networking::v1::IngressClass, "networking.k8s.io"/"v1" "ingressclasses"/"ingressclass", Cluster, &[], &[], ALL_VERBS, &[];
    INGRESS: networking::v1::Ingress, "networking.k8s.io"/"v1" "ingresses"/"ingress", Namespaced, &["ing"], &[], ALL_VERBS, &[status("Ingress")];
    IP_ADDRESS: networking::v1::IPAddress, "networking.k8s.io"/"v1" "ipaddresses"/"ipaddress", Cluster, &["ip"], &[], ALL_VERBS, &[];
    NETWORK_POLICY: networking::v1::NetworkPolicy, "networking.k8s.io"/"v1" "networkpolicies"/"networkpolicy", Namespaced, &["netpol"], &[], ALL_VERBS, &[];
    SERVICE_CIDR: networking::v1::ServiceCIDR, "networking.k8s.io"/"v1" "servicecidrs"/"servicecidr", Cluster, &[], &[], ALL_VERBS, &[status("ServiceCIDR")];

// policy/v1
    POD_DISRUPTION_BUDGET: policy::v1::PodDisruptionBudget, "policy"/"v1" "poddisruptionbudgets"/"poddisruptionbudget", Namespaced, &["pdb"], &[], ALL_VERBS, &[status("PodDisruptionBudget")];

// rbac.authorization.k8s.io/v1
    CLUSTER_ROLE_BINDING: rbac::v1::ClusterRoleBinding, "rbac.authorization.k8s.io"/"v1" "clusterrolebindings"/"clusterrolebinding", Cluster, &[], &[], ALL_VERBS, &[];
    CLUSTER_ROLE: rbac::v1::ClusterRole, "rbac.authorization.k8s.io"/"v1" "clusterroles"/"clusterrole", Cluster, &[], &[], ALL_VERBS, &[];
    ROLE_BINDING: rbac::v1::RoleBinding, "rbac.authorization.k8s.io"/"v1" "rolebindings"/"rolebinding", Namespaced, &[], &[], ALL_VERBS, &[];
    ROLE: rbac::v1::Role, "rbac.authorization.k8s.io"/"v1" "roles"/"role", Namespaced, &[], &[], ALL_VERBS, &[];

// storage.k8s.io/v1
    CSI_DRIVER: storage::v1::CSIDriver, "storage.k8s.io"/"v1" "csidrivers"/"csidriver", Cluster, &[], &[], ALL_VERBS, &[];
    CSI_NODE: storage::v1::CSINode, "storage.k8s.io"/"v1" "csinodes"/"csinode", Cluster, &[], &[], ALL_VERBS, &[];
    CSI_STORAGE_CAPACITY: storage::v1::CSIStorageCapacity, "storage.k8s.io"/"v1" "csistoragecapacities"/"csistoragecapacity", Namespaced, &[], &[], ALL_VERBS, &[];
    STORAGE_CLASS: storage::v1::StorageClass, "storage.k8s.io"/"v1" "storageclasses"/"storageclass", Cluster, &["sc"], &[], ALL_VERBS, &[];
    VOLUME_ATTACHMENT: storage::v1::VolumeAttachment, "storage.k8s.io"/"v1" "volumeattachments"/"volumeattachment", Cluster, &[], &[], ALL_VERBS, &[status("VolumeAttachment")];
    VOLUME_ATTRIBUTES_CLASS: storage::v1::VolumeAttributesClass, "storage.k8s.io"/"v1" "volumeattributesclasses"/"volumeattributesclass", Cluster, &["vac"], &[], ALL_VERBS, &[];

// admissionregistration.k8s.io/v1
    MUTATING_ADMISSION_POLICY: admissionregistration::v1::MutatingAdmissionPolicy, "admissionregistration.k8s.io"/"v1" "mutatingadmissionpolicies"/"mutatingadmissionpolicy", Cluster, &[], &["api-extensions"], ALL_VERBS, &[];
    MUTATING_ADMISSION_POLICY_BINDING: admissionregistration::v1::MutatingAdmissionPolicyBinding, "admissionregistration.k8s.io"/"v1" "mutatingadmissionpolicybindings"/"mutatingadmissionpolicybinding", Cluster, &[], &["api-extensions"], ALL_VERBS, &[];
    MUTATING_WEBHOOK_CONFIGURATION: admissionregistration::v1::MutatingWebhookConfiguration, "admissionregistration.k8s.io"/"v1" "mutatingwebhookconfigurations"/"mutatingwebhookconfiguration", Cluster, &[], &["api-extensions"], ALL_VERBS, &[];
    VALIDATING_ADMISSION_POLICY: admissionregistration::v1::ValidatingAdmissionPolicy, "admissionregistration.k8s.io"/"v1" "validatingadmissionpolicies"/"validatingadmissionpolicy", Cluster, &[], &["api-extensions"], ALL_VERBS, &[status("ValidatingAdmissionPolicy")];
    VALIDATING_ADMISSION_POLICY_BINDING: admissionregistration::v1::ValidatingAdmissionPolicyBinding, "admissionregistration.k8s.io"/"v1" "validatingadmissionpolicybindings"/"validatingadmissionpolicybinding", Cluster, &[], &["api-extensions"], ALL_VERBS, &[];
    VALIDATING_WEBHOOK_CONFIGURATION: admissionregistration::v1::ValidatingWebhookConfiguration, "admissionregistration.k8s.io"/"v1" "validatingwebhookconfigurations"/"validatingwebhookconfiguration", Cluster, &[], &["api-extensions"], ALL_VERBS, &[];

// apiextensions.k8s.io/v1
    CUSTOM_RESOURCE_DEFINITION: CustomResourceDefinition, "apiextensions.k8s.io"/"v1" "customresourcedefinitions"/"customresourcedefinition", Cluster, &["crd", "crds"], &["api-extensions"], ALL_VERBS, &[status("CustomResourceDefinition")];

// scheduling.k8s.io/v1
    PRIORITY_CLASS: scheduling::v1::PriorityClass, "scheduling.k8s.io"/"v1" "priorityclasses"/"priorityclass", Cluster, &["pc"], &[], ALL_VERBS, &[];

// coordination.k8s.io/v1
    LEASE: coordination::v1::Lease, "coordination.k8s.io"/"v1" "leases"/"lease", Namespaced, &[], &[], ALL_VERBS, &[];

// node.k8s.io/v1
    RUNTIME_CLASS: node::v1::RuntimeClass, "node.k8s.io"/"v1" "runtimeclasses"/"runtimeclass", Cluster, &[], &[], ALL_VERBS, &[];

// discovery.k8s.io/v1
    ENDPOINT_SLICE: discovery::v1::EndpointSlice, "discovery.k8s.io"/"v1" "endpointslices"/"endpointslice", Namespaced, &[], &[], ALL_VERBS, &[];

// resource.k8s.io/v1
    DEVICE_CLASS: resource::v1::DeviceClass, "resource.k8s.io"/"v1" "deviceclasses"/"deviceclass", Cluster, &[], &[], ALL_VERBS, &[];
    RESOURCE_CLAIM: resource::v1::ResourceClaim, "resource.k8s.io"/"v1" "resourceclaims"/"resourceclaim", Namespaced, &[], &[], ALL_VERBS, &[status("ResourceClaim")];
    RESOURCE_CLAIM_TEMPLATE: resource::v1::ResourceClaimTemplate, "resource.k8s.io"/"v1" "resourceclaimtemplates"/"resourceclaimtemplate", Namespaced, &[], &[], ALL_VERBS, &[];
    RESOURCE_SLICE: resource::v1::ResourceSlice, "resource.k8s.io"/"v1" "resourceslices"/"resourceslice", Cluster, &[], &[], ALL_VERBS, &[];

// flowcontrol.apiserver.k8s.io/v1
    FLOW_SCHEMA: flowcontrol::v1::FlowSchema, "flowcontrol.apiserver.k8s.io"/"v1" "flowschemas"/"flowschema", Cluster, &[], &[], ALL_VERBS, &[status("FlowSchema")];
    PRIORITY_LEVEL_CONFIGURATION: flowcontrol::v1::PriorityLevelConfiguration, "flowcontrol.apiserver.k8s.io"/"v1" "prioritylevelconfigurations"/"prioritylevelconfiguration", Cluster, &[], &[], ALL_VERBS, &[status("PriorityLevelConfiguration")];}

/// The kinds that a server serves: the built-in ones of the version that it emulates, and custom ones.
#[derive(Clone, Debug, Default)]
pub struct ServedKinds {
    custom: Arc<[Kind]>,
    emulation: Emulation,
}

impl ServedKinds {
    /// `custom`: one kind for each version, the preferred version of a kind first.
    pub fn with(custom: impl IntoIterator<Item = Kind>) -> Self {
        Self::emulating(Emulation::default(), custom)
    }

    /// As [`ServedKinds::with`], by a server that emulates an older version.
    pub fn emulating(emulation: Emulation, custom: impl IntoIterator<Item = Kind>) -> Self {
        let mut custom: Vec<Kind> = custom.into_iter().collect();
        // Stable: versions stay in their order.
        custom.sort_by(|a, b| (a.group(), a.plural()).cmp(&(b.group(), b.plural())));
        ServedKinds {
            custom: custom.into(),
            emulation,
        }
    }

    pub fn emulation(&self) -> Emulation {
        self.emulation
    }

    /// The custom kinds.
    pub fn custom(&self) -> &[Kind] {
        &self.custom
    }

    pub fn all(&self) -> impl Iterator<Item = &Kind> {
        let built_in = ALL.iter().copied().filter(|kind| self.emulation.serves(kind));
        built_in.chain(self.custom.iter())
    }

    /// The kind served at this group, version and plural.
    pub fn by_resource(&self, group: &str, version: &str, plural: &str) -> Option<Kind> {
        let custom = || {
            let mut custom = self.custom.iter();
            custom.find(|k| k.plural() == plural && k.group() == group && k.version() == version)
        };
        by_resource(group, version, plural)
            .filter(|kind| self.emulation.serves(kind))
            .or_else(custom)
            .cloned()
    }

    /// The kind of this apiVersion and kind.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<Kind> {
        let custom = || {
            let (group, version) = api_version.split_once('/')?;
            let mut custom = self.custom.iter();
            custom.find(|k| k.kind() == kind && k.group() == group && k.version() == version)
        };
        by_kind(api_version, kind)
            .filter(|kind| self.emulation.serves(kind))
            .or_else(custom)
            .cloned()
    }

    /// The kinds of a group version, ordered by resource.
    pub fn of(&self, group: &str, version: &str) -> Vec<&Kind> {
        let mut kinds: Vec<&Kind> = self
            .all()
            .filter(|kind| kind.group() == group && kind.version() == version)
            .collect();
        kinds.sort_by_key(|kind| kind.plural());
        kinds
    }

    /// As [`groups`], for the kinds that are served; groups of custom kinds follow, ordered by name.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = groups_of(|kind| self.emulation.serves(kind));
        let built_in = groups.len();
        for kind in self.custom.iter() {
            let versions = match groups.iter_mut().find(|(g, _)| *g == kind.group()) {
                Some((_, versions)) => versions,
                None => {
                    groups.push((kind.group(), Vec::new()));
                    let Some((_, versions)) = groups.last_mut() else {
                        continue;
                    };
                    versions
                }
            };
            if !versions.contains(&kind.version()) {
                versions.push(kind.version());
            }
        }
        for (_, versions) in groups.iter_mut().skip(built_in) {
            versions.sort_by_key(|version| std::cmp::Reverse(custom::version_order(version)));
        }
        groups
    }
}

/// The kind served at this group, version and plural.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    ALL.iter()
        .copied()
        .find(|k| k.plural() == plural && k.group() == group && k.version() == version)
}

/// The kind of this apiVersion (`v1`, `apps/v1`) and kind.
pub fn by_kind(api_version: &str, kind: &str) -> Option<&'static Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ALL.iter()
        .copied()
        .find(|k| k.kind() == kind && k.group() == group && k.version() == version)
}

/// Groups with their versions, preferred first, in discovery's order. The core group is `""`.
pub fn groups() -> Vec<(&'static str, Vec<&'static str>)> {
    groups_of(|_| true)
}

fn groups_of(served: impl Fn(&Kind) -> bool) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for kind in ALL.iter().filter(|kind| served(kind)) {
        match groups.iter_mut().find(|(g, _)| *g == kind.group()) {
            Some((_, versions)) if versions.contains(&kind.version()) => {}
            Some((_, versions)) => versions.push(kind.version()),
            None => groups.push((kind.group(), vec![kind.version()])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_resource_and_by_its_name() {
        for kind in ALL {
            assert_eq!(
                by_resource(kind.group(), kind.version(), kind.plural()),
                Some(*kind)
            );
            assert_eq!(by_kind(&kind.api_version(), kind.kind()), Some(*kind));
        }
    }

    #[test]
    fn autoscaling_prefers_v2() {
        let groups = groups();
        assert_eq!(groups[0].0, "");
        let autoscaling = groups
            .iter()
            .find(|(g, _)| *g == "autoscaling")
            .map(|(_, v)| v.clone());
        assert_eq!(autoscaling, Some(vec!["v2", "v1"]));
    }
}
