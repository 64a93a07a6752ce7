//! The deciding half of the controllers: plain functions from a snapshot of the caches to actions.
//!
//! No IO, no clock, no randomness: a controller reads a [`View`], gets the time as an argument, and returns [`Action`]s with the
//! preconditions that they were decided on (uid, resourceVersion). The driver in `control` carries them out.
//! To add a controller: one file (or directory), one line in [`all`].
//!
//! # Where things are
//!
//! Each controller is a module named for it. Lost nodes: `node/` (when a node is not ready, and when its pods are evicted) and `fencing/`; maxSurge and
//! maxUnavailable: `rollout.rs` of `deployment/` and `daemonset/`, `statefulset/`; their percentages: `deployment/rollout_bounds.rs`; attachment of volumes: `attachdetach.rs`,
//! `csi_attach.rs`; podCIDRs and load balancers: `nodeipam/`, `servicelb/`; the endpoint barrier: `endpoint_propagation.rs` (SPEC B7);
//! ResourceClaims: `resourceclaim/`; declared domains of topology keys: `topology_domains/` (SPEC B3); only [`podgc`] can create a
//! `Release`, the action that completes a pod's deletion (SPEC S2).
//! Fence agents are run in `knarr-control`. `docs/controllers.md` lists which of v1.36's controllers there are.

pub mod action;
pub mod attachdetach;
pub mod bootstrap_token;
pub mod certificates;
pub mod cluster_dns;
pub mod clusterrole_aggregation;
pub mod controller;
pub mod cronjob;
pub mod csi_attach;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod endpoint_propagation;
pub mod endpoints;
pub mod ephemeral_volume;
#[cfg(feature = "fake")]
pub mod fake;
pub mod fencing;
pub mod garbagecollector;
pub mod history;
pub mod job;
pub mod namespace;
pub mod node;
pub mod nodeipam;
pub mod owner;
pub mod persistentvolume;
pub mod pod;
pub mod podautoscaling;
pub mod podgc;
pub mod protection;
#[cfg(test)]
mod registrations;
pub mod replicaset;
pub mod replicationcontroller;
pub mod resourceclaim;
pub mod resourcequota;
pub mod root_ca;
pub mod service_account_tokens;
pub mod service_ip_addresses;
pub mod serviceaccount;
pub mod servicecidrs;
pub mod servicelb;
pub mod statefulset;
pub mod sweep;
pub mod topology_domains;
pub mod ttlafterfinished;
pub mod vac_protection;
pub mod validatingadmissionpolicystatus;
#[cfg(test)]
mod world;

use std::sync::Arc;

use k8s_openapi::jiff::tz::TimeZone;
use knarr_api::k8s_openapi;
use knarr_api::scale_down::Policy;

pub use action::{Action, Failure};
pub use controller::{Context, Controller, ObjectChange, View};

/// The configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The CA bundle of the API server for pods, in PEM; without it namespaces get no `kube-root-ca.crt`.
    pub root_ca: Option<String>,
    /// How many finished pods may exist before the oldest are deleted; 0 means no limit (SPEC L12).
    pub terminated_pod_gc_threshold: usize,
    /// Which pods of ReplicaSets and ReplicationControllers are deleted first, where no annotation says it (SPEC B3).
    pub scale_down: Policy,
    /// When a node is lost, and how fast pods are evicted then.
    pub node_lifecycle: node::health::Lifecycle,
    /// The allocation of nodes' podCIDRs; without it nodes register with theirs, or another component allocates them.
    pub node_ipam: Option<nodeipam::Config>,
    /// The load balancer that gives Services of type LoadBalancer the nodes' addresses; without it another one has to serve them.
    pub service_load_balancer: Option<servicelb::Config>,
    /// The addresses of the Service `kube-system/kube-dns`, the primary first; none where DNS is disabled.
    pub cluster_dns: Vec<std::net::IpAddr>,
    /// How HorizontalPodAutoscalers are reconciled.
    pub pod_autoscaling: podautoscaling::Settings,
    /// Finds a time zone by its IANA name, for CronJobs; the driver has the database.
    pub time_zone: fn(&str) -> Option<TimeZone>,
    /// Signs certificates; without it CertificateSigningRequests are neither approved nor signed.
    pub authority: Option<Arc<dyn certificates::Authority>>,
    /// Signs the tokens of service account token Secrets; without it they get none.
    pub token_signer: Option<Arc<dyn service_account_tokens::TokenSigner>>,
    /// The names and addresses that no kubelet's serving certificate may have.
    pub reserved: certificates::serving_approver::Reserved,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            root_ca: None,
            terminated_pod_gc_threshold: 12_500,
            scale_down: Policy::Default,
            node_lifecycle: node::health::Lifecycle::default(),
            node_ipam: None,
            service_load_balancer: None,
            cluster_dns: Vec::new(),
            pod_autoscaling: podautoscaling::Settings::default(),
            time_zone: |name| (name == "UTC").then_some(TimeZone::UTC),
            authority: None,
            token_signer: None,
            reserved: Default::default(),
        }
    }
}

