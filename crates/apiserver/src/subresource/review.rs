//! Kinds that are asked and not stored: who am I, whose token is this, may somebody do that.

use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, SelfSubjectReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview,
    SelfSubjectRulesReview, SubjectAccessReview, SubjectAccessReviewStatus, SubjectRulesReviewStatus,
};
use knarr_api::error::About;
use knarr_api::field::{Errors, Path};
use knarr_api::{AnyObject, Error, k8s_openapi, registry};
use serde_json::{Value, json};

use crate::authz::Attributes;
use crate::pipeline::{Ctx, Target, not_served};
use crate::seams;
use crate::server::Server;
use crate::user::User;

impl Server {
    /// Answers a create of a kind that is not stored.
    pub(crate) async fn review(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: Value,
        object: Box<dyn AnyObject>,
    ) -> Result<Value, Error> {
        if *target.kind == registry::BINDING {
            let name = object.metadata().name.clone().unwrap_or_default();
            let target = Target {
                kind: &registry::POD,
                namespace: target.namespace,
                name: &name,
                subresource: "binding",
            };
            return self.create_subresource(ctx, &target, body).await;
        }
        let any = object.into_any();
        let any = match any.downcast::<SelfSubjectReview>() {
            Ok(mut review) => {
                review.metadata.creation_timestamp = Some(seams::seconds(ctx.now));
                review.status = Some(SelfSubjectReviewStatus {
                    user_info: Some(user_info(&ctx.user)),
                });
                return document(&*review);
            }
            Err(any) => any,
        };
        let any = match any.downcast::<TokenReview>() {
            Ok(review) => return self.token_review(ctx, *review),
            Err(any) => any,
        };
        let any = match any.downcast::<SelfSubjectAccessReview>() {
            Ok(mut review) => {
                let spec = &review.spec;
                let (resource, path) = (
                    spec.resource_attributes.as_ref(),
                    spec.non_resource_attributes.as_ref(),
                );
                review.status = Some(self.access(&ctx.user, resource, path)?);
                return document(&*review);
            }
            Err(any) => any,
        };
        let any = match any.downcast::<SubjectAccessReview>() {
            Ok(mut review) => {
                let spec = review.spec.clone();
                let who = subject(spec.user.clone(), spec.groups.clone(), spec.uid.clone());
                check(
                    &who,
                    spec.resource_attributes.as_ref(),
                    spec.non_resource_attributes.as_ref(),
                    None,
                )?;
                let (resource, path) = (
                    spec.resource_attributes.as_ref(),
                    spec.non_resource_attributes.as_ref(),
                );
                review.status = Some(self.access(&who, resource, path)?);
                return document(&*review);
            }
            Err(any) => any,
        };
        let any = match any.downcast::<LocalSubjectAccessReview>() {
            Ok(mut review) => {
                review.metadata.namespace = Some(target.namespace.to_string());
                let spec = review.spec.clone();
                let who = subject(spec.user.clone(), spec.groups.clone(), spec.uid.clone());
                let (resource, path) = (
                    spec.resource_attributes.as_ref(),
                    spec.non_resource_attributes.as_ref(),
                );
                check(&who, resource, path, Some(target.namespace))?;
                review.status = Some(self.access(&who, resource, path)?);
                return document(&*review);
            }
            Err(any) => any,
        };
        match any.downcast::<SelfSubjectRulesReview>() {
            Ok(mut review) => {
                // Rules that come from elsewhere than RBAC are not listed; the answer says so.
                review.status = Some(SubjectRulesReviewStatus {
                    incomplete: true,
                    evaluation_error: Some("this server does not list a user's rules".into()),
                    ..SubjectRulesReviewStatus::default()
                });
                document(&*review)
            }
            Err(_) => Err(not_served()),
        }
    }

