//! Settings of the store `etcd`: its endpoints, its CA, and knarr's client certificate; flags as kube-apiserver has them.
//!
//! All objects of the cluster, Secrets included, are sent over these connections, and a client that may write to etcd has
//! all permissions in the cluster. So plaintext is accepted to loopback only, unless --etcd-allow-plaintext is set.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use http::Uri;
use knarr_store::Tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::heading;
use super::reader::{Reader, absolute, list};
use super::value::ValueError;

/// kube-apiserver's flags, except for the endpoints (its `--etcd-servers`) and the last one.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = heading::STORAGE)]
pub struct EtcdFlags {
    /// etcd's client URLs, separated by commas (with `--store etcd`).
    #[arg(long, env = "KNARR_ETCD_ENDPOINTS", value_name = "URLS", global = true)]
    pub etcd_endpoints: Option<String>,
    /// The CA of etcd's certificates [default: the CAs of this host].
    #[arg(long, env = "KNARR_ETCD_CAFILE", value_name = "FILE", global = true)]
    pub etcd_cafile: Option<String>,
    /// The client certificate for etcd; it is read when knarr starts.
    #[arg(long, env = "KNARR_ETCD_CERTFILE", value_name = "FILE", global = true)]
    pub etcd_certfile: Option<String>,
    /// The key of the client certificate.
    #[arg(long, env = "KNARR_ETCD_KEYFILE", value_name = "FILE", global = true)]
    pub etcd_keyfile: Option<String>,
    /// Whether http:// endpoints on other hosts are accepted. All objects, Secrets included, can then be read and changed on
    /// the network between [default: false].
    #[arg(
        long,
        env = "KNARR_ETCD_ALLOW_PLAINTEXT",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        global = true
    )]
    pub etcd_allow_plaintext: Option<String>,
}

/// The validated settings.
#[derive(Clone, Debug)]
pub struct Etcd {
    pub endpoints: Vec<String>,
    /// `None`: plaintext.
    pub tls: Option<Tls>,
}

impl Etcd {
    /// `is_used`: whether the store is etcd.
    pub(super) fn read(reader: &mut Reader, flags: &EtcdFlags, is_used: bool) -> Self {
        let file = |s: &str| match s {
            "" => Ok(None),
            path => absolute(path).map(Some),
        };
        let (endpoints_key, endpoints_flag) = ("etcdEndpoints", "--etcd-endpoints");
        let endpoints: Vec<String> =
            reader.get(endpoints_key, endpoints_flag, &flags.etcd_endpoints, "", list);
        let ca: Option<PathBuf> = reader.get("etcdCafile", "--etcd-cafile", &flags.etcd_cafile, "", file);
        let certificate: Option<PathBuf> =
            reader.get("etcdCertfile", "--etcd-certfile", &flags.etcd_certfile, "", file);
        let key: Option<PathBuf> = reader.get("etcdKeyfile", "--etcd-keyfile", &flags.etcd_keyfile, "", file);
        let allow_plaintext = reader.get(
            "etcdAllowPlaintext",
            "--etcd-allow-plaintext",
            &flags.etcd_allow_plaintext,
            "false",
            |s| s.parse().map_err(|_| ValueError::expected("true or false")),
        );
        if is_used && endpoints.is_empty() {
            reader.errors.push(format!(
                "{endpoints_key}: required with the store etcd, such as https://10.0.0.1:2379"
            ));
        }
        if certificate.is_some() != key.is_some() {
            reader
                .errors
                .push("--etcd-certfile and --etcd-keyfile: expected both or neither".into());
        }
        let has_certificates = ca.is_some() || certificate.is_some();
        let mut encrypted = 0;
        for endpoint in &endpoints {
            match validate(endpoint, allow_plaintext, has_certificates) {
                Ok(Scheme::Https) => encrypted += 1,
                Ok(Scheme::Http) => {}
                Err(why) => reader
                    .errors
                    .push(format!("{endpoints_key}: {endpoint:?}: {why}")),
            }
        }
        if encrypted != 0 && encrypted != endpoints.len() {
            reader.errors.push(format!(
                "{endpoints_key}: expected https:// for every endpoint or for none"
            ));
        }
        let ca = reader.parsed(ca, certificates);
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let certificate = reader.parsed(Some(certificate), certificates);
                let key = reader.parsed_secret(Some(key), private_key);
                certificate.zip(key)
            }
            _ => None,
        };
        Etcd {
            endpoints,
            tls: (encrypted != 0).then_some(Tls { ca, identity }),
        }
    }
}

enum Scheme {
    Http,
    Https,
}

#[derive(Debug, thiserror::Error)]
enum EndpointError {
    #[error("expected a URL such as https://10.0.0.1:2379")]
    NotAUrl,
    #[error(
        "certificates need an https:// endpoint; leave out --etcd-cafile, --etcd-certfile and --etcd-keyfile for plaintext"
    )]
    UnusedCertificates,
    #[error(
        "expected https:// for another host, with --etcd-cafile, --etcd-certfile and --etcd-keyfile: over http:// every Secret can be read on the network (--etcd-allow-plaintext accepts that)"
    )]
    Plaintext,
}

