//! JSON Web Signatures in compact form (RFC 7515), as far as service-account tokens need them: ES256 and RS256.
//!
//! A token is split and its header is decoded once. The header's algorithm only selects among keys of that algorithm,
//! so that a key is never used with another; its key id, where it has one, names the key. Headers with `crit` or with a
//! parameter twice are rejected, and the payload is decoded from the very bytes whose signature was verified. Nothing
//! else in a header is read, so that a token cannot name its own key (`jwk`, `jku`, `x5c`).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::token_key::{Algorithm, SigningKey, TokenError, VerifyingKey};

/// The longest token that is issued or accepted. A pod's token has about 1 KiB, most of it the signature and the names of
/// pod and node; the rest leaves room for hundreds of audiences. Longer tokens are rejected without a signature check.
pub(super) const TOKEN_BYTES_MAX: usize = 64 * 1024;

#[derive(Serialize)]
struct NewHeader<'a> {
    alg: Algorithm,
    kid: &'a str,
}

#[derive(Deserialize)]
struct Header {
    alg: Algorithm,
    kid: Option<String>,
    /// Whether the header has `crit`: extensions that must be understood (RFC 7515, 4.1.11). None are supported.
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

/// True for a parameter that is present, with any value.
fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

/// The signed token of these claims.
pub(super) fn sign(claims: &impl Serialize, key: &SigningKey) -> Result<String, TokenError> {
    let header = NewHeader {
        alg: key.algorithm(),
        kid: key.id(),
    };
    let part = |json: Vec<u8>| URL_SAFE_NO_PAD.encode(json);
    let header = part(serde_json::to_vec(&header)?);
    let payload = part(serde_json::to_vec(claims)?);
    let signed = format!("{header}.{payload}");
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())?);
    let token = format!("{signed}.{signature}");
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::TooLong {
            bytes: token.len(),
            max: TOKEN_BYTES_MAX,
        });
    }
    Ok(token)
}

/// The claims of a token that one of the keys has signed; `None` for everything else.
pub(super) fn verify<T: DeserializeOwned>(token: &str, keys: &[VerifyingKey]) -> Option<T> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, payload) = signed.split_once('.')?;
    let header: Header = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    if header.crit {
        return None;
    }
    // A payload with a dot in it is not base64, so that a token has three parts.
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let mut keys = keys
        .iter()
        .filter(|key| key.algorithm == header.alg && header.kid.as_ref().is_none_or(|id| *id == key.id));
    keys.find(|key| key.verifies(signed.as_bytes(), &signature))?;
    serde_json::from_slice(&payload).ok()
}

#[cfg(test)]
mod tests;
