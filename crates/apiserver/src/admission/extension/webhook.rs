//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: which webhooks are called for a request, with which
//! AdmissionReview, and what follows from their responses.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Status};
use knarr_admission::Attributes;
use knarr_admission::matching::{Criteria, Rule};
use knarr_admission::policy::{Input, MatchConditions};
use knarr_api::registry::Registered;
use knarr_api::{Kind, Object, k8s_openapi, patch};
use knarr_apimachinery::Error;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::authorizer::UserAuthorizer;
use super::compiled::compiled;
use super::{Admission, forbidden};
use crate::request::Ctx;
use crate::seams;
use crate::user::User;
use crate::webhook_client::{ClientError, WebhookClient, call_webhook};

/// A mutating or validating webhook.
struct Webhook<'a> {
    name: &'a str,
    client: &'a WebhookClientConfig,
    rules: &'a Option<Vec<RuleWithOperations>>,
    equivalent: bool,
    namespace_selector: &'a Option<LabelSelector>,
    object_selector: &'a Option<LabelSelector>,
    compiled: &'a CompiledWebhook,
    side_effects: &'a str,
    versions: &'a [String],
    timeout: Duration,
    ignores_failure: bool,
    /// Of mutating webhooks: called once more if the object was changed after it (reinvocationPolicy IfNeeded).
    reinvokes: bool,
}

/// A webhook's compiled match conditions and its client, for as long as its configuration does not change.
pub(super) struct CompiledWebhook {
    conditions: MatchConditions,
    client: OnceLock<Result<WebhookClient, ClientError>>,
}

impl CompiledWebhook {
    fn new(conditions: Option<&Vec<MatchCondition>>) -> Self {
        let texts = conditions.into_iter().flatten().map(|c| c.expression.as_str());
        CompiledWebhook {
            conditions: MatchConditions::of_webhook(texts),
            client: OnceLock::new(),
        }
    }
}

/// One per webhook of a configuration.
type CompiledWebhooks = Arc<Vec<CompiledWebhook>>;

/// The default of `timeoutSeconds`.
const TIMEOUT_SECONDS: i32 = 10;

macro_rules! webhook {
    ($webhook:expr, $compiled:expr, $reinvokes:expr) => {
        Webhook {
            name: &$webhook.name,
            client: &$webhook.client_config,
            rules: &$webhook.rules,
            equivalent: $webhook.match_policy.as_deref() != Some("Exact"),
            namespace_selector: &$webhook.namespace_selector,
            object_selector: &$webhook.object_selector,
            compiled: $compiled,
            side_effects: &$webhook.side_effects,
            versions: &$webhook.admission_review_versions,
            timeout: Duration::from_secs(
                $webhook
                    .timeout_seconds
                    .unwrap_or(TIMEOUT_SECONDS)
                    .max(1)
                    .unsigned_abs()
                    .into(),
            ),
            ignores_failure: $webhook.failure_policy.as_deref() == Some("Ignore"),
            reinvokes: $reinvokes,
        }
    };
}

impl<'a> From<(&'a MutatingWebhook, &'a CompiledWebhook)> for Webhook<'a> {
    fn from((webhook, compiled): (&'a MutatingWebhook, &'a CompiledWebhook)) -> Self {
        webhook!(
            webhook,
            compiled,
            webhook.reinvocation_policy.as_deref() == Some("IfNeeded")
        )
    }
}

impl<'a> From<(&'a ValidatingWebhook, &'a CompiledWebhook)> for Webhook<'a> {
    fn from((webhook, compiled): (&'a ValidatingWebhook, &'a CompiledWebhook)) -> Self {
        webhook!(webhook, compiled, false)
    }
}

/// Why a webhook call does not allow the request.
enum WebhookError {
    /// The call failed, or the response is invalid: the failure policy decides.
    CallFailed(String),
    /// The webhook denied the request, or may not be called for it.
    Denied(Box<Error>),
}

/// The response of a webhook that allows the request.
struct AllowedResponse {
    patch: Option<Value>,
    warnings: Vec<String>,
    annotations: Vec<(String, String)>,
}

impl Webhook<'_> {
    /// Applies the failure policy to a failed call.
    fn apply_failure_policy(&self, why: &str) -> Result<(), Error> {
        let message = format!("failed calling webhook {:?}: {why}", self.name);
        if self.ignores_failure {
            tracing::warn!("failing open: {message}");
            return Ok(());
        }
        Err(Error::internal(message))
    }
}

