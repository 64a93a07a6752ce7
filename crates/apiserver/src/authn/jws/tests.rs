//! Forged tokens, compared with a valid one.

use ring::hmac;
use serde_json::{Value, json};

use super::*;

const EC: &str = include_str!("../../../tests/keys/ec.pem");
const RSA: &str = include_str!("../../../tests/keys/rsa.pem");
const RSA_PUBLIC: &str = include_str!("../../../tests/keys/rsa.pub.pem");

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claims {
    sub: String,
}

fn claims() -> Claims {
    Claims { sub: "robot".into() }
}

/// Signs any header and payload with the key.
fn forge(header: &str, payload: &str, key: &SigningKey) -> String {
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(payload)
    );
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

#[test]
fn a_token_is_verified_by_the_key_that_its_header_names() {
    let (ec, ec_public) = SigningKey::read(EC).unwrap();
    let (rsa, rsa_public) = SigningKey::read(RSA).unwrap();
    let both = [ec_public, rsa_public];
    for key in [&ec, &rsa] {
        let token = sign(&claims(), key).unwrap();
        assert_eq!(verify(&token, &both), Some(claims()));
        let header: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap())
                .unwrap();
        assert_eq!(header["kid"], key.id());
        let alone = &both[usize::from(std::ptr::eq(key, &ec))..][..1];
        assert_eq!(verify::<Claims>(&token, alone), None, "the other key alone");
    }
}

#[test]
fn a1_a_header_with_crit_duplicates_or_another_algorithm_is_rejected() {
    let (key, public) = SigningKey::read(EC).unwrap();
    let keys = [public];
    let id = key.id();
    let valid = r#"{"sub":"robot"}"#;
    let accepted =
        |header: &str, payload: &str| verify::<Claims>(&forge(header, payload, &key), &keys).is_some();
    assert!(accepted(&format!(r#"{{"alg":"ES256","kid":"{id}"}}"#), valid));
    assert!(
        accepted(r#"{"alg":"ES256"}"#, valid),
        "no key id: every key of the algorithm"
    );
    assert!(accepted(r#"{"alg":"ES256","typ":"JWT"}"#, valid));
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"HS256"}"#,
        r#"{"alg":"RS256"}"#,
        r#"{"alg":"es256"}"#,
        r#"{}"#,
        r#"{"alg":"ES256","alg":"ES256"}"#,
        r#"{"alg":"none","alg":"ES256"}"#,
        r#"{"alg":"ES256","kid":"another"}"#,
        r#"{"alg":"ES256","kid":"another","kid":null}"#,
        r#"{"alg":"ES256","kid":7}"#,
        r#"{"alg":"ES256","crit":[]}"#,
        r#"{"alg":"ES256","crit":["b64"],"b64":false}"#,
        r#"{"alg":"ES256","crit":null}"#,
        r#"{"alg":"ES256"} {}"#,
        r#"["ES256"]"#,
        "",
    ] {
        assert!(!accepted(header, valid), "{header}");
    }
    for payload in [
        r#"{"sub":"robot","sub":"robot"}"#,
        r#"{"sub":"robot"}x"#,
        "{}",
        "",
    ] {
        assert!(!accepted(r#"{"alg":"ES256"}"#, payload), "{payload}");
    }
}

#[test]
fn a_signature_covers_header_and_payload_and_no_other_part_is_accepted() {
    let (key, public) = SigningKey::read(EC).unwrap();
    let keys = [public];
    let token = sign(&claims(), &key).unwrap();
    let [header, payload, signature] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("{token}")
    };
    let other = URL_SAFE_NO_PAD.encode(r#"{"sub":"admin"}"#);
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    for bad in [
        format!("{header}.{other}.{signature}"),
        format!("{none}.{payload}."),
        format!("{header}.{payload}"),
        format!("{header}.{payload}."),
        format!("{header}.{payload}.{signature}."),
        format!("{header}.{payload}.{signature}.{signature}"),
        format!("{header}.{payload}.{signature}="),
        format!(" {token}"),
        format!("{token}\n"),
        String::new(),
        "..".into(),
    ] {
        assert_eq!(verify::<Claims>(&bad, &keys), None, "{bad:?}");
    }
}

#[test]
fn a_public_key_is_no_secret_of_a_symmetric_algorithm() {
    // The algorithm confusion attack: an HMAC made with the text of the public key.
    let keys = VerifyingKey::read_all(RSA_PUBLIC).unwrap();
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
    let payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"robot"}"#);
    let signed = format!("{header}.{payload}");
    let secret = hmac::Key::new(hmac::HMAC_SHA256, RSA_PUBLIC.as_bytes());
    let token = format!(
        "{signed}.{}",
        URL_SAFE_NO_PAD.encode(hmac::sign(&secret, signed.as_bytes()))
    );
    assert_eq!(verify::<Claims>(&token, &keys), None);
}

#[test]
fn a6_a_token_that_is_too_long_is_neither_issued_nor_accepted() {
    let (key, public) = SigningKey::read(EC).unwrap();
    let keys = [public];
    let long = Claims {
        sub: "x".repeat(TOKEN_BYTES_MAX),
    };
    let error = sign(&json!(long), &key).unwrap_err().to_string();
    assert!(error.contains("more than 65536"));
    let token = forge(r#"{"alg":"ES256"}"#, &serde_json::to_string(&long).unwrap(), &key);
    assert_eq!(verify::<Claims>(&token, &keys), None);
}
