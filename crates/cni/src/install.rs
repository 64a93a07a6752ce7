//! Where the runtime finds the plugins and their configuration.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::program_link::{self, remove};
use crate::{LOOPBACK, PLUGIN};

/// Where plugins and configuration go, and where the agent listens.
#[derive(Clone, Debug)]
pub struct Install {
    /// The program whose `main` calls [`crate::run_if_called`].
    pub program: PathBuf,
    /// containerd's `bin_dir`: gets a link to the program for each plugin.
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

    /// Makes the links of the plugins, or replaces those of an earlier run, with which its sandboxes are to be deleted: plugin and
    /// agent have the same version. Once, when the agent starts: the program may be replaced or removed while it runs.
    pub fn link_plugins(&self) -> Result<(), InstallError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| InstallError { path, source }
        };
        make_directory(&self.bin_dir).map_err(failed(&self.bin_dir))?;
        for plugin in [PLUGIN, LOOPBACK] {
            let link = self.bin_dir.join(plugin);
            program_link::make(&link, &self.program).map_err(failed(&link))?;
        }
        Ok(())
    }

    /// Writes the configuration, if it is not there as it should be; containerd picks up a changed one by itself. The plugins
    /// that it names are linked before.
    pub fn write_configuration(&self) -> Result<(), InstallError> {
        let path = self.conf_dir.join(Self::FILE);
        self.configure(&path)
            .map_err(|source| InstallError { path, source })
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
        let write = |install: &Install| {
            install.link_plugins().unwrap();
            install.write_configuration().unwrap();
        };
        write(&install);
        let conflist = install.conf_dir.join(Install::FILE);
        let written = fs::metadata(&conflist).unwrap().modified().unwrap();
        write(&install);
        assert_eq!(fs::metadata(&conflist).unwrap().modified().unwrap(), written);
        install.program = "/opt/knarr".into();
        install.socket = "/run/other.sock".into();
        write(&install);
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
