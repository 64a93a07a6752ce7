//! May somebody do that: SubjectAccessReview, its Self and Local kinds, and SelfSubjectRulesReview.

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, LocalSubjectAccessReview, NonResourceAttributes,
    NonResourceRule, ResourceAttributes, ResourceRule, SelfSubjectAccessReview, SelfSubjectRulesReview,
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus, SubjectRulesReviewStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::error::About;
use knarr_api::field::{Errors, Path};
use knarr_api::selector::label;
use knarr_api::{Error, k8s_openapi, meta, names};
use serde_json::{Value, json};

use super::review::document;
use crate::authz::Attributes;
use crate::pipeline::{Ctx, Target};
use crate::server::Server;
use crate::user::User;

impl Server {
    pub(super) async fn subject_access(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut review: SubjectAccessReview,
    ) -> Result<Value, Error> {
        let mut mistakes = check_subject(&review.spec);
        check_metadata(&review.metadata, "must be empty", &mut mistakes);
        refuse(&mistakes)?;
        self.judge_review(ctx, target, &review).await?;
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
        let mut mistakes = check_subject(spec);
        let bare = ObjectMeta {
            namespace: None,
            ..review.metadata.clone()
        };
        check_metadata(&bare, "must be empty except for namespace", &mut mistakes);
        if let Some(resource) = &spec.resource_attributes
            && resource.namespace.as_deref().unwrap_or("") != namespace
        {
            mistakes.invalid(
                &Path::new("spec").child("resourceAttributes").child("namespace"),
                resource.namespace.as_deref().unwrap_or(""),
                "must match metadata.namespace",
            );
        }
        if let Some(path) = &spec.non_resource_attributes {
            mistakes.invalid(
                &Path::new("spec").child("nonResourceAttributes"),
                shown(path),
                "disallowed on this kind of request",
            );
        }
        refuse(&mistakes)?;
        self.judge_review(ctx, target, &review).await?;
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
        let mut mistakes = Errors::new();
        check_attributes(resource.as_ref(), path.as_ref(), &mut mistakes);
        check_selectors(resource.as_ref(), &mut mistakes);
        check_metadata(&review.metadata, "must be empty", &mut mistakes);
        refuse(&mistakes)?;
        self.judge_review(ctx, target, &review).await?;
        review.status = Some(self.access(&ctx.user, resource.as_ref(), path.as_ref()));
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
        self.judge_review(ctx, target, &review).await?;
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
        // The answer says nothing of what was asked, as kube-apiserver's.
        document(&SelfSubjectRulesReview {
            status: Some(status),
            ..SelfSubjectRulesReview::default()
        })
    }

    fn status_of(&self, spec: &SubjectAccessReviewSpec) -> SubjectAccessReviewStatus {
        let mut who = User::new(
            spec.user.clone().unwrap_or_default(),
            spec.groups.clone().unwrap_or_default(),
        );
        who.uid = spec.uid.clone().unwrap_or_default();
        who.extra = spec.extra.clone().unwrap_or_default();
        self.access(
            &who,
            spec.resource_attributes.as_ref(),
            spec.non_resource_attributes.as_ref(),
        )
    }

    /// Of what has been checked.
    fn access(
        &self,
        user: &User,
        resource: Option<&ResourceAttributes>,
        path: Option<&NonResourceAttributes>,
    ) -> SubjectAccessReviewStatus {
        fn of(text: &Option<String>) -> &str {
            text.as_deref().unwrap_or("")
        }
        let mut problems = Vec::new();
        let fields = resource.and_then(|r| r.field_selector.as_ref());
        let fields = fields
            .map(|s| field_selector(s, &mut problems))
            .unwrap_or_default();
        let labels = resource.and_then(|r| r.label_selector.as_ref());
        let labels = labels
            .map(|s| label_selector(s, &mut problems))
            .unwrap_or_default();
        let attributes = match (resource, path) {
            (Some(r), _) => Attributes {
                verb: of(&r.verb),
                group: of(&r.group),
                resource: of(&r.resource),
                subresource: of(&r.subresource),
                namespace: of(&r.namespace),
                name: of(&r.name),
                path: None,
                field_selector: &fields,
                label_selector: &labels,
            },
            (None, Some(p)) => Attributes {
                verb: of(&p.verb),
                path: Some(of(&p.path)),
                ..Attributes::default()
            },
            (None, None) => Attributes::default(),
        };
        let decision = self.authorizer.explain(user, &attributes);
        SubjectAccessReviewStatus {
            allowed: decision.allowed,
            reason: Some(decision.reason).filter(|r| !r.is_empty()),
            evaluation_error: (!problems.is_empty()).then(|| problems.join("; ")),
            ..SubjectAccessReviewStatus::default()
        }
    }
}

