//! The options of a runtime in containerd's configuration (`containerd.runc.v1.Options`), and the copy of them that
//! `delete` reads after the shim is gone.
//!
//! CRI sends options of that type only for runtimes whose `runtime_type` is `io.containerd.runc.v2`. For a runtime that is
//! named by its path they are `runtimeoptions.v1.Options`, which have the path of a file (`ConfigPath`): here a file of
//! the format of `options.json`.
//!
//! The copy has the names and the format of Go's shim (`options.json`, `runtime`), so that either shim can clean up
//! after the other.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{CodedInputStream, Message};
use containerd_shim_protos::shim::oci;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use crate::bundle::{Bundle, MAX_SMALL_BYTES};

/// The types of options, as containerd names them.
const TYPE: &str = "containerd.runc.v1.Options";
const TYPE_WITH_FILE: &str = "runtimeoptions.v1.Options";
/// The tag of `config_path` in the latter: field 2, a string.
const CONFIG_PATH_TAG: u32 = 2 << 3 | 2;
const FILE: &str = "options.json";
/// The program alone, as Go's shim writes it besides.
const PROGRAM_FILE: &str = "runtime";

/// What the options say, as far as the shim obeys them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The OCI runtime: a name in PATH, or a path. runc unless set.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub binary_name: String,
    /// Where the OCI runtime keeps its state, without the namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub root: String,
    #[serde(skip_serializing_if = "is_false")]
    pub systemd_cgroup: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub no_pivot_root: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub no_new_keyring: bool,
    /// The cgroup of the shim itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shim_cgroup: String,
    /// The owner of the container's pipes.
    #[serde(skip_serializing_if = "is_zero")]
    pub io_uid: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub io_gid: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Options {
    /// From an encoded `Any`, as `start` gets it on standard input; empty means none.
    pub fn from_encoded(bytes: &[u8]) -> io::Result<Self> {
        Options::from_any(&Any::parse_from_bytes(bytes)?)
    }

    /// From a request; no type means none. Another type is an error: it would be ignored silently otherwise.
    pub fn from_any(any: &Any) -> io::Result<Self> {
        if any.type_url.is_empty() {
            return Ok(Options::default());
        }
        match any.type_url.rsplit('/').next() {
            Some(TYPE) => {}
            Some(TYPE_WITH_FILE) => return Options::from_file(&config_path(&any.value)?),
            _ => {
                let message = format!("options of type {:?} instead of {TYPE}", any.type_url);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        let options = oci::Options::parse_from_bytes(&any.value)?;
        Ok(Options {
            binary_name: options.binary_name,
            root: options.root,
            systemd_cgroup: options.systemd_cgroup,
            no_pivot_root: options.no_pivot_root,
            no_new_keyring: options.no_new_keyring,
            shim_cgroup: options.shim_cgroup,
            io_uid: options.io_uid,
            io_gid: options.io_gid,
        })
    }

    /// From a file that containerd's configuration names; no name means none. It says which program root runs, so only
    /// root may be able to write it.
    fn from_file(path: &Path) -> io::Result<Self> {
        if path.as_os_str().is_empty() {
            return Ok(Options::default());
        }
        let failed = |kind, what| io::Error::new(kind, format!("{}: {what}", path.display()));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = File::from(
            openat(CWD, path, flags, Mode::empty())
                .map_err(|e| failed(io::Error::from(e).kind(), "cannot be opened"))?,
        );
        let metadata = file.metadata()?;
        let writable = metadata.mode() & 0o022 != 0;
        if metadata.uid() != rustix::process::geteuid().as_raw() || writable {
            return Err(failed(
                io::ErrorKind::PermissionDenied,
                "other users can write it",
            ));
        }
        let mut bytes = Vec::new();
        file.take(MAX_SMALL_BYTES).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Whether a sandbox is only namespaces and a process, as with runc, and not another runtime's virtual machine; and
    /// whether its cgroups are made without systemd.
    pub fn makes_plain_sandboxes(&self) -> bool {
        let program = Path::new(&self.binary_name).file_name();
        let plain = program.is_none_or(|name| name == "runc" || name == "crun");
        plain && !self.systemd_cgroup && !self.no_pivot_root
    }

    pub fn write(&self, bundle: &Bundle) -> io::Result<()> {
        bundle.write(FILE, &serde_json::to_vec(self)?)?;
        bundle.write(PROGRAM_FILE, self.binary_name.as_bytes())
    }

    /// What was written; none if nothing was (the container was never created).
    pub fn read(bundle: &Bundle) -> io::Result<Self> {
        match bundle.read(FILE, MAX_SMALL_BYTES) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Options::default()),
            Err(e) => Err(e),
        }
    }
}

/// The field `config_path` of `runtimeoptions.v1.Options`, for which containerd-shim-protos has no type. All of its fields
/// are strings or bytes.
fn config_path(message: &[u8]) -> io::Result<PathBuf> {
    let mut input = CodedInputStream::from_bytes(message);
    let mut path = Vec::new();
    while !input.eof()? {
        let tag = input.read_raw_varint32()?;
        if tag & 7 != CONFIG_PATH_TAG & 7 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let bytes = input.read_bytes()?;
        if tag == CONFIG_PATH_TAG {
            path = bytes;
        }
    }
    Ok(PathBuf::from(OsString::from_vec(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(kind: &str, options: &oci::Options) -> Any {
        Any {
            type_url: kind.into(),
            value: options.write_to_bytes().unwrap(),
            ..Any::default()
        }
    }

    #[test]
    fn options_are_read_from_either_spelling_of_their_type_and_from_no_other() {
        let message = oci::Options {
            binary_name: "crun".into(),
            root: "/r".into(),
            systemd_cgroup: true,
            io_uid: 7,
            ..oci::Options::default()
        };
        for kind in [TYPE, "type.googleapis.com/containerd.runc.v1.Options"] {
            let options = Options::from_any(&any(kind, &message)).unwrap();
            assert_eq!(
                (
                    options.binary_name.as_str(),
                    options.systemd_cgroup,
                    options.io_uid
                ),
                ("crun", true, 7)
            );
        }
        assert!(Options::from_any(&any("runtimeoptions.v2.Options", &message)).is_err());
        assert_eq!(Options::from_encoded(b"").unwrap(), Options::default());
        assert!(Options::from_encoded(b"\xff").is_err());
    }

    #[test]
    fn options_may_be_in_a_file_that_only_root_can_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shim.json");
        std::fs::write(&path, r#"{"binary_name":"crun","systemd_cgroup":true}"#).unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap()
        };
        mode(0o600);
        // type_url = 1, config_path = 2, config_body = 3
        let text = path.display().to_string();
        let mut value = vec![0x0a, 1, b't', 0x12, u8::try_from(text.len()).unwrap()];
        value.extend(text.as_bytes());
        value.extend([0x1a, 1, 0]);
        let any = Any {
            type_url: TYPE_WITH_FILE.into(),
            value,
            ..Any::default()
        };
        let options = Options::from_any(&any).unwrap();
        assert_eq!(
            (options.binary_name.as_str(), options.systemd_cgroup),
            ("crun", true)
        );
        mode(0o666);
        assert_eq!(
            Options::from_any(&any).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            Options::from_any(&any).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let none = Any {
            type_url: TYPE_WITH_FILE.into(),
            ..Any::default()
        };
        assert_eq!(Options::from_any(&none).unwrap(), Options::default());
    }

    #[test]
    fn what_was_written_is_read_also_if_gos_shim_wrote_it() {
        let directory = tempfile::tempdir().unwrap();
        let bundle = Bundle::open(directory.path()).unwrap();
        assert_eq!(Options::read(&bundle).unwrap(), Options::default());
        let options = Options {
            root: "/r".into(),
            ..Options::default()
        };
        options.write(&bundle).unwrap();
        assert_eq!(
            std::fs::read_to_string(directory.path().join(FILE)).unwrap(),
            r#"{"root":"/r"}"#
        );
        assert_eq!(Options::read(&bundle).unwrap(), options);
        let go = br#"{"binary_name":"runc","root":"/r","criu_path":"/c","systemd_cgroup":true}"#;
        bundle.write(FILE, go).unwrap();
        assert!(Options::read(&bundle).unwrap().systemd_cgroup);
    }
}
