//! Subresources: parts of an object with a door of their own, one file a door.

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
use knarr_api::{Error, registry};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::admission::extension::Operation;
use crate::http::Http;
use crate::http::answer::Answer;
use crate::pipeline::decode::{decode_body, decode_document, decode_value};
use crate::pipeline::{Ctx, Target, not_allowed, not_served};
use crate::server::Server;

/// Subresources that read and write the object itself, as one of its parts.
const PARTS: [&str; 5] = ["status", "ephemeralcontainers", "resize", "approval", "finalize"];

impl Server {
    /// A request for a subresource that the kind has.
    pub(crate) async fn subresource(
        self: &Arc<Self>,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<Answer, Error> {
        let Some(served) = target.kind.subresource(target.subresource) else {
            return Err(not_served());
        };
        // Whatever is behind a proxy may answer any method.
        let any = served.name == "proxy" && http.method == Method::OPTIONS;
        if !any && !served.verbs.contains(&http.info.verb) {
            return Err(not_allowed());
        }
        match target.subresource {
            part if PARTS.contains(&part) => self.part(ctx, http, target).await,
            "scale" => self.scale(ctx, http, target).await,
            "log" => self.log(http, target).await,
            "exec" | "attach" | "portforward" | "proxy" => {
                self.connect_request(ctx, http, target, served).await
            }
            "binding" | "eviction" | "token" => {
                let options = http.query.write("CreateOptions")?;
                ctx.dry_run = options.dry_run;
                let json = http.json_body(served.kind(target.kind)).await?;
                let kind = served.kind(target.kind);
                let body = decode_value(kind, version_of(kind), &json)?;
                let answer = self.create_subresource(ctx, target, body).await?;
                Ok(Answer::Document(StatusCode::CREATED, answer))
            }
            _ => Err(not_served()),
        }
    }

    async fn part(&self, ctx: &mut Ctx, http: &mut Http, target: &Target<'_>) -> Result<Answer, Error> {
        let object = match http.info.verb {
            "get" => self.get_now(ctx, target).await?,
            "update" => {
                let options = http.query.write("UpdateOptions")?;
                ctx.dry_run = options.dry_run;
                let kind = target.kind;
                let json = http.json_body(kind.kind()).await?;
                let object = decode_body(ctx, kind, &json, options.validation)?;
                self.put(ctx, target, object).await?.object
            }
            _ => self.patch_request(ctx, http, target).await?.object,
        };
        Ok(Answer::Object(StatusCode::OK, object))
    }

    /// `binding`, `eviction` and `token`: documents in, documents out.
    pub(crate) async fn create_subresource(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: Value,
    ) -> Result<Value, Error> {
        self.catch_up(ctx).await?;
        self.admit_in_namespace(target)?;
        let namespace = body.pointer("/metadata/namespace").and_then(Value::as_str);
        if namespace.is_some_and(|n| !n.is_empty() && n != target.namespace) {
            return Err(Error::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        let body = self.mutate_part(ctx, target, Operation::Create, body).await?;
        self.restrict_node_request(ctx, target, &body)?;
        match target.subresource {
            "binding" if *target.kind == registry::POD => {
                let binding = read(ctx, "Binding", body)?;
                self.bind(ctx, target, binding).await
            }
            "eviction" if *target.kind == registry::POD => {
                let eviction = read_eviction(ctx, body)?;
                self.evict(ctx, target, eviction).await
            }
            "token" if *target.kind == registry::SERVICE_ACCOUNT => {
                let request = read(ctx, "TokenRequest", body)?;
                self.token(ctx, target, request).await
            }
            _ => Err(not_served()),
        }
    }
}

fn read<T: DeserializeOwned>(ctx: &mut Ctx, kind: &str, body: Value) -> Result<T, Error> {
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

/// The older version says the same.
fn read_eviction(ctx: &mut Ctx, mut body: Value) -> Result<k8s_openapi::api::policy::v1::Eviction, Error> {
    if body.get("apiVersion").and_then(Value::as_str) == Some("policy/v1beta1") {
        body["apiVersion"] = "policy/v1".into();
    }
    read(ctx, "Eviction", body)
}

use knarr_api::k8s_openapi;
