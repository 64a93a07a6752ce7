//! APIService: the server of an API group and version.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{dns_subdomain, text};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const HTTPS_PORT: i32 = 443;

impl Strategy for APIService {
    fn set_defaults(&mut self) {
        if let Some(spec) = &mut self.spec {
            spec.ca_bundle.take_if(|bundle| bundle.0.is_empty());
            if let Some(service) = &mut spec.service {
                service.port.get_or_insert(HTTPS_PORT);
            }
        }
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        let status = self.status.insert(Default::default());
        if self.spec.as_ref().is_none_or(|s| s.service.is_none()) {
            status.conditions = Some(vec![APIServiceCondition {
                type_: "Available".into(),
                status: "True".into(),
                last_transition_time: self.metadata.creation_timestamp.clone(),
                reason: Some("Local".into()),
                message: Some("Local APIServices are always available".into()),
            }]);
        }
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let (group, version) = (text(&spec.group), text(&spec.version));
        let required = format!("{version}.{group}");
        for (field, name) in [
            ("generateName", text(&self.metadata.generate_name)),
            ("name", text(&self.metadata.name)),
        ] {
            // Reported like the other errors of a name, which come first.
            let fits = match field {
                "name" => names::path_segment(name),
                _ => names::path_segment_prefix(name),
            };
            if fits.is_empty() && !name.is_empty() && name != required {
                errors.invalid(
                    &Path::new("metadata").child(field),
                    name,
                    format!("must be `spec.version+\".\"+spec.group`: {required:?}"),
                );
            }
        }
        let path = Path::new("spec");
        let at = path.child("group");
        if group.is_empty() && version != "v1" {
            errors.required(
                &at,
                "only v1 may have an empty group and it better be legacy kube",
            );
        }
        if !group.is_empty() {
            dns_subdomain(&mut errors, &at, group);
        }
        errors.all_invalid(&path.child("version"), version, names::dns1035_label(version));
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
        let bundle_bytes = spec.ca_bundle.as_ref().map_or(0, |c| c.0.len());
        let skips = spec.insecure_skip_tls_verify == Some(true);
        match &spec.service {
            None => {
                if bundle_bytes > 0 {
                    errors.invalid(
                        &path.child("caBundle"),
                        format!("{bundle_bytes} bytes"),
                        "local APIServices may not have a caBundle",
                    );
                }
                if skips {
                    errors.invalid(
                        &path.child("insecureSkipTLSVerify"),
                        true,
                        "local APIServices may not have insecureSkipTLSVerify",
                    );
                }
            }
            Some(service) => {
                if skips && bundle_bytes > 0 {
                    errors.invalid(
                        &path.child("insecureSkipTLSVerify"),
                        true,
                        "may not be true if caBundle is present",
                    );
                }
                let path = path.child("service");
                let port = service.port.unwrap_or(HTTPS_PORT);
                let messages = names::port_number(port.into());
                if !messages.is_empty() {
                    let detail = format!("port is not valid: {}", messages.join(", "));
                    errors.invalid(&path.child("port"), port, detail);
                }
                for (field, value) in [("namespace", &service.namespace), ("name", &service.name)] {
                    if text(value).is_empty() {
                        errors.required(&path.child(field), "");
                    }
                }
            }
        }
        errors
    }

    fn validate_update(&self, _old: &Self, part: Part) -> ErrorList {
        if part != Part::Status {
            return self.validate();
        }
        const STATUSES: [&str; 3] = ["True", "False", "Unknown"];
        let mut errors = ErrorList::new();
        let conditions = self.status.as_ref().and_then(|s| s.conditions.as_deref());
        let path = Path::new("status").child("conditions");
        for (i, condition) in conditions.unwrap_or_default().iter().enumerate() {
            let status = condition.status.as_str();
            if !STATUSES.contains(&status) {
                errors.not_supported_in_order(&path.index(i).child("status"), status, &STATUSES);
            }
        }
        errors
    }

    /// `<version>.<group>`; the name of the core group's APIService ends with a dot.
    fn validate_name(name: &str) -> Vec<String> {
        names::path_segment(name)
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

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }

    const STANDARD_FINALIZERS: bool = false;
}
