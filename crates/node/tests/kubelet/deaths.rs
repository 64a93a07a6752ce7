//! `kill -9` of the kubelet and of the runtime at every step of a pod's start and end (SPEC S1, T4): each call to the
//! runtime is once the last thing the kubelet does, and once the last thing the runtime does, before and after its
//! effect. Each call also fails once, and once does what it should while its answer is lost. The pod has an init
//! container, a sidecar, a preStop hook, and volumes.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_kubelet::runtime::{Container, Sandbox};
use knarr_node::runtime::fake::{ContainerEvent, End, StopBehavior};
use knarr_node::runtime::{
    AuthConfig, ContainerConfig, ContainerDetail, ExecOptions, ExecOutput, Image, ImageFs,
    LinuxContainerResources, PodSandboxConfig, Result, Runtime, RuntimeError, RuntimeEvent, RuntimeStatus,
    SandboxDetail, Usage,
};
use parking_lot::Mutex;

use super::*;

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kubelet,
    Runtime,
    /// Both live on: the call fails, or its answer is lost.
    Answer,
}

/// One death: at the call of this number, before or after what it does.
#[derive(Clone, Copy, Debug)]
struct PlannedFault {
    fault: Fault,
    call: usize,
    after_effect: bool,
}

/// The runtime as one kubelet reaches it, until one of both dies.
struct MortalRuntime {
    inner: Arc<FakeRuntime>,
    calls: Arc<AtomicUsize>,
    fault_at: Option<PlannedFault>,
    /// The kubelet's.
    dead: CancellationToken,
    /// How often a hook was run to its end.
    hooks: Arc<AtomicUsize>,
}

impl MortalRuntime {
    async fn call<T>(&self, does: impl Future<Output = Result<T>>) -> Result<T> {
        // The dead wait for no answer.
        if self.dead.is_cancelled() {
            return std::future::pending().await;
        }
        let n = self.calls.fetch_add(1, Ordering::SeqCst);
        let fault_at = self.fault_at.filter(|d| d.call == n);
        match fault_at {
            Some(fault_at) if !fault_at.after_effect => self.die(fault_at.fault).await,
            Some(fault_at) => {
                let effect = does.await;
                drop(effect);
                self.die(fault_at.fault).await
            }
            None => does.await,
        }
    }

    async fn die<T>(&self, fault: Fault) -> Result<T> {
        match fault {
            Fault::Kubelet => {
                self.dead.cancel();
                std::future::pending().await
            }
            Fault::Runtime => {
                self.inner.set_down(true);
                let inner = self.inner.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_secs(2)).await;
                    inner.set_down(false);
                });
                Err(RuntimeError::new("Unavailable", "connection reset"))
            }
            Fault::Answer => Err(RuntimeError::new("DeadlineExceeded", "context deadline exceeded")),
        }
    }
}