    fn token_review(&self, ctx: &Ctx, mut review: TokenReview) -> Result<Value, Error> {
        let Some(token) = Some(review.spec.token.clone()).filter(|t| !t.is_empty()) else {
            return Err(Error::bad_request(
                "token is required for TokenReview in authentication",
            ));
        };
        let wanted = review.spec.audiences.clone().unwrap_or_default();
        let found = self
            .token_holder(&token, &wanted, ctx.now)
            .map(|(user, audiences)| (user.authenticated(), audiences));
        review.status = Some(match found {
            Some((user, audiences)) => TokenReviewStatus {
                authenticated: Some(true),
                user: Some(user_info(&user)),
                audiences: Some(audiences),
                error: None,
            },
            None => TokenReviewStatus {
                user: Some(UserInfo::default()),
                error: Some("invalid bearer token".into()),
                ..TokenReviewStatus::default()
            },
        });
        document(&review)
    }

    fn access(
        &self,
        user: &User,
        resource: Option<&ResourceAttributes>,
        path: Option<&NonResourceAttributes>,
    ) -> Result<SubjectAccessReviewStatus, Error> {
        fn of(text: &Option<String>) -> &str {
            text.as_deref().unwrap_or("")
        }
        let attributes = match (resource, path) {
            (Some(r), None) => Attributes {
                verb: of(&r.verb),
                group: of(&r.group),
                resource: of(&r.resource),
                subresource: of(&r.subresource),
                namespace: of(&r.namespace),
                name: of(&r.name),
                path: "",
                field_selector: "",
            },
            (None, Some(p)) => Attributes {
                verb: of(&p.verb),
                path: of(&p.path),
                ..Attributes::default()
            },
            _ => {
                let mut mistakes = Errors::new();
                exactly_one(&mut mistakes, resource.is_some());
                return Err(invalid(&mistakes));
            }
        };
        Ok(SubjectAccessReviewStatus {
            allowed: self.authorizer.allows(user, &attributes),
            ..SubjectAccessReviewStatus::default()
        })
    }
}

fn document<T: serde::Serialize>(review: &T) -> Result<Value, Error> {
    serde_json::to_value(review).map_err(Error::internal)
}

fn subject(name: Option<String>, groups: Option<Vec<String>>, uid: Option<String>) -> User {
    let mut user = User::new(name.unwrap_or_default(), groups.unwrap_or_default());
    user.uid = uid.unwrap_or_default();
    user
}

fn check(
    who: &User,
    resource: Option<&ResourceAttributes>,
    path: Option<&NonResourceAttributes>,
    namespace: Option<&str>,
) -> Result<(), Error> {
    let mut mistakes = Errors::new();
    if resource.is_some() == path.is_some() {
        exactly_one(&mut mistakes, resource.is_some());
    }
    if who.name.is_empty() && who.groups.is_empty() {
        mistakes.invalid(
            &Path::new("spec").child("user"),
            who.name.as_str(),
            "at least one of user or group must be specified",
        );
    }
    let asked = resource.and_then(|r| r.namespace.as_deref()).unwrap_or("");
    if namespace.is_some_and(|n| resource.is_some() && n != asked) {
        mistakes.invalid(
            &Path::new("spec").child("resourceAttributes").child("namespace"),
            asked,
            "must match metadata.namespace",
        );
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(invalid(&mistakes))
    }
}

fn exactly_one(mistakes: &mut Errors, both: bool) {
    let (field, detail) = if both {
        (
            "nonResourceAttributes",
            "cannot be specified in combination with resourceAttributes",
        )
    } else {
        (
            "resourceAttributes",
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )
    };
    mistakes.invalid(&Path::new("spec").child(field), json!(null), detail);
}

fn invalid(mistakes: &Errors) -> Error {
    let about = About {
        group: "authorization.k8s.io",
        resource: "",
        name: "",
    };
    Error::invalid(about, mistakes)
}

fn user_info(user: &User) -> UserInfo {
    UserInfo {
        username: Some(user.name.clone()).filter(|n| !n.is_empty()),
        uid: Some(user.uid.clone()).filter(|u| !u.is_empty()),
        groups: Some(user.groups.clone()).filter(|g| !g.is_empty()),
        extra: Some(user.extra.clone()).filter(|e| !e.is_empty()),
    }
}
