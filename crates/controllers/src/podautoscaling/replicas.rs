//! From a metric's values to a number of replicas, as Kubernetes' replica calculator.
//!
//! All values are thousandths. Go's conversions from floating point wrap where Rust's saturate; the numbers here are
//! bounded at `i32::MAX`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::Settings;
use super::samples::{Groups, PodMetric, RequestError, Values, requests};
use crate::pod;

/// Why no number of replicas is calculated, with the messages of Kubernetes' replica calculator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("unable to calculate ready pods: {}", ReplicaError::NoPods)]
    NoReadyPods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoMetrics,
    #[error("no metrics returned matched known pods")]
    NoMatch,
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// How far below and above 1 the ratio of usage to target may be without scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    pub scale_down: f64,
    pub scale_up: f64,
}

impl Tolerances {
    fn contain(&self, ratio: f64) -> bool {
        (1.0 - self.scale_down) <= ratio && ratio <= (1.0 + self.scale_up)
    }
}

/// What a number of replicas is calculated from, besides the metric.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// Of the scale's spec.
    pub replicas: i32,
    /// Of the scale's status.
    pub observed_replicas: i32,
    /// The pods that the scale's selector matches.
    pub pods: &'a [&'a Pod],
    pub tolerances: Tolerances,
    pub settings: &'a Settings,
    pub now: Timestamp,
}

/// A number of replicas and the usage it was calculated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calculated {
    pub replicas: i32,
    /// The average per pod, or the whole value where that is the target.
    pub usage: i64,
    /// In percent of the request, where that is the target.
    pub utilization: Option<i32>,
}

/// What one pod is to use.
enum Goal<'a> {
    Utilization { percent: i32, requests: &'a Values },
    Usage(i64),
}

/// Usage over goal.
struct Ratio {
    ratio: f64,
    usage: i64,
    utilization: Option<i32>,
}

fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Goal<'_> {
    fn ratio(&self, values: &Values) -> Result<Ratio, ReplicaError> {
        match self {
            Goal::Utilization { percent, requests } => {
                let (mut used, mut requested, mut count) = (0i128, 0i128, 0i128);
                for (pod, value) in values {
                    if let Some(request) = requests.get(pod) {
                        used += i128::from(*value);
                        requested += i128::from(*request);
                        count += 1;
                    }
                }
                if requested == 0 {
                    return Err(ReplicaError::NoMatch);
                }
                let utilization = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
                Ok(Ratio {
                    ratio: f64::from(utilization) / f64::from(*percent),
                    usage: narrow(used / count),
                    utilization: Some(utilization),
                })
            }
            Goal::Usage(goal) => {
                let used: i128 = values.values().map(|v| i128::from(*v)).sum();
                let count = i128::try_from(values.len().max(1)).unwrap_or(i128::MAX);
                let usage = narrow(used / count);
                Ok(Ratio {
                    ratio: usage as f64 / *goal as f64,
                    usage,
                    utilization: None,
                })
            }
        }
    }

    /// What a pod without a sample is taken to use when the others use less than the goal.
    fn missing(&self, pod: &str) -> i64 {
        match self {
            Goal::Utilization { percent, requests } => {
                let request = i128::from(requests.get(pod).copied().unwrap_or(0));
                narrow(request * i128::from((*percent).max(100)) / 100)
            }
            Goal::Usage(goal) => *goal,
        }
    }
}

fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

impl Target<'_> {
    fn samples(
        &self,
        metrics: &BTreeMap<String, PodMetric>,
        resource: Option<&str>,
    ) -> Result<(Groups, Values), ReplicaError> {
        if self.pods.is_empty() {
            return Err(ReplicaError::NoPods);
        }
        let groups = Groups::of(self.pods, metrics, resource, self.settings, self.now);
        let values = groups.values(metrics);
        if values.is_empty() {
            return Err(ReplicaError::NoMetrics);
        }
        Ok((groups, values))
    }

    fn per_pod(
        &self,
        groups: &Groups,
        mut values: Values,
        goal: &Goal<'_>,
    ) -> Result<Calculated, ReplicaError> {
        let first = goal.ratio(&values)?;
        let calculated = |replicas| Calculated {
            replicas,
            usage: first.usage,
            utilization: first.utilization,
        };
        let (up, down) = (first.ratio > 1.0, first.ratio < 1.0);
        let counts_unready = up && !groups.unready.is_empty();
        if !counts_unready && groups.missing.is_empty() {
            return Ok(calculated(if self.tolerances.contain(first.ratio) {
                self.replicas
            } else {
                ceil(first.ratio * groups.ready as f64)
            }));
        }
        // Pods without a sample count against the direction of the change.
        if up || down {
            for pod in &groups.missing {
                values.insert(pod.clone(), if up { 0 } else { goal.missing(pod) });
            }
        }
        if counts_unready {
            values.extend(groups.unready.iter().map(|pod| (pod.clone(), 0)));
        }
        let again = goal.ratio(&values)?.ratio;
        if self.tolerances.contain(again) || (down && again > 1.0) || (up && again < 1.0) {
            return Ok(calculated(self.replicas));
        }
        let replicas = ceil(again * values.len() as f64);
        let turns = (again < 1.0 && replicas > self.replicas) || (again > 1.0 && replicas < self.replicas);
        Ok(calculated(if turns { self.replicas } else { replicas }))
    }

    /// For a resource's average in percent of the request, of the pods or of one container in each.
    pub fn by_utilization(
        &self,
        metrics: &BTreeMap<String, PodMetric>,
        resource: &str,
        container: Option<&str>,
        percent: i32,
    ) -> Result<Calculated, ReplicaError> {
        let (groups, values) = self.samples(metrics, Some(resource))?;
        let requests = requests(self.pods, container, resource)?;
        let goal = Goal::Utilization {
            percent,
            requests: &requests,
        };
        self.per_pod(&groups, values, &goal)
    }

    /// For an average per pod of a resource or of another metric of the pods.
    pub fn by_usage(
        &self,
        metrics: &BTreeMap<String, PodMetric>,
        resource: Option<&str>,
        goal: i64,
    ) -> Result<Calculated, ReplicaError> {
        let (groups, values) = self.samples(metrics, resource)?;
        self.per_pod(&groups, values, &Goal::Usage(goal))
    }

    /// For one value of an object or an external metric.
    pub fn by_value(&self, usage: i64, goal: i64) -> Result<Calculated, ReplicaError> {
        let ratio = usage as f64 / goal as f64;
        let replicas = if self.replicas == 0 {
            ceil(ratio)
        } else if self.tolerances.contain(ratio) {
            self.replicas
        } else if self.pods.is_empty() {
            return Err(ReplicaError::NoReadyPods);
        } else {
            let ready = self
                .pods
                .iter()
                .filter(|p| pod::phase(p) == "Running" && pod::is_ready(p));
            ceil(ratio * ready.count() as f64)
        };
        Ok(Calculated {
            replicas,
            usage,
            utilization: None,
        })
    }

    /// For one value of an object or an external metric that the pods share.
    pub fn by_shared_value(&self, usage: i64, goal: i64) -> Calculated {
        let observed = f64::from(self.observed_replicas);
        let ratio = usage as f64 / (goal as f64 * observed);
        let replicas = if self.tolerances.contain(ratio) {
            self.observed_replicas
        } else {
            ceil(usage as f64 / goal as f64)
        };
        // Without replicas there is no average; the whole value is the least surprising number.
        let average = if self.observed_replicas == 0 {
            usage
        } else {
            (usage as f64 / observed).ceil() as i64
        };
        Calculated {
            replicas,
            usage: average,
            utilization: None,
        }
    }
}
