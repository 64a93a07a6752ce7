//! subPaths: what a container is given of a volume is opened beneath it and bind-mounted by descriptor to a directory of the
//! pod that no volume reaches, `volume-subpaths/<volume>/<container>/<index>`, as kubelet does (CVE-2017-1002101,
//! CVE-2021-25741). The runtime gets that path: nothing of it changes hands between the check and the use.

use std::io;
use std::path::{Path, PathBuf};

use crate::untrusted_fs::{self, Dir};
use crate::volumes::mounts;

/// In a pod's directory.
const DIRECTORY: &str = "volume-subpaths";

/// One subPath of a container.
pub(super) struct SubPath {
    pub pod_dir: PathBuf,
    pub volume: String,
    pub container: String,
    /// Of the mount among the container's.
    pub index: usize,
    /// The volume's root, as an administrator or the kubelet named it.
    pub base: PathBuf,
    pub path: String,
}

impl SubPath {
    /// Makes what is missing of the path, with the mode of the volume's root, and mounts it. Answers where.
    pub fn mount(&self) -> io::Result<PathBuf> {
        let at = self
            .pod_dir
            .join(DIRECTORY)
            .join(&self.volume)
            .join(&self.container);
        let name = self.index.to_string();
        untrusted_fs::bind(&self.open()?, &at, &name)?;
        Ok(at.join(name))
    }

    /// Where nothing is mounted because no process will see it: what is missing is made all the same.
    pub fn make(&self) -> io::Result<PathBuf> {
        self.open()?;
        Ok(self.base.join(&self.path))
    }

    fn open(&self) -> io::Result<std::os::fd::OwnedFd> {
        let base = Dir::open_named(&self.base)?;
        let mode = base.own_stat()?.st_mode & 0o2777;
        base.locate_or_make_dirs(Path::new(&self.path), mode)
    }
}

/// Unmounts all subPaths of a pod, before their volumes are removed.
pub(super) fn unmount_all(pod_dir: &Path) -> io::Result<()> {
    for mounted in mounts::below(&pod_dir.join(DIRECTORY))? {
        untrusted_fs::unmount_all_at(&mounted)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn sub_path(dir: &Path, path: &str) -> SubPath {
        SubPath {
            pod_dir: dir.join("pod"),
            volume: "v".into(),
            container: "c".into(),
            index: 1,
            base: dir.join("v"),
            path: path.into(),
        }
    }

    #[test]
    fn a3_a_sub_path_is_mounted_where_no_volume_is_and_leads_nowhere_else_later() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not run: only root mounts");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("v");
        std::fs::create_dir_all(base.join("a")).unwrap();
        std::fs::write(base.join("a/f"), "mine").unwrap();
        let at = sub_path(dir.path(), "a").mount().unwrap();
        assert_eq!(at, dir.path().join("pod/volume-subpaths/v/c/1"));
        // What the container does to the name afterwards changes nothing of what the runtime is given.
        std::fs::rename(base.join("a"), base.join("b")).unwrap();
        symlink("/", base.join("a")).unwrap();
        assert_eq!(std::fs::read(at.join("f")).unwrap(), b"mine");
        // The next attempt of the container fails, and the earlier mount is unchanged.
        assert!(sub_path(dir.path(), "a").mount().is_err());
        assert_eq!(sub_path(dir.path(), "b/f").mount().unwrap(), at);
        assert_eq!(std::fs::read(&at).unwrap(), b"mine");
        unmount_all(&dir.path().join("pod")).unwrap();
        assert_eq!(std::fs::read(&at).unwrap(), b"");
    }

    #[test]
    fn a3_a_sub_path_is_made_and_never_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("v");
        std::fs::create_dir(&base).unwrap();
        symlink("/etc", base.join("out")).unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        symlink("real", base.join("in")).unwrap();
        sub_path(dir.path(), "a/b").make().unwrap();
        assert!(base.join("a/b").is_dir());
        sub_path(dir.path(), "in/c").make().unwrap();
        assert!(base.join("real/c").is_dir());
        for bad in ["../x", "/etc", "out", "out/passwd", "a/../../x"] {
            assert!(sub_path(dir.path(), bad).make().is_err(), "{bad}");
        }
    }
}
