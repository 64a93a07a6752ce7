//! Settings of the API server for encryption at rest, audit, request limits, Events, authentication and service account tokens.
//! Files are read here, so that an invalid one is reported before anything starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use knarr_api::emulation::{Emulation, MinorVersion};
use knarr_apiserver::Options;
use knarr_apiserver::audit::file::LogFile;
use knarr_apiserver::audit::{Destination, Policy};
use knarr_apiserver::authn::token_key::KeyFiles;
use knarr_apiserver::encryption::Encryption;

use super::heading;
use super::reader::{Reader, absolute, list};
use super::value::ValueError;

/// kube-apiserver's flags.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = heading::SECURITY)]
pub struct AccessFlags {
    /// An EncryptionConfiguration: which resources are encrypted in the store, and with which keys.
    #[arg(
        long,
        env = "KNARR_ENCRYPTION_PROVIDER_CONFIG",
        value_name = "FILE",
        global = true
    )]
    pub encryption_provider_config: Option<String>,
    /// An audit policy; without it no request is audited.
    #[arg(long, env = "KNARR_AUDIT_POLICY_FILE", value_name = "FILE", global = true)]
    pub audit_policy_file: Option<String>,
    /// The audit log, `-` for standard output [default: audit.log in the data directory].
    #[arg(long, env = "KNARR_AUDIT_LOG_PATH", value_name = "FILE", global = true)]
    pub audit_log_path: Option<String>,
    /// Maximum size of the audit log in megabytes before it is rotated, 0 for no limit [default: 100].
    #[arg(long, env = "KNARR_AUDIT_LOG_MAXSIZE", value_name = "MB", global = true)]
    pub audit_log_maxsize: Option<String>,
    /// Days for which rotated audit logs are retained, 0 for ever [default: 0].
    #[arg(long, env = "KNARR_AUDIT_LOG_MAXAGE", value_name = "DAYS", global = true)]
    pub audit_log_maxage: Option<String>,
    /// Number of rotated audit logs that are retained, 0 for no limit [default: 10].
    #[arg(long, env = "KNARR_AUDIT_LOG_MAXBACKUP", value_name = "N", global = true)]
    pub audit_log_maxbackup: Option<String>,
    /// Maximum number of non-mutating requests in flight [default: 400].
    #[arg(long, env = "KNARR_MAX_REQUESTS_INFLIGHT", value_name = "N", global = true, help_heading = heading::API_SERVER)]
    pub max_requests_inflight: Option<String>,
    /// Maximum number of mutating requests in flight [default: 200].
    #[arg(
        long,
        env = "KNARR_MAX_MUTATING_REQUESTS_INFLIGHT",
        value_name = "N",
        global = true,
        help_heading = heading::API_SERVER
    )]
    pub max_mutating_requests_inflight: Option<String>,
    /// Timeout in seconds of requests that are not watches or streams [default: 60].
    #[arg(long, env = "KNARR_REQUEST_TIMEOUT", value_name = "SECONDS", global = true, help_heading = heading::API_SERVER)]
    pub request_timeout: Option<String>,
    /// How long an Event is kept after its last write, such as 24h; 0 for ever [default: 1h0m0s].
    #[arg(long, env = "KNARR_EVENT_TTL", value_name = "DURATION", global = true, help_heading = heading::API_SERVER)]
    pub event_ttl: Option<String>,
    /// Whether requests without credentials are authenticated as system:anonymous; else they get 401 [default: true].
    #[arg(long, env = "KNARR_ANONYMOUS_AUTH", value_name = "BOOL", global = true, help_heading = heading::API_SERVER)]
    pub anonymous_auth: Option<String>,
    /// The Kubernetes version whose API is served, 1.33 to 1.36: kinds that became stable after it are not served. Fields and
    /// the components of the cluster stay those of 1.36 [default: 1.36].
    #[arg(long, env = "KNARR_EMULATED_VERSION", value_name = "VERSION", global = true, help_heading = heading::API_SERVER)]
    pub emulated_version: Option<String>,
    /// The oldest version that other API servers of the cluster may have, as `/version` reports it; at most the emulated
    /// version [default: the version before the emulated one].
    #[arg(long, env = "KNARR_MIN_COMPATIBILITY_VERSION", value_name = "VERSION", global = true, help_heading = heading::API_SERVER)]
    pub min_compatibility_version: Option<String>,
    /// The key that signs service account tokens (PEM: P-256 or RSA) [default: one that knarr generates].
    #[arg(
        long,
        env = "KNARR_SERVICE_ACCOUNT_SIGNING_KEY_FILE",
        value_name = "FILE",
        global = true
    )]
    pub service_account_signing_key_file: Option<String>,
    /// Additional keys whose service account tokens are accepted, separated by commas.
    #[arg(
        long,
        env = "KNARR_SERVICE_ACCOUNT_KEY_FILE",
        value_name = "FILES",
        global = true
    )]
    pub service_account_key_file: Option<String>,
    /// The issuer of service account tokens [default: https://kubernetes.default.svc].
    #[arg(long, env = "KNARR_SERVICE_ACCOUNT_ISSUER", value_name = "URL", global = true)]
    pub service_account_issuer: Option<String>,
}

