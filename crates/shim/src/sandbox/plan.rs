//! What is to be done for a sandbox, decided from its configuration before anything is done.
//!
//! A configuration gets a plan if all of it is carried out exactly as runc does; otherwise none, and runc is asked.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Component, Path};

use nix::libc::sock_filter;

use super::config::{Config, Linux, Mount};
use super::{capabilities, seccomp};

const CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
const SANDBOX: &str = "sandbox";
/// The namespaces that a sandbox gets; its network namespace is given.
const NEW: [&str; 4] = ["ipc", "mount", "pid", "uts"];
const NETWORK: &str = "network";
/// File systems that a sandbox's configuration mounts.
const KINDS: [&str; 6] = ["proc", "tmpfs", "devpts", "mqueue", "sysfs", "bind"];
/// Options of file systems, besides the flags.
const DATA: [&str; 5] = ["mode=", "size=", "gid=", "ptmxmode=", "newinstance"];
const FLAGS: [&str; 8] = [
    "nosuid",
    "noexec",
    "nodev",
    "ro",
    "rw",
    "strictatime",
    "bind",
    "rbind",
];
/// sysctls of the namespaces that a sandbox has of its own; as runc checks them.
const IPC_SYSCTLS: [&str; 7] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
];
const SHM_RMID_FORCED: &str = "kernel.shm_rmid_forced";
const HOSTNAME_BYTES: usize = 64;

/// A sandbox to make.
pub struct Plan {
    pub arguments: Vec<CString>,
    pub environment: Vec<CString>,
    pub hostname: String,
    pub network: String,
    pub cgroup: String,
    pub cpu_shares: Option<u64>,
    pub oom_score_adj: Option<i32>,
    pub mounts: Vec<Mount>,
    pub readonly_root: bool,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
    pub sysctls: BTreeMap<String, String>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub capabilities: capabilities::Sets,
    pub no_new_privileges: bool,
    pub filter: Option<Vec<sock_filter>>,
}

impl Plan {
    /// The plan for a container; none if it is no sandbox, or one that the OCI runtime is to make.
    pub fn of(config: &[u8]) -> Option<Plan> {
        let config: Config = serde_json::from_slice(config).ok()?;
        if config.annotations.get(CONTAINER_TYPE).map(String::as_str) != Some(SANDBOX) {
            return None;
        }
        let network = network(&config.linux)?;
        let process = config.process;
        let filter = match &config.linux.seccomp {
            // Without no_new_privs a filter is loaded with privileges, at another moment.
            Some(_) if !process.no_new_privileges => return None,
            Some(profile) => Some(seccomp::compile(profile)?),
            None => None,
        };
        let plain = !process.terminal
            && config.root.path == "rootfs"
            && process.cwd == "/"
            && process
                .args
                .first()
                .is_some_and(|program| program.starts_with('/'))
            && is_absolute(&config.linux.cgroups_path)
            && !config.hostname.is_empty()
            && config.hostname.len() <= HOSTNAME_BYTES
            && has_default_devices(&config.linux)
            && config.mounts.iter().all(is_known_mount)
            && has_proc(&config.mounts)
            && config.linux.masked_paths.iter().all(|path| is_absolute(path))
            && config.linux.readonly_paths.iter().all(|path| is_absolute(path))
            && config.linux.sysctl.keys().all(|name| is_known_sysctl(name));
        if !plain {
            return None;
        }
        let text = |texts: Vec<String>| -> Option<Vec<CString>> {
            texts.into_iter().map(|text| CString::new(text).ok()).collect()
        };
        Some(Plan {
            capabilities: capabilities::Sets::parse(&process.capabilities)?,
            arguments: text(process.args)?,
            environment: environment(text(process.env)?)?,
            hostname: config.hostname,
            network,
            cgroup: config.linux.cgroups_path.trim_start_matches('/').to_owned(),
            cpu_shares: config.linux.resources.cpu.shares,
            oom_score_adj: process.oom_score_adj,
            mounts: config.mounts,
            readonly_root: config.root.readonly,
            masked_paths: config.linux.masked_paths,
            readonly_paths: config.linux.readonly_paths,
            sysctls: config.linux.sysctl,
            uid: process.user.uid,
            gid: process.user.gid,
            groups: process.user.additional_gids,
            no_new_privileges: process.no_new_privileges,
            filter,
        })
    }
}

