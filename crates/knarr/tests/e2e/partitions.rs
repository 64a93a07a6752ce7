//! Real partitions (SPEC S1–S7): a server and three agents whose links are cut and healed, and whose processes are killed,
//! while a StatefulSet writes to a volume that every node could mount. Its processes record on the volume which pod writes
//! to it; the record must never show two pods at the same time.

use std::path::{Path, PathBuf};

use knarr_nemesis::commands::system;
use knarr_nemesis::fleet::Fleet;
use libtest_mimic::Failed;

use crate::cluster::has;
use crate::{KNARR, Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "s7_through_partitions_and_kills_a_volume_never_has_two_holders",
    partitions,
)];

/// The number of rounds: one in the everyday run, more with `KNARR_TEST_PARTITIONS=10`.
fn rounds() -> usize {
    let configured = std::env::var("KNARR_TEST_PARTITIONS").ok();
    configured.and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A file with a file system, mounted from a loop device; it is unmounted and detached when dropped.
pub struct Disk {
    directory: tempfile::TempDir,
    device: Option<String>,
    mounted: bool,
}

impl Disk {
    pub fn make() -> Result<Disk, Failed> {
        let mut disk = Disk {
            directory: tempfile::Builder::new()
                .prefix("knarr-disk-")
                .tempdir_in("/tmp")?,
            device: None,
            mounted: false,
        };
        let (image, mount) = (disk.directory.path().join("image"), disk.mount());
        std::fs::File::create(&image)?.set_len(16 * 1024 * 1024)?;
        std::fs::create_dir(&mount)?;
        let image = image.display().to_string();
        system(&["mkfs.ext4", "-q", "-F", &image])?;
        let device = system(&["losetup", "--find", "--show", &image])?
            .trim()
            .to_string();
        disk.device = Some(device.clone());
        system(&["mount", &device, &mount.display().to_string()])?;
        disk.mounted = true;
        Ok(disk)
    }

    pub fn mount(&self) -> PathBuf {
        self.directory.path().join("volume")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut undo = Vec::new();
        if self.mounted {
            undo.push(system(&["umount", &self.mount().display().to_string()]));
        }
        if let Some(device) = &self.device {
            undo.push(system(&["losetup", "--detach", device]));
        }
        for error in undo.into_iter().filter_map(Result::err) {
            eprintln!(
                "the disk of a test cannot be removed: {}",
                error.message().unwrap_or("")
            );
        }
    }
}

/// Writes the pod's UID to a volume at PATH, ten times a second.
pub const STATEFUL: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: { name: shared }
spec:
  capacity: { storage: 16Mi }
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  hostPath: { path: PATH, type: Directory }
---
apiVersion: apps/v1
kind: StatefulSet
metadata: { name: db }
spec:
  serviceName: db
  selector: { matchLabels: { app: db } }
  template:
    metadata: { labels: { app: db } }
    spec:
      terminationGracePeriodSeconds: 2
      tolerations:
        - { key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 0 }
        - { key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 0 }
      containers:
        - name: db
          image: localhost/knarr/busybox:1
          env: [{ name: POD_UID, valueFrom: { fieldRef: { fieldPath: metadata.uid } } }]
          command:
            - sh
            - -c
            - trap 'exit 0' TERM; while :; do echo "$POD_UID" >> /data/record; sleep 0.1; done
          volumeMounts: [{ name: data, mountPath: /data }]
  volumeClaimTemplates:
    - metadata: { name: data }
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: by-hand
        resources: { requests: { storage: 16Mi } }
"#;

fn partitions() -> Outcome {
    let disk = Disk::make()?;
    let fleet = Fleet::start(KNARR, 3, &[])?;
    let record = disk.mount().join("record");
    run(&fleet, &disk).map_err(|e| fleet.with_logs(e))?;
    let holders = holders(&record)?;
    if holders.len() < 1 + rounds() {
        return Err(format!(
            "the volume should have moved {} times, its holders were {holders:?}",
            rounds()
        )
        .into());
    }
    fleet.tear_down()?;
    Ok(())
}

fn run(fleet: &Fleet, disk: &Disk) -> Outcome {
    let args = fleet.join_args()?;
    let join: Vec<&str> = args.iter().map(String::as_str).collect();
    for agent in &fleet.agents {
        agent.launch(fleet.agent(agent, &join))?;
    }
    for agent in &fleet.agents {
        fleet.eventually_run(&["get", "node", &agent.name], |out| out.contains(" Ready "))?;
    }
    fleet.apply(&STATEFUL.replace("PATH", &disk.mount().display().to_string()))?;
    let record = disk.mount().join("record");
    for _ in 0..rounds() {
        fleet.eventually_run(&["get", "pod", "db-0"], |out| out.contains("Running"))?;
        round(fleet, &record, &join)?;
    }
    Ok(())
}

/// Cuts the node of the pod off, kills processes on all hosts, heals, and waits until the volume has moved.
fn round(fleet: &Fleet, record: &Path, join: &[&str]) -> Outcome {
    let uid = ["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"];
    let first = fleet.run(&uid)?;
    let name = fleet.run(&["get", "pod", "db-0", "-o", "jsonpath={.spec.nodeName}"])?;
    let holding = fleet
        .agents
        .iter()
        .find(|a| a.name == name)
        .ok_or("db-0 is on no agent")?;
    let other = fleet
        .agents
        .iter()
        .find(|a| a.name != name)
        .ok_or("there is only one agent")?;
    grows(fleet, record, &first)?;

    // Server and node no longer reach each other, nor do two of the nodes. The process continues to write.
    holding.cut(&[fleet.server.address, other.address])?;
    fleet.eventually_run(&["get", "node", &holding.name], |out| out.contains("NotReady"))?;
    let terminating = [
        "get",
        "pod",
        "db-0",
        "-o",
        "jsonpath={.metadata.uid} {.metadata.deletionTimestamp}",
    ];
    fleet.eventually_run(&terminating, |out| out.starts_with(&first) && out.trim() != first)?;
    grows(fleet, record, &first)?;

    // Components that are killed and started again meanwhile do not release the pod either.
    fleet.server.kill()?;
    holding.kill()?;
    holding.kill_containerd()?;
    fleet.launch_server(&fleet.server, &[])?;
    fleet.eventually_run(&terminating, |out| out.starts_with(&first) && out.trim() != first)?;
    other.kill()?;
    other.launch(fleet.agent(other, join))?;
    fleet.eventually_run(&["get", "node", &holding.name], |out| out.contains("NotReady"))?;
    grows(fleet, record, &first)?;
    let attached = fleet.run(&["get", "volumeattachments"])?;
    has(&attached, &holding.name)?;

    // The node is cordoned so that the pod is not scheduled to it again.
    fleet.run(&["cordon", &holding.name])?;
    holding.heal()?;
    holding.launch(fleet.agent(holding, join))?;
    let now = fleet.eventually_run(&uid, |out| {
        !out.contains("NotFound") && !out.is_empty() && out != first
    })?;
    fleet.eventually_run(&["get", "pod", "db-0"], |out| out.contains("Running"))?;
    grows(fleet, record, &now)?;
    holders(record)?;
    fleet.eventually_run(&["get", "node", &holding.name], |out| out.contains(" Ready,"))?;
    fleet.run(&["uncordon", &holding.name]).map(drop)
}

/// Waits until this pod's process has written more.
pub fn grows(fleet: &Fleet, record: &Path, uid: &str) -> Outcome {
    let lines = || std::fs::read_to_string(record).unwrap_or_default();
    let before = lines().lines().filter(|l| *l == uid).count();
    fleet.eventually("its process to write", || {
        lines().lines().filter(|l| *l == uid).count() > before + 3
    })
}

/// The pods that wrote, in their order. It is an error if a pod writes again after another pod has written.
pub fn holders(record: &Path) -> Result<Vec<String>, Failed> {
    let text = std::fs::read_to_string(record)?;
    let mut holders: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if holders.last().is_some_and(|last| last == line) {
            continue;
        }
        if holders.iter().any(|h| h == line) {
            return Err(format!(
                "line {} of the record is of {line}, after other pods had the volume: {holders:?}",
                number + 1
            )
            .into());
        }
        holders.push(line.to_string());
    }
    Ok(holders)
}
