//! Privilege escalation prevention: a user who writes a role must hold its rules or have `escalate` on it, and a user who
//! writes a binding must hold the rules of its role or have `bind` on it.

use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef,
};
use knarr_api::{AnyObject, Object, k8s_openapi};
use knarr_apimachinery::Error;

use super::{Attributes, Authorizer, rbac, rules};
use crate::cache::Cache;
use crate::request::{Ctx, Target};
use crate::user::MASTERS;

const GROUP: &str = "rbac.authorization.k8s.io";

/// What a role or binding would grant.
enum Grant<'a> {
    Rules(&'a [PolicyRule], Option<&'a AggregationRule>),
    Role(&'a RoleRef),
}

/// Why a role or binding is denied, in Kubernetes' words.
#[derive(Debug, thiserror::Error)]
enum EscalationError {
    #[error(
        "user {user:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{rules}"
    )]
    NotHeld {
        user: String,
        groups: String,
        rules: String,
    },
    #[error("must have cluster-admin privileges to use the aggregationRule")]
    Aggregation,
}

impl<'a> Grant<'a> {
    fn of(object: &'a dyn AnyObject) -> Option<Self> {
        let any = object.as_any();
        if let Some(role) = any.downcast_ref::<ClusterRole>() {
            let rules = role.rules.as_deref().unwrap_or_default();
            return Some(Grant::Rules(rules, role.aggregation_rule.as_ref()));
        }
        if let Some(role) = any.downcast_ref::<Role>() {
            return Some(Grant::Rules(role.rules.as_deref().unwrap_or_default(), None));
        }
        let binding = any.downcast_ref::<ClusterRoleBinding>().map(|b| &b.role_ref);
        binding
            .or_else(|| any.downcast_ref::<RoleBinding>().map(|b| &b.role_ref))
            .map(Grant::Role)
    }

    fn aggregates(&self) -> bool {
        let Grant::Rules(_, Some(rule)) = self else {
            return false;
        };
        rule.cluster_role_selectors
            .as_ref()
            .is_some_and(|s| !s.is_empty())
    }
}

/// Denies a role or binding that would grant more than the user holds.
pub(crate) fn check_escalation(
    cache: &Cache,
    authorizer: &dyn Authorizer,
    ctx: &Ctx,
    target: &Target<'_>,
    old: Option<&Object>,
    new: &dyn AnyObject,
) -> Result<(), Error> {
    if target.kind.group() != GROUP || ctx.by_server || ctx.user.is_in(MASTERS) {
        return Ok(());
    }
    let Some(grant) = Grant::of(new) else {
        return Ok(());
    };
    if old.is_some_and(|old| only_gc_fields_changed(old.typed(), new)) {
        return Ok(());
    }
    let name = new.metadata().name.as_deref().unwrap_or("");
    let denied = |why: EscalationError| Error::forbidden(target.kind.resource_ref(name), &why.to_string());
    let is_allowed = |verb, resource, name| {
        let request = Attributes {
            verb,
            group: GROUP,
            resource,
            namespace: target.namespace,
            name,
            ..Attributes::default()
        };
        authorizer.allows(&ctx.user, &request)
    };
    let held = || authorizer.rules_for(&ctx.user, target.namespace).rules;
    match &grant {
        Grant::Rules(requested, _) => {
            // The URL of a create does not have the role's name.
            if is_allowed("escalate", target.kind.plural(), target.name) {
                return Ok(());
            }
            let held = held();
            check_covered(ctx, &held, requested).map_err(denied)?;
            let was = old.and_then(|o| Grant::of(o.typed()));
            if grant.aggregates() || was.is_some_and(|g| g.aggregates()) {
                let everything = rules::all_rules();
                if !rules::uncovered(&held, &everything).is_empty() {
                    return Err(denied(EscalationError::Aggregation));
                }
            }
            Ok(())
        }
        Grant::Role(role) => {
            let resource = match role.kind.as_str() {
                "ClusterRole" => "clusterroles",
                "Role" => "roles",
                // Validation rejects other kinds.
                _ => return Ok(()),
            };
            if is_allowed("bind", resource, &role.name) {
                return Ok(());
            }
            let requested = rbac::role_rules(cache, target.namespace, role)
                .ok_or_else(|| Error::not_found(rbac::role_kind(role).resource_ref(&role.name)))?;
            check_covered(ctx, &held(), &requested).map_err(denied)
        }
    }
}

fn check_covered(ctx: &Ctx, held: &[PolicyRule], requested: &[PolicyRule]) -> Result<(), EscalationError> {
    let uncovered = rules::uncovered(held, requested);
    if uncovered.is_empty() {
        return Ok(());
    }
    Err(EscalationError::NotHeld {
        user: ctx.user.name.clone(),
        groups: rules::quoted(&ctx.user.groups),
        rules: rules::describe_rules(&rules::compact_rules(uncovered)),
    })
}

/// Whether only finalizers and owner references change, which the garbage collector writes (IsOnlyMutatingGCFields).
fn only_gc_fields_changed(old: &dyn AnyObject, new: &dyn AnyObject) -> bool {
    let bare = |object: &dyn AnyObject| {
        let mut object = object.clone_box();
        let meta = object.metadata_mut();
        meta.finalizers = None;
        meta.owner_references = None;
        meta.managed_fields = None;
        meta.resource_version = None;
        Object::encode_for_store(&mut *object)
    };
    let (was, is) = (old.metadata(), new.metadata());
    let moved = was.finalizers != is.finalizers || was.owner_references != is.owner_references;
    moved && bare(old) == bare(new)
}