/// The path of the network namespace, if the namespaces are those of a pod that shares none with the host.
fn network(linux: &Linux) -> Option<String> {
    let mut new: Vec<&str> = Vec::new();
    let mut network = None;
    for namespace in &linux.namespaces {
        match (namespace.kind.as_str(), namespace.path.as_str()) {
            (NETWORK, path) if path.starts_with('/') && network.is_none() => network = Some(path.to_owned()),
            (kind, "") => new.push(kind),
            _ => return None,
        }
    }
    new.sort_unstable();
    network.filter(|_| new == NEW)
}

/// runc sets HOME where it is not set: to the user's home, which is `/` where there is no `/etc/passwd` (a root file system
/// with one is left to runc).
fn environment(mut environment: Vec<CString>) -> Option<Vec<CString>> {
    let mut names = Vec::new();
    for variable in &environment {
        let text = variable.to_bytes();
        let end = text
            .iter()
            .position(|byte| *byte == b'=')
            .filter(|end| *end > 0)?;
        let name = text.get(..end)?.to_vec();
        // The last of two counts.
        if names.contains(&name) {
            return None;
        }
        names.push(name);
    }
    if !names.iter().any(|name| name == b"HOME") {
        environment.push(c"HOME=/".to_owned());
    }
    Some(environment)
}

fn is_absolute(path: &str) -> bool {
    let mut components = Path::new(path).components();
    components.next() == Some(Component::RootDir)
        && path.len() > 1
        && components.all(|component| matches!(component, Component::Normal(_)))
}

/// Nothing but the devices that every container has.
fn has_default_devices(linux: &Linux) -> bool {
    matches!(linux.resources.devices.as_slice(), [rule] if !rule.allow && rule.access == "rwm")
}

/// procfs comes first, and nothing is mounted over it or in it: paths by descriptor lead through it.
fn has_proc(mounts: &[Mount]) -> bool {
    let is_proc = |mount: &Mount| Path::new(&mount.destination).starts_with("/proc");
    matches!(mounts, [first, others @ ..]
        if first.kind == "proc" && first.destination == "/proc" && !others.iter().any(is_proc))
}

fn is_known_mount(mount: &Mount) -> bool {
    let known = |option: &String| {
        FLAGS.contains(&option.as_str())
            || DATA.iter().any(|data| option.starts_with(data)) && !option.contains(',')
    };
    let has = |name: &str| mount.options.iter().any(|option| option == name);
    let is_bind = has("bind") || has("rbind");
    is_absolute(&mount.destination)
        && KINDS.contains(&mount.kind.as_str())
        && mount.options.iter().all(known)
        && is_bind == (mount.kind == "bind")
        && (!is_bind || is_absolute(&mount.source))
        // Its devices are made after it is mounted.
        && !(mount.kind == "tmpfs" && has("ro"))
        && (mount.kind != "tmpfs" || mount.options.iter().any(|option| option.starts_with("mode=")))
}

