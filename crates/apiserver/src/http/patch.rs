//! PATCH requests: their media type, their options, and their body.

use http::header::CONTENT_TYPE;
use knarr_apimachinery::Error;
use knarr_apimachinery::field::{ErrorList, Path};

use super::Http;
use crate::pipeline::Pipeline;
use crate::pipeline::apply::{ApplyBody, ApplyOptions};
use crate::pipeline::decode::FieldValidation;
use crate::pipeline::patch::PatchBody;
use crate::pipeline::read::invalid_options;
use crate::pipeline::update::Updated;
use crate::request::{Ctx, Target};

/// The media type of server-side apply.
const APPLY: &str = "application/apply-patch+yaml";

/// PATCH of an object or of a subresource that has the object's form.
pub(crate) async fn patch_request(
    pipeline: &Pipeline,
    ctx: &mut Ctx,
    http: &mut Http,
    target: &Target<'_>,
) -> Result<Updated, Error> {
    let content_type = http.header(CONTENT_TYPE).to_string();
    let (validation, apply) = patch_options(ctx, http)?;
    let body = http.body().await?;
    if let Some(options) = apply {
        return pipeline
            .apply(ctx, target, &ApplyBody::parse(&body)?, &options)
            .await;
    }
    let body = PatchBody::parse_for(target.kind, &content_type, &body)?;
    let object = pipeline.patch(ctx, target, &body, validation).await?;
    Ok(Updated {
        object,
        created: false,
    })
}

/// The options of a PATCH; the second value is set for a server-side apply.
pub(crate) fn patch_options(
    ctx: &mut Ctx,
    http: &Http,
) -> Result<(FieldValidation, Option<ApplyOptions>), Error> {
    let options = http.query.write("PatchOptions")?;
    ctx.dry_run = options.dry_run;
    let content_type = http.header(CONTENT_TYPE);
    let is_apply = content_type.split(';').next().is_some_and(|t| t.trim() == APPLY);
    let mut errors = ErrorList::new();
    if is_apply && http.query.get("fieldManager").is_empty() {
        errors.required(&Path::new("fieldManager"), "is required for apply patch");
    }
    if !is_apply && http.query.has("force") {
        errors.forbidden(&Path::new("force"), "may not be specified for non-apply patch");
    }
    if !errors.is_empty() {
        return Err(invalid_options("PatchOptions", &errors));
    }
    let apply = is_apply.then(|| ApplyOptions {
        manager: http.query.get("fieldManager").to_string(),
        force: http.query.flag("force"),
        validation: options.validation,
    });
    Ok((options.validation, apply))
}
