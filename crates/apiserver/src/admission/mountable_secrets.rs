//! The validating half of the ServiceAccount plugin: mirror pods reference no secrets, and the pods of a service account
//! with the annotation `kubernetes.io/enforce-mountable-secrets` reference only the secrets that it lists.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, ServiceAccount, Volume};
use knarr_api::kinds::pod::is_mirror;
use knarr_api::well_known::ENFORCE_MOUNTABLE_SECRETS;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::{Admission, Attributes, Operation};

pub(super) fn validate(admission: &Admission, attributes: &Attributes<'_>, pod: &Pod) -> Result<(), Error> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let denied = |why: String| Err(attributes.forbidden(&pod.metadata, &why));
    let creates = match (attributes.operation, attributes.target.subresource) {
        (Operation::Create, "") => true,
        (Operation::Update, "ephemeralcontainers") => false,
        _ => return Ok(()),
    };
    if creates && is_mirror(pod) {
        return match mirror_pod_error(spec) {
            Some(why) => denied(why.into()),
            None => Ok(()),
        };
    }
    let account = spec.service_account_name.as_deref().unwrap_or("");
    if account.is_empty() {
        let name = pod.metadata.name.as_deref().unwrap_or("");
        let namespace = attributes.target.namespace;
        return denied(format!("no service account specified for pod {namespace}/{name}"));
    }
    let namespace = attributes.target.namespace;
    let Some(found) = admission
        .cache
        .get(&registry::SERVICE_ACCOUNT, namespace, account)
    else {
        return denied(format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        ));
    };
    match found
        .get::<ServiceAccount>()
        .and_then(|account| unlisted_secret_error(account, spec, creates))
    {
        Some(why) => denied(why),
        None => Ok(()),
    }
}

fn mirror_pod_error(spec: &PodSpec) -> Option<&'static str> {
    if spec
        .service_account_name
        .as_deref()
        .is_some_and(|n| !n.is_empty())
    {
        return Some("a mirror pod may not reference service accounts");
    }
    let pulls = spec
        .image_pull_secrets
        .iter()
        .flatten()
        .any(|s| !s.name.is_empty());
    let volumes = spec.volumes.iter().flatten();
    if pulls || environments(spec).any(|e| e.references().next().is_some()) || volumes.clone().any(has_secret)
    {
        return Some("a mirror pod may not reference secrets");
    }
    let sources = volumes
        .filter_map(|v| v.projected.as_ref())
        .flat_map(|p| p.sources.iter().flatten());
    sources
        .into_iter()
        .any(|s| s.service_account_token.is_some())
        .then_some("a mirror pod may not use ServiceAccountToken volume projections")
}

fn has_secret(v: &Volume) -> bool {
    let projected = v.projected.iter().flat_map(|p| p.sources.iter().flatten());
    v.secret.is_some()
        || v.azure_file.is_some()
        || v.cephfs.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.cinder.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.flex_volume.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.rbd.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.scale_io.is_some()
        || v.iscsi.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.storageos.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.csi
            .as_ref()
            .is_some_and(|s| s.node_publish_secret_ref.is_some())
        || projected.into_iter().any(|s| s.secret.is_some())
}

/// The environment variables of a container of any type.
struct Environment<'a> {
    /// The container as error messages name it: `init container a`.
    what: String,
    /// Whether it is an ephemeral container.
    ephemeral: bool,
    variables: &'a [EnvVar],
    from: &'a [EnvFromSource],
}

impl<'a> Environment<'a> {
    /// Each reference to a secret: the field, and the secret's name.
    fn references(&self) -> impl Iterator<Item = (String, &'a str)> {
        let variables = self.variables.iter().filter_map(|variable| {
            let secret = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
            Some((format!("envVar {}", variable.name), secret.name.as_str()))
        });
        let from = self.from.iter().filter_map(|from| {
            let secret = from.secret_ref.as_ref()?;
            Some(("envFrom".to_string(), secret.name.as_str()))
        });
        variables.chain(from)
    }
}

fn environments(spec: &PodSpec) -> impl Iterator<Item = Environment<'_>> {
    fn list<T>(of: &Option<Vec<T>>) -> &[T] {
        of.as_deref().unwrap_or(&[])
    }
    let init = list(&spec.init_containers).iter().map(|c| ("init container", c));
    let main = spec.containers.iter().map(|c| ("container", c));
    let ephemeral = list(&spec.ephemeral_containers).iter().map(|c| Environment {
        what: format!("ephemeral container {}", c.name),
        ephemeral: true,
        variables: list(&c.env),
        from: list(&c.env_from),
    });
    let all = init.chain(main).map(|(what, c)| Environment {
        what: format!("{what} {}", c.name),
        ephemeral: false,
        variables: list(&c.env),
        from: list(&c.env_from),
    });
    all.chain(ephemeral)
}

