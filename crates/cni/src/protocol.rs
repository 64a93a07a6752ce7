//! CNI's configuration, results and errors, and how plugin and agent speak with each other.
//!
//! One request and one reply to a connection, each one JSON text: the plugin writes its request and closes its half, the
//! agent answers and closes.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Environment;
use crate::sandbox::{Bandwidth, HostPort, PodName, Protocol, SandboxId};

/// Versions whose results are those of 1.0.0.
pub const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];
/// The version of a configuration without one, by the CNI specification.
const FIRST_VERSION: &str = "0.1.0";
/// Interface names that the kernel takes.
const MAX_INTERFACE_BYTES: usize = 15;
/// Either way.
pub const MAX_MESSAGE_BYTES: u64 = 4 << 20;
/// Host ports of one pod.
const MAX_PORTS: usize = 4096;

/// CNI's error codes; from 100 on they are the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    IncompatibleVersion = 1,
    UnknownContainer = 3,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    TryAgain = 11,
    /// `STATUS` only.
    NotAvailable = 50,
    Exhausted = 101,
    PortInUse = 102,
    Kernel = 103,
    Hook = 104,
    /// `CHECK` found a difference.
    Differs = 105,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    #[serde(default)]
    pub details: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure {
            code,
            message: message.into(),
            details: String::new(),
        }
    }

    /// Appends an error with its sources.
    pub fn because(mut self, error: &dyn Error) -> Self {
        let mut details = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            details.push_str(": ");
            details.push_str(&error.to_string());
            source = error.source();
        }
        self.details = details;
        self
    }

    pub fn to_json(&self, version: &str) -> String {
        // containerd shows the message and drops the details.
        let message = match self.details.is_empty() {
            true => self.message.clone(),
            false => format!("{}: {}", self.message, self.details),
        };
        let mut error = serde_json::json!({
            "cniVersion": version,
            "code": self.code as u32,
            "msg": message,
        });
        if !self.details.is_empty() {
            error["details"] = self.details.clone().into();
        }
        error.to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

/// What the runtime writes to the plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    #[serde(default)]
    pub cni_version: String,
    pub name: String,
    /// Where the agent listens.
    pub socket: PathBuf,
    #[serde(default)]
    pub runtime_config: RuntimeConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_result: Option<serde_json::Value>,
    /// `GC`: what the runtime still has.
    #[serde(
        default,
        rename = "cni.dev/valid-attachments",
        skip_serializing_if = "Option::is_none"
    )]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
}

/// The capabilities of the plugin that the runtime makes use of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeConfig {
    pub port_mappings: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
}

/// A port of the node that leads to the pod. The aliases are containerd's: it writes the fields by their Go names, and the
/// reference plugins read any case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortMapping {
    #[serde(alias = "HostPort")]
    pub host_port: i64,
    #[serde(alias = "ContainerPort")]
    pub container_port: i64,
    #[serde(alias = "Protocol")]
    pub protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP")]
    pub host_ip: String,
}

/// The plugin's request to the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub command: Command,
    /// Not of `GC` and `STATUS`.
    pub attachment: Option<AttachmentRequest>,
    pub prev_result: Option<serde_json::Value>,
    pub valid: Option<Vec<String>>,
    pub host_ports: Vec<HostPort>,
    pub bandwidth: Bandwidth,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttachmentRequest {
    pub sandbox: SandboxId,
    pub interface: String,
    /// Absent in a `DEL` whose namespace was removed already.
    pub netns: Option<PathBuf>,
    pub pod: Option<PodName>,
}

/// What the agent answers; `ADD`'s result is completed with the version by the plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Added(Added),
    Done,
    Failed(Failure),
}

/// An attachment that works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    pub host_interface: String,
    pub host_mac: String,
    pub pod_interface: String,
    pub pod_mac: String,
    pub netns: PathBuf,
    pub addresses: Vec<IpAddr>,
    pub gateways: Vec<IpAddr>,
}

impl Added {
    pub fn to_json(&self, version: &str) -> String {
        let prefix = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let ips: Vec<serde_json::Value> = self
            .addresses
            .iter()
            .zip(&self.gateways)
            .map(|(address, gateway)| {
                serde_json::json!({
                    "interface": 1,
                    "address": format!("{address}/{}", prefix(address)),
                    "gateway": gateway,
                })
            })
            .collect();
        let routes: Vec<serde_json::Value> = self
            .gateways
            .iter()
            .map(|gateway| {
                let all = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
                serde_json::json!({ "dst": all, "gw": gateway })
            })
            .collect();
        serde_json::json!({
            "cniVersion": version,
            "interfaces": [
                { "name": self.host_interface, "mac": self.host_mac },
                { "name": self.pod_interface, "mac": self.pod_mac, "sandbox": self.netns },
            ],
            "ips": ips,
            "routes": routes,
            "dns": {},
        })
        .to_string()
    }
}