impl Admission {
    /// All configurations of a kind with their compiled webhooks, by name.
    fn configurations<T: Registered>(
        &self,
        prepare: impl Fn(&T) -> Vec<CompiledWebhook>,
    ) -> Vec<(Arc<Object>, CompiledWebhooks)> {
        let compiled = |object: Arc<Object>| {
            let prepare = || object.get::<T>().map(&prepare).unwrap_or_default();
            let compiled = compiled(&self.policies.webhooks, &object, prepare);
            (object, compiled)
        };
        self.list_all::<T>().into_iter().map(compiled).collect()
    }

    /// The kind in which the request is sent to the webhook; `None` if it is not called (ShouldCallHook).
    async fn should_call(
        &self,
        webhook: &Webhook<'_>,
        attributes: &Attributes,
        user: &User,
    ) -> Result<Option<Kind>, Error> {
        let rules: Vec<Rule<'_>> = webhook.rules.iter().flatten().map(Rule::from).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let criteria = Criteria {
            namespace_selector: webhook.namespace_selector.as_ref(),
            object_selector: webhook.object_selector.as_ref(),
            equivalent: webhook.equivalent,
            rules,
            exclude: Vec::new(),
        };
        let matched = criteria.matches(attributes, &|name| self.namespace_labels(name));
        let Some(kind) = matched.map_err(Error::internal)? else {
            return Ok(None);
        };
        let conditions = &webhook.compiled.conditions;
        if conditions.is_empty() {
            return Ok(Some(kind));
        }
        let converted = self.in_version(attributes, &kind).await?;
        let request = attributes.request(&kind);
        let all_match = conditions.matches(&Input {
            object: converted.object.as_ref(),
            old: converted.old.as_ref(),
            request: &request,
            params: None,
            namespace: None,
            authorizer: Arc::new(UserAuthorizer {
                authorizer: self.authorizer.clone(),
                user: user.clone(),
            }),
            request_resource: UserAuthorizer::request_resource(attributes),
        });
        match all_match {
            Ok(all_match) => Ok(all_match.then_some(kind)),
            Err(_) if webhook.ignores_failure => Ok(None),
            Err(why) => Err(forbidden(attributes, &why.to_string())),
        }
    }

    /// Calls a webhook, and counts how long that took.
    async fn call(
        &self,
        webhook: &Webhook<'_>,
        attributes: &Attributes,
        kind: &Kind,
        mutating: bool,
    ) -> Result<AllowedResponse, WebhookError> {
        let begun = Instant::now();
        let response = self.response_of(webhook, attributes, kind, mutating).await;
        let rejected = match &response {
            Ok(_) => false,
            Err(WebhookError::CallFailed(_)) => !webhook.ignores_failure,
            Err(WebhookError::Denied(_)) => true,
        };
        let of = if mutating { "admit" } else { "validating" };
        let decision = (attributes.operation, rejected);
        self.metrics.webhook(webhook.name, of, decision, begun.elapsed());
        response
    }

    async fn response_of(
        &self,
        webhook: &Webhook<'_>,
        attributes: &Attributes,
        kind: &Kind,
        mutating: bool,
    ) -> Result<AllowedResponse, WebhookError> {
        if attributes.dry_run && !matches!(webhook.side_effects, "None" | "NoneOnDryRun") {
            let why = format!("admission webhook {:?} does not support dry run", webhook.name);
            return Err(WebhookError::Denied(Box::new(Error::bad_request(why))));
        }
        let version = webhook
            .versions
            .iter()
            .find(|v| matches!(v.as_str(), "v1" | "v1beta1"));
        let Some(version) = version else {
            return Err(WebhookError::CallFailed(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
                    .into(),
            ));
        };
        let converted = self.in_version(attributes, kind).await;
        let converted = converted.map_err(|e| WebhookError::Denied(Box::new(e)))?;
        let uid = seams::uid(&*self.entropy);
        let mut request = attributes.request(kind);
        request["uid"] = uid.as_str().into();
        request["object"] = converted.object.unwrap_or_default();
        request["oldObject"] = converted.old.unwrap_or_default();
        let api_version = format!("admission.k8s.io/{version}");
        let review = json!({"apiVersion": api_version, "kind": "AdmissionReview", "request": request});
        let client = &webhook.compiled.client;
        let client = client.get_or_init(|| WebhookClient::new(webhook.client)).clone();
        let limits = (
            webhook.timeout,
            Some(format!("timeout={}s", webhook.timeout.as_secs())),
        );
        let review = call_webhook(&self.cache, webhook.client, client, limits, &review)
            .await
            .map_err(|why| WebhookError::CallFailed(format!("failed to call webhook: {why}")))?;
        verify_response(webhook, &review, &uid, version, mutating)
    }

    pub(super) async fn validate_by_webhooks(
        &self,
        ctx: &mut Ctx,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let configurations = self.configurations(|c: &ValidatingWebhookConfiguration| {
            let webhooks = c.webhooks.iter().flatten();
            webhooks
                .map(|h| CompiledWebhook::new(h.match_conditions.as_ref()))
                .collect()
        });
        let mut webhooks = Vec::new();
        for (object, compiled) in &configurations {
            let configuration = object.get::<ValidatingWebhookConfiguration>();
            let given = configuration.iter().flat_map(|c| c.webhooks.iter().flatten());
            for webhook in given.zip(&**compiled).map(Webhook::from) {
                if let Some(kind) = self.should_call(&webhook, attributes, &ctx.user).await? {
                    webhooks.push((webhook, kind));
                }
            }
        }
        let calls = webhooks
            .iter()
            .map(|(webhook, kind)| self.call(webhook, attributes, kind, false));
        let responses = join_all(calls).await;
        let mut first_error = None;
        for ((webhook, _), response) in webhooks.iter().zip(responses) {
            let outcome = match response {
                Ok(allowed) => {
                    allowed.record(ctx, webhook);
                    Ok(())
                }
                Err(WebhookError::CallFailed(why)) => webhook.apply_failure_policy(&why),
                Err(WebhookError::Denied(error)) => Err(*error),
            };
            if let Err(error) = outcome {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    pub(super) async fn mutate_by_webhooks(
        &self,
        ctx: &mut Ctx,
        attributes: &mut Attributes,
    ) -> Result<(), Error> {
        let configurations = self.configurations(|c: &MutatingWebhookConfiguration| {
            let webhooks = c.webhooks.iter().flatten();
            webhooks
                .map(|h| CompiledWebhook::new(h.match_conditions.as_ref()))
                .collect()
        });
        let webhooks: Vec<Webhook<'_>> = configurations
            .iter()
            .filter_map(|(object, compiled)| Some((object.get::<MutatingWebhookConfiguration>()?, compiled)))
            .flat_map(|(c, compiled)| c.webhooks.iter().flatten().zip(&**compiled))
            .map(Webhook::from)
            .collect();
        // The object as each webhook left it: with reinvocationPolicy IfNeeded it is called again if the object differs from
        // that in the end.
        let mut left: Vec<Option<Option<Value>>> = vec![None; webhooks.len()];
        for round in 0..2 {
            for (webhook, left) in webhooks.iter().zip(&mut left) {
                if round > 0 && !(webhook.reinvokes && left.as_ref().is_some_and(|l| *l != attributes.object))
                {
                    continue;
                }
                let Some(kind) = self.should_call(webhook, attributes, &ctx.user).await? else {
                    continue;
                };
                match self.call(webhook, attributes, &kind, true).await {
                    Ok(allowed) => {
                        allowed.record(ctx, webhook);
                        if let Some(patch) = &allowed.patch {
                            self.apply_patch(webhook, attributes, &kind, patch).await?;
                        }
                    }
                    Err(WebhookError::CallFailed(why)) => webhook.apply_failure_policy(&why)?,
                    Err(WebhookError::Denied(error)) => return Err(*error),
                }
                *left = Some(attributes.object.clone());
            }
        }
        Ok(())
    }

    /// Applies a webhook's patch to the object in the version that was sent to it.
    async fn apply_patch(
        &self,
        webhook: &Webhook<'_>,
        attributes: &mut Attributes,
        kind: &Kind,
        patch: &Value,
    ) -> Result<(), Error> {
        let Some(mut object) = self.in_version(attributes, kind).await?.object else {
            return Err(Error::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                webhook.name
            )));
        };
        patch::json::apply(&mut object, patch).map_err(|e| Error::internal(e.message()))?;
        let changed = self.in_request_version(attributes, kind, object).await;
        attributes.object = Some(changed.map_err(|why| {
            Error::internal(format!(
                "admission webhook {:?} changed the object to one that cannot be converted: {}",
                webhook.name,
                why.message()
            ))
        })?);
        Ok(())
    }
}

