//! A test device plugin, over real unix sockets: registered, its devices in the node's status, allocated to containers,
//! kept over a restart, and deregistered.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http::Request;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Node;
use knarr_node::devicemanager::wire::*;
use knarr_node::plugins::serve::{self, Answer, Service};
use knarr_node::plugins::{call, watcher};
use knarr_node::podresources::wire as podresources;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;

use super::plugin::{Registrar, Serving, until};
use super::*;

const GPU: &str = "example.com/gpu";

struct Plugin {
    devices: watch::Sender<Vec<Device>>,
    options: DevicePluginOptions,
    calls: Mutex<Vec<String>>,
    /// What Allocate does.
    behavior: Mutex<AllocateBehavior>,
}

#[derive(Clone, Copy, PartialEq)]
enum AllocateBehavior {
    Allocates,
    Fails,
    Hangs,
}

fn devices(all: &[(&str, &str)]) -> Vec<Device> {
    let device = |(id, health): &(&str, &str)| Device {
        id: id.to_string(),
        health: health.to_string(),
        topology: None,
    };
    all.iter().map(device).collect()
}

impl Plugin {
    fn new(all: &[(&str, &str)]) -> Arc<Self> {
        Arc::new(Plugin {
            devices: watch::Sender::new(devices(all)),
            options: DevicePluginOptions {
                pre_start_required: true,
                get_preferred_allocation_available: true,
            },
            calls: Mutex::default(),
            behavior: Mutex::new(AllocateBehavior::Allocates),
        })
    }

    async fn allocate(&self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let ids = request.container_requests[0].devices_ids.join(",");
        self.calls.lock().push(format!("allocate {ids}"));
        let behavior = *self.behavior.lock();
        match behavior {
            AllocateBehavior::Allocates => {}
            AllocateBehavior::Fails => return Err(Status::unknown("the device is on fire")),
            AllocateBehavior::Hangs => std::future::pending().await,
        }
        let answer = ContainerAllocateResponse {
            envs: [("GPUS".to_string(), ids.clone())].into(),
            mounts: vec![Mount {
                container_path: "/lib/gpu".into(),
                host_path: "/opt/gpu".into(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/gpu".into(),
                host_path: format!("/dev/{ids}"),
                permissions: "rw".into(),
            }],
            annotations: [("example.com/gpus".to_string(), ids.clone())].into(),
            cdi_devices: vec![CdiDevice {
                name: format!("example.com/gpu={ids}"),
            }],
        };
        Ok(AllocateResponse {
            container_responses: vec![answer],
        })
    }
}

type Reports = tokio::sync::mpsc::UnboundedReceiver<Result<ListAndWatchResponse, Status>>;

async fn next_report(mut reports: Reports) -> Option<(Result<ListAndWatchResponse, Status>, Reports)> {
    Some((reports.recv().await?, reports))
}

#[async_trait::async_trait]
impl Service for Plugin {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let method = request.uri().path().rsplit('/').next().unwrap().to_string();
        match method.as_str() {
            "GetDevicePluginOptions" => {
                serve::unary(request, |_: GetDevicePluginOptions| async { Ok(self.options) }).await
            }
            "ListAndWatch" => {
                let mut devices = self.devices.subscribe();
                devices.mark_changed();
                let (sender, reports) = tokio::sync::mpsc::unbounded_channel();
                tokio::spawn(async move {
                    while devices.changed().await.is_ok() {
                        let devices = devices.borrow_and_update().clone();
                        if sender.send(Ok(ListAndWatchResponse { devices })).is_err() {
                            break;
                        }
                    }
                });
                let reports = futures::stream::unfold(reports, next_report);
                let codec = tonic_prost::ProstCodec::<ListAndWatchResponse, ListAndWatch>::default();
                let mut reports = Some(Box::pin(reports));
                let service = tower::service_fn(move |_: tonic::Request<ListAndWatch>| {
                    let reports = reports.take().unwrap();
                    async { Ok::<_, Status>(tonic::Response::new(reports)) }
                });
                let request = request.map(tonic::body::Body::new);
                tonic::server::Grpc::new(codec)
                    .server_streaming(service, request)
                    .await
            }
            "GetPreferredAllocation" => {
                let prefer = |request: PreferredAllocationRequest| async move {
                    let request = &request.container_requests[0];
                    let last = request.available_device_ids.iter().rev();
                    let device_ids = last.take(request.allocation_size as usize).cloned().collect();
                    Ok(PreferredAllocationResponse {
                        container_responses: vec![ContainerPreferredAllocationResponse { device_ids }],
                    })
                };
                serve::unary(request, prefer).await
            }
            "Allocate" => serve::unary(request, |request| self.allocate(request)).await,
            "PreStartContainer" => {
                let start = |request: PreStartContainerRequest| async move {
                    self.calls
                        .lock()
                        .push(format!("start {}", request.devices_ids.join(",")));
                    Ok(Empty {})
                };
                serve::unary(request, start).await
            }
            _ => serve::unimplemented(&request),
        }
    }
}

impl World {
    fn device_plugins(&self) -> PathBuf {
        self.dir.path().join("kubelet/device-plugins")
    }

