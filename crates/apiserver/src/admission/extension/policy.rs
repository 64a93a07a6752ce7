//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: which policies apply to a request, by which binding and with
//! which parameters, and what follows from their results.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_admission::Attributes;
use knarr_admission::matching::{Criteria, MatchError};
use knarr_admission::policy::{Denial, Input, MutatingPolicy, PolicyError, ValidatingPolicy};
use knarr_api::registry::{self, Registered};
use knarr_api::{Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::labels::{Selector, SelectorError};
use knarr_cel::Authorizer;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::authorizer::UserAuthorizer;
use super::compiled::{CompiledCache, compiled};
use super::webhook::CompiledWebhook;
use super::{Admission, forbidden};
use crate::cache::change::Filter;
use crate::request::Ctx;
use crate::user::User;

/// Compiled policies and webhook configurations.
#[derive(Default)]
pub(crate) struct CompiledPolicies {
    validating: CompiledCache<ValidatingPolicy>,
    mutating: CompiledCache<MutatingPolicy>,
    /// Of webhook configurations.
    pub(super) webhooks: CompiledCache<Vec<CompiledWebhook>>,
}

/// A policy's denial of a request: message and reason.
struct PolicyDenial {
    message: String,
    reason: String,
}

/// A validating policy with one of its bindings, as messages name them.
struct BoundPolicy<'a> {
    policy: &'a str,
    binding: &'a str,
    /// The binding's `validationActions`.
    actions: &'a [String],
}

impl std::fmt::Display for BoundPolicy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BoundPolicy { policy, binding, .. } = self;
        write!(f, "ValidatingAdmissionPolicy '{policy}' with binding '{binding}'")
    }
}

/// Why a policy or a binding cannot be applied to a request.
#[derive(Debug, thiserror::Error)]
enum ConfigurationError {
    /// Its matchConstraints or matchResources.
    #[error(transparent)]
    Match(MatchError),
    #[error("paramKind kind `&ParamKind{{APIVersion:{version},Kind:{kind},}}` not known")]
    UnknownParamKind { version: String, kind: String },
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    ParamNamespace,
    #[error("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")]
    NoParamNamespace,
    #[error(transparent)]
    ParamSelector(SelectorError),
    #[error("one of name or selector must be provided")]
    NoParamReference,
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    ParamsNotFound,
    #[error("{0}")]
    Params(serde_json::Error),
    /// The parameters or the request's objects cannot be converted to the version that is needed.
    #[error("{}", .0.message())]
    Conversion(Error),
}

/// Why a mutating policy is not applied.
#[derive(Debug, thiserror::Error)]
enum MutationError {
    #[error("failed to configure policy: {0}")]
    Policy(ConfigurationError),
    #[error("failed to configure binding: {0}")]
    Binding(ConfigurationError),
    #[error("{}", .0.message())]
    Conversion(Error),
    #[error(transparent)]
    Evaluation(PolicyError),
}

/// The longest value of an audit annotation, in bytes.
const ANNOTATION_MAX_BYTES: usize = 10 * 1024;

impl Admission {
    pub(super) fn list_all<T: Registered>(&self) -> Vec<Arc<Object>> {
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
    ) -> Result<Option<Kind>, ConfigurationError> {
        let criteria = resources.map(Criteria::from).unwrap_or_default();
        let matched = criteria.matches(attributes, &|name| self.namespace_labels(name));
        matched.map_err(ConfigurationError::Match)
    }

