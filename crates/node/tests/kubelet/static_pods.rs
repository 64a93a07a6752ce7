//! Pods from files of the node's own, and their mirrors.

use knarr_kubelet::static_pods::mirrored_hash;

use super::*;

fn manifest(image: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}]}})
    .to_string()
}

fn with_directory(world: &World) -> (std::path::PathBuf, KubeletConfiguration) {
    let directory = world.dir.path().join("manifests");
    std::fs::create_dir_all(&directory).unwrap();
    let configuration = KubeletConfiguration {
        static_pod_path: Some(directory.display().to_string()),
        ..KubeletConfiguration::default()
    };
    (directory.join("web.yaml"), configuration)
}

async fn some_time() {
    sleep(Duration::from_secs(15)).await;
}

#[tokio::test(start_paused = true)]
async fn l13_a_static_pod_runs_by_its_file_and_the_api_shows_its_mirror() {
    let world = World::new();
    let (file, configuration) = with_directory(&world);
    std::fs::write(&file, manifest("app")).unwrap();
    let (kubelet, cancel) = world.kubelet_with(configuration.clone(), None);
    some_time().await;
    let mirror = world.pod("web-n1").await.unwrap();
    assert_eq!(mirror.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(mirror.metadata.owner_references.as_ref().unwrap()[0].kind, "Node");
    let hash = mirrored_hash(&mirror).unwrap().to_string();
    assert_eq!(world.runtime.running()[0].1, format!("{hash}/c"));
    // Deleting the mirror does not delete the pod.
    world.delete("web-n1").await;
    some_time().await;
    let again = world.pod("web-n1").await.unwrap();
    assert_ne!(again.metadata.uid, mirror.metadata.uid);
    assert_eq!(again.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(world.runtime.starts().len(), 1, "it ran on");
    // A kubelet that comes back finds its own.
    cancel.cancel();
    kubelet.wait().await;
    let (_kubelet, _cancel) = world.kubelet_with(configuration, None);
    some_time().await;
    assert_eq!(world.runtime.starts().len(), 1, "and on");
    // Another content is another pod, after the one before.
    world.runtime.add_image("docker.io/library/other:latest");
    std::fs::write(&file, manifest("other")).unwrap();
    some_time().await;
    let running = world.runtime.running();
    assert_eq!(running.len(), 1, "{running:?}");
    let other = world.pod("web-n1").await.unwrap();
    assert_ne!(mirrored_hash(&other), Some(hash.as_str()));
    assert_eq!(running[0].1, format!("{}/c", mirrored_hash(&other).unwrap()));
    std::fs::remove_file(&file).unwrap();
    some_time().await;
    assert!(world.pod("web-n1").await.is_none());
    assert!(world.runtime.running().is_empty());
}

/// What the mirror shows of the only container: how often it was restarted, and whether it runs.
async fn shown(world: &World) -> Option<(i32, bool)> {
    let status = world.pod("web-n1").await?.status?;
    let container = status.container_statuses?.into_iter().next()?;
    let running = container.state.is_some_and(|s| s.running.is_some());
    Some((container.restart_count, running))
}

/// Waits until the mirror shows that.
async fn shows(world: &World, want: Option<(i32, bool)>) -> Duration {
    let began = Instant::now();
    while shown(world).await != want {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{want:?} is not {:?}",
            shown(world).await
        );
        sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn l4_restarts_of_a_static_pod_are_counted_on_while_it_is_the_same() {
    let world = World::new();
    let (file, configuration) = with_directory(&world);
    std::fs::write(&file, manifest("app")).unwrap();
    let (kubelet, cancel) = world.kubelet_with(configuration.clone(), None);
    shows(&world, Some((0, true))).await;
    // Removed and written again between two reads: it counts as removed, and starts again.
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, manifest("app")).unwrap();
    shows(&world, Some((1, true))).await;
    assert_eq!(world.runtime.starts().len(), 2);
    assert_eq!(world.runtime.running().len(), 1);
    let status = world.pod("web-n1").await.unwrap().status.unwrap();
    let last = status.container_statuses.unwrap()[0].last_state.clone();
    assert!(last.unwrap().terminated.is_some(), "how it ended before");
    // A kubelet that comes back counts as the runtime does, and so does a mirror that is made again.
    cancel.cancel();
    kubelet.wait().await;
    let (kubelet, cancel) = world.kubelet_with(configuration.clone(), None);
    some_time().await;
    world.delete("web-n1").await;
    shows(&world, Some((1, true))).await;
    // A long time after its removal it is as if it had never existed.
    std::fs::remove_file(&file).unwrap();
    shows(&world, None).await;
    sleep(Duration::from_secs(61)).await;
    std::fs::write(&file, manifest("app")).unwrap();
    shows(&world, Some((0, true))).await;
    // A runtime that has forgotten everything, as after a reboot, has left the logs.
    cancel.cancel();
    kubelet.wait().await;
    for (_, whose) in world.runtime.running() {
        let (uid, container) = whose.split_once('/').unwrap();
        let logs = world
            .dir
            .path()
            .join(format!("logs/default_web-n1_{uid}/{container}"));
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(logs.join("4.log"), "").unwrap();
    }
    world.runtime.wipe();
    let (_kubelet, _cancel) = world.kubelet_with(configuration, None);
    shows(&world, Some((5, true))).await;
}

#[tokio::test]
async fn l1_a_changed_manifest_acts_within_a_second() {
    let world = World::new();
    let (file, configuration) = with_directory(&world);
    world.runtime.add_image("docker.io/library/other:latest");
    let (_kubelet, _cancel) = world.kubelet_with(configuration, None);
    std::fs::write(&file, manifest("app")).unwrap();
    shows(&world, Some((0, true))).await;
    let first = world.pod("web-n1").await.unwrap().metadata.uid;
    let began = Instant::now();
    std::fs::write(&file, manifest("other")).unwrap();
    while world
        .pod("web-n1")
        .await
        .is_none_or(|pod| pod.metadata.uid == first)
    {
        assert!(began.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(10)).await;
    }
    shows(&world, Some((0, true))).await;
    let changed = began.elapsed();
    let began = Instant::now();
    std::fs::remove_file(&file).unwrap();
    shows(&world, None).await;
    // The next periodic read of the directory would come after 20 seconds.
    eprintln!("changed after {changed:?}, removed after {:?}", began.elapsed());
    assert!(changed < Duration::from_secs(10) && began.elapsed() < Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn l1_a_changed_manifest_acts_without_an_api() {
    let world = World::new();
    let (file, configuration) = with_directory(&world);
    std::fs::write(&file, manifest("app")).unwrap();
    world.runtime.add_image("docker.io/library/other:latest");
    let (_kubelet, _cancel) = world.kubelet_with(configuration, None);
    shows(&world, Some((0, true))).await;
    let up = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answers = up.clone();
    world.api.intercept(move |_| {
        let up = answers.load(std::sync::atomic::Ordering::SeqCst);
        (!up).then(|| Error::unavailable("the API is down"))
    });
    // Another content, and then the first one again.
    std::fs::write(&file, manifest("other")).unwrap();
    some_time().await;
    assert_eq!(world.runtime.starts().len(), 2);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, manifest("other")).unwrap();
    some_time().await;
    assert_eq!(world.runtime.starts().len(), 3);
    let running = world.runtime.running();
    assert_eq!(running.len(), 1, "{running:?}");
    up.store(true, std::sync::atomic::Ordering::SeqCst);
    shows(&world, Some((1, true))).await;
    let mirror = world.pod("web-n1").await.unwrap();
    assert_eq!(running[0].1, format!("{}/c", mirrored_hash(&mirror).unwrap()));
    // No earlier pod takes it for its own.
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        world.pod("web-n1").await.unwrap().metadata.uid,
        mirror.metadata.uid
    );
    assert_eq!(shown(&world).await, Some((1, true)));
}

#[tokio::test(start_paused = true)]
async fn l13_a_static_pod_runs_without_an_api_and_is_shown_when_it_comes() {
    let world = World::new();
    let (file, configuration) = with_directory(&world);
    std::fs::write(&file, manifest("app")).unwrap();
    let up = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answers = up.clone();
    world.api.intercept(move |_| {
        let up = answers.load(std::sync::atomic::Ordering::SeqCst);
        (!up).then(|| Error::unavailable("the API is down"))
    });
    let (_kubelet, _cancel) = world.kubelet_with(configuration, None);
    some_time().await;
    assert_eq!(world.runtime.running().len(), 1);
    up.store(true, std::sync::atomic::Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.phase("web-n1").await.as_deref(), Some("Running"));
}