impl AllowedResponse {
    fn record(&self, ctx: &mut Ctx, webhook: &Webhook<'_>) {
        for warning in &self.warnings {
            ctx.warn(warning.as_str());
        }
        for (key, value) in &self.annotations {
            ctx.note(format!("{}/{key}", webhook.name), value);
        }
    }
}

/// Verifies and reads a webhook's response (VerifyAdmissionResponse).
fn verify_response(
    webhook: &Webhook<'_>,
    review: &Value,
    uid: &str,
    version: &str,
    mutating: bool,
) -> Result<AllowedResponse, WebhookError> {
    let invalid = |why: String| WebhookError::CallFailed(format!("received invalid webhook response: {why}"));
    let response = review
        .get("response")
        .filter(|r| r.is_object())
        .ok_or_else(|| invalid("webhook response was absent".into()))?;
    let text = |value: &Value, field: &str| {
        value
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_string()
    };
    if version == "v1" {
        let found = text(response, "uid");
        if found != uid {
            return Err(invalid(format!("expected response.uid={uid:?}, got {found:?}")));
        }
        let (found_version, found_kind) = (text(review, "apiVersion"), text(review, "kind"));
        if found_version != "admission.k8s.io/v1" || found_kind != "AdmissionReview" {
            return Err(invalid(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {found_version}, Kind={found_kind}"
            )));
        }
    }
    let (encoded, patch_type) = (
        text(response, "patch"),
        response.get("patchType").and_then(Value::as_str),
    );
    let invalidity = match (mutating, encoded.as_str(), patch_type) {
        (false, patch, _) if !patch.is_empty() => {
            Some("validating webhook may not return response.patch".into())
        }
        (false, _, Some(_)) => Some("validating webhook may not return response.patchType".into()),
        (true, "", Some(_)) => Some("webhook returned response.patchType but not response.patch".into()),
        (true, patch, None) if !patch.is_empty() && version == "v1" => {
            Some("webhook returned response.patch but not response.patchType".into())
        }
        (true, _, Some("")) => Some("webhook returned invalid response.patchType of \"\"".to_string()),
        _ => None,
    };
    if let Some(invalidity) = invalidity {
        return Err(invalid(invalidity));
    }
    if !response
        .get("allowed")
        .and_then(Value::as_bool)
        .unwrap_or_default()
    {
        return Err(WebhookError::Denied(Box::new(denial_error(
            webhook.name,
            response.get("status"),
        ))));
    }
    let patch = match (encoded.as_str(), patch_type.unwrap_or("JSONPatch")) {
        ("", _) => None,
        (encoded, "JSONPatch") => {
            let decoded = STANDARD.decode(encoded).ok();
            let patch: Option<Value> = decoded.and_then(|json| serde_json::from_slice(&json).ok());
            let patch = patch.filter(Value::is_array);
            let patch = patch.ok_or_else(|| {
                WebhookError::CallFailed(
                    "received undecodable patch in webhook response: expected a JSON array of operations in base64".into(),
                )
            })?;
            Some(patch).filter(|p| p.as_array().is_some_and(|a| !a.is_empty()))
        }
        (_, other) => {
            return Err(WebhookError::CallFailed(format!(
                "unsupported patch type {other:?}"
            )));
        }
    };
    let empty = Map::new();
    let annotations = response
        .get("auditAnnotations")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let warnings = response.get("warnings").and_then(Value::as_array);
    Ok(AllowedResponse {
        patch,
        warnings: warnings
            .into_iter()
            .flatten()
            .filter_map(|w| w.as_str().map(str::to_string))
            .collect(),
        annotations: annotations
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())))
            .collect(),
    })
}

/// The error for a request that the webhook denied (ToStatusErr).
fn denial_error(name: &str, status: Option<&Value>) -> Error {
    let status = status
        .filter(|s| s.is_object())
        .cloned()
        .unwrap_or_else(|| json!({}));
    let mut status: Status = serde_json::from_value(status).unwrap_or_default();
    let by = format!("admission webhook {name:?} denied the request");
    let non_empty = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    status.message = Some(
        match non_empty(&status.message).or_else(|| non_empty(&status.reason)) {
            Some(why) => format!("{by}: {why}"),
            None => format!("{by} without explanation"),
        },
    );
    if status.code.unwrap_or_default() < 400 {
        status.code = Some(400);
    }
    if matches!(status.status.as_deref(), None | Some("" | "Success")) {
        status.status = Some("Failure".into());
    }
    Error::from(status)
}