/// The selector in the query string's syntax; what cannot be said in it is left out, which asks for more.
fn field_selector(selector: &FieldSelectorAttributes, problems: &mut Vec<String>) -> String {
    let ignored = |partially: &str| {
        format!("spec.resourceAttributes.fieldSelector {partially}ignored due to parse error")
    };
    if let Some(raw) = selector.raw_selector.as_deref().filter(|r| !r.is_empty()) {
        let fine = raw.split(',').all(|term| term.is_empty() || term.contains('='));
        if !fine {
            problems.push(ignored(""));
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
        problems.push(ignored(if terms.is_empty() { "" } else { "partially " }));
    }
    terms.join(",")
}

/// The same of labels.
fn label_selector(selector: &LabelSelectorAttributes, problems: &mut Vec<String>) -> String {
    let ignored = |partially: &str| {
        format!("spec.resourceAttributes.labelSelector {partially}ignored due to parse error")
    };
    if let Some(raw) = selector.raw_selector.as_deref().filter(|r| !r.is_empty()) {
        if label::Selector::parse(raw).is_err() {
            problems.push(ignored(""));
            return String::new();
        }
        return raw.to_string();
    }
    let all = selector.requirements.as_deref().unwrap_or_default();
    let terms: Vec<String> = all
        .iter()
        .filter_map(|r| {
            use label::Operator;
            let values = r.values.clone().unwrap_or_default();
            let (operator, term) = match r.operator.as_str() {
                "In" => (Operator::In, format!("{} in ({})", r.key, values.join(","))),
                "NotIn" => (Operator::NotIn, format!("{} notin ({})", r.key, values.join(","))),
                "Exists" => (Operator::Exists, r.key.clone()),
                "DoesNotExist" => (Operator::DoesNotExist, format!("!{}", r.key)),
                _ => return None,
            };
            label::Requirement::new(&r.key, operator, values)
                .is_ok()
                .then_some(term)
        })
        .collect();
    if terms.len() < all.len() {
        problems.push(ignored(if terms.is_empty() { "" } else { "partially " }));
    }
    terms.join(",")
}

fn check_subject(spec: &SubjectAccessReviewSpec) -> Errors {
    let mut mistakes = Errors::new();
    let resource = spec.resource_attributes.as_ref();
    check_attributes(resource, spec.non_resource_attributes.as_ref(), &mut mistakes);
    let user = spec.user.as_deref().unwrap_or("");
    if user.is_empty() && spec.groups.as_ref().is_none_or(Vec::is_empty) {
        mistakes.invalid(
            &Path::new("spec").child("user"),
            user,
            "at least one of user or group must be specified",
        );
    }
    check_selectors(resource, &mut mistakes);
    mistakes
}

/// Attributes as refusals show them.
fn shown(path: &NonResourceAttributes) -> Value {
    json!({"Path": path.path.as_deref().unwrap_or(""), "Verb": path.verb.as_deref().unwrap_or("")})
}

fn check_attributes(
    resource: Option<&ResourceAttributes>,
    path: Option<&NonResourceAttributes>,
    mistakes: &mut Errors,
) {
    match (resource, path) {
        (Some(_), Some(path)) => mistakes.invalid(
            &Path::new("spec").child("nonResourceAttributes"),
            shown(path),
            "cannot be specified in combination with resourceAttributes",
        ),
        (None, None) => mistakes.invalid(
            &Path::new("spec").child("resourceAttributes"),
            json!(null),
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
}

fn check_selectors(resource: Option<&ResourceAttributes>, mistakes: &mut Errors) {
    let base = Path::new("spec").child("resourceAttributes");
    let Some(resource) = resource else { return };
    if let Some(s) = &resource.field_selector {
        let requirements = s.requirements.iter().flatten();
        let parts = requirements.map(|r| requirement(&r.key, &r.operator, &r.values));
        check_selector(
            &base.child("fieldSelector"),
            s.raw_selector.as_deref(),
            parts.clone().collect(),
            mistakes,
        );
        for (i, (key, ..)) in parts.enumerate() {
            if key.is_empty() {
                let at = base.child("fieldSelector").child("requirements").index(i);
                mistakes.required(&at.child("key"), "must be specified");
            }
        }
    }
    if let Some(s) = &resource.label_selector {
        let requirements = s.requirements.iter().flatten();
        let parts = requirements.map(|r| requirement(&r.key, &r.operator, &r.values));
        let at = base.child("labelSelector");
        check_selector(&at, s.raw_selector.as_deref(), parts.clone().collect(), mistakes);
        for (i, (key, _, values)) in parts.enumerate() {
            let at = at.child("requirements").index(i);
            mistakes.extend(meta::label_name(key, &at.child("key")));
            for (j, value) in values.iter().enumerate() {
                for words in names::label_value(value) {
                    mistakes.invalid(&at.child("values").index(j), value, words);
                }
            }
        }
    }
}

/// A field's or a label's: key, operator, values.
fn requirement<'a>(
    key: &'a str,
    operator: &'a str,
    values: &'a Option<Vec<String>>,
) -> (&'a str, &'a str, &'a [String]) {
    (key, operator, values.as_deref().unwrap_or_default())
}

/// Each requirement: key, operator, values.
fn check_selector(
    at: &Path,
    raw: Option<&str>,
    requirements: Vec<(&str, &str, &[String])>,
    mistakes: &mut Errors,
) {
    let raw = raw.unwrap_or("");
    if !raw.is_empty() && !requirements.is_empty() {
        mistakes.invalid(
            &at.child("rawSelector"),
            raw,
            "may not specified at the same time as requirements",
        );
    }
    if raw.is_empty() && requirements.is_empty() {
        mistakes.required(
            &at.child("requirements"),
            format!("when {at} is specified, requirements or rawSelector is required"),
        );
    }
    for (i, (_, operator, values)) in requirements.into_iter().enumerate() {
        let at = at.child("requirements").index(i);
        match operator {
            "In" | "NotIn" if values.is_empty() => mistakes.required(
                &at.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => mistakes.forbidden(
                &at.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            _ => {}
        }
    }
}

fn check_metadata(meta: &ObjectMeta, words: &str, mistakes: &mut Errors) {
    let bare = ObjectMeta {
        managed_fields: None,
        ..meta.clone()
    };
    if bare != ObjectMeta::default() {
        let value = serde_json::to_value(meta).unwrap_or_default();
        mistakes.invalid(&Path::new("metadata"), value, words);
    }
}

/// Kubernetes names no kind here.
fn refuse(mistakes: &Errors) -> Result<(), Error> {
    if mistakes.is_empty() {
        return Ok(());
    }
    let about = About {
        group: "authorization.k8s.io",
        resource: "",
        name: "",
    };
    Err(Error::invalid(about, mistakes))
}
