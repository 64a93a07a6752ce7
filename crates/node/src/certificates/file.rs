//! The file of a certificate: certificate and key one after the other in PEM, as kubelets keep it. It is readable by
//! its owner only and replaced atomically, so that a certificate is never stored with another one's key.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use knarr_kubelet::certificates::CurrentCertificate;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::GeneralName;

use super::Identity;
use crate::host_fs;

/// Why a certificate's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {doing} {path}: {source}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the signed certificate cannot be read: {0}")]
    Unreadable(String),
}

/// The file's content; `None` if there is no file, or if it cannot be read (which is logged, and the file is replaced
/// later).
pub fn read(path: &Path, now: Timestamp) -> Result<Option<(CurrentCertificate, Identity)>, FileError> {
    let failed = |source| FileError::Io {
        doing: "read",
        path: path.to_path_buf(),
        source,
    };
    let text = match host_fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let written = host_fs::metadata(path)
        .and_then(|m| m.modified())
        .map_err(failed)?;
    let obtained = Timestamp::try_from(written).map_or(now, |t| t.min(now));
    let found = split(&text).and_then(|identity| Ok((describe(&identity, obtained)?, identity)));
    if let Err(error) = &found {
        tracing::warn!(path = %path.display(), %error, "ignored a file without a certificate and its key");
    }
    Ok(found.ok())
}

/// Whole or not at all, and for its owner only.
pub fn write(path: &Path, identity: &Identity) -> Result<(), FileError> {
    let temporary = path.with_extension("tmp");
    let attempt = || -> io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        host_fs::create_dir_all(directory)?;
        // One that was left behind may have another mode.
        match host_fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = host_fs::open_with(&mut options, &temporary)?;
        file.write_all(identity.certificate_pem.as_bytes())?;
        file.write_all(identity.key_pem.as_bytes())?;
        file.sync_all()?;
        host_fs::rename(&temporary, path)?;
        host_fs::open(directory)?.sync_all()
    };
    attempt().map_err(|source| FileError::Io {
        doing: "write",
        path: path.to_path_buf(),
        source,
    })
}

/// Certificates on one side, the key on the other.
fn split(text: &str) -> Result<Identity, FileError> {
    let (mut certificate_pem, mut key_pem) = (String::new(), String::new());
    let mut current: Option<(bool, String)> = None;
    for line in text.lines() {
        if let Some(label) = line.strip_prefix("-----BEGIN ") {
            current = Some((label.starts_with("CERTIFICATE-"), String::new()));
        }
        if let Some((_, block)) = &mut current {
            block.push_str(line);
            block.push('\n');
        }
        if line.starts_with("-----END ")
            && let Some((is_certificate, block)) = current.take()
        {
            if is_certificate {
                certificate_pem.push_str(&block);
            } else {
                key_pem.push_str(&block);
            }
        }
    }
    if certificate_pem.is_empty() || key_pem.is_empty() {
        return Err(FileError::Unreadable("certificate or key is missing".into()));
    }
    Ok(Identity {
        certificate_pem,
        key_pem,
    })
}

/// The subject names and validity of a certificate.
pub fn describe(identity: &Identity, obtained: Timestamp) -> Result<CurrentCertificate, FileError> {
    let bad = |e: &dyn std::fmt::Display| FileError::Unreadable(e.to_string());
    let (_, pem): (_, Pem) = parse_x509_pem(identity.certificate_pem.as_bytes()).map_err(|e| bad(&e))?;
    let certificate = pem.parse_x509().map_err(|e| bad(&e))?;
    let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|e| bad(&e));
    let validity = certificate.validity();
    let name = certificate.subject().iter_common_name().next();
    let mut current = CurrentCertificate {
        common_name: name.and_then(|n| n.as_str().ok()).unwrap_or("").to_string(),
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
        from: time(validity.not_before.timestamp())?,
        until: time(validity.not_after.timestamp())?,
        obtained,
    };
    let names = certificate.subject_alternative_name().map_err(|e| bad(&e))?;
    for name in names.iter().flat_map(|n| &n.value.general_names) {
        match name {
            GeneralName::DNSName(name) => current.dns_names.push((*name).to_string()),
            GeneralName::IPAddress(bytes) => current.ip_addresses.extend(address(bytes)),
            _ => {}
        }
    }
    Ok(current)
}

fn address(bytes: &[u8]) -> Option<String> {
    let four: Result<[u8; 4], _> = bytes.try_into();
    let sixteen: Result<[u8; 16], _> = bytes.try_into();
    match (four, sixteen) {
        (Ok(four), _) => Some(std::net::IpAddr::from(four).to_string()),
        (_, Ok(sixteen)) => Some(std::net::IpAddr::from(sixteen).to_string()),
        _ => None,
    }
}
