//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: which of them a request meets, through which binding and with
//! which parameters, and what becomes of their judgement.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::admission::Attributes;
use knarr_api::admission::matching::Criteria;
use knarr_api::admission::policy::{Input, MutatingPolicy, ValidatingPolicy};
use knarr_api::cel::Authorizes;
use knarr_api::registry::{self, Registered};
use knarr_api::selector::label::Selector;
use knarr_api::{Error, Kind, Object, k8s_openapi};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::authorizer::Answers;
use super::forbidden;
use super::webhook::Prepared;
use crate::cache::change::Filter;
use crate::pipeline::Ctx;
use crate::server::Server;
use crate::user::User;

/// What was read of policies and webhooks.
#[derive(Default)]
pub(crate) struct Policies {
    validating: Kept<ValidatingPolicy>,
    mutating: Kept<MutatingPolicy>,
    /// Of webhooks' configurations.
    pub(super) webhooks: Kept<Vec<Prepared>>,
}

/// By uid, each with the revision it was read at.
type Kept<T> = Mutex<HashMap<String, (u64, Arc<T>)>>;

/// How many of a kind are kept read; more are read again for each request.
const KEPT: usize = 1000;

pub(super) fn kept<T>(all: &Kept<T>, object: &Object, read: impl FnOnce() -> T) -> Arc<T> {
    if let Some((revision, policy)) = all.lock().get(object.uid())
        && *revision == object.revision()
    {
        return policy.clone();
    }
    let policy = Arc::new(read());
    let mut all = all.lock();
    if all.len() >= KEPT {
        all.clear();
    }
    all.insert(object.uid().to_string(), (object.revision(), policy.clone()));
    policy
}

/// A request that is denied: what is said, and under which reason.
struct Denied {
    message: String,
    reason: String,
}

/// The longest value of an audit annotation, in bytes.
const ANNOTATION_MAX_BYTES: usize = 10 * 1024;

impl Server {
    pub(super) fn all_of<T: Registered>(&self) -> Vec<Arc<Object>> {
        let kind = T::kind_of();
        let everything = Filter::everything(kind, "");
        self.cache
            .of(kind)
            .map(|cache| cache.list(&everything))
            .unwrap_or_default()
    }

    fn criteria_match(
        &self,
        resources: Option<&MatchResources>,
        attributes: &Attributes,
    ) -> Result<Option<Kind>, String> {
        let criteria = resources.map(Criteria::from).unwrap_or_default();
        criteria.matches(attributes, &|name| self.namespace_labels(name))
    }

