//! Creation of an object.

use std::sync::Arc;

use knarr_api::custom::definition_name;
use knarr_api::{AnyObject, Kind, Object, registry};
use knarr_apimachinery::Error;

use super::Pipeline;
use super::metadata::check_namespace;
use super::write::Write;
use crate::authz::{self, Selectors};
use crate::cache::Written;
use crate::request::{Ctx, Target};
use crate::seams;

/// How often another random name is tried when one is taken.
const NAME_ATTEMPTS: usize = 8;

impl Pipeline {
    /// Authorizes the `create` of an update or apply that creates (SPEC A2), with the object's name, as kube-apiserver's `withAuthorization` does.
    /// Before admission, which may call webhooks.
    pub(super) fn authorize_create(&self, ctx: &Ctx, target: &Target<'_>) -> Result<(), Error> {
        if ctx.by_server {
            return Ok(());
        }
        let attributes = authz::Attributes::of_target("create", target, Selectors::default());
        match self.authorizer.allows(&ctx.user, &attributes) {
            true => Ok(()),
            false => Err(authz::forbidden_with_reason(
                &*self.authorizer,
                &ctx.user,
                &attributes,
            )),
        }
    }

    /// Creates `object`, a value of `target.kind`. `target.name` is empty or must be the object's.
    pub(crate) async fn create(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut object: Box<dyn AnyObject>,
    ) -> Result<Arc<Object>, Error> {
        check_namespace(target, &mut *object)?;
        self.catch_up(ctx).await?;
        self.check_definition(target.kind)?;
        let mut write = self.complete(ctx, Write::create(target, object)).await?;
        // Admission may have set either.
        let meta = write.object.metadata();
        let prefix = meta.generate_name.clone().filter(|g| !g.is_empty());
        let has_name = meta.name.as_deref().is_some_and(|n| !n.is_empty());
        if let Some(prefix) = prefix.as_deref().filter(|_| !has_name) {
            write.object.metadata_mut().name = Some(self.generate_name(&write, prefix)?);
        }
        let name = write.name().to_string();
        match self.store(ctx, write).await? {
            Written::Done(created) => self.converter.object(&created.object, target.kind).await,
            Written::Conflict => Err(self.exists(target, &name, prefix.is_some())),
        }
    }

    /// A name that begins with `prefix` and that no object has. That another request gets the same of 14 million names before this one is
    /// written is an error, as a name that is taken: the client may try again.
    fn generate_name(&self, write: &Write<'_>, prefix: &str) -> Result<String, Error> {
        let target = write.target;
        let mut taken = String::new();
        for _ in 0..NAME_ATTEMPTS {
            let name = seams::generated_name(&*self.entropy, prefix);
            if self.cache.get(&write.kind, target.namespace, &name).is_none() {
                return Ok(name);
            }
            taken = name;
        }
        Err(self.exists(target, &taken, true))
    }

    /// Rejects the creation of custom resources whose definition is terminating.
    fn check_definition(&self, kind: &Kind) -> Result<(), Error> {
        if kind.ops.custom().is_none() {
            return Ok(());
        }
        let found = self
            .cache
            .get(&registry::CUSTOM_RESOURCE_DEFINITION, "", &definition_name(kind));
        let terminating = found.is_some_and(|crd| crd.metadata().deletion_timestamp.is_some());
        match terminating {
            true => Err(Error::method_not_supported(kind.resource_ref(""), "create")),
            false => Ok(()),
        }
    }

    /// The error for a name that is taken, possibly by an object that is being deleted.
    fn exists(&self, target: &Target<'_>, name: &str, generated: bool) -> Error {
        let about = target.kind.resource_ref(name);
        let mut error = match generated {
            true => Error::generated_name_exists(about),
            false => Error::already_exists(about),
        };
        let found = self.cache.get(target.kind, target.namespace, name);
        if found.is_some_and(|object| object.metadata().deletion_timestamp.is_some()) {
            let message = format!("object is being deleted: {}", error.message());
            error.status_mut().message = Some(message);
        }
        error
    }
}
