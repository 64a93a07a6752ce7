//! Authentication: who a request comes from.
//!
//! A client certificate of the cluster's CA (CN is the user, O the groups), a bearer token (static, or a
//! service account's), or nobody known: anonymous. A wrong token is 401, not anonymous.

pub mod service_account;

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use knarr_api::Error;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::server::Server;
use crate::user::{MASTERS, User};

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

/// The user a verified client certificate stands for.
pub fn certificate_user(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_string();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok());
    Some(User::new(name, groups).authenticated())
}

impl Server {
    /// Who asks, by certificate (verified when the connection was made) or token, then by impersonation.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        certificate: Option<&Arc<User>>,
    ) -> Result<User, Error> {
        let user = match bearer(headers) {
            Some(token) => self
                .token_user(token)
                .ok_or_else(Error::unauthorized)?
                .authenticated(),
            None => match certificate {
                Some(user) => (**user).clone(),
                None => User::anonymous(),
            },
        };
        impersonated(headers, user)
    }

    /// Whose token it is.
    pub(crate) fn token_user(&self, token: &str) -> Option<User> {
        if let Some(user) = self.static_tokens.get(token) {
            return Some(user.clone());
        }
        self.tokens
            .verify(token, &[], self.clock.now(), &self.cache)
            .map(|v| v.user)
    }
}

/// The bearer token, also as browsers' WebSockets send it.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// `Impersonate-User` and its fellows: for members of system:masters. Others are refused.
fn impersonated(headers: &HeaderMap, user: User) -> Result<User, Error> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .map(str::to_string)
    };
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|v| v.to_str().ok().map(str::to_string))
        .collect();
    let Some(name) = text("impersonate-user") else {
        if !groups.is_empty() || text("impersonate-uid").is_some() {
            return Err(Error::internal(
                "requested impersonation of groups or a uid without impersonating a user",
            ));
        }
        return Ok(user);
    };
    if !user.is_in(MASTERS) {
        let request = crate::authz::Attributes {
            verb: "impersonate",
            resource: "users",
            name: &name,
            ..Default::default()
        };
        return Err(crate::authz::forbidden(&user, &request));
    }
    let mut other = match name
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'))
    {
        Some((namespace, account)) if groups.is_empty() => User::service_account(namespace, account, ""),
        _ => User::new(name.clone(), groups),
    };
    other.uid = text("impersonate-uid").unwrap_or_default();
    Ok(if name == "system:anonymous" {
        other
    } else {
        other.authenticated()
    })
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

    #[test]
    fn only_masters_impersonate() {
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", "bob".parse().unwrap());
        let bob = impersonated(&headers, User::new("root", [MASTERS])).unwrap();
        assert_eq!(
            (bob.name.as_str(), bob.is_in("system:authenticated")),
            ("bob", true)
        );
        assert_eq!(
            impersonated(&headers, User::new("eve", [""; 0]))
                .unwrap_err()
                .code(),
            403
        );
    }
}
