//! Encryption at rest by an EncryptionConfiguration (`apiserver.config.k8s.io/v1`). The first provider of a resource
//! encrypts, all decrypt, so that keys can be rotated.
//!
//! A stored value is `k8s:enc:<provider>:v1:<key name>:` followed by the provider's output, as kube-apiserver writes
//! it. Its key in the store is authenticated with it (`aesgcm`), so that a value cannot be moved to another key.

mod cbc;
mod config;

use std::fmt;
use std::sync::Arc;

use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{Aead, Payload};
use aes_gcm::aes::Aes192;
use aes_gcm::{Aes128Gcm, Aes256Gcm, AesGcm};
use bytes::Bytes;
use crypto_secretbox::XSalsa20Poly1305;

use self::cbc::AesCbc;
use crate::seams::Entropy;

const ENCRYPTED: &[u8] = b"k8s:enc:";
/// Of AES-GCM, random for each value.
const NONCE_BYTES: usize = 12;
/// Of XSalsa20.
const BOX_NONCE_BYTES: usize = 24;

/// The encryption rules by resource. No key is ever shown.
pub struct Encryption {
    rules: Vec<Rule>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encryption of {} rules", self.rules.len())
    }
}

/// Resources, and their providers in order.
struct Rule {
    /// `secrets`, `deployments.apps`, `*.apps`, `*.`, `*.*`.
    resources: Vec<String>,
    providers: Vec<Provider>,
}

enum Provider {
    Identity,
    Keyed {
        /// `k8s:enc:aesgcm:v1:<name>:`.
        prefix: Vec<u8>,
        cipher: Cipher,
    },
}

type Aes192Gcm = AesGcm<Aes192, U12>;

enum Cipher {
    Aes128(Box<Aes128Gcm>),
    Aes192(Box<Aes192Gcm>),
    Aes256(Box<Aes256Gcm>),
    SecretBox(Box<XSalsa20Poly1305>),
    /// Like secretbox it does not authenticate the store's key; unlike secretbox it does not authenticate the value either.
    Cbc(AesCbc),
}

/// A decrypted value.
#[derive(Debug, PartialEq, Eq)]
pub struct Decrypted {
    pub value: Bytes,
    /// Whether it would be encrypted otherwise if it were written now.
    pub stale: bool,
}

/// Why a value cannot be encrypted or decrypted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no provider of the encryption configuration can decrypt the stored value")]
    NoProvider,
    #[error("the stored value cannot be decrypted: it was changed, or is another key's")]
    Unauthentic,
    #[error("the value cannot be encrypted")]
    Cipher,
}

impl Encryption {
    /// Parses the configuration. All errors are returned at once, each with its field path.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        config::parse(text)
    }

    fn providers(&self, group: &str, plural: &str) -> Option<&[Provider]> {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.resources.iter().any(|r| covers(r, group, plural)));
        rule.map(|r| r.providers.as_slice())
    }

    /// Encrypts the value that is stored under `key`.
    pub fn seal(
        &self,
        (group, plural): (&str, &str),
        key: &[u8],
        value: Bytes,
        entropy: &dyn Entropy,
    ) -> Result<Bytes, Error> {
        match self.providers(group, plural).and_then(<[_]>::first) {
            None | Some(Provider::Identity) => Ok(value),
            Some(Provider::Keyed { prefix, cipher }) => {
                let sealed = cipher.seal(key, &value, entropy).ok_or(Error::Cipher)?;
                Ok([prefix.as_slice(), &sealed].concat().into())
            }
        }
    }

    /// Decrypts the value that was stored under `key`.
    pub fn open(
        &self,
        (group, plural): (&str, &str),
        key: &[u8],
        stored: &Bytes,
    ) -> Result<Decrypted, Error> {
        let providers = self.providers(group, plural).unwrap_or(&[Provider::Identity]);
        let plain = !stored.starts_with(ENCRYPTED);
        for (i, provider) in providers.iter().enumerate() {
            let stale = i > 0;
            match provider {
                Provider::Identity if plain => {
                    return Ok(Decrypted {
                        value: stored.clone(),
                        stale,
                    });
                }
                Provider::Keyed { prefix, cipher } => {
                    if let Some(sealed) = stored.strip_prefix(prefix.as_slice()) {
                        let value = cipher.open(key, sealed).ok_or(Error::Unauthentic)?;
                        return Ok(Decrypted {
                            value: value.into(),
                            stale,
                        });
                    }
                }
                Provider::Identity => {}
            }
        }
        Err(Error::NoProvider)
    }
}

