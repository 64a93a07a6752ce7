//! The small languages inside objects and requests: selectors, quantities, durations, schedules.
//!
//! The printed form of a parsed value parses to the same value, and printing that gives the same form.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use knarr_api::fields;
use knarr_api::k8s_openapi::api::batch::v1::CronJob;
use knarr_apimachinery::duration;
use knarr_apimachinery::labels;
use knarr_apimachinery::quantity::{Quantity, canonical_text};
use knarr_controllers::cronjob::schedule::Schedule;
use knarr_strategy::Strategy;

use crate::{Target, kind};

fn inputs(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

pub const LABEL_SELECTORS: Target = Target {
    name: "label-selectors",
    check: |data| {
        let Some(text) = text(data) else { return };
        let Ok(selector) = labels::Selector::parse(text) else {
            return;
        };
        let printed = selector.to_string();
        let again = labels::Selector::parse(&printed);
        let again = again.unwrap_or_else(|e| panic!("{text:?} prints as {printed:?}: {e}"));
        assert_eq!(again.to_string(), printed);
        for labels in [
            BTreeMap::new(),
            BTreeMap::from([("a".to_string(), "b".to_string()), ("n".into(), "5".into())]),
            BTreeMap::from([("app.kubernetes.io/name".to_string(), String::new())]),
        ] {
            assert_eq!(
                selector.matches(Some(&labels)),
                again.matches(Some(&labels)),
                "{text:?} and {printed:?} differ on {labels:?}"
            );
        }
    },
    seeds: || {
        inputs(&[
            "a=b,n!=5",
            "a in (b,c),!d,n notin (),e",
            "app.kubernetes.io/name==,n>3,n<9",
            " a  in ( x , ) , in ",
        ])
    },
};

pub const FIELD_SELECTORS: Target = Target {
    name: "field-selectors",
    check: |data| {
        let Some((kind, rest)) = kind(data) else { return };
        let Some(text) = text(rest) else { return };
        if let Ok(selector) = fields::Selector::parse(kind, text) {
            let _ = (selector.is_everything(), selector.required("metadata.name"));
        }
    },
    seeds: || {
        let mut all = inputs(&["\nmetadata.name=a\\,b,metadata.namespace!=c"]);
        all.extend((0..=u8::MAX).step_by(7).map(|kind| {
            let mut input = vec![kind];
            input.extend_from_slice(b"status.phase!=Running,spec.nodeName==,type=x\\=y");
            input
        }));
        all
    },
};

pub const QUANTITIES: Target = Target {
    name: "quantities",
    check: |data| {
        let Some(text) = text(data) else { return };
        let Ok(quantity) = Quantity::parse(text) else {
            return;
        };
        let printed =
            canonical_text(text).unwrap_or_else(|e| panic!("{text:?} parses but has no canonical form: {e}"));
        let again =
            Quantity::parse(&printed).unwrap_or_else(|e| panic!("{text:?} prints as {printed:?}: {e}"));
        assert!(again == quantity, "{text:?} prints as {printed:?}");
        // 62.5Ki is printed as 64000, as in Kubernetes, and 64000 as 64k, which does not change.
        let settled =
            canonical_text(&printed).unwrap_or_else(|e| panic!("{printed:?} has no canonical form: {e}"));
        assert_eq!(
            canonical_text(&settled).as_deref(),
            Ok(settled.as_str()),
            "of {text:?}"
        );
        assert_eq!(
            (again.value(), again.milli_value()),
            (quantity.value(), quantity.milli_value())
        );
        assert_eq!(quantity.is_negative(), again.is_negative());
        let up = quantity.round_up_to_milli();
        // Negative quantities are rounded away from zero, as by resource.Quantity in Go.
        assert!(
            up >= quantity || quantity.is_negative(),
            "{text:?} rounded up is less"
        );
        assert!(
            (quantity + quantity >= quantity) || quantity.is_negative(),
            "{text:?} twice is less"
        );
    },
    seeds: || {
        inputs(&[
            "1",
            "100m",
            "1.5Gi",
            "-3e6",
            "+12E",
            "0.000000001",
            "9223372036854775807",
            "1e-9",
            "340Ei",
            ".5k",
            "1n",
            ".51e-9223372036854775808",
        ])
    },
};

pub const DURATIONS: Target = Target {
    name: "durations",
    check: |data| {
        let Some(text) = text(data) else { return };
        if let Some(duration) = duration::parse(text) {
            let printed = format!("{}ns", duration.as_nanos());
            assert_eq!(duration::parse(&printed), Some(duration), "{text:?}");
        }
    },
    seeds: || {
        inputs(&[
            "1h30m",
            "-1.5s",
            "300ms",
            "2562047h47m16.854775807s",
            "1us",
            "1µs",
            "0",
            ".5h",
        ])
    },
};

/// Whether validation accepts the schedule.
fn is_accepted(schedule: &str) -> bool {
    let mut job = CronJob::default();
    job.spec.schedule = schedule.into();
    !job.validate().iter().any(|error| error.field == "spec.schedule")
}

pub const SCHEDULES: Target = Target {
    name: "schedules",
    check: |data| {
        let Some(text) = text(data) else { return };
        let start = Timestamp::from_second(1_800_000_000).expect("a time of this century");
        for zone in ["Europe/Copenhagen", "UTC"] {
            let zone = TimeZone::get(zone).unwrap_or(TimeZone::UTC);
            match Schedule::parse(text, zone) {
                Ok(schedule) => {
                    let mut time = start;
                    for _ in 0..3 {
                        let Some(next) = schedule.next(time) else { break };
                        assert!(next > time, "the run of {text:?} after {time} is at {next}");
                        time = next;
                    }
                }
                Err(why) => assert!(
                    !is_accepted(text),
                    "validation accepts {text:?}, the CronJob controller does not: {why}"
                ),
            }
        }
    },
    seeds: || {
        inputs(&[
            "*/5 0 1 jan-mar mon,fri",
            "@every 1h30m",
            "@daily",
            "0 0 29 2 *",
            "0 2 * * *",
            "30 2 31 3 0",
            "? 1-5/2 * * 7",
        ])
    },
};
