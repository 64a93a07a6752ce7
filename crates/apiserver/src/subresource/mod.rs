//! Subresources, one file each.

mod access_review;
mod binding;
mod connect;
mod eviction;
pub(crate) mod node_stream;
pub(crate) mod proxy;
mod review;
pub(crate) mod scale;
mod token;

use std::sync::Arc;

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Binding;
use k8s_openapi::api::policy::v1::Eviction;
use knarr_api::k8s_openapi;
use knarr_apimachinery::Error;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::node_stream::Connector;
use crate::authn::Authenticator;
use crate::http::Http;
use crate::http::patch::patch_request;
use crate::http::response::{HandlerResponse, success};
use crate::pipeline::Pipeline;
use crate::pipeline::decode::{decode_body, decode_document, decode_value};
use crate::request::{Ctx, Target, not_allowed, not_served};

/// Subresources that read and write fields of the object itself.
const OBJECT_SUBRESOURCES: [&str; 5] = ["status", "ephemeralcontainers", "resize", "approval", "finalize"];

/// Serves subresources, and reviews, which are created but not stored.
pub(crate) struct Subresources {
    pub pipeline: Arc<Pipeline>,
    pub authenticator: Arc<Authenticator>,
    pub connector: Connector,
}

impl Subresources {
    /// A request for a subresource that the kind has.
    pub async fn serve(
        &self,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<HandlerResponse, Error> {
        let Some(served) = target.kind.subresource(target.subresource) else {
            return Err(not_served());
        };
        // The backend of a proxy may support any method.
        let proxied_options = served.name == "proxy" && http.method == Method::OPTIONS;
        if !proxied_options && !served.verbs.contains(&http.info.verb) {
            return Err(not_allowed());
        }
        match target.subresource {
            name if OBJECT_SUBRESOURCES.contains(&name) => self.object_subresource(ctx, http, target).await,
            "scale" => self.pipeline.scale(ctx, http, target).await,
            "log" => self.connector.log(http, target).await,
            "exec" | "attach" | "portforward" | "proxy" => {
                self.connector.connect_request(ctx, http, target, served).await
            }
            "binding" | "eviction" | "token" => {
                let options = http.query.write("CreateOptions")?;
                ctx.dry_run = options.dry_run;
                let json = http.json_body(served.kind(target.kind)).await?;
                let kind = served.kind(target.kind);
                let body = decode_value(kind, version_of(kind), &json)?;
                let answer = self.create_subresource(ctx, target, body).await?;
                Ok(HandlerResponse::Document(StatusCode::CREATED, answer))
            }
            _ => Err(not_served()),
        }
    }

    async fn object_subresource(
        &self,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<HandlerResponse, Error> {
        let object = match http.info.verb {
            "get" => self.pipeline.get_now(ctx, target).await?,
            "update" => {
                let options = http.query.write("UpdateOptions")?;
                ctx.dry_run = options.dry_run;
                let kind = target.kind;
                let json = http.json_body(kind.kind()).await?;
                let object = decode_body(ctx, kind, &json, options.validation)?;
                self.pipeline.put(ctx, target, object).await?.object
            }
            _ => patch_request(&self.pipeline, ctx, http, target).await?.object,
        };
        Ok(HandlerResponse::Object(StatusCode::OK, object))
    }

    /// Creates a `binding`, `eviction` or `token`, from and to JSON.
    pub(crate) async fn create_subresource(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: Value,
    ) -> Result<Value, Error> {
        let body = self.pipeline.admit_request(ctx, target, body).await?;
        match target.subresource {
            "binding" => {
                let binding = decode(ctx, "Binding", body)?;
                self.pipeline.bind(ctx, target, binding).await?;
                success(Some(201), None)
            }
            "eviction" => {
                let eviction = decode_eviction(ctx, body)?;
                self.pipeline.evict(ctx, target, eviction).await
            }
            "token" => {
                let request = decode(ctx, "TokenRequest", body)?;
                self.token(ctx, target, request).await
            }
            _ => Err(not_served()),
        }
    }

    /// Creates a `binding` of a component of this process.
    pub(crate) async fn create_binding(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut binding: Binding,
    ) -> Result<(), Error> {
        if let Some(document) = self.pipeline.admit_binding(ctx, target, &binding).await? {
            binding = decode(ctx, "Binding", document)?;
        }
        self.pipeline.bind(ctx, target, binding).await
    }
}

fn decode<T: DeserializeOwned>(ctx: &mut Ctx, kind: &str, body: Value) -> Result<T, Error> {
    let json = serde_json::to_vec(&body).map_err(Error::internal)?;
    decode_document(ctx, kind, version_of(kind), &json)
}

/// The group and version of a document that a subresource takes.
fn version_of(kind: &str) -> &'static str {
    match kind {
        "Eviction" => "policy/v1",
        "TokenRequest" => "authentication.k8s.io/v1",
        _ => "v1",
    }
}

/// Decodes an Eviction. policy/v1beta1 has the same fields.
fn decode_eviction(ctx: &mut Ctx, mut body: Value) -> Result<Eviction, Error> {
    if body.get("apiVersion").and_then(Value::as_str) == Some("policy/v1beta1") {
        body["apiVersion"] = "policy/v1".into();
    }
    decode(ctx, "Eviction", body)
}