/// All controllers that reconcile keys.
pub fn all(config: &Config) -> Vec<Box<dyn Controller>> {
    let mut all: Vec<Box<dyn Controller>> = vec![
        Box::new(attachdetach::AttachDetach),
        Box::new(attachdetach::VolumesAttached),
        Box::new(bootstrap_token::cleaner::TokenCleaner),
        Box::new(bootstrap_token::signer::BootstrapSigner),
        Box::new(clusterrole_aggregation::ClusterRoleAggregation),
        Box::new(cronjob::CronJobs {
            time_zone: config.time_zone,
        }),
        Box::new(csi_attach::CsiAttach),
        Box::new(daemonset::DaemonSets),
        Box::new(deployment::Deployments),
        Box::new(disruption::Disruptions),
        Box::new(disruption::stale::StaleDisruptions),
        Box::new(endpoint_propagation::EndpointPropagation),
        Box::new(endpoints::legacy::Endpoints),
        Box::new(endpoints::mirroring::EndpointSliceMirroring),
        Box::new(endpoints::slices::EndpointSlices),
        Box::new(ephemeral_volume::EphemeralVolumes),
        Box::new(job::Jobs),
        Box::new(namespace::Namespaces),
        Box::new(node::eviction::TaintEviction),
        Box::new(node::taints::NodeTaints),
        Box::new(persistentvolume::claims::ClaimBinder),
        Box::new(persistentvolume::expansion::VolumeExpansion),
        Box::new(persistentvolume::local::LocalVolumeCleanup),
        Box::new(persistentvolume::local::LocalProvisioner),
        Box::new(persistentvolume::volumes::VolumePhases),
        Box::new(protection::ClaimProtection),
        Box::new(protection::VolumeProtection),
        Box::new(replicaset::ReplicaSets {
            scale_down: config.scale_down,
        }),
        Box::new(replicationcontroller::ReplicationControllers {
            scale_down: config.scale_down,
        }),
        Box::new(resourceclaim::claims::ResourceClaims),
        Box::new(resourceclaim::device_taints::DeviceTaintEviction),
        Box::new(resourceclaim::pods::PodResourceClaims),
        Box::new(resourcequota::ResourceQuotas),
        Box::new(service_ip_addresses::ServiceIpAddresses),
        Box::new(serviceaccount::ServiceAccounts),
        Box::new(servicecidrs::ServiceCidrs),
        Box::new(statefulset::StatefulSets),
        Box::new(ttlafterfinished::TtlAfterFinished),
        Box::new(vac_protection::VacProtection),
        Box::new(validatingadmissionpolicystatus::PolicyStatus),
    ];
    if let Some(bundle) = config.root_ca.clone() {
        all.push(Box::new(root_ca::RootCa { bundle }));
    }
    if let Some(signer) = config.token_signer.clone() {
        all.push(Box::new(service_account_tokens::ServiceAccountTokens {
            root_ca: config.root_ca.clone(),
            signer,
        }));
    }
    if let Some(config) = config.node_ipam.clone() {
        all.push(Box::new(nodeipam::NodeIpam { config }));
    }
    if !config.cluster_dns.is_empty() {
        all.push(Box::new(cluster_dns::ClusterDns {
            addresses: config.cluster_dns.clone(),
        }));
    }
    if let Some(config) = config.service_load_balancer.clone() {
        all.push(Box::new(servicelb::ServiceLoadBalancer { config }));
    }
    if let Some(authority) = &config.authority {
        all.push(Box::new(certificates::approver::Approver));
        all.push(Box::new(
            certificates::network_agent_approver::NetworkAgentApprover,
        ));
        all.push(Box::new(certificates::serving_approver::ServingApprover {
            reserved: config.reserved.clone(),
        }));
        all.push(Box::new(certificates::signer::Signer(authority.clone())));
    }
    all
}

/// All controllers that evaluate all objects periodically.
pub fn sweeps(config: &Config) -> Vec<Box<dyn sweep::Sweep>> {
    let mut all: Vec<Box<dyn sweep::Sweep>> = vec![
        Box::new(node::health::NodeHealth::new(config.node_lifecycle)),
        Box::new(podgc::PodGc::new(config.terminated_pod_gc_threshold)),
    ];
    if let Some(authority) = &config.authority {
        all.push(Box::new(certificates::cleaner::Cleaner(authority.clone())));
    }
    all
}