/// The answer to the command `VERSION`; `None` for another command, if its version is supported.
pub fn version_answer(command: &str, version: &str, supported: &[&str]) -> Result<Option<String>, Failure> {
    if command == "VERSION" {
        let versions = serde_json::json!({ "cniVersion": version, "supportedVersions": supported });
        return Ok(Some(versions.to_string()));
    }
    if !supported.contains(&version) {
        return Err(Failure::new(
            Code::IncompatibleVersion,
            format!("cniVersion {version} is not supported, expected one of {supported:?}"),
        ));
    }
    Ok(None)
}

/// The version of a configuration, even if the rest of it is invalid.
pub fn version_of(config: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        cni_version: Option<String>,
    }
    let version: Option<Version> = serde_json::from_slice(config).ok();
    version
        .and_then(|version| version.cni_version)
        .filter(|version| !version.is_empty())
        .unwrap_or_else(|| FIRST_VERSION.into())
}

/// The parameters of `CNI_ARGS`: `A=b;C=d`.
pub fn arguments(environment: &Environment) -> BTreeMap<&str, &str> {
    let all = environment
        .get("CNI_ARGS")
        .map(String::as_str)
        .unwrap_or_default();
    all.split(';').filter_map(|pair| pair.split_once('=')).collect()
}

/// The sandbox and interface that the environment names.
pub fn attachment(environment: &Environment, needs_netns: bool) -> Result<AttachmentRequest, Failure> {
    let invalid = |message: String| Failure::new(Code::InvalidEnvironment, message);
    let variable = |name: &str| {
        let value = environment.get(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| invalid(format!("{name} is not set")))
    };
    let sandbox = SandboxId::try_from(variable("CNI_CONTAINERID")?.clone())
        .map_err(|error| invalid("CNI_CONTAINERID is invalid".into()).because(&error))?;
    let interface = variable("CNI_IFNAME")?.clone();
    let is_name = |name: &str| {
        name.len() <= MAX_INTERFACE_BYTES
            && !matches!(name, "." | ".." | "lo" | "all" | "default")
            && name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'))
    };
    if !is_name(&interface) {
        return Err(invalid("CNI_IFNAME is not an interface's name".into()));
    }
    let netns = match needs_netns {
        true => Some(PathBuf::from(variable("CNI_NETNS")?)),
        false => environment
            .get("CNI_NETNS")
            .filter(|netns| !netns.is_empty())
            .map(PathBuf::from),
    };
    let arguments = arguments(environment);
    let argument = |name: &str| arguments.get(name).copied().filter(|value| !value.is_empty());
    let pod = argument("K8S_POD_NAMESPACE")
        .zip(argument("K8S_POD_NAME"))
        .map(|(namespace, name)| PodName {
            namespace: namespace.into(),
            name: name.into(),
            uid: argument("K8S_POD_UID").map(Into::into),
        });
    Ok(AttachmentRequest {
        sandbox,
        interface,
        netns,
        pod,
    })
}

/// The mappings as host ports; a mapping without a host port is none.
pub fn host_ports(mappings: &[PortMapping]) -> Result<Vec<HostPort>, Failure> {
    let invalid = |message: String| Failure::new(Code::InvalidConfig, message);
    if mappings.len() > MAX_PORTS {
        return Err(invalid(format!(
            "portMappings has {} entries, expected at most {MAX_PORTS}",
            mappings.len()
        )));
    }
    let port = |field: &str, value: i64| match u16::try_from(value) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(invalid(format!(
            "portMappings.{field}: {value} is not a port, expected 1 to 65535"
        ))),
    };
    let mut ports = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.host_port != 0) {
        let host_ip = match mapping.host_ip.as_str() {
            "" => None,
            text => Some(
                text.parse()
                    .map_err(|_| invalid(format!("portMappings.hostIP: {text:?} is not an IP address")))?,
            ),
        };
        ports.push(HostPort {
            protocol: match mapping.protocol.to_ascii_lowercase().as_str() {
                "" | "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "sctp" => Protocol::Sctp,
                other => {
                    return Err(invalid(format!(
                        "portMappings.protocol: {other:?}, expected tcp, udp or sctp"
                    )));
                }
            },
            host_ip,
            host_port: port("hostPort", mapping.host_port)?,
            container_port: port("containerPort", mapping.container_port)?,
        });
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn n8_containerd_names_the_fields_as_go_does() {
        let of_containerd = json!({
            "portMappings": [{"HostPort": 8088, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "127.0.0.1"}],
            "bandwidth": {"IngressRate": 1, "IngressBurst": 2, "EgressRate": 3, "EgressBurst": 4},
        });
        let of_specification = json!({
            "portMappings": [{"hostPort": 8088, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}],
            "bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4},
        });
        let read = |config| serde_json::from_value::<RuntimeConfig>(config).unwrap();
        let read = [read(of_containerd), read(of_specification.clone())];
        for config in read {
            assert_eq!(serde_json::to_value(config).unwrap(), of_specification);
        }
    }
}
