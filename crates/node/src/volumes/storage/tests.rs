//! Every kind of storage from the pod to the command or driver that is called, and back.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_client::fake::FakeApi;
use knarr_client::{TokioClock, TypedApi};
use serde_json::{Value, json};

use super::*;
use crate::host::{CommandError, CommandOutput, Host};
use crate::untrusted_fs::Pool;

/// A fake host: its commands, its mounts, and the commands' answers.
#[derive(Debug, Default)]
pub struct FakeHost {
    commands: Mutex<Vec<String>>,
    mounted: Mutex<BTreeSet<PathBuf>>,
    /// By the start of a command line: exit code and output.
    answers: Mutex<Vec<(String, i32, String)>>,
    device: Mutex<Option<PathBuf>>,
}

impl FakeHost {
    fn answer(&self, line: &str, code: i32, output: &str) {
        self.answers.lock().push((line.into(), code, output.into()));
    }

    /// The commands since the last call.
    fn commands(&self) -> Vec<String> {
        std::mem::take(&mut *self.commands.lock())
    }
}

#[async_trait]
impl Host for FakeHost {
    async fn run(&self, program: &str, args: &[&str]) -> Result<CommandOutput, CommandError> {
        let line = format!("{program} {}", args.join(" "));
        self.commands.lock().push(line.clone());
        let answers = self.answers.lock();
        let (code, output) = answers
            .iter()
            .find(|(begins, ..)| line.starts_with(begins))
            .map_or((0, String::new()), |(_, code, output)| (*code, output.clone()));
        let at = args.last().map(PathBuf::from).unwrap_or_default();
        if code == 0 {
            match program {
                "mount" => drop(self.mounted.lock().insert(at)),
                "umount" => drop(self.mounted.lock().remove(&at)),
                _ => {}
            }
        }
        Ok(CommandOutput {
            code: Some(code),
            output,
        })
    }

    fn is_mounted(&self, at: &Path) -> std::io::Result<bool> {
        Ok(self.mounted.lock().contains(at))
    }

    fn device(&self, _by_path: &str) -> Option<PathBuf> {
        self.device.lock().clone()
    }

    async fn pause(&self, _time: std::time::Duration) {}
}

struct Node {
    dir: tempfile::TempDir,
    api: Arc<FakeApi>,
    host: Arc<FakeHost>,
    storage_manager: StorageManager,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        let host = Arc::new(FakeHost::default());
        Node {
            storage_manager: Node::storage_manager(&dir, &api, &host),
            dir,
            api,
            host,
        }
    }

    fn storage_manager(dir: &tempfile::TempDir, api: &Arc<FakeApi>, host: &Arc<FakeHost>) -> StorageManager {
        let tools = Tools {
            host: host.clone(),
            drivers: Arc::default(),
            api: api.clone(),
            node: "n1".into(),
            files: Pool::new(),
        };
        StorageManager::new(dir.path().into(), tools, VolumesInUse::default())
    }

    /// Another incarnation of the kubelet.
    fn restart(&mut self) {
        self.storage_manager = Node::storage_manager(&self.dir, &self.api, &self.host);
    }

    /// With the node's own directory left out.
    fn commands(&self) -> Vec<String> {
        let root = self.dir.path().display().to_string();
        self.host
            .commands()
            .iter()
            .map(|line| line.replace(&root, ""))
            .collect()
    }
}

