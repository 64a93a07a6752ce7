//! containerd's configuration file (version 2, read by containerd 1.6 and 1.7) for a private instance.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::ContainerdError;
use super::shim::{OciRuntime, Shim, dangling_link, refresh_link};

/// Linux' number of CAP_SYS_RESOURCE (linux/capability.h).
const CAP_SYS_RESOURCE: u32 = 24;

/// Where a private containerd lives and what it is to use.
#[derive(Clone, Debug)]
pub struct ContainerdConfig {
    /// The program; searched in PATH unless it contains a slash.
    pub program: PathBuf,
    /// Absolute; images and snapshots live here, and survive.
    pub root: PathBuf,
    /// Absolute; sockets and run-time state.
    pub run: PathBuf,
    /// CNI plugins (`/usr/lib/cni` on Debian).
    pub cni_bin: PathBuf,
    /// The directory of CNI configurations.
    pub cni_conf: PathBuf,
    /// Reference of the sandbox (pause) image.
    pub sandbox_image: String,
    /// Containers' groups are made by systemd.
    pub systemd_cgroup: bool,
    /// The shim of new containers.
    pub shim: Shim,
    /// The OCI runtime of new containers: a name in PATH, or a path.
    pub oci_runtime: String,
}

impl ContainerdConfig {
    pub fn socket(&self) -> PathBuf {
        self.run.join("containerd.sock")
    }

    pub fn file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("containerd.log")
    }

    /// For administrators; knarr itself searches /proc.
    pub(super) fn note_pid(&self, pid: u32) -> Result<(), ContainerdError> {
        let path = self.run.join("containerd.pid");
        crate::host_fs::write(&path, pid.to_string())
            .map_err(|source| ContainerdError::Write { path, source })
    }

    /// Whether the file's text is what [`write`](Self::write) would write. It is written only while no containerd
    /// runs, so this is also what a running one has read.
    pub(super) fn is_written(&self) -> bool {
        crate::host_fs::read_to_string(self.file()).is_ok_and(|text| text == self.text())
    }

    /// Makes what containerd is to find next to its configuration.
    pub(super) fn install(&self) -> Result<(), ContainerdError> {
        self.shim
            .install(&self.root, self.oci())
            .map_err(|(path, source)| ContainerdError::Write { path, source })
    }

    /// Lets pods that have knarr's shim keep it though its program has another path now, whatever shim is configured.
    pub fn refresh_shim(&self, program: &Path) -> Result<(), ContainerdError> {
        refresh_link(&self.root, program).map_err(|(path, source)| ContainerdError::Write { path, source })
    }

    /// An error if the program of knarr's shim is away.
    pub(super) fn check_shim(&self) -> Result<(), ContainerdError> {
        match dangling_link(&self.root) {
            Some(link) => Err(ContainerdError::ShimMissing { link }),
            None => Ok(()),
        }
    }

    fn oci(&self) -> OciRuntime<'_> {
        OciRuntime {
            program: &self.oci_runtime,
            systemd_cgroup: self.systemd_cgroup,
        }
    }

    pub(super) fn write(&self) -> Result<(), ContainerdError> {
        let write = |path: &Path, result: std::io::Result<()>| {
            result.map_err(|source| ContainerdError::Write {
                path: path.to_path_buf(),
                source,
            })
        };
        for dir in [&self.root, &self.run, &self.cni_conf] {
            write(dir, crate::host_fs::create_dir_all(dir))?;
        }
        let file = self.file();
        write(&file, crate::host_fs::write(&file, self.text()))
    }

    fn text(&self) -> String {
        self.render(!can_lower_oom_score())
    }

    /// The file's text. `restrict_oom` keeps containerd from setting negative oom_score_adj, without which runc fails
    /// on hosts without CAP_SYS_RESOURCE.
    fn render(&self, restrict_oom: bool) -> String {
        let mut t = String::new();
        let q = |p: &Path| format!("{:?}", p.display().to_string());
        let _ = write!(
            t,
            r#"# Written by knarr at every start; changes are lost.
version = 2
root = {root}
state = {state}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = {socket}

[ttrpc]
  address = {ttrpc}

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  restrict_oom_score_adj = {restrict_oom}
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {bin}
    conf_dir = {conf}
    max_conf_num = 1

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

{runtime}"#,
            root = q(&self.root.join("root")),
            state = q(&self.run.join("state")),
            socket = q(&self.socket()),
            ttrpc = q(&self.run.join("containerd.sock.ttrpc")),
            opt = q(&self.root.join("opt")),
            sandbox = self.sandbox_image,
            runtime = self.shim.section("runc", &self.root, self.oci()),
            bin = q(&self.cni_bin),
            conf = q(&self.cni_conf),
        );
        t
    }
}

/// Whether this process may lower an oom_score_adj (has CAP_SYS_RESOURCE). Unreadable counts as no.
pub fn can_lower_oom_score() -> bool {
    crate::host_fs::read_to_string("/proc/self/status").is_ok_and(|s| has_capability(&s, CAP_SYS_RESOURCE))
}

fn has_capability(proc_status: &str, number: u32) -> bool {
    let effective = proc_status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_read_from_the_effective_set_only() {
        let status = "CapInh:\t0000000001000000\nCapEff:\t000001fffeffffff\nCapBnd:\t000001ffffffffff\n";
        assert!(!has_capability(status, CAP_SYS_RESOURCE));
        assert!(has_capability(status, 21));
        assert!(has_capability("CapEff:\t000001ffffffffff\n", CAP_SYS_RESOURCE));
        assert!(!has_capability("", CAP_SYS_RESOURCE));
    }

    #[test]
    fn a_missing_capability_is_written_to_containerds_configuration() {
        let config = ContainerdConfig {
            program: "containerd".into(),
            root: "/d/containerd".into(),
            run: "/d/run".into(),
            cni_bin: "/usr/lib/cni".into(),
            cni_conf: "/d/cni".into(),
            sandbox_image: "pause:1".into(),
            systemd_cgroup: true,
            shim: Shim::RuncV2,
            oci_runtime: "runc".into(),
        };
        assert!(config.render(true).contains("SystemdCgroup = true"));
        assert!(config.render(true).contains("restrict_oom_score_adj = true"));
        assert!(config.render(false).contains("restrict_oom_score_adj = false"));
        assert!(
            config
                .render(true)
                .contains(r#"address = "/d/run/containerd.sock""#)
        );
    }
}
