//! Dynamic resource allocation with a driver of our own: a device reaches the container of the pod that has claimed it,
//! one pod at a time, over kill -9 of knarr.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cluster::{Cluster, has, same};
use crate::dra_driver::{Driver, serve};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "l4_a_claimed_device_is_in_one_container_at_a_time_over_kill_9",
    one_at_a_time,
)];

const DRIVER: &str = "gpu.e2e.example";

const OBJECTS: &str = r#"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: { name: gpu }
spec: { selectors: [{ cel: { expression: 'device.driver == "gpu.e2e.example"' } }] }
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: { name: gpu }
spec: { spec: { devices: { requests: [{ name: r, exactly: { deviceClassName: gpu } }] } } }
"#;

/// One device, as the driver publishes it.
const SLICE: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: { name: gpu-node1 }
spec:
  driver: gpu.e2e.example
  nodeName: node1
  pool: { name: pool, generation: 1, resourceSliceCount: 1 }
  devices: [{ name: d }]
"#;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: NAME }
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{ name: gpu, resourceClaimTemplateName: gpu }]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sleep", "600"]
      resources: { claims: [{ name: gpu }] }
"#;

/// A CDI specification in the host's directory; it is removed when dropped.
struct Specification(PathBuf);

impl Specification {
    fn write(kind: &str) -> std::io::Result<Self> {
        let directory = Path::new("/var/run/cdi");
        std::fs::create_dir_all(directory)?;
        let path = directory.join(format!("{}.json", kind.replace('/', "-")));
        let edits =
            r#"{"env": ["CLAIMED=yes"], "deviceNodes": [{"path": "/dev/claimed", "hostPath": "/dev/zero"}]}"#;
        let devices = format!(r#"[{{"name": "d", "containerEdits": {edits}}}]"#);
        let text = format!(r#"{{"cdiVersion": "0.5.0", "kind": "{kind}", "devices": {devices}}}"#);
        std::fs::write(&path, text)?;
        Ok(Specification(path))
    }
}

impl Drop for Specification {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn one_at_a_time() -> Outcome {
    let cluster = Cluster::start("dra")?;
    let kind = format!("e2e-{}.example/gpu", std::process::id());
    let _specification = Specification::write(&kind)?;
    let driver = Arc::new(Driver {
        cdi_device: Some(format!("{kind}=d")),
        ..Driver::default()
    });
    let runtime = tokio::runtime::Runtime::new()?;
    let _runtime = runtime.enter();
    let kubelet = cluster.data_dir().join("kubelet");
    let socket = kubelet.join("plugins").join(DRIVER).join("dra.sock");
    let _serving = serve(&driver, DRIVER, &socket, &kubelet, &["v1.DRAPlugin"]);

    let ns = cluster.namespace("default");
    ns.wait_for_service_account()?;
    ns.apply(OBJECTS)?;
    let phase = |pod: &str| {
        let shown = ns.try_run(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"]);
        shown.unwrap_or_default()
    };
    // The kubelet deletes the slices of drivers that it does not know yet; a driver publishes its own until they stay.
    let runs = |pod: &str| {
        ns.eventually(&format!("pod {pod} runs"), || {
            ns.apply(SLICE).is_ok() && phase(pod) == "Running"
        })
    };
    let claims = |path: &str| ns.run(&["get", "resourceclaims", "-o", &format!("jsonpath={path}")]);
    ns.apply(&POD.replace("NAME", "a"))?;
    runs("a")?;
    let seen = ns.run(&["exec", "a", "--", "sh", "-c", "echo $CLAIMED; ls -l /dev/claimed"])?;
    has(&seen, "yes\n")?;
    // The kernel's `/dev/zero`.
    has(&seen, "1,   5")?;

    ns.apply(&POD.replace("NAME", "b"))?;
    let condition = "jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].message}";
    ns.eventually_run(&["get", "pod", "b", "-o", condition], |text| {
        text.contains("0/1 nodes are available: 1 cannot allocate all claims")
    })?;
    let identity = "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} \
                    {.status.containerStatuses[0].restartCount}";
    let before = ns.run(&["get", "pod", "a", "-o", identity])?;
    let holders = "{range .items[?(@.status.allocation)]}{.status.reservedFor[*].name} {end}";
    same(&claims(holders)?, "a ")?;

    cluster.kill()?;
    cluster.launch()?;
    cluster.wait_ready()?;
    runs("a")?;
    same(&ns.run(&["get", "pod", "a", "-o", identity])?, &before)?;
    same(&phase("b"), "Pending")?;
    same(&claims(holders)?, "a ")?;

    ns.run(&["delete", "pod", "a", "--wait=false"])?;
    runs("b")?;
    same(&claims(holders)?, "b ")?;
    same(&claims("{.items[*].metadata.ownerReferences[*].name}")?, "b")?;
    ns.run(&["delete", "pod", "b"])?;
    ns.eventually("the claims are deleted", || {
        claims("{.items[*].metadata.name}").is_ok_and(|t| t.is_empty())
    })?;
    // Each was prepared before its pod and unprepared after it; nothing of b came before a was done.
    let calls: Vec<String> = driver.calls();
    let methods: Vec<&str> = calls.iter().filter_map(|call| call.split(' ').nth(1)).collect();
    let first_end = methods
        .iter()
        .position(|method| *method == "NodeUnprepareResources");
    let of_b = calls.iter().position(|call| call.contains("b-gpu"));
    if first_end.is_none() || of_b < first_end || methods.last() != Some(&"NodeUnprepareResources") {
        return Err(format!("the driver was called in this order: {calls:?}").into());
    }
    cluster.end().map_err(Into::into)
}
