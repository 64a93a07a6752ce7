//! A test DRA driver, over real unix sockets: registered, its claims prepared before a pod's containers and unprepared
//! after them, over restarts of the kubelet; and its slices deleted when it disconnects.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use knarr_node::plugins::{Handler, Plugin};
use parking_lot::Mutex;

use super::dra_driver::{Driver, serve};
use super::plugin::{Serving, until};
use super::*;

const DRIVER: &str = "gpu.example.com";

impl World {
    fn serve_driver(&self, driver: &Arc<Driver>, versions: &[&str]) -> [Serving; 2] {
        let socket = self.dir.path().join("driver/dra.sock");
        serve(
            driver,
            DRIVER,
            &socket,
            &self.dir.path().join("kubelet"),
            versions,
        )
    }

    /// A pod whose container uses a claim that is allocated for it.
    async fn create_with_claim(&self, name: &str) {
        let container = json!({"name": name, "image": "app", "imagePullPolicy": "IfNotPresent",
            "resources": {"claims": [{"name": "gpu"}]}});
        let spec = json!({"nodeName": null, "containers": [container], "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": format!("{name}-gpu")}]});
        self.create_with(name, spec).await;
        let uid = self.pod(name).await.unwrap().metadata.uid.unwrap();
        let claim = json!({"metadata": {"name": format!("{name}-gpu"), "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}});
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        let mut claim = (*self.api.create_as(claim).await.unwrap()).clone();
        let status = json!({
            "allocation": {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "pool", "device": "d"}]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid}]});
        claim.status = Some(serde_json::from_value(status).unwrap());
        self.api.update_status_as(claim).await.unwrap();
        let bind = |pod: &mut Pod| pod.spec.get_or_insert_default().node_name = Some("n1".into());
        self.api.edit::<Pod>("default", name, "", bind).await.unwrap();
    }

    async fn until_gone(&self, pod: &str) {
        until("the pod is deleted", async || self.pod(pod).await.is_none()).await;
    }

    async fn until_event(&self, about: &str, text: &str) {
        let what = format!("{about} has the event {text}");
        until(&what, async || self.events(about).await.iter().any(|e| e == text)).await;
    }
}

