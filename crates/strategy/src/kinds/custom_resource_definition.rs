//! CustomResourceDefinition: defines the kind of custom resources. One version is stored, every version has a schema.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionStatus, CustomResourceDefinitionVersion, WebhookClientConfig,
};
use knarr_api::certificates::bundle::unusable;
use knarr_api::custom::conditions::{self, FINALIZER, TERMINATING};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::time::seconds;

use super::checks::{Json, dns_subdomain, json, text, update_generation};
use super::webhook;
use crate::strategy::deletion::{self, DeletionPlan, DeletionRequest};
use crate::{Part, Strategy, facts};

fn empty_status() -> CustomResourceDefinitionStatus {
    CustomResourceDefinitionStatus {
        accepted_names: Some(CustomResourceDefinitionNames::default()),
        ..CustomResourceDefinitionStatus::default()
    }
}

/// Adds the storage version to `status.storedVersions`, since objects of that version may be in the store from now on.
fn add_stored_version(crd: &mut CustomResourceDefinition) {
    let stored = crd.spec.versions.iter().filter(|v| v.storage);
    let stored: Vec<String> = stored.map(|v| v.name.clone()).collect();
    let known = crd.status.get_or_insert_with(empty_status);
    let known = known.stored_versions.get_or_insert_default();
    for name in stored {
        if !known.contains(&name) {
            known.push(name);
        }
    }
}

impl Strategy for CustomResourceDefinition {
    fn set_defaults(&mut self) {
        let names = &mut self.spec.names;
        if text(&names.singular).is_empty() {
            names.singular = Some(names.kind.to_lowercase());
        }
        if text(&names.list_kind).is_empty() && !names.kind.is_empty() {
            names.list_kind = Some(format!("{}List", names.kind));
        }
        let conversion = self
            .spec
            .conversion
            .get_or_insert_with(|| CustomResourceConversion {
                strategy: "None".into(),
                webhook: None,
            });
        let client = conversion.webhook.as_mut().and_then(|w| w.client_config.as_mut());
        if let Some(service) = client.and_then(|c| c.service.as_mut()) {
            service.port.get_or_insert(443);
        }
        let status = self.status.get_or_insert_with(empty_status);
        status.accepted_names.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(empty_status());
        self.metadata.generation = Some(1);
        add_stored_version(self);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        let mut changed = false;
        if part == Part::Status {
            self.spec = old.spec.clone();
        } else {
            self.status = old.status.clone();
            changed = self.spec != old.spec;
            add_stored_version(self);
        }
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        check_definition(self, None)
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return ErrorList::new();
        }
        let mut errors = check_definition(self, Some(old));
        let path = Path::new("spec");
        for (field, new, before) in [
            ("group", &self.spec.group, &old.spec.group),
            ("names.plural", &self.spec.names.plural, &old.spec.names.plural),
            ("scope", &self.spec.scope, &old.spec.scope),
        ] {
            super::checks::immutable(&mut errors, &path.child(field), new, before);
        }
        errors
    }

    const STANDARD_FINALIZERS: bool = false;

    /// It is marked first; its controller deletes all objects of its kind, then removes the finalizer.
    fn plan_deletion(&self, marked: &mut Self, request: &DeletionRequest) -> DeletionPlan {
        if self.metadata.deletion_timestamp.is_some() {
            return deletion::plan(self, marked, request);
        }
        marked.metadata.deletion_timestamp = Some(seconds(request.now));
        let finalizers = marked.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
        conditions::set(
            marked.status.get_or_insert_default(),
            TERMINATING,
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            request.now,
        );
        DeletionPlan::Mark { then_remove: false }
    }
}

