//! The control group of a container: where it is, which processes are in it, what they use.
//!
//! Its path is taken when the OCI runtime has made the container and nothing of the container's own has run: later a
//! container with its own cgroup tree may have moved. Reads are bounded.

pub mod freezer;
pub mod remove;
pub mod signal;
pub mod v1;
pub mod v2;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use rustix::process::Pid;

pub const ROOT: &str = "/sys/fs/cgroup";
/// The file system type of cgroup v2 (linux/magic.h).
const CGROUP2_MAGIC: i64 = 0x6367_7270;
/// Statistics have a few KB; memory.stat of v2 is the longest.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// A container may make groups of its own: so deep and so many processes are listed.
const MAX_DEPTH: usize = 16;
const MAX_PROCESSES: usize = 100_000;

/// A container's group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroup {
    /// cgroup v1: a group for each controller.
    V1(v1::Groups),
    /// cgroup v2.
    V2(PathBuf),
}

impl Cgroup {
    /// The group of a process.
    pub fn of(pid: Pid) -> io::Result<Self> {
        let file = format!("/proc/{}/cgroup", pid.as_raw_nonzero());
        let text = read_text(Path::new(&file))?;
        if is_unified() {
            v2::path(&text, Path::new(ROOT))
                .map(Cgroup::V2)
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the process is in no cgroup"))
        } else {
            Ok(Cgroup::V1(v1::Groups::parse(&text, Path::new(ROOT))))
        }
    }

    /// The message for `Stats`, of the type that containerd's metrics have.
    pub fn stats(&self) -> io::Result<Any> {
        let (kind, value) = match self {
            Cgroup::V1(groups) => (
                "io.containerd.cgroups.v1.Metrics",
                groups.stats()?.write_to_bytes()?,
            ),
            Cgroup::V2(path) => (
                "io.containerd.cgroups.v2.Metrics",
                v2::stats(path)?.write_to_bytes()?,
            ),
        };
        Ok(Any {
            type_url: kind.to_owned(),
            value,
            ..Any::default()
        })
    }

    /// All processes in it and in groups below it.
    pub fn processes(&self) -> io::Result<Vec<u32>> {
        let path = match self {
            Cgroup::V1(groups) => groups.any(),
            Cgroup::V2(path) => Some(path.as_path()),
        };
        let mut found = Vec::new();
        if let Some(path) = path {
            processes(path, 0, &mut found)?;
        }
        Ok(found)
    }
}

/// Whether the host has cgroup v2 only.
pub fn is_unified() -> bool {
    rustix::fs::statfs(ROOT).is_ok_and(|fs| fs.f_type == CGROUP2_MAGIC)
}

/// Moves this process into a group.
pub fn join(group: &str) -> io::Result<()> {
    let relative = Path::new(group.trim_start_matches('/'));
    let plain = |part| matches!(part, std::path::Component::Normal(_));
    if !relative.components().all(plain) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not the path of a cgroup",
        ));
    }
    if is_unified() {
        return std::fs::write(Path::new(ROOT).join(relative).join("cgroup.procs"), "0");
    }
    for controller in v1::CONTROLLERS {
        let directory = Path::new(ROOT).join(controller).join(relative);
        if directory.is_dir() {
            std::fs::write(directory.join("cgroup.procs"), "0")?;
        }
    }
    Ok(())
}

fn processes(directory: &Path, depth: usize, found: &mut Vec<u32>) -> io::Result<()> {
    let text = read_text(&directory.join("cgroup.procs"))?;
    // The last line of a list that was cut is a part of a number, which is another process.
    let lines = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    found.extend(lines.filter_map(|line| line.parse::<u32>().ok()));
    if depth >= MAX_DEPTH || found.len() >= MAX_PROCESSES {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            // A group may be removed while it is read.
            let _ = processes(&entry.path(), depth + 1, found);
        }
    }
    Ok(())
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A file of lines "name number"; empty if it is not there.
struct Fields(String);

impl Fields {
    fn read(directory: &Path, name: &str) -> Self {
        Fields(read_text(&directory.join(name)).unwrap_or_default())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// 0 if there is no such line.
    fn get(&self, name: &str) -> u64 {
        self.0
            .lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(key, _)| *key == name)
            .map_or(0, |(_, value)| number(value))
    }
}

/// The number in a file; 0 if it is not there.
fn value(directory: &Path, name: &str) -> u64 {
    read_text(&directory.join(name)).map_or(0, |text| number(&text))
}

/// A number, where no limit is the largest one.
fn number(text: &str) -> u64 {
    match text.trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_a_group_whose_use_can_be_read() {
        let group = Cgroup::of(rustix::process::getpid()).unwrap();
        let stats = group.stats().unwrap();
        assert!(stats.type_url.starts_with("io.containerd.cgroups.v"));
        assert!(!stats.value.is_empty());
    }

    #[test]
    fn only_the_path_of_a_group_can_be_joined() {
        for path in ["../x", "a/../../b"] {
            assert_eq!(
                join(path).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{path}"
            );
        }
    }

    #[test]
    fn numbers_may_be_without_limit_or_missing() {
        assert_eq!((number("max\n"), number("12\n"), number("")), (u64::MAX, 12, 0));
        let fields = Fields("anon 5\nfile 7\nanon_thp 9\n".into());
        assert_eq!(
            (fields.get("anon"), fields.get("anon_thp"), fields.get("x")),
            (5, 9, 0)
        );
    }
}
