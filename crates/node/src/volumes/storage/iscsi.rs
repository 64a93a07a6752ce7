//! iSCSI, by `iscsiadm`: the node logs in at the target once, mounts the disk once, and each pod sees that mount.
//!
//! Nothing here excludes two nodes from the same disk: the claim's VolumeAttachment does ([`super::super::attach`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::error::StorageError;
use super::filesystem::{format_and_mount, mount, unmount};
use super::plugin::{MountTerms, Storage, Tools, VolumeMode};
use crate::host::Host;
use crate::untrusted_fs::Dir;

/// Poll interval and number of polls for the disk after a login.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const POLLS: u32 = 20;
/// `iscsiadm`: there is a session already; there is none; there is nothing to do it to.
const SESSION_EXISTS: i32 = 15;
const NO_SESSION: i32 = 2;
const NO_RECORDS: i32 = 21;
const DEFAULT_PORT: u16 = 3260;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iscsi {
    /// With their ports.
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: i32,
    pub interface: String,
    pub filesystem: String,
    pub chap_discovery: bool,
    pub chap_session: bool,
    /// The secret's values (`node.session.auth.username`, …); never stored.
    #[serde(skip)]
    pub secret: Vec<(String, String)>,
}

/// A portal with its port.
pub fn portal(portal: &str) -> String {
    let has_port = portal.rsplit_once(':').is_some_and(|(host, port)| {
        !port.is_empty()
            && port.bytes().all(|b| b.is_ascii_digit())
            && (!host.contains(':') || host.ends_with(']'))
    });
    match has_port {
        true => portal.to_string(),
        false => format!("{portal}:{DEFAULT_PORT}"),
    }
}

impl Iscsi {
    /// What all disks of the same session have in front.
    fn session(&self) -> String {
        format!(
            "{}-{}-lun-",
            self.portals.first().map_or("", String::as_str),
            self.iqn
        )
    }

    /// `iscsiadm` at one portal; secrets are left out of errors.
    async fn admin(
        &self,
        host: &dyn Host,
        mode: &[&str],
        at: &str,
        what: &[&str],
    ) -> Result<i32, StorageError> {
        let mut args = vec!["-m"];
        args.extend(mode);
        args.extend(["-p", at]);
        if mode.first() == Some(&"node") {
            args.extend(["-T", &self.iqn]);
        }
        args.extend(["-I", &self.interface]);
        args.extend(what);
        let ran = host.run("iscsiadm", &args).await?;
        match ran.code {
            Some(code @ (0 | SESSION_EXISTS | NO_SESSION | NO_RECORDS)) => Ok(code),
            _ => {
                let what = what.iter().take(4).copied().collect::<Vec<_>>().join(" ");
                Err(StorageError::Iscsiadm {
                    mode: mode.join(" "),
                    what,
                    portal: at.into(),
                    status: ran.status(),
                    output: ran.output.trim().into(),
                })
            }
        }
    }

    async fn set(
        &self,
        host: &dyn Host,
        mode: &[&str],
        at: &str,
        key: &str,
        value: &str,
    ) -> Result<(), StorageError> {
        let what = ["-o", "update", "-n", key, "-v", value];
        self.admin(host, mode, at, &what).await.map(drop)
    }

    /// Passes the secrets of this kind (`username`, `password`, and those of the target) to `iscsiadm`. It accepts them
    /// in its arguments only, as kubelet passes them.
    async fn set_secret(
        &self,
        host: &dyn Host,
        mode: &[&str],
        at: &str,
        of: &str,
    ) -> Result<(), StorageError> {
        self.set(host, mode, at, &format!("{of}.authmethod"), "CHAP")
            .await?;
        for name in ["username", "password", "username_in", "password_in"] {
            let key = format!("{of}.{name}");
            let Some((_, value)) = self.secret.iter().find(|(k, _)| *k == key) else {
                continue;
            };
            // It would be another line of the file that iscsiadm keeps it in.
            if value.chars().any(char::is_control) {
                return Err(StorageError::ControlCharacter { key });
            }
            self.set(host, mode, at, &key, value).await?;
        }
        Ok(())
    }

    /// Where the disk appears that is reached through a portal.
    fn by_path(&self, portal: &str) -> String {
        format!(
            "/dev/disk/by-path/*ip-{portal}-iscsi-{}-lun-{}",
            self.iqn, self.lun
        )
    }

