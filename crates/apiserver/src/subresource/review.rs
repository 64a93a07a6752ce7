//! Kinds that are asked and not stored: who am I, whose token is this; [`super::access_review`] answers the rest.

use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, SelfSubjectReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use knarr_api::{AnyObject, Error, k8s_openapi, registry};
use serde_json::Value;

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
            Ok(review) => return self.self_subject_access(ctx, *review),
            Err(any) => any,
        };
        let any = match any.downcast::<SubjectAccessReview>() {
            Ok(review) => return self.subject_access(*review),
            Err(any) => any,
        };
        let any = match any.downcast::<LocalSubjectAccessReview>() {
            Ok(review) => return self.local_subject_access(*review, target.namespace),
            Err(any) => any,
        };
        match any.downcast::<SelfSubjectRulesReview>() {
            Ok(review) => self.self_subject_rules(ctx, *review),
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
}

pub(super) fn document<T: serde::Serialize>(review: &T) -> Result<Value, Error> {
    serde_json::to_value(review).map_err(Error::internal)
}

fn user_info(user: &User) -> UserInfo {
    UserInfo {
        username: Some(user.name.clone()).filter(|n| !n.is_empty()),
        uid: Some(user.uid.clone()).filter(|u| !u.is_empty()),
        groups: Some(user.groups.clone()).filter(|g| !g.is_empty()),
        extra: Some(user.extra.clone()).filter(|e| !e.is_empty()),
    }
}
