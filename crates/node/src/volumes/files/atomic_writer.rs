//! Writes a volume's files so that a reader never sees half of a change, as Kubernetes' AtomicWriter: they are in a directory
//! of their own, `..data` points to it, and is swapped in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};

use crate::untrusted_fs::{Dir, Kind, Links, NewFile, remove_tree};

/// Points to the current directory.
const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";
/// Directories of a volume's own, which every process of the pod may enter.
pub(super) const DIRECTORY_MODE: u32 = 0o755;
/// Limit of entries read from one directory; objects have fewer keys than this.
const ENTRIES_MAX: usize = 1 << 20;

/// One file: its bytes, mode, and its owner if that is not root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub bytes: Vec<u8>,
    pub mode: u32,
    pub user: Option<u32>,
}

pub(super) type Content = BTreeMap<String, File>;

/// Gives a directory this content, in one step. Nothing is changed if it has it already.
pub(super) fn write(directory: &Path, content: &Content, group: Option<u32>) -> io::Result<()> {
    for name in content.keys() {
        let inside = Path::new(name)
            .components()
            .all(|c| matches!(c, Component::Normal(_)));
        if !inside || name.is_empty() || name.starts_with("..") {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("file name {name:?} leads out of its volume"),
            ));
        }
    }
    let volume = Dir::make(directory, DIRECTORY_MODE)?;
    let current = current(&volume)?;
    if let Some(current) = &current
        && shows(&volume, current, content)?
    {
        return Ok(());
    }
    let (stamp, shown) = new_directory(&volume)?;
    for (name, file) in content {
        let path = Path::new(name);
        let mut parents = path.parent().into_iter().flat_map(Path::components);
        let top = shown.open_dir(".", Links::Never)?;
        let parent = parents.try_fold(top, |at, part| make_directory(&at, part.as_os_str(), group))?;
        let mode = match group {
            Some(_) => file.mode | GROUP_READS,
            None => file.mode,
        };
        let new = NewFile {
            bytes: &file.bytes,
            mode,
            user: file.user,
            group,
        };
        parent.create(path.file_name().unwrap_or_default(), new)?;
    }
    volume.remove_file(DATA_NEXT)?;
    volume.symlink(&stamp, DATA_NEXT)?;
    // Something else than a link of this name is in the way; it was not created here.
    if volume.kind(DATA)?.is_some_and(|kind| kind != Kind::Link) {
        remove_tree(&volume, DATA)?;
    }
    volume.rename(DATA_NEXT, DATA)?;
    link_names(&volume, content)?;
    if let Some(current) = current {
        remove_tree(&volume, current)?;
    }
    Ok(())
}

/// What the pod's group may do with a file of a read-only volume, and with a directory.
const GROUP_READS: u32 = 0o440;
const GROUP_ENTERS: u32 = 0o2550;

fn make_directory(at: &Dir, name: &OsStr, group: Option<u32>) -> io::Result<Dir> {
    let made = at.make_dir(name, DIRECTORY_MODE)?;
    if let Some(group) = group {
        made.set_group(group)?;
        made.set_mode(DIRECTORY_MODE | GROUP_ENTERS)?;
    }
    Ok(made)
}

/// The directory that `..data` points to: one created here, in this volume. Any other target is ignored.
fn current(volume: &Dir) -> io::Result<Option<OsString>> {
    let Some(target) = volume.read_link(DATA)? else {
        return Ok(None);
    };
    let name = target.into_os_string();
    let ours = name.as_encoded_bytes().starts_with(b"..")
        && name.len() > 2
        && !name.as_encoded_bytes().contains(&b'/')
        && !name.as_encoded_bytes().starts_with(DATA.as_bytes());
    Ok((ours && volume.kind(&name)? == Some(Kind::Directory)).then_some(name))
}

/// A directory of a name that no other has.
fn new_directory(volume: &Dir) -> io::Result<(String, Dir)> {
    loop {
        let name = format!("..{:016x}", rand::random::<u64>());
        if volume.kind(&name)?.is_none() {
            let made = volume.make_dir(&name, DIRECTORY_MODE)?;
            return Ok((name, made));
        }
    }
}