    /// Registers a plugin whose server listens at `name` in the kubelet's directory.
    async fn register(&self, name: &str) {
        let kubelet = self.device_plugins().join("kubelet.sock");
        until("the kubelet listens", async || kubelet.exists()).await;
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: name.into(),
            resource_name: GPU.into(),
            options: None,
        };
        call(&kubelet, request, Duration::from_secs(10)).await.unwrap();
    }

    async fn serve_plugin(&self, plugin: &Arc<Plugin>) -> Serving {
        let kubelet = self.device_plugins().join("kubelet.sock");
        until("the kubelet listens", async || kubelet.exists()).await;
        let serving = Serving::begin(&self.device_plugins().join("gpu.sock"), plugin.clone());
        self.register("gpu.sock").await;
        serving
    }

    /// Capacity and what of it can be allocated.
    async fn has(&self) -> Option<(String, String)> {
        let node = self.api.get_as::<Node>("", "n1").await.ok()?;
        let status = node.status.clone()?;
        Some((
            status.capacity?.get(GPU)?.0.clone(),
            status.allocatable?.get(GPU)?.0.clone(),
        ))
    }

    async fn until_has(&self, capacity: &str, allocatable: &str) {
        let expected = Some((capacity.to_string(), allocatable.to_string()));
        until(&format!("the node has {expected:?}"), async || {
            self.has().await == expected
        })
        .await;
    }

    async fn until_phase(&self, pod: &str, phase: &str) {
        let what = format!("{pod} is {phase}");
        until(&what, async || self.phase(pod).await.as_deref() == Some(phase)).await;
    }

    async fn create_with_gpus(&self, name: &str, count: usize) {
        let of = json!({GPU: count.to_string()});
        let container = json!({"name": name, "image": "app", "imagePullPolicy": "IfNotPresent",
            "env": [{"name": "OWN", "value": "1"}], "resources": {"limits": of, "requests": of}});
        self.create_with(name, json!({"containers": [container]})).await;
    }

    async fn why(&self, name: &str) -> (String, String) {
        let status = self.pod(name).await.unwrap().status.unwrap();
        (
            status.reason.unwrap_or_default(),
            status.message.unwrap_or_default(),
        )
    }
}

#[tokio::test]
async fn l4_a_container_gets_what_its_plugin_allocates() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    let plugin = Plugin::new(&[("g1", "Healthy"), ("g2", "Healthy"), ("g3", "Unhealthy")]);
    let _serving = world.serve_plugin(&plugin).await;
    world.until_has("3", "2").await;
    world.create_with_gpus("a", 1).await;
    world.until_phase("a", "Running").await;
    assert_eq!(
        *plugin.calls.lock(),
        ["allocate g2", "start g2"],
        "the preferred one"
    );
    let config = world.runtime.config_of("a").unwrap();
    let envs: BTreeSet<_> = config
        .envs
        .iter()
        .map(|e| (e.key.as_str(), e.value.as_str()))
        .collect();
    assert!(
        envs.is_superset(&[("GPUS", "g2"), ("OWN", "1")].into()),
        "{envs:?}"
    );
    let mount = &config.mounts[0];
    assert_eq!(
        (
            mount.container_path.as_str(),
            mount.host_path.as_str(),
            mount.readonly
        ),
        ("/lib/gpu", "/opt/gpu", true)
    );
    let device = &config.devices[0];
    assert_eq!(
        [&device.container_path, &device.host_path, &device.permissions],
        ["/dev/gpu", "/dev/g2", "rw"]
    );
    assert_eq!(config.annotations["example.com/gpus"], "g2");
    assert_eq!(config.cdi_devices[0].name, "example.com/gpu=g2");
    let resources = world.pod_resources("a").await;
    let listed = &resources.containers[0].devices;
    assert_eq!(
        (listed[0].resource_name.as_str(), listed[0].device_ids.as_slice()),
        (GPU, &["g2".to_string()][..])
    );
    let socket = world.dir.path().join("kubelet/pod-resources/kubelet.sock");
    let allocatable = call(
        &socket,
        podresources::AllocatableResourcesRequest {},
        Duration::from_secs(5),
    )
    .await;
    let allocatable = allocatable.unwrap().devices;
    let ids: Vec<_> = allocatable.iter().flat_map(|d| &d.device_ids).collect();
    assert_eq!(ids, ["g1", "g2"], "the healthy ones");
    let request = podresources::GetPodResourcesRequest {
        pod_name: "x".into(),
        pod_namespace: "default".into(),
    };
    let error = call(&socket, request, Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.message, "pod x in namespace default not found");
    // What is free again is given again.
    world.create_with_gpus("b", 1).await;
    world.until_phase("b", "Running").await;
    world.create_with_gpus("c", 1).await;
    world.until_phase("c", "Failed").await;
    assert_eq!(world.why("c").await.0, format!("OutOf{GPU}"));
    world.delete("a").await;
    until("a is deleted", async || world.pod("a").await.is_none()).await;
    let listed = call(
        &socket,
        podresources::ListPodResourcesRequest {},
        Duration::from_secs(5),
    )
    .await;
    let listed = listed.unwrap().pod_resources;
    assert_eq!(
        listed.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
        ["b"],
        "those that have not ended"
    );
    world.create_with_gpus("d", 1).await;
    world.until_phase("d", "Running").await;
    assert!(
        plugin
            .calls
            .lock()
            .ends_with(&["allocate g2".into(), "start g2".into()])
    );
}

