//! Hostile trees, and a container that exchanges what is being opened.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use super::*;

/// A volume next to a secret that it must not lead to.
struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("v/d")).unwrap();
        std::fs::write(dir.path().join("v/d/f"), "inside").unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        std::fs::write(dir.path().join("out/f"), "secret").unwrap();
        Tree { dir }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn volume(&self) -> Dir {
        Dir::open(&self.at("v")).unwrap()
    }

    fn fifo(&self, path: &str) {
        mknodat(CWD, self.at(path), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    }
}

#[test]
fn a3_nothing_leads_out_of_a_directory_and_nothing_but_files_is_read() {
    let tree = Tree::new();
    let out = tree.at("out/f");
    for (target, name) in [
        (out.to_str().unwrap(), "absolute"),
        ("../out/f", "up"),
        ("/proc/self/root/etc/passwd", "magic"),
        ("/proc/self/fd/0", "descriptor"),
        ("loop", "loop"),
        ("/dev/zero", "zero"),
        ("../out", "dir"),
        ("d/f", "inside"),
        ("d", "here"),
    ] {
        symlink(target, tree.at("v").join(name)).unwrap();
    }
    tree.fifo("v/fifo");
    let _socket = std::os::unix::net::UnixListener::bind(tree.at("v/socket")).unwrap();
    let volume = tree.volume();
    for path in [
        "absolute",
        "up",
        "magic",
        "descriptor",
        "loop",
        "zero",
        "dir/f",
        "fifo",
        "socket",
        "d",
        "../out/f",
        out.to_str().unwrap(),
        "d/../../out/f",
        "none",
    ] {
        for links in [Links::Never, Links::Inside] {
            let read = volume.read(path, links, 100);
            assert!(read.is_err(), "{path} {links:?}: {read:?}");
        }
    }
    for (path, never, inside) in [
        ("d/f", true, true),
        ("inside", false, true),
        ("here/f", false, true),
    ] {
        assert_eq!(volume.read(path, Links::Never, 100).is_ok(), never, "{path}");
        assert_eq!(volume.read(path, Links::Inside, 100).is_ok(), inside, "{path}");
    }
}

#[test]
fn l4_a_file_is_read_inside_its_volume_only_and_never_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("v");
    std::fs::create_dir_all(base.join("etc")).unwrap();
    std::fs::write(dir.path().join("secret"), "not yours").unwrap();
    std::fs::write(base.join("etc/env"), "12345").unwrap();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, base.join(name)).unwrap();
    link("etc/env", "in");
    link("/etc/env", "absolute");
    link("../../../../etc/env", "above");
    link("../secret", "out");
    link("loop", "loop");
    link("/proc/self/exe", "magic");
    nix::unistd::mkfifo(
        &base.join("pipe"),
        nix::sys::stat::Mode::from_bits_truncate(0o666),
    )
    .unwrap();
    let volume = Dir::open(&base).unwrap();
    // The volume is all there is, as for a process that lives in it.
    for inside in ["etc/env", "in", "absolute", "above", "./etc//env"] {
        let read = volume.read(inside, Links::InRoot, 5).unwrap();
        assert_eq!(read, (b"12345".to_vec(), false), "{inside}");
    }
    assert_eq!(
        volume.read("in", Links::InRoot, 4).unwrap(),
        (b"1234".to_vec(), true)
    );
    for bad in ["out", "../secret", "etc", "loop", "magic", "absent", "pipe"] {
        assert!(volume.read(bad, Links::InRoot, 5).is_err(), "{bad}");
    }
}

#[test]
fn a3_every_read_has_a_limit() {
    let tree = Tree::new();
    let volume = tree.volume();
    assert_eq!(
        volume.read("d/f", Links::Never, 6).unwrap(),
        (b"inside".to_vec(), false)
    );
    assert_eq!(
        volume.read("d/f", Links::Never, 5).unwrap(),
        (b"insid".to_vec(), true)
    );
    let large = volume.read_whole("d/f", 5).unwrap_err();
    assert_eq!(large.kind(), io::ErrorKind::FileTooLarge);
}

#[test]
fn a3_names_are_names_and_not_paths() {
    let tree = Tree::new();
    let volume = tree.volume();
    for name in ["", ".", "..", "d/x", "/x", "../x", "x/"] {
        let file = NewFile::default();
        assert!(volume.create(name, file).is_err(), "{name:?}");
        assert!(volume.overwrite(name, file).is_err(), "{name:?}");
        assert!(volume.make_dir(name, 0o755).is_err(), "{name:?}");
        assert!(volume.remove_file(name).is_err(), "{name:?}");
        assert!(volume.remove_dir(name).is_err(), "{name:?}");
        assert!(volume.symlink("d", name).is_err(), "{name:?}");
        assert!(volume.rename("d", name).is_err(), "{name:?}");
    }
    assert_eq!(std::fs::read(tree.at("v/d/f")).unwrap(), b"inside");
}