fn validate(endpoint: &str, allow_plaintext: bool, has_certificates: bool) -> Result<Scheme, EndpointError> {
    let uri: Uri = endpoint.parse().map_err(|_| EndpointError::NotAUrl)?;
    let host = uri.host().filter(|h| !h.is_empty());
    let host = host.ok_or(EndpointError::NotAUrl)?;
    match uri.scheme_str() {
        Some("https") => Ok(Scheme::Https),
        Some("http") if has_certificates => Err(EndpointError::UnusedCertificates),
        Some("http") if allow_plaintext || is_loopback(host) => Ok(Scheme::Http),
        Some("http") => Err(EndpointError::Plaintext),
        _ => Err(EndpointError::NotAUrl),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|a| a.is_loopback())
}

/// The text itself, once it is known to hold certificates.
fn certificates(text: &str) -> Result<Vec<u8>, Vec<String>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(text.as_bytes().to_vec()),
        Ok(_) => Err(vec!["expected a certificate in PEM".into()]),
        Err(e) => Err(vec![format!("expected a certificate in PEM: {e}")]),
    }
}

fn private_key(text: &str) -> Result<Vec<u8>, Vec<String>> {
    match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(_) => Ok(text.as_bytes().to_vec()),
        // The error does not show the content of the file.
        Err(_) => Err(vec![
            "expected a private key in PEM (PKCS#8, PKCS#1 or SEC 1)".into(),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Flags};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn load(text: &str) -> Result<Config, String> {
        let flags = Flags {
            node_name: Some("n1".into()),
            ..Flags::default()
        };
        Config::parse(&flags, &format!("store: etcd\n{text}")).map_err(|e| e.to_string())
    }

    /// A CA, a certificate of it and the key, as files.
    fn files(dir: &Path) -> String {
        let now = knarr_api::k8s_openapi::jiff::Timestamp::now();
        let pki = knarr_apiserver::pki::Pki::open(dir, now).unwrap();
        pki.client("c", "etcd-user", &[]).unwrap();
        let at = |name: &str| dir.join(name).display().to_string();
        format!(
            "etcdCafile: {}\netcdCertfile: {}\netcdKeyfile: {}\n",
            at("ca.crt"),
            at("c.crt"),
            at("c.key")
        )
    }

    #[test]
    fn a5_plaintext_beyond_loopback_is_an_error_unless_it_is_allowed() {
        for accepted in [
            "etcdEndpoints: http://127.0.0.1:2379",
            "etcdEndpoints: http://localhost:2379,http://[::1]:2379",
            "etcdEndpoints: http://10.0.0.1:2379\netcdAllowPlaintext: 'true'",
        ] {
            let config = load(accepted).unwrap_or_else(|e| panic!("{accepted}: {e}"));
            assert!(config.etcd.tls.is_none(), "{accepted}");
        }
        for (rejected, part) in [
            (
                "etcdEndpoints: http://10.0.0.1:2379",
                "--etcd-cafile, --etcd-certfile and --etcd-keyfile: over http://",
            ),
            (
                "etcdEndpoints: http://127.0.0.1.example.com:2379",
                "expected https:// for another host",
            ),
            (
                "etcdEndpoints: http://127.0.0.1:2379,http://etcd:2379",
                "\"http://etcd:2379\": expected https://",
            ),
            (
                "etcdEndpoints: http://localhost@etcd:2379",
                "expected https:// for another host",
            ),
            ("etcdEndpoints: 10.0.0.1:2379", "expected a URL"),
            ("etcdEndpoints: ftp://10.0.0.1:2379", "expected a URL"),
            (
                "etcdEndpoints: https://10.0.0.1:2379,http://127.0.0.1:2379",
                "for every endpoint or for none",
            ),
            ("", "etcdEndpoints: required with the store etcd"),
        ] {
            let error = load(rejected).unwrap_err();
            assert!(error.contains(part), "{rejected}: {error}");
        }
    }

    #[test]
    fn a5_certificates_for_etcd_are_read_and_their_errors_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let url = "etcdEndpoints: https://10.0.0.1:2379\n";
        let tls = load(&format!("{url}{files}")).unwrap().etcd.tls.unwrap();
        assert!(tls.ca.is_some() && tls.identity.is_some());
        let roots = load(url).unwrap().etcd.tls.unwrap();
        assert!(roots.ca.is_none() && roots.identity.is_none(), "the host's CAs");

        let line = |name: &str| files.lines().find(|l| l.starts_with(name)).unwrap().to_string();
        let key = dir.path().join("c.key").display().to_string();
        for (settings, part) in [
            (
                format!("{url}{}", line("etcdCertfile")),
                "expected both or neither",
            ),
            (
                format!("{url}{}", line("etcdKeyfile")),
                "expected both or neither",
            ),
            (
                format!("etcdEndpoints: http://127.0.0.1:2379\n{files}"),
                "certificates need an https:// endpoint",
            ),
            (format!("{url}etcdCafile: /nowhere"), "/nowhere: cannot be read"),
            (format!("{url}etcdCafile: {key}"), "c.key: expected a certificate"),
        ] {
            let error = load(&settings).unwrap_err();
            assert!(error.contains(part), "{settings}: {error}");
        }
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = load(&format!("{url}{files}")).unwrap_err();
        assert!(error.contains("c.key: its mode is 0644"), "{error}");
    }
}
