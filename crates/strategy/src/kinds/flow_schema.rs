//! FlowSchema: assigns requests to a priority level.

use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{Json, dns_subdomain, json, spec_and_status, text};
use super::flow_rules;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const PRECEDENCE: i32 = 1000;
const LAST_PRECEDENCE: i32 = 10000;

impl Strategy for FlowSchema {
    fn set_defaults(&mut self) {
        let precedence = &mut self.spec.get_or_insert_default().matching_precedence;
        if precedence.unwrap_or(0) == 0 {
            *precedence = Some(PRECEDENCE);
        }
        self.status.get_or_insert_default();
    }

    spec_and_status!();

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        let at = path.child("matchingPrecedence");
        let precedence = spec.matching_precedence.unwrap_or(0);
        if precedence <= 0 {
            errors.invalid(&at, precedence, "must be a positive value");
        }
        if precedence > LAST_PRECEDENCE {
            errors.invalid(
                &at,
                precedence,
                format!("must not be greater than {LAST_PRECEDENCE}"),
            );
        }
        if precedence == 1 && text(&self.metadata.name) != "exempt" {
            errors.invalid(
                &at,
                precedence,
                "only the schema named 'exempt' may have matchingPrecedence 1",
            );
        }
        if let Some(method) = &spec.distinguisher_method {
            const METHODS: &[&str] = &["ByNamespace", "ByUser"];
            if !METHODS.contains(&method.type_.as_str()) {
                let path = path.child("distinguisherMethod").child("type");
                // The error shows the whole struct in Kubernetes' internal form.
                let shown = Json(format!(r#"{{"Type":{}}}"#, json(&method.type_).0));
                errors.not_supported_in_order(&path, shown, METHODS);
            }
        }
        let at = path.child("priorityLevelConfiguration").child("name");
        match spec.priority_level_configuration.name.as_str() {
            "" => errors.required(&at, "must reference a priority level"),
            name => dns_subdomain(&mut errors, &at, name),
        }
        for (i, rule) in spec.rules.iter().flatten().enumerate() {
            flow_rules::rule(rule, &path.child("rules").index(i), &mut errors);
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
            Column::string("PriorityLevel"),
            Column::string("MatchingPrecedence"),
            Column::string("DistinguisherMethod"),
            table::AGE,
            Column::string("MissingPL"),
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let mut conditions = self.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let dangling = conditions.find(|c| text(&c.type_) == "Dangling");
        vec![
            table::name(&self.metadata),
            spec.priority_level_configuration.name.into(),
            spec.matching_precedence.unwrap_or(0).into(),
            spec.distinguisher_method
                .map_or("<none>".into(), |m| m.type_)
                .into(),
            table::created(&self.metadata, now),
            dangling.map_or("?", |c| text(&c.status)).into(),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::NONE,
            Part::Main | Part::Other(_) => MetadataChecks::FULL,
        }
    }
}

fn status(schema: &FlowSchema, errors: &mut ErrorList) {
    let conditions = schema.status.iter().flat_map(|s| s.conditions.iter().flatten());
    flow_rules::conditions(conditions.map(|c| &c.type_), errors);
}
