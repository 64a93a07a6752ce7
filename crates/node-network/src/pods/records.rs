//! The records of attachments: one file a sandbox, replaced atomically.
//!
//! The directory is the agent's alone (0700). A record has what the kernel cannot store: whose sandbox it is, which
//! host ports it has, and that an address is taken from the moment it was chosen. Records outlive the agent, not the
//! boot: each has the id of the boot in which it was written, and [`Records::load`] removes those of others.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use knarr_cni::sandbox::{Bandwidth, HostPort, PodName, SandboxId};
use serde::{Deserialize, Serialize};

/// A record with the largest number of host ports that a pod can have is far below.
const MAX_RECORD_BYTES: u64 = 1 << 20;
const SUFFIX: &str = ".json";
/// Which address was given out last; its name is no sandbox id.
const LAST: &str = ".last";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What is known of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The id of the boot.
    pub boot: String,
    pub sandbox: SandboxId,
    /// `None` if the runtime did not pass it, or the record was made from the kernel's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// The interface in the pod.
    pub interface: String,
    pub host_interface: String,
    pub addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPort>,
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// `ADD` has answered, or was about to: everything is in the kernel.
    pub is_ready: bool,
    /// `DEL` has answered, or was about to: there are no routes and no host ports, and the link, if there is one, is down. It is
    /// deleted before the record is. Never of a record that is ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_removing: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open the directory of records {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot write the record {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("cannot read the record {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot remove the record {}", .0.display())]
    Remove(PathBuf, #[source] io::Error),
    #[error("cannot read the boot's id")]
    Boot(#[source] io::Error),
}

/// The directory of records.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
    boot: String,
}

impl Records {
    /// Opens the directory and makes it if it is not there.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let open = |source| Error::Open(directory.into(), source);
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(open)?;
        let boot = fs::read_to_string(BOOT_ID).map_err(Error::Boot)?;
        Ok(Records {
            directory: directory.into(),
            boot: boot.trim().into(),
        })
    }

    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// All records of this boot. Those of earlier ones, and what cannot be read as a record, are removed: an address that is
    /// in use nevertheless has its route in the kernel, which [`super::reconcile`] compares.
    pub fn load(&self) -> Result<Vec<Record>, Error> {
        let open = |source| Error::Open(self.directory.clone(), source);
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(open)? {
            let entry = entry.map_err(open)?;
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else {
                continue;
            };
            let path = entry.path();
            let text = read(&path).map_err(|source| Error::Read(path.clone(), source))?;
            let record: Option<Record> = serde_json::from_slice(&text)
                .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "a record is malformed"))
                .ok();
            match record.filter(|record| record.boot == self.boot && record.sandbox.as_str() == id) {
                Some(record) => records.push(record),
                None => fs::remove_file(&path).map_err(|source| Error::Remove(path, source))?,
            }
        }
        records.sort_by(|a, b| a.sandbox.cmp(&b.sandbox));
        Ok(records)
    }

    pub fn write(&self, record: &Record) -> Result<(), Error> {
        self.replace(&self.path(&record.sandbox), record)
    }

    pub fn remove(&self, sandbox: &SandboxId) -> Result<(), Error> {
        let path = self.path(sandbox);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Remove(path, source)),
            _ => Ok(()),
        }
    }

    /// The address of each CIDR that was given out last; it is lost without harm.
    pub fn last(&self) -> BTreeMap<IpNet, IpAddr> {
        let text = read(&self.directory.join(LAST)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub fn write_last(&self, last: &BTreeMap<IpNet, IpAddr>) -> Result<(), Error> {
        self.replace(&self.directory.join(LAST), last)
    }

    /// Removes the directory with all that is in it.
    pub fn remove_all(directory: &Path) -> Result<(), Error> {
        match fs::remove_dir_all(directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(Error::Remove(directory.into(), source))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, sandbox: &SandboxId) -> PathBuf {
        self.directory.join(format!("{sandbox}{SUFFIX}"))
    }

    fn replace(&self, path: &Path, value: &impl Serialize) -> Result<(), Error> {
        let write = || {
            let text = serde_json::to_vec(value)?;
            let part = path.with_extension("part");
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&part)?;
            file.write_all(&text)?;
            fs::rename(&part, path)
        };
        write().map_err(|source| Error::Write(path.into(), source))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_RECORD_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(records: &Records, id: &str) -> Record {
        Record {
            boot: records.boot().into(),
            sandbox: SandboxId::try_from(id.to_string()).unwrap(),
            pod: None,
            interface: "eth0".into(),
            host_interface: "knarr0".into(),
            addresses: vec!["10.0.0.2".parse().unwrap()],
            host_ports: Vec::new(),
            bandwidth: Bandwidth::default(),
            is_ready: true,
            is_removing: false,
        }
    }

    #[test]
    fn n1_records_of_an_earlier_boot_and_malformed_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(&directory.path().join("pods")).unwrap();
        let kept = record(&records, "a.1");
        records.write(&kept).unwrap();
        let earlier = Record {
            boot: "earlier".into(),
            ..record(&records, "b")
        };
        records.write(&earlier).unwrap();
        fs::write(directory.path().join("pods/c.json"), "{").unwrap();
        // A copy under another sandbox's name is not that sandbox's record.
        fs::copy(
            directory.path().join("pods/a.1.json"),
            directory.path().join("pods/d.json"),
        )
        .unwrap();
        assert_eq!(records.load().unwrap(), std::slice::from_ref(&kept));
        assert_eq!(fs::read_dir(directory.path().join("pods")).unwrap().count(), 1);
        records.remove(&kept.sandbox).unwrap();
        records.remove(&kept.sandbox).unwrap();
        assert_eq!(records.load().unwrap(), []);
    }

    #[test]
    fn what_was_given_out_last_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(directory.path()).unwrap();
        assert!(records.last().is_empty());
        let last = BTreeMap::from([("10.0.0.0/24".parse().unwrap(), "10.0.0.9".parse().unwrap())]);
        records.write_last(&last).unwrap();
        assert_eq!(records.last(), last);
    }
}
