//! A directory that is held open, and what is done beneath it.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};

/// The longest target of a symbolic link; the kernel's limit.
const LINK_BYTES: usize = 4096;

/// Whether symbolic links below a directory are followed. None ever leads out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    Never,
    /// Relative ones, as far as they stay inside.
    Inside,
    /// As if the directory were the root of all there is, as for a process that lives in it.
    InRoot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    Socket,
    Other,
}

impl Kind {
    pub(super) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            FileType::Socket => Kind::Socket,
            _ => Kind::Other,
        }
    }
}

/// An entry of a directory, as it was when the directory was read.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: OsString,
    pub kind: Kind,
}

/// A file that is made: its bytes, its mode, and its owner where that is not root.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewFile<'a> {
    pub bytes: &'a [u8],
    pub mode: u32,
    pub user: Option<u32>,
    pub group: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
const CREATE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens a directory whose parents only root can change: a pod's directory, a volume's root. It is no link itself.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = fs::openat(CWD, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Dir { fd })
    }

    /// Opens a directory that an administrator named, and follows links (a hostPath).
    pub fn open_named(path: &Path) -> io::Result<Self> {
        let fd = fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
        Ok(Dir { fd })
    }

    /// Opens a directory, made with this mode where it is not there; so are its missing parents. Only root can change them.
    pub fn make(path: &Path, mode: u32) -> io::Result<Self> {
        match Dir::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(invalid("not the path of a directory"));
        };
        // Parents may be links of the administrator's.
        let parent = match Dir::open_named(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Dir::make(parent, mode)?,
            other => other?,
        };
        parent.make_dir(name, mode)
    }

    /// Opens beneath this directory, as a path only: nothing of a device or FIFO happens.
    pub(super) fn locate(&self, path: impl AsRef<Path>, links: Links) -> io::Result<OwnedFd> {
        let (beneath, no_magic) = (ResolveFlags::BENEATH, ResolveFlags::NO_MAGICLINKS);
        let (flags, resolve) = match links {
            Links::Never => (OFlags::NOFOLLOW, beneath | no_magic | ResolveFlags::NO_SYMLINKS),
            Links::Inside => (OFlags::empty(), beneath | no_magic),
            Links::InRoot => (OFlags::empty(), ResolveFlags::IN_ROOT | no_magic),
        };
        let path = path.as_ref();
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        // A rename elsewhere on the host may interrupt the walk (EAGAIN); so may one that a container repeats.
        for _ in 0..128 {
            let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
            match fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
                Err(rustix::io::Errno::AGAIN) => {}
                other => return Ok(other?),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// A directory beneath this one.
    pub fn open_dir(&self, path: impl AsRef<Path>, links: Links) -> io::Result<Dir> {
        let located = self.locate(path, links)?;
        let fd = fs::openat(&located, ".", DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Dir { fd })
    }

    /// A child that is on the same file system.
    pub(super) fn open_child(&self, name: &OsStr) -> io::Result<Dir> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let fd = fs::openat2(&self.fd, name, flags, Mode::empty(), resolve)?;
        Ok(Dir { fd })
    }

    /// A regular file beneath this directory, to be read. Nothing else is opened.
    pub fn open_file(&self, path: impl AsRef<Path>, links: Links) -> io::Result<File> {
        let located = self.locate(path, links)?;
        reopen(&located, READ)
    }

    /// At most the first `limit` bytes of a regular file, and whether there is more.
    pub fn read(&self, path: impl AsRef<Path>, links: Links, limit: usize) -> io::Result<(Vec<u8>, bool)> {
        let file = self.open_file(path, links)?;
        let mut bytes = Vec::new();
        let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        file.take(most).read_to_end(&mut bytes)?;
        let more = bytes.len() > limit;
        bytes.truncate(limit);
        Ok((bytes, more))
    }

    /// All of a regular file, which is an error if it is larger than `limit`.
    pub fn read_whole(&self, path: impl AsRef<Path>, limit: usize) -> io::Result<Vec<u8>> {
        match self.read(path, Links::Never, limit)? {
            (bytes, false) => Ok(bytes),
            (_, true) => Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("larger than {limit} bytes"),
            )),
        }
    }

    /// What an entry of this directory is; a link is a link.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> io::Result<Stat> {
        let name = single(name.as_ref())?;
        Ok(fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub fn kind(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Kind>> {
        match self.stat(name) {
            Ok(stat) => Ok(Some(Kind::of(&stat))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn own_stat(&self) -> io::Result<Stat> {
        Ok(fs::fstat(&self.fd)?)
    }

    /// What is in it, at most `limit` entries, sorted by name.
    pub fn entries(&self, limit: usize) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for entry in fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = os(entry.file_name());
            if name == "." || name == ".." {
                continue;
            }
            if found.len() == limit {
                break;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                FileType::Socket => Kind::Socket,
                // Some file systems do not report it.
                FileType::Unknown => match self.kind(name)? {
                    Some(kind) => kind,
                    None => continue,
                },
                _ => Kind::Other,
            };
            let name = name.to_owned();
            found.push(Entry { name, kind });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Creates a directory here with exactly this mode. An existing one keeps its own.
    pub fn make_dir(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Dir> {
        let name = single(name.as_ref())?;
        match fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode & 0o700)) {
            Ok(()) => {
                let made = self.open_dir(name, Links::Never)?;
                made.set_mode(mode)?;
                Ok(made)
            }
            Err(rustix::io::Errno::EXIST) => self.open_dir(name, Links::Never),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens what is there, as a path only, with missing directories made. Links are followed as far as they stay inside.
    pub fn locate_or_make_dirs(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        if path
            .components()
            .any(|c| !matches!(c, Component::Normal(_) | Component::CurDir))
        {
            return Err(invalid("the path leads out of its directory"));
        }
        match self.locate(path, Links::Inside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let mut at = self.open_dir(".", Links::Never)?;
        let mut walked = PathBuf::new();
        for component in path.components() {
            walked.push(component);
            // From the top each time: a link inside may lead up again, but not out.
            at = match self.open_dir(&walked, Links::Inside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // A link that leads nowhere is in the way, and is not followed.
                    at.make_dir(component.as_os_str(), mode)?
                }
                other => other?,
            };
        }
        // By descriptor of what was walked: it was made or entered just now, whatever has its name by then.
        Ok(at.fd)
    }

    /// Makes a file that was not there.
    pub fn create(&self, name: impl AsRef<OsStr>, file: NewFile<'_>) -> io::Result<()> {
        let name = single(name.as_ref())?;
        let fd = fs::openat(&self.fd, name, CREATE, Mode::from_raw_mode(0o600))?;
        let mut made = File::from(fd);
        made.write_all(file.bytes)?;
        if file.user.is_some() || file.group.is_some() {
            fs::fchown(&made, file.user.map(Uid::from_raw), file.group.map(Gid::from_raw))?;
        }
        Ok(fs::fchmod(&made, Mode::from_raw_mode(file.mode))?)
    }

    /// Writes a file that may be mounted in containers: the same inode gets the new content, and is a regular file.
    pub fn overwrite(&self, name: impl AsRef<OsStr>, file: NewFile<'_>) -> io::Result<()> {
        let name = single(name.as_ref())?;
        match self.create(name, file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
        let located = self.locate(name, Links::Never)?;
        let mut there = reopen(&located, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
        there.set_len(0)?;
        there.write_all(file.bytes)?;
        Ok(fs::fchmod(&there, Mode::from_raw_mode(file.mode))?)
    }

    /// Replaces the file of this name, atomically.
    pub fn replace(&self, name: impl AsRef<OsStr>, file: NewFile<'_>) -> io::Result<()> {
        let name = single(name.as_ref())?;
        let mut part = OsString::from(".");
        part.push(name);
        part.push(".part");
        self.remove_file(&part)?;
        self.create(&part, file)?;
        self.rename(&part, name)
    }

    pub fn symlink(&self, target: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(fs::symlinkat(target.as_ref(), &self.fd, single(name.as_ref())?)?)
    }

    /// A link's target; none if there is no link of this name.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> io::Result<Option<PathBuf>> {
        let name = single(name.as_ref())?;
        match fs::readlinkat(&self.fd, name, Vec::with_capacity(LINK_BYTES)) {
            Ok(target) => Ok(Some(PathBuf::from(os(&target)))),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Within this directory.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (single(from.as_ref())?, single(to.as_ref())?);
        Ok(fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes what is no directory; nothing if it is not there.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match fs::unlinkat(&self.fd, single(name.as_ref())?, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Removes an empty directory; nothing if it is not there.
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match fs::unlinkat(&self.fd, single(name.as_ref())?, AtFlags::REMOVEDIR) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fs::fchmod(&self.fd, Mode::from_raw_mode(mode))?)
    }

    pub fn set_group(&self, group: u32) -> io::Result<()> {
        Ok(fs::fchown(&self.fd, None, Some(Gid::from_raw(group)))?)
    }
}

/// Another descriptor of a regular file, by the kernel's own link to the one that is held: no name is resolved again.
fn reopen(located: &OwnedFd, flags: OFlags) -> io::Result<File> {
    if Kind::of(&fs::fstat(located)?) != Kind::File {
        return Err(invalid("not a regular file"));
    }
    let fd = fs::openat(CWD, own_link(located.as_fd()), flags, Mode::empty())?;
    Ok(File::from(fd))
}

/// The kernel's link to a descriptor of this process.
pub(super) fn own_link(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(super) fn os(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

/// The name of one entry, and no path.
fn single(name: &OsStr) -> io::Result<&OsStr> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(invalid("not the name of a file in a directory")),
    }
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
