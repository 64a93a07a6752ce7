//! Client certificates: CN is the user, O the groups, and an own attribute the uid.
//!
//! A certificate is good for as long as it says, also on a connection that was made before it ended.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::user::User;

/// The subject's attribute that carries a user's uid (`AllowParsingUserUIDFromCertAuth`).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub enum Peer {
    /// No certificate was shown.
    #[default]
    Nobody,
    Known {
        user: User,
        from: Timestamp,
        until: Timestamp,
    },
    /// One was shown that does not count: of another CA, at another time, or not a client's.
    Stranger,
}

impl Peer {
    /// Of a certificate that a CA of ours has signed.
    pub fn of_verified(der: &[u8]) -> Self {
        let Some(user) = certificate_user(der) else {
            return Peer::Stranger;
        };
        let times = X509Certificate::from_der(der).ok().and_then(|(_, c)| {
            let validity = c.validity();
            let from = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
            Some((from, Timestamp::from_second(validity.not_after.timestamp()).ok()?))
        });
        match times {
            Some((from, until)) => Peer::Known { user, from, until },
            None => Peer::Stranger,
        }
    }

    /// Who that is at this moment.
    ///
    /// # Errors
    ///
    /// Where a certificate was shown that does not count.
    pub fn user(&self, now: Timestamp) -> Result<Option<&User>, DoesNotCount> {
        match self {
            Peer::Nobody => Ok(None),
            Peer::Known { user, from, until } if *from <= now && now <= *until => Ok(Some(user)),
            Peer::Known { .. } | Peer::Stranger => Err(DoesNotCount),
        }
    }
}

/// A certificate was shown that is of another authority, or not of this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotCount;

/// The user a certificate names. `None` without exactly one common name, or where a name or group is not text: what
/// cannot be read is not left out.
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
    fn a_certificate_counts_from_its_beginning_to_its_end() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let peer = Peer::Known {
            user: User::new("ann", [""; 0]),
            from: at(100),
            until: at(200),
        };
        let names = |now| peer.user(at(now)).map(|u| u.map(|u| u.name.clone()));
        for (now, expected) in [
            (99, Err(DoesNotCount)),
            (100, Ok(Some("ann".to_string()))),
            (200, Ok(Some("ann".to_string()))),
            (201, Err(DoesNotCount)),
        ] {
            assert_eq!(names(now), expected, "{now}");
        }
        assert_eq!(Peer::Stranger.user(at(1)), Err(DoesNotCount));
        assert_eq!(Peer::Nobody.user(at(1)), Ok(None));
    }
}
