//! The cluster's keys and certificates, in one directory: the CAs, the server's certificate, client certificates, and the
//! key that signs service-account tokens.
//!
//! Each CA has one purpose, and is trusted only for that (SPEC A4):
//!
//! | file | signs | trusted by |
//! |---|---|---|
//! | `ca` | the API server's certificate | all clients of the API server |
//! | `client-ca` | clients of the API server and of kubelets | the API server, kubelets |
//! | `kubelet-serving-ca` | kubelets' serving certificates | the API server |
//! | `front-proxy-ca` | the front proxy, which passes on the user of a request | extension API servers |
//!
//! A directory of an earlier version has `ca` alone, which signed everything. It stays the CA of the API server, so that pins and kubeconfigs remain
//! valid, and is kept as `client-ca-previous.crt` too: client certificates that it signed before the other CAs were created are accepted until
//! they expire. Removing that file makes the next start reject them.
//!
//! Missing files are created, certificates that expire soon are renewed when the server starts; keys are readable by their
//! owner only, and a file is written completely or not at all.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use sha2::{Digest, Sha256};
use x509_parser::error::X509Error;
use x509_parser::nom;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authn::token_key::KeyFiles;
use crate::identity::Identity;
use crate::signing::Authority;

/// Validity of a CA.
const CA_LIFE: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// Validity of other certificates.
const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// A certificate with less validity left is renewed at start.
const RENEW_WITHIN: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Clocks may differ by this much.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Why keys or certificates cannot be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot {doing} {path}: {source}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path} has no valid {what}: {why}")]
    Unusable {
        path: PathBuf,
        what: &'static str,
        why: String,
    },
    #[error("cannot create {what}: {source}")]
    Make { what: String, source: rcgen::Error },
    #[error(transparent)]
    Certificate(#[from] nom::Err<X509Error>),
}

/// The cluster's keys. See the module.
pub struct Pki {
    directory: PathBuf,
    ca: Identity,
    client_ca: Identity,
    kubelet_serving_ca: Identity,
    front_proxy_ca: Identity,
    previous: Option<PreviousClients>,
    now: Timestamp,
}

/// The only CA of an earlier version, some of whose client certificates are still accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousClients {
    pub ca_pem: String,
    /// Certificates that begin after this time are not accepted: since then it has signed no clients.
    pub before: Timestamp,
}

