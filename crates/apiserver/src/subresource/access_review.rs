//! SubjectAccessReview, SelfSubjectAccessReview, LocalSubjectAccessReview and SelfSubjectRulesReview.

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, LocalSubjectAccessReview, NonResourceAttributes,
    NonResourceRule, ResourceAttributes, ResourceRule, SelfSubjectAccessReview, SelfSubjectRulesReview,
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus, SubjectRulesReviewStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::kinds::text;
use knarr_apimachinery::codec;
use knarr_apimachinery::error::ResourceRef;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::labels;
use knarr_apimachinery::meta;
use knarr_apimachinery::{Error, names};
use serde_json::{Value, json};

use super::review::document;
use crate::authz::Attributes;
use crate::pipeline::Pipeline;
use crate::request::{Ctx, Target};
use crate::user::User;

impl Pipeline {
    pub(super) async fn subject_access(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut review: SubjectAccessReview,
    ) -> Result<Value, Error> {
        let mut errors = validate_spec(&review.spec);
        validate_metadata(&review.metadata, "must be empty", &mut errors);
        into_result(&errors)?;
        self.validate_review(ctx, target, &review).await?;
        review.status = Some(self.status_of(&review.spec));
        document(&review)
    }

    pub(super) async fn local_subject_access(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut review: LocalSubjectAccessReview,
    ) -> Result<Value, Error> {
        let namespace = target.namespace;
        review
            .metadata
            .namespace
            .get_or_insert_with(|| namespace.to_string());
        let spec = &review.spec;
        let mut errors = validate_spec(spec);
        let bare = ObjectMeta {
            namespace: None,
            ..review.metadata.clone()
        };
        validate_metadata(&bare, "must be empty except for namespace", &mut errors);
        if let Some(resource) = &spec.resource_attributes
            && resource.namespace.as_deref().unwrap_or("") != namespace
        {
            errors.invalid(
                &Path::new("spec").child("resourceAttributes").child("namespace"),
                resource.namespace.as_deref().unwrap_or(""),
                "must match metadata.namespace",
            );
        }
        if let Some(path) = &spec.non_resource_attributes {
            errors.invalid(
                &Path::new("spec").child("nonResourceAttributes"),
                printed(path),
                "disallowed on this kind of request",
            );
        }
        into_result(&errors)?;
        self.validate_review(ctx, target, &review).await?;
        review.status = Some(self.status_of(&review.spec));
        document(&review)
    }

    pub(super) async fn self_subject_access(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut review: SelfSubjectAccessReview,
    ) -> Result<Value, Error> {
        let spec = &review.spec;
        let (resource, path) = (&spec.resource_attributes, &spec.non_resource_attributes);
        let mut errors = ErrorList::new();
        validate_attributes(resource.as_ref(), path.as_ref(), &mut errors);
        validate_selectors(resource.as_ref(), &mut errors);
        validate_metadata(&review.metadata, "must be empty", &mut errors);
        into_result(&errors)?;
        self.validate_review(ctx, target, &review).await?;
        review.status = Some(self.evaluate(&ctx.user, resource.as_ref(), path.as_ref()));
        document(&review)
    }

    pub(super) async fn self_subject_rules(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        review: SelfSubjectRulesReview,
    ) -> Result<Value, Error> {
        let namespace = review.spec.namespace.clone().unwrap_or_default();
        if namespace.is_empty() {
            return Err(Error::bad_request("no namespace on request"));
        }
        self.validate_review(ctx, target, &review).await?;
        let found = self.authorizer.rules_for(&ctx.user, &namespace);
        let list = |values: Option<Vec<String>>| values.unwrap_or_default();
        let status = SubjectRulesReviewStatus {
            resource_rules: found
                .rules
                .iter()
                .filter(|r| !list(r.resources.clone()).is_empty())
                .map(|r| ResourceRule {
                    api_groups: r.api_groups.clone(),
                    resource_names: r.resource_names.clone(),
                    resources: r.resources.clone(),
                    verbs: r.verbs.clone(),
                })
                .collect(),
            non_resource_rules: found
                .rules
                .iter()
                .filter(|r| !list(r.non_resource_urls.clone()).is_empty())
                .map(|r| NonResourceRule {
                    non_resource_urls: r.non_resource_urls.clone(),
                    verbs: r.verbs.clone(),
                })
                .collect(),
            incomplete: found.error.is_some(),
            evaluation_error: found.error,
        };
        // The response has no spec, as in kube-apiserver.
        document(&SelfSubjectRulesReview {
            status: Some(status),
            ..SelfSubjectRulesReview::default()
        })
    }

