//! Deletion (SPEC T1): at once, with grace, or held by finalizers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod, PodCondition};
use k8s_openapi::jiff::SignedDuration;
use knarr_api::field::{self, Errors};
use knarr_api::strategy::Deletion;
use knarr_api::time::seconds;
use knarr_api::{AnyObject, Error, Object, k8s_openapi, registry};
use knarr_client::{DeleteOptions, Propagation, Term};

use super::read::{ListQuery, Listed, invalid_options};
use super::update::check_preconditions;
use super::{Ctx, MODIFIED, Target, WRITE_ATTEMPTS};
use crate::admission::extension;
use crate::cache::Written;
use crate::custom;
use crate::server::Server;

/// What became of a deletion.
pub(crate) struct Deleted {
    /// As it was left: marked, or as it was when it went.
    pub object: Arc<Object>,
    pub gone: bool,
}

/// DeleteOptions with what only the wire has.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteRequest {
    pub options: DeleteOptions,
    /// The deprecated `orphanDependents`.
    pub orphan_dependents: Option<bool>,
    /// Of a component in this process: what a pod's status is to say of why it goes.
    pub why: Option<PodCondition>,
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What one look at the object comes to.
enum Plan {
    /// A deletion is under way and this request changes nothing about it.
    Pending,
    /// Write this; then it is gone if `then_remove`.
    Mark {
        marked: Box<dyn AnyObject>,
        then_remove: bool,
    },
    Remove,
}

impl Server {
    pub(crate) async fn delete(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        request: &DeleteRequest,
    ) -> Result<Deleted, Error> {
        if request.orphan_dependents.is_some() && request.options.propagation.is_some() {
            let mut mistakes = Errors::new();
            let policy = request.options.propagation.map_or("", policy_name);
            mistakes.invalid(
                &field::Path::new("propagationPolicy"),
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            );
            return Err(invalid_options("DeleteOptions", &mistakes));
        }
        for _ in 0..WRITE_ATTEMPTS {
            let object = self.stored(ctx, target).await?;
            let object = object.ok_or_else(|| Error::not_found(target.about()))?;
            self.restrict_node_deletion(ctx, target, &object)?;
            self.restrict_network_agent(ctx, target, object.name())?;
            check_preconditions(target.kind, &request.options.preconditions, &object)?;
            self.admit_deletion(target, &object)?;
            self.judge_deletion(ctx, target, &object).await?;
            let told = match &request.why {
                // Who goes already has been told why.
                Some(why) if object.metadata().deletion_timestamp.is_none() => {
                    Some(self.tell_why(ctx, target, &object, why).await?)
                }
                _ => None,
            };
            if let Some(mut done) = self.delete_once(ctx, &object, request, told).await? {
                done.object = self.converter.object(&done.object, target.kind).await?;
                return Ok(done);
            }
        }
        Err(Error::conflict(target.about(), MODIFIED))
    }

    /// The pod with a condition in its status, as a write of its status would make it. The condition is a component's
    /// own and needs no validation; policies and webhooks see it as the write that it is.
    async fn tell_why(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        object: &Arc<Object>,
        why: &PodCondition,
    ) -> Result<Box<dyn AnyObject>, Error> {
        let mut pod: Pod = object
            .to_typed()
            .ok_or_else(|| Error::internal("a Pod that is none"))?;
        let status = pod.status.get_or_insert_default();
        let conditions = status.conditions.get_or_insert_default();
        match conditions.iter_mut().find(|c| c.type_ == why.type_) {
            Some(condition) => condition.clone_from(why),
            None => conditions.push(why.clone()),
        }
        let mut new: Box<dyn AnyObject> = Box::new(pod);
        let status = Target {
            subresource: "status",
            ..*target
        };
        self.track(ctx, &status, Some(object), &mut *new).await?;
        let update = extension::Operation::Update;
        let new = self.mutate(ctx, &status, update, new, Some(object)).await?;
        let write = extension::Write {
            operation: update,
            object: Some(&*new),
            old: Some(object),
        };
        self.judge(ctx, &status, &write).await?;
        Ok(new)
    }

