//! This node's private key: made once, in a file that only its owner reads, and never anywhere else.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use boringtun::x25519::{PublicKey as Point, StaticSecret};
use jiff::{SignedDuration, Timestamp};
use knarr_network::routes::encryption::PublicKey;
use zeroize::Zeroizing;

/// A key older than this is replaced by a new one.
pub const MAX_AGE: SignedDuration = SignedDuration::from_hours(24 * 90);

/// 32 bytes in base64 and a line feed.
const MAX_FILE_BYTES: u64 = 64;
const OTHERS: u32 = 0o077;

#[derive(Clone)]
pub struct PrivateKey(StaticSecret);

impl PrivateKey {
    /// The key in the file; a new one where there is no file, or the key is too old.
    pub fn read_or_make(path: &Path, now: Timestamp) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::make(path),
            Err(error) => return Err(error),
        };
        let about = file.metadata()?;
        if !about.is_file() || about.mode() & OTHERS != 0 {
            return Err(io::Error::other(
                "the file of the WireGuard key is open to other users; close it (chmod 0600), or remove it to have a new key made",
            ));
        }
        let made = Timestamp::from_second(about.mtime()).map_err(io::Error::other)?;
        if now.duration_since(made) > MAX_AGE {
            return Self::make(path);
        }
        Self::read(file)
    }

    fn read(file: File) -> io::Result<Self> {
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
        let invalid = || io::Error::new(ErrorKind::InvalidData, "the file has no WireGuard key");
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| invalid())?);
        let bytes: [u8; 32] = bytes.as_slice().try_into().map_err(|_| invalid())?;
        Ok(PrivateKey(StaticSecret::from(bytes)))
    }

    /// Written whole or not at all, with mode 0600 from its first moment.
    fn make(path: &Path) -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0_u8; 32]);
        rand::TryRng::try_fill_bytes(&mut rand::rngs::SysRng, &mut *bytes).map_err(io::Error::other)?;
        let key = PrivateKey(StaticSecret::from(*bytes));
        let directory = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(directory)?;
        let mut part = tempfile::Builder::new()
            .prefix(".knarr-")
            .tempfile_in(directory)?;
        let text = Zeroizing::new(STANDARD.encode(key.bytes()) + "\n");
        part.write_all(text.as_bytes())?;
        part.as_file().sync_all()?;
        part.persist(path)?;
        File::open(directory)?.sync_all()?;
        Ok(key)
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(Point::from(&self.0).to_bytes())
    }

    pub(super) fn secret(&self) -> StaticSecret {
        self.0.clone()
    }

    pub(super) fn bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey of {}", self.public())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn n7_a_key_is_made_once_for_its_owner_alone_and_renewed_when_it_is_removed_or_old() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cni/wireguard.key");
        let made = std::fs::metadata(directory.path()).unwrap().mtime();
        let now = Timestamp::from_second(made).unwrap();
        let first = PrivateKey::read_or_make(&path, now).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = PrivateKey::read_or_make(&path, now).unwrap();
        assert_eq!(again.public(), first.public());
        assert!(!format!("{first:?}").contains(&STANDARD.encode(first.bytes())));

        let later = now + MAX_AGE + SignedDuration::from_mins(1);
        let renewed = PrivateKey::read_or_make(&path, later).unwrap();
        assert_ne!(renewed.public(), first.public());
        std::fs::remove_file(&path).unwrap();
        let other = PrivateKey::read_or_make(&path, now).unwrap();
        assert_ne!(other.public(), renewed.public());

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(PrivateKey::read_or_make(&path, now).is_err(), "others read it");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(
            PrivateKey::read_or_make(&path, now).is_err(),
            "a link is not followed"
        );
    }
}
