//! What the settings mean for a node's containerd and its pods' DNS.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use knarr_node::containerd::{ContainerdConfig, ContainerdError, Shim, TrialSettings};
use knarr_node::images;
use knarr_node::kubelet::configuration::CgroupDriver;
use tokio::process::Command;
use tokio::time::timeout;

use crate::config::{Config, Part, ShimChoice};

/// How long the small program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of the containerd of this data directory. `shim` is the [program](pod_program) of knarr's shim, `oci_runtime`
/// that of the OCI runtime of new containers.
pub fn containerd_config(config: &Config, shim: &Path, oci_runtime: String) -> ContainerdConfig {
    ContainerdConfig {
        program: config.containerd.clone(),
        root: config.data_dir.join("containerd"),
        run: config.data_dir.join("run"),
        cni_bin: cni_bin(config),
        cni_conf: cni_conf(config),
        sandbox_image: sandbox_image(config).into(),
        systemd_cgroup: config.kubelet.cgroup_driver == CgroupDriver::Systemd,
        shim: match config.shim {
            ShimChoice::Auto => own_shim(shim).unwrap_or(Shim::RuncV2),
            ShimChoice::RuncV2 => Shim::RuncV2,
            ShimChoice::Rust => Shim::Knarr {
                program: shim.to_path_buf(),
            },
        },
        oci_runtime,
    }
}

/// The program of the OCI runtime of new containers. crun is tried in the directory of containerd, which only root can enter.
pub async fn oci_runtime(config: &Config) -> String {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let directory = config.data_dir.join("containerd");
    let settings = TrialSettings {
        search_path: &search_path,
        directory: &directory,
        driver: config.kubelet.cgroup_driver,
    };
    config.oci_runtime.program(settings).await
}

/// The directory of the CNI plugins.
pub fn cni_bin(config: &Config) -> PathBuf {
    match config.network.has(Part::Network) {
        true => config.data_dir.join("cni/bin"),
        false => config.cni_bin_dir.clone(),
    }
}

/// The directory of the CNI configurations.
pub fn cni_conf(config: &Config) -> PathBuf {
    match (&config.network.cni_conf_dir, config.network.has(Part::Network)) {
        (Some(directory), _) => directory.clone(),
        (None, true) => config.data_dir.join("cni/net.d"),
        (None, false) => "/etc/cni/net.d".into(),
    }
}

/// The reference of the sandbox image.
pub fn sandbox_image(config: &Config) -> &str {
    config.sandbox_image.as_deref().unwrap_or(images::PAUSE)
}

/// The program that containerd runs for each pod, as knarr's shim and as the CNI plugins: the [small](small_program) one next to this
/// program, if it can be used, else this program. The path of this program is known wherever /proc is mounted, without which no node
/// runs.
pub async fn pod_program() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    small_program(&own).await.unwrap_or(own)
}

/// The small program next to this one, if it has this one's version: each pod has it in memory once, as the shim, and as a plugin it
/// starts and exits faster.
async fn small_program(own: &Path) -> Option<PathBuf> {
    let small = own.with_file_name(knarr_shim::NAME);
    if !is_executable(&small) || !is_trusted(&small, own) {
        return None;
    }
    let expected = knarr_shim::version();
    match version(&small).await {
        Ok(found) if found == expected => Some(small),
        Ok(found) => {
            tracing::warn!(
                program = %small.display(), %found, %expected,
                "knarr's shim and CNI plugins are this program, because the small one next to it has another version"
            );
            None
        }
        Err(error) => {
            tracing::warn!(
                program = %small.display(), %error,
                "knarr's shim and CNI plugins are this program, because the small one next to it does not print its version"
            );
            None
        }
    }
}

