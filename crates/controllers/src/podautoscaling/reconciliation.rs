//! One reconciliation of an autoscaler, between the requests that the driver makes for it.

use std::cmp::Ordering;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::Selector;
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::time::seconds;

use super::Settings;
use super::behavior::{History, Proposal};
use super::metrics::{Reading, evaluate};
use super::replicas::{Target, Tolerances};
use super::selector::Key;
use super::status::{ABLE_TO_SCALE, Conditions, Reason, SCALED_TO_ZERO, SCALING_ACTIVE, SCALING_LIMITED};

/// An event about the autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Whether the driver has to read metrics before [`Reconciliation::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Metrics,
    /// [`Reconciliation::decide`] is called without pods and readings.
    Nothing,
}

/// What is to become of the target's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write this number to the scale, then call [`Reconciliation::finish`] with the result.
    Rescale(i32),
    /// Call [`Reconciliation::finish`] with `Ok`.
    Keep,
    /// Nothing could be decided: call [`Reconciliation::finish`] with `Ok`.
    Failed,
}

/// The result of a reconciliation.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// To be written if it differs from the one that is there.
    pub status: HorizontalPodAutoscalerStatus,
    pub events: Vec<Event>,
    /// For the log and the label `error` of the controller's metrics.
    pub error: Option<String>,
    /// `scale_up`, `scale_down` or `none`: the label `action`.
    pub action: &'static str,
    /// One for each metric that was computed, in the spec's order.
    pub computations: Vec<Computation>,
}

/// What came of one metric: the labels of the controller's metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computation {
    pub metric_type: String,
    /// `scale_up`, `scale_down` or `none`, compared with the replicas in the status.
    pub action: &'static str,
    pub has_failed: bool,
}

/// See the module.
pub struct Reconciliation<'a> {
    hpa: &'a HorizontalPodAutoscaler,
    settings: &'a Settings,
    history: &'a mut History,
    conditions: Conditions,
    events: Vec<Event>,
    error: Option<String>,
    metrics: Option<Vec<MetricStatus>>,
    current: i32,
    observed: i32,
    decision: Decision,
    why: String,
    computations: Vec<Computation>,
}

impl<'a> Reconciliation<'a> {
    pub fn new(
        hpa: &'a HorizontalPodAutoscaler,
        settings: &'a Settings,
        history: &'a mut History,
        now: Timestamp,
    ) -> Self {
        let list = hpa.status.as_ref().and_then(|s| s.conditions.clone());
        Reconciliation {
            hpa,
            settings,
            history,
            conditions: Conditions {
                list: list.unwrap_or_default(),
                now,
            },
            events: Vec::new(),
            error: None,
            metrics: None,
            current: 0,
            observed: 0,
            decision: Decision::Keep,
            why: String::new(),
            computations: Vec::new(),
        }
    }

    fn warn(&mut self, why: &Reason) {
        self.events.push(Event {
            warning: true,
            reason: why.reason,
            message: why.message.clone(),
        });
    }

    fn namespace(&self) -> &'a str {
        self.hpa.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn min(&self) -> i32 {
        self.hpa.spec.min_replicas.unwrap_or(1)
    }

