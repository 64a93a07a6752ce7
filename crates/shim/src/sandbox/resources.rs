//! The resources of a sandbox that are changed while it exists, with the order and the meaning that `runc update` gives them.
//!
//! What is absent or 0 stays as it is. A field that is not listed here is an error: it would be ignored silently otherwise.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cgroup::v1::Groups;

const SHARES: &str = "cpu.shares";
const PERIOD: &str = "cpu.cfs_period_us";
const QUOTA: &str = "cpu.cfs_quota_us";
const CPUS: &str = "cpuset.cpus";
const NODES: &str = "cpuset.mems";
const LIMIT: &str = "memory.limit_in_bytes";
/// Of memory and swap together.
const SWAP: &str = "memory.memsw.limit_in_bytes";
const RESERVATION: &str = "memory.soft_limit_in_bytes";
const PROCESSES: &str = "pids.max";
/// No limit.
const NONE: i64 = -1;

/// New resources (OCI runtime specification, `linux.resources`).
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    pids: Option<Pids>,
    /// An update does not change devices, as with runc.
    #[serde(rename = "devices")]
    _devices: Option<IgnoredAny>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Cpu {
    shares: u64,
    quota: i64,
    period: u64,
    cpus: String,
    mems: String,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Memory {
    limit: i64,
    reservation: i64,
    swap: i64,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Pids {
    limit: i64,
}

/// Why resources could not be changed. Those before the one that is named were.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    #[error("the host has no cgroup controller {0}")]
    Controller(&'static str),
    #[error("cannot write {value:?} to {path:?}")]
    Write {
        path: PathBuf,
        value: String,
        source: io::Error,
    },
}

/// What a group has now.
#[derive(Debug, Clone, Copy)]
struct Limits {
    memory_bytes: Option<i64>,
    /// Whether the kernel counts swap.
    has_swap: bool,
}

/// A value for a file of a controller's group.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    controller: &'static str,
    file: &'static str,
    value: String,
}

impl Resources {
    pub fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    pub fn apply(&self, groups: &Groups) -> Result<(), UpdateError> {
        let memory = groups.get("memory");
        let now = Limits {
            memory_bytes: memory
                .and_then(|group| std::fs::read_to_string(group.join(LIMIT)).ok())
                .and_then(|text| text.trim().parse().ok()),
            has_swap: memory.is_some_and(|group| group.join(SWAP).exists()),
        };
        let mut later = None;
        for change in self.changes(now) {
            let group = groups
                .get(change.controller)
                .ok_or(UpdateError::Controller(change.controller))?;
            let path = group.join(change.file);
            match write(path.clone(), change.value.clone()) {
                // With the old quota the new period may be more than the group above has.
                Err(UpdateError::Write { source, .. })
                    if change.file == PERIOD && source.kind() == io::ErrorKind::InvalidInput =>
                {
                    later = Some((path, change.value));
                }
                written => written?,
            }
        }
        later.map_or(Ok(()), |(path, value)| write(path, value))
    }

    /// What is to be written, in this order.
    fn changes(&self, now: Limits) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut set = |controller, file, value: Option<String>| {
            if let Some(value) = value {
                changes.push(Change {
                    controller,
                    file,
                    value,
                });
            }
        };
        let unsigned = |value: u64| (value != 0).then(|| value.to_string());
        let signed = |value: i64| (value != 0).then(|| value.to_string());
        let text = |value: &String| (!value.is_empty()).then(|| value.clone());
        let cpu = self.cpu.clone().unwrap_or_default();
        set("cpu", SHARES, unsigned(cpu.shares));
        set("cpu", PERIOD, unsigned(cpu.period));
        set("cpu", QUOTA, signed(cpu.quota));
        set("cpuset", CPUS, text(&cpu.cpus));
        set("cpuset", NODES, text(&cpu.mems));
        let memory = self.memory.unwrap_or_default();
        let swap = match memory {
            // Swap cannot be limited where memory is not.
            Memory {
                limit: NONE, swap: 0, ..
            } if now.has_swap => NONE,
            memory => memory.swap,
        };
        // The limit of both may never be below that of memory.
        let grows = swap == NONE || now.memory_bytes.is_none_or(|limit| limit < swap);
        let [first, second] = if grows {
            [(SWAP, swap), (LIMIT, memory.limit)]
        } else {
            [(LIMIT, memory.limit), (SWAP, swap)]
        };
        for (file, value) in [first, second, (RESERVATION, memory.reservation)] {
            set("memory", file, signed(value));
        }
        let pids = self.pids.unwrap_or_default().limit;
        set(
            "pids",
            PROCESSES,
            (pids != 0).then(|| {
                if pids > 0 {
                    pids.to_string()
                } else {
                    "max".to_owned()
                }
            }),
        );
        changes
    }
}

