//! A node under pressure, and its kubelet (SPEC T8), with stats that the test sets.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_kubelet::configuration::read;
use knarr_kubelet::stats::{ContainerStats, FsStats, MemoryStats, PodReference, PodStats, RuntimeStats};
use knarr_node::runtime::Runtime;
use knarr_node::stats::Measured;
use parking_lot::Mutex;

use super::*;

/// Stats as the test sets them, measured at the time of the request.
struct Scale {
    clock: Arc<dyn Clock>,
    measured: Mutex<Measured>,
}

#[async_trait]
impl Meter for Scale {
    async fn measure(&self, _: Duration) -> Arc<Measured> {
        let mut measured = self.measured.lock().clone();
        let now = Some(Time(self.clock.now()));
        let node = &mut measured.summary.node;
        if let Some(memory) = &mut node.memory {
            memory.time.clone_from(&now);
        }
        let images = node.runtime.as_mut().and_then(|r| r.image_fs.as_mut());
        for fs in node.fs.iter_mut().chain(images) {
            fs.time.clone_from(&now);
        }
        Arc::new(measured)
    }
}

impl Scale {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Scale {
            clock: world.clock.clone(),
            measured: Mutex::default(),
        })
    }

    fn memory(&self, available: u64) {
        self.measured.lock().summary.node.memory = Some(memory(1000, available));
    }

    fn disk(&self, available: u64) {
        let fs = Some(FsStats {
            available_bytes: Some(available),
            capacity_bytes: Some(1000),
            ..FsStats::default()
        });
        let node = &mut self.measured.lock().summary.node;
        node.fs.clone_from(&fs);
        node.runtime = Some(RuntimeStats {
            image_fs: fs,
            container_fs: None,
        });
    }

    /// What a pod uses: memory, and of the disk by its container's layer.
    async fn uses(&self, world: &World, name: &str, bytes: u64) {
        let pod = world.pod(name).await.unwrap();
        let fs = |used| {
            Some(FsStats {
                used_bytes: Some(used),
                ..FsStats::default()
            })
        };
        let stats = PodStats {
            pod_ref: PodReference {
                uid: pod.metadata.uid.clone().unwrap(),
                ..PodReference::default()
            },
            containers: vec![ContainerStats {
                name: name.into(),
                memory: Some(memory(bytes, 0)),
                rootfs: fs(bytes),
                logs: fs(0),
                ..ContainerStats::default()
            }],
            memory: Some(memory(bytes, 0)),
            ephemeral_storage: fs(bytes),
            ..PodStats::default()
        };
        self.measured.lock().summary.pods.push(stats);
    }
}

fn memory(capacity: u64, available: u64) -> MemoryStats {
    MemoryStats {
        available_bytes: Some(available),
        working_set_bytes: Some(capacity - available),
        ..MemoryStats::default()
    }
}

fn configuration(mut fields: Value) -> KubeletConfiguration {
    fields["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
    fields["kind"] = json!("KubeletConfiguration");
    read(&fields).unwrap()
}

async fn condition(world: &World, type_: &str) -> String {
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    let conditions = node.status.as_ref().unwrap().conditions.clone().unwrap();
    let found = conditions.into_iter().find(|c| c.type_ == type_).unwrap();
    format!("{} {}", found.status, found.reason.unwrap_or_default())
}

/// `phase reason`
async fn end(world: &World, name: &str) -> String {
    let pod = world.pod(name).await.unwrap();
    let status = pod.status.clone().unwrap();
    let words = [status.phase, status.reason];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn memory_below_100() -> KubeletConfiguration {
    configuration(json!({
        "evictionHard": {"memory.available": "100"},
        "evictionPressureTransitionPeriod": "30s",
    }))
}

#[tokio::test(start_paused = true)]
async fn t8_the_pod_with_the_most_use_over_its_request_is_evicted_and_the_node_reports_pressure() {
    let world = World::new();
    let scale = Scale::of(&world);
    scale.memory(500);
    let (_kubelet, _cancel) = world.kubelet_with(memory_below_100(), Some(scale.clone()));
    let asks = |bytes: &str| {
        let resources = json!({"requests": {"memory": bytes}});
        json!({"containers": [{"name": "c", "image": "app", "imagePullPolicy": "IfNotPresent", "resources": resources}]})
    };
    world.create_with("modest", asks("500")).await;
    world.create_with("greedy", asks("10")).await;
    world
        .create_with("system", json!({"priority": 2_000_000_000}))
        .await;
    sleep(Duration::from_secs(5)).await;
    scale.uses(&world, "modest", 400).await;
    scale.uses(&world, "greedy", 200).await;
    scale.uses(&world, "system", 300).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(end(&world, "greedy").await, "Running");
    scale.memory(99);
    while world.runtime.running().len() > 2 {
        sleep(Duration::from_millis(10)).await;
    }
    // That was enough.
    scale.memory(500);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(end(&world, "greedy").await, "Failed Evicted");
    assert_eq!(end(&world, "modest").await, "Running");
    assert_eq!(end(&world, "system").await, "Running");
    let pod = world.pod("greedy").await.unwrap();
    let status = pod.status.as_ref().unwrap();
    let message = status.message.clone().unwrap();
    assert!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 100, available: 99. "),
        "{message}"
    );
    let target = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "DisruptionTarget");
    assert_eq!(target.unwrap().reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(
        condition(&world, "MemoryPressure").await,
        "True KubeletHasInsufficientMemory"
    );
    let events = world.events("greedy").await;
    assert!(events.contains(&format!("Evicted {message}")), "{events:?}");
    let events = world.events("n1").await;
    for expected in [
        "EvictionThresholdMet Attempting to reclaim memory",
        "NodeHasInsufficientMemory Node n1 status is now: NodeHasInsufficientMemory",
    ] {
        assert!(
            events.iter().any(|t| t == expected),
            "{expected:?} is not in {events:?}"
        );
    }
    // While it lasts, what could make it worse is not taken in.
    world.create("late").await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(end(&world, "late").await, "Failed Evicted");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        condition(&world, "MemoryPressure").await,
        "False KubeletHasSufficientMemory"
    );
    world.create("later").await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(end(&world, "later").await, "Running");
}

