//! Nobody grants what he does not hold: who writes a role must hold its rules (or may `escalate` it), who writes a
//! binding must hold what the role it names allows (or may `bind` it).

use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef,
};
use knarr_api::{AnyObject, Error, Object, k8s_openapi};

use super::{Attributes, rbac, rules};
use crate::pipeline::{Ctx, Target};
use crate::server::Server;
use crate::user::MASTERS;

const GROUP: &str = "rbac.authorization.k8s.io";

/// What an object of this group would grant.
enum Grant<'a> {
    Rules(&'a [PolicyRule], Option<&'a AggregationRule>),
    Role(&'a RoleRef),
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

impl Server {
    /// Refuses what would grant more than the writer holds.
    pub(crate) fn check_escalation(
        &self,
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
        if old.is_some_and(|old| only_lets_go(old.typed(), new)) {
            return Ok(());
        }
        let name = new.metadata().name.as_deref().unwrap_or("");
        let refused = |why: String| Error::forbidden(target.kind.about(name), &why);
        let may = |verb, resource, name| {
            let request = Attributes {
                verb,
                group: GROUP,
                resource,
                namespace: target.namespace,
                name,
                ..Attributes::default()
            };
            self.authorizer.allows(&ctx.user, &request)
        };
        let held = || self.authorizer.rules_for(&ctx.user, target.namespace).rules;
        match &grant {
            Grant::Rules(wanted, _) => {
                // The name of a role that is created is not in its URL.
                if may("escalate", target.kind.plural(), target.name) {
                    return Ok(());
                }
                let held = held();
                self.confirm(ctx, &held, wanted).map_err(refused)?;
                let was = old.and_then(|o| Grant::of(o.typed()));
                if grant.aggregates() || was.is_some_and(|g| g.aggregates()) {
                    let everything = rules::full_authority();
                    if !rules::missing(&held, &everything).is_empty() {
                        return Err(refused(
                            "must have cluster-admin privileges to use the aggregationRule".into(),
                        ));
                    }
                }
                Ok(())
            }
            Grant::Role(role) => {
                let resource = match role.kind.as_str() {
                    "ClusterRole" => "clusterroles",
                    "Role" => "roles",
                    // Validation has words for it.
                    _ => return Ok(()),
                };
                if may("bind", resource, &role.name) {
                    return Ok(());
                }
                let wanted = rbac::role_rules(&self.cache, target.namespace, role)
                    .ok_or_else(|| Error::not_found(rbac::role_kind(role).about(&role.name)))?;
                self.confirm(ctx, &held(), &wanted).map_err(refused)
            }
        }
    }

    fn confirm(&self, ctx: &Ctx, held: &[PolicyRule], wanted: &[PolicyRule]) -> Result<(), String> {
        let missing = rules::missing(held, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            ctx.user.name,
            rules::quoted(&ctx.user.groups),
            rules::described(&rules::compact(missing))
        ))
    }
}

/// Whether only that changes which the garbage collector needs: finalizers and owners.
fn only_lets_go(old: &dyn AnyObject, new: &dyn AnyObject) -> bool {
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
