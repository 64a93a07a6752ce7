//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: which webhooks a request meets, what they are told,
//! and what becomes of their answers.

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
use knarr_api::admission::Attributes;
use knarr_api::admission::matching::{Criteria, Rule};
use knarr_api::admission::policy::{Conditions, Input};
use knarr_api::registry::Registered;
use knarr_api::{Error, Kind, Object, k8s_openapi, patch};
use serde_json::{Map, Value, json};

use super::authorizer::Answers;
use super::call::{WebhookClient, call_webhook};
use super::forbidden;
use super::policy::kept;
use crate::pipeline::Ctx;
use crate::seams;
use crate::server::Server;
use crate::user::User;

/// What both kinds of webhooks have.
struct Hook<'a> {
    name: &'a str,
    client: &'a WebhookClientConfig,
    rules: &'a Option<Vec<RuleWithOperations>>,
    equivalent: bool,
    namespace_selector: &'a Option<LabelSelector>,
    object_selector: &'a Option<LabelSelector>,
    prepared: &'a Prepared,
    side_effects: &'a str,
    versions: &'a [String],
    timeout: Duration,
    ignores_failure: bool,
    /// Of mutating ones: called again when others changed the object after it.
    again: bool,
}

/// What is made of a webhook once, for as long as its configuration stays as it is.
pub(super) struct Prepared {
    conditions: Conditions,
    caller: OnceLock<Result<WebhookClient, String>>,
}

impl Prepared {
    fn new(conditions: Option<&Vec<MatchCondition>>) -> Self {
        let texts = conditions.into_iter().flatten().map(|c| c.expression.as_str());
        Prepared {
            conditions: Conditions::of_webhook(texts),
            caller: OnceLock::new(),
        }
    }
}

/// Of each webhook of a configuration.
type AllPrepared = Arc<Vec<Prepared>>;

/// How long a webhook may take that says nothing of it.
const TIMEOUT_SECONDS: i32 = 10;

macro_rules! hook {
    ($hook:expr, $prepared:expr, $again:expr) => {
        Hook {
            name: &$hook.name,
            client: &$hook.client_config,
            rules: &$hook.rules,
            equivalent: $hook.match_policy.as_deref() != Some("Exact"),
            namespace_selector: &$hook.namespace_selector,
            object_selector: &$hook.object_selector,
            prepared: $prepared,
            side_effects: &$hook.side_effects,
            versions: &$hook.admission_review_versions,
            timeout: Duration::from_secs(
                $hook
                    .timeout_seconds
                    .unwrap_or(TIMEOUT_SECONDS)
                    .max(1)
                    .unsigned_abs()
                    .into(),
            ),
            ignores_failure: $hook.failure_policy.as_deref() == Some("Ignore"),
            again: $again,
        }
    };
}

impl<'a> From<(&'a MutatingWebhook, &'a Prepared)> for Hook<'a> {
    fn from((hook, prepared): (&'a MutatingWebhook, &'a Prepared)) -> Self {
        hook!(
            hook,
            prepared,
            hook.reinvocation_policy.as_deref() == Some("IfNeeded")
        )
    }
}

impl<'a> From<(&'a ValidatingWebhook, &'a Prepared)> for Hook<'a> {
    fn from((hook, prepared): (&'a ValidatingWebhook, &'a Prepared)) -> Self {
        hook!(hook, prepared, false)
    }
}

/// Why a webhook does not let a request pass.
enum Refused {
    /// It could not be asked, or did not answer as it should: its failure policy decides.
    Calling(String),
    /// It said no, or it can never be asked this.
    Denied(Box<Error>),
}

/// What a webhook that lets the request pass says.
struct Passed {
    patch: Option<Value>,
    warnings: Vec<String>,
    annotations: Vec<(String, String)>,
}

impl Hook<'_> {
    /// What a failed call comes to.
    fn failed(&self, why: &str) -> Result<(), Error> {
        let said = format!("failed calling webhook {:?}: {why}", self.name);
        if self.ignores_failure {
            tracing::warn!("failing open: {said}");
            return Ok(());
        }
        Err(Error::internal(said))
    }
}

impl Server {
    /// All configurations of a kind, prepared, by name.
    fn configurations<T: Registered>(
        &self,
        prepare: impl Fn(&T) -> Vec<Prepared>,
    ) -> Vec<(Arc<Object>, AllPrepared)> {
        let prepared = |object: Arc<Object>| {
            let prepare = || object.get::<T>().map(&prepare).unwrap_or_default();
            let prepared = kept(&self.policies.webhooks, &object, prepare);
            (object, prepared)
        };
        self.all_of::<T>().into_iter().map(prepared).collect()
    }