/// Validates a definition. `old` is the definition before an update.
fn check_definition(crd: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &crd.spec;
    let name = text(&crd.metadata.name);
    if name != format!("{}.{}", spec.names.plural, spec.group) {
        errors.invalid(
            &Path::new("metadata").child("name"),
            name,
            "must be spec.names.plural+\".\"+spec.group",
        );
    }
    let path = Path::new("spec");
    check_group(&spec.group, &path.child("group"), &mut errors);
    facts::check(&mut errors, &path, spec, &["scope"]);
    check_names(&spec.names, &path.child("names"), &mut errors);
    check_versions(
        &spec.versions,
        old.map_or(&[], |old| &old.spec.versions),
        &path.child("versions"),
        &mut errors,
    );
    if let Some(conversion) = &spec.conversion {
        let path = path.child("conversion");
        check_conversion(conversion, old, &path, &mut errors);
    }
    let stored = crd
        .status
        .as_ref()
        .and_then(|s| s.stored_versions.clone())
        .unwrap_or_default();
    let at = Path::new("status").child("storedVersions");
    if stored.is_empty() {
        errors.invalid(&at, Json("null".into()), "must have at least one stored version");
    }
    for (i, version) in stored.iter().enumerate() {
        if !spec.versions.iter().any(|v| v.name == *version) {
            errors.invalid(
                    &at.index(i),
                    version,
                    format!(
                        "missing from spec.versions; {version} was previously a storage version, and must remain in \
                         spec.versions until a storage migration ensures no data remains persisted in {version} and \
                         removes {version} from status.storedVersions"
                    ),
                );
        }
    }
    errors
}

/// Checks `spec.conversion`. Error paths use the internal type's names of the client configuration and the review versions.
fn check_conversion(
    conversion: &CustomResourceConversion,
    old: Option<&CustomResourceDefinition>,
    path: &Path,
    errors: &mut ErrorList,
) {
    facts::check(errors, path, conversion, &["strategy"]);
    let strategy = conversion.strategy.as_str();
    let client = conversion.webhook.as_ref().and_then(|w| w.client_config.as_ref());
    let versions = conversion
        .webhook
        .as_ref()
        .map_or(&[][..], |w| &w.conversion_review_versions);
    let (client_path, versions_path) = (
        path.child("webhookClientConfig"),
        path.child("conversionReviewVersions"),
    );
    if strategy != "Webhook" {
        const UNUSED: &str = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.forbidden(&client_path, UNUSED);
        }
        if !versions.is_empty() {
            errors.forbidden(&versions_path, UNUSED);
        }
        return;
    }
    match client {
        None => errors.required(&client_path, "required when strategy is set to Webhook"),
        Some(client) => {
            check_conversion_client(client, &client_path, errors);
            check_bundle(client, old, &client_path.child("caBundle"), errors);
        }
    }
    let was = old.and_then(|old| old.spec.conversion.as_ref()?.webhook.as_ref());
    let was = was.map_or(&[][..], |w| &w.conversion_review_versions);
    let is_known = |version: &String| webhook::REVIEW_VERSIONS.contains(&version.as_str());
    let must_be_known = was.is_empty() || was.iter().any(is_known);
    if versions.is_empty() {
        return errors.required(&versions_path, "");
    }
    webhook::check_review_versions(versions, must_be_known, &versions_path, errors);
}

