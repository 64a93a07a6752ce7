//! The probes of a container's latest run.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::probe::{Kind, Probe, ProbeResult};

#[derive(Clone, Debug, Default)]
pub(in crate::pod) struct Probes {
    probes: Vec<Probe>,
}

impl Probes {
    /// Of a run that started at `started_at`, in a pod whose probe ticks began at `since`.
    pub(in crate::pod) fn new(spec: &core::Container, started_at: Timestamp, since: Timestamp) -> Self {
        let probes = [
            (Kind::Startup, &spec.startup_probe),
            (Kind::Liveness, &spec.liveness_probe),
            (Kind::Readiness, &spec.readiness_probe),
        ];
        let probes = probes
            .into_iter()
            .filter_map(|(kind, spec)| Some(Probe::new(kind, spec.as_ref()?, started_at, since)));
        Probes {
            probes: probes.collect(),
        }
    }

    /// The run has exited.
    pub(in crate::pod) fn clear(&mut self) {
        self.probes.clear();
    }

    /// Whether the container has no such probe, or it has succeeded.
    pub(in crate::pod) fn succeeded(&self, kind: Kind) -> bool {
        self.probes
            .iter()
            .find(|probe| probe.kind() == kind)
            .is_none_or(|probe| probe.state() == Some(true))
    }

    /// Applies a result. `None` if there is no such probe; otherwise the new state if it changed.
    pub(in crate::pod) fn record(&mut self, kind: Kind, result: &ProbeResult) -> Option<Option<bool>> {
        let probe = self.probes.iter_mut().find(|probe| probe.kind() == kind)?;
        Some(probe.record_result(result))
    }

    /// Sets the state of a probe that has succeeded by the reported status.
    pub(in crate::pod) fn remember_success(&mut self, kind: Kind) {
        for probe in self.probes.iter_mut().filter(|probe| probe.kind() == kind) {
            probe.remember_success();
        }
    }

    pub(in crate::pod) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Probe> {
        self.probes.iter_mut()
    }

    pub(in crate::pod) fn clock_jumped(&mut self, by: SignedDuration) {
        self.probes.iter_mut().for_each(|probe| probe.clock_jumped(by));
    }
}
