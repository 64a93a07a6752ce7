//! `scale`: reads and sets the number of replicas of any scalable kind.

use std::sync::Arc;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::autoscaling::v1::Scale;
use knarr_api::custom::CustomObject;
use knarr_api::managed_fields::{Managed, ManagerId, Operation};
use knarr_api::scale::{self, SCALE};
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::error::ResourceRef;
use knarr_apimachinery::field::Path;
use knarr_apimachinery::meta;
use knarr_apimachinery::{Error, codec};
use knarr_client::Preconditions;
use serde_json::Value;

use crate::http::Http;
use crate::http::patch::patch_options;
use crate::http::response::HandlerResponse;
use crate::pipeline::apply::{ApplyBody, ApplyOptions};
use crate::pipeline::decode::{decode_document, to_json};
use crate::pipeline::patch::PatchBody;
use crate::pipeline::{Pipeline, managed_fields, seconds};
use crate::request::{AdmissionObject, Ctx, Target, not_served};

/// The change that a request makes.
enum Change {
    Replace(Scale),
    Patch(PatchBody),
    Apply(ApplyBody, ApplyOptions),
}

impl Pipeline {
    pub(super) async fn scale(
        &self,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<HandlerResponse, Error> {
        let content_type = http.header(CONTENT_TYPE).to_string();
        let main = Target::main(target.kind, target.namespace, target.name);
        let object = match http.info.verb {
            "get" => self.get_now(ctx, &main).await?,
            "update" => {
                let body = http.body().await?;
                ctx.dry_run = http.query.write("UpdateOptions")?.dry_run;
                let json = to_json("Scale", &content_type, body)?;
                let scale: Scale = decode_document(ctx, "Scale", "autoscaling/v1", &json)?;
                check_names(target, &scale)?;
                self.rescale(ctx, &main, &Change::Replace(scale)).await?
            }
            _ => {
                let (_, apply) = patch_options(ctx, http)?;
                let body = http.body().await?;
                let change = match apply {
                    Some(options) => {
                        let body = ApplyBody::parse(&body)?;
                        body.check_type(&SCALE)?;
                        Change::Apply(body, options)
                    }
                    None => Change::Patch(PatchBody::parse(&content_type, &body)?),
                };
                self.rescale(ctx, &main, &change).await?
            }
        };
        let scale = scale_of(&object)?;
        Ok(HandlerResponse::Document(
            StatusCode::OK,
            codec::to_plain_value(&scale).map_err(Error::internal)?,
        ))
    }

    /// Replaces the scale, like a PUT.
    pub(crate) async fn replace_scale(
        &self,
        ctx: &mut Ctx,
        main: &Target<'_>,
        scale: Scale,
    ) -> Result<Scale, Error> {
        scale_of(&*self.rescale(ctx, main, &Change::Replace(scale)).await?)
    }

    async fn rescale(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        change: &Change,
    ) -> Result<Arc<Object>, Error> {
        // The managed fields of the replicas are set here; the object's other fields do not change.
        let manager = ctx.manager.take();
        ctx.admission_object = AdmissionObject::Scale;
        self.update(ctx, target, &Preconditions::default(), &mut |ctx, old| {
            let before = codec::to_plain_value(&scale_of(old)?).map_err(Error::internal)?;
            let parents = managed_fields::of(Some(old));
            let managers = parents.of_scale(target.kind);
            let (new, managers) = apply_change(ctx, change, before, managers, manager.as_deref())?;
            if !matches!(change, Change::Replace(_)) {
                check_names(target, &new)?;
            }
            let mut errors = scale::validate(&new);
            let path = Path::new("metadata");
            let labels = new.metadata.labels.as_ref();
            errors.extend(meta::labels(labels, &path.child("labels")));
            let annotations = new.metadata.annotations.as_ref();
            errors.extend(meta::annotations(annotations, &path.child("annotations")));
            if !errors.is_empty() {
                let about = ResourceRef {
                    group: "autoscaling",
                    resource: "Scale",
                    name: target.name,
                };
                return Err(Error::invalid(about, &errors));
            }
            let replicas = new.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
            let mut object = old.typed().clone_box();
            if !scale::set(target.kind, &mut *object, replicas) {
                return Err(not_served());
            }
            let meta = object.metadata_mut();
            if !parents.is_empty() {
                meta.managed_fields = parents.with_scale(target.kind, managers).encode();
            }
            meta.resource_version.clone_from(&new.metadata.resource_version);
            if let Some(uid) = new.metadata.uid {
                meta.uid = Some(uid);
            }
            Ok(object)
        })
        .await
    }
}

/// The scale after the change, and its managed fields.
fn apply_change(
    ctx: &Ctx,
    change: &Change,
    before: Value,
    managers: Managed,
    manager: Option<&str>,
) -> Result<(Scale, Managed), Error> {
    let now = seconds(ctx.now);
    let (new, after) = match change {
        Change::Apply(body, options) => {
            let by = ManagerId::new(&options.manager, Operation::Apply, &SCALE, "scale");
            let applied = managers
                .apply(&SCALE, &before, &body.config, by, options.force, now)
                .map_err(|error| body.apply_error(error))?;
            let mut after = applied.object.unwrap_or_else(|| before.clone());
            let was = &before["metadata"]["resourceVersion"];
            let given = body.config.pointer("/metadata/resourceVersion");
            if given.is_none() && after["metadata"]["resourceVersion"] == *was {
                remove_resource_version(&mut after);
            }
            let json = serde_json::to_vec(&after).map_err(Error::internal)?;
            let (new, ..) = codec::read::<Scale>(&json).map_err(|e| Error::new(500, "", e.message))?;
            return Ok((new, applied.managed));
        }
        Change::Replace(scale) => {
            let after = codec::to_plain_value(scale).map_err(Error::internal)?;
            (scale.clone(), after)
        }
        Change::Patch(patch) => {
            let mut after = before.clone();
            patch.apply_to_scale(&mut after)?;
            if after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"] {
                remove_resource_version(&mut after);
            }
            let json = serde_json::to_vec(&after).map_err(Error::internal)?;
            let (new, ..) =
                codec::read::<Scale>(&json).map_err(|e| patch.unprocessable(&after, &e.message))?;
            (new, after)
        }
    };
    let managers = match manager {
        Some(manager) if !managers.is_empty() => {
            let by = ManagerId::new(manager, Operation::Update, &SCALE, "scale");
            managers.update(&SCALE, &before, &after, by, now)
        }
        _ => managers,
    };
    Ok((new, managers))
}

/// Checks that name and namespace of a scale are those of the URL.
fn check_names(target: &Target<'_>, scale: &Scale) -> Result<(), Error> {
    match scale.metadata.name.as_deref().unwrap_or("") {
        "" => {
            return Err(Error::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                target.name
            )));
        }
        name if name != target.name => {
            return Err(Error::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                target.name
            )));
        }
        _ => {}
    }
    match scale.metadata.namespace.as_deref().unwrap_or("") {
        "" => Ok(()),
        namespace if namespace == target.namespace => Ok(()),
        _ => Err(Error::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}

/// Removes the resourceVersion: if the request did not change it, it is not a precondition.
fn remove_resource_version(scale: &mut Value) {
    if let Some(meta) = scale.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("resourceVersion");
    }
}

pub(crate) fn scale_of(object: &Object) -> Result<Scale, Error> {
    if let Some(custom) = object.get::<CustomObject>()
        && !custom.has_replicas()
    {
        let path = custom.replicas_path();
        return Err(Error::internal(format!(
            "the spec replicas field {path:?} does not exist"
        )));
    }
    scale::get(object.kind(), object).ok_or_else(not_served)
}
