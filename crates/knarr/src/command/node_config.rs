//! What the settings mean for a node's containerd and its pods' DNS.

use std::path::PathBuf;

use knarr_node::containerd::{ContainerdConfig, Shim};
use knarr_node::images;
use knarr_node::kubelet::configuration::CgroupDriver;

use crate::config::{Config, Part, ShimChoice};

/// The configuration of the containerd of this data directory.
pub fn containerd_config(config: &Config) -> ContainerdConfig {
    ContainerdConfig {
        program: config.containerd.clone(),
        root: config.data_dir.join("containerd"),
        run: config.data_dir.join("run"),
        cni_bin: match config.network.has(Part::Network) {
            true => config.data_dir.join("cni/bin"),
            false => config.cni_bin_dir.clone(),
        },
        cni_conf: match (&config.network.cni_conf_dir, config.network.has(Part::Network)) {
            (Some(directory), _) => directory.clone(),
            (None, true) => config.data_dir.join("cni/net.d"),
            (None, false) => "/etc/cni/net.d".into(),
        },
        sandbox_image: config
            .sandbox_image
            .clone()
            .unwrap_or_else(|| images::PAUSE.into()),
        systemd_cgroup: config.kubelet.cgroup_driver == CgroupDriver::Systemd,
        shim: match config.shim {
            ShimChoice::RuncV2 => Shim::RuncV2,
            ShimChoice::Rust => Shim::Knarr {
                program: shim_program(),
            },
        },
        oci_runtime: config.oci_runtime.clone(),
    }
}

/// The program of knarr's shim: the small one of its own next to this program, which each pod has in memory once, else this program.
/// The path of this program is known wherever /proc is mounted, without which no node runs.
fn shim_program() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let small = own.with_file_name(knarr_shim::NAME);
    if small.is_file() { small } else { own }
}

/// The node's resolv.conf, which pods get in addition to the cluster DNS.
pub fn resolv_conf(config: &Config) -> PathBuf {
    let path = config.kubelet.resolv_conf.as_deref();
    path.unwrap_or("/etc/resolv.conf").into()
}
