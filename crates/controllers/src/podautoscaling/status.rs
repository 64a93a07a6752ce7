//! Conditions of an autoscaler's status.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerCondition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

pub const ABLE_TO_SCALE: &str = "AbleToScale";
pub const SCALING_ACTIVE: &str = "ScalingActive";
pub const SCALING_LIMITED: &str = "ScalingLimited";
pub const SCALED_TO_ZERO: &str = "ScaledToZero";

/// A reason and a message, for a condition or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub reason: &'static str,
    pub message: String,
}

impl Reason {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Reason {
            reason,
            message: message.into(),
        }
    }
}

/// The conditions while a reconciliation changes them.
#[derive(Clone, Debug)]
pub struct Conditions {
    pub list: Vec<HorizontalPodAutoscalerCondition>,
    pub now: Timestamp,
}

impl Conditions {
    /// The time of the condition changes only with its status.
    pub fn set(&mut self, type_: &str, is_true: bool, why: Reason) {
        let status = if is_true { "True" } else { "False" };
        let new = HorizontalPodAutoscalerCondition {
            type_: type_.into(),
            status: status.into(),
            reason: Some(why.reason.into()),
            message: Some(why.message),
            last_transition_time: Some(seconds(self.now)),
        };
        match self.list.iter_mut().find(|c| c.type_ == type_) {
            Some(old) if old.status == status => {
                let since = old.last_transition_time.take();
                *old = HorizontalPodAutoscalerCondition {
                    last_transition_time: since,
                    ..new
                };
            }
            Some(old) => *old = new,
            None => self.list.push(new),
        }
    }

    pub fn remove(&mut self, type_: &str) {
        self.list.retain(|c| c.type_ != type_);
    }

    pub fn is_true(&self, type_: &str) -> bool {
        self.list.iter().any(|c| c.type_ == type_ && c.status == "True")
    }
}
