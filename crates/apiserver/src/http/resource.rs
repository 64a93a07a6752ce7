//! Requests for resources: from the URL and the body to the pipeline, and back.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions as WireDeleteOptions, StatusDetails};
use knarr_api::registry::ServedKinds;
use knarr_api::{Kind, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_client::{DeleteOptions, Preconditions, Propagation};

use super::body::Body;
use super::patch::patch_request;
use super::query::check_dry_run;
use super::response::{HandlerResponse, success, text, watch_error_response};
use super::{Http, encoded};
use crate::metrics::Metrics;
use crate::pipeline::Pipeline;
use crate::pipeline::commit::Committed;
use crate::pipeline::decode::{decode_body, syntax, to_json};
use crate::pipeline::read::{bad_revision, invalid_options};
use crate::pipeline::write::DeleteRequest;
use crate::request::{Ctx, Target, not_allowed, not_served};
use crate::subresource::Subresources;

/// Kinds for which DELETE returns the object; others return a Status.
const RETURN_DELETED: [&Kind; 17] = [
    &registry::POD,
    &registry::NAMESPACE,
    &registry::SERVICE,
    &registry::SERVICE_ACCOUNT,
    &registry::PERSISTENT_VOLUME,
    &registry::PERSISTENT_VOLUME_CLAIM,
    &registry::RESOURCE_QUOTA,
    &registry::POD_TEMPLATE,
    &registry::CSI_DRIVER,
    &registry::CSI_NODE,
    &registry::STORAGE_CLASS,
    &registry::VOLUME_ATTACHMENT,
    &registry::VOLUME_ATTRIBUTES_CLASS,
    &registry::RESOURCE_CLAIM,
    &registry::RESOURCE_CLAIM_TEMPLATE,
    &registry::RESOURCE_SLICE,
    &registry::DEVICE_CLASS,
];

/// Serves requests for resources and their subresources.
pub(crate) struct Resources {
    pub pipeline: Arc<Pipeline>,
    pub subresources: Arc<Subresources>,
    pub metrics: Arc<Metrics>,
}

impl Resources {
    pub async fn serve(&self, ctx: &mut Ctx, http: &mut Http) -> Result<Response<Body>, Error> {
        let info = http.info.clone();
        let kind = self
            .pipeline
            .kind_of_resource(&info.group, &info.version, &info.resource);
        let Some(kind) = kind.await? else {
            return not_found(&self.pipeline.cache.served(), &info.group, &info.version);
        };
        let kind = &kind;
        let target = Target::of_request(kind, &info)?;
        // HEAD is served only by proxied servers.
        if http.method == http::Method::HEAD && info.subresource != "proxy" {
            return Err(not_allowed());
        }
        if let Some(warning) = kind.deprecation() {
            self.metrics.deprecated(kind, &info.subresource);
            ctx.warn(warning);
        } else if let Some(warning) = kind.ops.custom().and_then(|c| c.rules().deprecation.as_deref()) {
            ctx.warn(warning);
        }
        let response = if info.subresource.is_empty() {
            check_verb(kind, http)?;
            self.main_resource(ctx, http, &target).await?
        } else {
            self.subresources.serve(ctx, http, &target).await?
        };
        response.render(http.format)
    }

    async fn main_resource(
        &self,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<HandlerResponse, Error> {
        let kind = target.kind;
        match http.info.verb {
            "get" => {
                self.check_get_version(http).await?;
                Ok(HandlerResponse::Object(
                    StatusCode::OK,
                    self.pipeline.get_now(ctx, target).await?,
                ))
            }
            "list" => {
                let listed = self
                    .pipeline
                    .list(kind, target.namespace, &http.query.list()?)
                    .await?;
                Ok(HandlerResponse::List(kind.clone(), listed))
            }
            "watch" => match self
                .pipeline
                .watch(kind, target.namespace, target.name, &http.query.watch()?)
                .await
            {
                Ok(watcher) => Ok(HandlerResponse::Watch(watcher)),
                Err(e) if e.code() == 410 => Ok(HandlerResponse::Raw(watch_error_response(&e))),
                Err(e) => Err(e),
            },
            "create" => {
                let options = http.query.write("CreateOptions")?;
                ctx.dry_run = options.dry_run;
                let json = http.json_body(kind.kind()).await?;
                let object = decode_body(ctx, kind, &json, options.validation)?;
                http.decoded(&*object);
                if !kind.is_stored() {
                    // The decoded object is used: another parser could find something else in the same bytes.
                    let body = encoded(&*object);
                    let body = serde_json::from_slice(&body).map_err(Error::internal)?;
                    return Ok(HandlerResponse::Document(
                        StatusCode::CREATED,
                        self.subresources.review(ctx, target, body, object).await?,
                    ));
                }
                Ok(HandlerResponse::Object(
                    StatusCode::CREATED,
                    self.pipeline.create(ctx, target, object).await?,
                ))
            }
            "update" => {
                let options = http.query.write("UpdateOptions")?;
                ctx.dry_run = options.dry_run;
                let json = http.json_body(kind.kind()).await?;
                let object = decode_body(ctx, kind, &json, options.validation)?;
                http.decoded(&*object);
                let updated = self.pipeline.put(ctx, target, object).await?;
                let code = if updated.created {
                    StatusCode::CREATED
                } else {
                    StatusCode::OK
                };
                Ok(HandlerResponse::Object(code, updated.object))
            }
            "patch" => {
                let patched = patch_request(&self.pipeline, ctx, http, target).await?;
                let code = if patched.created {
                    StatusCode::CREATED
                } else {
                    StatusCode::OK
                };
                Ok(HandlerResponse::Object(code, patched.object))
            }
            "delete" => {
                let request = delete_request(ctx, http).await?;
                let deleted = self.pipeline.delete(ctx, target, &request).await?;
                deletion_response(target, deleted, &request)
            }
            "deletecollection" => {
                let query = http.query.list()?;
                let request = delete_request(ctx, http).await?;
                Ok(HandlerResponse::List(
                    kind.clone(),
                    self.pipeline
                        .delete_collection(ctx, target, &query, &request)
                        .await?,
                ))
            }
            _ => Err(not_allowed()),
        }
    }

    /// A GET may require a minimum resourceVersion.
    async fn check_get_version(&self, http: &Http) -> Result<(), Error> {
        match http.query.get("resourceVersion") {
            "" => Ok(()),
            text => {
                let at = text
                    .parse()
                    .map_err(|_| Error::new(500, "", bad_revision(text)))?;
                self.pipeline.wait_for_revision(at).await
            }
        }
    }
}

/// The response for a resource that is not served: 404 as a Status in built-in groups, as kube-apiserver's router answers, and as a
/// plain page in all others.
pub(super) fn not_found(served: &ServedKinds, group: &str, version: &str) -> Result<Response<Body>, Error> {
    let known = registry::groups().iter().any(|(built_in, _)| *built_in == group)
        || served
            .groups()
            .iter()
            .any(|(g, versions)| *g == group && versions.contains(&version));
    match known {
        true => Err(not_served()),
        false => Ok(text(StatusCode::NOT_FOUND, "404 page not found\n")),
    }
}

fn check_verb(kind: &Kind, http: &Http) -> Result<(), Error> {
    let info = &http.info;
    let misplaced = match info.verb {
        "create" => !info.name.is_empty(),
        "update" | "patch" => info.name.is_empty(),
        _ => false,
    };
    if misplaced || !kind.verbs.contains(&info.verb) {
        return Err(not_allowed());
    }
    Ok(())
}

/// DeleteOptions of the body if there is one, else of the query.
pub(super) async fn delete_request(ctx: &mut Ctx, http: &mut Http) -> Result<DeleteRequest, Error> {
    let body = http.body().await?;
    let wire = if body.is_empty() {
        let query = &http.query;
        let orphan = query
            .has("orphanDependents")
            .then(|| query.flag("orphanDependents"));
        let policy = Some(query.get("propagationPolicy").to_string()).filter(|p| !p.is_empty());
        let dry_run: Vec<String> = query.all("dryRun").map(str::to_string).collect();
        WireDeleteOptions {
            grace_period_seconds: query.int("gracePeriodSeconds")?,
            orphan_dependents: orphan,
            propagation_policy: policy,
            dry_run: (!dry_run.is_empty()).then_some(dry_run),
            ..WireDeleteOptions::default()
        }
    } else {
        let json = to_json("DeleteOptions", http.header(CONTENT_TYPE), body)?;
        read_delete_options(&json)?
    };
    let mut errors = ErrorList::new();
    if let (Some(_), Some(policy)) = (wire.orphan_dependents, &wire.propagation_policy) {
        errors.invalid(
            &Path::new("propagationPolicy"),
            policy,
            "orphanDependents and deletionPropagation cannot be both set",
        );
    }
    let dry_run: Vec<&str> = wire.dry_run.iter().flatten().map(String::as_str).collect();
    ctx.dry_run = check_dry_run(&dry_run, &mut errors);
    let propagation = match wire.propagation_policy.as_deref() {
        None => None,
        Some("Orphan") => Some(Propagation::Orphan),
        Some("Background") => Some(Propagation::Background),
        Some("Foreground") => Some(Propagation::Foreground),
        Some(other) => {
            errors.push(knarr_apimachinery::field::FieldError {
                cause: knarr_apimachinery::field::Cause::NotSupported,
                field: "propagationPolicy".into(),
                value: Some(format!("{other:?}")),
                detail: "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"".into(),
            });
            None
        }
    };
    if !errors.is_empty() {
        return Err(invalid_options("DeleteOptions", &errors));
    }
    let preconditions = wire.preconditions.unwrap_or_default();
    Ok(DeleteRequest {
        options: DeleteOptions {
            grace_period_seconds: wire.grace_period_seconds,
            preconditions: Preconditions {
                uid: preconditions.uid,
                resource_version: preconditions.resource_version,
            },
            propagation,
        },
        orphan_dependents: wire.orphan_dependents,
        pod_condition: None,
    })
}

fn read_delete_options(json: &[u8]) -> Result<WireDeleteOptions, Error> {
    let value: serde_json::Value = serde_json::from_slice(json).map_err(|e| {
        Error::bad_request(format!(
            "couldn't get version/kind; json parse error: {}",
            syntax(json, &e)
        ))
    })?;
    if value.is_array() {
        return Err(Error::bad_request(
            "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct \
             { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
             \"json:\\\"kind,omitempty\\\"\" }",
        ));
    }
    let text = |field: &str| value.get(field).and_then(|v| v.as_str()).unwrap_or("");
    let (kind, version) = (text("kind"), text("apiVersion"));
    if !kind.is_empty() && kind != "DeleteOptions" {
        return Err(Error::bad_request(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \
\"pkg/apis/meta/internalversion/scheme/register.go:27\""
        )));
    }
    for (field, of) in [("gracePeriodSeconds", "int64")] {
        if let Some(found) = value.get(field)
            && !found.is_null()
            && !found.is_i64()
        {
            let what = match found {
                serde_json::Value::String(_) => "string".to_string(),
                serde_json::Value::Bool(_) => "bool".to_string(),
                serde_json::Value::Array(_) => "array".to_string(),
                serde_json::Value::Object(_) => "object".to_string(),
                other => format!("number {other}"),
            };
            return Err(Error::bad_request(format!(
                "json: cannot unmarshal {what} into Go struct field DeleteOptions.{field} of type {of}"
            )));
        }
    }
    serde_json::from_value(value).map_err(|e| Error::bad_request(e.to_string()))
}

fn deletion_response(
    target: &Target<'_>,
    deleted: Committed,
    request: &DeleteRequest,
) -> Result<HandlerResponse, Error> {
    if deleted.removed && !RETURN_DELETED.contains(&target.kind) {
        let details = StatusDetails {
            name: Some(target.name.to_string()),
            group: Some(target.kind.group().to_string()).filter(|g| !g.is_empty()),
            kind: Some(target.kind.plural().to_string()),
            uid: Some(deleted.object.uid().to_string()),
            ..StatusDetails::default()
        };
        return Ok(HandlerResponse::Document(
            StatusCode::OK,
            success(None, Some(details))?,
        ));
    }
    // `orphanDependents: false` deletes in the foreground: 202 while the object still exists.
    let code = if !deleted.removed && request.orphan_dependents == Some(false) {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    Ok(HandlerResponse::Object(code, deleted.object))
}