fn check_conversion_client(client: &WebhookClientConfig, path: &Path, errors: &mut ErrorList) {
    match (&client.url, &client.service) {
        (Some(url), None) => webhook::check_url(url, &path.child("url"), errors),
        // Upstream passes name and namespace in the wrong order, so a missing one is reported under the other's name.
        (None, Some(service)) => {
            let service = webhook::ServiceTarget {
                name: &service.namespace,
                namespace: &service.name,
                port: service.port,
                path: text(&service.path),
            };
            webhook::check_service(&service, &path.child("service"), errors);
        }
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

/// An established definition must not lose a valid `caBundle`. Before that a CA injector may not have set it yet.
fn check_bundle(
    client: &WebhookClientConfig,
    old: Option<&CustomResourceDefinition>,
    path: &Path,
    errors: &mut ErrorList,
) {
    fn bundle(client: &WebhookClientConfig) -> Option<&[u8]> {
        client
            .ca_bundle
            .as_ref()
            .map(|b| &b.0[..])
            .filter(|b| !b.is_empty())
    }
    let Some(old) = old.filter(|old| is_established(old)) else {
        return;
    };
    let before = old.spec.conversion.as_ref().and_then(|c| c.webhook.as_ref());
    let before = before.and_then(|w| w.client_config.as_ref()).and_then(bundle);
    if before.and_then(unusable).is_some() {
        return;
    }
    if let Some(bundle) = bundle(client)
        && let Some(detail) = unusable(bundle)
    {
        errors.invalid(path, STANDARD.encode(bundle).as_str(), detail);
    }
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let mut conditions = crd.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Established" && c.status == "True")
}

fn check_group(group: &str, path: &Path, errors: &mut ErrorList) {
    if group.is_empty() {
        return errors.required(path, "");
    }
    dns_subdomain(errors, path, group);
    if !group.contains('.') {
        errors.invalid(path, group, "should be a domain with at least one dot");
    }
}

fn check_names(given: &CustomResourceDefinitionNames, path: &Path, errors: &mut ErrorList) {
    let required = [
        ("plural", given.plural.as_str()),
        ("singular", text(&given.singular)),
        ("kind", given.kind.as_str()),
        ("listKind", text(&given.list_kind)),
    ];
    for (field, value) in required {
        if value.is_empty() {
            errors.required(&path.child(field), "");
            continue;
        }
        let lower = value.to_lowercase();
        let is_kind = field.to_lowercase().ends_with("kind");
        let messages = names::dns1035_label(if is_kind { &lower } else { value });
        for message in messages {
            let detail = match is_kind {
                true => format!("may have mixed case, but should otherwise match: {message}"),
                false => message,
            };
            errors.invalid(&path.child(field), value, detail);
        }
    }
    for (field, values) in [
        ("shortNames", &given.short_names),
        ("categories", &given.categories),
    ] {
        for (i, value) in values.iter().flatten().enumerate() {
            errors.all_invalid(
                &path.child(field).index(i),
                value.as_str(),
                names::dns1035_label(value),
            );
        }
    }
    if !given.kind.is_empty() && given.kind == text(&given.list_kind) {
        errors.invalid(
            &path.child("listKind"),
            text(&given.list_kind),
            "kind and listKind may not be the same",
        );
    }
}

fn check_versions(
    versions: &[CustomResourceDefinitionVersion],
    old: &[CustomResourceDefinitionVersion],
    path: &Path,
    errors: &mut ErrorList,
) {
    for (i, version) in versions.iter().enumerate() {
        let at = path.index(i);
        errors.all_invalid(
            &at.child("name"),
            version.name.as_str(),
            names::dns1035_label(&version.name),
        );
    }
    crate::custom::definition::check(versions, old, errors);
    let mut unique: Vec<&str> = versions.iter().map(|v| v.name.as_str()).collect();
    unique.sort_unstable();
    unique.dedup();
    if unique.len() != versions.len() {
        errors.invalid(path, shown(versions), "must contain unique version names");
    }
    if versions.iter().filter(|v| v.storage).count() != 1 {
        errors.invalid(
            path,
            shown(versions),
            "must have exactly one version marked as storage version",
        );
    }
}

/// The versions as an error message shows them: with the field names of the Go type, nested values as given.
fn shown(versions: &[CustomResourceDefinitionVersion]) -> Json {
    let versions: Vec<String> = versions
        .iter()
        .map(|v| {
            format!(
                concat!(
                    r#"{{"Name":{},"Served":{},"Storage":{},"Deprecated":{},"DeprecationWarning":{},"Schema":{},"#,
                    r#""Subresources":{},"AdditionalPrinterColumns":{},"SelectableFields":{}}}"#
                ),
                json(&v.name).0,
                v.served,
                v.storage,
                v.deprecated.unwrap_or(false),
                json(&v.deprecation_warning).0,
                json(&v.schema).0,
                json(&v.subresources).0,
                json(&v.additional_printer_columns).0,
                json(&v.selectable_fields).0
            )
        })
        .collect();
    Json(format!("[{}]", versions.join(",")))
}
