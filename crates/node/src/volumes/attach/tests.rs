//! Attachments between a kubelet and an API that answers late or not at all, kubelets that die, and nodes that come back.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_client::TokioClock;
use knarr_client::fake::FakeApi;
use serde_json::json;

use super::*;

fn exclusive(one_pod: bool) -> DesiredAttachment {
    DesiredAttachment::from(ExclusiveAttachment {
        attachment: "knarr-u".into(),
        one_pod,
    })
}

async fn attachment(api: &FakeApi, node: &str, pod: &str) {
    let value = json!({
        "metadata": {"name": "knarr-u", "annotations": {ATTACHED_POD: pod}},
        "spec": {"attacher": ATTACHER, "nodeName": node, "source": {"persistentVolumeName": "v"}},
    });
    let created = api
        .create_as::<VolumeAttachment>(serde_json::from_value(value).unwrap())
        .await
        .unwrap();
    let mut attached = (*created).clone();
    attached.status.get_or_insert_default().attached = true;
    api.update_status_as(attached).await.unwrap();
}

struct Node {
    api: Arc<FakeApi>,
    dir: tempfile::TempDir,
    starts: AtomicI64,
}

impl Node {
    fn new() -> Self {
        let clock = Arc::new(TokioClock::new(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        Node {
            api: Arc::new(FakeApi::new(clock)),
            dir: tempfile::tempdir().unwrap(),
            starts: AtomicI64::new(0),
        }
    }

    fn start(&self) -> Attachments {
        self.start_as("True", false)
    }

    /// A kubelet that has reported this about its node.
    fn start_as(&self, ready: &str, out_of_service: bool) -> Attachments {
        let taint = json!({"key": OUT_OF_SERVICE, "effect": "NoExecute"});
        let node = json!({
            "metadata": {"name": "n1"},
            "spec": {"taints": if out_of_service { vec![taint] } else { vec![] }},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        let node: core::Node = serde_json::from_value(node).unwrap();
        let started = Timestamp::from_second(self.starts.fetch_add(1, Ordering::SeqCst)).unwrap();
        let own_node = Arc::new(OwnNode::new(self.api.clone(), "n1", started));
        own_node.status_written(&node);
        own_node.remember(node);
        Attachments::new(
            self.api.clone(),
            own_node,
            self.dir.path().into(),
            VolumesInUse::default(),
        )
    }

    async fn is_held(&self) -> bool {
        let found = self.api.get_as::<VolumeAttachment>("", "knarr-u").await;
        found.is_ok_and(|a| is_held(&a))
    }
}

/// As the pod's teardown does, of volumes that are not staged.
async fn end_use(node: &Attachments, uid: &str) -> Result<(), ReleaseError> {
    let uid = PodUid::from(uid);
    node.recover()?;
    node.leave(&uid);
    for step in node.steps(Some(&uid)) {
        let Step::Release { attachment } = step else {
            panic!("{step:?}");
        };
        node.release(&attachment).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn s7_a_volume_is_used_only_while_its_record_names_this_node_and_pod() {
    for (node, pod, one_pod, rejected) in [
        ("", "", false, Some("is not attached to any node yet")),
        ("n2", "p", false, Some("is attached to node n2")),
        ("n1", "other", true, Some("another has it")),
        ("n1", "other", false, None),
        ("n1", "p", true, None),
    ] {
        let n = Node::new();
        if !node.is_empty() {
            attachment(&n.api, node, pod).await;
        }
        let held = n.start().hold(&"p".into(), "v", &exclusive(one_pod)).await;
        let held = held.map_err(|error| error.to_string());
        match rejected {
            None => assert_eq!(held, Ok(())),
            Some(part) => assert!(held.as_ref().is_err_and(|e| e.contains(part)), "{held:?}"),
        }
        assert_eq!(n.is_held().await, rejected.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn s7_the_last_pod_releases_the_volume_and_a_restart_forgets_none() {
    let n = Node::new();
    attachment(&n.api, "n1", "").await;
    let node = n.start();
    node.hold(&"one".into(), "v", &exclusive(false)).await.unwrap();
    node.hold(&"two".into(), "v", &exclusive(false)).await.unwrap();
    end_use(&node, "one").await.unwrap();
    assert!(n.is_held().await, "another pod uses it");
    std::fs::remove_dir_all(n.dir.path().join("pods/one")).unwrap();
    // The kubelet dies and is restarted while the pod keeps running.
    let node = n.start();
    node.release_unknown().await.unwrap();
    assert!(n.is_held().await);
    assert_eq!(node.in_use(), ["exclusive.knarr.io/v"]);
    end_use(&node, "two").await.unwrap();
    assert!(!n.is_held().await);
    // The kubelet dies between a pod's end and its release: the next one releases.
    node.hold(&"three".into(), "v", &exclusive(false)).await.unwrap();
    std::fs::remove_dir_all(n.dir.path().join("pods")).unwrap();
    n.start().release_unknown().await.unwrap();
    assert!(!n.is_held().await);
}

/// The release gets no answer and arrives late: by then another pod uses the volume.
#[tokio::test(start_paused = true)]
async fn s7_a_late_answer_for_one_pod_does_not_release_what_the_next_one_uses() {
    let n = Node::new();
    attachment(&n.api, "n1", "").await;
    let node = n.start();
    node.hold(&"one".into(), "v", &exclusive(false)).await.unwrap();
    let on_its_way = Arc::new(AtomicBool::new(true));
    let lost = on_its_way.clone();
    n.api.intercept(move |request| {
        let lost = request.verb == "update" && lost.load(Ordering::SeqCst);
        lost.then(|| Error::timeout("no answer"))
    });
    assert!(end_use(&node, "one").await.is_err());
    on_its_way.store(false, Ordering::SeqCst);
    let mut late = (*n.api.get_as::<VolumeAttachment>("", "knarr-u").await.unwrap()).clone();
    finalizer::remove(&mut late.metadata, IN_USE);
    node.hold(&"two".into(), "v", &exclusive(false)).await.unwrap();
    let arrived = n.api.update_as(late).await;
    assert!(arrived.is_err_and(|e| e.is_conflict()));
    assert!(n.is_held().await);
    // It is sent again, and then without a user.
    end_use(&node, "one").await.unwrap();
    assert!(n.is_held().await);
    end_use(&node, "two").await.unwrap();
    assert!(!n.is_held().await);
}

/// The write that takes the volume into use is done but answered with an error (its answer was lost, or a proxy
/// sent it twice), or is done only when the pod was deleted; the kubelet may have died in between.
#[tokio::test(start_paused = true)]
async fn s7_an_attachment_taken_into_use_without_an_answer_is_released() {
    for (arrives_late, dies) in [(false, false), (true, false), (false, true), (true, true)] {
        let n = Node::new();
        attachment(&n.api, "n1", "").await;
        let lost = Arc::new(AtomicBool::new(true));
        let is_lost = lost.clone();
        n.api.intercept(move |request| {
            let lost = request.verb == "update" && is_lost.load(Ordering::SeqCst);
            lost.then(|| Error::timeout("no answer"))
        });
        let mut node = n.start();
        assert!(node.hold(&"one".into(), "v", &exclusive(false)).await.is_err());
        if dies {
            node = n.start();
        }
        lost.store(false, Ordering::SeqCst);
        let mut write = (*n.api.get_as::<VolumeAttachment>("", "knarr-u").await.unwrap()).clone();
        finalizer::add(&mut write.metadata, IN_USE);
        let kind = &registry::VOLUME_ATTACHMENT;
        if arrives_late {
            end_use(&node, "one").await.unwrap();
            let late = n.api.update_as(write).await;
            assert!(late.is_err_and(|e| e.is_conflict()), "dies: {dies}");
        } else {
            n.api.update_as(write).await.unwrap();
            n.api
                .delete(kind, "", "knarr-u", Default::default())
                .await
                .unwrap();
            end_use(&node, "one").await.unwrap();
            assert!(n.api.get(kind, "", "knarr-u").await.unwrap_err().is_not_found());
        }
        assert!(!n.is_held().await, "arrives late: {arrives_late}, dies: {dies}");
    }
}

/// A node that was fenced is switched on again while its volumes are detached: the attach-detach controller has read the
/// attachment and that the node is out of service, and its write follows.
#[tokio::test(start_paused = true)]
async fn s7_a_node_that_is_back_uses_a_volume_only_when_others_see_it_and_by_a_new_write() {
    for (ready, out_of_service, used) in [
        ("Unknown", true, false),
        ("False", false, false),
        ("True", true, false),
        ("True", false, true),
    ] {
        let n = Node::new();
        attachment(&n.api, "n1", "").await;
        n.start().hold(&"p".into(), "v", &exclusive(false)).await.unwrap();
        let mut detached = (*n.api.get_as::<VolumeAttachment>("", "knarr-u").await.unwrap()).clone();
        finalizer::remove(&mut detached.metadata, IN_USE);
        let held = n
            .start_as(ready, out_of_service)
            .hold(&"p".into(), "v", &exclusive(false))
            .await;
        let of = format!("ready: {ready}, out of service: {out_of_service}");
        match used {
            true => held.unwrap(),
            false => assert!(
                matches!(held, Err(HoldError::NodeNotSeen { .. })),
                "{of}: {held:?}"
            ),
        }
        let detached = n.api.update_as(detached).await;
        assert_eq!(detached.is_err_and(|e| e.is_conflict()), used, "{of}");
        assert_eq!(n.is_held().await, used, "{of}");
    }
}

#[tokio::test(start_paused = true)]
async fn s7_a_record_under_deletion_admits_no_new_user_of_the_volume() {
    let n = Node::new();
    attachment(&n.api, "n1", "").await;
    let mut node = n.start();
    node.hold(&"one".into(), "v", &exclusive(false)).await.unwrap();
    let kind = &registry::VOLUME_ATTACHMENT;
    n.api
        .delete(kind, "", "knarr-u", Default::default())
        .await
        .unwrap();
    // The attachment's deletion was requested without knowledge of these pods: it waits for this node.
    for pod in ["one", "two"] {
        node.hold(&pod.into(), "v", &exclusive(false)).await.unwrap();
        node = n.start();
    }
    let another = node.hold(&"three".into(), "v", &exclusive(true)).await;
    assert!(matches!(another, Err(HoldError::OtherPod { .. })), "{another:?}");
    end_use(&node, "two").await.unwrap();
    assert!(n.is_held().await);
    // No pod here uses it, and its finalizer will be removed: too late.
    std::fs::remove_dir_all(n.dir.path().join("pods")).unwrap();
    let node = n.start();
    let late = node.hold(&"four".into(), "v", &exclusive(false)).await;
    assert!(matches!(late, Err(HoldError::Detaching { .. })), "{late:?}");
    node.release_unknown().await.unwrap();
    assert!(n.api.get(kind, "", "knarr-u").await.unwrap_err().is_not_found());
}

/// The pod that had it staged left, and its kubelet has died before it unstaged it; nothing of the pod may be left.
#[tokio::test(start_paused = true)]
async fn s7_an_attachment_is_in_use_and_not_released_while_its_volume_is_staged() {
    for (dies, has_directory) in [(false, true), (true, true), (true, false)] {
        let n = Node::new();
        attachment(&n.api, "n1", "").await;
        let mut node = n.start();
        let uid = PodUid::from("one");
        node.hold(&uid, "v", &exclusive(false)).await.unwrap();
        let source = || serde_json::from_value(json!({"nfs": {"server": "s", "path": "/e"}})).unwrap();
        let noted = staged::StagedVolume {
            volume: "v".into(),
            source: source(),
        };
        assert!(node.used.lock().stage("knarr-u", &uid, Some(source())).is_some());
        staged::write(n.dir.path(), "knarr-u", &noted).unwrap();
        if dies {
            if !has_directory {
                std::fs::remove_dir_all(n.dir.path().join("pods")).unwrap();
            }
            node = n.start();
        }
        node.leave(&uid);
        node.release_unknown().await.unwrap();
        let step = Step::Unstage {
            attachment: "knarr-u".into(),
        };
        let last_user = has_directory.then_some(&uid);
        assert_eq!(node.steps(last_user), [step]);
        node.release("knarr-u").await.unwrap();
        assert!(n.is_held().await, "dies: {dies}, directory: {has_directory}");
        assert_eq!(node.in_use(), ["exclusive.knarr.io/v"]);
        node.used.lock().unstaged("knarr-u");
        node.release("knarr-u").await.unwrap();
        assert!(!n.is_held().await);
        assert!(node.in_use().is_empty());
    }
}

/// A note of an earlier kubelet cannot be read for a while.
#[tokio::test(start_paused = true)]
async fn s7_nothing_is_released_before_it_is_known_which_volumes_pods_use() {
    let n = Node::new();
    attachment(&n.api, "n1", "").await;
    n.start()
        .hold(&"one".into(), "v", &exclusive(false))
        .await
        .unwrap();
    let note = n.dir.path().join("pods/one/attached/knarr-u");
    let kept = n.dir.path().join("kept");
    std::fs::rename(&note, &kept).unwrap();
    std::fs::create_dir(&note).unwrap();
    let node = n.start();
    assert!(matches!(node.release_unknown().await, Err(ReleaseError::Read(_))));
    assert!(n.is_held().await);
    std::fs::remove_dir(&note).unwrap();
    std::fs::rename(&kept, &note).unwrap();
    node.release_unknown().await.unwrap();
    assert!(n.is_held().await);
    assert_eq!(node.in_use(), ["exclusive.knarr.io/v"]);
}