/// What a small program prints as its version.
async fn version(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    let output = command.arg("-v").stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(VERSION_TIMEOUT, output).await??;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Whether only root, or the owner of this program, can have written the file: it runs as root.
fn is_trusted(small: &Path, own: &Path) -> bool {
    let owner = std::fs::metadata(own).map(|file| file.uid()).ok();
    std::fs::metadata(small)
        .is_ok_and(|file| file.mode() & 0o022 == 0 && (file.uid() == 0 || Some(file.uid()) == owner))
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Why new pods get containerd's shim where none is configured.
#[derive(Debug, thiserror::Error)]
pub enum ShimUnavailable {
    /// Neither the small program nor this one, which may have been replaced while it ran.
    #[error("{0:?} is not an executable file")]
    Program(PathBuf),
    #[error(transparent)]
    Host(#[from] knarr_shim::HostError),
}

/// Lets pods that have knarr's shim keep it though its program has another path now.
pub fn refresh_shim(containerd: &ContainerdConfig, program: &Path) -> Result<(), ContainerdError> {
    if is_executable(program) {
        containerd.refresh_shim(program)?;
    }
    Ok(())
}

/// knarr's shim with this program, if this host can run it.
pub fn own_shim(program: &Path) -> Result<Shim, ShimUnavailable> {
    let program = program.to_path_buf();
    if !is_executable(&program) {
        return Err(ShimUnavailable::Program(program));
    }
    knarr_shim::check_host()?;
    Ok(Shim::Knarr { program })
}

/// The node's resolv.conf, which pods get in addition to the cluster DNS.
pub fn resolv_conf(config: &Config) -> PathBuf {
    let path = config.kubelet.resolv_conf.as_deref();
    path.unwrap_or("/etc/resolv.conf").into()
}

#[cfg(test)]
mod tests {
    use knarr_cni::{Install, LOOPBACK, PLUGIN};

    use super::*;

    #[test]
    fn only_an_executable_file_is_the_program_of_a_shim() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("shim");
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(!is_executable(&file));
        std::fs::write(&file, "").unwrap();
        mode(0o644);
        assert!(!is_executable(&file));
        mode(0o755);
        assert!(is_executable(&file));
        assert!(!is_executable(directory.path()));
    }

    #[tokio::test]
    async fn a_program_that_prints_another_version_is_found() {
        assert_eq!(version(Path::new("/bin/true")).await.unwrap(), "");
        let found = version(Path::new("/bin/echo")).await.unwrap();
        assert!(!found.is_empty() && found != knarr_shim::version(), "{found}");
        assert!(version(Path::new("/nothing/here")).await.is_err());
    }

    /// Writes a program that prints this version. Another process writes it: no child of a concurrent test has it open for writing.
    fn program(path: &Path, version: &str) {
        let script = r#"printf '#!/bin/sh\necho "%s"\n' "$2" >"$1" && chmod 755 "$1""#;
        let status = std::process::Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(path)
            .arg(version)
            .status()
            .unwrap();
        assert!(status.success());
    }

    #[tokio::test]
    async fn n1_the_cni_plugins_are_the_small_program_if_it_has_the_version_else_this_one() {
        let directory = tempfile::tempdir().unwrap();
        let (own, small) = (
            directory.path().join("knarr"),
            directory.path().join(knarr_shim::NAME),
        );
        std::fs::write(&own, "").unwrap();
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let install = async || {
            let install = Install {
                program: small_program(&own).await.unwrap_or(own.clone()),
                bin_dir: directory.path().join("bin"),
                conf_dir: directory.path().join("net.d"),
                socket: directory.path().join("cni.sock"),
            };
            install.link_plugins().unwrap();
            let links = [PLUGIN, LOOPBACK].map(|plugin| inode(&install.bin_dir.join(plugin)));
            assert_eq!(links[0], links[1]);
            links[0]
        };
        assert_eq!(install().await, inode(&own), "there is no small program");
        program(&small, &knarr_shim::version());
        assert_eq!(install().await, inode(&small));
        std::fs::set_permissions(&small, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(
            install().await,
            inode(&own),
            "anyone can have written the small program"
        );
        program(&small, "containerd-shim-knarr-v2 0.0.1");
        assert_eq!(
            install().await,
            inode(&own),
            "the small program has another version"
        );
    }

    #[tokio::test]
    async fn a_host_that_runs_these_tests_gets_knarrs_shim() {
        let Shim::Knarr { program } = own_shim(&pod_program().await).unwrap() else {
            panic!("containerd's shim")
        };
        assert!(program.is_absolute(), "{program:?}");
    }
}
