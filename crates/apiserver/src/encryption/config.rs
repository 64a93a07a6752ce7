//! The EncryptionConfiguration file.

use aes_gcm::aead::KeyInit;
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crypto_secretbox::XSalsa20Poly1305;
use serde::Deserialize;
use serde_json::Value;

use super::cbc::AesCbc;
use super::{Aes192Gcm, Cipher, Encryption, Provider, Rule, prefix};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<Resources>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<serde_json::Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    name: String,
    secret: String,
}

pub(super) fn parse(text: &str) -> Result<Encryption, Vec<String>> {
    let file: File = serde_saphyr::from_str(text).map_err(|e| vec![e.to_string()])?;
    let mut errors = Vec::new();
    if (file.api_version.as_str(), file.kind.as_str())
        != ("apiserver.config.k8s.io/v1", "EncryptionConfiguration")
    {
        errors.push(format!(
            "{}, Kind={}: expected apiserver.config.k8s.io/v1, Kind=EncryptionConfiguration",
            file.api_version, file.kind
        ));
    }
    if file.resources.is_empty() {
        errors.push("resources: Required value: at least one is needed".into());
    }
    let mut rules = Vec::new();
    for (i, entry) in file.resources.into_iter().enumerate() {
        let at = format!("resources[{i}]");
        if entry.resources.is_empty() {
            errors.push(format!("{at}.resources: Required value: at least one is needed"));
        }
        for (j, resource) in entry.resources.iter().enumerate() {
            if let Some(why) = bad_resource(resource) {
                errors.push(format!("{at}.resources[{j}]: Invalid value: {resource:?}: {why}"));
            }
        }
        if entry.providers.is_empty() {
            errors.push(format!("{at}.providers: Required value: at least one is needed"));
        }
        let mut providers = Vec::new();
        for (j, provider) in entry.providers.into_iter().enumerate() {
            let at = format!("{at}.providers[{j}]");
            if provider.len() != 1 {
                errors.push(format!("{at}: expected one provider, found {}", provider.len()));
            }
            for (name, value) in provider {
                read_provider(&at, &name, value, &mut providers, &mut errors);
            }
        }
        rules.push(Rule {
            resources: entry.resources,
            providers,
        });
    }
    if errors.is_empty() {
        Ok(Encryption { rules })
    } else {
        Err(errors)
    }
}

fn bad_resource(resource: &str) -> Option<&'static str> {
    if resource == "*" {
        return Some(
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        );
    }
    if resource.is_empty() || resource.contains('/') || resource.to_lowercase() != resource {
        return Some(
            "expected the lower-case plural name of a resource, such as secrets or deployments.apps",
        );
    }
    None
}

fn read_provider(at: &str, name: &str, value: Value, into: &mut Vec<Provider>, errors: &mut Vec<String>) {
    let at = format!("{at}.{name}");
    match name {
        "identity" => into.push(Provider::Identity),
        "aesgcm" | "aescbc" | "secretbox" => {
            let keys: Keys = match serde_json::from_value(value) {
                Ok(keys) => keys,
                Err(e) => return errors.push(format!("{at}: {e}")),
            };
            if keys.keys.is_empty() {
                errors.push(format!("{at}.keys: Required value: at least one is needed"));
            }
            for (i, key) in keys.keys.iter().enumerate() {
                let at = format!("{at}.keys[{i}]");
                if key.name.is_empty() || key.name.contains(':') {
                    errors.push(format!(
                        "{at}.name: Invalid value: {:?}: expected a name without ':'",
                        key.name
                    ));
                }
                // The value found is a secret and is not shown.
                let Ok(secret) = STANDARD.decode(&key.secret) else {
                    errors.push(format!(
                        "{at}.secret: Invalid value: \"REDACTED\": expected base64"
                    ));
                    continue;
                };
                match cipher(name, &secret) {
                    Ok(cipher) => into.push(Provider::Keyed {
                        prefix: prefix(name, &key.name),
                        cipher,
                    }),
                    Err(expected) => errors.push(format!(
                        "{at}.secret: Invalid value: \"REDACTED\": {} bytes, expected {expected}",
                        secret.len()
                    )),
                }
            }
        }
        _ => errors.push(format!(
            "{at}: Unsupported value: supported are \"aesgcm\", \"aescbc\", \"secretbox\" and \"identity\""
        )),
    }
}

fn cipher(provider: &str, secret: &[u8]) -> Result<Cipher, &'static str> {
    let fits = |_| ();
    match (provider, secret.len()) {
        ("secretbox", 32) => XSalsa20Poly1305::new_from_slice(secret)
            .map(|c| Cipher::SecretBox(Box::new(c)))
            .map_err(fits),
        ("aesgcm", 16) => Aes128Gcm::new_from_slice(secret)
            .map(|c| Cipher::Aes128(Box::new(c)))
            .map_err(fits),
        ("aesgcm", 24) => Aes192Gcm::new_from_slice(secret)
            .map(|c| Cipher::Aes192(Box::new(c)))
            .map_err(fits),
        ("aescbc", _) => AesCbc::new(secret).map(Cipher::Cbc).ok_or(()),
        ("aesgcm", 32) => Aes256Gcm::new_from_slice(secret)
            .map(|c| Cipher::Aes256(Box::new(c)))
            .map_err(fits),
        _ => Err(()),
    }
    .map_err(|()| {
        if provider == "secretbox" {
            "32"
        } else {
            "16, 24 or 32"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_reported_and_no_secret_shown() {
        let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:
- resources: ['*', Secrets]
  providers:
  - aesgcm: {keys: [{name: 'a:b', secret: c2hvcnQ=}]}
  - aescbc: {keys: []}
  - kms: {name: x}
  - secretbox: {keys: [{name: k, secret: '!!'}]}
";
        let errors = parse(text).err().unwrap().join("\n");
        for part in [
            "resources[0].resources[0]: Invalid value: \"*\"",
            "resources[0].resources[1]: Invalid value: \"Secrets\"",
            "providers[0].aesgcm.keys[0].name: Invalid value: \"a:b\"",
            "providers[0].aesgcm.keys[0].secret: Invalid value: \"REDACTED\": 5 bytes, expected 16, 24 or 32",
            "providers[1].aescbc.keys: Required value",
            "providers[2].kms: Unsupported value",
            "providers[3].secretbox.keys[0].secret: Invalid value: \"REDACTED\": expected base64",
        ] {
            assert!(errors.contains(part), "{part:?} is missing in\n{errors}");
        }
        assert!(!errors.contains("c2hvcnQ"), "{errors}");
        assert!(parse("kind: x").is_err());
    }
}
