//! `knarr token`: bootstrap tokens, with which nodes join, with kubeadm's subcommands and flags.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use knarr_api::k8s_openapi::ByteString;
use knarr_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use knarr_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry::Registered;
use knarr_apiserver::authn::bootstrap_token::{ID_LENGTH, NAMESPACE, SECRET_LENGTH, SECRET_TYPE, parts};
use knarr_apiserver::joining::JOINERS;
use knarr_apiserver::pki;
use knarr_apiserver::seams::{Entropy, SystemEntropy};
use knarr_client::{Api, DeleteOptions, ListOptions, TypedApi};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

use super::{Failure, cluster, columns};
use crate::config::Config;

/// The usages that a token may have.
const USAGES: [&str; 2] = ["signing", "authentication"];
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

#[derive(Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Create a token, and print it and the command with which a node joins.
    Create(CreateArgs),
    /// List the tokens.
    List,
    /// Delete tokens, given by id or in full. Nodes that have joined stay.
    Delete {
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
    /// Print a new token without creating it in the cluster.
    Generate,
}

#[derive(Args)]
struct CreateArgs {
    /// The token, in the form abcdef.0123456789abcdef [default: a random one].
    token: Option<String>,
    /// How long the token is valid, such as 30m or 24h; 0 means that it never expires.
    #[arg(long, default_value = "24h")]
    ttl: String,
    /// A description, which `knarr token list` shows.
    #[arg(long, default_value = "")]
    description: String,
    /// What it can be used for: signing (of cluster-info), authentication, or both.
    #[arg(long, value_delimiter = ',', default_values = USAGES)]
    usages: Vec<String>,
    /// Extra groups of a node that authenticates with it.
    #[arg(long, value_delimiter = ',', default_value = JOINERS)]
    groups: Vec<String>,
    /// Print only the command with which a node joins.
    #[arg(long)]
    print_join_command: bool,
}

pub async fn run(config: Config, args: TokenArgs) -> Result<(), Failure> {
    if let TokenCommand::Generate = args.command {
        println!("{}", generate());
        return Ok(());
    }
    let (api, _) = cluster::admin(&config).await?;
    match args.command {
        TokenCommand::Create(args) => create(&*api, &args).await,
        TokenCommand::List => list(&*api).await,
        TokenCommand::Delete { tokens } => delete(&*api, &tokens).await,
        TokenCommand::Generate => Ok(()),
    }
}

async fn create(api: &dyn Api, args: &CreateArgs) -> Result<(), Failure> {
    let token = args.token.clone().unwrap_or_else(generate);
    let secret = secret(&token, args, Timestamp::now())?;
    // First, so that no token is created that no node can use.
    let join = join_command(api, &token).await?;
    let made = api.create_as(secret).await;
    made.map_err(|e| Failure::new("cannot create the token").because(e))?;
    if args.print_join_command {
        println!("{join}");
    } else {
        println!("{token}");
        eprintln!("Join a node with:\n\n  {join}\n");
    }
    Ok(())
}