/// The validated settings.
#[derive(Clone, Debug)]
pub struct Access {
    pub encryption: Option<Arc<Encryption>>,
    pub audit: Option<(Policy, Destination)>,
    pub max_in_flight: (usize, usize),
    pub request_timeout: Duration,
    /// `None`: Events are kept for ever.
    pub event_ttl: Option<Duration>,
    pub anonymous: bool,
    pub emulation: Emulation,
    /// PEM texts; an empty signing key: knarr's own.
    pub keys: KeyFiles,
    pub issuer: String,
}

const MEGABYTE: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Access {
    pub(super) fn read(reader: &mut Reader, flags: &AccessFlags, data_dir: &Path) -> Self {
        let defaults = Options::default();
        let (read_only, mutating) = defaults.max_in_flight;
        let encryption = reader.get(
            "encryptionProviderConfig",
            "--encryption-provider-config",
            &flags.encryption_provider_config,
            "",
            file,
        );
        let encryption = reader.parsed_secret(encryption, Encryption::parse).map(Arc::new);
        let audit = audit(reader, flags, data_dir);
        let keys = keys(reader, flags);
        let emulation = emulation(reader, flags);
        Access {
            emulation,
            encryption,
            audit,
            max_in_flight: (
                reader.get(
                    "maxRequestsInflight",
                    "--max-requests-inflight",
                    &flags.max_requests_inflight,
                    &read_only.to_string(),
                    positive,
                ),
                reader.get(
                    "maxMutatingRequestsInflight",
                    "--max-mutating-requests-inflight",
                    &flags.max_mutating_requests_inflight,
                    &mutating.to_string(),
                    positive,
                ),
            ),
            request_timeout: Duration::from_secs(
                reader
                    .get(
                        "requestTimeout",
                        "--request-timeout",
                        &flags.request_timeout,
                        &defaults.request_timeout.as_secs().to_string(),
                        positive,
                    )
                    .try_into()
                    .unwrap_or(u64::MAX),
            ),
            event_ttl: reader.get(
                "eventTtl",
                "--event-ttl",
                &flags.event_ttl,
                &format!("{}s", defaults.event_ttl.unwrap_or_default().as_secs()),
                event_ttl,
            ),
            anonymous: reader.get(
                "anonymousAuth",
                "--anonymous-auth",
                &flags.anonymous_auth,
                "true",
                flag,
            ),
            keys,
            issuer: reader.get(
                "serviceAccountIssuer",
                "--service-account-issuer",
                &flags.service_account_issuer,
                knarr_apiserver::ISSUER,
                |s| match s.starts_with("https://") {
                    true => Ok(s.to_string()),
                    false => Err(ValueError::expected("a URL that begins with https://")),
                },
            ),
        }
    }
}

/// The audit policy, and where events are written; `None` without a policy.
fn audit(reader: &mut Reader, flags: &AccessFlags, data_dir: &Path) -> Option<(Policy, Destination)> {
    let policy = reader.get(
        "auditPolicyFile",
        "--audit-policy-file",
        &flags.audit_policy_file,
        "",
        file,
    );
    let policy = reader.parsed(policy, Policy::parse);
    let default_log = data_dir.join("audit.log").display().to_string();
    let log_path = reader.get(
        "auditLogPath",
        "--audit-log-path",
        &flags.audit_log_path,
        &default_log,
        |s| match s {
            "-" => Ok(None),
            path => absolute(path).map(Some),
        },
    );
    let log = LogFile {
        path: log_path.clone().unwrap_or_default(),
        max_bytes: MEGABYTE
            * u64::from(reader.get(
                "auditLogMaxsize",
                "--audit-log-maxsize",
                &flags.audit_log_maxsize,
                "100",
                number,
            )),
        max_age: DAY
            * reader.get(
                "auditLogMaxage",
                "--audit-log-maxage",
                &flags.audit_log_maxage,
                "0",
                number,
            ),
        max_backups: usize::try_from(reader.get(
            "auditLogMaxbackup",
            "--audit-log-maxbackup",
            &flags.audit_log_maxbackup,
            "10",
            number,
        ))
        .unwrap_or(usize::MAX),
    };
    policy.map(|policy| match log_path {
        None => (policy, Destination::Stdout),
        Some(_) => (policy, Destination::File(log)),
    })
}