#[test]
fn a3_no_file_is_written_through_a_link_or_into_a_fifo() {
    let tree = Tree::new();
    symlink(tree.at("out/f"), tree.at("v/l")).unwrap();
    tree.fifo("v/fifo");
    let volume = tree.volume();
    let file = NewFile {
        bytes: b"mine",
        mode: 0o600,
        ..NewFile::default()
    };
    for name in ["l", "fifo"] {
        assert!(volume.create(name, file).is_err(), "{name}");
        assert!(volume.overwrite(name, file).is_err(), "{name}");
    }
    assert_eq!(std::fs::read(tree.at("out/f")).unwrap(), b"secret");
    // In place of a link there is a file then; what it led to stays.
    volume.replace("l", file).unwrap();
    assert_eq!(std::fs::read(tree.at("out/f")).unwrap(), b"secret");
    let meta = std::fs::symlink_metadata(tree.at("v/l")).unwrap();
    assert!(meta.is_file());
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    // The same inode, as containers have it mounted.
    let inode = meta.ino();
    volume
        .overwrite(
            "l",
            NewFile {
                bytes: b"new",
                ..file
            },
        )
        .unwrap();
    assert_eq!(std::fs::metadata(tree.at("v/l")).unwrap().ino(), inode);
    assert_eq!(std::fs::read(tree.at("v/l")).unwrap(), b"new");
}

#[test]
fn a3_removal_follows_no_link_and_copes_with_any_depth() {
    let tree = Tree::new();
    symlink(tree.at("out"), tree.at("v/l")).unwrap();
    tree.fifo("v/fifo");
    // Deeper than paths can be named, and than descriptors reach.
    let mut at = Dir::open(&tree.at("v")).unwrap();
    for n in 0..3000 {
        if n % 500 == 0 {
            at.create(format!("f{n}"), NewFile::default()).unwrap();
        }
        at = at.make_dir("deeper", 0o755).unwrap();
    }
    drop(at);
    remove(&tree.at("v")).unwrap();
    assert!(!tree.at("v").exists());
    assert_eq!(std::fs::read(tree.at("out/f")).unwrap(), b"secret");
    remove(&tree.at("v")).unwrap();
    symlink(tree.at("out"), tree.at("v")).unwrap();
    remove(&tree.at("v")).unwrap();
    assert_eq!(std::fs::read(tree.at("out/f")).unwrap(), b"secret");
}

#[test]
fn a3_missing_directories_are_made_inside_only() {
    let tree = Tree::new();
    symlink(tree.at("out"), tree.at("v/l")).unwrap();
    symlink("nowhere", tree.at("v/dangling")).unwrap();
    symlink("d", tree.at("v/here")).unwrap();
    let volume = tree.volume();
    for path in ["l/x", "../x", "/x", "dangling", "dangling/x", "d/f/x"] {
        let made = volume.locate_or_make_dirs(std::path::Path::new(path), 0o755);
        assert!(made.is_err(), "{path}");
    }
    for (path, made) in [("a/b", "v/a/b"), ("here/c", "v/d/c"), ("d/f", "v/d/f")] {
        volume
            .locate_or_make_dirs(std::path::Path::new(path), 0o2750)
            .unwrap();
        assert!(tree.at(made).exists(), "{path}");
    }
    let mode = std::fs::metadata(tree.at("v/a/b")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o2750);
    assert_eq!(std::fs::read_dir(tree.at("out")).unwrap().count(), 1);
}