    fn status_of(&self, spec: &SubjectAccessReviewSpec) -> SubjectAccessReviewStatus {
        let mut user = User::new(
            spec.user.clone().unwrap_or_default(),
            spec.groups.clone().unwrap_or_default(),
        );
        user.uid = spec.uid.clone().unwrap_or_default();
        user.extra = spec.extra.clone().unwrap_or_default();
        self.evaluate(
            &user,
            spec.resource_attributes.as_ref(),
            spec.non_resource_attributes.as_ref(),
        )
    }

    /// The authorizer's decision on validated attributes.
    fn evaluate(
        &self,
        user: &User,
        resource: Option<&ResourceAttributes>,
        path: Option<&NonResourceAttributes>,
    ) -> SubjectAccessReviewStatus {
        let mut evaluation_errors = Vec::new();
        let fields = resource.and_then(|r| r.field_selector.as_ref());
        let fields = fields
            .map(|s| field_selector(s, &mut evaluation_errors))
            .unwrap_or_default();
        let labels = resource.and_then(|r| r.label_selector.as_ref());
        let labels = labels
            .map(|s| label_selector(s, &mut evaluation_errors))
            .unwrap_or_default();
        let attributes = match (resource, path) {
            (Some(r), _) => Attributes {
                verb: text(&r.verb),
                group: text(&r.group),
                resource: text(&r.resource),
                subresource: text(&r.subresource),
                namespace: text(&r.namespace),
                name: text(&r.name),
                path: None,
                field_selector: &fields,
                label_selector: &labels,
            },
            (None, Some(p)) => Attributes {
                verb: text(&p.verb),
                path: Some(text(&p.path)),
                ..Attributes::default()
            },
            (None, None) => Attributes::default(),
        };
        let decision = self.authorizer.explain(user, &attributes);
        SubjectAccessReviewStatus {
            allowed: decision.allowed,
            reason: Some(decision.reason).filter(|r| !r.is_empty()),
            evaluation_error: (!evaluation_errors.is_empty()).then(|| evaluation_errors.join("; ")),
            ..SubjectAccessReviewStatus::default()
        }
    }
}

/// The selector in the query string's syntax. Requirements that have none are dropped, which makes the request broader.
fn field_selector(selector: &FieldSelectorAttributes, evaluation_errors: &mut Vec<String>) -> String {
    let ignored = |partially: &str| {
        format!("spec.resourceAttributes.fieldSelector {partially}ignored due to parse error")
    };
    if let Some(raw) = selector.raw_selector.as_deref().filter(|r| !r.is_empty()) {
        let parses = raw.split(',').all(|term| term.is_empty() || term.contains('='));
        if !parses {
            evaluation_errors.push(ignored(""));
            return String::new();
        }
        return raw.to_string();
    }
    let all = selector.requirements.as_deref().unwrap_or_default();
    let terms: Vec<String> = all
        .iter()
        .filter_map(
            |r| match (r.operator.as_str(), r.values.as_deref().unwrap_or_default()) {
                ("In", [value]) => Some(format!("{}={value}", r.key)),
                ("NotIn", [value]) => Some(format!("{}!={value}", r.key)),
                _ => None,
            },
        )
        .collect();
    if terms.len() < all.len() {
        evaluation_errors.push(ignored(if terms.is_empty() { "" } else { "partially " }));
    }
    terms.join(",")
}

/// Like [`field_selector`], for labels.
fn label_selector(selector: &LabelSelectorAttributes, evaluation_errors: &mut Vec<String>) -> String {
    let ignored = |partially: &str| {
        format!("spec.resourceAttributes.labelSelector {partially}ignored due to parse error")
    };
    if let Some(raw) = selector.raw_selector.as_deref().filter(|r| !r.is_empty()) {
        if labels::Selector::parse(raw).is_err() {
            evaluation_errors.push(ignored(""));
            return String::new();
        }
        return raw.to_string();
    }
    let all = selector.requirements.as_deref().unwrap_or_default();
    let terms: Vec<String> = all
        .iter()
        .filter_map(|r| {
            use labels::Operator;
            let values = r.values.clone().unwrap_or_default();
            let (operator, term) = match r.operator.as_str() {
                "In" => (Operator::In, format!("{} in ({})", r.key, values.join(","))),
                "NotIn" => (Operator::NotIn, format!("{} notin ({})", r.key, values.join(","))),
                "Exists" => (Operator::Exists, r.key.clone()),
                "DoesNotExist" => (Operator::DoesNotExist, format!("!{}", r.key)),
                _ => return None,
            };
            labels::Requirement::new(&r.key, operator, values)
                .is_ok()
                .then_some(term)
        })
        .collect();
    if terms.len() < all.len() {
        evaluation_errors.push(ignored(if terms.is_empty() { "" } else { "partially " }));
    }
    terms.join(",")
}

