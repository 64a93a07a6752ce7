//! Links to the logs of existing containers, by the names that log collectors expect:
//! `<pod>_<namespace>_<container>-<id>.log` in one directory next to the pods' own (`/var/log/containers` next to
//! `/var/log/pods`, where they are kept there).

use std::io;
use std::path::{Path, PathBuf};

use knarr_kubelet::runtime::Container;

use crate::host_fs;

/// The longest name of a file.
const NAME_MAX: usize = 255;
const SUFFIX: &str = ".log";

/// The directory of links that belongs to this directory of pods' logs.
pub fn directory(pods: &Path) -> PathBuf {
    pods.with_file_name("containers")
}

fn name(container: &Container) -> String {
    let pod = &container.pod;
    let mut name = format!(
        "{}_{}_{}-{}",
        pod.name, pod.namespace, container.name, container.id
    );
    // All of it is ASCII.
    name.truncate(NAME_MAX - SUFFIX.len());
    name + SUFFIX
}

/// Links a container's log, if there is one.
pub fn link(directory: &Path, container: &Container, log: &Path) -> io::Result<()> {
    if !host_fs::exists(log) {
        return Ok(());
    }
    host_fs::create_dir_all(directory)?;
    match host_fs::symlink(log, directory.join(name(container))) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Removes a container's link.
pub fn unlink(directory: &Path, container: &Container) -> io::Result<()> {
    match host_fs::remove_file(directory.join(name(container))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes the links into this directory of a deleted pod. A log that is being rotated does not exist for a moment; its
/// link stays.
pub fn unlink_all_below(directory: &Path, removed: &Path) -> io::Result<()> {
    let entries = match host_fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        // What is no link was not created here.
        if host_fs::read_link(&path).is_ok_and(|log| log.starts_with(removed)) {
            host_fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use knarr_api::k8s_openapi;
    use knarr_kubelet::runtime::{ContainerState, PodRef};

    fn container(pod: &str, id: &str) -> Container {
        Container {
            id: id.into(),
            sandbox_id: "s".into(),
            pod: PodRef {
                uid: "u".into(),
                namespace: "ns".into(),
                name: pod.into(),
            },
            name: "c".into(),
            attempt: 0,
            hash: String::new(),
            self_fenced: None,
            state: ContainerState::Created,
            created_at: Timestamp::UNIX_EPOCH,
            image: String::new(),
            image_id: String::new(),
        }
    }

    #[test]
    fn l13_logs_are_found_by_the_names_collectors_know() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("log/pods");
        let links = directory(&pods);
        assert_eq!(links, dir.path().join("log/containers"));
        let log = |pod: &str| pods.join(format!("ns_{pod}_u/c/0.log"));
        for pod in ["p", "q"] {
            link(&links, &container(pod, "1f"), &log(pod)).unwrap();
            assert!(!links.exists(), "there is no log yet");
        }
        for pod in ["p", "q"] {
            fs::create_dir_all(log(pod).parent().unwrap()).unwrap();
            fs::write(log(pod), pod).unwrap();
            for _ in 0..2 {
                link(&links, &container(pod, "1f"), &log(pod)).unwrap();
            }
        }
        let read = |name: &str| fs::read_to_string(links.join(name)).ok();
        assert_eq!(read("p_ns_c-1f.log").as_deref(), Some("p"));
        assert_eq!(read("q_ns_c-1f.log").as_deref(), Some("q"));
        for _ in 0..2 {
            unlink(&links, &container("p", "1f")).unwrap();
        }
        assert_eq!(read("p_ns_c-1f.log"), None);
        fs::write(links.join("other"), "").unwrap();
        unlink_all_below(&links, &pods.join("ns_p_u")).unwrap();
        assert!(read("q_ns_c-1f.log").is_some());
        unlink_all_below(&links, &pods.join("ns_q_u")).unwrap();
        assert_eq!(
            fs::read_dir(&links).unwrap().count(),
            1,
            "only the other's is left"
        );
    }

    #[test]
    fn l13_names_that_are_too_long_are_cut() {
        let long = name(&container(&"p".repeat(253), &"a".repeat(64)));
        assert_eq!(long.len(), NAME_MAX);
        assert!(long.ends_with(SUFFIX));
    }
}
