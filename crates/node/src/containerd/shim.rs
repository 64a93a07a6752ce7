//! The shim that containerd starts for each pod: Go's, or knarr's own, which is a mode of knarr's program under another name.
//!
//! A runtime is named by the path of its shim, which containerd supports from 1.6.0. The option `runtime_path` is not used:
//! containerd 1.6.0 to 1.6.20 and 1.7.0 read it and ignore it. For a runtime that is named by its path, CRI passes the options
//! as the path of a file.

use std::io;
use std::path::{Path, PathBuf};

use knarr_cni::program_link;

/// The name under which knarr's program is the shim (`knarr_shim::NAME`).
const NAME: &str = "containerd-shim-knarr-v2";

/// The OCI runtime of a shim that is given no other.
const DEFAULT_OCI_RUNTIME: &str = "runc";

/// What a shim is to know of the OCI runtime.
#[derive(Clone, Copy, Debug)]
pub(super) struct OciRuntime<'a> {
    /// The program: its name in PATH, or its path.
    pub program: &'a str,
    pub systemd_cgroup: bool,
}

/// Which shim containers get that are created from now on. Those that run keep theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shim {
    /// containerd's, found by its name next to containerd or in PATH.
    #[default]
    RuncV2,
    /// knarr's.
    Knarr {
        /// A program whose `main` calls `knarr_shim::run_if_called` first.
        program: PathBuf,
    },
}

impl Shim {
    /// The runtime's section of containerd's configuration. `root` has what [`install`](Self::install) makes.
    pub(super) fn section(&self, runtime: &str, root: &Path, oci: OciRuntime) -> String {
        let (kind, option) = match self {
            Shim::RuncV2 => {
                let mut options = format!("SystemdCgroup = {}", oci.systemd_cgroup);
                if oci.program != DEFAULT_OCI_RUNTIME {
                    options += &format!("\n        BinaryName = {:?}", oci.program);
                }
                ("io.containerd.runc.v2".to_owned(), options)
            }
            Shim::Knarr { .. } => {
                let options = options_file(root).display().to_string();
                (
                    link(root).display().to_string(),
                    format!("ConfigPath = {options:?}"),
                )
            }
        };
        let table = format!(r#"plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{runtime}"#);
        format!("    [{table}]\n      runtime_type = {kind:?}\n\n      [{table}.options]\n        {option}\n")
    }

    /// Makes the link by which containerd finds the shim, and the file of its options. The link stays when another shim is
    /// configured: containerd runs it to clean up after containers that were created with it.
    pub(super) fn install(&self, root: &Path, oci: OciRuntime) -> Result<(), (PathBuf, io::Error)> {
        let Shim::Knarr { program } = self else {
            return Ok(());
        };
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |e| (path, e)
        };
        let directory = directory(root);
        crate::host_fs::create_dir_all(&directory).map_err(failed(&directory))?;
        set_link(root, program)?;
        let options = options_file(root);
        let text =
            serde_json::json!({"binary_name": oci.program, "systemd_cgroup": oci.systemd_cgroup}).to_string();
        // A containerd of an earlier run may be starting a shim that reads it.
        if crate::host_fs::read(&options).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(());
        }
        let part = directory.join("options.part");
        crate::host_fs::write(&part, text).map_err(failed(&part))?;
        crate::host_fs::rename(&part, &options).map_err(failed(&options))
    }
}

/// Makes the link of an earlier run lead to this program, which may have another path since. Pods that have knarr's shim keep
/// it whatever is configured, and containerd starts it for their new containers. Without a link there are no such pods.
pub(super) fn refresh_link(root: &Path, program: &Path) -> Result<(), (PathBuf, io::Error)> {
    match crate::host_fs::read_link(link(root)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => set_link(root, program),
    }
}

/// Makes the link, or replaces it at once. It is to outlive the program's own name: a containerd that does not find a pod's shim
/// when it starts forgets the pod.
fn set_link(root: &Path, program: &Path) -> Result<(), (PathBuf, io::Error)> {
    let link = link(root);
    program_link::make(&link, program).map_err(|e| (link, e))
}