/// The Secret of a token, or the first invalid argument.
fn secret(token: &str, args: &CreateArgs, now: Timestamp) -> Result<Secret, Failure> {
    let (id, key) = parts(token).ok_or_else(|| {
        Failure::new(format!("{token:?} is not a token: expected {ID_LENGTH} and {SECRET_LENGTH} characters of a-z and 0-9, separated by a dot"))
    })?;
    if let Some(other) = args.usages.iter().find(|u| !USAGES.contains(&u.as_str())) {
        let usages = USAGES.join(" or ");
        return Err(Failure::new(format!("--usages: {other:?}: expected {usages}")));
    }
    let ttl = knarr_apimachinery::duration::parse(&args.ttl).filter(|d| !d.is_negative());
    let no_duration = || format!("--ttl: {:?}: expected a duration such as 30m or 24h", args.ttl);
    let ttl = ttl.ok_or_else(|| Failure::new(no_duration()))?;
    let mut data = BTreeMap::from([("token-id", id.to_string()), ("token-secret", key.to_string())]);
    if !ttl.is_zero() {
        let expiration = now.checked_add(ttl);
        let expiration = expiration.and_then(|at| Timestamp::from_second(at.as_second()));
        let expiration = expiration.map_err(|e| Failure::new("--ttl").because(e))?;
        data.insert("expiration", expiration.to_string());
    }
    for usage in USAGES {
        if args.usages.iter().any(|u| u == usage) {
            let key = if usage == "signing" {
                "usage-bootstrap-signing"
            } else {
                "usage-bootstrap-authentication"
            };
            data.insert(key, "true".into());
        }
    }
    if !args.groups.is_empty() {
        data.insert("auth-extra-groups", args.groups.join(","));
    }
    if !args.description.is_empty() {
        data.insert("description", args.description.clone());
    }
    let data = data.into_iter();
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(format!("bootstrap-token-{id}")),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.into()),
        data: Some(
            data.map(|(k, v)| (k.to_string(), ByteString(v.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    })
}

/// The command that the administrator runs on the node.
async fn join_command(api: &dyn Api, token: &str) -> Result<String, Failure> {
    let unknown = || Failure::new("ConfigMap kube-public/cluster-info has no usable kubeconfig");
    let info = api.get_as::<ConfigMap>("kube-public", "cluster-info").await;
    let info = info.map_err(|e| unknown().because(e))?;
    let text = info
        .data
        .as_ref()
        .and_then(|d| d.get("kubeconfig"))
        .ok_or_else(unknown)?;
    let read: Value = serde_saphyr::from_str(text).map_err(|e| unknown().because(e))?;
    let cluster = &read["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().ok_or_else(unknown)?;
    let authority = cluster["certificate-authority-data"]
        .as_str()
        .ok_or_else(unknown)?;
    // Kubeconfigs hold PEM in base64; a Secret's bytes are read the same way.
    let pem: ByteString = serde_json::from_value(authority.into()).map_err(|e| unknown().because(e))?;
    let der = CertificateDer::from_pem_slice(&pem.0).map_err(|e| unknown().because(e))?;
    let pin = pki::pin(&der).map_err(|e| Failure::new(e.to_string()))?;
    Ok(format!(
        "knarr agent --server {server} --token {token} --ca-cert-hash {pin}"
    ))
}

async fn list(api: &dyn Api) -> Result<(), Failure> {
    let options = ListOptions {
        namespace: NAMESPACE.into(),
        field_selector: format!("type={SECRET_TYPE}"),
        ..ListOptions::default()
    };
    let listed = api.list(Secret::kind_of(), options).await;
    let listed = listed.map_err(|e| Failure::new("cannot list the tokens").because(e))?;
    let secrets = listed.items.iter().filter_map(|o| o.get::<Secret>());
    print!("{}", table(secrets, Timestamp::now()));
    Ok(())
}

fn table<'a>(secrets: impl Iterator<Item = &'a Secret>, now: Timestamp) -> String {
    let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for secret in secrets {
        let text = |key: &str| {
            let value = secret.data.as_ref().and_then(|d| d.get(key));
            value.map_or_else(String::new, |v| String::from_utf8_lossy(&v.0).into_owned())
        };
        let or_none = |text: String| if text.is_empty() { "<none>".into() } else { text };
        let expires = text("expiration");
        let left = match expires.parse::<Timestamp>().map(|t| t.duration_since(now)) {
            Ok(left) if left.is_positive() => short(left),
            Ok(_) => "<expired>".into(),
            Err(_) if expires.is_empty() => "<forever>".into(),
            Err(_) => "<invalid>".into(),
        };
        let usages = [
            ("authentication", "usage-bootstrap-authentication"),
            ("signing", "usage-bootstrap-signing"),
        ];
        let usages = usages.into_iter().filter(|(_, key)| text(key) == "true");
        let usages: Vec<&str> = usages.map(|(usage, _)| usage).collect();
        rows.push(vec![
            format!("{}.{}", text("token-id"), text("token-secret")),
            left,
            if expires.is_empty() {
                "<never>".into()
            } else {
                expires
            },
            or_none(usages.join(",")),
            or_none(text("description")),
            or_none(text("auth-extra-groups")),
        ]);
    }
    columns::table(&rows)
}

/// In the largest unit that fits, as kubectl shows ages.
fn short(left: SignedDuration) -> String {
    let seconds = left.as_secs();
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

async fn delete(api: &dyn Api, tokens: &[String]) -> Result<(), Failure> {
    for token in tokens {
        let id = token.split_once('.').map_or(token.as_str(), |(id, _)| id);
        let name = format!("bootstrap-token-{id}");
        api.delete(Secret::kind_of(), NAMESPACE, &name, DeleteOptions::default())
            .await
            .map_err(|e| Failure::new(format!("cannot delete the token {id}")).because(e))?;
        println!("bootstrap token {id:?} deleted");
    }
    Ok(())
}

fn generate() -> String {
    let mut token = String::new();
    while token.len() < ID_LENGTH + SECRET_LENGTH {
        let mut bytes = [0; 32];
        SystemEntropy.fill(&mut bytes);
        // Bytes past the last full multiple of the alphabet would make some characters more likely.
        let even = bytes
            .iter()
            .filter(|b| usize::from(**b) < 256 / ALPHABET.len() * ALPHABET.len());
        token.extend(even.filter_map(|b| {
            ALPHABET
                .get(usize::from(*b) % ALPHABET.len())
                .map(|c| char::from(*c))
        }));
    }
    token.truncate(ID_LENGTH + SECRET_LENGTH);
    token.insert(ID_LENGTH, '.');
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_args(ttl: &str, usages: &[&str]) -> CreateArgs {
        CreateArgs {
            token: None,
            ttl: ttl.into(),
            description: "for rack 7".into(),
            usages: usages.iter().map(|u| (*u).to_string()).collect(),
            groups: vec![JOINERS.into()],
            print_join_command: false,
        }
    }

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn a_token_is_a_secret_as_the_api_server_reads_it() {
        let now: Timestamp = "2030-01-01T00:00:00.5Z".parse().unwrap();
        let made = secret(TOKEN, &create_args("90m", &USAGES), now).unwrap();
        let lines = table([&made].into_iter(), now);
        let found: Vec<&str> = lines
            .lines()
            .nth(1)
            .unwrap()
            .split("  ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .collect();
        assert_eq!(
            found,
            [
                TOKEN,
                "1h",
                "2030-01-01T01:30:00Z",
                "authentication,signing",
                "for rack 7",
                JOINERS
            ]
        );
        let forever = secret(TOKEN, &create_args("0", &["signing"]), now).unwrap();
        let text = table([&forever].into_iter(), now);
        assert!(
            text.contains("<forever>") && text.contains("  signing  "),
            "{text}"
        );
    }

    #[test]
    fn an_invalid_token_ttl_or_usage_is_an_error_that_names_it() {
        let now = Timestamp::UNIX_EPOCH;
        for (token, ttl, usage, part) in [
            (
                "abc",
                "1h",
                "signing",
                "\"abc\" is not a token: expected 6 and 16 characters of a-z and 0-9",
            ),
            (TOKEN, "soon", "signing", "--ttl: \"soon\": expected a duration"),
            (TOKEN, "-1h", "signing", "--ttl: \"-1h\": expected a duration"),
            (
                TOKEN,
                "1h",
                "all",
                "--usages: \"all\": expected signing or authentication",
            ),
        ] {
            let error = secret(token, &create_args(ttl, &[usage]), now).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn new_tokens_have_the_form() {
        assert!(parts(&generate()).is_some());
    }
}