fn validate_spec(spec: &SubjectAccessReviewSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let resource = spec.resource_attributes.as_ref();
    validate_attributes(resource, spec.non_resource_attributes.as_ref(), &mut errors);
    let user = spec.user.as_deref().unwrap_or("");
    if user.is_empty() && spec.groups.as_ref().is_none_or(Vec::is_empty) {
        errors.invalid(
            &Path::new("spec").child("user"),
            user,
            "at least one of user or group must be specified",
        );
    }
    validate_selectors(resource, &mut errors);
    errors
}

/// Attributes as error messages show them.
fn printed(path: &NonResourceAttributes) -> Value {
    json!({"Path": path.path.as_deref().unwrap_or(""), "Verb": path.verb.as_deref().unwrap_or("")})
}

fn validate_attributes(
    resource: Option<&ResourceAttributes>,
    path: Option<&NonResourceAttributes>,
    errors: &mut ErrorList,
) {
    match (resource, path) {
        (Some(_), Some(path)) => errors.invalid(
            &Path::new("spec").child("nonResourceAttributes"),
            printed(path),
            "cannot be specified in combination with resourceAttributes",
        ),
        (None, None) => errors.invalid(
            &Path::new("spec").child("resourceAttributes"),
            json!(null),
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
}

fn validate_selectors(resource: Option<&ResourceAttributes>, errors: &mut ErrorList) {
    let base = Path::new("spec").child("resourceAttributes");
    let Some(resource) = resource else { return };
    if let Some(s) = &resource.field_selector {
        let requirements = s.requirements.iter().flatten();
        let parts = requirements.map(|r| requirement(&r.key, &r.operator, &r.values));
        validate_selector(
            &base.child("fieldSelector"),
            s.raw_selector.as_deref(),
            parts.clone().collect(),
            errors,
        );
        for (i, (key, ..)) in parts.enumerate() {
            if key.is_empty() {
                let at = base.child("fieldSelector").child("requirements").index(i);
                errors.required(&at.child("key"), "must be specified");
            }
        }
    }
    if let Some(s) = &resource.label_selector {
        let requirements = s.requirements.iter().flatten();
        let parts = requirements.map(|r| requirement(&r.key, &r.operator, &r.values));
        let at = base.child("labelSelector");
        validate_selector(&at, s.raw_selector.as_deref(), parts.clone().collect(), errors);
        for (i, (key, _, values)) in parts.enumerate() {
            let at = at.child("requirements").index(i);
            errors.extend(meta::label_name(key, &at.child("key")));
            for (j, value) in values.iter().enumerate() {
                for message in names::label_value(value) {
                    errors.invalid(&at.child("values").index(j), value, message);
                }
            }
        }
    }
}

/// A requirement on a field or label: key, operator, values.
fn requirement<'a>(
    key: &'a str,
    operator: &'a str,
    values: &'a Option<Vec<String>>,
) -> (&'a str, &'a str, &'a [String]) {
    (key, operator, values.as_deref().unwrap_or_default())
}

/// Validates a selector. Its requirements are key, operator and values.
fn validate_selector(
    at: &Path,
    raw: Option<&str>,
    requirements: Vec<(&str, &str, &[String])>,
    errors: &mut ErrorList,
) {
    let raw = raw.unwrap_or("");
    if !raw.is_empty() && !requirements.is_empty() {
        errors.invalid(
            &at.child("rawSelector"),
            raw,
            "may not specified at the same time as requirements",
        );
    }
    if raw.is_empty() && requirements.is_empty() {
        errors.required(
            &at.child("requirements"),
            format!("when {at} is specified, requirements or rawSelector is required"),
        );
    }
    for (i, (_, operator, values)) in requirements.into_iter().enumerate() {
        let at = at.child("requirements").index(i);
        match operator {
            "In" | "NotIn" if values.is_empty() => errors.required(
                &at.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(
                &at.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            _ => {}
        }
    }
}

fn validate_metadata(meta: &ObjectMeta, message: &str, errors: &mut ErrorList) {
    let bare = ObjectMeta {
        managed_fields: None,
        ..meta.clone()
    };
    if bare != ObjectMeta::default() {
        let value = codec::to_plain_value(meta).unwrap_or_default();
        errors.invalid(&Path::new("metadata"), value, message);
    }
}

/// The error of an invalid review. As in Kubernetes it names no kind.
fn into_result(errors: &ErrorList) -> Result<(), Error> {
    if errors.is_empty() {
        return Ok(());
    }
    let about = ResourceRef {
        group: "authorization.k8s.io",
        resource: "",
        name: "",
    };
    Err(Error::invalid(about, errors))
}