/// The first reference to a secret that the account does not list. `creates`: the pod is created; otherwise its ephemeral
/// containers are updated.
fn unlisted_secret_error(account: &ServiceAccount, spec: &PodSpec, creates: bool) -> Option<String> {
    let value = account
        .metadata
        .annotations
        .as_ref()?
        .get(ENFORCE_MOUNTABLE_SECRETS)?;
    if !matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True") {
        return None;
    }
    let name = account.metadata.name.as_deref().unwrap_or("");
    let secrets = account.secrets.iter().flatten().filter_map(|s| s.name.as_deref());
    let mountable: BTreeSet<&str> = secrets.collect();
    if creates {
        let mounted = spec.volumes.iter().flatten().filter_map(|v| v.secret.as_ref());
        for secret in mounted.map(|s| s.secret_name.as_deref().unwrap_or("")) {
            if !mountable.contains(secret) {
                return Some(format!(
                    "volume with secret.secretName=\"{secret}\" is not allowed because service account {name} does not \
reference that secret"
                ));
            }
        }
    }
    for environment in environments(spec).filter(|e| e.ephemeral != creates) {
        for (field, secret) in environment.references() {
            if !mountable.contains(secret) {
                return Some(format!(
                    "{} with {field} referencing secret.secretName=\"{secret}\" is not allowed because service account \
{name} does not reference that secret",
                    environment.what
                ));
            }
        }
    }
    let pulled: BTreeSet<&str> = account
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|s| s.name.as_str())
        .collect();
    let pulls = spec
        .image_pull_secrets
        .iter()
        .flatten()
        .enumerate()
        .filter(|_| creates);
    pulls.into_iter().find(|(_, s)| !pulled.contains(s.name.as_str())).map(|(i, s)| {
        format!(
            "imagePullSecrets[{i}].name=\"{}\" is not allowed because service account {name} does not reference that \
imagePullSecret",
            s.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn mirror_pods_reference_no_secrets() {
        for (value, expected) in [
            (json!({"containers": []}), None),
            (
                json!({"containers": [], "serviceAccountName": "a"}),
                Some("a mirror pod may not reference service accounts"),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
                Some("a mirror pod may not reference secrets"),
            ),
            (
                json!({"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]}),
                Some("a mirror pod may not reference secrets"),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "t"}}]}}]}),
                Some("a mirror pod may not use ServiceAccountToken volume projections"),
            ),
        ] {
            assert_eq!(mirror_pod_error(&spec(value.clone())), expected, "{value}");
        }
    }

    #[test]
    fn an_account_can_restrict_its_pods_to_the_secrets_it_lists() {
        let account: ServiceAccount = serde_json::from_value(json!({
            "metadata": {"name": "sa", "annotations": {ENFORCE_MOUNTABLE_SECRETS: "true"}},
            "secrets": [{"name": "own"}], "imagePullSecrets": [{"name": "pull"}],
        }))
        .unwrap();
        let env = |secret: &str| json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
        let because = |what: &str| {
            Some(format!(
                "{what} is not allowed because service account sa does not reference that secret"
            ))
        };
        for (value, creates, expected) in [
            (
                json!({"containers": [{"name": "c", "env": env("own")}], "imagePullSecrets": [{"name": "pull"}],
                    "volumes": [{"name": "v", "secret": {"secretName": "own"}}]}),
                true,
                None,
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "secret": {"secretName": "x"}}]}),
                true,
                because("volume with secret.secretName=\"x\""),
            ),
            (
                json!({"containers": [{"name": "c", "env": env("x")}]}),
                true,
                because("container c with envVar E referencing secret.secretName=\"x\""),
            ),
            (
                json!({"containers": [], "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "x"}}]}]}),
                true,
                because("init container i with envFrom referencing secret.secretName=\"x\""),
            ),
            (
                json!({"containers": [{"name": "c", "env": env("x")}], "ephemeralContainers": [{"name": "e", "env": env("x")}]}),
                false,
                because("ephemeral container e with envVar E referencing secret.secretName=\"x\""),
            ),
            (
                json!({"containers": [], "imagePullSecrets": [{"name": "pull"}, {"name": "x"}]}),
                true,
                Some(
                    "imagePullSecrets[1].name=\"x\" is not allowed because service account sa does not reference that \
imagePullSecret"
                        .to_string(),
                ),
            ),
        ] {
            assert_eq!(unlisted_secret_error(&account, &spec(value.clone()), creates), expected, "{value}");
            let mut free = account.clone();
            free.metadata.annotations = None;
            assert_eq!(unlisted_secret_error(&free, &spec(value), creates), None);
        }
    }
}