fn pod(name: &str) -> core::Pod {
    from(
        json!({"metadata": {"namespace": "a", "name": name, "uid": format!("u-{name}")}, "spec": {"containers": []}}),
    )
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The volume request for a claim whose volume has this spec.
async fn expected(node: &Node, of: &str, spec: Value, read_only: bool) -> VolumeRequest {
    let volume = from(json!({"metadata": {"name": "pv"}, "spec": spec}));
    claimed(&*node.api, &pod(of), &volume, read_only, None)
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn s7_nfs_is_mounted_for_each_pod_and_unmounted_after_it() {
    let mut node = Node::new();
    let spec = json!({"nfs": {"server": "fd00::1", "path": "/e"}, "accessModes": ["ReadWriteMany"], "mountOptions": ["hard"]});
    let first = expected(&node, "p", spec.clone(), true).await;
    let at = node.storage_manager.set_up(&first).await.unwrap();
    assert_eq!(
        at,
        node.dir
            .path()
            .join("pods/u-p/volumes/kubernetes.io~nfs/pv/mount")
    );
    let target = "/pods/u-p/volumes/kubernetes.io~nfs/pv/mount";
    assert_eq!(
        node.commands(),
        [format!("mount -t nfs -o hard,ro -- [fd00::1]:/e {target}")]
    );
    // Again, as a kubelet that was restarted does: nothing to do.
    node.restart();
    node.storage_manager.set_up(&first).await.unwrap();
    assert_eq!(node.commands(), [""; 0]);
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(node.commands(), [format!("umount -- {target}")]);
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(node.commands(), [""; 0], "what is reverted is not reverted again");
}

#[tokio::test]
async fn a_failed_mount_is_reported_with_kubelets_message() {
    let node = Node::new();
    node.host.answer("mount", 32, "mount.nfs: Connection refused\n");
    let spec = json!({"nfs": {"server": "s", "path": "/e"}});
    let failed = node
        .storage_manager
        .set_up(&expected(&node, "p", spec, false).await)
        .await
        .unwrap_err();
    let target = "/pods/u-p/volumes/kubernetes.io~nfs/pv/mount";
    let StorageFailure::Publish(why) = failed else {
        panic!("{failed:?}")
    };
    let why = why.to_string();
    assert_eq!(
        why.replace(&node.dir.path().display().to_string(), ""),
        format!(
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -- s:/e {target}\n\
             Output: mount.nfs: Connection refused\n\n"
        )
    );
    // Nothing is mounted, and the record is removed with the pod.
    node.commands();
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(node.commands(), [""; 0]);
}

fn disk(lun: i32) -> Value {
    json!({"iscsi": {"targetPortal": "192.0.2.9", "iqn": "iqn.x:y", "lun": lun, "fsType": "ext4"},
        "accessModes": ["ReadWriteOnce"]})
}

#[tokio::test]
async fn s7_an_iscsi_disk_is_logged_in_to_once_a_node_and_out_of_after_its_last_pod() {
    let mut node = Node::new();
    *node.host.device.lock() = Some("/dev/sdx".into());
    node.host.answer("blkid", 2, "");
    let staged = "/plugins/kubernetes.io/iscsi/iface-default/192.0.2.9:3260-iqn.x:y-lun-1";
    let target = |pod: &str| format!("/pods/u-{pod}/volumes/kubernetes.io~iscsi/pv/mount");
    node.storage_manager
        .set_up(&expected(&node, "p", disk(1), false).await)
        .await
        .unwrap();
    let discovery = "iscsiadm -m discoverydb -t sendtargets -p 192.0.2.9:3260 -I default";
    let session = "iscsiadm -m node -p 192.0.2.9:3260 -T iqn.x:y -I default";
    assert_eq!(
        node.commands(),
        [
            format!("{discovery} -o new"),
            format!("{discovery} --discover"),
            format!("{session} -o update -n node.session.scan -v manual"),
            format!("{session} --login"),
            format!("{session} -o update -n node.startup -v manual"),
            format!("{session} --rescan"),
            "blkid -p -s TYPE -s PTTYPE -o export -- /dev/sdx".into(),
            "mkfs.ext4 -F -m0 -- /dev/sdx".into(),
            format!("mount -t ext4 -o defaults -- /dev/sdx {staged}"),
            format!("mount -o bind -- {staged} {}", target("p")),
        ]
    );
    node.storage_manager
        .set_up(&expected(&node, "q", disk(1), true).await)
        .await
        .unwrap();
    assert_eq!(
        node.commands(),
        [format!("mount -o bind,ro -- {staged} {}", target("q"))]
    );
    node.restart();
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    assert_eq!(
        node.commands(),
        [format!("umount -- {}", target("p"))],
        "another pod has it"
    );
    node.storage_manager.tear_down(&"u-q".into()).await.unwrap();
    assert_eq!(
        node.commands(),
        [
            format!("umount -- {}", target("q")),
            format!("umount -- {staged}"),
            format!("{session} --logout"),
            format!("{session} -o delete"),
        ]
    );
}

#[tokio::test]
async fn s7_a_volume_whose_first_login_failed_is_torn_down() {
    let node = Node::new();
    node.host
        .answer("iscsiadm -m discoverydb", 8, "connection timed out");
    let failed = node
        .storage_manager
        .set_up(&expected(&node, "p", disk(1), false).await)
        .await;
    assert!(matches!(failed, Err(StorageFailure::Stage(_))), "{failed:?}");
    node.host.answer("iscsiadm -m node", 21, "no records found");
    // There is neither a mount nor the directory that it would have been in.
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
}

#[tokio::test]
async fn s7_a_session_stays_while_another_of_its_disks_is_used() {
    let node = Node::new();
    *node.host.device.lock() = Some("/dev/sdx".into());
    node.host.answer("blkid", 0, "TYPE=ext4\n");
    for (pod, lun) in [("p", 1), ("q", 2)] {
        node.storage_manager
            .set_up(&expected(&node, pod, disk(lun), false).await)
            .await
            .unwrap();
    }
    node.commands();
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    let logouts = |commands: Vec<String>| commands.iter().filter(|l| l.contains("--logout")).count();
    assert_eq!(logouts(node.commands()), 0);
    node.storage_manager.tear_down(&"u-q".into()).await.unwrap();
    assert_eq!(logouts(node.commands()), 1);
}

#[tokio::test]
async fn what_is_on_a_disk_is_never_written_over() {
    for (found, code, part) in [
        ("TYPE=xfs\n", 0, "it already contains xfs"),
        (
            "PTTYPE=gpt\n",
            0,
            "it already contains unknown data, probably partitions",
        ),
        ("", 8, "blkid of /dev/sdx failed: exit status 8"),
    ] {
        let node = Node::new();
        *node.host.device.lock() = Some("/dev/sdx".into());
        node.host.answer("blkid", code, found);
        let failed = node
            .storage_manager
            .set_up(&expected(&node, "p", disk(1), false).await)
            .await;
        let Err(StorageFailure::Stage(why)) = failed else {
            panic!("{failed:?}")
        };
        let why = why.to_string();
        assert!(why.contains(part), "{why}");
        let commands = node.commands();
        assert!(
            !commands
                .iter()
                .any(|l| l.starts_with("mkfs") || l.starts_with("mount")),
            "{commands:?}"
        );
    }
}

#[tokio::test]
async fn a_chap_secret_reaches_iscsiadm_and_is_neither_recorded_nor_logged() {
    let node = Node::new();
    node.host.answer(
        "iscsiadm -m node -p 192.0.2.9:3260 -T iqn.x:y -I default --login",
        24,
        "no",
    );
    let secret: core::Secret = from(json!({"metadata": {"namespace": "a", "name": "s"},
        "data": {"node.session.auth.password": "aHVzaC1odXNo"}}));
    node.api.create_as(secret).await.unwrap();
    let mut spec = disk(1);
    spec["iscsi"]["chapAuthSession"] = true.into();
    spec["iscsi"]["secretRef"] = json!({"name": "s", "namespace": "a"});
    let failed = node
        .storage_manager
        .set_up(&expected(&node, "p", spec, false).await)
        .await;
    let Err(StorageFailure::Stage(why)) = failed else {
        panic!("{failed:?}")
    };
    let why = why.to_string();
    assert!(why.contains("exit status 24") && !why.contains("hush"), "{why}");
    let is_set = node
        .commands()
        .iter()
        .any(|l| l.ends_with("-n node.session.auth.password -v hush-hush"));
    assert!(is_set);
    let record = node
        .dir
        .path()
        .join("pods/u-p/storage/kubernetes.io~iscsi/pv.json");
    assert!(!std::fs::read_to_string(record).unwrap().contains("hush"));
}

#[test]
fn files_are_given_to_the_group_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (dir.path().join("v/d"), dir.path().join("outside"));
    std::fs::create_dir_all(&inside).unwrap();
    for file in [inside.join("f"), outside.clone()] {
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::os::unix::fs::symlink(&outside, inside.join("l")).unwrap();
    let own = std::os::unix::fs::MetadataExt::gid(&outside.metadata().unwrap());
    let group = |on_root_mismatch| FsGroup {
        id: own,
        on_root_mismatch,
    };
    give_to(group(false), &dir.path().join("v"), false).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&inside.join("f")), 0o660);
    assert_eq!(mode(&inside) & 0o2070, 0o2070);
    assert_eq!(mode(&outside), 0o600);
    // Once the volume's root has the group, the rest is checked only with the policy Always.
    let set =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    set(&inside.join("f"), 0o600);
    give_to(group(true), &dir.path().join("v"), false).unwrap();
    assert_eq!(mode(&inside.join("f")), 0o600);
    set(&dir.path().join("v"), 0o770);
    give_to(group(true), &dir.path().join("v"), false).unwrap();
    assert_eq!(mode(&inside.join("f")), 0o660);
}

