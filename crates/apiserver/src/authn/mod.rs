//! Authentication: who a request comes from.
//!
//! A client certificate of the cluster's CA, else a bearer token (static, a service account's, or a node's bootstrap
//! token), else `system:anonymous`. An invalid credential is 401, not anonymous. [`impersonation`] then decides as which
//! user the request is made.

mod authenticator;
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

pub(crate) use self::authenticator::Authenticator;
use crate::user::{ANONYMOUS, User};

/// The tokens of the token file, with their users.
pub type StaticTokens = HashMap<String, User>;

/// Why a token file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("line {line}: expected token,user,uid[,\"group1,group2\"], found {fields} fields")]
    Fields { line: usize, fields: usize },
    #[error("line {line}: token and user must not be empty")]
    Empty { line: usize },
}

/// Reads a token file: a line each of `token,user,uid,"group1,group2"`, as kube-apiserver's `--token-auth-file`.
/// The error names the line.
pub fn parse_token_file(text: &str) -> Result<StaticTokens, TokenFileError> {
    let mut tokens = StaticTokens::new();
    for (i, text) in text.lines().enumerate() {
        let (line, text) = (i + 1, text.trim());
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let mut parts = text.splitn(4, ',').map(str::trim);
        let (Some(token), Some(name), Some(uid)) = (parts.next(), parts.next(), parts.next()) else {
            let fields = text.split(',').count();
            return Err(TokenFileError::Fields { line, fields });
        };
        if token.is_empty() || name.is_empty() {
            return Err(TokenFileError::Empty { line });
        }
        let groups = parts.next().unwrap_or("").trim_matches('"');
        let mut user = User::new(name, groups.split(',').map(str::trim).filter(|g| !g.is_empty()));
        user.uid = uid.to_string();
        tokens.insert(token.to_string(), user);
    }
    Ok(tokens)
}

/// The authenticated user of a request.
pub(crate) struct Requester {
    /// The user as whom the request is made.
    pub user: User,
    /// The user of the credential, if the request impersonates another.
    pub impersonator: Option<User>,
}

impl Requester {
    /// Whether the request had a credential.
    pub fn is_authenticated(&self) -> bool {
        self.impersonator.is_some() || self.user.name != ANONYMOUS
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
        let error = |text| parse_token_file(text).unwrap_err().to_string();
        assert!(error("a,b").starts_with("line 1:"));
        assert!(error("\n,b,c").starts_with("line 2:"));
    }
}
