//! A user who writes an admission policy or a binding can read its parameters through it: expressions see the whole objects,
//! and messages can contain their contents. So the user needs `get` on the policy's parameters, and `get` or `list` on those
//! that a binding names, as in Kubernetes (pkg/registry/admissionregistration).

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use knarr_api::kinds::text;
use knarr_api::{AnyObject, Kind, Object, k8s_openapi, registry};
use knarr_apimachinery::field::{ErrorList, Path};

use super::{Attributes, Authorizer};
use crate::cache::Cache;
use crate::request::Ctx;
use crate::user::{MASTERS, User};

/// The parameters of a policy or a binding.
enum Params<'a> {
    Kind(Option<&'a ParamKind>),
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
            return Some(Params::Kind(spec.and_then(|s| s.param_kind.as_ref())));
        }
        if let Some(policy) = any.downcast_ref::<MutatingAdmissionPolicy>() {
            let spec = policy.spec.as_ref();
            return Some(Params::Kind(spec.and_then(|s| s.param_kind.as_ref())));
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
            (Params::Kind(one), Params::Kind(other)) => one == other,
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

/// The missing permissions for the parameters of `new`; empty for other kinds.
pub(crate) fn authorize_params(
    cache: &Cache,
    authorizer: &dyn Authorizer,
    ctx: &Ctx,
    old: Option<&Object>,
    new: &dyn AnyObject,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let Some(params) = Params::of(new) else {
        return errors;
    };
    let was = old.and_then(|old| Params::of(old.typed()));
    if ctx.user.is_in(MASTERS) || was.is_some_and(|was| was.is_same(&params)) {
        return errors;
    }
    let path = Path::new("spec");
    match params {
        Params::Kind(None) | Params::Bound { reference: None, .. } => {}
        Params::Kind(Some(kind)) => {
            let (group, resource) = resource_of(cache, Some(kind));
            let request = Attributes {
                verb: "get",
                group: &group,
                resource: &resource,
                namespace: "*",
                name: "*",
                ..Attributes::default()
            };
            if !authorizer.allows(&ctx.user, &request) {
                let why = format!(
                    "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, \
apiVersion={})",
                    printed(&ctx.user),
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
            let found = cache.get(policies, "", policy);
            let kind = found
                .as_ref()
                .and_then(|policy| match Params::of(policy.typed())? {
                    Params::Kind(kind) => kind.cloned(),
                    Params::Bound { .. } => None,
                });
            let (group, resource) = resource_of(cache, kind.as_ref());
            let name = text(&reference.name);
            let verb = if name.is_empty() { "list" } else { "get" };
            let request = Attributes {
                verb,
                group: &group,
                resource: &resource,
                namespace: text(&reference.namespace),
                name,
                ..Attributes::default()
            };
            if !authorizer.allows(&ctx.user, &request) {
                let user = printed(&ctx.user);
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

/// Group and resource of a paramKind; `*` where it is not known.
fn resource_of(cache: &Cache, kind: Option<&ParamKind>) -> (String, String) {
    let Some(kind) = kind else {
        return ("*".into(), "*".into());
    };
    let version = text(&kind.api_version);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let served = cache.served();
    let resource = served
        .by_kind(version, text(&kind.kind))
        .map_or_else(|| "*".to_string(), |k| k.plural().to_string());
    (group.to_string(), resource)
}

/// A user as Go prints it with `%v`.
fn printed(user: &User) -> String {
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
