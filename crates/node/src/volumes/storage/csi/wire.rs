//! The requests that a kubelet sends to a CSI driver: gRPC over a unix socket, of the protocol what a kubelet needs, declared
//! by hand.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::host::Host;
use crate::plugins;
pub use crate::plugins::Call;
use crate::plugins::CallError;

/// How long a call of a driver may take, as in kubelet.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// 0: as many as there are.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Topology {
    #[prost(map = "string, string", tag = "1")]
    pub segments: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<Capability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Capability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<Rpc>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Rpc {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

pub const STAGE_UNSTAGE: i32 = 1;
pub const EXPAND_VOLUME: i32 = 3;
pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
pub const VOLUME_MOUNT_GROUP: i32 = 6;

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCapability {
    /// One of `block` and `mount` is set.
    #[prost(message, optional, tag = "1")]
    pub block: Option<Empty>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(map = "string, string", tag = "5")]
    pub secrets: HashMap<String, String>,
    #[prost(map = "string, string", tag = "6")]
    pub volume_context: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnstageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(map = "string, string", tag = "2")]
    pub publish_context: HashMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(map = "string, string", tag = "7")]
    pub secrets: HashMap<String, String>,
    #[prost(map = "string, string", tag = "8")]
    pub volume_context: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnpublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExpandRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(map = "string, string", tag = "6")]
    pub secrets: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    /// 0: there is none.
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

/// Requests without content, distinguished by their methods.
macro_rules! asks {
    ($($name:ident, $path:literal => $answer:ty;)*) => {$(
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct $name {}
        impl Call for $name {
            const PATH: &'static str = $path;
            type Answer = $answer;
        }
    )*};
}

asks! {
    NodeGetInfo, "/csi.v1.Node/NodeGetInfo" => NodeInfo;
    NodeGetCapabilities, "/csi.v1.Node/NodeGetCapabilities" => Capabilities;
}

macro_rules! calls {
    ($($name:ident, $path:literal;)*) => {$(
        impl Call for $name {
            const PATH: &'static str = $path;
            type Answer = Empty;
        }
    )*};
}

calls! {
    StageRequest, "/csi.v1.Node/NodeStageVolume";
    UnstageRequest, "/csi.v1.Node/NodeUnstageVolume";
    PublishRequest, "/csi.v1.Node/NodePublishVolume";
    UnpublishRequest, "/csi.v1.Node/NodeUnpublishVolume";
    ExpandRequest, "/csi.v1.Node/NodeExpandVolume";
}

/// Calls the driver.
pub async fn call<C: Call>(host: &dyn Host, socket: &Path, request: C) -> Result<C::Answer, CallError> {
    plugins::call_on(host, socket, request, TIMEOUT).await
}
