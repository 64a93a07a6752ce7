//! IngressClass: the controller that implements an Ingress.

use k8s_openapi::api::networking::v1::IngressClass;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{dns_label, dns_subdomain, domain_prefixed_path, immutable, text, update_generation};
use super::ingress::path_segment_name;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const CONTROLLER_MAX: usize = 250;
const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

impl Strategy for IngressClass {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(parameters) = &mut spec.parameters {
            parameters.scope.get_or_insert_with(|| "Cluster".into());
        }
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        let controller = text(&spec.controller);
        if controller.len() > CONTROLLER_MAX {
            errors.too_long(&path.child("controller"), CONTROLLER_MAX);
        }
        domain_prefixed_path(&mut errors, &path.child("controller"), controller);
        let Some(parameters) = &spec.parameters else {
            return errors;
        };
        let path = path.child("parameters");
        if let Some(group) = &parameters.api_group {
            dns_subdomain(&mut errors, &path.child("apiGroup"), group);
        }
        path_segment_name(&mut errors, &path.child("kind"), &parameters.kind);
        path_segment_name(&mut errors, &path.child("name"), &parameters.name);
        let at = path.child("namespace");
        match (parameters.scope.as_deref(), &parameters.namespace) {
            (None, _) => errors.required(&path.child("scope"), ""),
            (Some("Namespace"), None) => errors.required(&at, "`parameters.scope` is set to 'Namespace'"),
            (Some("Namespace"), Some(namespace)) => dns_label(&mut errors, &at, namespace),
            (Some("Cluster"), Some(_)) => errors.forbidden(&at, "`parameters.scope` is set to 'Cluster'"),
            (Some("Cluster"), None) => {}
            (Some(other), _) => {
                errors.not_supported_in_order(&path.child("scope"), other, &["Cluster", "Namespace"]);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        let controller = |c: &IngressClass| c.spec.as_ref().and_then(|s| s.controller.clone());
        immutable(
            &mut errors,
            &Path::new("spec").child("controller"),
            &controller(self).unwrap_or_default(),
            &controller(old).unwrap_or_default(),
        );
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Controller"),
            Column::string("Parameters"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = self.spec.clone().unwrap_or_default();
        let mut name = text(&self.metadata.name).to_string();
        let annotations = self.metadata.annotations.as_ref();
        if annotations
            .and_then(|a| a.get(DEFAULT_ANNOTATION))
            .map(String::as_str)
            == Some("true")
        {
            name += " (default)";
        }
        let parameters = spec.parameters.map(|p| match &p.api_group {
            Some(group) => format!("{}.{group}/{}", p.kind, p.name),
            None => format!("{}/{}", p.kind, p.name),
        });
        vec![
            name.into(),
            text(&spec.controller).into(),
            table::or(parameters.as_deref(), "<none>").into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