fn is_known_sysctl(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let known = name.starts_with("net.")
        || name.starts_with("fs.mqueue.")
        || IPC_SYSCTLS.contains(&name)
        || name == SHM_RMID_FORCED;
    known && name.bytes().all(plain) && !name.contains("..")
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A configuration as containerd's CRI plugin writes it for a pod.
    pub fn sandbox() -> Value {
        let capabilities = json!(["CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
        let mount = |kind: &str, at: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
        json!({
            "ociVersion": "1.0.2-dev",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sleep", "1000"],
                "env": ["PATH=/bin"],
                "cwd": "/",
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
                "noNewPrivileges": true,
                "oomScoreAdj": 0,
            },
            "root": {"path": "rootfs", "readonly": true},
            "hostname": "host0",
            "mounts": [
                mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
                mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
                mount("devpts", "/dev/pts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
                mount("tmpfs", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
                mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
                mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
            ],
            "annotations": {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": "s"},
            "linux": {
                "resources": {"devices": [{"allow": false, "access": "rwm"}], "cpu": {"shares": 2}},
                "cgroupsPath": "/pods/s",
                "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                    {"type": "network", "path": "/run/netns/n"}],
                "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
                    {"names": ["read"], "action": "SCMP_ACT_ALLOW"}]},
                "maskedPaths": ["/proc/kcore"],
                "readonlyPaths": ["/proc/sys"],
            },
        })
    }

    #[test]
    fn a_pods_sandbox_has_a_plan() {
        let plan = Plan::of(sandbox().to_string().as_bytes()).unwrap();
        assert_eq!(
            (plan.network.as_str(), plan.cgroup.as_str()),
            ("/run/netns/n", "pods/s")
        );
        assert_eq!(plan.environment, [c"PATH=/bin".to_owned(), c"HOME=/".to_owned()]);
    }

    #[test]
    fn what_is_not_carried_out_exactly_is_left_to_the_runtime() {
        for (pointer, value) in [
            (
                "/annotations/io.kubernetes.cri.container-type",
                json!("container"),
            ),
            ("/process/terminal", json!(true)),
            ("/process/apparmorProfile", json!("x")),
            ("/process/selinuxLabel", json!("x")),
            ("/process/noNewPrivileges", json!(false)),
            ("/process/cwd", json!("/tmp")),
            ("/process/args", json!(["pause"])),
            ("/process/env", json!(["A=1", "A=2"])),
            ("/process/capabilities/ambient", json!(["CAP_KILL"])),
            ("/process/capabilities/bounding", json!(["CAP_NEW"])),
            ("/hooks", json!({"prestart": []})),
            ("/root/path", json!("/other")),
            ("/hostname", json!("")),
            ("/linux/uidMappings", json!([])),
            ("/linux/mountLabel", json!("x")),
            ("/linux/rootfsPropagation", json!("shared")),
            ("/linux/devices", json!([{"path": "/dev/x"}])),
            ("/linux/cgroupsPath", json!("a:b:c")),
            ("/linux/cgroupsPath", json!("/a/../b")),
            ("/linux/resources/memory", json!({"limit": 1})),
            (
                "/linux/resources/devices",
                json!([{"allow": true, "access": "rwm"}]),
            ),
            (
                "/linux/namespaces",
                json!([{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]),
            ),
            ("/linux/namespaces/0/path", json!("/proc/1/ns/pid")),
            ("/linux/namespaces/0/type", json!("user")),
            ("/linux/maskedPaths", json!(["/proc/../etc"])),
            ("/linux/sysctl", json!({"kernel.hostname": "x"})),
            ("/linux/sysctl", json!({"net/../kernel": "x"})),
            ("/linux/seccomp/defaultAction", json!("SCMP_ACT_ALLOW")),
            ("/linux/seccomp/flags", json!(["SECCOMP_FILTER_FLAG_LOG"])),
            ("/mounts/1/destination", json!("/proc/sys")),
            ("/mounts/0/type", json!("sysfs")),
            ("/mounts/1/type", json!("cgroup")),
            ("/mounts/0/options", json!(["rshared"])),
            ("/mounts/0/destination", json!("/../proc")),
        ] {
            let mut config = sandbox();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            match config.pointer_mut(parent).unwrap() {
                Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
                object => object[name] = value.clone(),
            }
            assert!(
                Plan::of(config.to_string().as_bytes()).is_none(),
                "{pointer} {value}"
            );
        }
    }
}
