//! What a pod's task does about each action that was decided.

use std::time::Duration;

use knarr_api::AnyObject;
use knarr_client::events::{EventType, reference_to};
use knarr_kubelet::pod::{Action, Event, Hook, find_spec};
use tracing::{debug, warn};

use super::{Msg, Origin, PodWorker, retry_until_done, send_event};
use crate::cgroup;
use crate::kubelet::launch::{create_container, create_sandbox, start_container};
use crate::kubelet::network::endpoints_dropped;
use crate::kubelet::remove::remove_container;
use crate::kubelet::resize::resize;
use crate::kubelet::status::Write;
use crate::kubelet::{admit_resize, enforcement, pod_kind, pull, resource_health, resources};
use crate::probe::{self, Target};
use crate::volumes::VolumeError;

impl PodWorker {
    pub(super) fn carry_out(&mut self, action: Action) {
        let (shared, inbox, pod) = self.parts();
        match action {
            Action::WriteStatus(status) => {
                self.reported = Some(status.clone()).filter(|_| self.origin == Origin::File);
                self.write(Write::Status(status));
            }
            Action::WriteEnds(text) => self.write(Write::Ends(text)),
            Action::AwaitEndpoints => {
                tokio::spawn(async move {
                    let bound = shared.config.endpoint_barrier;
                    if endpoints_dropped(&shared, &pod, bound).await {
                        send_event(&inbox, Event::EndpointsDropped);
                    }
                });
            }
            Action::FinalDelete => self.write(Write::FinalDelete),
            Action::SetTimer(at) => self.timer = Some(at),
            Action::Forget => self.forget(),
            Action::Record {
                container,
                warning,
                reason,
                message,
            } => self.record(container, warning, &reason, message),
            Action::SetUpVolumes => {
                let values = self.values();
                tokio::spawn(async move {
                    let event = match shared.volumes.setup(&pod, &values).await {
                        Ok(()) => Event::VolumesReady,
                        Err(error) => Event::VolumesFailed {
                            others_turn: matches!(error, VolumeError::Claim { .. }),
                            reason: error.reason(),
                            message: error.to_string(),
                        },
                    };
                    send_event(&inbox, event);
                });
            }
            Action::TearDownVolumes => {
                tokio::spawn(async move {
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    // Before the pod counts as terminated, others may not use its claims and volumes.
                    retry_until_done("unprepare a pod's claims", || shared.dra.unprepare(&uid)).await;
                    retry_until_done("free a pod's volumes", || shared.volumes.teardown(&uid)).await;
                    send_event(&inbox, Event::VolumesGone);
                });
            }
            Action::CreateSandbox { attempt } => {
                self.sandbox_attempt = attempt;
                self.sandbox = None;
                let config = self.sandbox_config();
                let pod = self.machine.allocated();
                tokio::spawn(async move {
                    if let Err(error) = shared.dra.prepare(&pod).await {
                        let message = format!("prepare dynamic resources: {error}");
                        return send_event(&inbox, Event::ClaimsFailed { message });
                    }
                    let health = resource_health::of_pod(&shared, &pod);
                    if !health.is_empty() {
                        send_event(&inbox, Event::ResourceHealth(health));
                    }
                    let event = match create_sandbox(&shared, &inbox, &pod, &config).await {
                        Ok((id, ips)) => Event::SandboxCreated { id, ips },
                        Err(message) => Event::SandboxFailed { message },
                    };
                    send_event(&inbox, event);
                });
            }
            Action::StopSandbox { id } => {
                tokio::spawn(async move {
                    retry_until_done("stop a sandbox", || shared.runtime.stop_sandbox(&id)).await;
                    send_event(&inbox, Event::SandboxStopped { id });
                });
            }
            Action::RemoveSandbox { id } => {
                let group = resources::group(&pod);
                tokio::spawn(async move {
                    retry_until_done("remove a sandbox", || shared.runtime.remove_sandbox(&id)).await;
                    if shared.config.machine.is_host() {
                        cgroup::remove(shared.config.configuration.cgroup_driver, &group).await;
                        enforcement::update_portions(&shared, None).await;
                    }
                    shared.owners.lock().remove(&id);
                    send_event(&inbox, Event::SandboxRemoved { id });
                });
            }
            Action::InspectImage { container, image } => {
                tokio::spawn(async move {
                    let name = knarr_kubelet::image::normalize(&image).unwrap_or(image);
                    let present = match shared.runtime.image(&name).await {
                        Ok(found) => Ok(found.is_some()),
                        Err(error) => Err(error.to_string()),
                    };
                    send_event(&inbox, Event::ImageInspected { container, present });
                });
            }
            Action::PullImage { container, image } => {
                let config = self.sandbox_config();
                tokio::spawn(async move {
                    let result = pull::pull(&shared, &pod, &image, &config).await;
                    send_event(&inbox, Event::ImagePulled { container, result });
                });
            }
            Action::CreateContainer {
                container,
                sandbox,
                attempt,
            } => {
                let config = self.sandbox_config();
                let values = self.values();
                let pod = self.machine.allocated();
                tokio::spawn(async move {
                    let made =
                        create_container(&shared, &pod, &container, attempt, &sandbox, &config, &values);
                    let event = match made.await {
                        Ok(id) => {
                            shared.owners.lock().insert(id.clone(), inbox.clone());
                            Event::ContainerCreated { container, id }
                        }
                        Err((reason, message)) => Event::ContainerCreateFailed {
                            container,
                            reason,
                            message,
                        },
                    };
                    send_event(&inbox, event);
                });
            }
            Action::StartContainer { container, id } => {
                tokio::spawn(async move {
                    let event = start_container(&shared, &pod, container, id).await;
                    send_event(&inbox, event);
                });
            }
            Action::StopContainer { id, grace_seconds } => {
                let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
                tokio::spawn(async move {
                    match shared.runtime.stop_container(&id, grace).await {
                        Ok(()) => {
                            let _ = inbox.send(Msg::CheckExit { id });
                        }
                        Err(error) => {
                            warn!(container = id, %error, "cannot stop a container yet");
                            let message = error.to_string();
                            send_event(&inbox, Event::StopFailed { id, message });
                        }
                    }
                });
            }
            Action::AdmitResize => {
                let answer = admit_resize(&shared, &pod);
                send_event(&inbox, Event::ResizeAdmitted(answer));
            }
            Action::Resize { containers } => {
                let (from, to) = (self.machine.actual(), self.machine.allocated());
                tokio::spawn(async move {
                    let (done, result) = resize(&shared, &from, &to, containers).await;
                    send_event(&inbox, Event::Resized { done, result });
                });
            }
            Action::RemoveContainer { id } => {
                tokio::spawn(async move {
                    retry_until_done("remove a container", || remove_container(&shared, &id)).await;
                    shared.owners.lock().remove(&id);
                    send_event(&inbox, Event::ContainerRemoved { id });
                });
            }
            Action::RunHook { container, id, hook } => self.hook(container, id, hook),
            Action::CancelHook { id, hook } => {
                if let Some(running) = self.hooks.remove(&(id, hook)) {
                    running.abort();
                }
            }
            Action::Probe { container, id, kind } => {
                let ips = self.machine.ips().to_vec();
                tokio::spawn(async move {
                    let answer = probe::ask(&*shared.runtime, &pod, &container, &id, kind, &ips).await;
                    shared.probes.count(&pod, &container, kind, &answer);
                    send_event(&inbox, Event::Probed { id, kind, answer });
                });
            }
        }
    }

