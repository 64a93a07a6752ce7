//! Rotation on real files, with a runtime whose reopening works or fails.

use std::fs::{self, File};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use flate2::read::GzDecoder;
use k8s_openapi::jiff::SignedDuration;
use knarr_kubelet::runtime::Container;
use tempfile::TempDir;

use super::*;
use crate::runtime::{ContainerDetail, ExecOptions, Result};

struct Runtime {
    directory: TempDir,
    fails: AtomicBool,
}

#[async_trait]
impl Containers for Runtime {
    async fn container(&self, id: &str) -> Result<ContainerDetail> {
        Err(RuntimeError::not_found("container", id))
    }
    async fn find(&self, _: &str, _: &str, container: &str) -> Result<ContainerDetail> {
        self.container(container).await
    }
    async fn running(&self) -> Result<Vec<Container>> {
        Ok(Vec::new())
    }
    async fn exec_url(&self, id: &str, _: &ExecOptions) -> Result<String> {
        Err(RuntimeError::not_found("container", id))
    }
    async fn attach_url(&self, id: &str, _: &ExecOptions) -> Result<String> {
        Err(RuntimeError::not_found("container", id))
    }
    async fn netns(&self, _: &str, pod: &str) -> Result<Option<PathBuf>> {
        Err(RuntimeError::not_found("pod", pod))
    }
    async fn reopen_log(&self, id: &str) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(RuntimeError::not_found("container", id));
        }
        File::create(self.log()).unwrap();
        Ok(())
    }
    async fn exited(&self, _: &str) {}
}

impl Runtime {
    fn new() -> Self {
        Runtime {
            directory: tempfile::tempdir().unwrap(),
            fails: AtomicBool::new(false),
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("0.log")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    async fn rotate(&self, minutes: i64) -> std::result::Result<(), RotateError> {
        let policy = Policy {
            max_bytes: 10,
            max_files: 4,
            ..Policy::default()
        };
        let start: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
        let now = start + SignedDuration::from_mins(minutes);
        rotate_if_large(self, "id", &self.log(), policy, now).await
    }
}

#[tokio::test]
async fn a_log_is_rotated_when_it_is_large_and_only_so_many_are_kept() {
    let runtime = Runtime::new();
    runtime.write("0.log", "small");
    runtime.rotate(0).await.unwrap();
    assert_eq!(runtime.names(), ["0.log"]);

    for minute in 0..5 {
        runtime.write("0.log", &format!("large enough: {minute}"));
        runtime.rotate(minute).await.unwrap();
        assert_eq!(fs::read(runtime.log()).unwrap(), b"");
    }
    let kept = [
        "0.log",
        "0.log.20260102-030200.gz",
        "0.log.20260102-030300.gz",
        "0.log.20260102-030400",
    ];
    assert_eq!(runtime.names(), kept);
    let mut text = String::new();
    let compressed = File::open(runtime.directory.path().join(kept[1])).unwrap();
    GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
    assert_eq!(text, "large enough: 2");
    assert_eq!(
        fs::read_to_string(runtime.directory.path().join(kept[3])).unwrap(),
        "large enough: 4"
    );
}

#[tokio::test]
async fn what_an_interrupted_rotation_left_is_cleared_away() {
    let runtime = Runtime::new();
    runtime.write("0.log", "large enough");
    runtime.write("0.log.20260101-000000.tmp", "half");
    runtime.write("0.log.20260101-000000", "twice");
    runtime.write("0.log.20260101-000000.gz", "once");
    runtime.write("1.log.20260101-000000", "another container's");
    runtime.rotate(0).await.unwrap();
    let left = [
        "0.log",
        "0.log.20260101-000000.gz",
        "0.log.20260102-030000",
        "1.log.20260101-000000",
    ];
    assert_eq!(runtime.names(), left);
}

#[tokio::test]
async fn a_runtime_that_begins_no_new_log_keeps_the_old_name() {
    let runtime = Runtime::new();
    runtime.write("0.log", "large enough");
    runtime.fails.store(true, Ordering::Relaxed);
    assert!(matches!(runtime.rotate(0).await, Err(RotateError::Reopen(_))));
    assert_eq!(runtime.names(), ["0.log"]);
    assert_eq!(fs::read_to_string(runtime.log()).unwrap(), "large enough");
}

#[tokio::test]
async fn a_missing_log_is_created_again() {
    let runtime = Runtime::new();
    runtime.rotate(0).await.unwrap();
    assert_eq!(runtime.names(), ["0.log"]);
}

#[test]
fn removing_a_container_removes_its_logs_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("1.log");
    remove(&dir.path().join("absent/0.log")).unwrap();
    for name in [
        "0.log",
        "1.log",
        "1.log.20260101-000000",
        "1.log.20260101-000000.gz",
        "11.log",
    ] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    for _ in 0..2 {
        remove(&log).unwrap();
    }
    let entries = std::fs::read_dir(dir.path()).unwrap();
    let mut left: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["0.log", "11.log"]);
}