impl Cipher {
    fn seal(&self, key: &[u8], value: &[u8], entropy: &dyn Entropy) -> Option<Vec<u8>> {
        let payload = Payload { msg: value, aad: key };
        match self {
            // secretbox authenticates no additional data.
            Cipher::SecretBox(c) => {
                let nonce: [u8; BOX_NONCE_BYTES] = random(entropy);
                Some([&nonce, &c.encrypt((&nonce).into(), value).ok()?[..]].concat())
            }
            Cipher::Aes128(c) => {
                let nonce: [u8; NONCE_BYTES] = random(entropy);
                Some([&nonce, &c.encrypt((&nonce).into(), payload).ok()?[..]].concat())
            }
            Cipher::Cbc(c) => Some(c.seal(random(entropy), value)),
            Cipher::Aes192(c) => {
                let nonce: [u8; NONCE_BYTES] = random(entropy);
                Some([&nonce, &c.encrypt((&nonce).into(), payload).ok()?[..]].concat())
            }
            Cipher::Aes256(c) => {
                let nonce: [u8; NONCE_BYTES] = random(entropy);
                Some([&nonce, &c.encrypt((&nonce).into(), payload).ok()?[..]].concat())
            }
        }
    }

    fn open(&self, key: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        match self {
            Cipher::SecretBox(c) => {
                let (nonce, msg) = sealed.split_first_chunk::<BOX_NONCE_BYTES>()?;
                c.decrypt(nonce.into(), msg).ok()
            }
            Cipher::Aes128(c) => {
                let (nonce, msg) = sealed.split_first_chunk::<NONCE_BYTES>()?;
                c.decrypt(nonce.into(), Payload { msg, aad: key }).ok()
            }
            Cipher::Cbc(c) => c.open(sealed),
            Cipher::Aes192(c) => {
                let (nonce, msg) = sealed.split_first_chunk::<NONCE_BYTES>()?;
                c.decrypt(nonce.into(), Payload { msg, aad: key }).ok()
            }
            Cipher::Aes256(c) => {
                let (nonce, msg) = sealed.split_first_chunk::<NONCE_BYTES>()?;
                c.decrypt(nonce.into(), Payload { msg, aad: key }).ok()
            }
        }
    }
}

fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy.fill(&mut bytes);
    bytes
}

fn prefix(provider: &str, name: &str) -> Vec<u8> {
    format!("k8s:enc:{provider}:v1:{name}:").into_bytes()
}

fn covers(resource: &str, group: &str, plural: &str) -> bool {
    match resource.split_once('.') {
        None => group.is_empty() && resource == plural,
        Some(("*", "*")) => true,
        Some(("*", of)) => of == group,
        Some((of, rest)) => of == plural && rest == group,
    }
}

/// How a cache encrypts values; absent where encryption is not configured.
#[derive(Clone)]
pub(crate) struct AtRest {
    pub encryption: Arc<Encryption>,
    pub entropy: Arc<dyn Entropy>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::SystemEntropy;

    const SECRETS: (&str, &str) = ("", "secrets");

