//! The messages of the device plugin API (v1beta1), declared by hand.

use std::collections::{BTreeMap, HashMap};

use knarr_kubelet::devicemanager::{self as devices, Allocation, PluginOptions};

use crate::plugins::call::methods;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, in the directory of the kubelet's.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    #[prost(string, tag = "3")]
    pub resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// `GetDevicePluginOptions` takes an empty message, as `ListAndWatch` does.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetDevicePluginOptions {}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct DevicePluginOptions {
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListAndWatch {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub health: String,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TopologyInfo {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartContainerRequest {
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationRequest {
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    #[prost(string, repeated, tag = "1")]
    pub available_device_ids: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub must_include_device_ids: Vec<String>,
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationResponse {
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationResponse {
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateRequest {
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateResponse {
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceSpec {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

methods! {
    RegisterRequest, "/v1beta1.Registration/Register" => Empty;
    GetDevicePluginOptions, "/v1beta1.DevicePlugin/GetDevicePluginOptions" => DevicePluginOptions;
    ListAndWatch, "/v1beta1.DevicePlugin/ListAndWatch" => ListAndWatchResponse;
    PreferredAllocationRequest, "/v1beta1.DevicePlugin/GetPreferredAllocation" => PreferredAllocationResponse;
    AllocateRequest, "/v1beta1.DevicePlugin/Allocate" => AllocateResponse;
    PreStartContainerRequest, "/v1beta1.DevicePlugin/PreStartContainer" => Empty;
}

impl From<DevicePluginOptions> for PluginOptions {
    fn from(options: DevicePluginOptions) -> Self {
        PluginOptions {
            pre_start_required: options.pre_start_required,
            get_preferred_allocation: options.get_preferred_allocation_available,
        }
    }
}

impl ListAndWatchResponse {
    pub fn by_id(self) -> BTreeMap<String, devices::Device> {
        let device = |device: Device| {
            let nodes = device.topology.into_iter().flat_map(|t| t.nodes);
            let known = devices::Device {
                is_healthy: device.health == "Healthy",
                numa_nodes: nodes.map(|node| node.id).collect(),
            };
            (device.id, known)
        };
        self.devices.into_iter().map(device).collect()
    }
}

impl From<ContainerAllocateResponse> for Allocation {
    fn from(answer: ContainerAllocateResponse) -> Self {
        let mount = |m: Mount| devices::Mount {
            container_path: m.container_path,
            host_path: m.host_path,
            read_only: m.read_only,
        };
        let device = |d: DeviceSpec| devices::DeviceNode {
            container_path: d.container_path,
            host_path: d.host_path,
            permissions: d.permissions,
        };
        Allocation {
            envs: answer.envs.into_iter().collect(),
            mounts: answer.mounts.into_iter().map(mount).collect(),
            devices: answer.devices.into_iter().map(device).collect(),
            annotations: answer.annotations.into_iter().collect(),
            cdi_devices: answer.cdi_devices.into_iter().map(|d| d.name).collect(),
        }
    }
}

impl From<&Allocation> for ContainerAllocateResponse {
    fn from(of: &Allocation) -> Self {
        let mount = |m: &devices::Mount| Mount {
            container_path: m.container_path.clone(),
            host_path: m.host_path.clone(),
            read_only: m.read_only,
        };
        let device = |d: &devices::DeviceNode| DeviceSpec {
            container_path: d.container_path.clone(),
            host_path: d.host_path.clone(),
            permissions: d.permissions.clone(),
        };
        let cdi = |name: &String| CdiDevice { name: name.clone() };
        ContainerAllocateResponse {
            envs: of.envs.clone().into_iter().collect(),
            mounts: of.mounts.iter().map(mount).collect(),
            devices: of.devices.iter().map(device).collect(),
            annotations: of.annotations.clone().into_iter().collect(),
            cdi_devices: of.cdi_devices.iter().map(cdi).collect(),
        }
    }
}
