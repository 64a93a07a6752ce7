//! Who writes an admission policy or a binding reads its parameters through it: expressions see them whole, and messages
//! tell of them. So the writer needs `get` of the policy's parameters, and `get` or `list` of those that a binding names, as
//! in Kubernetes.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use knarr_api::field::{Errors, Path};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi, registry};

use super::Attributes;
use crate::pipeline::Ctx;
use crate::server::Server;
use crate::user::{MASTERS, User};

/// What of an object is about parameters.
enum Params<'a> {
    Of(Option<&'a ParamKind>),
    Bound {
        policies: &'static Kind,
        policy: &'a str,
        reference: Option<&'a ParamRef>,
    },
}

impl<'a> Params<'a> {
    fn of(object: &'a dyn AnyObject) -> Option<Self> {
        let any = object.as_any();
        if let Some(policy) = any.downcast_ref::<ValidatingAdmissionPolicy>() {
            let spec = policy.spec.as_ref();
            return Some(Params::Of(spec.and_then(|s| s.param_kind.as_ref())));
        }
        if let Some(policy) = any.downcast_ref::<MutatingAdmissionPolicy>() {
            let spec = policy.spec.as_ref();
            return Some(Params::Of(spec.and_then(|s| s.param_kind.as_ref())));
        }
        if let Some(binding) = any.downcast_ref::<ValidatingAdmissionPolicyBinding>() {
            return Some(Params::Bound {
                policies: &registry::VALIDATING_ADMISSION_POLICY,
                policy: &binding.spec.policy_name,
                reference: binding.spec.param_ref.as_ref(),
            });
        }
        let binding = any.downcast_ref::<MutatingAdmissionPolicyBinding>()?;
        let spec = binding.spec.as_ref();
        Some(Params::Bound {
            policies: &registry::MUTATING_ADMISSION_POLICY,
            policy: spec.and_then(|s| s.policy_name.as_deref()).unwrap_or(""),
            reference: spec.and_then(|s| s.param_ref.as_ref()),
        })
    }

    fn is_same(&self, other: &Params<'_>) -> bool {
        match (self, other) {
            (Params::Of(one), Params::Of(other)) => one == other,
            (
                Params::Bound {
                    policy, reference, ..
                },
                Params::Bound {
                    policy: other_policy,
                    reference: other,
                    ..
                },
            ) => policy == other_policy && reference == other,
            _ => false,
        }
    }
}

impl Server {
    /// What is missing for the parameters that `new` brings; nothing for other kinds.
    pub(crate) fn authorize_params(&self, ctx: &Ctx, old: Option<&Object>, new: &dyn AnyObject) -> Errors {
        let mut errors = Errors::new();
        let Some(params) = Params::of(new) else {
            return errors;
        };
        let was = old.and_then(|old| Params::of(old.typed()));
        if ctx.user.is_in(MASTERS) || was.is_some_and(|was| was.is_same(&params)) {
            return errors;
        }
        let path = Path::new("spec");
        match params {
            Params::Of(None) | Params::Bound { reference: None, .. } => {}
            Params::Of(Some(kind)) => {
                let (group, resource) = self.resource_of(Some(kind));
                let asked = Attributes {
                    verb: "get",
                    group: &group,
                    resource: &resource,
                    namespace: "*",
                    name: "*",
                    ..Attributes::default()
                };
                if !self.authorizer.allows(&ctx.user, &asked) {
                    let why = format!(
                        "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, \
apiVersion={})",
                        shown(&ctx.user),
                        text(&kind.kind),
                        text(&kind.api_version)
                    );
                    errors.forbidden(&path.child("paramKind"), why);
                }
            }
            Params::Bound {
                policies,
                policy,
                reference: Some(reference),
            } => {
                let found = self.cache.get(policies, "", policy);
                let kind = found
                    .as_ref()
                    .and_then(|policy| match Params::of(policy.typed())? {
                        Params::Of(kind) => kind.cloned(),
                        Params::Bound { .. } => None,
                    });
                let (group, resource) = self.resource_of(kind.as_ref());
                let name = text(&reference.name);
                let verb = if name.is_empty() { "list" } else { "get" };
                let asked = Attributes {
                    verb,
                    group: &group,
                    resource: &resource,
                    namespace: text(&reference.namespace),
                    name,
                    ..Attributes::default()
                };
                if !self.authorizer.allows(&ctx.user, &asked) {
                    let user = shown(&ctx.user);
                    let why = match (&found, resource.as_str()) {
                        (None, _) => format!(
                            "unable to get policy {policy} to determine minimum required permissions and user {user} \
does not have \"{verb}\" permission for all groups, versions and resources"
                        ),
                        (Some(_), "*") => format!(
                            "unable to resolve paramKind to determine minimum required permissions and user {user} does \
not have \"{verb}\" permission for all groups, versions and resources"
                        ),
                        _ => format!(
                            "user {user} does not have \"{verb}\" permission on the object referenced by paramRef"
                        ),
                    };
                    errors.forbidden(&path.child("paramRef"), why);
                }
            }
        }
        errors
    }

    /// Group and resource of a kind of parameters; what is not known stands for all.
    fn resource_of(&self, kind: Option<&ParamKind>) -> (String, String) {
        let Some(kind) = kind else {
            return ("*".into(), "*".into());
        };
        let version = text(&kind.api_version);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let served = self.cache.served();
        let resource = served
            .by_kind(version, text(&kind.kind))
            .map_or_else(|| "*".to_string(), |k| k.plural().to_string());
        (group.to_string(), resource)
    }
}

fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("")
}

/// A user as Go prints one.
fn shown(user: &User) -> String {
    let extra: Vec<String> = user
        .extra
        .iter()
        .map(|(key, values)| format!("{key}:[{}]", values.join(" ")))
        .collect();
    format!(
        "&{{{} {} [{}] map[{}]}}",
        user.name,
        user.uid,
        user.groups.join(" "),
        extra.join(" ")
    )
}