    /// The parameters of a binding (paramRef); one `None` if the policy or the binding has none.
    async fn params(
        &self,
        kind: Option<&ParamKind>,
        reference: Option<&ParamRef>,
        attributes: &Attributes,
    ) -> Result<Vec<Option<Value>>, ConfigurationError> {
        let (Some(param_kind), Some(reference)) = (kind, reference) else {
            return Ok(vec![None]);
        };
        let (version, name) = (
            param_kind.api_version.as_deref().unwrap_or_default(),
            param_kind.kind.as_deref().unwrap_or_default(),
        );
        let served = self.cache.served();
        let Some(kind) = served.by_kind(version, name) else {
            return Err(ConfigurationError::UnknownParamKind {
                version: version.to_string(),
                kind: name.to_string(),
            });
        };
        let given = reference.namespace.as_deref().unwrap_or_default();
        let namespace = match (kind.namespaced(), given) {
            (false, "") => "",
            (false, _) => return Err(ConfigurationError::ParamNamespace),
            (true, "") if attributes.namespace.is_empty() || attributes.kind == registry::NAMESPACE => {
                return Err(ConfigurationError::NoParamNamespace);
            }
            (true, "") => &attributes.namespace,
            (true, given) => given,
        };
        let mut found: Vec<Arc<Object>> = match (reference.name.as_deref(), &reference.selector) {
            (Some(name), _) if !name.is_empty() => {
                self.cache.get(&kind, namespace, name).into_iter().collect()
            }
            (_, Some(selector)) => {
                let selector =
                    Selector::from_label_selector(selector).map_err(ConfigurationError::ParamSelector)?;
                let filter = Filter::everything(&kind, namespace);
                let mut all = self.cache.of(&kind).map(|c| c.list(&filter)).unwrap_or_default();
                all.retain(|o| selector.matches(o.metadata().labels.as_ref()));
                all
            }
            _ => return Err(ConfigurationError::NoParamReference),
        };
        if found.is_empty() && reference.parameter_not_found_action.as_deref() == Some("Deny") {
            return Err(ConfigurationError::ParamsNotFound);
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        let converted = self.converter.all(&mut found, &kind).await;
        converted.map_err(ConfigurationError::Conversion)?;
        let params = found
            .iter()
            .map(|object| serde_json::from_slice(object.json()).map(Some));
        params
            .collect::<Result<_, _>>()
            .map_err(ConfigurationError::Params)
    }

    fn authorizer_for(&self, user: &User) -> Arc<dyn Authorizer> {
        Arc::new(UserAuthorizer {
            authorizer: self.authorizer.clone(),
            user: user.clone(),
        })
    }

    pub(super) async fn validate_by_policies(
        &self,
        ctx: &mut Ctx,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let bindings = self.list_all::<ValidatingAdmissionPolicyBinding>();
        if bindings.is_empty() {
            return Ok(());
        }
        let namespace = self.namespace_object(attributes);
        let authorizer = self.authorizer_for(&ctx.user);
        let mut denied: Vec<PolicyDenial> = Vec::new();
        for object in self.list_all::<ValidatingAdmissionPolicy>() {
            let Some(policy) = object.get::<ValidatingAdmissionPolicy>() else {
                continue;
            };
            let Some(spec) = &policy.spec else { continue };
            let denies_on_failure = spec.failure_policy.as_deref() != Some("Ignore");
            let name = object.name();
            let configuration_denial = |binding: Option<&str>, why: ConfigurationError| {
                denies_on_failure.then(|| {
                    let message = match binding {
                        None => format!(
                            "ValidatingAdmissionPolicy '{name}' denied request: failed to configure policy: {why}"
                        ),
                        Some(binding) => format!(
                            "ValidatingAdmissionPolicy '{name}' with binding '{binding}' denied request: \
                             failed to configure binding: {why}"
                        ),
                    };
                    PolicyDenial {
                        message,
                        reason: String::new(),
                    }
                })
            };
            let matched = match self.criteria_match(spec.match_constraints.as_ref(), attributes) {
                Ok(Some(kind)) => kind,
                Ok(None) => continue,
                Err(why) => {
                    denied.extend(configuration_denial(None, why));
                    continue;
                }
            };
            let read = compiled(&self.policies.validating, &object, || {
                ValidatingPolicy::read(spec)
            });
            let mut annotations: Vec<(String, Vec<String>)> = Vec::new();
            for binding_object in &bindings {
                let Some(binding) = binding_object.get::<ValidatingAdmissionPolicyBinding>() else {
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
                        denied.extend(configuration_denial(Some(binding_object.name()), why));
                        continue;
                    }
                }
                let reference = binding.spec.param_ref.as_ref();
                let params = match self.params(spec.param_kind.as_ref(), reference, attributes).await {
                    Ok(params) => params,
                    Err(why) => {
                        denied.extend(configuration_denial(Some(binding_object.name()), why));
                        continue;
                    }
                };
                let converted = match self.in_version(attributes, &matched).await {
                    Ok(converted) => converted,
                    Err(why) => {
                        let why = ConfigurationError::Conversion(why);
                        denied.extend(configuration_denial(Some(binding_object.name()), why));
                        continue;
                    }
                };
                let request = attributes.request(&matched);
                for params in &params {
                    let begun = Instant::now();
                    let result = read.validate(&Input {
                        object: converted.object.as_ref(),
                        old: converted.old.as_ref(),
                        request: &request,
                        params: params.as_ref(),
                        namespace: namespace.as_ref(),
                        authorizer: authorizer.clone(),
                        request_resource: UserAuthorizer::request_resource(attributes),
                    });
                    let took = begun.elapsed();
                    let bound = BoundPolicy {
                        policy: name,
                        binding: binding_object.name(),
                        actions: &binding.spec.validation_actions,
                    };
                    merge_annotations(&mut annotations, result.annotations);
                    for denial in result.denials {
                        self.take_actions(ctx, &bound, &denial, took, &mut denied);
                    }
                    denied.extend(result.annotation_errors.into_iter().map(|why| PolicyDenial {
                        message: format!("{bound} denied request: {why}"),
                        reason: String::new(),
                    }));
                }
            }
            for (key, values) in annotations {
                ctx.note(format!("{name}/{key}"), &values.join(", "));
            }
        }
        match denied.into_iter().next() {
            None => Ok(()),
            Some(first) => Err(denial_error(attributes, &first)),
        }
    }

