//! What a pod's task does about each action that was decided.

use std::time::Duration;

use knarr_apimachinery::ids::{ContainerId, PodUid, SandboxId};
use knarr_client::events::EventType;
use knarr_kubelet::pod::{Action, ActionError, Event, Hook, find_spec};
use knarr_kubelet::probe::Kind;
use tracing::{Instrument, debug, debug_span, warn};

use super::PodWorker;
use crate::kubelet::inbox::Msg;
use crate::kubelet::remove::remove_container;
use crate::kubelet::retry::retry_until_done;
use crate::kubelet::status::{Origin, Write};
use crate::kubelet::{accept_queues, pull, resources};
use crate::probe::{self, Target};
use crate::volumes::VolumeError;

/// The span of an action of this pod.
macro_rules! action_span {
    ($name:literal, $pod:expr) => {
        debug_span!(
            $name,
            namespace = $pod.metadata.namespace,
            pod = $pod.metadata.name,
            uid = $pod.metadata.uid
        )
    };
}

impl PodWorker {
    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::WriteStatus(status) => {
                self.reported = Some(status.clone()).filter(|_| self.origin == Origin::File);
                self.write(Write::Status(status));
            }
            Action::WriteTerminationHistory(text) => self.write(Write::TerminationHistory(text)),
            Action::FinalDelete => self.write(Write::FinalDelete),
            Action::SetTimer(at) => self.timer = Some(at),
            Action::Forget => self.forget(),
            Action::Record {
                container,
                warning,
                reason,
                message,
            } => self.record(container, warning, &reason, message),
            Action::AwaitEndpoints => self.await_endpoints(),
            Action::ReadAcceptQueues { sandbox } => self.read_accept_queues(sandbox),
            Action::SetUpVolumes => self.set_up_volumes(),
            Action::TearDownVolumes => self.tear_down_volumes(),
            Action::CreateSandbox { attempt } => self.create_sandbox(attempt),
            Action::StopSandbox { id } => self.stop_sandbox(id),
            Action::RemoveSandbox { id } => self.remove_sandbox(id),
            Action::InspectImage { container, image } => self.inspect_image(container, image),
            Action::PullImage { container, image } => self.pull_image(container, image),
            Action::CreateContainer {
                container,
                sandbox,
                attempt,
            } => self.create_container(container, sandbox, attempt),
            Action::StartContainer { container, id } => self.start_container(container, id),
            Action::StopContainer { id, grace_seconds } => self.stop_container(id, grace_seconds),
            Action::RemoveContainer { id } => self.remove_container(id),
            Action::AdmitResize => {
                let (context, inbox, pod) = self.parts();
                let answer = context.admission.admit_resize(&pod);
                inbox.event(Event::ResizeAdmitted(answer));
            }
            Action::Resize { containers } => self.resize(containers),
            Action::RunHook { container, id, hook } => self.hook(container, id, hook),
            Action::CancelHook { id, hook } => {
                if let Some(running) = self.hooks.remove(&(id, hook)) {
                    running.abort();
                }
            }
            Action::Probe { container, id, kind } => self.probe(container, id, kind),
        }
    }

    fn set_up_volumes(&self) {
        let (context, inbox, pod) = self.parts();
        let values = self.values();
        let span = action_span!("set_up_volumes", pod);
        let work = async move {
            let event = match context.volumes.setup(&pod, &values).await {
                Ok(()) => Event::VolumesReady,
                Err(error) => Event::VolumesFailed {
                    is_external: matches!(error, VolumeError::Claim { .. }),
                    reason: error.reason(),
                    message: error.to_string(),
                },
            };
            inbox.event(event);
        };
        crate::task::spawn(work.instrument(span));
    }

    fn tear_down_volumes(&self) {
        let (context, inbox, pod) = self.parts();
        let span = action_span!("tear_down_volumes", pod);
        let work = async move {
            let uid = PodUid::of(&pod.metadata);
            // Before the pod counts as terminated, others may not use its claims and volumes.
            retry_until_done("unprepare a pod's claims", || {
                context.managers.dra.unprepare(&uid)
            })
            .await;
            retry_until_done("free a pod's volumes", || context.volumes.teardown(&uid)).await;
            inbox.event(Event::VolumesTornDown);
        };
        crate::task::spawn(work.instrument(span));
    }

    fn create_sandbox(&mut self, attempt: u32) {
        let (context, inbox, _) = self.parts();
        self.sandbox_attempt = attempt;
        self.sandbox = None;
        let config = self.sandbox_config();
        let pod = self.machine.allocated();
        let work = async move {
            if let Err(error) = context.managers.dra.prepare(&pod).await {
                let message = format!("prepare dynamic resources: {error}");
                return inbox.event(Event::ClaimsFailed { message });
            }
            let health = context.managers.health_of(&pod);
            if !health.is_empty() {
                inbox.event(Event::ResourceHealth(health));
            }
            let event = match context.launcher.create_sandbox(&inbox, &pod, &config).await {
                Ok((id, ips)) => Event::SandboxCreated { id, ips },
                Err(error) => Event::SandboxFailed {
                    message: error.to_string(),
                },
            };
            inbox.event(event);
        };
        crate::task::spawn(work.in_current_span());
    }

    fn stop_sandbox(&self, id: SandboxId) {
        let (context, inbox, pod) = self.parts();
        let span = action_span!("stop_sandbox", pod);
        let work = async move {
            retry_until_done("stop a sandbox", || context.runtime.stop_sandbox(&id)).await;
            inbox.event(Event::SandboxStopped { id });
        };
        crate::task::spawn(work.instrument(span));
    }

    fn remove_sandbox(&self, id: SandboxId) {
        let (context, inbox, pod) = self.parts();
        let group = resources::group(&pod);
        let span = action_span!("remove_sandbox", pod);
        let work = async move {
            retry_until_done("remove a sandbox", || context.runtime.remove_sandbox(&id)).await;
            context.cgroups.remove(&group).await;
            context.runtime.remove_owner(&id);
            inbox.event(Event::SandboxRemoved { id });
        };
        crate::task::spawn(work.instrument(span));
    }

    fn inspect_image(&self, container: String, image: String) {
        let (context, inbox, pod) = self.parts();
        let span = action_span!("inspect_image", pod);
        let work = async move {
            let name = knarr_kubelet::image::normalize(&image).unwrap_or(image);
            let present = match context.runtime.image(&name).await {
                Ok(found) => Ok(found.is_some()),
                Err(error) => Err(ActionError::new(error)),
            };
            inbox.event(Event::ImageInspected { container, present });
        };
        crate::task::spawn(work.instrument(span));
    }

    fn pull_image(&mut self, container: String, image: String) {
        let (context, inbox, pod) = self.parts();
        let config = self.sandbox_config();
        let span = action_span!("pull_image", pod);
        let work = async move {
            let result = pull::pull(&*context.api, &context.runtime, &pod, &image, &config).await;
            let result = result.map_err(ActionError::new);
            inbox.event(Event::ImagePulled { container, result });
        };
        crate::task::spawn(work.instrument(span));
    }

    fn create_container(&mut self, container: String, sandbox: SandboxId, attempt: u32) {
        let (context, inbox, _) = self.parts();
        let config = self.sandbox_config();
        let values = self.values();
        let pod = self.machine.allocated();
        let work = async move {
            let made = context
                .launcher
                .create_container(&pod, &container, attempt, &sandbox, &config, &values);
            let event = match made.await {
                Ok(id) => {
                    context.runtime.set_owner(&id, &inbox);
                    Event::ContainerCreated { container, id }
                }
                Err(error) => Event::ContainerCreateFailed {
                    container,
                    reason: error.reason(),
                    message: error.to_string(),
                },
            };
            inbox.event(event);
        };
        crate::task::spawn(work.in_current_span());
    }

    fn start_container(&self, container: String, id: ContainerId) {
        let (context, inbox, pod) = self.parts();
        let work = async move {
            let event = context.launcher.start_container(&pod, container, id).await;
            inbox.event(event);
        };
        crate::task::spawn(work.in_current_span());
    }

    fn stop_container(&self, id: ContainerId, grace_seconds: i64) {
        let (context, inbox, pod) = self.parts();
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let span = action_span!("stop_container", pod);
        let work = async move {
            match context.runtime.stop_container(&id, grace).await {
                Ok(()) => {
                    inbox.send(Msg::CheckExit { id });
                }
                Err(error) => {
                    warn!(container = %id, %error, "cannot stop a container yet");
                    let message = error.to_string();
                    inbox.event(Event::StopFailed { id, message });
                }
            }
        };
        crate::task::spawn(work.instrument(span));
    }

    fn remove_container(&self, id: ContainerId) {
        let (context, inbox, pod) = self.parts();
        let span = action_span!("remove_container", pod);
        let work = async move {
            let log_dir = &context.config.log_dir;
            let remove = || remove_container(&**context.runtime, log_dir, &id);
            retry_until_done("remove a container", remove).await;
            context.runtime.remove_owner(&id);
            inbox.event(Event::ContainerRemoved { id });
        };
        crate::task::spawn(work.instrument(span));
    }

    fn resize(&self, containers: Vec<(String, ContainerId)>) {
        let (context, inbox, _) = self.parts();
        let (from, to) = (self.machine.actual(), self.machine.allocated());
        crate::task::spawn(async move {
            let (done, result) = context.resizer.resize(&from, &to, containers).await;
            let result = result.map_err(ActionError::new);
            inbox.event(Event::Resized { done, result });
        });
    }

    fn probe(&self, container: String, id: ContainerId, kind: Kind) {
        let (context, inbox, pod) = self.parts();
        let ips = self.machine.ips().to_vec();
        crate::task::spawn(async move {
            let result = probe::ask(&**context.runtime, &pod, &container, &id, kind, &ips).await;
            context.probes.count(&pod, &container, kind, &result);
            inbox.event(Event::Probed { id, kind, result });
        });
    }

    fn await_endpoints(&self) {
        let (context, inbox, pod) = self.parts();
        let span = action_span!("await_endpoints", pod);
        let work = async move {
            if let Some(was_endpoint) = context.endpoints.dropped(&pod).await {
                inbox.event(Event::EndpointsDropped { was_endpoint });
            }
        };
        crate::task::spawn(work.instrument(span));
    }

    fn read_accept_queues(&self, sandbox: SandboxId) {
        let (context, inbox, pod) = self.parts();
        let span = action_span!("read_accept_queues", pod);
        let work = async move {
            let namespace = context.runtime.network_namespace(&sandbox);
            let has_connections = accept_queues::have_connections(namespace).await;
            inbox.event(Event::AcceptQueuesRead { has_connections });
        };
        tokio::spawn(work.instrument(span));
    }

    fn hook(&mut self, name: String, id: ContainerId, hook: Hook) {
        let (context, inbox, pod) = self.parts();
        let ips = self.machine.ips().to_vec();
        let key = (id.clone(), hook);
        let task =
            crate::task::spawn(async move {
                let spec = pod.spec.as_ref().and_then(|s| find_spec(s, &name));
                let lifecycle = spec.as_ref().and_then(|c| c.lifecycle.as_ref());
                let handler = lifecycle.and_then(|l| match hook {
                    Hook::PostStart => l.post_start.as_ref(),
                    Hook::PreStop => l.pre_stop.as_ref(),
                });
                let result = match (handler, spec.as_deref()) {
                    (Some(handler), Some(container)) => {
                        let target = Target {
                            runtime: &**context.runtime,
                            container,
                            id: &id,
                            ips: &ips,
                        };
                        probe::run_hook(&pod, &target, handler).await
                    }
                    _ => Ok(None),
                };
                let result = result.map(|fell_back| {
                if let Some(host) = fell_back {
                    let message = format!(
                        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                    );
                    let warning = EventType::Warning;
                    context.events.of_pod(&pod, warning, "LifecycleHTTPFallback", message);
                }
            });
                if let Err(why) = &result {
                    debug!(container = name, %why, "a lifecycle hook failed");
                }
                let result = result.map_err(ActionError::new);
                inbox.event(Event::HookDone { id, hook, result });
            });
        self.hooks.insert(key, task.abort_handle());
    }
}
