//! The phase of a pod, computed from its containers' statuses as v1.36's `getPhase` does (SPEC L1).

use k8s_openapi::api::core::v1::ContainerStatus;
use knarr_api::k8s_openapi;

use crate::pod::{Pod, PodPhase, Role, restart_all};

impl Pod {
    pub(super) fn phase(&self, init: &[ContainerStatus], apps: &[ContainerStatus]) -> PodPhase {
        let terminated = |s: &ContainerStatus| s.state.as_ref().and_then(|s| s.terminated.clone());
        let last = |s: &ContainerStatus| s.last_state.as_ref().and_then(|s| s.terminated.clone());
        let running = |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.running.is_some());
        let (mut init_pending, mut init_failed) = (0, 0);
        let (mut n_running, mut n_waiting, mut n_stopped, mut n_good, mut n_final) = (0, 0, 0, 0, 0);
        for status in init {
            let Some(i) = self.by_name(&status.name) else {
                continue;
            };
            let sidecar = self.containers[i].role == Role::Sidecar;
            if sidecar {
                match (running(status), terminated(status), last(status)) {
                    (true, ..) => {
                        n_running += 1;
                        init_pending += usize::from(status.started != Some(true));
                    }
                    (false, None, None) => {
                        init_pending += 1;
                        n_waiting += 1;
                    }
                    _ => {}
                }
                continue;
            }
            match terminated(status).or_else(|| last(status)) {
                _ if running(status) => init_pending += 1,
                Some(t) if t.exit_code == 0 => {}
                Some(t) if !self.restarts_after_exit(i, t.exit_code) => init_failed += 1,
                _ => init_pending += 1,
            }
        }
        for status in apps {
            let Some(i) = self.by_name(&status.name) else {
                continue;
            };
            match (running(status), terminated(status), last(status)) {
                (true, ..) => n_running += 1,
                (_, Some(t), _) => {
                    n_stopped += 1;
                    n_good += usize::from(t.exit_code == 0);
                    n_final += usize::from(!self.will_restart(i));
                }
                (_, None, Some(_)) => n_stopped += 1,
                (_, None, None) => n_waiting += 1,
            }
        }
        let app_ran = n_running + n_stopped > 0
            && self
                .containers
                .iter()
                .filter(|c| c.role == Role::App)
                .any(|c| restart_all::is_removed(c) || c.run_id().is_some());
        let finished = |succeeded: bool| match succeeded {
            true => PodPhase::Succeeded,
            false => PodPhase::Failed,
        };
        match () {
            () if init_failed > 0 && !app_ran => PodPhase::Failed,
            () if init_pending > 0 && !app_ran => PodPhase::Pending,
            () if n_waiting > 0 => PodPhase::Pending,
            () if self.termination.is_some() && n_stopped > 0 && n_stopped == apps.len() => {
                finished(n_good == n_stopped)
            }
            () if n_running > 0 => PodPhase::Running,
            () if n_stopped > 0 && n_final == n_stopped => finished(n_good == n_stopped),
            () if n_stopped > 0 => PodPhase::Running,
            () => PodPhase::Pending,
        }
    }
}
