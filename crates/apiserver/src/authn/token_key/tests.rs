//! Keys in the forms that kube-apiserver reads. They were made with `openssl genpkey`, the other forms with `openssl pkey`,
//! `rsa`, `ec` and `req -x509`; the ids with `openssl pkey -pubout -outform DER | openssl dgst -sha256`.

use super::*;

const EC: &str = include_str!("../../../tests/keys/ec.pem");
const EC_SEC1: &str = include_str!("../../../tests/keys/ec.sec1.pem");
const EC_PUBLIC: &str = include_str!("../../../tests/keys/ec.pub.pem");
const EC_CERTIFICATE: &str = include_str!("../../../tests/keys/ec.crt.pem");
const P384: &str = include_str!("../../../tests/keys/p384.pem");
const RSA: &str = include_str!("../../../tests/keys/rsa.pem");
const RSA_PKCS8: &str = include_str!("../../../tests/keys/rsa.pkcs8.pem");
const RSA_PUBLIC: &str = include_str!("../../../tests/keys/rsa.pub.pem");
const RSA_1024: &str = include_str!("../../../tests/keys/rsa1024.pem");
const RSA_1024_PUBLIC: &str = include_str!("../../../tests/keys/rsa1024.pub.pem");
const IDS: &str = include_str!("../../../tests/keys/ids.txt");

#[test]
fn a_keys_id_is_the_hash_of_its_public_half_in_every_form() {
    let ids: Vec<&str> = IDS.lines().collect();
    for (what, pem, id, algorithm) in [
        ("EC PKCS#8", EC, ids[0], Algorithm::Es256),
        ("EC SEC 1", EC_SEC1, ids[0], Algorithm::Es256),
        ("EC PKIX", EC_PUBLIC, ids[0], Algorithm::Es256),
        ("EC certificate", EC_CERTIFICATE, ids[0], Algorithm::Es256),
        ("RSA PKCS#1", RSA, ids[1], Algorithm::Rs256),
        ("RSA PKCS#8", RSA_PKCS8, ids[1], Algorithm::Rs256),
        ("RSA PKIX", RSA_PUBLIC, ids[1], Algorithm::Rs256),
    ] {
        let keys = VerifyingKey::read_all(pem).unwrap_or_else(|e| panic!("{what}: {e}"));
        let [key] = keys.as_slice() else {
            panic!("{what}: {} keys", keys.len())
        };
        assert_eq!((key.id.as_str(), key.algorithm), (id, algorithm), "{what}");
        assert_eq!(key.published["kid"], id, "{what}");
    }
}

#[test]
fn every_private_form_signs_what_every_public_form_verifies() {
    for (private, public) in [
        (EC, EC_PUBLIC),
        (EC_SEC1, EC_CERTIFICATE),
        (RSA, RSA_PUBLIC),
        (RSA_PKCS8, RSA_PUBLIC),
    ] {
        let (signing, own) = SigningKey::read(private).unwrap();
        let published = VerifyingKey::read_all(public).unwrap();
        let signature = signing.sign(b"message").unwrap();
        for key in published.iter().chain([&own]) {
            assert!(key.verifies(b"message", &signature));
            assert!(!key.verifies(b"massage", &signature));
            assert!(!key.verifies(b"message", &signature[1..]));
        }
    }
}

#[test]
fn a_file_may_hold_several_keys_and_other_pem_blocks() {
    let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
    let text = [parameters, RSA_PUBLIC, P384, EC].concat();
    let keys = VerifyingKey::read_all(&text).unwrap();
    let algorithms: Vec<Algorithm> = keys.iter().map(|k| k.algorithm).collect();
    assert_eq!(algorithms, [Algorithm::Rs256, Algorithm::Es256]);
}

#[test]
fn unsupported_keys_are_rejected() {
    for (what, pem) in [
        ("nothing", ""),
        ("a public key", RSA_PUBLIC),
        ("another curve", P384),
        ("a short key", RSA_1024),
    ] {
        assert!(matches!(SigningKey::read(pem), Err(TokenError::NoKey)), "{what}");
    }
    for (what, pem) in [
        ("nothing", ""),
        ("another curve", P384),
        ("a short key", RSA_1024_PUBLIC),
        (
            "text",
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        ),
    ] {
        assert!(
            matches!(VerifyingKey::read_all(pem), Err(TokenError::NoKey)),
            "{what}"
        );
    }
}

#[test]
fn a5_keys_are_not_shown_by_debug() {
    let files = KeyFiles {
        signing: EC.into(),
        verifying: vec![RSA.into()],
    };
    assert_eq!(format!("{files:?}"), "KeyFiles { .. }");
}
