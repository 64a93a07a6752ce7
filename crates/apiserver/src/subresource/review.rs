//! Reviews, which are created and not stored: SelfSubjectReview and TokenReview; the others are in [`super::access_review`].

use k8s_openapi::api::authentication::v1::{
    SelfSubjectReview, SelfSubjectReviewStatus, TokenReview, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use knarr_apimachinery::time::seconds;
use serde_json::Value;

use super::Subresources;
use crate::admission::Operation;
use crate::admission::extension::json_of;
use crate::pipeline::Pipeline;
use crate::pipeline::metadata::check_namespace;
use crate::request::{Ctx, Target, not_served};
use crate::user::User;

/// The kinds of reviews.
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

impl Subresources {
    /// Creates an object of a kind that is not stored.
    pub(crate) async fn review(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        body: Value,
        object: Box<dyn AnyObject>,
    ) -> Result<Value, Error> {
        if *target.kind == registry::BINDING {
            let name = object.metadata().name.clone().unwrap_or_default();
            // As in Kubernetes, only `pods/binding` accepts a UID.
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
        // As `WipeObjectMetaSystemFields` does for all created objects.
        let meta = object.metadata_mut();
        meta.uid = None;
        meta.creation_timestamp = None;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
        meta.self_link = None;
        let object = self.pipeline.mutate_review(ctx, target, object).await?;
        match Review::of(object) {
            Some(Review::SelfSubject(mut review)) => {
                self.pipeline.validate_review(ctx, target, &*review).await?;
                review.metadata.creation_timestamp = Some(seconds(ctx.now));
                review.status = Some(SelfSubjectReviewStatus {
                    user_info: Some(user_info(&ctx.user)),
                });
                document(&*review)
            }
            Some(Review::Token(review)) => self.token_review(ctx, target, *review).await,
            Some(Review::SelfAccess(review)) => self.pipeline.self_subject_access(ctx, target, *review).await,
            Some(Review::Access(review)) => self.pipeline.subject_access(ctx, target, *review).await,
            Some(Review::LocalAccess(review)) => {
                self.pipeline.local_subject_access(ctx, target, *review).await
            }
            Some(Review::SelfRules(review)) => self.pipeline.self_subject_rules(ctx, target, *review).await,
            None => Err(not_served()),
        }
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
        self.pipeline.validate_review(ctx, target, &review).await?;
        let requested_audiences = review.spec.audiences.clone().unwrap_or_default();
        let found = self
            .authenticator
            .authenticate_token(&token, &requested_audiences, ctx.now)
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

impl Pipeline {
    /// Runs mutating webhooks on a review.
    async fn mutate_review(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        object: Box<dyn AnyObject>,
    ) -> Result<Box<dyn AnyObject>, Error> {
        if !self.admission.has_extensions() {
            return Ok(object);
        }
        let before = json_of(&*object)?;
        let after = self
            .admission
            .mutate_request_object(ctx, target, Operation::Create, before.clone())
            .await?;
        if after == before {
            return Ok(object);
        }
        let json = serde_json::to_vec(&after).map_err(Error::internal)?;
        let decoded = target.kind.ops.decode(&json).map_err(|e| {
            Error::internal(format!(
                "admission changed the review to one that does not decode: {}",
                e.message
            ))
        })?;
        Ok(decoded.object)
    }

    /// Runs validating webhooks on a review that is known to be valid.
    pub(super) async fn validate_review<T: serde::Serialize>(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        review: &T,
    ) -> Result<(), Error> {
        if !self.admission.has_extensions() {
            return Ok(());
        }
        self.admission
            .validate_request_object(ctx, target, Operation::Create, &document(review)?)
            .await
    }
}

pub(super) fn document<T: serde::Serialize>(review: &T) -> Result<Value, Error> {
    codec::to_plain_value(review).map_err(Error::internal)
}

fn user_info(user: &User) -> UserInfo {
    UserInfo {
        username: Some(user.name.clone()).filter(|n| !n.is_empty()),
        uid: Some(user.uid.clone()).filter(|u| !u.is_empty()),
        groups: Some(user.groups.clone()).filter(|g| !g.is_empty()),
        extra: Some(user.extra.clone()).filter(|e| !e.is_empty()),
    }
}
