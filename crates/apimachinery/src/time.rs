//! Times in objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;

/// A timestamp as a meta/v1 Time, in integral seconds: it is read back the same.
pub fn seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// A timestamp as a meta/v1 MicroTime, in integral microseconds: it is read back the same.
pub fn microseconds(at: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_an_object_is_read_back_the_same() {
        for nanoseconds in [0, 1, 999, 1_000, 123_456_789, 999_999_999] {
            let at = Timestamp::new(1_800_000_000, nanoseconds).unwrap();
            let (time, micro_time) = (seconds(at), microseconds(at));
            let read: Time = serde_json::from_value(serde_json::to_value(&time).unwrap()).unwrap();
            assert_eq!(read, time, "{nanoseconds}");
            let read: MicroTime = serde_json::from_value(serde_json::to_value(&micro_time).unwrap()).unwrap();
            assert_eq!(read, micro_time, "{nanoseconds}");
            assert_eq!(
                micro_time.0.as_microsecond(),
                at.as_microsecond(),
                "{nanoseconds}"
            );
        }
    }
}
