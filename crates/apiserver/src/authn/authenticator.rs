//! The authenticator: tries the credentials of a request in their order. See [`super`].

use std::sync::Arc;

use http::HeaderMap;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::Error;

use super::certificate::PeerCertificate;
use super::service_account::Tokens;
use super::{Requester, StaticTokens, bearer, bootstrap_token, impersonation};
use crate::authz::Authorizer;
use crate::cache::Cache;
use crate::user::User;

/// Authenticates requests and tokens.
pub(crate) struct Authenticator {
    pub static_tokens: StaticTokens,
    /// Service-account tokens.
    pub tokens: Tokens,
    /// Whether a request without credentials is `system:anonymous`'s; otherwise it is rejected.
    pub anonymous: bool,
    pub cache: Arc<Cache>,
    /// Decides who may impersonate whom.
    pub authorizer: Arc<dyn Authorizer>,
}

impl Authenticator {
    /// Authenticates by certificate or token, then applies impersonation.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: &PeerCertificate,
        now: Timestamp,
    ) -> Result<Requester, Error> {
        let by_certificate = peer.user(now);
        let user = match &by_certificate {
            Ok(Some(user)) => (*user).clone(),
            other => match (other, bearer::token(headers)?) {
                (_, Some(token)) => self
                    .user_of_token(&token, now)
                    .ok_or_else(Error::unauthorized)?
                    .authenticated(),
                (Ok(_), None) if self.anonymous => User::anonymous(),
                (_, None) => return Err(Error::unauthorized()),
            },
        };
        let (user, impersonator) = impersonation::impersonated(headers, user, &*self.authorizer)?;
        Ok(Requester { user, impersonator })
    }

    fn user_of_token(&self, token: &str, now: Timestamp) -> Option<User> {
        let (user, _) = self.authenticate_token(token, &[], now)?;
        Some(user)
    }

    /// The user of a token, and those of `audiences` (empty: this server's) that it is valid for.
    pub fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Option<(User, Vec<String>)> {
        // Static and bootstrap tokens are valid only for this server's audiences.
        let local = self
            .static_tokens
            .get(token)
            .cloned()
            .or_else(|| bootstrap_token::user(token, now, &self.cache));
        if let Some(user) = local {
            let own = self.tokens.default_audiences();
            let accepted: Vec<String> = own
                .iter()
                .filter(|a| audiences.is_empty() || audiences.contains(a))
                .cloned()
                .collect();
            return (!accepted.is_empty()).then_some((user, accepted));
        }
        let found = self.tokens.verify(token, audiences, now, &self.cache)?;
        if let Some(seconds) = found.stale_seconds {
            tracing::debug!(
                user = found.user.name,
                seconds,
                "a stale service-account token was used: the client should have renewed it"
            );
        }
        Some((found.user, found.audiences))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::AUTHORIZATION;

    use super::*;
    use crate::authz::StandardAuthorizer;
    use crate::pki::Pki;
    use crate::user::ANONYMOUS;

    fn now() -> Timestamp {
        "2030-01-01T00:00:00Z".parse().unwrap()
    }

    async fn authenticator(anonymous: bool) -> Authenticator {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), now()).unwrap();
        let keys = pki.service_account_key().unwrap();
        let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
        let cache = Cache::with(store, None, Arc::default(), None);
        Authenticator {
            static_tokens: [("t0ken".into(), User::new("ann", [""; 0]))].into(),
            tokens: Tokens::new(&["issuer".into()], &[], &keys).unwrap(),
            anonymous,
            authorizer: Arc::new(StandardAuthorizer::new(cache.clone())),
            cache,
        }
    }

    #[tokio::test]
    async fn a_request_with_an_invalid_credential_is_not_anonymous() {
        let (none, rejected) = (PeerCertificate::None, PeerCertificate::Rejected);
        for (anonymous, certificate, header, expected) in [
            (true, &none, None, Ok(ANONYMOUS)),
            (false, &none, None, Err(401)),
            (false, &none, Some("Bearer t0ken"), Ok("ann")),
            (true, &none, Some("Bearer other"), Err(401)),
            (true, &rejected, None, Err(401)),
            // A token is used where the certificate is not one of the cluster's.
            (true, &rejected, Some("Bearer t0ken"), Ok("ann")),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
            }
            let authenticator = authenticator(anonymous).await;
            let found = authenticator.authenticate(&headers, certificate, now());
            let found = found.map(|requester| requester.user.name);
            let found = found.as_deref().map_err(Error::code);
            assert_eq!(found, expected, "{anonymous} {header:?}");
        }
    }
}