    fn specs(&self) -> &'a [MetricSpec] {
        self.hpa.spec.metrics.as_deref().unwrap_or_default()
    }

    fn reference(&self) -> String {
        let target = &self.hpa.spec.scale_target_ref;
        format!("{}/{}/{}", target.kind, self.namespace(), target.name)
    }

    /// Whether some metric can be read while the target has no pods.
    fn has_podless_metric(&self) -> bool {
        let podless = |m: &MetricSpec| m.type_ == "Object" || m.type_ == "External";
        self.specs().iter().any(podless)
    }

    fn was_scaled_to_zero(&self) -> bool {
        self.settings.scale_to_zero && self.conditions.is_true(SCALED_TO_ZERO)
    }

    /// Finishes the reconciliation if the target or its scale could not be read.
    pub fn scale_failed(mut self, error: &str) -> Report {
        let why = format!("the HPA controller was unable to get the target's current scale: {error}");
        self.conditions
            .set(ABLE_TO_SCALE, false, Reason::new("FailedGetScale", why));
        self.warn(&Reason::new("FailedGetScale", error));
        let status = HorizontalPodAutoscalerStatus {
            conditions: Some(self.conditions.list),
            ..self.hpa.status.clone().unwrap_or_default()
        };
        Report {
            status,
            events: self.events,
            error: Some(format!("failed to get the scale of the target: {error}")),
            action: "none",
            computations: self.computations,
        }
    }

    /// Begins with the scale that was read.
    pub fn start(&mut self, scale: &Scale) -> Needs {
        let why = "the HPA controller was able to get the target's current scale";
        self.conditions
            .set(ABLE_TO_SCALE, true, Reason::new("SucceededGetScale", why));
        self.current = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
        self.observed = scale.status.as_ref().map_or(0, |s| s.replicas);
        self.history.begin(self.current, self.conditions.now);
        let (min, max) = (self.min(), self.hpa.spec.max_replicas);
        if self.current == 0 {
            if self.was_scaled_to_zero() && (min != 0 || self.has_podless_metric()) {
                return Needs::Metrics;
            }
            let why = "scaling is disabled since the replica count of the target is zero";
            self.conditions
                .set(SCALING_ACTIVE, false, Reason::new("ScalingDisabled", why));
            if !self.settings.scale_to_zero {
                self.conditions.remove(SCALED_TO_ZERO);
            }
        } else if self.current > max {
            self.why = "Current number of replicas above Spec.MaxReplicas".into();
            self.decision = Decision::Rescale(max);
        } else if self.current < min {
            self.why = "Current number of replicas below Spec.MinReplicas".into();
            self.decision = Decision::Rescale(min);
        } else {
            return Needs::Metrics;
        }
        Needs::Nothing
    }

    /// The scale's selector. After `None` no decision follows: the driver calls [`Reconciliation::finish`].
    pub fn selector(&mut self, scale: &Scale) -> Option<Selector> {
        let text = scale.status.as_ref().and_then(|s| s.selector.as_deref());
        let text = text.unwrap_or_default();
        if text.is_empty() {
            let event = Reason::new("SelectorRequired", "selector is required");
            let why = Reason::new("InvalidSelector", "the HPA target's scale is missing a selector");
            self.unselectable(event, why);
            return None;
        }
        match Selector::parse(text) {
            Ok(selector) => Some(selector),
            Err(error) => {
                let why = format!(
                    "couldn't convert selector into a corresponding internal selector object: {error}"
                );
                let why = Reason::new("InvalidSelector", why);
                self.unselectable(why.clone(), why);
                None
            }
        }
    }

    /// Checks that no other autoscaler controls these pods; `controlling` is what
    /// [`controlling`](super::controlling) returns for them. After false the driver calls [`Reconciliation::finish`].
    pub fn is_alone(&mut self, scale: &Scale, controlling: &[Key]) -> bool {
        if controlling.len() <= 1 {
            return true;
        }
        let selector = scale.status.as_ref().and_then(|s| s.selector.as_deref());
        let keys: Vec<String> = controlling.iter().map(Key::to_string).collect();
        let why = format!(
            "pods by selector {} are controlled by multiple HPAs: [{}]",
            selector.unwrap_or_default(),
            keys.join(" ")
        );
        let why = Reason::new("AmbiguousSelector", why);
        self.unselectable(why.clone(), why);
        false
    }

    fn unselectable(&mut self, event: Reason, condition: Reason) {
        self.warn(&event);
        self.conditions.set(SCALING_ACTIVE, false, condition);
        self.metrics = None;
        self.fail(event.message);
    }

    /// No number of replicas can be computed.
    fn fail(&mut self, error: String) {
        let reference = self.reference();
        self.warn(&Reason::new("FailedComputeMetricsReplicas", error.clone()));
        self.error = Some(format!(
            "failed to compute desired number of replicas based on listed metrics for {reference}: {error}"
        ));
        self.decision = Decision::Failed;
    }

    fn tolerances(&self) -> Tolerances {
        let behavior = self.hpa.spec.behavior.as_ref();
        let behavior = behavior.filter(|_| self.settings.configurable_tolerance);
        let own = |rules: Option<&k8s_openapi::api::autoscaling::v2::HPAScalingRules>| {
            let tolerance = rules.and_then(|r| r.tolerance.as_ref());
            let tolerance = tolerance.and_then(|q| Quantity::of(q).ok());
            tolerance.map_or(self.settings.tolerance, |q| q.approximate())
        };
        Tolerances {
            scale_down: own(behavior.and_then(|b| b.scale_down.as_ref())),
            scale_up: own(behavior.and_then(|b| b.scale_up.as_ref())),
        }
    }

    /// The most that a metric proposes, and its name. `None` if it cannot be computed.
    fn computed(&mut self, pods: &[&Pod], readings: &[Reading]) -> Option<(i32, String)> {
        let specs = self.specs();
        let target = Target {
            replicas: self.current,
            observed_replicas: self.observed,
            pods,
            tolerances: self.tolerances(),
            settings: self.settings,
            now: self.conditions.now,
        };
        let shown = self.hpa.status.as_ref().and_then(|s| s.current_replicas);
        let shown = shown.unwrap_or(0);
        let not_read = Reading::Failed("the metric was not read".into());
        let (mut replicas, mut name) = (0, String::new());
        let (mut statuses, mut invalid, mut first) = (Vec::new(), 0usize, None);
        for (i, spec) in specs.iter().enumerate() {
            let reading = readings.get(i).unwrap_or(&not_read);
            let evaluated = evaluate(spec, reading, &target, self.namespace());
            self.computations.push(Computation {
                metric_type: spec.type_.clone(),
                action: match evaluated.as_ref().map(|p| p.replicas.cmp(&shown)) {
                    Ok(Ordering::Greater) => "scale_up",
                    Ok(Ordering::Less) => "scale_down",
                    Ok(Ordering::Equal) | Err(_) => "none",
                },
                has_failed: evaluated.is_err(),
            });
            match evaluated {
                Ok(proposed) => {
                    statuses.push(proposed.status);
                    if replicas == 0 || proposed.replicas > replicas {
                        (replicas, name) = (proposed.replicas, proposed.name);
                    }
                }
                Err(unusable) => {
                    // Kubernetes shows an empty status in the place of a metric that could not be read.
                    statuses.push(MetricStatus::default());
                    self.warn(&unusable.condition);
                    invalid += 1;
                    first.get_or_insert(unusable);
                }
            }
        }
        self.metrics = Some(statuses);
        if let Some(first) = first {
            let error = format!(
                "invalid metrics ({invalid} invalid out of {}), first error is: {}",
                specs.len(),
                first.summary
            );
            // Some metrics are enough to scale up, but not to scale down.
            if invalid >= specs.len() || replicas < self.current {
                let Reason { reason, message } = first.condition;
                let why = format!("the HPA was unable to compute the replica count: {message}");
                self.conditions
                    .set(SCALING_ACTIVE, false, Reason::new(reason, why));
                self.fail(error);
                return None;
            }
            self.error = Some(error);
        }
        let why = format!("the HPA was able to successfully calculate a replica count from {name}");
        self.conditions
            .set(SCALING_ACTIVE, true, Reason::new("ValidMetricFound", why));
        Some((replicas, name))
    }

    /// Decides from the pods that the selector matches and a reading for each metric of the spec, in its order.
    pub fn decide(&mut self, pods: &[&Pod], readings: &[Reading]) -> Decision {
        let Some((desired, name)) = self.computed(pods, readings) else {
            return self.decision;
        };
        if desired > self.current {
            self.why = format!("{name} above target");
        } else if desired < self.current {
            self.why = "All metrics below target".into();
        }
        let min = self.min();
        let proposal = Proposal {
            min,
            max: self.hpa.spec.max_replicas,
            current: self.current,
            desired: desired.max(0),
        };
        let behavior = self.hpa.spec.behavior.as_ref();
        let now = self.conditions.now;
        let normalized = self.history.normalize(behavior, proposal, self.settings, now);
        self.conditions.set(ABLE_TO_SCALE, true, normalized.able_to_scale);
        self.conditions
            .set(SCALING_LIMITED, normalized.limited, normalized.scaling_limited);
        let mut desired = normalized.replicas;
        if self.current == 0 && self.was_scaled_to_zero() && desired < min {
            desired = min;
            if self.why.is_empty() {
                self.why = "Current number of replicas below Spec.MinReplicas".into();
            }
        }
        self.decision = if desired == self.current {
            Decision::Keep
        } else {
            Decision::Rescale(desired)
        };
        self.decision
    }

    /// The decision so far: final where [`Needs::Nothing`] was returned.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    fn rescaled(&mut self, to: i32) {
        let why = format!("the HPA controller was able to update the target scale to {to}");
        self.conditions
            .set(ABLE_TO_SCALE, true, Reason::new("SucceededRescale", why));
        self.events.push(Event {
            warning: false,
            reason: "SuccessfulRescale",
            message: format!("New size: {to}; reason: {}", self.why),
        });
        if let Some(behavior) = &self.hpa.spec.behavior {
            self.history
                .scaled(behavior, self.current, to, self.conditions.now);
        }
        if !self.settings.scale_to_zero {
            self.conditions.remove(SCALED_TO_ZERO);
        } else if self.current > 0 && to == 0 && self.min() == 0 && self.has_podless_metric() {
            let why = "the HPA controller scaled the workload to zero";
            self.conditions
                .set(SCALED_TO_ZERO, true, Reason::new("ScaledToZero", why));
        } else {
            let why = "the HPA controller did not scale the workload to zero";
            self.conditions
                .set(SCALED_TO_ZERO, false, Reason::new("NotScaledToZero", why));
        }
    }

    /// Ends with the result of writing the scale; `Ok` if nothing was to be written.
    pub fn finish(mut self, written: knarr_apimachinery::Result<()>) -> Report {
        let old = self.hpa.status.clone().unwrap_or_default();
        let now = self.conditions.now;
        let (mut desired, mut last, mut action) = (self.current, old.last_scale_time, "none");
        match (self.decision, written) {
            (Decision::Rescale(to), Ok(())) => {
                self.rescaled(to);
                desired = to;
                last = Some(seconds(now));
                action = if to > self.current {
                    "scale_up"
                } else {
                    "scale_down"
                };
            }
            (Decision::Rescale(to), Err(error)) => {
                let message = format!("New size: {to}; reason: {}; error: {error}", self.why);
                self.warn(&Reason::new("FailedRescale", message));
                let why = format!("the HPA controller was unable to update the target scale: {error}");
                self.conditions
                    .set(ABLE_TO_SCALE, false, Reason::new("FailedUpdateScale", why));
                self.error = Some(format!("failed to rescale {}: {error}", self.reference()));
                desired = old.desired_replicas;
            }
            (Decision::Failed, _) => desired = old.desired_replicas,
            (Decision::Keep, _) => {}
        }
        Report {
            status: HorizontalPodAutoscalerStatus {
                conditions: Some(self.conditions.list),
                current_metrics: self.metrics,
                current_replicas: Some(self.current),
                desired_replicas: desired,
                last_scale_time: last,
                observed_generation: None,
            },
            events: self.events,
            error: self.error,
            action,
            computations: self.computations,
        }
    }
}
