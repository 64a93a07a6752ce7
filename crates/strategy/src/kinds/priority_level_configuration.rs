//! PriorityLevelConfiguration: how many requests of a level are served concurrently, and how others queue.

use k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{spec_and_status, text};
use super::flow_rules;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

/// The annotation that older API versions use to preserve zero concurrency shares.
const ZERO_SHARES: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

impl Strategy for PriorityLevelConfiguration {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(exempt) = &mut spec.exempt {
            exempt.nominal_concurrency_shares.get_or_insert(0);
            exempt.lendable_percent.get_or_insert(0);
        }
        if let Some(limited) = &mut spec.limited {
            limited.nominal_concurrency_shares.get_or_insert(30);
            limited.lendable_percent.get_or_insert(0);
            if let Some(queuing) = limited.limit_response.as_mut().and_then(|r| r.queuing.as_mut()) {
                for (field, default) in [
                    (&mut queuing.queues, 64),
                    (&mut queuing.hand_size, 8),
                    (&mut queuing.queue_length_limit, 50),
                ] {
                    if field.unwrap_or(0) == 0 {
                        *field = Some(default);
                    }
                }
            }
        }
        self.status.get_or_insert_default();
    }

    spec_and_status!();

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        let annotations = self.metadata.annotations.as_ref();
        if annotations.is_some_and(|a| a.contains_key(ZERO_SHARES)) {
            errors.forbidden(
                &Path::new("metadata").child("annotations"),
                format!("annotation '{ZERO_SHARES}' is forbidden"),
            );
        }
        let of = spec.type_.as_str();
        if (text(&self.metadata.name) == "exempt") != (of == "Exempt") {
            errors.invalid(
                &path.child("type"),
                of,
                "must be 'Exempt' if and only if `name` is 'exempt'",
            );
        }
        let (limited, exempt) = (path.child("limited"), path.child("exempt"));
        match of {
            "Exempt" => {
                if spec.limited.is_some() {
                    errors.forbidden(&limited, "must be nil if the type is not Limited");
                }
                if let Some(of) = &spec.exempt {
                    flow_rules::shares(
                        of.nominal_concurrency_shares,
                        of.lendable_percent,
                        &exempt,
                        &mut errors,
                    );
                }
            }
            "Limited" => {
                if spec.exempt.is_some() {
                    errors.forbidden(&exempt, "must be nil if the type is Limited");
                }
                match &spec.limited {
                    None => errors.required(&limited, "must not be empty when type is Limited"),
                    Some(of) => flow_rules::limited(of, &limited, &mut errors),
                }
            }
            other => {
                errors.not_supported_in_order(&path.child("type"), other, &["Exempt", "Limited"]);
            }
        }
        status(self, &mut errors);
        errors
    }

    fn validate_update(&self, _old: &Self, part: Part) -> ErrorList {
        match part {
            Part::Status => {
                let mut errors = ErrorList::new();
                status(self, &mut errors);
                errors
            }
            _ => self.validate(),
        }
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Type"),
            Column::string("NominalConcurrencyShares"),
            Column::string("Queues"),
            Column::string("HandSize"),
            Column::string("QueueLengthLimit"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let limited = spec.limited;
        let queuing = limited
            .as_ref()
            .and_then(|l| l.limit_response.as_ref()?.queuing.clone());
        let or_none = |value: Option<i32>| value.map_or("<none>".into(), Cell::from);
        vec![
            table::name(&self.metadata),
            spec.type_.into(),
            or_none(limited.map(|l| l.nominal_concurrency_shares.unwrap_or(0))),
            or_none(queuing.as_ref().map(|q| q.queues.unwrap_or(0))),
            or_none(queuing.as_ref().map(|q| q.hand_size.unwrap_or(0))),
            or_none(queuing.as_ref().map(|q| q.queue_length_limit.unwrap_or(0))),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::NONE,
            Part::Main | Part::Other(_) => MetadataChecks::FULL,
        }
    }
}

fn status(level: &PriorityLevelConfiguration, errors: &mut ErrorList) {
    let conditions = level.status.iter().flat_map(|s| s.conditions.iter().flatten());
    flow_rules::conditions(conditions.map(|c| &c.type_), errors);
}