    /// `told` is the object as it is to be marked, where that is not as it stands. `None`: somebody else wrote in
    /// between.
    async fn delete_once(
        &self,
        ctx: &Ctx,
        object: &Arc<Object>,
        request: &DeleteRequest,
        told: Option<Box<dyn AnyObject>>,
    ) -> Result<Option<Deleted>, Error> {
        let plan = if *object.kind() == registry::NAMESPACE {
            plan_namespace(ctx, object)?
        } else if *object.kind() == registry::CUSTOM_RESOURCE_DEFINITION
            && object.metadata().deletion_timestamp.is_none()
        {
            let mut marked = object.typed().clone_box();
            marked.metadata_mut().deletion_timestamp = Some(seconds(ctx.now));
            custom::mark(&mut *marked, ctx.now);
            Plan::Mark {
                marked,
                then_remove: false,
            }
        } else {
            plan(ctx, object, request, told)?
        };
        let kind = object.kind();
        match plan {
            Plan::Pending => Ok(Some(Deleted {
                object: object.clone(),
                gone: false,
            })),
            Plan::Mark { marked, then_remove } if ctx.dry_run => Ok(Some(Deleted {
                object: Arc::new(Object::from_typed(kind, marked)),
                gone: then_remove,
            })),
            Plan::Remove if ctx.dry_run => Ok(Some(Deleted {
                object: object.clone(),
                gone: true,
            })),
            Plan::Remove => self.remove(object, ctx.term.as_ref()).await,
            Plan::Mark { marked, then_remove } => {
                let term = ctx.term.as_ref();
                let put = self
                    .write_converted(kind, marked, object.revision(), term)
                    .await?;
                let Written::Done(marked) = put else {
                    return Ok(None);
                };
                if !then_remove {
                    return Ok(Some(Deleted {
                        object: marked,
                        gone: false,
                    }));
                }
                self.remove_marked(marked, term).await
            }
        }
    }

    /// Removes what was marked for this moment. Should somebody write in between (a kubelet its last status), what
    /// they left is removed; should somebody remove it first, it is gone as asked.
    async fn remove_marked(
        &self,
        mut object: Arc<Object>,
        term: Option<&Term>,
    ) -> Result<Option<Deleted>, Error> {
        for _ in 0..WRITE_ATTEMPTS {
            if let Some(done) = self.remove(&object, term).await? {
                return Ok(Some(done));
            }
            match self.cache.get(object.kind(), object.namespace(), object.name()) {
                Some(newer) if newer.uid() == object.uid() => object = newer,
                _ => return Ok(Some(Deleted { object, gone: true })),
            }
        }
        Ok(None)
    }

    async fn remove(&self, object: &Arc<Object>, term: Option<&Term>) -> Result<Option<Deleted>, Error> {
        Ok(match self.cache.delete(object, term).await? {
            Written::Done(revision) => Some(Deleted {
                object: Arc::new(object.at_revision(revision)),
                gone: true,
            }),
            Written::Conflict => None,
        })
    }

    /// Deletes everything that is selected; answers with the list as it was.
    pub(crate) async fn delete_collection(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        query: &ListQuery,
        request: &DeleteRequest,
    ) -> Result<Listed, Error> {
        let listed = self.list(target.kind, target.namespace, query).await?;
        for item in &listed.items {
            let one = Target::main(target.kind, item.namespace(), item.name());
            match self.delete(ctx, &one, request).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(listed)
    }
}

pub(crate) fn policy_name(policy: Propagation) -> &'static str {
    match policy {
        Propagation::Orphan => "Orphan",
        Propagation::Background => "Background",
        Propagation::Foreground => "Foreground",
    }
}

/// Whether the kind knows deletion with grace; only pods do.
fn graceful_kind(object: &Object) -> bool {
    *object.kind() == registry::POD
}