    /// The parameters a binding hands its policy; `None` stands for none.
    async fn params(
        &self,
        kind: Option<&ParamKind>,
        reference: Option<&ParamRef>,
        attributes: &Attributes,
    ) -> Result<Vec<Option<Value>>, String> {
        let (Some(wanted), Some(reference)) = (kind, reference) else {
            return Ok(vec![None]);
        };
        let (version, name) = (
            wanted.api_version.as_deref().unwrap_or_default(),
            wanted.kind.as_deref().unwrap_or_default(),
        );
        let served = self.cache.served();
        let Some(kind) = served.by_kind(version, name) else {
            return Err(format!(
                "paramKind kind `&ParamKind{{APIVersion:{version},Kind:{name},}}` not known"
            ));
        };
        let given = reference.namespace.as_deref().unwrap_or_default();
        let namespace = match (kind.namespaced(), given) {
            (false, "") => "",
            (false, _) => {
                return Err(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into(),
                );
            }
            (true, "") if attributes.namespace.is_empty() || attributes.kind == registry::NAMESPACE => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .into(),
                );
            }
            (true, "") => &attributes.namespace,
            (true, given) => given,
        };
        let mut found: Vec<Arc<Object>> = match (reference.name.as_deref(), &reference.selector) {
            (Some(name), _) if !name.is_empty() => {
                self.cache.get(&kind, namespace, name).into_iter().collect()
            }
            (_, Some(selector)) => {
                let selector = Selector::from_label_selector(selector)?;
                let filter = Filter::everything(&kind, namespace);
                let mut all = self.cache.of(&kind).map(|c| c.list(&filter)).unwrap_or_default();
                all.retain(|o| selector.matches(o.metadata().labels.as_ref()));
                all
            }
            _ => return Err("one of name or selector must be provided".into()),
        };
        if found.is_empty() && reference.parameter_not_found_action.as_deref() == Some("Deny") {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        let converted = self.converter.all(&mut found, &kind).await;
        converted.map_err(|e| e.message().to_string())?;
        let params = found
            .iter()
            .map(|object| serde_json::from_slice(object.json()).map(Some));
        params.collect::<Result<_, _>>().map_err(|e| e.to_string())
    }

    fn answers(&self, user: &User) -> Arc<dyn Authorizes> {
        Arc::new(Answers {
            authorizer: self.authorizer.clone(),
            user: user.clone(),
        })
    }

    pub(super) async fn judge_by_policies(
        &self,
        ctx: &mut Ctx,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let bindings = self.all_of::<ValidatingAdmissionPolicyBinding>();
        if bindings.is_empty() {
            return Ok(());
        }
        let namespace = self.namespace_object(attributes);
        let authorizer = self.answers(&ctx.user);
        let mut denied: Vec<Denied> = Vec::new();
        for object in self.all_of::<ValidatingAdmissionPolicy>() {
            let Some(policy) = object.get::<ValidatingAdmissionPolicy>() else {
                continue;
            };
            let Some(spec) = &policy.spec else { continue };
            let fails = spec.failure_policy.as_deref() != Some("Ignore");
            let name = object.name();
            let broken = |binding: Option<&str>, why: String| {
                fails.then(|| {
                    let message = match binding {
                        None => format!(
                            "ValidatingAdmissionPolicy '{name}' denied request: failed to configure policy: {why}"
                        ),
                        Some(binding) => format!(
                            "ValidatingAdmissionPolicy '{name}' with binding '{binding}' denied request: \
                             failed to configure binding: {why}"
                        ),
                    };
                    Denied {
                        message,
                        reason: String::new(),
                    }
                })
            };
            let matched = match self.criteria_match(spec.match_constraints.as_ref(), attributes) {
                Ok(Some(kind)) => kind,
                Ok(None) => continue,
                Err(why) => {
                    denied.extend(broken(None, why));
                    continue;
                }
            };
            let read = kept(&self.policies.validating, &object, || {
                ValidatingPolicy::read(spec)
            });
            let mut annotations: Vec<(String, Vec<String>)> = Vec::new();
            for bound in &bindings {
                let Some(binding) = bound.get::<ValidatingAdmissionPolicyBinding>() else {
                    continue;
                };
                if binding.spec.policy_name != name {
                    continue;
                }
                let resources = binding.spec.match_resources.as_ref();
                match self.criteria_match(resources, attributes) {
                    Ok(Some(_)) => {}
                    Ok(None) => continue,
                    Err(why) => {
                        denied.extend(broken(Some(bound.name()), why));
                        continue;
                    }
                }
                let reference = binding.spec.param_ref.as_ref();
                let params = match self.params(spec.param_kind.as_ref(), reference, attributes).await {
                    Ok(params) => params,
                    Err(why) => {
                        denied.extend(broken(Some(bound.name()), why));
                        continue;
                    }
                };
                let shown = match self.in_version(attributes, &matched).await {
                    Ok(shown) => shown,
                    Err(why) => {
                        denied.extend(broken(Some(bound.name()), why.message().to_string()));
                        continue;
                    }
                };
                let request = attributes.request(&matched);
                for params in &params {
                    let judged = read.judge(&Input {
                        object: shown.object.as_ref(),
                        old: shown.old.as_ref(),
                        request: &request,
                        params: params.as_ref(),
                        namespace: namespace.as_ref(),
                        authorizer: authorizer.clone(),
                        asked: Answers::about(attributes),
                    });
                    let by = format!(
                        "ValidatingAdmissionPolicy '{name}' with binding '{}'",
                        bound.name()
                    );
                    for denial in judged.denials {
                        for action in &binding.spec.validation_actions {
                            match action.as_str() {
                                "Deny" => denied.push(Denied {
                                    message: format!("{by} denied request: {}", denial.message),
                                    reason: denial.reason.clone(),
                                }),
                                "Warn" => ctx.warn(format!("Validation failed for {by}: {}", denial.message)),
                                "Audit" => {
                                    let told = json!([{"message": denial.message, "policy": name, "binding": bound.name(),
                                        "expressionIndex": denial.index, "validationActions": binding.spec.validation_actions}]);
                                    ctx.note(
                                        "validation.policy.admission.k8s.io/validation_failure",
                                        &told.to_string(),
                                    );
                                }
                                _ => {}
                            }
                        }
                    }
                    for why in judged.broken_annotations {
                        denied.push(Denied {
                            message: format!("{by} denied request: {why}"),
                            reason: String::new(),
                        });
                    }
                    for (key, value) in judged.annotations {
                        let value: String = value.chars().take(ANNOTATION_MAX_BYTES).collect();
                        match annotations.iter_mut().find(|(k, _)| *k == key) {
                            Some((_, values)) if values.contains(&value) => {}
                            Some((_, values)) => values.push(value),
                            None => annotations.push((key, vec![value])),
                        }
                    }
                }
            }
            for (key, values) in annotations {
                ctx.note(format!("{name}/{key}"), &values.join(", "));
            }
        }
        match denied.into_iter().next() {
            None => Ok(()),
            Some(first) => Err(refusal(attributes, &first)),
        }
    }

    pub(super) async fn mutate_by_policies(
        &self,
        attributes: &mut Attributes,
        user: &User,
    ) -> Result<(), Error> {
        let bindings = self.all_of::<MutatingAdmissionPolicyBinding>();
        if bindings.is_empty() {
            return Ok(());
        }
        let policies = self.all_of::<MutatingAdmissionPolicy>();
        // Who ran, and whether anybody changed the object after him: once more for those who want that.
        let mut ran: Vec<(String, Value)> = Vec::new();
        for round in 0..2 {
            for object in &policies {
                for bound in &bindings {
                    let (Some(policy), Some(binding)) = (
                        object.get::<MutatingAdmissionPolicy>(),
                        bound.get::<MutatingAdmissionPolicyBinding>(),
                    ) else {
                        continue;
                    };
                    let names = binding.spec.as_ref().and_then(|s| s.policy_name.as_deref());
                    if names != Some(object.name()) {
                        continue;
                    }
                    let key = format!("{}/{}", object.name(), bound.name());
                    let again = policy
                        .spec
                        .as_ref()
                        .is_some_and(|s| s.reinvocation_policy.as_deref() == Some("IfNeeded"));
                    let left = ran.iter().rev().find(|(k, _)| *k == key).map(|(_, left)| left);
                    let changed = left.is_some_and(|left| Some(left) != attributes.object.as_ref());
                    if round > 0 && !(again && changed) {
                        continue;
                    }
                    let done = self
                        .mutate_by_policy(attributes, user, object, policy, binding)
                        .await;
                    match done {
                        Ok(true) => ran.push((key, attributes.object.clone().unwrap_or_default())),
                        Ok(false) => {}
                        Err(_) if policy.spec.as_ref().is_some_and(ignores) => {}
                        Err(why) => {
                            let message = format!(
                                "policy '{}' with binding '{}' denied request: {why}",
                                object.name(),
                                bound.name()
                            );
                            return Err(refused_mutation(attributes, message));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the policy was about the request.
    async fn mutate_by_policy(
        &self,
        attributes: &mut Attributes,
        user: &User,
        object: &Object,
        policy: &MutatingAdmissionPolicy,
        binding: &MutatingAdmissionPolicyBinding,
    ) -> Result<bool, String> {
        let (Some(spec), Some(binding)) = (&policy.spec, &binding.spec) else {
            return Ok(false);
        };
        let in_policy = |why| format!("failed to configure policy: {why}");
        let in_binding = |why| format!("failed to configure binding: {why}");
        let matched = self
            .criteria_match(spec.match_constraints.as_ref(), attributes)
            .map_err(in_policy)?;
        let bound_too = self.criteria_match(binding.match_resources.as_ref(), attributes);
        let (Some(matched), Some(_)) = (matched, bound_too.map_err(in_binding)?) else {
            return Ok(false);
        };
        let params = self
            .params(spec.param_kind.as_ref(), binding.param_ref.as_ref(), attributes)
            .await
            .map_err(in_binding)?;
        let read = kept(&self.policies.mutating, object, || MutatingPolicy::read(spec));
        let mut about = false;
        for params in &params {
            let said = |why: Error| why.message().to_string();
            let shown = self.in_version(attributes, &matched).await.map_err(said)?;
            let request = attributes.request(&matched);
            let namespace = self.namespace_object(attributes);
            let changed = read.mutate(
                &matched,
                &Input {
                    object: shown.object.as_ref(),
                    old: shown.old.as_ref(),
                    request: &request,
                    params: params.as_ref(),
                    namespace: namespace.as_ref(),
                    authorizer: self.answers(user),
                    asked: Answers::about(attributes),
                },
            )?;
            if let Some(changed) = changed {
                about = true;
                let changed = self.in_request_version(attributes, &matched, changed).await;
                attributes.object = Some(changed.map_err(said)?);
            }
        }
        Ok(about)
    }
}

fn ignores(spec: &k8s_openapi::api::admissionregistration::v1::MutatingAdmissionPolicySpec) -> bool {
    spec.failure_policy.as_deref() == Some("Ignore")
}

fn refusal(attributes: &Attributes, denied: &Denied) -> Error {
    let mut error = forbidden(attributes, &denied.message);
    let (reason, code) = match denied.reason.as_str() {
        "Forbidden" => ("Forbidden", 403),
        "Unauthorized" => ("Unauthorized", 401),
        "RequestEntityTooLarge" => ("RequestEntityTooLarge", 413),
        _ => ("Invalid", 422),
    };
    let status = error.status_mut();
    status.reason = Some(reason.into());
    status.code = Some(code);
    let details = status.details.get_or_insert_default();
    details.causes.get_or_insert_default().push(StatusCause {
        message: Some(denied.message.clone()),
        ..StatusCause::default()
    });
    error
}

fn refused_mutation(attributes: &Attributes, message: String) -> Error {
    let mut error = forbidden(attributes, "admission request denied by policy");
    let status = error.status_mut();
    status.message = Some(message.clone());
    let details = status.details.get_or_insert_default();
    details.causes.get_or_insert_default().push(StatusCause {
        message: Some(message),
        ..StatusCause::default()
    });
    error
}
