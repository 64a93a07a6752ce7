//! What the kubelet uses of the machine besides the container runtime.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use tracing::warn;

/// A directory for each size of huge pages that the kernel knows.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// Whether the node is a real host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// The one this process runs on: its size and names, its cgroups, a thread for slow work on files.
    #[default]
    Host,
    /// A hollow node, as kubemark has them: of this size, without cgroups, and with all work on the calling thread. A
    /// kubelet on it is a function of its inputs, which a simulation needs.
    Hollow { cpus: usize, memory_bytes: i64 },
}

impl Machine {
    pub(crate) fn is_host(self) -> bool {
        self == Machine::Host
    }

    /// Whether its kernel supports AppArmor: that does not change while it runs.
    pub(crate) fn has_app_armor(self) -> bool {
        let enabled = || crate::host_fs::read_to_string("/sys/module/apparmor/parameters/enabled");
        self.is_host()
            && crate::host_fs::exists("/sys/kernel/security/apparmor")
            && enabled().is_ok_and(|text| text.starts_with('Y'))
    }

    /// Preallocated huge pages, by their size in bytes. Read once at start, as in Kubernetes.
    pub(crate) fn huge_pages(self) -> BTreeMap<i64, i64> {
        if !self.is_host() {
            return BTreeMap::new();
        }
        huge_pages_in(Path::new(HUGE_PAGES)).unwrap_or_else(|error| {
            // A kernel without them has no such directory.
            if error.kind() != io::ErrorKind::NotFound {
                warn!(%error, "cannot read the host's huge pages");
            }
            BTreeMap::new()
        })
    }
}

fn huge_pages_in(directory: &Path) -> io::Result<BTreeMap<i64, i64>> {
    let mut found = BTreeMap::new();
    for entry in crate::host_fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let size = name.to_str().and_then(|name| name.strip_prefix("hugepages-"));
        let kibibytes = size.and_then(|size| size.strip_suffix("kB")?.parse::<i64>().ok());
        let Some(kibibytes) = kibibytes else { continue };
        let count = crate::host_fs::read_to_string(entry.path().join("nr_hugepages"))?;
        let count = count.trim().parse().map_err(io::Error::other)?;
        found.insert(kibibytes.saturating_mul(1024), count);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_huge_pages_are_counted_by_size() {
        let dir = tempfile::tempdir().unwrap();
        for (name, count) in [
            ("hugepages-2048kB", "4\n"),
            ("hugepages-1048576kB", "0\n"),
            ("other", "7\n"),
        ] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        assert_eq!(
            huge_pages_in(dir.path()).unwrap(),
            [(2 << 20, 4), (1 << 30, 0)].into()
        );
        let none = huge_pages_in(&dir.path().join("none")).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        let hollow = Machine::Hollow {
            cpus: 1,
            memory_bytes: 1,
        };
        assert!(hollow.huge_pages().is_empty());
    }
}
