//! Settings of the store `etcd`: where it is, whom to believe, and who knarr is to it; flags as kube-apiserver has them.
//!
//! Everything in the cluster, Secrets included, passes over these connections, and whoever may write to etcd is the
//! cluster's administrator. So plaintext is accepted to loopback only, unless it is asked for by name.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use http::Uri;
use knarr_store::Tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::heading;
use super::reader::{Reader, absolute, list};

/// As kube-apiserver calls them, but for the endpoints (its `--etcd-servers`) and the last one.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = heading::STORAGE)]
pub struct EtcdFlags {
    /// etcd's client URLs, separated by commas (with `--store etcd`).
    #[arg(long, env = "KNARR_ETCD_ENDPOINTS", value_name = "URLS", global = true)]
    pub etcd_endpoints: Option<String>,
    /// The CA of etcd's certificates [default: the CAs of this machine].
    #[arg(long, env = "KNARR_ETCD_CAFILE", value_name = "FILE", global = true)]
    pub etcd_cafile: Option<String>,
    /// The certificate that is shown to etcd; read at the start.
    #[arg(long, env = "KNARR_ETCD_CERTFILE", value_name = "FILE", global = true)]
    pub etcd_certfile: Option<String>,
    /// The key of that certificate.
    #[arg(long, env = "KNARR_ETCD_KEYFILE", value_name = "FILE", global = true)]
    pub etcd_keyfile: Option<String>,
    /// Whether http:// endpoints beyond this machine are accepted. Whoever is on the way between reads every Secret and
    /// may change every object [default: false].
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

/// The same, checked.
#[derive(Clone, Debug)]
pub struct Etcd {
    pub endpoints: Vec<String>,
    /// `None`: plaintext.
    pub tls: Option<Tls>,
}

impl Etcd {
    /// `wanted`: whether the store is etcd.
    pub(super) fn read(reader: &mut Reader, flags: &EtcdFlags, wanted: bool) -> Self {
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
            |s| s.parse().map_err(|_| "expected true or false".to_string()),
        );
        if wanted && endpoints.is_empty() {
            reader.mistakes.push(format!(
                "{endpoints_key}: needed with the store etcd, such as https://10.0.0.1:2379"
            ));
        }
        if certificate.is_some() != key.is_some() {
            reader
                .mistakes
                .push("--etcd-certfile and --etcd-keyfile belong together: expected both or neither".into());
        }
        let asked_for_tls = ca.is_some() || certificate.is_some();
        let mut encrypted = 0;
        for endpoint in &endpoints {
            match judge(endpoint, allow_plaintext, asked_for_tls) {
                Ok(Scheme::Https) => encrypted += 1,
                Ok(Scheme::Http) => {}
                Err(why) => reader
                    .mistakes
                    .push(format!("{endpoints_key}: {endpoint:?}: {why}")),
            }
        }
        if encrypted != 0 && encrypted != endpoints.len() {
            reader.mistakes.push(format!(
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

fn judge(endpoint: &str, allow_plaintext: bool, asked_for_tls: bool) -> Result<Scheme, String> {
    let expected = "expected a URL such as https://10.0.0.1:2379";
    let uri: Uri = endpoint.parse().map_err(|_| expected)?;
    let host = uri.host().filter(|h| !h.is_empty()).ok_or(expected)?;
    match uri.scheme_str() {
        Some("https") => Ok(Scheme::Https),
        Some("http") if asked_for_tls => {
            Err("certificates need an https:// endpoint; leave out --etcd-cafile, --etcd-certfile and --etcd-keyfile for plaintext".into())
        }
        Some("http") if allow_plaintext || is_loopback(host) => Ok(Scheme::Http),
        Some("http") => Err(
            "plaintext beyond this machine shows every Secret on the way: expected https://, with --etcd-cafile, --etcd-certfile and --etcd-keyfile (or --etcd-allow-plaintext, where the network is closed otherwise)"
                .into(),
        ),
        _ => Err(expected.into()),
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
        // What the file holds is not shown.
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
    fn a5_plaintext_beyond_loopback_is_a_mistake_unless_it_is_asked_for() {
        for accepted in [
            "etcdEndpoints: http://127.0.0.1:2379",
            "etcdEndpoints: http://localhost:2379,http://[::1]:2379",
            "etcdEndpoints: http://10.0.0.1:2379\netcdAllowPlaintext: 'true'",
        ] {
            let config = load(accepted).unwrap_or_else(|e| panic!("{accepted}: {e}"));
            assert!(config.etcd.tls.is_none(), "{accepted}");
        }
        for (refused, part) in [
            (
                "etcdEndpoints: http://10.0.0.1:2379",
                "--etcd-cafile, --etcd-certfile and --etcd-keyfile (or --etcd-allow-plaintext",
            ),
            (
                "etcdEndpoints: http://127.0.0.1.example.com:2379",
                "plaintext beyond this machine",
            ),
            (
                "etcdEndpoints: http://127.0.0.1:2379,http://etcd:2379",
                "\"http://etcd:2379\": plaintext",
            ),
            (
                "etcdEndpoints: http://localhost@etcd:2379",
                "plaintext beyond this machine",
            ),
            ("etcdEndpoints: 10.0.0.1:2379", "expected a URL"),
            ("etcdEndpoints: ftp://10.0.0.1:2379", "expected a URL"),
            (
                "etcdEndpoints: https://10.0.0.1:2379,http://127.0.0.1:2379",
                "for every endpoint or for none",
            ),
            ("", "etcdEndpoints: needed with the store etcd"),
        ] {
            let error = load(refused).unwrap_err();
            assert!(error.contains(part), "{refused}: {error}");
        }
    }

    #[test]
    fn a5_certificates_for_etcd_are_read_and_their_mistakes_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let url = "etcdEndpoints: https://10.0.0.1:2379\n";
        let tls = load(&format!("{url}{files}")).unwrap().etcd.tls.unwrap();
        assert!(tls.ca.is_some() && tls.identity.is_some());
        let roots = load(url).unwrap().etcd.tls.unwrap();
        assert!(
            roots.ca.is_none() && roots.identity.is_none(),
            "the machine's CAs"
        );

        let line = |name: &str| files.lines().find(|l| l.starts_with(name)).unwrap().to_string();
        let key = dir.path().join("c.key").display().to_string();
        for (settings, part) in [
            (format!("{url}{}", line("etcdCertfile")), "belong together"),
            (format!("{url}{}", line("etcdKeyfile")), "belong together"),
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