fn write(path: PathBuf, value: String) -> Result<(), UpdateError> {
    std::fs::write(&path, &value).map_err(|source| UpdateError::Write { path, value, source })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn changes(json: &str, memory_bytes: Option<i64>) -> Vec<String> {
        let resources = Resources::parse(json.as_bytes()).unwrap();
        let now = Limits {
            memory_bytes,
            has_swap: memory_bytes.is_some(),
        };
        let changes = resources.changes(now).into_iter();
        changes
            .map(|change| format!("{}={}", change.file, change.value))
            .collect()
    }

    #[test]
    fn what_is_set_is_written_and_nothing_else() {
        assert!(changes("{}", None).is_empty());
        assert!(
            changes(
                r#"{"devices":[{"allow":true}],"cpu":{"shares":0},"pids":{"limit":0}}"#,
                None
            )
            .is_empty()
        );
        assert_eq!(
            changes(
                r#"{"cpu":{"shares":5,"quota":-1,"period":100000,"cpus":"0-1","mems":"0"},"pids":{"limit":-1}}"#,
                None
            ),
            [
                "cpu.shares=5",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=-1",
                "cpuset.cpus=0-1",
                "cpuset.mems=0",
                "pids.max=max"
            ]
        );
    }

    #[test]
    fn the_limit_of_memory_and_swap_is_never_below_that_of_memory() {
        let both = r#"{"memory":{"limit":40,"swap":40}}"#;
        let swap_first = ["memory.memsw.limit_in_bytes=40", "memory.limit_in_bytes=40"];
        let memory_first = ["memory.limit_in_bytes=40", "memory.memsw.limit_in_bytes=40"];
        assert_eq!(changes(both, Some(20)), swap_first);
        assert_eq!(changes(both, Some(80)), memory_first);
        assert_eq!(
            changes(r#"{"memory":{"limit":-1,"reservation":7}}"#, Some(20)),
            [
                "memory.memsw.limit_in_bytes=-1",
                "memory.limit_in_bytes=-1",
                "memory.soft_limit_in_bytes=7"
            ]
        );
        assert_eq!(
            changes(r#"{"memory":{"limit":-1}}"#, None),
            ["memory.limit_in_bytes=-1"],
            "a kernel that does not count swap"
        );
    }

    #[test]
    fn a_field_that_would_be_ignored_is_an_error_that_names_it() {
        for (json, field) in [
            (r#"{"blockIO":{"weight":1}}"#, "blockIO"),
            (r#"{"memory":{"swappiness":1}}"#, "swappiness"),
            (r#"{"unified":{"memory.high":"1"}}"#, "unified"),
        ] {
            let error = Resources::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn values_are_written_to_the_groups_and_a_controller_that_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("pids/p")).unwrap();
        let groups = Groups::parse("1:pids:/p\n", directory.path());
        let pids = Resources::parse(br#"{"pids":{"limit":7}}"#).unwrap();
        pids.apply(&groups).unwrap();
        let written = directory.path().join(Path::new("pids/p").join(PROCESSES));
        assert_eq!(std::fs::read_to_string(written).unwrap(), "7");
        let cpu = Resources::parse(br#"{"cpu":{"shares":7}}"#).unwrap();
        assert!(matches!(cpu.apply(&groups), Err(UpdateError::Controller("cpu"))));
    }
}
