//! One node's container runtime as one incarnation of its kubelet reaches it: slow, failing, unreachable; calls in
//! progress when the kubelet dies may still be carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_kubelet::runtime::{Container, ContainerState, Exit, Sandbox};
use knarr_node::runtime::fake::FakeRuntime;
use knarr_node::runtime::{
    AuthConfig, ContainerConfig, ContainerDetail, ExecOptions, ExecOutput, Image, ImageFs,
    LinuxContainerResources, PodSandboxConfig, Result, Runtime, RuntimeEvent, RuntimeStatus, SandboxDetail,
    Usage,
};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::clocks::Rate;
use crate::condition::{Condition, failed};
use crate::disks::NodeHost;
use crate::observer::Observer;
use crate::upgrade;
use crate::world::Process;

type ContainerSpec = (SandboxId, ContainerConfig, PodSandboxConfig);

/// See the module.
pub(crate) struct RuntimeAccess {
    pub node: String,
    pub inner: Arc<FakeRuntime>,
    pub observer: Arc<Observer>,
    pub condition: Arc<Condition>,
    pub host: Arc<NodeHost>,
    /// The rate of its host's clock.
    pub rate: Rate,
    /// Its kubelet is of the previous version.
    pub is_former: bool,
    pub dead: CancellationToken,
    pub mutation: Option<Mutation>,
    /// For [`Mutation::StartTwice`]: how each container is created a second time.
    pub recipes: Mutex<BTreeMap<String, ContainerSpec>>,
    /// For [`Mutation::DeleteBeforeProcessesAreGone`].
    pub believed_ended: Mutex<BTreeSet<String>>,
}

/// Added to the attempt of a container that is created twice.
const SECOND_SET: u32 = 1000;

impl RuntimeAccess {
    /// A kubelet's calls to its runtime are a part of the trace.
    fn note(&self, what: std::fmt::Arguments<'_>) {
        if !self.dead.is_cancelled() {
            self.observer.note(&format!("{} is to {what}", self.node));
        }
    }

    fn takes_orders_for_ends(&self) -> bool {
        self.mutation == Some(Mutation::DeleteBeforeProcessesAreGone)
    }

    /// For [`Mutation::KeepOrphans`]: whether the container keeps running for a pod that was removed from the store.
    fn keeps(&self, is_it: impl Fn(&Process) -> bool) -> bool {
        let keeps = self.mutation == Some(Mutation::KeepOrphans);
        keeps
            && self.observer.world(|world| {
                let mut own = world
                    .processes
                    .values()
                    .filter(|p| p.node == self.node && is_it(p));
                own.any(|p| world.pods.get(&p.uid).is_none_or(|life| life.removed()))
            })
    }

    /// A container as a mutant kubelet sees it.
    fn distort(&self, mut container: Container) -> Container {
        let is_taken_for_done =
            self.mutation == Some(Mutation::TakeStartedForDone) && container.name == "completes";
        if let ContainerState::Running { started_at } = container.state
            && (is_taken_for_done || self.believed_ended.lock().contains(container.id.as_str()))
        {
            container.state = ContainerState::Exited(Exit {
                reason: "Completed".into(),
                started_at: Some(started_at),
                finished_at: Some(started_at),
                ..Exit::default()
            });
        }
        container
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = async {
            let (delay, before, after) = self.condition.draw();
            sleep(delay).await;
            if before {
                return Err(failed());
            }
            let answer = call.await;
            if after { Err(failed()) } else { answer }
        };
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            answer = asked => answer,
        }
    }

    /// As [`RuntimeAccess::ask`], but the call is carried out even if the calling kubelet dies in the meantime.
    async fn order<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            answer = self.condition.order(call) => answer,
        }
    }
}

#[async_trait]
impl Runtime for RuntimeAccess {
    async fn status(&self) -> Result<RuntimeStatus> {
        self.ask(self.inner.status()).await
    }

    async fn events(&self) -> Result<BoxStream<'static, RuntimeEvent>> {
        self.ask(self.inner.events()).await
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.ask(self.inner.sandboxes()).await
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<SandboxDetail> {
        self.ask(self.inner.sandbox(id)).await
    }

    async fn run_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> Result<SandboxId> {
        let of = config.metadata.as_ref().map_or("", |m| &m.name);
        self.note(format_args!("make a sandbox for {of}"));
        let (inner, config, handler) = (self.inner.clone(), config.clone(), handler.to_string());
        self.order(async move { inner.run_sandbox(&config, &handler).await })
            .await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.note(format_args!("stop {id}"));
        if self.takes_orders_for_ends() || self.keeps(|process| process.sandbox == id.as_str()) {
            return Ok(());
        }
        let (inner, id) = (self.inner.clone(), id.clone());
        self.order(async move { inner.stop_sandbox(&id).await }).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.note(format_args!("remove {id}"));
        if self.takes_orders_for_ends() || self.keeps(|process| process.sandbox == id.as_str()) {
            return Ok(());
        }
        let (inner, id) = (self.inner.clone(), id.clone());
        self.order(async move { inner.remove_sandbox(&id).await }).await
    }

