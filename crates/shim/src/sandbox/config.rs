//! The configuration of a sandbox's container, where every field is known: what is not listed here is an error, and the
//! OCI runtime makes the container.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(rename = "ociVersion")]
    pub _version: String,
    pub process: Process,
    pub root: Root,
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub mounts: Vec<Mount>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    pub linux: Linux,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    #[serde(default)]
    pub terminal: bool,
    pub user: User,
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<String>,
    pub cwd: String,
    pub capabilities: Capabilities,
    #[serde(default, rename = "noNewPrivileges")]
    pub no_new_privileges: bool,
    #[serde(rename = "oomScoreAdj")]
    pub oom_score_adj: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    #[serde(default, rename = "additionalGids")]
    pub additional_gids: Vec<u32>,
}

/// Names of capabilities.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    pub bounding: Vec<String>,
    pub effective: Vec<String>,
    pub permitted: Vec<String>,
    pub inheritable: Vec<String>,
    pub ambient: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    pub path: String,
    #[serde(default)]
    pub readonly: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    pub destination: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
    #[serde(default)]
    pub options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linux {
    #[serde(default)]
    pub resources: Resources,
    #[serde(rename = "cgroupsPath")]
    pub cgroups_path: String,
    pub namespaces: Vec<Namespace>,
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
    pub seccomp: Option<Seccomp>,
    #[serde(default, rename = "maskedPaths")]
    pub masked_paths: Vec<String>,
    #[serde(default, rename = "readonlyPaths")]
    pub readonly_paths: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    pub devices: Vec<DeviceRule>,
    pub cpu: Cpu,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRule {
    pub allow: bool,
    pub access: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cpu {
    pub shares: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seccomp {
    #[serde(rename = "defaultAction")]
    pub default_action: String,
    #[serde(rename = "defaultErrnoRet")]
    pub default_errno: Option<u16>,
    #[serde(default)]
    pub architectures: Vec<String>,
    #[serde(default)]
    pub syscalls: Vec<Rule>,
}

/// An action for system calls with these arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub names: Vec<String>,
    pub action: String,
    #[serde(rename = "errnoRet")]
    pub errno: Option<u16>,
    #[serde(default)]
    pub args: Vec<Argument>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    pub index: u8,
    pub value: u64,
    #[serde(default, rename = "valueTwo")]
    pub value_two: u64,
    pub op: String,
}
