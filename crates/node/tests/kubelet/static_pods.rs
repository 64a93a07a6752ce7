//! Pods from files of the node's own, and their mirrors.

use knarr_kubelet::static_pods::mirrored;

use super::*;

fn manifest(image: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}]}})
    .to_string()
}

fn with_folder(world: &World) -> (std::path::PathBuf, KubeletConfiguration) {
    let folder = world.dir.path().join("manifests");
    std::fs::create_dir_all(&folder).unwrap();
    let configuration = KubeletConfiguration {
        static_pod_path: Some(folder.display().to_string()),
        ..KubeletConfiguration::default()
    };
    (folder.join("web.yaml"), configuration)
}

async fn some_time() {
    sleep(Duration::from_secs(15)).await;
}

#[tokio::test(start_paused = true)]
async fn l13_a_static_pod_runs_by_its_file_and_the_api_shows_its_mirror() {
    let world = World::new();
    let (file, configuration) = with_folder(&world);
    std::fs::write(&file, manifest("app")).unwrap();
    let (kubelet, cancel) = world.kubelet_with(configuration.clone(), None);
    some_time().await;
    let mirror = world.pod("web-n1").await.unwrap();
    assert_eq!(mirror.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(mirror.metadata.owner_references.as_ref().unwrap()[0].kind, "Node");
    let hash = mirrored(&mirror).unwrap().to_string();
    assert_eq!(world.runtime.running()[0].1, format!("{hash}/c"));
    // Whoever deletes the mirror deletes no pod.
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
    assert_ne!(mirrored(&other), Some(hash.as_str()));
    assert_eq!(running[0].1, format!("{}/c", mirrored(&other).unwrap()));
    std::fs::remove_file(&file).unwrap();
    some_time().await;
    assert!(world.pod("web-n1").await.is_none());
    assert!(world.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn l13_a_static_pod_runs_without_an_api_and_is_shown_when_it_comes() {
    let world = World::new();
    let (file, configuration) = with_folder(&world);
    std::fs::write(&file, manifest("app")).unwrap();
    let up = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answers = up.clone();
    world.api.intercept(move |_| {
        let up = answers.load(std::sync::atomic::Ordering::SeqCst);
        (!up).then(|| Error::unavailable("nobody is there"))
    });
    let (_kubelet, _cancel) = world.kubelet_with(configuration, None);
    some_time().await;
    assert_eq!(world.runtime.running().len(), 1);
    up.store(true, std::sync::atomic::Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.phase("web-n1").await.as_deref(), Some("Running"));
}
