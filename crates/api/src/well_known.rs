//! Labels, annotations, taints, finalizers and namespaces of Kubernetes that several components use ("Well-Known Labels,
//! Annotations and Taints" in Kubernetes' reference). What a single component uses is in that component.

/// The namespace of the nodes' leases (heartbeats).
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The node label and topology key of a single node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The node label and topology key of zones.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The taint of a node that is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The taint of a cordoned node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The annotation of a mirror pod, which a kubelet created for a static pod: the static pod's uid.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The annotation of a kubelet's pods: `api`, or where the kubelet has a static pod from.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The annotation by which a ReplicaSet chooses the pods that it deletes first.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The label of a Job's pods with the Job's name.
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// The label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of an EndpointSlice with the controller that writes it.
pub const ENDPOINT_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The annotation of Endpoints and EndpointSlices: when the Pod or Service changed that they were written for.
pub const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The annotation of an Ingress with its class, from before `spec.ingressClassName`.
pub const INGRESS_CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// The annotation of claims and volumes with their storage class, from before `spec.storageClassName`.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The annotation of a claim with the node that the scheduler selected, for which its volume is provisioned.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation of a claim whose binding is complete.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The annotation of a claim or volume that the control plane, not a user, bound to the other one.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The finalizer of PersistentVolumeClaims.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// The finalizer of PersistentVolumes.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// The finalizer of VolumeAttributesClasses.
pub const ATTRIBUTES_CLASS_PROTECTION: &str = "kubernetes.io/vac-protection";

/// The finalizer of an allocated ResourceClaim.
pub const CLAIM_DELETE_PROTECTION: &str = "resource.kubernetes.io/delete-protection";
/// The annotation of the ResourceClaim that the scheduler creates for the extended resources of a pod (KEP-5004).
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// The annotation of a Secret with the name of its ServiceAccount.
pub const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
/// The annotation of a ServiceAccount whose pods may use only the Secrets that it lists.
pub const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
