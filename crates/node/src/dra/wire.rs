//! The messages of the DRA plugin API, declared by hand: v1, and v1beta1 which has the same.

use std::collections::HashMap;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_kubelet::dra::health::{DeviceId, Health, Report};
use knarr_kubelet::dra::{self, ClaimRef};

use crate::plugins::call::methods;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourcesRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourcesResponse {
    /// By the claim's uid.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, NodePrepareResourceResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourceResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourcesRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourcesResponse {
    /// By the claim's uid.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, NodeUnprepareResourceResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourceResponse {
    #[prost(string, tag = "1")]
    pub error: String,
}

/// Of another service of the plugin, `v1alpha1.DRAResourceHealth`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeWatchResourcesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeWatchResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// 0: unknown, 1: healthy, 2: unhealthy.
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

impl NodeWatchResourcesResponse {
    /// A report without a device is skipped.
    pub fn reports(self) -> impl Iterator<Item = (DeviceId, Report)> {
        self.devices.into_iter().filter_map(|of| {
            let device = of.device?;
            let report = Report {
                health: match of.health {
                    1 => Health::Healthy,
                    2 => Health::Unhealthy,
                    _ => Health::Unknown,
                },
                message: of.message,
                timeout: SignedDuration::from_secs(of.health_check_timeout_seconds),
            };
            Some(((device.pool_name, device.device_name), report))
        })
    }
}

methods! {
    NodeWatchResourcesRequest, "/v1alpha1.DRAResourceHealth/NodeWatchResources" => NodeWatchResourcesResponse;
    NodePrepareResourcesRequest,
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources" => NodePrepareResourcesResponse;
    NodeUnprepareResourcesRequest,
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources" => NodeUnprepareResourcesResponse;
}

/// The version of the service that a driver is called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V1Beta1,
}

impl Version {
    /// By the name that plugins list among their supported versions.
    pub fn of_service(name: &str) -> Option<Self> {
        match name {
            "v1.DRAPlugin" => Some(Version::V1),
            "v1beta1.DRAPlugin" => Some(Version::V1Beta1),
            _ => None,
        }
    }

    pub fn prepare(self) -> &'static str {
        match self {
            Version::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Version::V1Beta1 => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        }
    }

    pub fn unprepare(self) -> &'static str {
        match self {
            Version::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            Version::V1Beta1 => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
        }
    }
}

impl From<&ClaimRef> for Claim {
    fn from(of: &ClaimRef) -> Self {
        Claim {
            namespace: of.namespace.clone(),
            uid: of.uid.clone(),
            name: of.name.clone(),
        }
    }
}

impl From<Device> for dra::Device {
    fn from(device: Device) -> Self {
        dra::Device {
            pool_name: device.pool_name,
            device_name: device.device_name,
            share_id: device.share_id,
            request_names: device.request_names,
            cdi_device_ids: device.cdi_device_ids,
        }
    }
}