/// Whether a directory holds exactly this.
fn shows(volume: &Dir, name: &OsStr, content: &Content) -> io::Result<bool> {
    let shown = volume.open_dir(name, Links::Never)?;
    let mut count = 0;
    let mut left = vec![String::new()];
    while let Some(at) = left.pop() {
        for entry in shown.open_dir(&at, Links::Never)?.entries(ENTRIES_MAX)? {
            let Some(name) = entry.name.to_str() else {
                return Ok(false);
            };
            let path = if at.is_empty() {
                name.to_string()
            } else {
                format!("{at}/{name}")
            };
            if entry.kind == Kind::Directory {
                left.push(path);
                continue;
            }
            count += 1;
            let Some(desired) = content.get(&path).filter(|_| entry.kind == Kind::File) else {
                return Ok(false);
            };
            match shown.read(&path, Links::Never, desired.bytes.len()) {
                Ok((bytes, false)) if bytes == desired.bytes => {}
                _ => return Ok(false),
            }
        }
    }
    Ok(count == content.len())
}

/// The links that users see point through `..data`; outdated ones are removed.
fn link_names(volume: &Dir, content: &Content) -> io::Result<()> {
    let top = |name: &String| name.split('/').next().map(str::to_string);
    let desired: BTreeSet<String> = content.keys().filter_map(top).collect();
    for name in &desired {
        let target = Path::new(DATA).join(name);
        if volume.read_link(name)?.as_deref() != Some(&target) {
            remove_tree(volume, name)?;
            volume.symlink(target, name)?;
        }
    }
    for entry in volume.entries(ENTRIES_MAX)? {
        let name = entry.name.to_string_lossy().into_owned();
        if !name.starts_with("..") && !desired.contains(&name) && entry.kind == Kind::Link {
            volume.remove_file(&entry.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn content(files: &[(&str, &str)]) -> Content {
        let file = |text: &str| File {
            bytes: text.into(),
            mode: 0o640,
            user: None,
        };
        files
            .iter()
            .map(|(name, text)| ((*name).to_string(), file(text)))
            .collect()
    }

    #[test]
    fn a_change_is_one_swap_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write(dir.path(), &content(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(at("d/b")).unwrap(), "2");
        assert_eq!(fs::metadata(at("a")).unwrap().permissions().mode() & 0o777, 0o640);
        let before = fs::read_link(at("..data")).unwrap();
        write(dir.path(), &content(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(fs::read_link(at("..data")).unwrap(), before, "nothing changed");
        write(dir.path(), &content(&[("c", "3")]), None).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left.len(), 3, "..data, what it points to, and c: {left:?}");
        assert_eq!(fs::read_to_string(at("c")).unwrap(), "3");
    }

    #[test]
    fn a3_what_a_container_put_into_the_volume_is_neither_followed_nor_read() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, victim) = (dir.path().join("v"), dir.path().join("victim"));
        for hostile in ["absolute", "up", "zero", "fifo", "directory", "names"] {
            drop(fs::remove_dir_all(&volume));
            fs::create_dir_all(&victim).unwrap();
            fs::write(victim.join("a"), "1").unwrap();
            write(&volume, &content(&[("a", "1"), ("b", "2")]), None).unwrap();
            let (data, held) = (volume.join(DATA), volume.join(DATA).canonicalize().unwrap());
            match hostile {
                "absolute" => {
                    fs::remove_file(&data).unwrap();
                    symlink(&victim, &data).unwrap();
                }
                "up" => {
                    fs::remove_file(&data).unwrap();
                    symlink("../victim", &data).unwrap();
                }
                "zero" => {
                    fs::remove_file(held.join("a")).unwrap();
                    symlink("/dev/zero", held.join("a")).unwrap();
                }
                "fifo" => {
                    fs::remove_file(held.join("a")).unwrap();
                    nix::unistd::mkfifo(&held.join("a"), nix::sys::stat::Mode::S_IRUSR).unwrap();
                }
                "directory" => {
                    fs::remove_file(&data).unwrap();
                    fs::create_dir(&data).unwrap();
                    symlink(&victim, data.join("x")).unwrap();
                }
                _ => {
                    fs::remove_file(volume.join("a")).unwrap();
                    symlink(&victim, volume.join("a")).unwrap();
                }
            }
            write(&volume, &content(&[("a", "1"), ("b", "3")]), None).unwrap();
            assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1", "{hostile}");
            assert_eq!(fs::read_to_string(volume.join("b")).unwrap(), "3", "{hostile}");
            assert_eq!(fs::read_to_string(victim.join("a")).unwrap(), "1", "{hostile}");
            assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "{hostile}");
        }
    }

    #[test]
    fn a_name_that_leads_out_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["../x", "/x", "a/../../x", "..x"] {
            assert!(write(dir.path(), &content(&[(bad, "1")]), None).is_err(), "{bad}");
        }
    }
}