    /// The kind as which the webhook is to be told of the request; `None`: not at all.
    async fn meets(
        &self,
        hook: &Hook<'_>,
        attributes: &Attributes,
        user: &User,
    ) -> Result<Option<Kind>, Error> {
        let rules: Vec<Rule<'_>> = hook.rules.iter().flatten().map(Rule::from).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let criteria = Criteria {
            namespace_selector: hook.namespace_selector.as_ref(),
            object_selector: hook.object_selector.as_ref(),
            equivalent: hook.equivalent,
            rules,
            exclude: Vec::new(),
        };
        let matched = criteria.matches(attributes, &|name| self.namespace_labels(name));
        let Some(kind) = matched.map_err(Error::internal)? else {
            return Ok(None);
        };
        let conditions = &hook.prepared.conditions;
        if conditions.is_empty() {
            return Ok(Some(kind));
        }
        let shown = self.in_version(attributes, &kind).await?;
        let request = attributes.request(&kind);
        let held = conditions.hold(&Input {
            object: shown.object.as_ref(),
            old: shown.old.as_ref(),
            request: &request,
            params: None,
            namespace: None,
            authorizer: Arc::new(Answers {
                authorizer: self.authorizer.clone(),
                user: user.clone(),
            }),
            asked: Answers::about(attributes),
        });
        match held {
            Ok(held) => Ok(held.then_some(kind)),
            Err(_) if hook.ignores_failure => Ok(None),
            Err(why) => Err(forbidden(attributes, &why)),
        }
    }

    async fn ask(
        &self,
        hook: &Hook<'_>,
        attributes: &Attributes,
        kind: &Kind,
        mutating: bool,
    ) -> Result<Passed, Refused> {
        if attributes.dry_run && !matches!(hook.side_effects, "None" | "NoneOnDryRun") {
            let why = format!("admission webhook {:?} does not support dry run", hook.name);
            return Err(Refused::Denied(Box::new(Error::bad_request(why))));
        }
        let version = hook
            .versions
            .iter()
            .find(|v| matches!(v.as_str(), "v1" | "v1beta1"));
        let Some(version) = version else {
            return Err(Refused::Calling(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
                    .into(),
            ));
        };
        let shown = self.in_version(attributes, kind).await;
        let shown = shown.map_err(|e| Refused::Denied(Box::new(e)))?;
        let uid = seams::uid(&*self.entropy);
        let mut request = attributes.request(kind);
        request["uid"] = uid.as_str().into();
        request["object"] = shown.object.unwrap_or_default();
        request["oldObject"] = shown.old.unwrap_or_default();
        let api_version = format!("admission.k8s.io/{version}");
        let review = json!({"apiVersion": api_version, "kind": "AdmissionReview", "request": request});
        let caller = &hook.prepared.caller;
        let caller = caller.get_or_init(|| WebhookClient::new(hook.client)).clone();
        let limits = (hook.timeout, Some(format!("timeout={}s", hook.timeout.as_secs())));
        let answer = call_webhook(&self.cache, hook.client, caller, limits, &review)
            .await
            .map_err(|why| Refused::Calling(format!("failed to call webhook: {why}")))?;
        read(hook, &answer, &uid, version, mutating)
    }

    pub(super) async fn judge_by_webhooks(
        &self,
        ctx: &mut Ctx,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let configurations = self.configurations(|c: &ValidatingWebhookConfiguration| {
            let hooks = c.webhooks.iter().flatten();
            hooks
                .map(|h| Prepared::new(h.match_conditions.as_ref()))
                .collect()
        });
        let mut hooks = Vec::new();
        for (object, prepared) in &configurations {
            let configuration = object.get::<ValidatingWebhookConfiguration>();
            let given = configuration.iter().flat_map(|c| c.webhooks.iter().flatten());
            for hook in given.zip(&**prepared).map(Hook::from) {
                if let Some(kind) = self.meets(&hook, attributes, &ctx.user).await? {
                    hooks.push((hook, kind));
                }
            }
        }
        let asked = hooks
            .iter()
            .map(|(hook, kind)| self.ask(hook, attributes, kind, false));
        let answers = join_all(asked).await;
        let mut refused = None;
        for ((hook, _), answer) in hooks.iter().zip(answers) {
            let outcome = match answer {
                Ok(passed) => {
                    passed.tell(ctx, hook);
                    Ok(())
                }
                Err(Refused::Calling(why)) => hook.failed(&why),
                Err(Refused::Denied(error)) => Err(*error),
            };
            if let Err(error) = outcome {
                refused.get_or_insert(error);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    pub(super) async fn mutate_by_webhooks(
        &self,
        ctx: &mut Ctx,
        attributes: &mut Attributes,
    ) -> Result<(), Error> {
        let configurations = self.configurations(|c: &MutatingWebhookConfiguration| {
            let hooks = c.webhooks.iter().flatten();
            hooks
                .map(|h| Prepared::new(h.match_conditions.as_ref()))
                .collect()
        });
        let hooks: Vec<Hook<'_>> = configurations
            .iter()
            .filter_map(|(object, prepared)| Some((object.get::<MutatingWebhookConfiguration>()?, prepared)))
            .flat_map(|(c, prepared)| c.webhooks.iter().flatten().zip(&**prepared))
            .map(Hook::from)
            .collect();
        // What each left behind: whoever wants it is asked again if that is not what it is in the end.
        let mut left: Vec<Option<Option<Value>>> = vec![None; hooks.len()];
        for round in 0..2 {
            for (hook, left) in hooks.iter().zip(&mut left) {
                if round > 0 && !(hook.again && left.as_ref().is_some_and(|l| *l != attributes.object)) {
                    continue;
                }
                let Some(kind) = self.meets(hook, attributes, &ctx.user).await? else {
                    continue;
                };
                match self.ask(hook, attributes, &kind, true).await {
                    Ok(passed) => {
                        passed.tell(ctx, hook);
                        if let Some(patch) = &passed.patch {
                            self.change(hook, attributes, &kind, patch).await?;
                        }
                    }
                    Err(Refused::Calling(why)) => hook.failed(&why)?,
                    Err(Refused::Denied(error)) => return Err(*error),
                }
                *left = Some(attributes.object.clone());
            }
        }
        Ok(())
    }

    /// Applies a webhook's patch to the object as it was shown.
    async fn change(
        &self,
        hook: &Hook<'_>,
        attributes: &mut Attributes,
        kind: &Kind,
        patch: &Value,
    ) -> Result<(), Error> {
        let Some(mut object) = self.in_version(attributes, kind).await?.object else {
            return Err(Error::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name
            )));
        };
        patch::json::apply(&mut object, patch).map_err(|e| Error::internal(e.message()))?;
        let changed = self.in_request_version(attributes, kind, object).await;
        attributes.object = Some(changed.map_err(|why| {
            Error::internal(format!(
                "admission webhook {:?} made something else of the object: {}",
                hook.name,
                why.message()
            ))
        })?);
        Ok(())
    }
}

