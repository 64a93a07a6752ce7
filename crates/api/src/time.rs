//! Times as objects carry them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// A moment as a meta/v1 Time tells it, which is in whole seconds: what is written so is read back the same.
pub fn seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
