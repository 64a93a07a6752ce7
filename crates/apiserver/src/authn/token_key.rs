//! The keys of service-account tokens: one signs, several verify, all are published; P-256 (ES256) or RSA (RS256).
//!
//! A key's id is the hash of its public half in PKIX form, as kube-apiserver makes it, so that a cluster whose keys
//! move here keeps their ids.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// PEM texts of keys, as files have them.
#[derive(Clone, Debug, Default)]
pub struct KeyFiles {
    /// The private key that signs.
    pub signing: String,
    /// Further keys, public or private, whose tokens are still good.
    pub verifying: Vec<String>,
}

/// A key that signs.
pub(super) struct SigningKey {
    pub key: EncodingKey,
    pub algorithm: Algorithm,
    pub id: String,
}

/// A key that verifies, and how it is published.
pub(super) struct VerifyingKey {
    pub key: DecodingKey,
    pub algorithm: Algorithm,
    pub id: String,
    pub published: Value,
}

/// Says what was expected of a key that is none.
const EXPECTED: &str = "expected a P-256 key (PKCS#8) or an RSA key (PKCS#1 or PKCS#8) in PEM";

impl SigningKey {
    pub fn read(pem: &str) -> Result<(Self, VerifyingKey), String> {
        let (key, algorithm, jwk) = private(pem).ok_or(EXPECTED)?;
        let verifying = VerifyingKey::of(&jwk, algorithm)?;
        let id = verifying.id.clone();
        Ok((SigningKey { key, algorithm, id }, verifying))
    }
}

/// A private key and its public half, which takes most of the time of reading it.
fn private(pem: &str) -> Option<(EncodingKey, Algorithm, Jwk)> {
    let ec = EncodingKey::from_ec_pem(pem.as_bytes()).map(|k| (k, Algorithm::ES256));
    let rsa = || EncodingKey::from_rsa_pem(pem.as_bytes()).map(|k| (k, Algorithm::RS256));
    let (key, algorithm) = ec.or_else(|_| rsa()).ok()?;
    // A public RSA key reads as a private one until it is used.
    let jwk = Jwk::from_encoding_key(&key, algorithm).ok()?;
    Some((key, algorithm, jwk))
}

impl VerifyingKey {
    /// From a public key, or the public half of a private one.
    pub fn read(pem: &str) -> Result<Self, String> {
        if let Some((_, algorithm, jwk)) = private(pem) {
            return Self::of(&jwk, algorithm);
        }
        let ec = DecodingKey::from_ec_pem(pem.as_bytes()).map(|k| (k, Algorithm::ES256));
        let (key, algorithm) = ec
            .or_else(|_| DecodingKey::from_rsa_pem(pem.as_bytes()).map(|k| (k, Algorithm::RS256)))
            .map_err(|_| EXPECTED)?;
        let jwk = Jwk::from_decoding_key(&key, Some(algorithm)).map_err(|_| EXPECTED)?;
        Self::of(&jwk, algorithm)
    }

    fn of(jwk: &Jwk, algorithm: Algorithm) -> Result<Self, String> {
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|e| e.to_string());
        let (pkix, mut published) = match &jwk.algorithm {
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
                let point = [vec![4], bytes(&ec.x)?, bytes(&ec.y)?].concat();
                let published = json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "x": ec.x, "y": ec.y});
                (pkix(&der::P256, &point), published)
            }
            AlgorithmParameters::RSA(rsa) => {
                let numbers = [der::unsigned(&bytes(&rsa.n)?), der::unsigned(&bytes(&rsa.e)?)].concat();
                let published = json!({"kty": "RSA", "alg": "RS256", "n": rsa.n, "e": rsa.e});
                (pkix(&der::RSA, &der::wrap(der::SEQUENCE, &numbers)), published)
            }
            _ => return Err(EXPECTED.into()),
        };
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(pkix));
        published["use"] = "sig".into();
        published["kid"] = id.as_str().into();
        Ok(VerifyingKey {
            key: DecodingKey::from_jwk(jwk).map_err(|e| e.to_string())?,
            algorithm,
            id,
            published,
        })
    }
}

/// A public key as `SubjectPublicKeyInfo`: what it is, and its bits.
fn pkix(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let bits = der::wrap(der::BIT_STRING, &[&[0], key].concat());
    let algorithm = der::wrap(der::SEQUENCE, algorithm);
    der::wrap(der::SEQUENCE, &[algorithm, bits].concat())
}

/// As much DER as a public key needs.
mod der {
    pub const SEQUENCE: u8 = 0x30;
    pub const BIT_STRING: u8 = 0x03;
    const INTEGER: u8 = 0x02;
    /// id-ecPublicKey, prime256v1.
    pub const P256: [u8; 19] = [
        0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
        0x01, 0x07,
    ];
    /// rsaEncryption, NULL.
    pub const RSA: [u8; 13] = [
        0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
    ];

    pub fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        let length = content.len();
        let bytes = length.to_be_bytes();
        let significant = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
        if length < 0x80 {
            out.extend(significant.iter().chain((length == 0).then_some(&0)));
        } else {
            // At most eight bytes of length.
            out.push(0x80 | u8::try_from(significant.len()).unwrap_or(8));
            out.extend(significant);
        }
        out.extend(content);
        out
    }

    pub fn unsigned(number: &[u8]) -> Vec<u8> {
        let negative = number.first().is_some_and(|b| b & 0x80 != 0);
        let padded = [if negative { &[0][..] } else { &[] }, number].concat();
        wrap(INTEGER, &padded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made with `openssl genpkey`; the ids with `openssl pkey -pubout -outform DER | openssl dgst -sha256`.
    const EC: &str = include_str!("../../tests/keys/ec.pem");
    const RSA: &str = include_str!("../../tests/keys/rsa.pem");
    const RSA_PUBLIC: &str = include_str!("../../tests/keys/rsa.pub.pem");
    const IDS: &str = include_str!("../../tests/keys/ids.txt");

    #[test]
    fn a_keys_id_is_the_hash_of_its_public_half() {
        let ids: Vec<&str> = IDS.lines().collect();
        for (pem, id, algorithm) in [
            (EC, ids[0], Algorithm::ES256),
            (RSA, ids[1], Algorithm::RS256),
            (RSA_PUBLIC, ids[1], Algorithm::RS256),
        ] {
            let key = VerifyingKey::read(pem).unwrap();
            assert_eq!((key.id.as_str(), key.algorithm), (id, algorithm));
            assert_eq!(key.published["kid"], id);
        }
        assert!(
            SigningKey::read(RSA_PUBLIC).is_err(),
            "a public key signs nothing"
        );
        assert_eq!(VerifyingKey::read("").err().unwrap(), EXPECTED);
    }
}
