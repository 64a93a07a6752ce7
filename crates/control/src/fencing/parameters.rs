//! The parameters of one run of a fence agent: the policy's and its Secret's, all within the closed lists; and the
//! agent's output without the Secret's values.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use knarr_api::k8s_openapi;
use knarr_client::{Api, Error, TypedApi};
use knarr_controllers::fencing::Run;
use knarr_controllers::fencing::parameters::{Allowed, Denied, VALUE_MAX, secret};

/// The replacement of a secret value in an agent's output.
const REDACTED: &[u8] = b"[redacted]";

/// The parameters of one run, see the module. It is not `Debug`: some of them are secret.
#[derive(Default)]
pub struct Parameters {
    values: BTreeMap<String, String>,
    /// The keys of the parameters that come from a Secret.
    secret: BTreeSet<String>,
}

/// Why an agent is not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotGiven {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("cannot read Secret {namespace}/{name}: {source}")]
    Secret {
        namespace: String,
        name: String,
        source: Error,
    },
    #[error("Secret {namespace}/{name}: the value of {key:?} is not UTF-8 text")]
    Text {
        namespace: String,
        name: String,
        key: String,
    },
}

impl Parameters {
    /// The parameters of a run. The Secret is read when the agent is run, and nothing of it is kept.
    pub(super) async fn of(api: &dyn Api, allowed: &Allowed, run: &Run) -> Result<Self, NotGiven> {
        let agent = &run.agent;
        allowed.agent(agent)?;
        let mut all = Parameters {
            values: run.parameters.clone(),
            secret: BTreeSet::new(),
        };
        if let Some(from) = &run.secret {
            secret(agent, from)?;
            let found = api.get_as::<Secret>(&from.namespace, &from.name).await;
            let found = found.map_err(|source| NotGiven::Secret {
                namespace: from.namespace.clone(),
                name: from.name.clone(),
                source,
            })?;
            for (key, value) in found.data.iter().flatten() {
                let text = std::str::from_utf8(&value.0).map_err(|_| NotGiven::Text {
                    namespace: from.namespace.clone(),
                    name: from.name.clone(),
                    key: key.clone(),
                })?;
                if all.values.contains_key(key) {
                    let (agent, key) = (agent.clone(), key.clone());
                    return Err(Denied::Twice { agent, key }.into());
                }
                // A line break at the end is ignored: editors add it.
                all.values.insert(key.clone(), text.trim_end().to_string());
                all.secret.insert(key.clone());
            }
        }
        for (key, value) in &all.values {
            allowed.parameter(agent, key, value)?;
        }
        Ok(all)
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// At most `most` bytes of an agent's output, without any value of the Secret. Where the output was longer than
    /// `output` (`is_cut`), its end may be the beginning of a secret value, and is removed as well.
    pub(super) fn redacted(&self, output: &[u8], is_cut: bool, most: usize) -> String {
        let mut values: Vec<&[u8]> = self
            .secret
            .iter()
            .filter_map(|key| self.values.get(key))
            .map(String::as_bytes)
            .filter(|value| !value.is_empty())
            .collect();
        // One value may be part of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let mut out = Vec::with_capacity(output.len());
        let mut rest = output;
        while let Some((first, behind)) = rest.split_first() {
            match values.iter().find(|value| rest.starts_with(value)) {
                Some(value) => {
                    out.extend_from_slice(REDACTED);
                    rest = rest.get(value.len()..).unwrap_or_default();
                }
                None => {
                    out.push(*first);
                    rest = behind;
                }
            }
        }
        if is_cut && !values.is_empty() {
            out.truncate(out.len().saturating_sub(VALUE_MAX));
        }
        out.truncate(most);
        String::from_utf8_lossy(&out).into_owned()
    }
}

#[cfg(test)]
impl Parameters {
    /// Those of a policy, and those of its Secret.
    pub(super) fn for_tests(plain: &[(&str, &str)], secret: &[(&str, &str)]) -> Self {
        let pairs = plain.iter().chain(secret);
        Parameters {
            values: pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            secret: secret.iter().map(|(k, _)| k.to_string()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;
    use knarr_client::TokioClock;
    use knarr_client::fake::FakeApi;
    use knarr_controllers::fencing::kinds::SECRETS;
    use knarr_controllers::fencing::kinds::SecretRef;
    use serde_json::{Value, json};

    use super::*;

    async fn api(namespace: &str, data: Value) -> FakeApi {
        let api = FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH)));
        let secret = json!({"metadata": {"name": "s", "namespace": namespace}, "data": data});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        api.create_as(secret).await.unwrap();
        api
    }

    fn run(parameters: &[(&str, &str)], namespace: &str) -> Run {
        Run {
            fencing: "f".into(),
            attempt: 1,
            agent: "fence_ipmilan".into(),
            action: "off",
            parameters: parameters
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect(),
            secret: Some(SecretRef {
                namespace: namespace.into(),
                name: "s".into(),
            }),
            timeout: Duration::from_secs(1),
        }
    }

    async fn denied(namespace: &str, data: Value, parameters: &[(&str, &str)]) -> String {
        let api = api(namespace, data).await;
        let given = Parameters::of(&api, &Allowed::default(), &run(parameters, namespace)).await;
        given.err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[tokio::test]
    async fn a4_a_secret_of_another_namespace_is_not_read() {
        let why = denied("kube-system", json!({"password": "cHc="}), &[]).await;
        assert!(why.contains("secretRef names namespace \"kube-system\""), "{why}");
        assert_eq!(denied(SECRETS, json!({"password": "cHcK"}), &[]).await, "");
    }

    #[tokio::test]
    async fn a4_keys_of_a_secret_go_through_the_same_list_and_override_nothing() {
        for key in ["action", "ACTION", "ssh_options", "password_script", "token"] {
            let why = denied(SECRETS, json!({key: "c3RhdHVz"}), &[]).await;
            assert!(why.contains("is not allowed"), "{key}: {why}");
        }
        let why = denied(SECRETS, json!({"plug": "MQ=="}), &[("plug", "2")]).await;
        assert!(why.contains("in the policy and in its Secret"), "{why}");
        let why = denied(SECRETS, json!({"password": "YQ1hY3Rpb249c3RhdHVz"}), &[]).await;
        assert!(why.contains("no control characters"), "{why}");
        let why = denied(SECRETS, json!({"password": "/w=="}), &[]).await;
        assert!(why.contains("not UTF-8"), "{why}");
    }

    #[test]
    fn a4_no_secret_value_is_in_the_output_that_is_kept_however_it_is_cut() {
        let parameters = Parameters::for_tests(&[("ip", "1")], &[("login", "adm"), ("password", "admin")]);
        let output = parameters.redacted(b"ip=1 login=adm password=admin\n", false, 100);
        assert_eq!(output, "ip=1 login=[redacted] password=[redacted]\n");
        let secret = "s3cr3t".repeat(100);
        let parameters = Parameters::for_tests(&[], &[("password", &secret)]);
        let all = [b"x".repeat(900).as_slice(), secret.as_bytes(), secret.as_bytes()].concat();
        for end in 0..all.len() {
            let output = parameters.redacted(all.get(..end).unwrap(), true, 2048);
            assert!(!output.contains('s'), "cut at {end}: {output}");
        }
    }
}