    async fn containers(&self) -> Result<Vec<Container>> {
        let all = self.ask(self.inner.containers()).await?;
        let mut all: Vec<_> = all.into_iter().map(|c| self.distort(c)).collect();
        if self.mutation == Some(Mutation::ForgetRunning) {
            all.retain(|c| !matches!(c.state, ContainerState::Running { .. }));
        }
        Ok(all)
    }

    async fn container(&self, id: &ContainerId) -> Result<ContainerDetail> {
        let mut detail = self.ask(self.inner.container(id)).await?;
        detail.container = self.distort(detail.container);
        Ok(detail)
    }

    async fn create_container(
        &self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerId> {
        let name = config.metadata.as_ref().map_or("", |m| &m.name);
        self.note(format_args!("make {name} in {sandbox_id}"));
        let mut recipe = (sandbox_id.clone(), config.clone(), sandbox.clone());
        if self.is_former {
            upgrade::as_former_makes(&mut recipe.1);
        }
        let (inner, host, asked) = (self.inner.clone(), self.host.clone(), recipe.clone());
        let made = self
            .order(async move {
                let made = inner.create_container(&asked.0, &asked.1, &asked.2).await;
                made.inspect(|id| host.made(id, &asked.1))
            })
            .await?;
        if self.is_former {
            self.observer.made_by_former(&self.node, &made);
        }
        if self.mutation == Some(Mutation::StartTwice) {
            let mut second = recipe;
            if let Some(metadata) = &mut second.1.metadata {
                // The same name would be rejected, as by containerd.
                metadata.attempt += SECOND_SET;
            }
            self.recipes.lock().insert(made.to_string(), second);
        }
        Ok(made)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        self.note(format_args!("start {id}"));
        let (inner, name) = (self.inner.clone(), id.clone());
        self.order(async move { inner.start_container(&name).await })
            .await?;
        let recipe = self.recipes.lock().get(id.as_str()).cloned();
        if let Some((sandbox, config, of)) = recipe {
            let second = self.inner.create_container(&sandbox, &config, &of).await?;
            self.inner.start_container(&second).await?;
        }
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let grace = match self.mutation {
            Some(Mutation::CutTheGrace) => Duration::from_secs(1),
            Some(Mutation::LengthenTheGrace) => Duration::from_secs(600),
            Some(Mutation::KillAtOnce) => Duration::ZERO,
            _ => grace,
        };
        self.note(format_args!("stop {id} within {} s", grace.as_secs()));
        if self.mutation == Some(Mutation::NeverStop) || self.keeps(|process| process.id == id.as_str()) {
            return Ok(());
        }
        if self.takes_orders_for_ends() {
            self.believed_ended.lock().insert(id.to_string());
            let (inner, id) = (self.inner.clone(), id.clone());
            tokio::spawn(async move { inner.stop_container(&id, grace).await });
            return Ok(());
        }
        let grace = self.rate.passes(grace);
        // Not carried out without its caller: the runtime stops waiting for KILL when the caller does.
        self.ask(self.inner.stop_container(id, grace)).await
    }

    async fn update_container(&self, id: &ContainerId, resources: &LinuxContainerResources) -> Result<()> {
        let (inner, id, resources) = (self.inner.clone(), id.clone(), resources.clone());
        self.order(async move { inner.update_container(&id, &resources).await })
            .await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.note(format_args!("remove {id}"));
        if self.takes_orders_for_ends() {
            return Ok(());
        }
        let (inner, id) = (self.inner.clone(), id.clone());
        self.order(async move { inner.remove_container(&id).await }).await
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput> {
        self.ask(self.inner.exec(id, command, timeout)).await
    }

    async fn usage(&self) -> Result<Vec<Usage>> {
        self.ask(self.inner.usage()).await
    }

    async fn exec_url(&self, container_id: &ContainerId, options: &ExecOptions) -> Result<String> {
        self.ask(self.inner.exec_url(container_id, options)).await
    }

    async fn attach_url(&self, container_id: &ContainerId, options: &ExecOptions) -> Result<String> {
        self.ask(self.inner.attach_url(container_id, options)).await
    }

    async fn port_forward_url(&self, sandbox_id: &SandboxId, ports: &[i32]) -> Result<String> {
        self.ask(self.inner.port_forward_url(sandbox_id, ports)).await
    }

    async fn reopen_log(&self, container_id: &ContainerId) -> Result<()> {
        self.ask(self.inner.reopen_log(container_id)).await
    }

    async fn images(&self) -> Result<Vec<Image>> {
        self.ask(self.inner.images()).await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>> {
        self.ask(self.inner.image(name)).await
    }

    async fn pull_image(
        &self,
        name: &str,
        auth: Option<&AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        self.ask(self.inner.pull_image(name, auth, sandbox)).await
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        self.ask(self.inner.remove_image(name)).await
    }

    async fn image_fs(&self) -> Result<Option<ImageFs>> {
        self.ask(self.inner.image_fs()).await
    }
}
