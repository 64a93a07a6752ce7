//! Kinds that are asked and not stored: who am I, whose token is this; [`super::access_review`] answers the rest.

use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, SelfSubjectReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use knarr_api::time::seconds;
use knarr_api::{AnyObject, Error, k8s_openapi, registry};
use serde_json::Value;

use crate::admission::extension::{Operation, json_of};
use crate::pipeline::create::check_namespace;
use crate::pipeline::{Ctx, Target, not_served};
use crate::server::Server;
use crate::user::User;

/// What can be asked.
enum Review {
    SelfSubject(Box<SelfSubjectReview>),
    Token(Box<TokenReview>),
    SelfAccess(Box<SelfSubjectAccessReview>),
    Access(Box<SubjectAccessReview>),
    LocalAccess(Box<LocalSubjectAccessReview>),
    SelfRules(Box<SelfSubjectRulesReview>),
}

impl Review {
    fn of(object: Box<dyn AnyObject>) -> Option<Self> {
        type Any = Box<dyn std::any::Any>;
        type As = fn(Any) -> Result<Review, Any>;
        let all: [As; 6] = [
            |any| any.downcast().map(Review::SelfSubject),
            |any| any.downcast().map(Review::Token),
            |any| any.downcast().map(Review::SelfAccess),
            |any| any.downcast().map(Review::Access),
            |any| any.downcast().map(Review::LocalAccess),
            |any| any.downcast().map(Review::SelfRules),
        ];
        let mut any = object.into_any();
        for read in all {
            match read(any) {
                Ok(review) => return Some(review),
                Err(other) => any = other,
            }
        }
        None
    }
}

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
            // Which pod is meant only its own subresource may say by UID.
            let mut body = body;
            if let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove("uid");
            }
            let target = Target {
                kind: &registry::POD,
                namespace: target.namespace,
                name: &name,
                subresource: "binding",
            };
            return self.create_subresource(ctx, &target, body).await;
        }
        let mut object = object;
        check_namespace(target, &mut *object)?;
        // As `WipeObjectMetaSystemFields` does for all that is created.
        let meta = object.metadata_mut();
        meta.uid = None;
        meta.creation_timestamp = None;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
        meta.self_link = None;
        let object = self.mutate_review(ctx, target, object).await?;
        match Review::of(object) {
            Some(Review::SelfSubject(mut review)) => {
                self.judge_review(ctx, target, &*review).await?;
                review.metadata.creation_timestamp = Some(seconds(ctx.now));
                review.status = Some(SelfSubjectReviewStatus {
                    user_info: Some(user_info(&ctx.user)),
                });
                document(&*review)
            }
            Some(Review::Token(review)) => self.token_review(ctx, target, *review).await,
            Some(Review::SelfAccess(review)) => self.self_subject_access(ctx, target, *review).await,
            Some(Review::Access(review)) => self.subject_access(ctx, target, *review).await,
            Some(Review::LocalAccess(review)) => self.local_subject_access(ctx, target, *review).await,
            Some(Review::SelfRules(review)) => self.self_subject_rules(ctx, target, *review).await,
            None => Err(not_served()),
        }
    }

    /// What webhooks make of a review.
    async fn mutate_review(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        object: Box<dyn AnyObject>,
    ) -> Result<Box<dyn AnyObject>, Error> {
        if !self.asks_about_parts() {
            return Ok(object);
        }
        let before = json_of(&*object)?;
        let after = self
            .mutate_part(ctx, target, Operation::Create, before.clone())
            .await?;
        if after == before {
            return Ok(object);
        }
        let json = serde_json::to_vec(&after).map_err(Error::internal)?;
        let decoded = target.kind.ops.decode(&json).map_err(|e| {
            Error::internal(format!(
                "what admission made of the review is none: {}",
                e.message
            ))
        })?;
        Ok(decoded.object)
    }

    /// Lets webhooks refuse a review that is known to be valid.
    pub(super) async fn judge_review<T: serde::Serialize>(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        review: &T,
    ) -> Result<(), Error> {
        if !self.asks_about_parts() {
            return Ok(());
        }
        self.judge_part(ctx, target, Operation::Create, &document(review)?)
            .await
    }

    async fn token_review(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        mut review: TokenReview,
    ) -> Result<Value, Error> {
        let Some(token) = Some(review.spec.token.clone()).filter(|t| !t.is_empty()) else {
            return Err(Error::bad_request(
                "token is required for TokenReview in authentication",
            ));
        };
        self.judge_review(ctx, target, &review).await?;
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
