//! APIService: who serves a group and version.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use super::checks::text;
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

const HTTPS_PORT: i32 = 443;

impl Strategy for APIService {
    const STATUS_KEEPS_METADATA: bool = true;

    fn set_defaults(&mut self) {
        if let Some(service) = self.spec.as_mut().and_then(|s| s.service.as_mut()) {
            service.port.get_or_insert(HTTPS_PORT);
        }
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let spec = self.spec.clone().unwrap_or_default();
        let (group, version) = (text(&spec.group), text(&spec.version));
        let name = text(&self.metadata.name);
        let required = format!("{version}.{group}");
        if name != required {
            errors.invalid(
                &Path::new("metadata").child("name"),
                name,
                format!("must be `spec.version+\".\"+spec.group`: {required:?}"),
            );
        }
        let path = Path::new("spec");
        for (field, value, max) in [
            ("groupPriorityMinimum", spec.group_priority_minimum, 20000),
            ("versionPriority", spec.version_priority, 1000),
        ] {
            if !(1..=max).contains(&value) {
                errors.invalid(
                    &path.child(field),
                    value,
                    format!("must be positive and less than {max}"),
                );
            }
        }
        match &spec.service {
            None => {
                if spec.ca_bundle.as_ref().is_some_and(|c| !c.0.is_empty()) {
                    errors.invalid(
                        &path.child("caBundle"),
                        "",
                        "local APIServices may not have a caBundle",
                    );
                }
            }
            Some(service) => {
                let path = path.child("service");
                for (field, value) in [("namespace", &service.namespace), ("name", &service.name)] {
                    if text(value).is_empty() {
                        errors.required(&path.child(field), "");
                    }
                }
            }
        }
        errors
    }

    fn validate_update(&self, _old: &Self, part: Part) -> Errors {
        match part {
            Part::Status => Errors::new(),
            _ => self.validate(),
        }
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Service"),
            Column::string("Available"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let service = self.spec.as_ref().and_then(|s| s.service.as_ref());
        let service = service.map(|s| format!("{}/{}", text(&s.namespace), text(&s.name)));
        let mut conditions = self.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let available = match conditions.find(|c| c.type_ == "Available") {
            None => "Unknown".to_string(),
            Some(c) if c.status == "True" => "True".into(),
            Some(c) => format!("{} ({})", c.status, text(&c.reason)),
        };
        vec![
            table::name(&self.metadata),
            table::or(service.as_deref(), "Local").into(),
            available.into(),
            table::created(&self.metadata, now),
        ]
    }
}
