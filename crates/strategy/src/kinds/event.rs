//! Event of core/v1, the form in which the events of both groups are stored. The stricter rules of `events.k8s.io/v1` are in
//! [`super::events_event`].

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{qualified_name, text};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const INSTANCE_MAX: usize = 128;
const ACTION_MAX: usize = 128;
const REASON_MAX: usize = 128;
const NOTE_MAX: usize = 1024;
const OTHER_NAMESPACE: &str = "does not match event.namespace";

impl Strategy for Event {
    fn set_defaults(&mut self) {
        self.source.get_or_insert_default();
        self.reporting_component.get_or_insert_default();
        self.reporting_instance.get_or_insert_default();
    }

    fn validate(&self) -> ErrorList {
        validate(self, "reportingComponent")
    }

    fn validate_update(&self, _old: &Self, _part: Part) -> ErrorList {
        self.validate()
    }

    fn validate_name(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    const CREATE_ON_UPDATE: bool = true;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            Column::string("Last Seen"),
            Column::string("Type"),
            Column::string("Reason"),
            Column::string("Object"),
            Column::string("Subobject").wide(),
            Column::string("Source").wide(),
            Column::string("Message"),
            Column::string("First Seen").wide(),
            Column::string("Count").wide(),
            Column::string("Name").wide().names_object(),
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let first = match &self.first_timestamp {
            Some(first) => table::age(Some(first), now),
            None => table::micro_age(self.event_time.as_ref(), now),
        };
        let (last, count) = match &self.series {
            Some(series) => (
                table::micro_age(series.last_observed_time.as_ref(), now),
                series.count.unwrap_or(0),
            ),
            None => (
                match &self.last_timestamp {
                    Some(last) => table::age(Some(last), now),
                    None => first.clone(),
                },
                self.count.filter(|c| *c != 0).unwrap_or(1),
            ),
        };
        let object = &self.involved_object;
        let mut target = text(&object.kind).to_lowercase();
        if !text(&object.name).is_empty() {
            target = format!("{target}/{}", text(&object.name));
        }
        let source = self.source.clone().unwrap_or_default();
        let component = table::or(source.component.as_deref(), text(&self.reporting_component));
        let instance = table::or(source.host.as_deref(), text(&self.reporting_instance));
        let source = match instance {
            "" => component.to_string(),
            _ => format!("{component}, {instance}"),
        };
        vec![
            last.into(),
            text(&self.type_).into(),
            text(&self.reason).into(),
            target.into(),
            text(&object.field_path).into(),
            source.into(),
            text(&self.message).trim().into(),
            first.into(),
            count.into(),
            table::name(&self.metadata),
        ]
    }

    const CHECKS_METADATA: bool = false;

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::NONE
    }
}

/// The rules for events of both groups. An event with `eventTime` comes from a client of `events.k8s.io` and needs more fields.
pub(super) fn validate(event: &Event, controller_field: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    let namespace = text(&event.metadata.namespace);
    let involved = text(&event.involved_object.namespace);
    let fits = match (&event.event_time, involved) {
        (None, "") => matches!(namespace, "" | "default"),
        (None, involved) => involved == namespace,
        (Some(_), "") => matches!(namespace, "default" | "kube-system"),
        (Some(_), _) => true,
    };
    if !fits {
        errors.invalid(
            &Path::new("involvedObject").child("namespace"),
            involved,
            OTHER_NAMESPACE,
        );
    }
    if event.event_time.is_some() {
        let controller = text(&event.reporting_component);
        let path = Path::new(controller_field);
        if controller.is_empty() {
            errors.required(&path, "");
        }
        qualified_name(&mut errors, &path, controller);
        for (field, value, max, required) in [
            (
                "reportingInstance",
                text(&event.reporting_instance),
                INSTANCE_MAX,
                true,
            ),
            ("action", text(&event.action), ACTION_MAX, true),
            ("reason", text(&event.reason), REASON_MAX, true),
            ("message", text(&event.message), NOTE_MAX, false),
        ] {
            if required && value.is_empty() {
                errors.required(&Path::new(field), "");
            }
            if value.len() > max {
                errors.invalid(
                    &Path::new(field),
                    "",
                    format!("can have at most {max} characters"),
                );
            }
        }
    }
    errors.all_invalid(
        &Path::new("namespace"),
        namespace,
        names::dns1123_subdomain(namespace),
    );
    errors
}
