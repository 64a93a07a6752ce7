//! Where the runtime finds the plugins and their configuration.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::{LOOPBACK, PLUGIN};

/// Where plugins and configuration go, and where the agent listens.
#[derive(Clone, Debug)]
pub struct Install {
    /// The program whose `main` calls [`crate::run_if_called`].
    pub program: PathBuf,
    /// containerd's `bin_dir`: gets a symbolic link for each plugin.
    pub bin_dir: PathBuf,
    /// containerd's `conf_dir`.
    pub conf_dir: PathBuf,
    /// Where the agent listens.
    pub socket: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", .path.display())]
pub struct InstallError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Install {
    /// The name of the network in the runtime's records, as it has always been.
    pub const NETWORK: &str = "knarr";
    /// The same file as that of the earlier bridge network, which it replaces.
    pub const FILE: &str = "10-knarr.conflist";

    /// Writes what is not there as it should be; containerd picks up a changed configuration by itself. The plugins come
    /// first: a configuration names what exists.
    pub fn write(&self) -> Result<(), InstallError> {
        for plugin in [PLUGIN, LOOPBACK] {
            let link = self.bin_dir.join(plugin);
            self.link(&link).map_err(|source| InstallError {
                path: link.clone(),
                source,
            })?;
        }
        let path = self.conf_dir.join(Self::FILE);
        self.configure(&path)
            .map_err(|source| InstallError { path, source })
    }

    fn link(&self, link: &Path) -> io::Result<()> {
        if fs::read_link(link).is_ok_and(|program| program == self.program) {
            return Ok(());
        }
        make_directory(&self.bin_dir)?;
        let part = link.with_extension("part");
        remove(&part)?;
        symlink(&self.program, &part)?;
        fs::rename(part, link)
    }

    fn configure(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.conflist())?;
        if fs::read(path).is_ok_and(|present| present == text) {
            return Ok(());
        }
        make_directory(&self.conf_dir)?;
        let part = path.with_extension("part");
        remove(&part)?;
        let mut file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)?;
        file.write_all(&text)?;
        fs::rename(part, path)
    }

    fn conflist(&self) -> serde_json::Value {
        json!({
            "cniVersion": "1.0.0",
            "name": Self::NETWORK,
            "plugins": [{
                "type": PLUGIN,
                "socket": self.socket,
                "capabilities": { "portMappings": true, "bandwidth": true },
            }],
        })
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_plugins_and_configuration_are_written_once_and_follow_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let mut install = Install {
            program: "/usr/bin/knarr".into(),
            bin_dir: directory.path().join("bin"),
            conf_dir: directory.path().join("net.d"),
            socket: "/run/knarr/cni.sock".into(),
        };
        install.write().unwrap();
        let conflist = install.conf_dir.join(Install::FILE);
        let written = fs::metadata(&conflist).unwrap().modified().unwrap();
        install.write().unwrap();
        assert_eq!(fs::metadata(&conflist).unwrap().modified().unwrap(), written);
        install.program = "/opt/knarr".into();
        install.socket = "/run/other.sock".into();
        install.write().unwrap();
        for plugin in ["knarr-cni", "loopback"] {
            assert_eq!(
                fs::read_link(install.bin_dir.join(plugin)).unwrap(),
                Path::new("/opt/knarr")
            );
        }
        let config: serde_json::Value = serde_json::from_slice(&fs::read(&conflist).unwrap()).unwrap();
        assert_eq!(config["plugins"][0]["socket"], "/run/other.sock");
    }
}