/// The link, if it leads to no file.
pub(super) fn dangling_link(root: &Path) -> Option<PathBuf> {
    let link = link(root);
    let is_dangling = crate::host_fs::read_link(&link).is_ok() && crate::host_fs::metadata(&link).is_err();
    is_dangling.then_some(link)
}

fn directory(root: &Path) -> PathBuf {
    root.join("shim")
}

fn link(root: &Path) -> PathBuf {
    directory(root).join(NAME)
}

fn options_file(root: &Path) -> PathBuf {
    directory(root).join("options.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNC: OciRuntime = OciRuntime {
        program: "runc",
        systemd_cgroup: true,
    };
    const CRUN: OciRuntime = OciRuntime {
        program: "crun",
        systemd_cgroup: false,
    };

    #[test]
    fn gos_shim_is_named_and_knarrs_is_a_path() {
        let go = Shim::RuncV2.section("runc", Path::new("/d"), RUNC);
        assert!(
            go.contains(r#"runtime_type = "io.containerd.runc.v2""#) && go.contains("SystemdCgroup = true")
        );
        assert!(!go.contains("BinaryName"), "{go}");
        let crun = Shim::RuncV2.section("runc", Path::new("/d"), CRUN);
        assert!(
            crun.contains("SystemdCgroup = false\n        BinaryName = \"crun\"\n"),
            "{crun}"
        );
        let knarr = Shim::Knarr {
            program: "/usr/bin/knarr".into(),
        };
        let knarr = knarr.section("runc", Path::new("/d"), RUNC);
        assert!(
            knarr.contains(r#"runtime_type = "/d/shim/containerd-shim-knarr-v2""#),
            "{knarr}"
        );
        assert!(
            knarr.contains(r#"ConfigPath = "/d/shim/options.json""#),
            "{knarr}"
        );
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test reads what it made by name")]
    fn the_link_follows_the_program() {
        let root = tempfile::tempdir().unwrap();
        for program in ["/old/knarr", "/new/knarr", "/new/knarr"] {
            let shim = Shim::Knarr {
                program: program.into(),
            };
            shim.install(root.path(), CRUN).unwrap();
            assert_eq!(std::fs::read_link(link(root.path())).unwrap(), Path::new(program));
        }
        let options = std::fs::read_to_string(options_file(root.path())).unwrap();
        assert_eq!(options, r#"{"binary_name":"crun","systemd_cgroup":false}"#);
        Shim::RuncV2.install(root.path(), CRUN).unwrap();
        assert!(
            std::fs::read_link(link(root.path())).is_ok(),
            "containers may still have it"
        );
        refresh_link(root.path(), Path::new("/newer/knarr")).unwrap();
        assert_eq!(
            std::fs::read_link(link(root.path())).unwrap(),
            Path::new("/newer/knarr")
        );
    }

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "the test reads what is not there by name"
    )]
    fn no_link_is_made_where_no_pod_can_have_the_shim() {
        let root = tempfile::tempdir().unwrap();
        refresh_link(root.path(), Path::new("/new/knarr")).unwrap();
        assert!(std::fs::read_link(link(root.path())).is_err());
    }

    #[test]
    fn a_program_outlives_its_name_and_a_link_without_program_is_found() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("knarr");
        std::fs::write(&program, "one").unwrap();
        let shim = Shim::Knarr {
            program: program.clone(),
        };
        shim.install(root.path(), RUNC).unwrap();
        std::fs::remove_file(&program).unwrap();
        assert_eq!(std::fs::read_to_string(link(root.path())).unwrap(), "one");
        assert_eq!(dangling_link(root.path()), None);
        std::fs::write(&program, "two").unwrap();
        refresh_link(root.path(), &program).unwrap();
        assert_eq!(std::fs::read_to_string(link(root.path())).unwrap(), "two");
        set_link(root.path(), Path::new("/nothing/here")).unwrap();
        assert_eq!(dangling_link(root.path()), Some(link(root.path())));
    }
}
