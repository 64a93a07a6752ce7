//! Attached volumes are unstaged with the last user of their attachment, whatever is noted of other pods.

use knarr_kubelet::attached_volumes::Step;

use super::*;

/// The kubelet's name of the attachment.
const ATTACHMENT: &str = "csi-1";

/// A node with a volume that is attached to it.
struct Attached {
    node: Node,
    serving: Serving,
}

impl Attached {
    async fn new() -> Self {
        let node = Node::new().await;
        let serving = node.serve(Driver::default());
        node.sync_one().await;
        node.attach("h", json!({"attached": true})).await;
        serving.driver.calls.lock().clear();
        Attached { node, serving }
    }

    fn take(&self, of: &str) {
        let mut in_use = self.node.storage_manager.in_use.lock();
        in_use.take(ATTACHMENT, "v", &format!("u-{of}").into());
        in_use.taken(ATTACHMENT);
    }

    async fn set_up(&self, of: &str) -> Result<PathBuf, StorageFailure> {
        let mut desired = self.node.expected(of, &volume("Filesystem", "1Gi")).await;
        desired.attachment = Some(ATTACHMENT.into());
        self.node.storage_manager.set_up(&desired).await
    }

    async fn tear_down(&self, of: &str) {
        let uid = PodUid::from(format!("u-{of}"));
        self.node.storage_manager.tear_down(&uid).await.unwrap();
        self.node.storage_manager.in_use.lock().leave(&uid);
    }

    fn steps(&self, of: &str) -> Vec<Step> {
        let uid = PodUid::from(format!("u-{of}"));
        self.node.storage_manager.in_use.lock().steps(Some(&uid))
    }

    fn calls(&self) -> Vec<String> {
        first_tokens(&std::mem::take(&mut *self.serving.driver.calls.lock()))
    }

    fn storage_dir(&self, of: &str) -> PathBuf {
        self.node.dir.path().join(format!("pods/u-{of}/storage"))
    }

    /// The last user has left: its teardown unstages, and only then releases.
    async fn assert_unstaged_by(&self, of: &str, context: &str) {
        let attachment = ATTACHMENT.to_string();
        let unstage = Step::Unstage {
            attachment: attachment.clone(),
        };
        assert_eq!(self.steps(of), [unstage], "{context}");
        self.node.storage_manager.unstage(ATTACHMENT).await.unwrap();
        assert_eq!(self.calls(), ["unstage h"], "{context}");
        assert_eq!(self.steps(of), [Step::Release { attachment }], "{context}");
        let noted = self.node.dir.path().join("staged/csi-1.json");
        assert!(!noted.exists(), "{context}");
    }
}

/// What a kubelet wrote for a pod that was torn down, or half of it, is no user of the volume.
#[tokio::test]
async fn s7_the_record_of_a_pod_that_was_torn_down_does_not_keep_a_volume_staged() {
    for of_user in [false, true] {
        let of = Attached::new().await;
        of.take("p");
        of.set_up("p").await.unwrap();
        let late = of.storage_dir(if of_user { "q" } else { "late" });
        let record = "kubernetes.io~csi/pv.json";
        std::fs::create_dir_all(late.join("kubernetes.io~csi")).unwrap();
        std::fs::copy(of.storage_dir("p").join(record), late.join(record)).unwrap();
        if of_user {
            of.take("q");
        }
        of.calls();
        of.tear_down("p").await;
        assert_eq!(of.calls(), ["unpublish h"]);
        let mut last = "p";
        if of_user {
            assert!(of.steps("p").is_empty());
            of.tear_down("q").await;
            assert_eq!(of.calls(), ["unpublish h"]);
            last = "q";
        }
        of.assert_unstaged_by(last, &format!("of a user: {of_user}"))
            .await;
    }
}

#[tokio::test]
async fn s7_a_pod_that_never_set_its_volume_up_unstages_it_if_it_leaves_last() {
    let of = Attached::new().await;
    of.take("p");
    of.take("q");
    of.set_up("p").await.unwrap();
    of.calls();
    of.tear_down("p").await;
    of.tear_down("q").await;
    assert_eq!(of.calls(), ["unpublish h"]);
    of.assert_unstaged_by("q", "").await;
}

#[tokio::test]
async fn s7_a_mount_in_flight_of_a_pod_that_was_torn_down_stages_nothing() {
    let of = Attached::new().await;
    of.take("p");
    of.tear_down("p").await;
    let failed = of.set_up("p").await;
    let not_in_use = matches!(failed, Err(StorageFailure::Stage(StorageError::NotInUse { .. })));
    assert!(not_in_use, "{failed:?}");
    assert_eq!(of.calls(), [""; 0]);
    assert!(!of.storage_dir("p").exists());
}

/// Its record cannot be read any more: the mount is removed without the driver.
#[tokio::test]
async fn s7_a_volume_whose_pods_record_cannot_be_read_is_unstaged_before_its_release() {
    let of = Attached::new().await;
    of.take("p");
    of.set_up("p").await.unwrap();
    let record = of.storage_dir("p").join("kubernetes.io~csi/pv.json");
    std::fs::write(record, "garbage").unwrap();
    of.calls();
    of.tear_down("p").await;
    assert_eq!(of.calls(), [""; 0]);
    of.assert_unstaged_by("p", "").await;
}

/// Of a driver without attachments: by their records, the last of both unstages.
#[tokio::test]
async fn s7_two_pods_that_leave_at_once_do_not_leave_a_volume_staged() {
    for round in 0..10 {
        let node = Node::new().await;
        let serving = node.serve(Driver::default());
        node.sync_one().await;
        node.attach("h", json!({"attached": true})).await;
        for pod in ["p", "q"] {
            node.set_up(pod).await.unwrap();
        }
        serving.driver.calls.lock().clear();
        let (first, second) = (PodUid::from("u-p"), PodUid::from("u-q"));
        let both = futures::future::join(
            node.storage_manager.tear_down(&first),
            node.storage_manager.tear_down(&second),
        );
        let (first, second) = both.await;
        first.unwrap();
        second.unwrap();
        let calls = first_tokens(&serving.driver.calls.lock());
        let unstaged = calls.iter().filter(|call| *call == "unstage h").count();
        assert_eq!(unstaged, 1, "round {round}: {calls:?}");
        assert_eq!(calls.last().map(String::as_str), Some("unstage h"));
    }
}