#[test]
fn a_portal_has_its_port() {
    for (given, with) in [
        ("192.0.2.1", "192.0.2.1:3260"),
        ("192.0.2.1:860", "192.0.2.1:860"),
        ("host", "host:3260"),
        ("[fd00::1]", "[fd00::1]:3260"),
        ("[fd00::1]:860", "[fd00::1]:860"),
    ] {
        assert_eq!(iscsi::portal(given), with);
    }
}

/// A record as a container would forge it, and as a former kubelet wrote it.
fn kubelet_record(staged: &str) -> String {
    json!({
        "source": {"iscsi": {"portals": ["192.0.2.9:3260"], "iqn": "iqn.x:y", "lun": 1, "interface": "default",
            "filesystem": "ext4", "chap_discovery": false, "chap_session": false}},
        "staged": staged,
    })
    .to_string()
}

#[tokio::test]
async fn a3_a_record_in_a_pods_volume_is_no_record() {
    for text in [kubelet_record("/mnt/victim"), "garbage".into()] {
        let mut node = Node::new();
        for plugin in ["kubernetes.io~empty-dir", "kubernetes.io~configmap"] {
            let volume = node.dir.path().join("pods/u-p/volumes").join(plugin).join("v");
            std::fs::create_dir_all(&volume).unwrap();
            std::fs::write(volume.join("vol_data.json"), &text).unwrap();
        }
        node.host.mounted.lock().insert("/mnt/victim".into());
        node.restart();
        node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
        assert_eq!(node.commands(), [""; 0]);
    }
}