/// The keys of service account tokens.
fn keys(reader: &mut Reader, flags: &AccessFlags) -> KeyFiles {
    let signing = reader.get(
        "serviceAccountSigningKeyFile",
        "--service-account-signing-key-file",
        &flags.service_account_signing_key_file,
        "",
        file,
    );
    let verifying = reader.get(
        "serviceAccountKeyFile",
        "--service-account-key-file",
        &flags.service_account_key_file,
        "",
        list,
    );
    let pem = |text: &str| Ok::<_, Vec<String>>(text.to_string());
    KeyFiles {
        signing: reader.parsed_secret(signing, pem).unwrap_or_default(),
        verifying: verifying
            .into_iter()
            .filter_map(|path| reader.parsed(Some(PathBuf::from(path)), pem))
            .collect(),
    }
}

/// The version whose API is served.
fn emulation(reader: &mut Reader, flags: &AccessFlags) -> Emulation {
    let emulated = reader.get(
        "emulatedVersion",
        "--emulated-version",
        &flags.emulated_version,
        "1.36",
        |s| {
            let version: MinorVersion = s.parse()?;
            Emulation::new(Some(version), None)?;
            Ok(version)
        },
    );
    reader.get(
        "minCompatibilityVersion",
        "--min-compatibility-version",
        &flags.min_compatibility_version,
        "",
        |s| {
            let version = Some(s)
                .filter(|s| !s.is_empty())
                .map(str::parse::<MinorVersion>)
                .transpose();
            let emulation = version.and_then(|version| Emulation::new(Some(emulated), version));
            emulation.map_err(ValueError::from)
        },
    )
}

fn flag(text: &str) -> Result<bool, ValueError> {
    text.parse().map_err(|_| ValueError::expected("true or false"))
}

fn number(text: &str) -> Result<u32, ValueError> {
    text.parse()
        .map_err(|_| ValueError::expected("a number, 0 or more"))
}

fn positive(text: &str) -> Result<usize, ValueError> {
    let number = text.parse().ok().filter(|n: &usize| *n > 0);
    number.ok_or_else(|| ValueError::expected("a number above 0"))
}

/// The path of a file; `None` if it is empty.
fn file(text: &str) -> Result<Option<PathBuf>, ValueError> {
    match text {
        "" => Ok(None),
        path => absolute(path).map(Some),
    }
}

/// Of kube-apiserver's `--event-ttl`, which is not validated there: it counts whole seconds, none of which is for ever. Here what would be
/// rounded down to that is rejected.
fn event_ttl(text: &str) -> Result<Option<Duration>, ValueError> {
    let parsed = knarr_apimachinery::duration::parse(text).and_then(|d| Duration::try_from(d).ok());
    match parsed {
        Some(ttl) if ttl.is_zero() => Ok(None),
        Some(ttl) if ttl >= Duration::from_secs(1) => Ok(Some(ttl)),
        _ => Err(ValueError::expected(
            "a duration of one second or more, such as 1h0m0s, or 0 for ever",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flags};

    fn config(flag: Option<&str>, file: &str) -> Result<Access, String> {
        let flags = Flags {
            config: Some("k.yaml".into()),
            node_name: Some("n1".into()),
            access: AccessFlags {
                event_ttl: flag.map(str::to_string),
                ..AccessFlags::default()
            },
            ..Flags::default()
        };
        match Config::parse(&flags, file) {
            Ok(config) => Ok(config.access),
            Err(errors) => Err(errors.to_string()),
        }
    }

    #[test]
    fn events_are_kept_for_an_hour_unless_the_flag_or_the_file_says_otherwise() {
        const HOUR: u64 = 60 * 60;
        for (flag, file, seconds) in [
            (None, "", Some(HOUR)),
            (Some("1h0m0s"), "", Some(HOUR)),
            (Some("168h"), "", Some(168 * HOUR)),
            (Some("1s"), "", Some(1)),
            (Some("1m30s"), "eventTtl: 2h\n", Some(90)),
            (None, "eventTtl: 2h\n", Some(2 * HOUR)),
            (Some("0"), "", None),
            (Some("0s"), "eventTtl: 2h\n", None),
            (None, "eventTtl: 0\n", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            let ttl = config(flag, file).unwrap().event_ttl;
            assert_eq!(ttl, expected, "{flag:?} {file:?}");
        }
        assert_eq!(Options::default().event_ttl, Some(Duration::from_secs(HOUR)));
    }

    #[test]
    fn an_impossible_time_to_keep_events_is_rejected_with_the_flag_and_what_is_expected() {
        let expected = "expected a duration of one second or more, such as 1h0m0s, or 0 for ever";
        for text in ["-1h", "500ms", "60", "1d", "an hour", "", "9999999999h"] {
            let error = config(Some(text), "").unwrap_err();
            assert!(
                error.contains(&format!("--event-ttl: {text:?}: {expected}")),
                "{error}"
            );
        }
        let error = config(None, "eventTtl: 60\n").unwrap_err();
        assert!(
            error.contains(&format!("k.yaml: eventTtl: \"60\": {expected}")),
            "{error}"
        );
    }
}
