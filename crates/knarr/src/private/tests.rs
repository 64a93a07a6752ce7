//! Directories and files as earlier versions, administrators and attackers leave them.

use super::*;
use std::os::unix::fs::symlink;

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn set(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a5_a_data_directory_is_made_closed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a/d");
    make_data_dir(&data).unwrap();
    assert_eq!(mode(&data), 0o700);
    for _ in 0..2 {
        make(&data, &["run", "kubelet"]).unwrap();
        assert_eq!(mode(&data.join("run")), 0o700);
    }
}

#[test]
fn a5_what_is_open_is_closed_at_every_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    std::fs::create_dir_all(data.join("kubelet/pods/1")).unwrap();
    for name in DIRECTORIES {
        std::fs::create_dir_all(data.join(name)).unwrap();
        set(&data.join(name), 0o755);
    }
    let files = [
        "knarr.pid",
        "audit.log",
        "pki/ca.key",
        "store/00000001",
        "pki/program",
    ];
    for name in files {
        std::fs::write(data.join(name), name).unwrap();
        set(
            &data.join(name),
            if name == "pki/program" { 0o555 } else { 0o666 },
        );
    }
    set(&data.join("kubelet/pods/1"), 0o777);
    set(&data, 0o755);
    for _ in 0..2 {
        make_data_dir(&data).unwrap();
        repair(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        for name in DIRECTORIES {
            assert_eq!(mode(&data.join(name)), 0o700, "{name}");
        }
        for name in &files[..4] {
            assert_eq!(mode(&data.join(name)), 0o600, "{name}");
        }
        assert_eq!(mode(&data.join("pki/program")), 0o400, "no permission is added");
        assert_eq!(
            mode(&data.join("kubelet/pods/1")),
            0o777,
            "containers see this one"
        );
    }
}

#[test]
fn a5_a_directory_with_other_files_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("letter"), "").unwrap();
    set(&home, 0o755);
    let error = make_data_dir(&home).unwrap_err().to_string();
    assert!(error.contains("was never a data directory"), "{error}");
    assert_eq!(mode(&home), 0o755);
    // An empty directory is used, and closed.
    std::fs::remove_file(home.join("letter")).unwrap();
    std::fs::create_dir(home.join("lost+found")).unwrap();
    make_data_dir(&home).unwrap();
    assert_eq!(mode(&home), 0o700);
}

#[test]
fn a5_no_link_in_a_data_directory_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (data, victim) = (dir.path().join("d"), dir.path().join("victim"));
    make_data_dir(&data).unwrap();
    std::fs::create_dir(&victim).unwrap();
    set(&victim, 0o755);
    symlink(&victim, data.join("run")).unwrap();
    assert!(repair(&data).unwrap_err().to_string().contains("d/run"));
    assert_eq!(mode(&victim), 0o755);
    std::fs::remove_file(data.join("run")).unwrap();
    // A link among the secret files is not followed.
    std::fs::create_dir(data.join("pki")).unwrap();
    let file = victim.join("file");
    std::fs::write(&file, "").unwrap();
    set(&file, 0o644);
    symlink(&file, data.join("pki/ca.key")).unwrap();
    repair(&data).unwrap();
    assert_eq!(mode(&file), 0o644);
    // A link in the path of the data directory is followed.
    let link = dir.path().join("link");
    symlink(&data, &link).unwrap();
    set(&data, 0o755);
    std::fs::write(data.join(LOCK_FILE), "").unwrap();
    make_data_dir(&link).unwrap();
    assert_eq!(mode(&data), 0o700);
}

#[test]
fn a5_a_private_file_replaces_wider_ones_and_links() {
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("etc/kubeconfig"), dir.path().join("victim"));
    write(&path, "one").unwrap();
    assert_eq!(mode(&path), 0o600);
    set(&path, 0o644);
    write(&path, "two").unwrap();
    assert_eq!(mode(&path), 0o600);
    std::fs::write(&victim, "victim").unwrap();
    std::fs::remove_file(&path).unwrap();
    symlink(&victim, &path).unwrap();
    write(&path, "three").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "victim");
    let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "no temporary file is left");
}
