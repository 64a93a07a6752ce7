//! `scale`: the number of replicas, for whoever needs to know nothing else of a kind.

use std::sync::Arc;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_api::custom::CustomObject;
use knarr_api::error::About;
use knarr_api::field::{Errors, Path};
use knarr_api::scale::made;
use knarr_api::{AnyObject, Error, Object, codec, k8s_openapi};
use knarr_client::Preconditions;

use crate::http::Http;
use crate::http::answer::Answer;
use crate::pipeline::decode::to_json;
use crate::pipeline::patch::PatchBody;
use crate::pipeline::{Ctx, Target, not_served};
use crate::server::Server;

impl Server {
    pub(super) async fn scale(
        &self,
        ctx: &mut Ctx,
        http: &mut Http,
        target: &Target<'_>,
    ) -> Result<Answer, Error> {
        let content_type = http.header(CONTENT_TYPE).to_string();
        let body = http.body().await?;
        let main = Target::main(target.kind, target.namespace, target.name);
        let object = match http.info.verb {
            "get" => self.get(&main)?,
            "update" => {
                ctx.dry_run = http.query.write("UpdateOptions")?.dry_run;
                let json = to_json("Scale", &content_type, body)?;
                let scale: Scale = serde_json::from_slice(&json).map_err(not_a_scale)?;
                if let Some(name) = scale.metadata.name.as_deref().filter(|n| *n != target.name) {
                    return Err(Error::bad_request(format!(
                        "the name of the object ({name}) does not match the name on the URL ({})",
                        target.name
                    )));
                }
                self.rescale(ctx, &main, &mut |_| Ok(scale.clone())).await?
            }
            _ => {
                ctx.dry_run = http.query.write("PatchOptions")?.dry_run;
                let patch = PatchBody::parse(&content_type, &body)?;
                self.rescale(ctx, &main, &mut |old| {
                    let mut document = serde_json::to_value(old).map_err(Error::internal)?;
                    let was = document["metadata"]["resourceVersion"].clone();
                    patch.apply_to_scale(&mut document)?;
                    let json = serde_json::to_vec(&document).map_err(Error::internal)?;
                    let (mut new, ..) = codec::read::<Scale>(&json)
                        .map_err(|e| patch.unprocessable(&document, &e.message))?;
                    if new.metadata.resource_version.as_deref() == was.as_str() {
                        new.metadata.resource_version = None;
                    }
                    Ok(new)
                })
                .await?
            }
        };
        let scale = scale_of(&object)?;
        Ok(Answer::Document(
            StatusCode::OK,
            serde_json::to_value(scale).map_err(Error::internal)?,
        ))
    }

    async fn rescale(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        change: &mut (dyn FnMut(&Scale) -> Result<Scale, Error> + Send),
    ) -> Result<Arc<Object>, Error> {
        self.update(ctx, target, &Preconditions::default(), &mut |_, old| {
            let new = change(&scale_of(old)?)?;
            let replicas = new.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
            if replicas < 0 {
                let mut mistakes = Errors::new();
                mistakes.invalid(
                    &Path::new("spec").child("replicas"),
                    replicas,
                    "must be greater than or equal to 0",
                );
                let about = About {
                    group: "autoscaling",
                    resource: "Scale",
                    name: target.name,
                };
                return Err(Error::invalid(about, &mistakes));
            }
            let mut object = old.typed().clone_box();
            set_replicas(&mut *object, replicas)?;
            let meta = object.metadata_mut();
            // Kinds whose updates must say what they saw have seen what is scaled here.
            if new.metadata.resource_version.is_some() || target.kind.ops.unconditional_update() {
                meta.resource_version = new.metadata.resource_version.clone();
            }
            if let Some(uid) = new.metadata.uid {
                meta.uid = Some(uid);
            }
            Ok(object)
        })
        .await
    }
}

fn not_a_scale(error: serde_json::Error) -> Error {
    Error::bad_request(format!(
        "Scale in version \"v1\" cannot be handled as a Scale: {error}"
    ))
}

fn set_replicas(object: &mut dyn AnyObject, replicas: i32) -> Result<(), Error> {
    let any = object.as_any_mut();
    if let Some(custom) = any.downcast_mut::<CustomObject>() {
        return match custom.set_replicas(replicas) {
            true => Ok(()),
            false => Err(not_served()),
        };
    }
    if let Some(o) = any.downcast_mut::<Deployment>() {
        o.spec.get_or_insert_default().replicas = Some(replicas);
    } else if let Some(o) = any.downcast_mut::<ReplicaSet>() {
        o.spec.get_or_insert_default().replicas = Some(replicas);
    } else if let Some(o) = any.downcast_mut::<StatefulSet>() {
        o.spec.get_or_insert_default().replicas = Some(replicas);
    } else if let Some(o) = any.downcast_mut::<ReplicationController>() {
        o.spec.get_or_insert_default().replicas = Some(replicas);
    } else {
        return Err(not_served());
    }
    Ok(())
}

fn scale_of(object: &Object) -> Result<Scale, Error> {
    if let Some(custom) = object.get::<CustomObject>() {
        if !custom.has_replicas() {
            let path = custom.replicas_path();
            return Err(Error::internal(format!(
                "the spec replicas field {path:?} does not exist"
            )));
        }
        return custom.scale().ok_or_else(not_served);
    }
    let (wanted, found, selector) = if let Some(o) = object.get::<Deployment>() {
        let spec = o.spec.clone().unwrap_or_default();
        (
            spec.replicas,
            o.status.as_ref().and_then(|s| s.replicas),
            text(&spec.selector),
        )
    } else if let Some(o) = object.get::<ReplicaSet>() {
        let spec = o.spec.clone().unwrap_or_default();
        (
            spec.replicas,
            o.status.as_ref().map(|s| s.replicas),
            text(&spec.selector),
        )
    } else if let Some(o) = object.get::<StatefulSet>() {
        let spec = o.spec.clone().unwrap_or_default();
        (
            spec.replicas,
            o.status.as_ref().map(|s| s.replicas),
            text(&spec.selector),
        )
    } else if let Some(o) = object.get::<ReplicationController>() {
        let spec = o.spec.clone().unwrap_or_default();
        let selector = LabelSelector {
            match_labels: spec.selector,
            ..LabelSelector::default()
        };
        (
            spec.replicas,
            o.status.as_ref().map(|s| s.replicas),
            text(&selector),
        )
    } else {
        return Err(not_served());
    };
    Ok(made(object.metadata(), wanted, found, &selector))
}

/// A selector in the query string's syntax, its requirements sorted by key.
fn text(selector: &LabelSelector) -> String {
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        terms.push((key.clone(), format!("{key}={value}")));
    }
    for e in selector.match_expressions.iter().flatten() {
        let mut values = e.values.clone().unwrap_or_default();
        values.sort();
        let key = &e.key;
        let term = match e.operator.as_str() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            _ => continue,
        };
        terms.push((key.clone(), term));
    }
    terms.sort();
    terms.into_iter().map(|(_, t)| t).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    #[test]
    fn a_selector_is_written_as_the_query_string_has_it() {
        let expression = |key: &str, operator: &str, values: &[&str]| LabelSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(ToString::to_string).collect()),
        };
        let selector = LabelSelector {
            match_labels: Some([("b".to_string(), "1".to_string())].into()),
            match_expressions: Some(vec![
                expression("a", "In", &["y", "x"]),
                expression("c", "DoesNotExist", &[]),
            ]),
        };
        assert_eq!(text(&selector), "a in (x,y),b=1,!c");
    }
}