#[test]
fn a3_ownership_is_not_changed_through_links() {
    let tree = Tree::new();
    symlink(tree.at("out/f"), tree.at("v/l")).unwrap();
    symlink(tree.at("out"), tree.at("v/ld")).unwrap();
    let own = std::fs::metadata(tree.at("out")).unwrap();
    let before = own.permissions().mode();
    set_ownership(&tree.volume(), own.gid(), &|is_dir| {
        if is_dir { 0o2070 } else { 0o060 }
    })
    .unwrap();
    let mode = |path: &str| std::fs::metadata(tree.at(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("v/d") & 0o2070, 0o2070);
    assert_eq!(mode("v/d/f") & 0o060, 0o060);
    assert_eq!(mode("out/f") & 0o020, 0);
    assert_eq!(
        std::fs::metadata(tree.at("out")).unwrap().permissions().mode(),
        before
    );
}

#[test]
fn a3_usage_follows_no_link() {
    let tree = Tree::new();
    std::fs::write(tree.at("out/large"), vec![1; 1 << 20]).unwrap();
    std::fs::hard_link(tree.at("v/d/f"), tree.at("v/again")).unwrap();
    symlink(tree.at("out"), tree.at("v/l")).unwrap();
    let found = usage(&tree.at("v")).unwrap().unwrap();
    assert!(found.bytes < 1 << 20, "{found:?}");
    assert_eq!(found.inodes, 4, "two directories, one file of two names, a link");
    assert_eq!(usage(&tree.at("none")).unwrap(), None);
}

/// The race of CVE-2021-25741: one exchanges a directory with a link to what is outside, as fast as it can.
#[test]
fn a3_an_exchange_while_opening_never_leads_out() {
    const TRIES: usize = 20_000;
    let tree = Tree::new();
    std::fs::create_dir(tree.at("v/x")).unwrap();
    std::fs::write(tree.at("v/x/f"), "inside").unwrap();
    symlink(tree.at("out"), tree.at("v/y")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let exchange = {
        let (x, y, over) = (tree.at("v/x"), tree.at("v/y"), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &x, CWD, &y, RenameFlags::EXCHANGE).unwrap();
            }
        })
    };
    let volume = tree.volume();
    let (mut inside, mut rejected) = (0, 0);
    for n in 0..TRIES {
        match volume.read("x/f", Links::Inside, 100) {
            Ok((bytes, _)) => {
                assert_eq!(bytes, b"inside");
                inside += 1;
            }
            Err(_) => rejected += 1,
        }
        let sub = format!("x/new{}", n % 7);
        let _ = volume.locate_or_make_dirs(std::path::Path::new(&sub), 0o755);
    }
    over.store(true, Ordering::Relaxed);
    exchange.join().unwrap();
    assert!(
        inside > 0 && rejected > 0,
        "{inside} {rejected}: no race happened"
    );
    let left: Vec<_> = std::fs::read_dir(tree.at("out")).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing was made outside: {left:?}");
}

/// Takes its mounts along.
struct Mounts(PathBuf);

impl Drop for Mounts {
    fn drop(&mut self) {
        if let Err(error) = unmount_all_at(&self.0) {
            eprintln!("still mounted: {}: {error}", self.0.display());
        }
    }
}

#[test]
fn a3_what_was_opened_is_mounted_whatever_has_its_name_by_then() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: only root mounts");
        return;
    }
    let tree = Tree::new();
    let at = tree.at("mounts/v/c");
    let _mounts = Mounts(at.join("0"));
    let located = |path: &str| {
        tree.volume()
            .locate_or_make_dirs(std::path::Path::new(path), 0o755)
    };
    let held = located("d").unwrap();
    std::fs::rename(tree.at("v/d"), tree.at("v/e")).unwrap();
    symlink(tree.at("out"), tree.at("v/d")).unwrap();
    bind(&held, &at, "0").unwrap();
    assert_eq!(std::fs::read(at.join("0/f")).unwrap(), b"inside");
    // Again, as at a container's restart: the same stays, another one replaces it, also a file.
    bind(&located("e").unwrap(), &at, "0").unwrap();
    bind(&located("e/f").unwrap(), &at, "0").unwrap();
    assert_eq!(std::fs::read(at.join("0")).unwrap(), b"inside");
    // What is mounted is not removed with what it is mounted in.
    assert!(remove(&tree.at("mounts")).is_err());
    unmount_all_at(&at.join("0")).unwrap();
    remove(&tree.at("mounts")).unwrap();
    assert_eq!(std::fs::read(tree.at("v/e/f")).unwrap(), b"inside");
}

#[tokio::test]
async fn a6_a_file_system_that_does_not_answer_delays_no_other() {
    let pool = Pool::with_limit(Duration::from_millis(200));
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(parking_lot::Mutex::new(wait));
    for _ in 0..8 {
        let wait = wait.clone();
        let hung = pool.run("p", move || {
            // The sender is dropped at the test's end.
            let _ = wait.lock().recv();
            Ok(())
        });
        assert!(matches!(hung.await, Err(Error::Timeout)));
    }
    assert_eq!(pool.run("q", || Ok(1)).await.unwrap(), 1);
    drop(done);
}

#[tokio::test]
async fn s7_a_killed_kubelet_changes_no_file() {
    let killed = tokio_util::sync::CancellationToken::new();
    let pool = Pool::inline(killed.clone());
    assert_eq!(pool.run("p", || Ok(1)).await.unwrap(), 1);
    killed.cancel();
    let is_called = Arc::new(AtomicBool::new(false));
    let called = is_called.clone();
    let call = pool.run("p", move || {
        called.store(true, Ordering::SeqCst);
        Ok(())
    });
    assert!(futures::FutureExt::now_or_never(call).is_none());
    assert!(!is_called.load(Ordering::SeqCst));
}

#[test]
fn a3_this_kernel_can_open_beneath_a_directory() {
    check_kernel().unwrap();
}