    /// What follows from a failed validation: by each of the binding's validationActions the request is denied, a warning is sent, or
    /// the audit event is annotated.
    fn take_actions(
        &self,
        ctx: &mut Ctx,
        bound: &BoundPolicy<'_>,
        denial: &Denial,
        took: Duration,
        denied: &mut Vec<PolicyDenial>,
    ) {
        let BoundPolicy {
            policy,
            binding,
            actions,
        } = *bound;
        for action in actions {
            self.metrics
                .policy_check((policy, binding), &action.to_lowercase(), took);
            match action.as_str() {
                "Deny" => denied.push(PolicyDenial {
                    message: format!("{bound} denied request: {}", denial.message),
                    reason: denial.reason.clone(),
                }),
                "Warn" => ctx.warn(format!("Validation failed for {bound}: {}", denial.message)),
                "Audit" => {
                    let failure = json!([{"message": denial.message, "policy": policy, "binding": binding,
                        "expressionIndex": denial.index, "validationActions": actions}]);
                    ctx.note(
                        "validation.policy.admission.k8s.io/validation_failure",
                        &failure.to_string(),
                    );
                }
                _ => {}
            }
        }
    }

    pub(super) async fn mutate_by_policies(
        &self,
        attributes: &mut Attributes,
        user: &User,
    ) -> Result<(), Error> {
        let bindings = self.list_all::<MutatingAdmissionPolicyBinding>();
        if bindings.is_empty() {
            return Ok(());
        }
        let policies = self.list_all::<MutatingAdmissionPolicy>();
        // Each invoked policy with the object that it left: with reinvocationPolicy IfNeeded it is invoked once more if the
        // object was changed after it.
        let mut invoked: Vec<(String, Value)> = Vec::new();
        for round in 0..2 {
            for object in &policies {
                for binding_object in &bindings {
                    let (Some(policy), Some(binding)) = (
                        object.get::<MutatingAdmissionPolicy>(),
                        binding_object.get::<MutatingAdmissionPolicyBinding>(),
                    ) else {
                        continue;
                    };
                    let names = binding.spec.as_ref().and_then(|s| s.policy_name.as_deref());
                    if names != Some(object.name()) {
                        continue;
                    }
                    let key = format!("{}/{}", object.name(), binding_object.name());
                    let reinvokes = policy
                        .spec
                        .as_ref()
                        .is_some_and(|s| s.reinvocation_policy.as_deref() == Some("IfNeeded"));
                    let left = invoked
                        .iter()
                        .rev()
                        .find(|(k, _)| *k == key)
                        .map(|(_, left)| left);
                    let changed = left.is_some_and(|left| Some(left) != attributes.object.as_ref());
                    if round > 0 && !(reinvokes && changed) {
                        continue;
                    }
                    let done = self
                        .mutate_by_policy(attributes, user, object, policy, binding)
                        .await;
                    match done {
                        Ok(true) => invoked.push((key, attributes.object.clone().unwrap_or_default())),
                        Ok(false) => {}
                        Err(_) if policy.spec.as_ref().is_some_and(ignores_failure) => {}
                        Err(why) => {
                            let message = format!(
                                "policy '{}' with binding '{}' denied request: {why}",
                                object.name(),
                                binding_object.name()
                            );
                            return Err(mutation_error(attributes, message));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies a policy by one binding. False if it does not match the request.
    async fn mutate_by_policy(
        &self,
        attributes: &mut Attributes,
        user: &User,
        object: &Object,
        policy: &MutatingAdmissionPolicy,
        binding: &MutatingAdmissionPolicyBinding,
    ) -> Result<bool, MutationError> {
        let (Some(spec), Some(binding)) = (&policy.spec, &binding.spec) else {
            return Ok(false);
        };
        let matched = self
            .criteria_match(spec.match_constraints.as_ref(), attributes)
            .map_err(MutationError::Policy)?;
        let binding_matched = self.criteria_match(binding.match_resources.as_ref(), attributes);
        let (Some(matched), Some(_)) = (matched, binding_matched.map_err(MutationError::Binding)?) else {
            return Ok(false);
        };
        let params = self
            .params(spec.param_kind.as_ref(), binding.param_ref.as_ref(), attributes)
            .await
            .map_err(MutationError::Binding)?;
        let read = compiled(&self.policies.mutating, object, || MutatingPolicy::read(spec));
        let mut matches = false;
        for params in &params {
            let converted = self
                .in_version(attributes, &matched)
                .await
                .map_err(MutationError::Conversion)?;
            let request = attributes.request(&matched);
            let namespace = self.namespace_object(attributes);
            let evaluated = read.mutate(
                &matched,
                &Input {
                    object: converted.object.as_ref(),
                    old: converted.old.as_ref(),
                    request: &request,
                    params: params.as_ref(),
                    namespace: namespace.as_ref(),
                    authorizer: self.authorizer_for(user),
                    request_resource: UserAuthorizer::request_resource(attributes),
                },
            );
            if let Some(changed) = evaluated.map_err(MutationError::Evaluation)? {
                matches = true;
                let changed = self.in_request_version(attributes, &matched, changed).await;
                attributes.object = Some(changed.map_err(MutationError::Conversion)?);
            }
        }
        Ok(matches)
    }
}

fn ignores_failure(spec: &k8s_openapi::api::admissionregistration::v1::MutatingAdmissionPolicySpec) -> bool {
    spec.failure_policy.as_deref() == Some("Ignore")
}

/// Adds a policy's audit annotations, each value once.
fn merge_annotations(all: &mut Vec<(String, Vec<String>)>, more: Vec<(String, String)>) {
    for (key, value) in more {
        let value: String = value.chars().take(ANNOTATION_MAX_BYTES).collect();
        match all.iter_mut().find(|(k, _)| *k == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => all.push((key, vec![value])),
        }
    }
}

fn denial_error(attributes: &Attributes, denied: &PolicyDenial) -> Error {
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

fn mutation_error(attributes: &Attributes, message: String) -> Error {
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