    fn hook(&mut self, name: String, id: String, hook: Hook) {
        let (shared, inbox, pod) = self.parts();
        let ips = self.machine.ips().to_vec();
        let key = (id.clone(), hook);
        let task =
            tokio::spawn(async move {
                let spec = pod.spec.as_ref().and_then(|s| find_spec(s, &name));
                let lifecycle = spec.as_ref().and_then(|c| c.lifecycle.as_ref());
                let handler = lifecycle.and_then(|l| match hook {
                    Hook::PostStart => l.post_start.as_ref(),
                    Hook::PreStop => l.pre_stop.as_ref(),
                });
                let result = match (handler, spec.as_deref()) {
                    (Some(handler), Some(container)) => {
                        let target = Target {
                            runtime: &*shared.runtime,
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
                    let about = reference_to(pod_kind(), &*pod as &dyn AnyObject);
                    let message = format!(
                        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                    );
                    let warning = EventType::Warning;
                    shared.recorder.event(&about, warning, "LifecycleHTTPFallback", message);
                }
            });
                if let Err(why) = &result {
                    debug!(container = name, why, "a lifecycle hook failed");
                }
                send_event(&inbox, Event::HookDone { id, hook, result });
            });
        self.hooks.insert(key, task.abort_handle());
    }
}