    fn config(providers: &str) -> Encryption {
        Encryption::parse(&format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n{providers}"
        ))
        .unwrap()
    }

    fn keyed(provider: &str, name: &str, byte: u8) -> String {
        with_key(provider, name, &[byte; 32])
    }

    fn with_key(provider: &str, name: &str, key: &[u8]) -> String {
        use base64::Engine;
        let secret = base64::engine::general_purpose::STANDARD.encode(key);
        format!("  - {provider}: {{keys: [{{name: {name}, secret: {secret}}}]}}\n")
    }

    #[test]
    fn what_is_sealed_opens_where_it_was_put_and_nowhere_else() {
        for provider in ["aesgcm", "secretbox"] {
            let encryption = config(&keyed(provider, "k1", 1));
            let value = Bytes::from("the secret");
            let seal = || {
                encryption
                    .seal(SECRETS, b"/a", value.clone(), &SystemEntropy)
                    .unwrap()
            };
            let sealed = seal();
            assert!(sealed.starts_with(format!("k8s:enc:{provider}:v1:k1:").as_bytes()));
            assert!(!sealed.windows(value.len()).any(|w| w == value));
            assert_ne!(sealed, seal(), "another nonce each time");
            let opened = encryption.open(SECRETS, b"/a", &sealed).unwrap();
            assert_eq!(opened, Decrypted { value, stale: false });
            if provider == "aesgcm" {
                assert_eq!(encryption.open(SECRETS, b"/b", &sealed), Err(Error::Unauthentic));
            }
            for cut in [sealed.len() - 1, 25] {
                assert_eq!(
                    encryption.open(SECRETS, b"/a", &sealed.slice(..cut)),
                    Err(Error::Unauthentic)
                );
            }
            let mut changed = sealed.to_vec();
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(
                encryption.open(SECRETS, b"/a", &changed.into()),
                Err(Error::Unauthentic)
            );
            assert_eq!(
                encryption.open(SECRETS, b"/a", &Bytes::from("{}")),
                Err(Error::NoProvider)
            );
        }
    }

    #[test]
    fn keys_of_every_length_that_kubernetes_takes_are_taken() {
        for (provider, lengths) in [
            ("aesgcm", &[16, 24, 32][..]),
            ("aescbc", &[16, 24, 32]),
            ("secretbox", &[32]),
        ] {
            for length in lengths {
                let encryption = config(&with_key(provider, "k", &vec![3; *length]));
                let value = Bytes::from("the secret");
                let sealed = encryption
                    .seal(SECRETS, b"/a", value.clone(), &SystemEntropy)
                    .unwrap();
                assert!(sealed.starts_with(format!("k8s:enc:{provider}:v1:k:").as_bytes()));
                let other = encryption
                    .seal(SECRETS, b"/a", value.clone(), &SystemEntropy)
                    .unwrap();
                assert_ne!(sealed, other, "another first block each time");
                assert_eq!(encryption.open(SECRETS, b"/a", &sealed).unwrap().value, value);
                let cut = sealed.slice(..sealed.len() - 1);
                assert_eq!(encryption.open(SECRETS, b"/a", &cut), Err(Error::Unauthentic));
            }
        }
    }

    #[test]
    fn keys_are_changed_one_after_another() {
        let old = config(&keyed("aesgcm", "k1", 1));
        let sealed = old
            .seal(SECRETS, b"/a", Bytes::from("x"), &SystemEntropy)
            .unwrap();
        let both = config(&(keyed("secretbox", "k2", 2) + &keyed("aesgcm", "k1", 1) + "  - identity: {}\n"));
        assert!(both.open(SECRETS, b"/a", &sealed).unwrap().stale);
        assert!(both.open(SECRETS, b"/a", &Bytes::from("{}")).unwrap().stale);
        let again = both
            .seal(SECRETS, b"/a", Bytes::from("x"), &SystemEntropy)
            .unwrap();
        let new = config(&keyed("secretbox", "k2", 2));
        assert_eq!(new.open(SECRETS, b"/a", &again).unwrap().value, Bytes::from("x"));
        assert_eq!(new.open(SECRETS, b"/a", &sealed), Err(Error::NoProvider));
    }

    #[test]
    fn resources_are_chosen_by_name_and_group() {
        for (resource, group, plural, expected) in [
            ("secrets", "", "secrets", true),
            ("secrets", "apps", "secrets", false),
            ("deployments.apps", "apps", "deployments", true),
            ("*.apps", "apps", "deployments", true),
            ("*.", "", "configmaps", true),
            ("*.", "apps", "deployments", false),
            ("*.*", "batch", "jobs", true),
            ("things.example.com", "example.com", "things", true),
        ] {
            assert_eq!(
                covers(resource, group, plural),
                expected,
                "{resource} {plural}.{group}"
            );
        }
    }
}
