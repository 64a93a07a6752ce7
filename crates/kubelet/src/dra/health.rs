//! The health of devices, as DRA drivers report it (KEP 4680). A report is valid for as long as the driver says.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

/// How long a report is valid if the driver does not say (`DefaultHealthTimeout`).
const TIMEOUT: SignedDuration = SignedDuration::from_secs(30);
/// The longest message in a pod's status (`ResourceHealthMessageMaxLength`).
const MESSAGE_BYTES: usize = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
}

impl Health {
    pub fn name(self) -> &'static str {
        match self {
            Health::Unknown => "Unknown",
            Health::Healthy => "Healthy",
            Health::Unhealthy => "Unhealthy",
        }
    }
}

/// A device of a driver: its pool and name.
pub type DeviceId = (String, String);

/// A driver's report of a device's health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub health: Health,
    pub message: String,
    /// Zero or less: the default.
    pub timeout: SignedDuration,
}

impl Report {
    fn lasts(&self) -> SignedDuration {
        match self.timeout.is_positive() {
            true => self.timeout,
            false => TIMEOUT,
        }
    }
}

/// The last reports of all drivers' devices.
#[derive(Clone, Debug, Default)]
pub struct DevicesHealth(BTreeMap<String, BTreeMap<DeviceId, (Report, Timestamp)>>);

impl DevicesHealth {
    /// Applies a driver's report and returns the devices whose health changed.
    pub fn report(
        &mut self,
        driver: &str,
        reports: impl IntoIterator<Item = (DeviceId, Report)>,
        now: Timestamp,
    ) -> BTreeSet<DeviceId> {
        let known = self.0.entry(driver.to_string()).or_default();
        let mut changed = BTreeSet::new();
        for (id, mut report) in reports {
            report.message = shortened(report.message);
            if known.get(&id).is_none_or(|(before, _)| *before != report) {
                changed.insert(id.clone());
            }
            known.insert(id, (report, now));
        }
        // The health of devices that reports leave out becomes unknown when their last one has expired.
        known.retain(|id, (report, at)| {
            let holds = now.duration_since(*at) <= report.lasts();
            if !holds {
                changed.insert(id.clone());
            }
            holds
        });
        changed
    }

    /// Drops the reports of a driver that does not report any more.
    pub fn clear(&mut self, driver: &str) {
        self.0.remove(driver);
    }

    /// A device's health, and the driver's message about it.
    pub fn get(&self, driver: &str, id: &DeviceId, now: Timestamp) -> (Health, Option<String>) {
        let known = self.0.get(driver).and_then(|devices| devices.get(id));
        match known.filter(|(report, at)| now.duration_since(*at) <= report.lasts()) {
            Some((report, _)) => {
                let message = Some(report.message.clone()).filter(|m| !m.is_empty());
                (report.health, message)
            }
            None => (Health::Unknown, None),
        }
    }
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        let mut end = MESSAGE_BYTES - 3;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(health: Health, seconds: i64) -> Report {
        Report {
            health,
            message: format!("{health:?}"),
            timeout: SignedDuration::from_secs(seconds),
        }
    }

    #[test]
    fn l4_a_report_of_health_holds_for_as_long_as_the_driver_says() {
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let at = |seconds| begin + SignedDuration::from_secs(seconds);
        let id = |device: &str| ("pool".to_string(), device.to_string());
        let mut all = DevicesHealth::default();
        let both = [
            (id("a"), report(Health::Healthy, 0)),
            (id("b"), report(Health::Unhealthy, 5)),
        ];
        assert_eq!(all.report("d", both.clone(), begin), [id("a"), id("b")].into());
        assert!(all.report("d", both.clone(), at(1)).is_empty());
        for (device, seconds, want) in [
            ("a", 31, Health::Healthy),
            ("a", 32, Health::Unknown),
            ("b", 6, Health::Unhealthy),
            ("b", 7, Health::Unknown),
            ("c", 1, Health::Unknown),
        ] {
            assert_eq!(
                all.get("d", &id(device), at(seconds)).0,
                want,
                "{device} {seconds}"
            );
        }
        let message = all.get("d", &id("b"), at(2)).1;
        assert_eq!(message.as_deref(), Some("Unhealthy"));
        let [a, _] = both;
        assert!(all.report("d", [a.clone()], at(6)).is_empty());
        assert_eq!(all.get("d", &id("b"), at(6)).0, Health::Unhealthy, "as before");
        assert_eq!(
            all.report("d", [a], at(7)),
            [id("b")].into(),
            "a report without the device is a change, too"
        );
        all.clear("d");
        assert_eq!(all.get("d", &id("a"), at(7)), (Health::Unknown, None));
    }

    #[test]
    fn l4_a_long_message_about_health_is_cut_at_a_character() {
        for (message, want) in [
            ("a".repeat(1024), "a".repeat(1024)),
            ("a".repeat(1025), "a".repeat(1021) + "..."),
            // Two bytes each.
            ("ä".repeat(512), "ä".repeat(512)),
            ("ä".repeat(513), "ä".repeat(510) + "..."),
        ] {
            let id = ("pool".to_string(), "a".to_string());
            let long = Report {
                message,
                ..report(Health::Healthy, 0)
            };
            let mut all = DevicesHealth::default();
            all.report("d", [(id.clone(), long)], Timestamp::UNIX_EPOCH);
            let shown = all.get("d", &id, Timestamp::UNIX_EPOCH).1;
            assert_eq!(shown, Some(want));
        }
    }
}
