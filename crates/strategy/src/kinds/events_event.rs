//! Event of `events.k8s.io/v1`: stored as core/v1 Event, but validated more strictly.

use k8s_openapi::api::core::v1;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use knarr_api::convert;
use knarr_apimachinery::codec;
use knarr_apimachinery::field::{ErrorList, Path};
use serde::Serialize;
use serde_json::Value;

use super::checks::{IMMUTABLE, Json, immutable, json, text};
use super::pod::internal;
use crate::table::{Cell, Column};
use crate::{Part, Strategy};

const UNSET: &str = "needs to be unset";

impl Strategy for Event {
    fn set_defaults(&mut self) {
        self.deprecated_source.get_or_insert_default();
        self.regarding.get_or_insert_default();
    }

    fn validate(&self) -> ErrorList {
        let event = convert::event_to_core(self.clone());
        let mut errors = super::event::validate(&event, "reportingController");
        series(&event, &mut errors);
        if event.event_time.is_none() {
            errors.required(&Path::new("eventTime"), "");
        }
        let of = text(&event.type_);
        if !matches!(of, "Normal" | "Warning") {
            errors.invalid(&Path::new("type"), "", format!("has invalid value: {of}"));
        }
        let source = event.source.unwrap_or_default();
        for (set, field) in [
            (event.first_timestamp.is_some(), "firstTimestamp"),
            (event.last_timestamp.is_some(), "lastTimestamp"),
            (event.count.unwrap_or(0) != 0, "count"),
            (
                !text(&source.component).is_empty() || !text(&source.host).is_empty(),
                "source",
            ),
        ] {
            if set {
                errors.invalid(&Path::new(field), "", UNSET);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let event = convert::event_to_core(self.clone());
        let old = convert::event_to_core(old.clone());
        let mut errors = super::event::validate(&event, "reportingController");
        if event.series != old.series {
            series(&event, &mut errors);
        }
        // Error messages show structs in Kubernetes' internal form.
        for (field, of, new, was) in [
            (
                "involvedObject",
                "ObjectReference",
                internal_value(&event.involved_object),
                internal_value(&old.involved_object),
            ),
            (
                "source",
                "EventSource",
                internal_value(&event.source),
                internal_value(&old.source),
            ),
            (
                "related",
                "*ObjectReference",
                internal_value(&event.related),
                internal_value(&old.related),
            ),
        ] {
            if new != was {
                let shown = Json(internal::json(of, &new));
                errors.invalid(&Path::new(field), shown, IMMUTABLE);
            }
        }
        macro_rules! immutable_fields {
            ($($field:ident: $name:literal),* $(,)?) => {$(
                if event.$field != old.$field {
                    errors.invalid(&Path::new($name), json(&event.$field), IMMUTABLE);
                }
            )*};
        }
        immutable_fields! {
            first_timestamp: "firstTimestamp", last_timestamp: "lastTimestamp", count: "count", event_time: "eventTime",
        }
        for (field, new, was) in [
            ("reason", &event.reason, &old.reason),
            ("message", &event.message, &old.message),
            // v1.36 compares the reason twice, and reports it twice.
            ("reason", &event.reason, &old.reason),
            ("type", &event.type_, &old.type_),
            ("action", &event.action, &old.action),
            (
                "reportingController",
                &event.reporting_component,
                &old.reporting_component,
            ),
            (
                "reportingInstance",
                &event.reporting_instance,
                &old.reporting_instance,
            ),
        ] {
            immutable(&mut errors, &Path::new(field), &text(new), &text(was));
        }
        errors
    }

    const CREATE_ON_UPDATE: bool = true;

    const VALIDATED_AS_SENT: bool = true;

    fn columns() -> &'static [Column] {
        v1::Event::columns()
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        convert::event_to_core(self.clone()).row(now)
    }
}

/// A value as JSON; every value of the API can be serialized.
fn internal_value(value: &impl Serialize) -> Value {
    codec::to_plain_value(value).unwrap_or_default()
}

fn series(event: &v1::Event, errors: &mut ErrorList) {
    if let Some(series) = &event.series {
        if series.count.unwrap_or(0) < 2 {
            errors.invalid(&Path::new("series.count"), "", "should be at least 2");
        }
        let last = series.last_observed_time.as_ref();
        if last.is_none_or(codec::is_unset_micro) {
            errors.required(&Path::new("series.lastObservedTime"), "");
        }
    }
}
