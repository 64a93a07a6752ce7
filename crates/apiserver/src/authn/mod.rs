//! Authentication: who a request comes from.
//!
//! A client certificate of the cluster's CA, else a bearer token (static, a service account's, or a node's bootstrap
//! token), else nobody known: anonymous. A credential that does not hold is 401, not anonymous. Which user that then
//! acts as is [`impersonation`]'s.

pub mod bearer;
pub mod bootstrap_token;
pub mod certificate;
pub mod delegated;
mod impersonation;
mod jws;
pub mod secret_token;
pub mod service_account;
mod token_cache;
pub mod token_key;

use std::collections::HashMap;

use http::HeaderMap;
use k8s_openapi::jiff::Timestamp;
use knarr_api::{Error, k8s_openapi};

use self::certificate::Peer;
use crate::server::Server;
use crate::user::{ANONYMOUS, User};

/// Tokens that are configured: token to user.
pub type StaticTokens = HashMap<String, User>;

/// Reads a token file: a line each of `token,user,uid,"group1,group2"`, as kube-apiserver's `--token-auth-file`.
/// The error names the line.
pub fn parse_token_file(text: &str) -> Result<StaticTokens, String> {
    let mut tokens = StaticTokens::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut parts = line.splitn(4, ',').map(str::trim);
        let (Some(token), Some(name), Some(uid)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!(
                "line {}: expected token,user,uid[,\"group1,group2\"], found {} fields",
                i + 1,
                line.split(',').count()
            ));
        };
        if token.is_empty() || name.is_empty() {
            return Err(format!("line {}: token and user must not be empty", i + 1));
        }
        let groups = parts.next().unwrap_or("").trim_matches('"');
        let mut user = User::new(name, groups.split(',').map(str::trim).filter(|g| !g.is_empty()));
        user.uid = uid.to_string();
        tokens.insert(token.to_string(), user);
    }
    Ok(tokens)
}

/// Who asks.
pub(crate) struct Requester {
    /// The user as whom the request is made.
    pub user: User,
    /// The one who shows the credential, if he acts as another.
    pub impersonator: Option<User>,
}

impl Requester {
    /// Whether there was a credential.
    pub fn is_authenticated(&self) -> bool {
        self.impersonator.is_some() || self.user.name != ANONYMOUS
    }
}

impl Server {
    /// Who asks, by certificate or token, then by impersonation.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        now: Timestamp,
    ) -> Result<Requester, Error> {
        let shown = peer.user(now);
        let user = match &shown {
            Ok(Some(user)) => (*user).clone(),
            other => match (other, bearer::token(headers)?) {
                (_, Some(token)) => self
                    .token_user(&token, now)
                    .ok_or_else(Error::unauthorized)?
                    .authenticated(),
                (Ok(_), None) if self.config.options.anonymous => User::anonymous(),
                (_, None) => return Err(Error::unauthorized()),
            },
        };
        let (user, impersonator) = impersonation::impersonated(headers, user, &*self.authorizer)?;
        Ok(Requester { user, impersonator })
    }

    /// Whose token it is.
    fn token_user(&self, token: &str, now: Timestamp) -> Option<User> {
        let (user, _) = self.token_holder(token, &[], now)?;
        Some(user)
    }

    /// Whose token it is, and for which of `audiences` (empty: this server's) it is good.
    pub(crate) fn token_holder(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Option<(User, Vec<String>)> {
        // These are good for this server and for nobody else.
        let here = self
            .static_tokens
            .get(token)
            .cloned()
            .or_else(|| bootstrap_token::user(token, now, &self.cache));
        if let Some(user) = here {
            let own = self.tokens.default_audiences();
            let good: Vec<String> = own
                .iter()
                .filter(|a| audiences.is_empty() || audiences.contains(a))
                .cloned()
                .collect();
            return (!good.is_empty()).then_some((user, good));
        }
        let found = self.tokens.verify(token, audiences, now, &self.cache)?;
        if let Some(seconds) = found.stale_seconds {
            tracing::debug!(
                user = found.user.name,
                seconds,
                "a token is used past its time for renewal"
            );
        }
        Some((found.user, found.audiences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files_name_users_and_groups() {
        let tokens =
            parse_token_file("# admin\nt0ken,admin,1,\"system:masters,ops\"\n\nother,bob,2\n").unwrap();
        assert_eq!(tokens["t0ken"].groups, ["system:masters", "ops"]);
        assert!(tokens["other"].groups.is_empty());
        assert!(parse_token_file("a,b").unwrap_err().starts_with("line 1:"));
        assert!(parse_token_file("\n,b,c").unwrap_err().starts_with("line 2:"));
    }
}