#[async_trait]
impl Runtime for MortalRuntime {
    async fn status(&self) -> Result<RuntimeStatus> {
        // The runtime's status is polled at any time, so it does not count as one of the pod's calls.
        self.inner.status().await
    }
    async fn events(&self) -> Result<BoxStream<'static, RuntimeEvent>> {
        self.inner.events().await
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.inner.sandboxes().await
    }
    async fn sandbox(&self, id: &SandboxId) -> Result<SandboxDetail> {
        self.call(self.inner.sandbox(id)).await
    }
    async fn run_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> Result<SandboxId> {
        self.call(self.inner.run_sandbox(config, handler)).await
    }
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(self.inner.stop_sandbox(id)).await
    }
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(self.inner.remove_sandbox(id)).await
    }
    async fn containers(&self) -> Result<Vec<Container>> {
        self.inner.containers().await
    }
    async fn container(&self, id: &ContainerId) -> Result<ContainerDetail> {
        self.call(self.inner.container(id)).await
    }
    async fn create_container(
        &self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerId> {
        self.call(self.inner.create_container(sandbox_id, config, sandbox))
            .await
    }
    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        self.call(self.inner.start_container(id)).await
    }
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.call(self.inner.stop_container(id, grace)).await
    }
    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.call(self.inner.remove_container(id)).await
    }
    async fn update_container(&self, id: &ContainerId, resources: &LinuxContainerResources) -> Result<()> {
        self.call(self.inner.update_container(id, resources)).await
    }
    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        limit: Option<Duration>,
    ) -> Result<ExecOutput> {
        let hook = async {
            let done = self.inner.exec(id, command, limit).await;
            if done.is_ok() {
                self.hooks.fetch_add(1, Ordering::SeqCst);
            }
            done
        };
        self.call(hook).await
    }
    async fn usage(&self) -> Result<Vec<Usage>> {
        self.inner.usage().await
    }
    async fn exec_url(&self, id: &ContainerId, options: &ExecOptions) -> Result<String> {
        self.inner.exec_url(id, options).await
    }
    async fn attach_url(&self, id: &ContainerId, options: &ExecOptions) -> Result<String> {
        self.inner.attach_url(id, options).await
    }
    async fn port_forward_url(&self, id: &SandboxId, ports: &[i32]) -> Result<String> {
        self.inner.port_forward_url(id, ports).await
    }
    async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        self.inner.reopen_log(id).await
    }
    async fn images(&self) -> Result<Vec<Image>> {
        self.inner.images().await
    }
    async fn image(&self, name: &str) -> Result<Option<Image>> {
        self.call(self.inner.image(name)).await
    }
    async fn pull_image(
        &self,
        name: &str,
        auth: Option<&AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        self.call(self.inner.pull_image(name, auth, sandbox)).await
    }
    async fn remove_image(&self, name: &str) -> Result<()> {
        self.inner.remove_image(name).await
    }
    async fn image_fs(&self) -> Result<Option<ImageFs>> {
        self.inner.image_fs().await
    }
}

/// Enough virtual time for anything that a pod's life of this test can take.
const LONG: Duration = Duration::from_secs(300);

