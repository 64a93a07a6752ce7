//! What the tests of preemption share.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use knarr_scheduler::{Scheduler, config};
use serde_json::Value;

pub fn shared<T: Registered>(value: Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

/// A scheduler whose default profile has these args of `knarr.io/Preemption`.
pub fn scheduler(args: &str) -> Scheduler {
    let text = format!(
        "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: knarr.io/Preemption
    args: {args}
"
    );
    config::parse(&text).unwrap().scheduler()
}
