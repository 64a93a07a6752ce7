//! Continue tokens of lists, in kube-apiserver's format and with its errors.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use knarr_apimachinery::Error;
use serde::{Deserialize, Serialize};

/// As Go's decoder: no padding, trailing bits are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A continue token, in kube-apiserver's format. Opaque to clients.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContinueToken {
    /// The version of the format: [`CONTINUE_VERSION`].
    pub(super) v: String,
    /// The revision of all pages; [`LATEST`]: the current one when the next page is read.
    pub(super) rv: i64,
    /// The first key of the next page, as [`keys::local`](crate::keys::local), without the namespace if the list is of one namespace.
    pub(super) start: String,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";

/// The revision of a token for the rest of a list whose own revision was compacted.
pub(super) const LATEST: i64 = -1;

impl ContinueToken {
    pub fn parse(token: &str) -> Result<Self, Error> {
        let invalid = |why: String| {
            Error::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = BASE64.decode(token).map_err(|_| invalid(not_base64(token)))?;
        let found: Self = serde_json::from_slice(&bytes).map_err(|e| invalid(not_json(&bytes, &e)))?;
        if found.v != CONTINUE_VERSION {
            let why = format!("server does not recognize this encoded version {}", found.v);
            return Err(invalid(why));
        }
        if found.rv == 0 {
            return Err(invalid(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into(),
            ));
        }
        if found.start.is_empty() {
            return Err(invalid("encoded start key empty (version meta.k8s.io/v1)".into()));
        }
        let path = found.start.strip_prefix('/').unwrap_or(&found.start);
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(invalid(found.start));
        }
        Ok(ContinueToken {
            start: path.to_string(),
            ..found
        })
    }

    /// A token for the current revision, from a key on.
    pub(super) fn from(start: &str) -> Self {
        ContinueToken {
            v: CONTINUE_VERSION.into(),
            rv: LATEST,
            start: start.to_string(),
        }
    }

    pub fn render(&self) -> String {
        let token = serde_json::json!({"v": self.v, "rv": self.rv, "start": self.start});
        BASE64.encode(token.to_string())
    }
}

/// Go's error for text that is not base64 without padding: the offset of the byte, or of the incomplete group.
fn not_base64(token: &str) -> String {
    let symbol = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    let at = token
        .bytes()
        .position(|c| !symbol(c))
        .unwrap_or(token.len() / 4 * 4);
    format!("illegal base64 data at input byte {at}")
}

/// Go's error for bytes that do not begin like JSON.
fn not_json(bytes: &[u8], error: &serde_json::Error) -> String {
    match String::from_utf8_lossy(bytes).chars().next() {
        Some(_) if bytes[0] >= 0x80 => {
            format!(
                "invalid character '\\u{:04x}' looking for beginning of value",
                bytes[0]
            )
        }
        Some(c) if !"{[\"-0123456789tfn \n\r\t".contains(c) => {
            format!("invalid character '{c}' looking for beginning of value")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_is_parsed_as_it_was_rendered() {
        let token = ContinueToken {
            rv: 7,
            ..ContinueToken::from("a/b\0")
        }
        .render();
        let back = ContinueToken::parse(&token).unwrap();
        assert_eq!((back.rv, back.start.as_str()), (7, "a/b\0"));
    }

    #[test]
    fn garbage_is_no_continue_token() {
        for (token, why) in [
            (
                r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#,
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                r#"{"v":"meta.k8s.io/v1","rv":1}"#,
                "encoded start key empty (version meta.k8s.io/v1)",
            ),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../b"}"#, "../b"),
            (r#"{}"#, "server does not recognize this encoded version "),
        ] {
            let error = ContinueToken::parse(&BASE64.encode(token)).err().unwrap();
            let expected = format!("invalid continue token: continue key is not valid: {why}");
            assert_eq!(error.message(), expected);
        }
        let error = ContinueToken::parse("garbage").err().unwrap();
        assert_eq!(
            error.message(),
            "invalid continue token: continue key is not valid: invalid character '\\u0081' looking for beginning of value"
        );
    }
}
