//! Client certificates: CN is the user, O the groups, and an attribute of its own the UID.
//!
//! The validity is checked for each request, so that a certificate expires also on a connection that is already open.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::user::User;

/// The subject's attribute that carries a user's uid (`AllowParsingUserUIDFromCertAuth`).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// The client certificate of a connection.
#[derive(Clone, Debug, Default)]
pub enum PeerCertificate {
    /// The client presented no certificate.
    #[default]
    None,
    Verified {
        user: User,
        not_before: Timestamp,
        not_after: Timestamp,
    },
    /// The certificate was rejected: of another CA, expired, or not for client authentication.
    Rejected,
}

impl PeerCertificate {
    /// For a certificate that a client CA of the cluster has signed.
    pub fn of_verified(der: &[u8]) -> Self {
        let Some(user) = certificate_user(der) else {
            return PeerCertificate::Rejected;
        };
        let times = X509Certificate::from_der(der).ok().and_then(|(_, c)| {
            let validity = c.validity();
            let not_before = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
            Some((
                not_before,
                Timestamp::from_second(validity.not_after.timestamp()).ok()?,
            ))
        });
        match times {
            Some((not_before, not_after)) => PeerCertificate::Verified {
                user,
                not_before,
                not_after,
            },
            None => PeerCertificate::Rejected,
        }
    }

    /// The certificate's user, if it is valid at this time.
    ///
    /// # Errors
    ///
    /// If the certificate was rejected or is not valid at this time.
    pub fn user(&self, now: Timestamp) -> Result<Option<&User>, InvalidClientCertificate> {
        match self {
            PeerCertificate::None => Ok(None),
            PeerCertificate::Verified {
                user,
                not_before,
                not_after,
            } if *not_before <= now && now <= *not_after => Ok(Some(user)),
            PeerCertificate::Verified { .. } | PeerCertificate::Rejected => Err(InvalidClientCertificate),
        }
    }
}

/// The client certificate is of another CA, or not valid at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidClientCertificate;

/// The user that a certificate names. `None` without exactly one common name, or if a name or group is not text: a group
/// that cannot be read is not skipped.
pub fn certificate_user(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let mut names = subject.iter_common_name();
    let (Some(name), None) = (names.next(), names.next()) else {
        return None;
    };
    let name = name.as_str().ok().filter(|name| !name.is_empty())?;
    let groups: Vec<&str> = subject
        .iter_organization()
        .map(|o| o.as_str())
        .collect::<Result<_, _>>()
        .ok()?;
    let mut user = User::new(name, groups).authenticated();
    let uid = subject
        .iter_attributes()
        .find(|a| a.attr_type().to_id_string() == UID_OID);
    if let Some(uid) = uid.and_then(|a| a.as_str().ok()) {
        user.uid = uid.to_string();
    }
    let hash: String = Sha256::digest(der).iter().map(|b| format!("{b:02x}")).collect();
    user.extra.insert(
        "authentication.kubernetes.io/credential-id".into(),
        vec![format!("X509SHA256={hash}")],
    );
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_accepted_from_not_before_to_not_after() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let peer = PeerCertificate::Verified {
            user: User::new("ann", [""; 0]),
            not_before: at(100),
            not_after: at(200),
        };
        let names = |now| peer.user(at(now)).map(|u| u.map(|u| u.name.clone()));
        for (now, expected) in [
            (99, Err(InvalidClientCertificate)),
            (100, Ok(Some("ann".to_string()))),
            (200, Ok(Some("ann".to_string()))),
            (201, Err(InvalidClientCertificate)),
        ] {
            assert_eq!(names(now), expected, "{now}");
        }
        assert_eq!(
            PeerCertificate::Rejected.user(at(1)),
            Err(InvalidClientCertificate)
        );
        assert_eq!(PeerCertificate::None.user(at(1)), Ok(None));
    }
}
