//! Stabilization windows and scaling policies: how far and how fast the number of replicas may change.

use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::Settings;
use super::status::Reason;

/// Without a behavior, the number of replicas at most doubles in one step, or becomes this.
const SCALE_UP_MINIMUM: i32 = 4;
const SCALE_UP_FACTOR: i32 = 2;

/// A number with its time: a recommendation, or by how much the target was scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dated {
    pub replicas: i32,
    pub at: Timestamp,
}

/// What is remembered of one autoscaler between two reconciliations. Entries that no window or period covers any more are
/// dropped, so its size is bounded by the longest window over the sync period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub(super) recommendations: Vec<Dated>,
    pub(super) scaled_up: Vec<Dated>,
    pub(super) scaled_down: Vec<Dated>,
}

/// The bounds and the number to fit into them.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    pub min: i32,
    pub max: i32,
    pub current: i32,
    pub desired: i32,
}

/// A number of replicas within the bounds, and the conditions that explain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalized {
    pub replicas: i32,
    pub able_to_scale: Reason,
    pub limited: bool,
    pub scaling_limited: Reason,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

fn before(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MIN)
}

fn window(rules: Option<&HPAScalingRules>) -> Option<i32> {
    rules.and_then(|r| r.stabilization_window_seconds)
}

fn longest_period(rules: Option<&HPAScalingRules>) -> i32 {
    let policies = rules.and_then(|r| r.policies.as_deref()).unwrap_or_default();
    policies.iter().map(|p| p.period_seconds).max().unwrap_or(0)
}

fn within_range() -> Reason {
    Reason::new(
        "DesiredWithinRange",
        "the desired count is within the acceptable range",
    )
}

fn ready_for_new_scale() -> Reason {
    Reason::new("ReadyForNewScale", "recommended size matches current size")
}

fn scale_down_stabilized() -> Reason {
    Reason::new(
        "ScaleDownStabilized",
        "recent recommendations were higher than current one, applying the highest recent recommendation",
    )
}

fn scale_up_limit() -> Reason {
    Reason::new(
        "ScaleUpLimit",
        "the desired replica count is increasing faster than the maximum scale rate",
    )
}

fn too_many() -> Reason {
    Reason::new(
        "TooManyReplicas",
        "the desired replica count is more than the maximum replica count",
    )
}

fn too_few() -> Reason {
    Reason::new(
        "TooFewReplicas",
        "the desired replica count is less than the minimum replica count",
    )
}

/// Bounds the number; without a behavior it at most doubles.
fn bounded(p: Proposal) -> (i32, Reason) {
    let limit = p.current.saturating_mul(SCALE_UP_FACTOR).max(SCALE_UP_MINIMUM);
    let (most, why) = if p.max > limit {
        (limit, scale_up_limit())
    } else {
        (p.max, too_many())
    };
    if p.desired < p.min {
        (p.min, too_few())
    } else if p.desired > most {
        (most, why)
    } else {
        (p.desired, within_range())
    }
}