#[tokio::test]
async fn a3_a_kubelets_record_is_adopted_without_its_staging_path() {
    let mut node = Node::new();
    let volume = node.dir.path().join("pods/u-p/volumes/kubernetes.io~iscsi/pv");
    std::fs::create_dir_all(volume.join("mount")).unwrap();
    std::fs::write(volume.join("vol_data.json"), kubelet_record("/mnt/victim")).unwrap();
    let staged = node
        .dir
        .path()
        .join("plugins/kubernetes.io/iscsi/iface-default/192.0.2.9:3260-iqn.x:y-lun-1");
    std::fs::create_dir_all(&staged).unwrap();
    let mounted = [volume.join("mount"), staged, "/mnt/victim".into()];
    node.host.mounted.lock().extend(mounted);
    node.restart();
    node.storage_manager.tear_down(&"u-p".into()).await.unwrap();
    let commands = node.commands();
    assert_eq!(commands.len(), 4, "{commands:?}");
    assert!(
        !commands.iter().any(|line| line.contains("victim")),
        "{commands:?}"
    );
    assert_eq!(
        *node.host.mounted.lock(),
        BTreeSet::from([PathBuf::from("/mnt/victim")])
    );
}

#[tokio::test]
async fn a3_a_record_that_cannot_be_read_is_its_own_pods_problem_only() {
    let node = Node::new();
    *node.host.device.lock() = Some("/dev/sdx".into());
    node.host.answer("blkid", 0, "TYPE=ext4\n");
    for pod in ["p", "q"] {
        node.storage_manager
            .set_up(&expected(&node, pod, disk(1), false).await)
            .await
            .unwrap();
    }
    let record = node
        .dir
        .path()
        .join("pods/u-p/storage/kubernetes.io~iscsi/pv.json");
    assert_eq!(record.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    std::fs::write(&record, "garbage").unwrap();
    node.commands();
    // The other pod terminates, and leaves what the first may use; then so does the first.
    for pod in ["q", "p"] {
        node.storage_manager
            .tear_down(&format!("u-{pod}").into())
            .await
            .unwrap();
        let target = format!("/pods/u-{pod}/volumes/kubernetes.io~iscsi/pv/mount");
        assert_eq!(node.commands(), [format!("umount -- {target}")]);
    }
    assert!(!record.exists());
}

#[tokio::test]
async fn a3_names_from_the_api_are_no_options_paths_or_programs() {
    let node = Node::new();
    *node.host.device.lock() = Some("/dev/sdx".into());
    let with = |key: &str, value: &str| {
        let mut spec = disk(1);
        spec["iscsi"][key] = value.into();
        spec
    };
    for spec in [
        json!({"nfs": {"server": "--fstab=/x", "path": "/e"}}),
        with("iscsiInterface", "../../../../../x"),
        with("iscsiInterface", "a/b"),
        with("iqn", "iqn.x:../y"),
        with("fsType", "ext4/../../../x"),
        with("fsType", "-x"),
    ] {
        let failed = node
            .storage_manager
            .set_up(&expected(&node, "p", spec.clone(), false).await)
            .await;
        assert!(failed.is_err(), "{spec}");
        let commands = node.commands();
        let programs = |line: &&String| line.starts_with("mount") || line.starts_with("mkfs");
        assert_eq!(commands.iter().find(programs), None, "{spec}");
    }
}