#[tokio::test(start_paused = true)]
async fn t8_one_pod_is_evicted_at_a_time_and_only_after_the_one_before_has_terminated() {
    let world = World::new();
    let scale = Scale::of(&world);
    scale.memory(500);
    world.runtime.ignore_term("a");
    let (_kubelet, _cancel) = world.kubelet_with(memory_below_100(), Some(scale.clone()));
    for (name, bytes) in [("a", 300), ("b", 200)] {
        world.create(name).await;
        sleep(Duration::from_secs(1)).await;
        scale.uses(&world, name, bytes).await;
    }
    scale.memory(50);
    // `a` does not listen; it is killed after the two seconds that every process has.
    while world.runtime.running().len() > 1 {
        assert_eq!(end(&world, "b").await, "Running");
        sleep(Duration::from_millis(500)).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(end(&world, "a").await, "Failed Evicted");
    while !world.runtime.running().is_empty() {
        sleep(Duration::from_millis(500)).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(end(&world, "b").await, "Failed Evicted");
}

#[tokio::test(start_paused = true)]
async fn t8_unused_images_are_deleted_before_a_pod_is_evicted() {
    let world = World::new();
    let scale = Scale::of(&world);
    scale.disk(500);
    let configuration = configuration(json!({
        "evictionHard": {"nodefs.available": "10%"}, "imageGCHighThresholdPercent": 100}));
    let (_kubelet, _cancel) = world.kubelet_with(configuration, Some(scale.clone()));
    world.create("web").await;
    world.create_with("job", json!({"restartPolicy": "Never"})).await;
    sleep(Duration::from_secs(2)).await;
    let job = world
        .runtime
        .running()
        .into_iter()
        .find(|(_, k)| k.ends_with("/job"));
    assert!(world.runtime.exit(&job.unwrap().0, 0));
    scale.uses(&world, "web", 100).await;
    // Longer than the least age of an image.
    sleep(Duration::from_secs(150)).await;
    world.runtime.add_image("docker.io/library/young:latest");
    assert_eq!(world.runtime.containers().await.unwrap().len(), 2);
    let freed = world.runtime.clone();
    let after = scale.clone();
    scale.disk(50);
    // Freeing helps.
    let watch = tokio::spawn(async move {
        while freed.containers().await.unwrap().len() > 1 {
            sleep(Duration::from_millis(1)).await;
        }
        after.disk(500);
    });
    sleep(Duration::from_secs(60)).await;
    assert!(watch.is_finished(), "the ended container was removed");
    let images: Vec<String> = world
        .runtime
        .images()
        .await
        .unwrap()
        .into_iter()
        .map(|i| i.id)
        .collect();
    assert_eq!(
        images,
        [IMAGE, "docker.io/library/young:latest"],
        "one is used, one is young"
    );
    assert_eq!(end(&world, "job").await, "Succeeded");
    assert_eq!(
        condition(&world, "DiskPressure").await,
        "True KubeletHasDiskPressure"
    );
}

#[tokio::test(start_paused = true)]
async fn t8_a_pod_over_its_own_limit_is_evicted_though_the_node_has_enough() {
    let world = World::new();
    let scale = Scale::of(&world);
    scale.disk(900);
    let (_kubelet, _cancel) = world.kubelet_with(configuration(json!({})), Some(scale.clone()));
    let limited = json!({"containers": [{"name": "c", "image": "app", "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"ephemeral-storage": "100"}}}]});
    world.create_with("p", limited).await;
    sleep(Duration::from_secs(2)).await;
    scale.uses(&world, "p", 101).await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(end(&world, "p").await, "Failed Evicted");
    let pod = world.pod("p").await.unwrap();
    assert_eq!(
        pod.status.as_ref().unwrap().message.as_deref(),
        Some("Pod ephemeral local storage usage exceeds the total limit of containers 100. ")
    );
    assert_eq!(
        condition(&world, "DiskPressure").await,
        "False KubeletHasNoDiskPressure"
    );
}

#[tokio::test(start_paused = true)]
async fn t8_unused_images_go_when_their_disk_is_over_the_high_mark() {
    let world = World::new();
    let scale = Scale::of(&world);
    scale.disk(900);
    let old = "docker.io/library/old:latest";
    world.runtime.add_image(old);
    let (_kubelet, _cancel) =
        world.kubelet_with(configuration(json!({"evictionHard": {}})), Some(scale.clone()));
    world.create("a").await;
    let there = async || -> Vec<String> {
        world
            .runtime
            .images()
            .await
            .unwrap()
            .into_iter()
            .map(|i| i.id)
            .collect()
    };
    sleep(Duration::from_secs(620)).await;
    assert_eq!(there().await, [IMAGE, old]);
    scale.disk(100);
    sleep(Duration::from_secs(320)).await;
    assert_eq!(there().await, [IMAGE]);
    let events = world.events("n1").await;
    assert!(
        events
            .iter()
            .any(|t| t.starts_with("FreeDiskSpaceFailed Insufficient free disk space")),
        "an image of no size frees nothing: {events:?}"
    );
}