impl History {
    /// The first recommendation is the number that the target has.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push(Dated {
                replicas: current,
                at: now,
            });
        }
    }

    /// Records that the target was scaled, for the policies of the behavior.
    pub fn scaled(&mut self, behavior: &HorizontalPodAutoscalerBehavior, from: i32, to: i32, now: Timestamp) {
        let (events, rules) = if to > from {
            (&mut self.scaled_up, &behavior.scale_up)
        } else {
            (&mut self.scaled_down, &behavior.scale_down)
        };
        let cutoff = before(now, longest_period(rules.as_ref()).into());
        events.retain(|e| e.at >= cutoff);
        events.push(Dated {
            replicas: to.saturating_sub(from).saturating_abs(),
            at: now,
        });
    }

    fn recommend(&mut self, desired: i32, now: Timestamp, cutoff: Timestamp) {
        self.recommendations.retain(|r| r.at >= cutoff);
        self.recommendations.push(Dated {
            replicas: desired,
            at: now,
        });
    }

    /// Stabilizes and bounds the number; remembers it as a recommendation.
    pub fn normalize(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        proposal: Proposal,
        settings: &Settings,
        now: Timestamp,
    ) -> Normalized {
        let default_window = i64::try_from(settings.downscale_stabilization.as_secs()).unwrap_or(i64::MAX);
        let (stabilized, why) = match behavior {
            None => {
                let cutoff = before(now, default_window);
                let recent = self.recommendations.iter().filter(|r| r.at >= cutoff);
                let most = recent.map(|r| r.replicas).fold(proposal.desired, i32::max);
                self.recommend(proposal.desired, now, cutoff);
                (most, scale_down_stabilized())
            }
            Some(behavior) => self.stabilize(behavior, proposal, default_window, now),
        };
        let proposed = Proposal {
            desired: stabilized,
            ..proposal
        };
        let (replicas, scaling_limited) = match behavior {
            None => bounded(proposed),
            Some(behavior) => self.limited(behavior, proposed, now),
        };
        Normalized {
            replicas,
            able_to_scale: if stabilized == proposal.desired {
                ready_for_new_scale()
            } else {
                why
            },
            limited: replicas != stabilized,
            scaling_limited,
        }
    }

    /// Scales no further up than the lowest, and no further down than the highest recommendation of the windows.
    fn stabilize(
        &mut self,
        behavior: &HorizontalPodAutoscalerBehavior,
        p: Proposal,
        default_window: i64,
        now: Timestamp,
    ) -> (i32, Reason) {
        let up = before(now, window(behavior.scale_up.as_ref()).map_or(0, i64::from));
        let down = window(behavior.scale_down.as_ref()).map_or(default_window, i64::from);
        let down = before(now, down);
        let (mut lowest, mut highest) = (p.desired, p.desired);
        for recommendation in &self.recommendations {
            if recommendation.at > up {
                lowest = lowest.min(recommendation.replicas);
            }
            if recommendation.at > down {
                highest = highest.max(recommendation.replicas);
            }
        }
        self.recommend(p.desired, now, up.min(down));
        let why = if p.desired >= p.current {
            Reason::new(
                "ScaleUpStabilized",
                "recent recommendations were lower than current one, applying the lowest recent recommendation",
            )
        } else {
            scale_down_stabilized()
        };
        (p.current.max(lowest).min(highest), why)
    }

    /// How many replicas there were when the period began.
    fn at_start_of_period(&self, current: i32, period_seconds: i32, now: Timestamp) -> i32 {
        let cutoff = before(now, period_seconds.into());
        let sum = |events: &[Dated]| -> i32 {
            let recent = events.iter().filter(|e| e.at > cutoff);
            recent.fold(0, |sum: i32, e| sum.saturating_add(e.replicas))
        };
        current
            .saturating_sub(sum(&self.scaled_up))
            .saturating_add(sum(&self.scaled_down))
    }

    /// The number that the policies allow in this direction.
    fn limit(
        &self,
        rules: Option<&HPAScalingRules>,
        direction: Direction,
        current: i32,
        now: Timestamp,
    ) -> i32 {
        let select = rules.and_then(|r| r.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let policies = rules.and_then(|r| r.policies.as_deref()).unwrap_or_default();
        let allowed = policies.iter().map(|policy| {
            let start = self.at_start_of_period(current, policy.period_seconds, now);
            let share = f64::from(policy.value) / 100.0;
            match (policy.type_.as_str(), direction) {
                ("Percent", Direction::Up) => (f64::from(start) * (1.0 + share)).ceil() as i32,
                ("Percent", Direction::Down) => (f64::from(start) * (1.0 - share)) as i32,
                (_, Direction::Up) => start.saturating_add(policy.value),
                (_, Direction::Down) => start.saturating_sub(policy.value),
            }
        });
        // The largest change up is the highest number, down the lowest.
        let limit = if (select == "Min") == (direction == Direction::Up) {
            allowed.min()
        } else {
            allowed.max()
        };
        limit.unwrap_or(current)
    }

    fn limited(
        &self,
        behavior: &HorizontalPodAutoscalerBehavior,
        p: Proposal,
        now: Timestamp,
    ) -> (i32, Reason) {
        if p.desired > p.current {
            let limit = self.limit(behavior.scale_up.as_ref(), Direction::Up, p.current, now);
            let limit = limit.max(p.current);
            let (most, why) = if p.max > limit {
                (limit, scale_up_limit())
            } else {
                (p.max, too_many())
            };
            if p.desired > most {
                return (most, why);
            }
        } else if p.desired < p.current {
            let limit = self.limit(behavior.scale_down.as_ref(), Direction::Down, p.current, now);
            let limit = limit.min(p.current);
            let (least, why) = if p.min < limit {
                let why = "the desired replica count is decreasing faster than the maximum scale rate";
                (limit, Reason::new("ScaleDownLimit", why))
            } else {
                (p.min, too_few())
            };
            if p.desired < least {
                return (least, why);
            }
        }
        (p.desired, within_range())
    }
}