fn plan(
    ctx: &Ctx,
    object: &Object,
    request: &DeleteRequest,
    told: Option<Box<dyn AnyObject>>,
) -> Result<Plan, Error> {
    let meta = object.metadata();
    let requested = request
        .options
        .grace_period_seconds
        .map(|s| if s < 0 { 1 } else { s });
    let mut marked = told.unwrap_or_else(|| object.typed().clone_box());
    let mut mark = None;
    if graceful_kind(object) {
        match (
            &meta.deletion_timestamp,
            meta.deletion_grace_period_seconds.unwrap_or(0),
        ) {
            (None, _) => {
                let grace = match object.kind().ops.deletion(object.typed(), requested)? {
                    Deletion::Graceful { grace_seconds } => grace_seconds,
                    Deletion::Immediate => 0,
                };
                mark = Some((ctx.now + SignedDuration::from_secs(grace), grace));
            }
            (Some(_), 0) => {}
            (Some(deadline), current) => match requested.map(|s| s.max(0)) {
                Some(shorter) if shorter < current => {
                    let mut at = deadline.0 - SignedDuration::from_secs(current - shorter);
                    let mut grace = shorter;
                    if at < ctx.now {
                        at = ctx.now;
                        // A graceful end stays its owner's to finish.
                        grace = i64::from(shorter != 0);
                    }
                    mark = Some((at, grace));
                }
                _ => return Ok(Plan::Pending),
            },
        }
    }
    let old_finalizers = meta.finalizers.clone().unwrap_or_default();
    let finalizers = finalizers(object, request, &old_finalizers);
    let changed =
        finalizers.len() != old_finalizers.len() || finalizers.iter().any(|f| !old_finalizers.contains(f));
    let held = if changed {
        !finalizers.is_empty()
    } else {
        !old_finalizers.is_empty()
    };
    let new_meta = marked.metadata_mut();
    if changed {
        new_meta.finalizers = (!finalizers.is_empty()).then_some(finalizers);
    }
    let first = meta.deletion_timestamp.is_none();
    match mark {
        Some((at, grace)) => {
            new_meta.deletion_timestamp = Some(seconds(at));
            new_meta.deletion_grace_period_seconds = Some(grace);
            if first {
                count_up(new_meta);
            }
            Ok(Plan::Mark {
                marked,
                then_remove: grace == 0 && !held,
            })
        }
        None if held => {
            if first {
                count_up(new_meta);
                new_meta.deletion_timestamp = Some(seconds(ctx.now));
            } else if !changed && meta.deletion_grace_period_seconds == Some(0) {
                return Ok(Plan::Pending);
            }
            new_meta.deletion_grace_period_seconds = Some(0);
            Ok(Plan::Mark {
                marked,
                then_remove: false,
            })
        }
        None => Ok(Plan::Remove),
    }
}

fn count_up(meta: &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) {
    if let Some(generation) = meta.generation.filter(|g| *g > 0) {
        meta.generation = Some(generation + 1);
    }
}

/// The garbage collector's finalizers as the request, the object and its kind ask for them, behind the others.
fn finalizers(object: &Object, request: &DeleteRequest, old: &[String]) -> Vec<String> {
    let has = |f: &str| old.iter().any(|o| o == f);
    let (orphan, foreground) = match (request.orphan_dependents, request.options.propagation) {
        (Some(orphan), _) => (orphan, false),
        (None, Some(policy)) => (policy == Propagation::Orphan, policy == Propagation::Foreground),
        (None, None) if has(ORPHAN) => (true, false),
        (None, None) if has(FOREGROUND) => (false, true),
        (None, None) => (object.kind().ops.orphans_by_default(), false),
    };
    let others = old.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned();
    let wanted = [(orphan, ORPHAN), (foreground, FOREGROUND)];
    others
        .chain(
            wanted
                .into_iter()
                .filter(|(on, _)| *on)
                .map(|(_, f)| f.to_string()),
        )
        .collect()
}

/// A namespace is marked first; its controller empties it and takes its finalizer away, and then it goes.
fn plan_namespace(ctx: &Ctx, object: &Object) -> Result<Plan, Error> {
    let mut namespace: Namespace = object
        .to_typed()
        .ok_or_else(|| Error::internal("a Namespace that is none"))?;
    if namespace.metadata.deletion_timestamp.is_none() {
        namespace.metadata.deletion_timestamp = Some(seconds(ctx.now));
        namespace.status.get_or_insert_default().phase = Some("Terminating".into());
        return Ok(Plan::Mark {
            marked: Box::new(namespace),
            then_remove: false,
        });
    }
    let held = namespace
        .spec
        .as_ref()
        .and_then(|s| s.finalizers.as_ref())
        .is_some_and(|f| !f.is_empty())
        || namespace
            .metadata
            .finalizers
            .as_ref()
            .is_some_and(|f| !f.is_empty());
    Ok(if held { Plan::Pending } else { Plan::Remove })
}