#[tokio::test]
async fn l4_a_pod_that_does_not_get_its_devices_fails_and_others_do_not_wait_for_it() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    let plugin = Plugin::new(&[("g1", "Healthy"), ("g2", "Healthy")]);
    let _serving = world.serve_plugin(&plugin).await;
    world.until_has("2", "2").await;
    *plugin.behavior.lock() = AllocateBehavior::Fails;
    world.create_with_gpus("a", 1).await;
    world.until_phase("a", "Failed").await;
    assert_eq!(
        world.why("a").await,
        (
            "UnexpectedAdmissionError".into(),
            "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = the device is on fire, \
             which is unexpected"
                .into()
        )
    );
    *plugin.behavior.lock() = AllocateBehavior::Hangs;
    world.create_with_gpus("b", 1).await;
    until("the plugin is asked", async || plugin.calls.lock().len() == 2).await;
    world.create("c").await;
    world.until_phase("c", "Running").await;
    // Nor does the pod's own end wait.
    world.delete("b").await;
    until("b is deleted", async || world.pod("b").await.is_none()).await;
    *plugin.behavior.lock() = AllocateBehavior::Allocates;
    world.create_with_gpus("d", 2).await;
    world.until_phase("d", "Running").await;
}

#[tokio::test]
async fn l4_what_a_container_has_outlives_the_kubelet_and_its_plugin() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet();
    let plugin = Plugin::new(&[("g1", "Healthy"), ("g2", "Healthy")]);
    let serving = world.serve_plugin(&plugin).await;
    world.until_has("2", "2").await;
    world.create_with_gpus("a", 1).await;
    world.until_phase("a", "Running").await;
    cancel.cancel();
    kubelet.wait().await;
    drop(serving);
    let text = std::fs::read_to_string(world.device_plugins().join("kubelet_internal_checkpoint")).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    let entry = &written["Data"]["PodDeviceEntries"][0];
    assert_eq!(entry["DeviceIDs"], json!({"-1": ["g2"]}));
    assert_eq!(entry["ResourceName"], GPU);

    let (_kubelet, _cancel) = world.kubelet();
    world.until_has("0", "0").await;
    assert_eq!(world.phase("a").await.as_deref(), Some("Running"));
    let serving = world.serve_plugin(&plugin).await;
    world.until_has("2", "2").await;
    world.create_with_gpus("b", 1).await;
    world.until_phase("b", "Running").await;
    let gpu =
        |container: &str| world.runtime.config_of(container).unwrap().annotations["example.com/gpus"].clone();
    assert_eq!([gpu("a"), gpu("b")], ["g2", "g1"], "a has kept its own");
    plugin
        .devices
        .send_replace(devices(&[("g1", "Healthy"), ("g2", "Unhealthy")]));
    world.until_has("2", "1").await;
    until("a shows that its device is not healthy", async || {
        let status = world.pod("a").await.unwrap().status.unwrap();
        let container = status.container_statuses.unwrap().remove(0);
        let shown = container.allocated_resources_status.unwrap_or_default();
        json!(shown) == json!([{"name": GPU, "resources": [{"resourceID": "g2", "health": "Unhealthy"}]}])
    })
    .await;
    drop(serving);
    world.until_has("2", "0").await;
}

#[tokio::test]
async fn l4_a_device_plugin_registers_in_the_registry_as_well() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    let plugin = Plugin::new(&[("g1", "Healthy")]);
    let socket = world.dir.path().join("gpu/plugin.sock");
    let _serving = Serving::begin(&socket, plugin);
    let registry = world.dir.path().join("kubelet/plugins_registry");
    let show = |name: &str, version: &str| {
        let registrar = Arc::new(Registrar {
            info: watcher::PluginInfo {
                kind: "DevicePlugin".into(),
                name: name.into(),
                endpoint: socket.display().to_string(),
                supported_versions: vec![version.into()],
            },
            statuses: Mutex::default(),
        });
        let file = format!("{}.sock", name.replace('/', "-"));
        (Serving::begin(&registry.join(file), registrar.clone()), registrar)
    };
    let (_wrong, wrong) = show("example.com/old", "v1alpha1");
    let (shown, registrar) = show(GPU, "v1beta1");
    world.until_has("1", "1").await;
    until("both are notified", async || {
        !wrong.statuses.lock().is_empty() && !registrar.statuses.lock().is_empty()
    })
    .await;
    assert!(registrar.statuses.lock()[0].plugin_registered);
    assert_eq!(
        wrong.statuses.lock()[0].error,
        "RegisterPlugin error -- plugin validation failed with err: manager version, v1beta1, is not among plugin \
         supported versions [\"v1alpha1\"]"
    );
    drop(shown);
    world.until_has("1", "0").await;
}