#[tokio::test]
async fn l4_a_claim_is_prepared_before_its_containers_and_unprepared_after_them() {
    for (versions, want) in [
        (&["v1.DRAPlugin", "v1beta1.DRAPlugin"][..], "v1"),
        (&["v1beta1.DRAPlugin"], "v1beta1"),
    ] {
        let world = World::new();
        let (kubelet, cancel) = world.kubelet();
        let driver = Arc::<Driver>::default();
        let _serving = world.serve_driver(&driver, versions);
        sleep(Duration::from_secs(2)).await;
        world.create_with_claim("a").await;
        until("a runs", async || {
            world.phase("a").await.as_deref() == Some("Running")
        })
        .await;
        let config = world.runtime.config_of("a").unwrap();
        assert_eq!(config.cdi_devices[0].name, "example.com/gpu=a-gpu");
        let status = world.pod("a").await.unwrap().status.unwrap();
        let shown = status
            .container_statuses
            .unwrap()
            .remove(0)
            .allocated_resources_status;
        let want_shown = json!([{"name": "claim:gpu", "resources": [
            {"resourceID": "example.com/gpu=a-gpu", "health": "Unknown"}]}]);
        assert_eq!(json!(shown), want_shown);
        let resources = world.pod_resources("a").await;
        let claim = &resources.containers[0].dynamic_resources[0];
        let device = &claim.claim_resources[0];
        assert_eq!(claim.claim_name, "a-gpu");
        assert_eq!(
            [&device.driver_name, &device.pool_name, &device.device_name],
            [DRIVER, "pool", "d"]
        );
        let prepared = format!("{want} NodePrepareResources a-gpu");
        assert_eq!(driver.calls().as_slice(), std::slice::from_ref(&prepared));
        // A restarted kubelet knows what has to be unprepared.
        cancel.cancel();
        kubelet.wait().await;
        let (_kubelet, _cancel) = world.kubelet();
        sleep(Duration::from_secs(2)).await;
        world.delete("a").await;
        world.until_gone("a").await;
        assert_eq!(
            driver.calls(),
            [prepared, format!("{want} NodeUnprepareResources a-gpu")]
        );
        let text = std::fs::read_to_string(world.dir.path().join("kubelet/dra_manager_state")).unwrap();
        assert!(text.contains(r#"\"ClaimInfoStateList\":[]"#), "{text}");
    }
}

#[tokio::test]
async fn l4_a_pod_waits_for_its_claims_and_reports_why() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    world.create_with_claim("a").await;
    let says =
        "FailedPrepareDynamicResources Failed to prepare dynamic resources: prepare dynamic resources: ";
    world
        .until_event("a", &format!("{says}DRA driver {DRIVER} is not registered"))
        .await;
    let driver = Arc::<Driver>::default();
    *driver.failing.lock() = Some("the device is on fire");
    let _serving = world.serve_driver(&driver, &["v1.DRAPlugin"]);
    let failed = format!("{says}NodePrepareResources failed for ResourceClaim a-gpu: the device is on fire");
    world.until_event("a", &failed).await;
    *driver.failing.lock() = None;
    until("a runs", async || {
        world.phase("a").await.as_deref() == Some("Running")
    })
    .await;
    // A driver that hangs keeps its own pods only.
    driver.hangs.store(true, std::sync::atomic::Ordering::Relaxed);
    world.create_with_claim("b").await;
    until("the driver is asked", async || {
        driver.calls().last().unwrap().ends_with("b-gpu")
    })
    .await;
    world.create("c").await;
    until("c runs", async || {
        world.phase("c").await.as_deref() == Some("Running")
    })
    .await;
    world.delete("a").await;
    world.until_gone("a").await;
}

#[tokio::test]
async fn l4_the_slices_of_drivers_that_are_not_here_are_deleted() {
    let world = World::new();
    let slice = |name: &str, node: &str| {
        let slice = json!({"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
        serde_json::from_value::<ResourceSlice>(slice).unwrap()
    };
    for (name, node) in [("own", "n1"), ("other", "n2")] {
        world.api.create_as(slice(name, node)).await.unwrap();
    }
    let wipe_after = Duration::from_millis(500);
    let (changed, _pods) = tokio::sync::mpsc::unbounded_channel();
    let health = knarr_node::dra::drivers::DriversHealth {
        clock: world.clock.clone(),
        claims: Arc::default(),
        devices: Mutex::default(),
        changed,
    };
    let (api, health) = (world.api.clone(), Arc::new(health));
    let drivers = knarr_node::dra::drivers::Drivers::with_wipe_after(wipe_after, api, "n1".into(), health);
    let running = drivers.clone();
    let _running = tokio::spawn(async move { running.run().await });
    let there = async |name: &str| world.api.get_as::<ResourceSlice>("", name).await.is_ok();
    until("the slice is deleted", async || !there("own").await).await;
    assert!(there("other").await, "another node's stays");
    let socket = world.dir.path().join("dra.sock");
    let driver = Arc::<Driver>::default();
    let server = Serving::begin(&socket, driver.clone());
    let plugin = Plugin {
        name: DRIVER.into(),
        socket: socket.clone(),
        endpoint: socket.clone(),
        versions: vec!["v1.DRAPlugin".into()],
    };
    knarr_node::dra::drivers::Registrar(drivers.clone())
        .register(&plugin)
        .await
        .unwrap();
    world.api.create_as(slice("own", "n1")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(there("own").await, "its driver is connected");
    drop(server);
    let _server = Serving::begin(&socket, driver.clone());
    sleep(Duration::from_millis(100)).await;
    assert!(there("own").await, "a driver that restarts has time to");
    drop(_server);
    until("the slice is deleted", async || !there("own").await).await;
}

#[tokio::test]
async fn l4_a_pod_shows_the_health_that_the_driver_of_its_claim_reports() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    let driver = Arc::new(Driver {
        reports: true,
        ..Driver::default()
    });
    driver.health.send_replace(1);
    let _serving = world.serve_driver(&driver, &["v1.DRAPlugin"]);
    sleep(Duration::from_secs(2)).await;
    world.create_with_claim("a").await;
    for (reported, shown) in [(1, "Healthy"), (2, "Unhealthy")] {
        driver.health.send_replace(reported);
        until(shown, async || {
            let status = world.pod("a").await.unwrap().status.unwrap();
            let containers = status.container_statuses.unwrap_or_default();
            let own = containers
                .first()
                .and_then(|c| c.allocated_resources_status.clone());
            json!(own)
                == json!([{"name": "claim:gpu", "resources": [
                {"resourceID": "example.com/gpu=a-gpu", "health": shown, "message": "as it is"}]}])
        })
        .await;
    }
}
