//! The keys of service-account tokens: one signs, several verify, all are published; P-256 (ES256) or RSA (RS256).
//!
//! A key's id is the hash of its public half in PKIX form, as kube-apiserver makes it, so that a cluster whose keys
//! move here keeps their ids. Keys are read as kube-apiserver reads them: private ones in PKCS#8, PKCS#1 (RSA) or SEC 1
//! (EC), public ones in PKIX or in a certificate, several in one file, and PEM blocks that are none of these (such as
//! EC PARAMETERS) are passed over.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{self, EcdsaKeyPair, KeyPair, RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The contents of key files, in PEM.
#[derive(Clone, Default)]
pub struct KeyFiles {
    /// The private key that signs.
    pub signing: String,
    /// Further keys, public or private, whose tokens are still accepted.
    pub verifying: Vec<String>,
}

impl std::fmt::Debug for KeyFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyFiles").finish_non_exhaustive()
    }
}

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Algorithm {
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "RS256")]
    Rs256,
}

/// A key that signs.
pub(super) struct SigningKey {
    pair: Pair,
    id: String,
}

enum Pair {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

/// A key that verifies, and how it is published.
pub(super) struct VerifyingKey {
    key: UnparsedPublicKey<Vec<u8>>,
    pub algorithm: Algorithm,
    pub id: String,
    pub published: Value,
}

/// Why service-account tokens cannot be signed, or a file has no key for them.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("no issuer of service-account tokens is configured")]
    NoIssuer,
    #[error(
        "expected a P-256 key or an RSA key of 2048 bits or more, in PEM (private: PKCS#8, PKCS#1 or SEC 1; public: PKIX or a certificate)"
    )]
    NoKey,
    #[error(transparent)]
    Claims(#[from] serde_json::Error),
    #[error("the service-account key cannot sign")]
    Sign,
    #[error("the token would have {bytes} bytes, more than {max}")]
    TooLong { bytes: usize, max: usize },
}

/// The sizes of RSA keys that verify tokens, in bits; signing keys have at most 4096 bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl SigningKey {
    /// The first private key of a file.
    pub fn read(pem: &str) -> Result<(Self, VerifyingKey), TokenError> {
        let pair = sections(pem).find_map(|(kind, der)| Pair::read(kind, &der));
        let pair = pair.ok_or(TokenError::NoKey)?;
        let verifying = pair.public().ok_or(TokenError::NoKey)?;
        let id = verifying.id.clone();
        Ok((SigningKey { pair, id }, verifying))
    }

    pub fn algorithm(&self) -> Algorithm {
        match self.pair {
            Pair::Ec(_) => Algorithm::Es256,
            Pair::Rsa(_) => Algorithm::Rs256,
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, TokenError> {
        let random = SystemRandom::new();
        let failed = |_| TokenError::Sign;
        match &self.pair {
            Pair::Ec(pair) => {
                let signature = pair.sign(&random, message).map_err(failed)?;
                Ok(signature.as_ref().to_vec())
            }
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(failed)?;
                Ok(signature)
            }
        }
    }
}

impl Pair {
    fn read(kind: SectionKind, der: &[u8]) -> Option<Self> {
        let ec = |pkcs8: &[u8]| {
            let signing = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
            let pair = EcdsaKeyPair::from_pkcs8(signing, pkcs8, &SystemRandom::new());
            pair.ok().map(Pair::Ec)
        };
        match kind {
            SectionKind::PrivateKey => ec(der).or_else(|| RsaKeyPair::from_pkcs8(der).ok().map(Pair::Rsa)),
            SectionKind::RsaPrivateKey => RsaKeyPair::from_der(der).ok().map(Pair::Rsa),
            SectionKind::EcPrivateKey => ec(&der::pkcs8(&der::P256, der)),
            _ => None,
        }
    }

    fn public(&self) -> Option<VerifyingKey> {
        match self {
            Pair::Ec(pair) => VerifyingKey::ec(pair.public_key().as_ref()),
            Pair::Rsa(pair) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(pair.public());
                VerifyingKey::rsa(&public.n, &public.e)
            }
        }
    }
}

impl VerifyingKey {
    /// The keys of a file: public ones, and the public halves of private ones.
    pub fn read_all(pem: &str) -> Result<Vec<Self>, TokenError> {
        let keys: Vec<Self> = sections(pem)
            .filter_map(|(kind, der)| match kind {
                SectionKind::PublicKey => Self::pkix(&der),
                SectionKind::Certificate => {
                    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
                    Self::of(certificate.public_key())
                }
                kind => Pair::read(kind, &der)?.public(),
            })
            .collect();
        if keys.is_empty() {
            return Err(TokenError::NoKey);
        }
        Ok(keys)
    }

    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify(message, signature).is_ok()
    }

    fn pkix(der: &[u8]) -> Option<Self> {
        match SubjectPublicKeyInfo::from_der(der) {
            Ok(([], info)) => Self::of(&info),
            _ => None,
        }
    }

    fn of(info: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        match info.parsed().ok()? {
            PublicKey::RSA(rsa) => Self::rsa(rsa.modulus, rsa.exponent),
            // The curve does not follow from the form of the point.
            PublicKey::EC(point)
                if info.algorithm.parameters.as_ref()?.as_oid().ok()?.as_bytes() == der::PRIME256V1 =>
            {
                Self::ec(point.data())
            }
            _ => None,
        }
    }

    /// From an uncompressed point.
    fn ec(point: &[u8]) -> Option<Self> {
        let (x, y) = match point {
            [4, numbers @ ..] if numbers.len() == 64 => numbers.split_at(32),
            _ => return None,
        };
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let published = json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "x": x, "y": y});
        Some(Self::new(
            Algorithm::Es256,
            &signature::ECDSA_P256_SHA256_FIXED,
            &der::P256,
            point.to_vec(),
            published,
        ))
    }

    /// From modulus and public exponent, with or without leading zeros.
    fn rsa(n: &[u8], e: &[u8]) -> Option<Self> {
        let significant =
            |number: &'_ [u8]| -> Vec<u8> { number.iter().skip_while(|b| **b == 0).copied().collect() };
        let (n, e) = (significant(n), significant(e));
        let bits = n.len() * 8 - n.first()?.leading_zeros() as usize;
        // An even public exponent, or 1, is invalid.
        if !RSA_BITS.contains(&bits) || e.last()? % 2 == 0 || e == [1] {
            return None;
        }
        let numbers = [der::unsigned(&n), der::unsigned(&e)].concat();
        let (n, e) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode(e));
        let published = json!({"kty": "RSA", "alg": "RS256", "n": n, "e": e});
        Some(Self::new(
            Algorithm::Rs256,
            &signature::RSA_PKCS1_2048_8192_SHA256,
            &der::RSA,
            der::wrap(der::SEQUENCE, &numbers),
            published,
        ))
    }

    fn new(
        algorithm: Algorithm,
        verification: &'static dyn VerificationAlgorithm,
        identifier: &[u8],
        key: Vec<u8>,
        mut published: Value,
    ) -> Self {
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(der::pkix(identifier, &key)));
        published["use"] = "sig".into();
        published["kid"] = id.as_str().into();
        VerifyingKey {
            key: UnparsedPublicKey::new(verification, key),
            algorithm,
            id,
            published,
        }
    }
}

/// The blocks of a PEM file, up to the first that cannot be read.
fn sections(pem: &str) -> impl Iterator<Item = (SectionKind, Vec<u8>)> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.as_bytes()).map_while(Result::ok)
}

mod der;

#[cfg(test)]
mod tests;
