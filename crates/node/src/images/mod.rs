//! Images built on the node: the sandbox (pause) image and one with busybox, so that a node without a registry can run
//! pods. Everything else is pulled by the runtime.

mod archive;
mod elf;
pub(crate) mod exit;
mod pause;
mod wget;

use std::io;
use std::path::{Path, PathBuf};

pub use archive::{Image, ImageFile};

/// Reference of the sandbox image knarr makes.
pub const PAUSE: &str = "localhost/knarr/pause:1";
/// Reference of the demo image: Debian's static busybox with its applets.
pub const BUSYBOX: &str = "localhost/knarr/busybox:1";

/// Where Debian's busybox-static puts its program.
const BUSYBOX_PROGRAM: &str = "/bin/busybox";

/// Why an image could not be built or imported.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot read {path:?}: install busybox-static (Debian: apt-get install busybox-static)")]
    NoBusybox { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a static x86-64 or arm64 program; install busybox-static")]
    NotStatic { path: PathBuf },
    #[error("there is no sandbox program for the architecture {0}; set sandboxImage in the configuration")]
    Architecture(&'static str),
    #[error("cannot write the image archive {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot run `ctr`, which comes with containerd")]
    Ctr { source: io::Error },
    #[error("containerd rejected the image {name}: {why}")]
    Import { name: String, why: String },
}

/// The sandbox image.
pub fn pause() -> Result<Image, ImageError> {
    let program = pause::program().ok_or(ImageError::Architecture(std::env::consts::ARCH))?;
    Ok(Image {
        name: PAUSE.into(),
        files: vec![ImageFile::program("pause", program)],
        entrypoint: vec!["/pause".into()],
        ..Image::default()
    })
}

/// The demo image, as `name`. Its `wget` accepts `-T` with every busybox ([`wget`]).
pub fn busybox(name: &str) -> Result<Image, ImageError> {
    let path = Path::new(BUSYBOX_PROGRAM);
    let mut program = crate::host_fs::read(path).map_err(|source| ImageError::NoBusybox {
        path: path.to_path_buf(),
        source,
    })?;
    if !archive::is_static_elf(&program) {
        return Err(ImageError::NotStatic {
            path: path.to_path_buf(),
        });
    }
    let wget = wget::rename_applet(&mut program);
    let mut files = vec![ImageFile::program("bin/busybox", program)];
    files.extend(APPLETS.iter().map(|applet| match *applet {
        "wget" if wget => ImageFile::program("bin/wget", wget::SCRIPT.into()),
        applet => ImageFile::link(&format!("bin/{applet}"), "busybox"),
    }));
    files.push(ImageFile::text(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    ));
    files.push(ImageFile::text("etc/group", "root:x:0:\nnogroup:x:65534:\n"));
    for dir in ["root", "home", "var", "usr"] {
        files.push(ImageFile::dir(dir, 0o755));
    }
    files.push(ImageFile::dir("tmp", 0o1777));
    Ok(Image {
        name: name.into(),
        files,
        command: vec!["sh".into()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
        ..Image::default()
    })
}

/// The applets that users expect of a small image; `busybox --list` has more, available as `busybox APPLET`.
const APPLETS: &[&str] = &[
    "[",
    "ash",
    "awk",
    "base64",
    "basename",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "clear",
    "cmp",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "dmesg",
    "du",
    "echo",
    "egrep",
    "env",
    "expr",
    "factor",
    "false",
    "fgrep",
    "find",
    "fold",
    "free",
    "ftpget",
    "getopt",
    "grep",
    "gunzip",
    "gzip",
    "head",
    "hexdump",
    "hostname",
    "httpd",
    "id",
    "ifconfig",
    "install",
    "ip",
    "kill",
    "killall",
    "less",
    "ln",
    "logger",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mknod",
    "mktemp",
    "more",
    "mount",
    "mv",
    "nc",
    "netstat",
    "nl",
    "nohup",
    "nproc",
    "nslookup",
    "od",
    "paste",
    "pgrep",
    "pidof",
    "ping",
    "pkill",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "renice",
    "reset",
    "rev",
    "rm",
    "rmdir",
    "route",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sha1sum",
    "sha256sum",
    "sha512sum",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "strings",
    "stty",
    "su",
    "sync",
    "tac",
    "tail",
    "tar",
    "tee",
    "telnet",
    "test",
    "timeout",
    "top",
    "touch",
    "tr",
    "traceroute",
    "true",
    "truncate",
    "tty",
    "umount",
    "uname",
    "uniq",
    "unzip",
    "uptime",
    "usleep",
    "vi",
    "watch",
    "wc",
    "wget",
    "which",
    "who",
    "whoami",
    "xargs",
    "xxd",
    "xz",
    "yes",
    "zcat",
];

/// Imports an image into containerd, unless the same one is there.
pub async fn import(socket: &Path, work_dir: &Path, image: &Image) -> Result<(), ImageError> {
    let file = work_dir.join(format!("{}.tar", image.name.replace(['/', ':'], "_")));
    let write = |source| ImageError::Write {
        path: file.clone(),
        source,
    };
    crate::host_fs::create_dir_all(work_dir).map_err(write)?;
    crate::host_fs::write(&file, image.archive().map_err(write)?).map_err(write)?;
    let done = ctr(socket)
        .args(["images", "import", "--no-unpack"])
        .arg(&file)
        .output()
        .await;
    crate::host_fs::remove_file(&file).map_err(write)?;
    let done = done.map_err(|source| ImageError::Ctr { source })?;
    if done.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr).trim().to_string();
    Err(ImageError::Import {
        name: image.name.clone(),
        why,
    })
}

/// `ctr`, containerd's own client, pointed at the images that CRI sees.
fn ctr(socket: &Path) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("ctr");
    command
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io"])
        .stdin(std::process::Stdio::null());
    command.kill_on_drop(true);
    command
}