async fn until(what: &str, fault_at: Option<PlannedFault>, mut holds: impl AsyncFnMut() -> bool) {
    let reached = tokio::time::timeout(LONG, async {
        while !holds().await {
            sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(reached.await.is_ok(), "{what}: never, with {fault_at:?}");
}

/// The pod: what is before its containers, two of these, and a volume of each kind that is made on the node.
fn spec() -> Value {
    let container = |name: &str, more: Value| {
        let mut container = json!({"name": name, "image": "app", "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "who", "mountPath": "/who"}]});
        for (key, value) in more.as_object().unwrap() {
            container[key] = value.clone();
        }
        container
    };
    let pre_stop = json!({"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}});
    let item = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    json!({
        "initContainers": [
            container("side", json!({"restartPolicy": "Always"})),
            container("init", json!({})),
        ],
        "containers": [container("c", pre_stop), container("d", json!({}))],
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "who", "downwardAPI": {"items": [item]}}],
    })
}

/// Starts and ends the pod with a death on the way. The number of calls there were.
async fn live_through(fault_at: Option<PlannedFault>) -> usize {
    let world = World::new();
    // They take a while to exit, and less than their grace: none may be killed.
    for (name, behavior) in [
        ("init", StopBehavior::Finishes(Duration::from_secs(3))),
        ("side", StopBehavior::Lingers(Duration::from_secs(2))),
        ("c", StopBehavior::Lingers(Duration::from_secs(5))),
        ("d", StopBehavior::Lingers(Duration::from_secs(12))),
    ] {
        world.runtime.set_stop_behavior(name, behavior);
    }
    let hooks = Arc::new(AtomicUsize::new(0));
    let killed = Arc::new(Mutex::new(Vec::new()));
    let (seen, hooks_seen) = (killed.clone(), hooks.clone());
    // A hook that the death keeps from running at all is lost with it: it is its own step.
    let spared = fault_at.is_some_and(|d| d.fault != Fault::Kubelet);
    world
        .runtime
        .observe(move |container, happening| match happening {
            ContainerEvent::Ended(End::Killed) => seen.lock().push(format!("{} was killed", container.name)),
            ContainerEvent::TermSent
                if container.name == "c" && !spared && hooks_seen.load(Ordering::SeqCst) == 0 =>
            {
                seen.lock().push("c was asked before its hook had run".into());
            }
            _ => {}
        });
    let calls = Arc::new(AtomicUsize::new(0));
    let start = |fault_at: Option<PlannedFault>| {
        let dead = CancellationToken::new();
        let runtime = MortalRuntime {
            inner: world.runtime.clone(),
            calls: calls.clone(),
            fault_at,
            dead: dead.clone(),
            hooks: hooks.clone(),
        };
        let ways = (
            world.api.clone() as _,
            Arc::new(runtime) as _,
            world.clock.clone(),
        );
        let pods = Arc::new(Store::new(Pod::kind_of(), &[]));
        Kubelet::start_measured(world.config(), ways, pods, None, dead.clone());
        dead
    };
    let first = start(fault_at);
    let replacement = CancellationToken::new();
    // Restarts a kubelet that died.
    let nurse = {
        let (first, replacement) = (first.clone(), replacement.clone());
        async move {
            first.cancelled().await;
            sleep(Duration::from_secs(1)).await;
            let second = start(None);
            replacement.cancelled().await;
            second.cancel();
        }
    };
    let life = async {
        world.create_with("a", spec()).await;
        until("Running", fault_at, async || {
            let running = world.runtime.running();
            running.len() == 3 && world.phase("a").await.as_deref() == Some("Running")
        })
        .await;
        sleep(Duration::from_secs(1)).await;
        world.delete("a").await;
        until("deleted", fault_at, async || world.phase("a").await.is_none()).await;
        sleep(Duration::from_secs(20)).await;
    };
    tokio::select! {
        () = life => {}
        () = nurse => {}
    }
    let mut starts: Vec<String> = world.runtime.starts().into_iter().map(|(_, key)| key).collect();
    starts
        .iter_mut()
        .for_each(|key| *key = key.rsplit('/').next().unwrap_or("").into());
    starts.sort();
    assert_eq!(
        starts,
        ["c", "d", "init", "side"],
        "each container runs once, with {fault_at:?}"
    );
    assert_eq!(
        *killed.lock(),
        [""; 0],
        "no grace period is cut, with {fault_at:?}"
    );
    assert_eq!(world.runtime.containers().await.unwrap(), [], "{fault_at:?}");
    assert_eq!(world.runtime.sandboxes().await.unwrap(), [], "{fault_at:?}");
    let left = std::fs::read_dir(world.dir.path().join("kubelet/pods"));
    let left: Vec<_> = left.into_iter().flatten().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "left over with {fault_at:?}: {left:?}");
    replacement.cancel();
    first.cancel();
    calls.load(Ordering::SeqCst)
}

/// All deaths of one kind, at each call of an undisturbed life, and a few more for what a disturbed one adds.
async fn walk(fault: Fault) {
    let steps = live_through(None).await;
    assert!(steps > 25, "a life has more steps than {steps}");
    for call in 0..steps + 2 {
        for after_effect in [false, true] {
            let fault_at = PlannedFault {
                fault,
                call,
                after_effect,
            };
            live_through(Some(fault_at)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s1_t4_the_kubelet_may_die_at_every_step_of_a_start_and_an_end() {
    walk(Fault::Kubelet).await;
}

#[tokio::test(start_paused = true)]
async fn s1_t4_the_runtime_may_die_at_every_step_of_a_start_and_an_end() {
    walk(Fault::Runtime).await;
}

#[tokio::test(start_paused = true)]
async fn s1_t4_every_call_to_the_runtime_may_fail_once_or_lose_its_answer() {
    walk(Fault::Answer).await;
}
