//! What is said to a CSI driver and to whoever registers it: gRPC over a unix socket, of the two protocols what a kubelet
//! needs, declared by hand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

/// How long a driver may take, as every kubelet waits.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// The driver's own socket; empty: the one that was asked.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

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
pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
pub const VOLUME_MOUNT_GROUP: i32 = 6;

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCapability {
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

/// A call of one of the two protocols.
pub trait Call: prost::Message + Default + 'static {
    const PATH: &'static str;
    type Answer: prost::Message + Default + 'static;
}

/// Requests without content, told apart by what they ask.
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
    GetInfo, "/pluginregistration.Registration/GetInfo" => PluginInfo;
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
    RegistrationStatus, "/pluginregistration.Registration/NotifyRegistrationStatus";
    StageRequest, "/csi.v1.Node/NodeStageVolume";
    UnstageRequest, "/csi.v1.Node/NodeUnstageVolume";
    PublishRequest, "/csi.v1.Node/NodePublishVolume";
    UnpublishRequest, "/csi.v1.Node/NodeUnpublishVolume";
}

/// Asks whoever listens at the socket, with an error in gRPC's words.
pub async fn call<C: Call>(socket: &Path, request: C) -> Result<C::Answer, String> {
    let asked = async {
        let mut grpc = tonic::client::Grpc::new(connect(socket));
        grpc.ready()
            .await
            .map_err(|e| refusal(Code::Unavailable, &e.to_string()))?;
        let codec = tonic_prost::ProstCodec::<C, C::Answer>::default();
        let path = PathAndQuery::from_static(C::PATH);
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| refusal(status.code(), status.message()))
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(refusal(Code::DeadlineExceeded, "context deadline exceeded")),
    }
}

fn refusal(code: Code, message: &str) -> String {
    format!("rpc error: code = {code:?} desc = {message}")
}

fn connect(socket: &Path) -> Channel {
    let path = PathBuf::from(socket);
    // The address is not used: the connector goes to the socket.
    Endpoint::from_static("http://csi.invalid").connect_with_connector_lazy(tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(path).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    }))
}
