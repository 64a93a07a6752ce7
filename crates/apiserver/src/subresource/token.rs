//! `serviceaccounts/token`: issues a token for a service account, with expiration, audiences and optionally a bound object.

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::{Kind, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use knarr_apimachinery::error::ResourceRef;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::time;
use serde_json::Value;

use super::Subresources;
use crate::admission::Operation;
use crate::authn::service_account::{KubernetesClaims, ObjectReference};
use crate::request::{Ctx, Target};
use crate::seams;

const SECONDS_DEFAULT: i64 = 3600;
const SECONDS_MIN: i64 = 600;
const SECONDS_MAX: i64 = 1 << 32;
/// The lifetime that pods' projected tokens request; they get a year, and are to be renewed within the hour.
const PROJECTED_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

const ABOUT: ResourceRef<'static> = ResourceRef {
    group: "authentication.k8s.io",
    resource: "TokenRequest",
    name: "",
};

impl Subresources {
    pub(super) async fn token(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut request: TokenRequest,
    ) -> Result<Value, Error> {
        let meta = &mut request.metadata;
        let mut errors = ErrorList::new();
        for (field, given, is) in [
            ("name", &meta.name, target.name),
            ("namespace", &meta.namespace, target.namespace),
        ] {
            if let Some(given) = given.as_deref().filter(|g| !g.is_empty() && *g != is) {
                let what = if field == "name" { "name" } else { "namespace" };
                errors.invalid(
                    &Path::new("metadata").child(field),
                    given,
                    format!("must match the service account {what} if specified"),
                );
            }
        }
        let about = ResourceRef {
            name: target.name,
            ..ABOUT
        };
        if !errors.is_empty() {
            return Err(Error::invalid(about, &errors));
        }
        let account = self
            .pipeline
            .get(&Target::main(target.kind, target.namespace, target.name))?;
        if let Some(given) = meta
            .uid
            .as_deref()
            .filter(|u| !u.is_empty() && *u != account.uid())
        {
            return Err(Error::conflict(
                about,
                &format!(
                    "the UID in the token request ({given}) does not match the UID of the service account ({})",
                    account.uid()
                ),
            ));
        }
        meta.name = Some(account.name().to_string());
        meta.namespace = Some(account.namespace().to_string());
        meta.uid = Some(account.uid().to_string());
        meta.creation_timestamp = Some(time::seconds(ctx.now));
        let spec = request.spec.get_or_insert_default();
        let audiences = match spec.audiences.take() {
            Some(given) if !given.is_empty() => given,
            _ => self.authenticator.tokens.default_audiences().to_vec(),
        };
        spec.audiences = Some(audiences.clone());
        let seconds = spec.expiration_seconds.unwrap_or(SECONDS_DEFAULT);
        spec.expiration_seconds = Some(seconds);
        let path = Path::new("spec").child("expirationSeconds");
        if seconds < SECONDS_MIN {
            errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > SECONDS_MAX {
            errors.invalid(
                &path,
                seconds,
                "may not specify a duration larger than 2^32 seconds",
            );
        }
        if !errors.is_empty() {
            return Err(Error::invalid(ABOUT, &errors));
        }
        let bound_object_ref = spec.bound_object_ref.clone();
        let document_for_admission = codec::to_plain_value(&request).map_err(Error::internal)?;
        self.pipeline
            .admission
            .validate_request_object(ctx, target, Operation::Create, &document_for_admission)
            .await?;
        let mut bound = KubernetesClaims {
            namespace: account.namespace().to_string(),
            serviceaccount: ObjectReference {
                name: account.name().to_string(),
                uid: account.uid().to_string(),
            },
            pod: None,
            secret: None,
            node: None,
            warnafter: None,
        };
        if let Some(to) = &bound_object_ref {
            self.bind_to_object(&mut bound, to)?;
        }
        let own = || self.authenticator.tokens.default_audiences();
        let extend = bound.pod.is_some()
            && seconds == PROJECTED_SECONDS
            && audiences.iter().all(|a| own().contains(a));
        let lifetime_seconds = if extend { EXTENDED_SECONDS } else { seconds };
        bound.warnafter = extend.then(|| ctx.now.as_second() + seconds);
        let id = seams::uid(&*self.pipeline.entropy);
        let token = self
            .authenticator
            .tokens
            .sign(bound, audiences, ctx.now, lifetime_seconds, id)
            .map_err(Error::internal)?;
        let unbound = bound_object_ref.is_none();
        request.status = Some(TokenRequestStatus {
            expiration_timestamp: Some(time::seconds(ctx.now + SignedDuration::from_secs(seconds))),
            token: Some(token),
        });
        let mut document = codec::to_plain_value(&request).map_err(Error::internal)?;
        // As in Go, where this field is not omitted.
        if unbound {
            document["spec"]["boundObjectRef"] = Value::Null;
        }
        Ok(document)
    }

    fn bind_to_object(&self, bound: &mut KubernetesClaims, to: &BoundObjectReference) -> Result<(), Error> {
        let name = to.name.clone().unwrap_or_default();
        let (version, kind) = (
            to.api_version.as_deref().unwrap_or(""),
            to.kind.as_deref().unwrap_or(""),
        );
        let lookup = |kind: &Kind, namespace: &str| self.pipeline.get(&Target::main(kind, namespace, &name));
        // Any version of the core group is accepted.
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let found = match (group, kind) {
            ("", "Pod") => {
                let object = lookup(&registry::POD, &bound.namespace)?;
                let spec = object
                    .get::<Pod>()
                    .and_then(|p| p.spec.clone())
                    .unwrap_or_default();
                let account = &bound.serviceaccount.name;
                if spec.service_account_name.as_ref() != Some(account) {
                    return Err(Error::bad_request(format!(
                        "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                    )));
                }
                bound.pod = Some(reference(&object));
                bound.node = spec
                    .node_name
                    .filter(|n| !n.is_empty())
                    .map(|name| ObjectReference {
                        uid: self
                            .pipeline
                            .cache
                            .get(&registry::NODE, "", &name)
                            .map_or(String::new(), |n| n.uid().to_string()),
                        name,
                    });
                object
            }
            ("", "Secret") => {
                let object = lookup(&registry::SECRET, &bound.namespace)?;
                bound.secret = Some(reference(&object));
                object
            }
            ("", "Node") => {
                let object = lookup(&registry::NODE, "")?;
                bound.node = Some(reference(&object));
                object
            }
            _ => {
                let (group, version) = version.split_once('/').unwrap_or(("", version));
                return Err(Error::bad_request(format!(
                    "cannot bind token to object of type {group}/{version}, Kind={kind}"
                )));
            }
        };
        match to.uid.as_deref().filter(|u| !u.is_empty()) {
            Some(uid) if uid != found.uid() => Err(Error::conflict(
                ResourceRef {
                    group: "",
                    resource: kind,
                    name: &name,
                },
                &format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. \
The object might have been deleted and then recreated"
                ),
            )),
            _ => Ok(()),
        }
    }
}

fn reference(object: &knarr_api::Object) -> ObjectReference {
    ObjectReference {
        name: object.name().to_string(),
        uid: object.uid().to_string(),
    }
}