    /// Logs in at one portal, and waits for the disk.
    async fn log_in(&self, host: &dyn Host, at: &str) -> Result<PathBuf, StorageError> {
        const DISCOVERY: &[&str] = &["discoverydb", "-t", "sendtargets"];
        const NODE: &[&str] = &["node"];
        self.admin(host, DISCOVERY, at, &["-o", "new"]).await?;
        if self.chap_discovery {
            self.set_secret(host, DISCOVERY, at, "discovery.sendtargets.auth")
                .await?;
        }
        if let Err(why) = self.admin(host, DISCOVERY, at, &["--discover"]).await {
            // A half made record would be found the next time.
            let forgotten = self.admin(host, DISCOVERY, at, &["-o", "delete"]).await;
            return Err(match forgotten {
                Ok(_) => why,
                Err(also) => StorageError::Discovery {
                    discovery: Box::new(why),
                    removal: Box::new(also),
                },
            });
        }
        // Only this disk is to appear, not all that the target has.
        if let Err(why) = self.set(host, NODE, at, "node.session.scan", "manual").await {
            warn!(%why, "this iscsiadm scans whole targets");
        }
        if self.chap_session {
            self.set_secret(host, NODE, at, "node.session.auth").await?;
        }
        self.admin(host, NODE, at, &["--login"]).await?;
        // A rebooted node does not log in by itself: the volume may be another node's by then.
        self.set(host, NODE, at, "node.startup", "manual").await?;
        self.admin(host, NODE, at, &["--rescan"]).await?;
        let path = self.by_path(at);
        for _ in 0..POLLS {
            if let Some(device) = host.device(&path) {
                return Ok(device);
            }
            host.pause(POLL_INTERVAL).await;
        }
        Err(StorageError::NoDevice { path })
    }
}

#[async_trait]
impl Storage for Iscsi {
    fn plugin(&self) -> &'static str {
        "kubernetes.io~iscsi"
    }

    fn staging(&self) -> Option<PathBuf> {
        let interface = format!("iface-{}", self.interface);
        let disk = format!("{}{}", self.session(), self.lun);
        Some(Path::new("kubernetes.io/iscsi").join(interface).join(disk))
    }

    async fn stage(&self, tools: &Tools, at: &Path, terms: &MountTerms) -> Result<(), StorageError> {
        let host = &*tools.host;
        if host.is_mounted(at).map_err(StorageError::IsMounted)? {
            return Ok(());
        }
        let mut failed = Vec::new();
        let mut device = None;
        for portal in &self.portals {
            match self.log_in(host, portal).await {
                Ok(found) => {
                    device = Some(found);
                    break;
                }
                Err(why) => failed.push(why.to_string()),
            }
        }
        let Some(device) = device else {
            return Err(StorageError::NoPath {
                failures: failed.join("\n"),
            });
        };
        // Also where nothing is mounted there: sessions are kept as long as one of their disks has a directory.
        tools.make_dir(at).await?;
        if terms.mode == VolumeMode::Block {
            return Ok(());
        }
        let device = device.display().to_string();
        format_and_mount(host, &device, at, &self.filesystem, &terms.mount_options()).await
    }

    async fn publish(
        &self,
        tools: &Tools,
        staged: Option<&Path>,
        target: &Path,
        terms: &MountTerms,
    ) -> Result<(), StorageError> {
        let staged = staged.ok_or(StorageError::NotStaged)?;
        if terms.mode == VolumeMode::Block {
            let mut paths = self.portals.iter().map(|portal| self.by_path(portal));
            let device = paths.find_map(|path| tools.host.device(&path));
            let device = device.ok_or(StorageError::DeviceRemoved)?;
            return tools.link(&device, target).await;
        }
        if tools.host.is_mounted(target).map_err(StorageError::IsMounted)? {
            return Ok(());
        }
        tools.make_dir(target).await?;
        let mut options = vec!["bind".to_string()];
        if terms.read_only {
            options.push("ro".into());
        }
        mount(
            &*tools.host,
            None,
            &staged.display().to_string(),
            target,
            &options,
        )
        .await?;
        if let Some(group) = terms.fs_group {
            tools.give_to(group, target, terms.read_only, &self.iqn).await?;
        }
        Ok(())
    }

    async fn unpublish(&self, tools: &Tools, target: &Path) -> Result<(), StorageError> {
        unmount(&*tools.host, target).await
    }

    async fn unstage(&self, tools: &Tools, at: &Path) -> Result<(), StorageError> {
        let host = &*tools.host;
        unmount(host, at).await?;
        tools.remove_dir(at).await?;
        // Other disks of the session may be in use.
        let (parent, session) = (at.parent().unwrap_or(at).to_path_buf(), self.session());
        let others = tools.files.run(&self.iqn, move || {
            let siblings = match Dir::open(&parent) {
                Ok(parent) => parent.entries(usize::MAX)?,
                // Not even the first login came as far as a directory.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(e) => return Err(e),
            };
            Ok(siblings
                .iter()
                .any(|entry| entry.name.to_string_lossy().starts_with(&session)))
        });
        if others.await.map_err(StorageError::Session)? {
            return Ok(());
        }
        for portal in &self.portals {
            self.admin(host, &["node"], portal, &["--logout"]).await?;
            self.admin(host, &["node"], portal, &["-o", "delete"]).await?;
        }
        Ok(())
    }
}