impl Passed {
    fn tell(&self, ctx: &mut Ctx, hook: &Hook<'_>) {
        for warning in &self.warnings {
            ctx.warn(warning.as_str());
        }
        for (key, value) in &self.annotations {
            ctx.note(format!("{}/{key}", hook.name), value);
        }
    }
}

/// What an answer says, if it is one.
fn read(
    hook: &Hook<'_>,
    answer: &Value,
    uid: &str,
    version: &str,
    mutating: bool,
) -> Result<Passed, Refused> {
    let invalid = |why: String| Refused::Calling(format!("received invalid webhook response: {why}"));
    let response = answer
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
        let (found_version, found_kind) = (text(answer, "apiVersion"), text(answer, "kind"));
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
    let complaint = match (mutating, encoded.as_str(), patch_type) {
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
    if let Some(complaint) = complaint {
        return Err(invalid(complaint));
    }
    if !response
        .get("allowed")
        .and_then(Value::as_bool)
        .unwrap_or_default()
    {
        return Err(Refused::Denied(Box::new(denial(
            hook.name,
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
                Refused::Calling(
                    "received undecodable patch in webhook response: it is no list of operations".into(),
                )
            })?;
            Some(patch).filter(|p| p.as_array().is_some_and(|a| !a.is_empty()))
        }
        (_, other) => return Err(Refused::Calling(format!("unsupported patch type {other:?}"))),
    };
    let empty = Map::new();
    let annotations = response
        .get("auditAnnotations")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let warnings = response.get("warnings").and_then(Value::as_array);
    Ok(Passed {
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

/// The webhook's own refusal, under its name.
fn denial(name: &str, status: Option<&Value>) -> Error {
    let status = status
        .filter(|s| s.is_object())
        .cloned()
        .unwrap_or_else(|| json!({}));
    let mut status: Status = serde_json::from_value(status).unwrap_or_default();
    let by = format!("admission webhook {name:?} denied the request");
    let said = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    status.message = Some(match said(&status.message).or_else(|| said(&status.reason)) {
        Some(why) => format!("{by}: {why}"),
        None => format!("{by} without explanation"),
    });
    if status.code.unwrap_or_default() < 400 {
        status.code = Some(400);
    }
    if matches!(status.status.as_deref(), None | Some("" | "Success")) {
        status.status = Some("Failure".into());
    }
    Error::from(status)
}