/// The subject and usage of a certificate.
enum CertificateProfile<'a> {
    Server { names: &'a [String] },
    Client { user: &'a str, groups: &'a [&'a str] },
}

const CA: &str = "ca";
const CLIENT_CA: &str = "client-ca";
const KUBELET_SERVING_CA: &str = "kubelet-serving-ca";
const FRONT_PROXY_CA: &str = "front-proxy-ca";
const PREVIOUS_CLIENT_CA: &str = "client-ca-previous.crt";
/// The user of the API server's certificate at kubelets, as in kubeadm.
pub const KUBELET_CLIENT_USER: &str = "kube-apiserver-kubelet-client";
/// The user of the front proxy's certificate, as in kubeadm.
pub const FRONT_PROXY_CLIENT: &str = "front-proxy-client";

impl Pki {
    /// Opens the directory; creates it and the CAs if they are missing.
    pub fn open(directory: &Path, now: Timestamp) -> Result<Self, PkiError> {
        fs::create_dir_all(directory).map_err(|source| PkiError::Io {
            doing: "create",
            path: directory.to_path_buf(),
            source,
        })?;
        let ca = load(directory, CA)?;
        // Of an earlier version, whose only CA signed clients too. Before the new CAs are created, so that a start that is
        // interrupted between the two is completed by the next.
        if let Some(ca) = &ca
            && load(directory, CLIENT_CA)?.is_none()
        {
            write(&directory.join(PREVIOUS_CLIENT_CA), &ca.certificate_pem)?;
        }
        let make = |name: &str, common_name: &str| -> Result<Identity, PkiError> {
            if let Some(ca) = load(directory, name)? {
                return Ok(ca);
            }
            let ca = make_ca(common_name, now)?;
            save(directory, name, &ca)?;
            Ok(ca)
        };
        let client_ca = make(CLIENT_CA, "knarr-client-ca")?;
        let previous = match read(&directory.join(PREVIOUS_CLIENT_CA))? {
            Some(ca_pem) => Some(PreviousClients {
                ca_pem,
                before: not_before(directory, &client_ca)?,
            }),
            None => None,
        };
        Ok(Pki {
            ca: make(CA, "knarr-ca")?,
            client_ca,
            kubelet_serving_ca: make(KUBELET_SERVING_CA, "knarr-kubelet-serving-ca")?,
            front_proxy_ca: make(FRONT_PROXY_CA, "knarr-front-proxy-ca")?,
            previous,
            directory: directory.to_path_buf(),
            now,
        })
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The signer of client certificates (CertificateSigningRequests).
    pub fn client_authority(&self) -> Authority {
        Authority::new(self.client_ca.clone())
    }

    /// The signer of kubelets' serving certificates.
    pub fn kubelet_serving_authority(&self) -> Authority {
        Authority::new(self.kubelet_serving_ca.clone())
    }

    /// The CA of the API server's certificate, for its clients.
    pub fn ca_pem(&self) -> &str {
        &self.ca.certificate_pem
    }

    /// The CA of client certificates, for the API server and kubelets.
    pub fn client_ca_pem(&self) -> &str {
        &self.client_ca.certificate_pem
    }

    /// The CA of kubelets' serving certificates, for the API server.
    pub fn kubelet_serving_ca_pem(&self) -> &str {
        &self.kubelet_serving_ca.certificate_pem
    }

    /// The CA of the front proxy, for extension API servers.
    pub fn front_proxy_ca_pem(&self) -> &str {
        &self.front_proxy_ca.certificate_pem
    }

    /// The CA of an earlier version, if there is one.
    pub fn previous_clients(&self) -> Option<&PreviousClients> {
        self.previous.as_ref()
    }

    /// The server's certificate for these names and addresses.
    pub fn server(&self, names: &[String]) -> Result<Identity, PkiError> {
        self.identity(&self.ca, "apiserver", &CertificateProfile::Server { names })
    }

    /// A client certificate, saved under `file`.
    pub fn client(&self, file: &str, user: &str, groups: &[&str]) -> Result<Identity, PkiError> {
        self.identity(
            &self.client_ca,
            file,
            &CertificateProfile::Client { user, groups },
        )
    }

    /// The front proxy's certificate, with which the API server authenticates at extension API servers. The API server itself does not
    /// accept it.
    pub fn front_proxy_client(&self) -> Result<Identity, PkiError> {
        let profile = CertificateProfile::Client {
            user: FRONT_PROXY_CLIENT,
            groups: &[],
        };
        self.identity(&self.front_proxy_ca, FRONT_PROXY_CLIENT, &profile)
    }

    /// The administrator's certificate.
    pub fn admin(&self) -> Result<Identity, PkiError> {
        self.client("admin", "kubernetes-admin", &["system:masters"])
    }

    /// The API server's client certificate for kubelets. A ClusterRoleBinding grants its permissions, no group does.
    pub fn kubelet_client(&self) -> Result<Identity, PkiError> {
        self.client("kubelet-client", KUBELET_CLIENT_USER, &[])
    }

    /// A kubelet's client certificate.
    pub fn node(&self, name: &str) -> Result<Identity, PkiError> {
        self.client(
            &format!("node-{name}"),
            &format!("system:node:{name}"),
            &["system:nodes"],
        )
    }

    /// The key that signs service-account tokens.
    pub fn service_account_key(&self) -> Result<KeyFiles, PkiError> {
        let path = self.directory.join("service-account.key");
        let signing = match read(&path)? {
            Some(pem) => pem,
            None => {
                let pem = key("the service-account key")?.serialize_pem();
                write(&path, &pem)?;
                pem
            }
        };
        Ok(KeyFiles {
            signing,
            verifying: Vec::new(),
        })
    }

    fn identity(
        &self,
        ca: &Identity,
        file: &str,
        profile: &CertificateProfile<'_>,
    ) -> Result<Identity, PkiError> {
        if let Some(kept) = load(&self.directory, file)?
            && self.is_valid(ca, &kept, profile)
        {
            return Ok(kept);
        }
        let issued = self.issue(ca, file, profile)?;
        save(&self.directory, file, &issued)?;
        Ok(issued)
    }

    /// Whether the certificate is signed by this CA, does not expire soon, and has all names and groups.
    fn is_valid(&self, ca: &Identity, kept: &Identity, profile: &CertificateProfile<'_>) -> bool {
        let Ok((_, pem)) = parse_x509_pem(kept.certificate_pem.as_bytes()) else {
            return false;
        };
        let Ok((_, ca_pem)) = parse_x509_pem(ca.certificate_pem.as_bytes()) else {
            return false;
        };
        let (Ok(certificate), Ok(ca)) = (pem.parse_x509(), ca_pem.parse_x509()) else {
            return false;
        };
        let left = certificate.validity().not_after.timestamp() - self.now.as_second();
        if certificate.verify_signature(Some(ca.public_key())).is_err() || left < RENEW_WITHIN.as_secs() {
            return false;
        }
        match profile {
            CertificateProfile::Client { user, groups } => {
                let subject = certificate.subject();
                let organizations: Vec<&str> = subject
                    .iter_organization()
                    .filter_map(|o| o.as_str().ok())
                    .collect();
                subject.iter_common_name().next().and_then(|n| n.as_str().ok()) == Some(*user)
                    && organizations == *groups
            }
            CertificateProfile::Server { names } => {
                let Ok(Some(extension)) = certificate.subject_alternative_name() else {
                    return false;
                };
                let has = |name: &String| {
                    extension.value.general_names.iter().any(|g| match g {
                        x509_parser::extensions::GeneralName::DNSName(n) => n == name,
                        x509_parser::extensions::GeneralName::IPAddress(bytes) => {
                            name.parse::<IpAddr>().is_ok_and(|ip| match ip {
                                IpAddr::V4(v4) => *bytes == v4.octets(),
                                IpAddr::V6(v6) => *bytes == v6.octets(),
                            })
                        }
                        _ => false,
                    })
                };
                names.iter().all(has)
            }
        }
    }

    fn issue(
        &self,
        ca: &Identity,
        file: &str,
        profile: &CertificateProfile<'_>,
    ) -> Result<Identity, PkiError> {
        let make = |source| PkiError::Make {
            what: format!("the certificate {file}"),
            source,
        };
        let ca_key = KeyPair::from_pem(&ca.key_pem).map_err(make)?;
        let issuer = Issuer::from_ca_cert_pem(&ca.certificate_pem, ca_key).map_err(make)?;
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        match profile {
            CertificateProfile::Server { names } => {
                subject.push(DnType::CommonName, "kube-apiserver");
                for name in *names {
                    params.subject_alt_names.push(match name.parse::<IpAddr>() {
                        Ok(address) => SanType::IpAddress(address),
                        Err(_) => SanType::DnsName(name.as_str().try_into().map_err(make)?),
                    });
                }
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }
            CertificateProfile::Client { user, groups } => {
                for group in *groups {
                    subject.push(DnType::OrganizationName, *group);
                }
                subject.push(DnType::CommonName, *user);
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
        }
        params.distinguished_name = subject;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.use_authority_key_identifier_extension = true;
        lifetime(&mut params, self.now, LEAF_LIFE);
        let key = key(file)?;
        let certificate = params.signed_by(&key, &issuer).map_err(make)?;
        Ok(Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// A self-signed server certificate, which is not saved.
pub fn self_signed(name: &str) -> Result<Identity, PkiError> {
    let issued =
        rcgen::generate_simple_self_signed(vec![name.to_string()]).map_err(|source| PkiError::Make {
            what: format!("the certificate of {name}"),
            source,
        })?;
    Ok(Identity {
        certificate_pem: issued.cert.pem(),
        key_pem: issued.signing_key.serialize_pem(),
    })
}

/// The pin of a CA: `sha256:` and the hash of its public key, as kubeadm's `--discovery-token-ca-cert-hash` has it.
pub fn pin(certificate_der: &[u8]) -> Result<String, PkiError> {
    let (_, certificate) = X509Certificate::from_der(certificate_der)?;
    let hash = Sha256::digest(certificate.public_key().raw);
    let digits: String = hash.iter().map(|b| format!("{b:02x}")).collect();
    Ok(format!("sha256:{digits}"))
}

/// Whether this CA signed the certificate.
pub fn is_signed_by(certificate_pem: &str, ca_der: &[u8]) -> bool {
    let (Ok((_, pem)), Ok((_, ca))) = (
        parse_x509_pem(certificate_pem.as_bytes()),
        X509Certificate::from_der(ca_der),
    ) else {
        return false;
    };
    pem.parse_x509()
        .is_ok_and(|certificate| certificate.verify_signature(Some(ca.public_key())).is_ok())
}

/// A kubeconfig with embedded certificates and key.
pub fn kubeconfig(server: &str, ca_pem: &str, user: &str, identity: &Identity) -> String {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let encode = |pem: &str| STANDARD.encode(pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: knarr
  cluster:
    server: {server}
    certificate-authority-data: {}
contexts:
- name: knarr
  context:
    cluster: knarr
    user: {user}
current-context: knarr
users:
- name: {user}
  user:
    client-certificate-data: {}
    client-key-data: {}
",
        encode(ca_pem),
        encode(&identity.certificate_pem),
        encode(&identity.key_pem)
    )
}

fn make_ca(common_name: &str, now: Timestamp) -> Result<Identity, PkiError> {
    let make = |source| PkiError::Make {
        what: format!("the CA {common_name}"),
        source,
    };
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    lifetime(&mut params, now, CA_LIFE);
    let key = key(common_name)?;
    let certificate = params.self_signed(&key).map_err(make)?;
    Ok(Identity {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

fn key(what: &str) -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|source| PkiError::Make {
        what: format!("the key of {what}"),
        source,
    })
}

fn lifetime(params: &mut CertificateParams, now: Timestamp, validity: SignedDuration) {
    // rcgen's times are of the `time` crate, which is used through the value it has by default.
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |t: Timestamp| epoch + Duration::from_secs(u64::try_from(t.as_second()).unwrap_or(0));
    params.not_before = at(now - SKEW);
    params.not_after = at(now + validity);
}

/// When a CA was created.
fn not_before(directory: &Path, ca: &Identity) -> Result<Timestamp, PkiError> {
    let unusable = |why: String| PkiError::Unusable {
        path: directory.join(format!("{CLIENT_CA}.crt")),
        what: "certificate",
        why,
    };
    let (_, pem) = parse_x509_pem(ca.certificate_pem.as_bytes()).map_err(|e| unusable(e.to_string()))?;
    let certificate = pem.parse_x509().map_err(|e| unusable(e.to_string()))?;
    let from = certificate.validity().not_before.timestamp();
    Timestamp::from_second(from)
        .map(|from| from + SKEW)
        .map_err(|e| unusable(e.to_string()))
}

fn load(directory: &Path, name: &str) -> Result<Option<Identity>, PkiError> {
    let certificate = read(&directory.join(format!("{name}.crt")))?;
    let key = read(&directory.join(format!("{name}.key")))?;
    Ok(certificate.zip(key).map(|(certificate_pem, key_pem)| Identity {
        certificate_pem,
        key_pem,
    }))
}

fn save(directory: &Path, name: &str, identity: &Identity) -> Result<(), PkiError> {
    write(&directory.join(format!("{name}.key")), &identity.key_pem)?;
    write(&directory.join(format!("{name}.crt")), &identity.certificate_pem)
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Io {
            doing: "read",
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// Writes a file completely or not at all, readable by its owner only.
fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    let temporary = path.with_extension("tmp");
    let attempt = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        if let Some(directory) = path.parent() {
            fs::File::open(directory)?.sync_all()?;
        }
        Ok(())
    };
    attempt().map_err(|source| PkiError::Io {
        doing: "write",
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests;
