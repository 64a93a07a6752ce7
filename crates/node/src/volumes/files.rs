//! Volumes that are files made from objects: configMap, secret, downwardAPI, projected (service account tokens too).
//!
//! A reader never sees half of a change: files are in a directory named for the time, `..data` points to it, and is
//! swapped in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::Api;
use nix::mount::{MsFlags, mount};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::layout::POD_DIR_MODE;
use super::mounts;
use crate::kubelet::downward::{self, DownwardError, DownwardValues};
use crate::untrusted_fs::{Dir, Kind, Links, NewFile, remove_tree};

/// The lifetime of tokens unless the volume sets one.
const TOKEN_SECONDS: i64 = 3600;

/// A token is renewed after four fifths of its lifetime, or after a day.
const TOKEN_RENEW_MAX: Duration = Duration::from_secs(24 * 3600);

/// Which token: the pod's uid, the file's path, the audience.
type TokenKey = (String, String, String);

/// The tokens handed to pods, until they are to be renewed.
#[derive(Default)]
pub(super) struct Tokens(Mutex<BTreeMap<TokenKey, (String, Instant)>>);

impl Tokens {
    fn get(&self, key: &TokenKey) -> Option<String> {
        let held = self.0.lock();
        let (token, until) = held.get(key)?;
        (Instant::now() < *until).then(|| token.clone())
    }

    fn put(&self, key: TokenKey, token: &str, lives: Duration) {
        let renew = (lives * 4 / 5).min(TOKEN_RENEW_MAX);
        let until = Instant::now() + renew;
        self.0.lock().insert(key, (token.to_string(), until));
    }

    /// Removes a deleted pod's tokens.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().retain(|(of, ..), _| of != uid);
    }
}

/// Points to the current directory.
const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";
/// Directories of a volume's own, which every process of the pod may enter.
const DIRECTORY_MODE: u32 = 0o755;
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

pub(super) fn is_files(volume: &core::Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// Secrets are not written to disk.
pub(super) fn tmpfs_if_secret(path: &Path, volume: &core::Volume) -> io::Result<()> {
    Dir::make(path.parent().unwrap_or(path), POD_DIR_MODE)?;
    Dir::make(path, DIRECTORY_MODE)?;
    let secret = volume.secret.is_some() || volume.projected.is_some();
    if secret && !mounts::is_mount_point(path)? {
        mount(
            Some("tmpfs"),
            path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=0755"),
        )?;
    }
    Ok(())
}

/// The current pod: labels and annotations may have changed. The given one, if the API is not reachable.
pub(super) async fn newest(api: &dyn Api, pod: core::Pod) -> core::Pod {
    let (namespace, name) = (
        pod.metadata.namespace.clone().unwrap_or_default(),
        pod.metadata.name.clone().unwrap_or_default(),
    );
    match api.get(core::Pod::kind_of(), &namespace, &name).await {
        Ok(object) if Some(object.uid()) == pod.metadata.uid.as_deref() => {
            object.to_typed::<core::Pod>().unwrap_or(pod)
        }
        _ => pod,
    }
}

/// Why a volume has no content; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContentError {
    #[error("{what} {name:?} not found")]
    NotFound { what: &'static str, name: String },
    #[error("{what} references non-existent config key: {key}")]
    NoKey { what: &'static str, key: String },
    #[error("this projected source is not supported by knarr yet")]
    UnsupportedSource,
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error(transparent)]
    Api(#[from] knarr_client::Error),
    #[error("failed to fetch token: {0}")]
    FetchToken(#[source] knarr_client::Error),
    #[error("failed to fetch token: the answer holds none")]
    NoToken,
}

/// The content of a volume.
pub(super) async fn gather(
    api: &dyn Api,
    tokens: &Tokens,
    pod: &core::Pod,
    volume: &core::Volume,
    values: &DownwardValues,
) -> Result<Content, ContentError> {
    if let Some(source) = &volume.config_map {
        let keys = Keys {
            name: &source.name,
            items: source.items.as_deref(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode),
        };
        return config_map(api, pod, &keys).await;
    }
    if let Some(source) = &volume.secret {
        let keys = Keys {
            name: source.secret_name.as_deref().unwrap_or(""),
            items: source.items.as_deref(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode),
        };
        return secret(api, pod, &keys).await;
    }
    if let Some(source) = &volume.downward_api {
        let items = source.items.as_deref().unwrap_or_default();
        return downward_files(pod, items, mode(source.default_mode), values);
    }
    let mut content = Content::new();
    let Some(projected) = &volume.projected else {
        return Ok(content);
    };
    let default = mode(projected.default_mode);
    for source in projected.sources.iter().flatten() {
        let part = if let Some(map) = &source.config_map {
            let keys = Keys {
                name: &map.name,
                items: map.items.as_deref(),
                optional: map.optional == Some(true),
                mode: default,
            };
            config_map(api, pod, &keys).await?
        } else if let Some(from) = &source.secret {
            let keys = Keys {
                name: &from.name,
                items: from.items.as_deref(),
                optional: from.optional == Some(true),
                mode: default,
            };
            secret(api, pod, &keys).await?
        } else if let Some(own) = &source.downward_api {
            downward_files(pod, own.items.as_deref().unwrap_or_default(), default, values)?
        } else if let Some(desired) = &source.service_account_token {
            token(api, tokens, pod, desired, default).await?
        } else {
            return Err(ContentError::UnsupportedSource);
        };
        content.extend(part);
    }
    Ok(content)
}

fn mode(given: Option<i32>) -> u32 {
    given.and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644)
}

struct Keys<'a> {
    name: &'a str,
    items: Option<&'a [core::KeyToPath]>,
    optional: bool,
    mode: u32,
}

impl Keys<'_> {
    fn not_found(&self, what: &'static str) -> ContentError {
        ContentError::NotFound {
            what,
            name: self.name.into(),
        }
    }

    /// The files for these values: all of them, or the listed items.
    fn pick(&self, values: BTreeMap<String, Vec<u8>>, what: &'static str) -> Result<Content, ContentError> {
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            let file = |bytes| File {
                bytes,
                mode: self.mode,
                user: None,
            };
            return Ok(values.into_iter().map(|(k, v)| (k, file(v))).collect());
        };
        let mut content = Content::new();
        for item in items {
            match values.get(&item.key) {
                Some(bytes) => {
                    let file = File {
                        bytes: bytes.clone(),
                        mode: item.mode.map_or(self.mode, |m| mode(Some(m))),
                        user: None,
                    };
                    content.insert(item.path.clone(), file);
                }
                None if self.optional => {}
                None => {
                    let key = item.key.clone();
                    return Err(ContentError::NoKey { what, key });
                }
            }
        }
        Ok(content)
    }
}

async fn config_map(api: &dyn Api, pod: &core::Pod, keys: &Keys<'_>) -> Result<Content, ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let object = match api.get(core::ConfigMap::kind_of(), namespace, keys.name).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() && keys.optional => return Ok(Content::new()),
        Err(error) if error.is_not_found() => return Err(keys.not_found("configmap")),
        Err(error) => return Err(error.into()),
    };
    let map = object.to_typed::<core::ConfigMap>().unwrap_or_default();
    let text = map.data.into_iter().flatten().map(|(k, v)| (k, v.into_bytes()));
    let binary = map.binary_data.into_iter().flatten().map(|(k, v)| (k, v.0));
    keys.pick(text.chain(binary).collect(), "configmap")
}

async fn secret(api: &dyn Api, pod: &core::Pod, keys: &Keys<'_>) -> Result<Content, ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let object = match api.get(core::Secret::kind_of(), namespace, keys.name).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() && keys.optional => return Ok(Content::new()),
        Err(error) if error.is_not_found() => return Err(keys.not_found("secret")),
        Err(error) => return Err(error.into()),
    };
    let data = object.to_typed::<core::Secret>().unwrap_or_default().data;
    keys.pick(
        data.into_iter().flatten().map(|(k, v)| (k, v.0)).collect(),
        "secret",
    )
}

fn downward_files(
    pod: &core::Pod,
    items: &[core::DownwardAPIVolumeFile],
    default: u32,
    values: &DownwardValues,
) -> Result<Content, ContentError> {
    let mut content = Content::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, &field.field_path, values)?,
            (None, Some(resource)) => downward::resource(pod, None, resource, values)?,
            (None, None) => continue,
        };
        let file = File {
            bytes: text.into_bytes(),
            mode: item.mode.map_or(default, |m| mode(Some(m))),
            user: None,
        };
        content.insert(item.path.clone(), file);
    }
    Ok(content)
}

/// A token for the pod's service account, bound to the pod.
async fn token(
    api: &dyn Api,
    tokens: &Tokens,
    pod: &core::Pod,
    desired: &core::ServiceAccountTokenProjection,
    default: u32,
) -> Result<Content, ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let account = account
        .filter(|a| !a.is_empty())
        .unwrap_or_else(|| "default".into());
    let audience = desired.audience.clone().unwrap_or_default();
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let key = (uid, desired.path.clone(), audience.clone());
    let token = match tokens.get(&key) {
        Some(token) => token,
        None => {
            let seconds = desired.expiration_seconds.unwrap_or(TOKEN_SECONDS);
            let audiences: Vec<String> = [audience].into_iter().filter(|a| !a.is_empty()).collect();
            let token = request_token(api, pod, namespace, &account, &audiences, seconds).await?;
            tokens.put(
                key,
                &token,
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            );
            token
        }
    };
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let grouped = context.is_some_and(|c| c.fs_group.is_some());
    let user = only_user(pod);
    // No other user may read it. The group, where there is one, gets the right when the file is written.
    let mode = if grouped || user.is_some() { 0o600 } else { default };
    let file = File {
        bytes: token.as_bytes().to_vec(),
        mode,
        user,
    };
    Ok(Content::from([(desired.path.clone(), file)]))
}

/// The user that all containers run as, if each sets one and all are the same.
fn only_user(pod: &core::Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

async fn request_token(
    api: &dyn Api,
    pod: &core::Pod,
    namespace: &str,
    account: &str,
    audiences: &[String],
    seconds: i64,
) -> Result<String, ContentError> {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": seconds,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.metadata.name,
                "uid": pod.metadata.uid,
            },
        },
    });
    let kind = core::ServiceAccount::kind_of();
    let answer = api
        .create_subresource(kind, namespace, account, "token", request)
        .await;
    let answer = answer.map_err(ContentError::FetchToken)?;
    let token = answer["status"]["token"].as_str().map(String::from);
    token.ok_or(ContentError::NoToken)
}

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
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

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
    fn a5_a_token_is_its_users_where_all_containers_have_one() {
        let pod = |of_pod: Option<i64>, own: &[Option<i64>]| -> core::Pod {
            let containers: Vec<_> = own
                .iter()
                .map(|user| json!({"name": "c", "securityContext": {"runAsUser": user}}))
                .collect();
            let spec = json!({"securityContext": {"runAsUser": of_pod}, "containers": containers});
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        for (of_pod, own, user) in [
            (None, &[None][..], None),
            (Some(7), &[None, None], Some(7)),
            (Some(7), &[None, Some(8)], None),
            (None, &[Some(8), Some(8)], Some(8)),
            (None, &[Some(8), None], None),
        ] {
            assert_eq!(only_user(&pod(of_pod, own)), user, "{of_pod:?} {own:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().metadata().unwrap().gid();
        let token = File {
            bytes: b"t".to_vec(),
            mode: 0o600,
            user: None,
        };
        for (name, group, mode) in [("own", None, 0o600), ("group", Some(group), 0o640)] {
            let volume = dir.path().join(name);
            write(&volume, &Content::from([("token".into(), token.clone())]), group).unwrap();
            let meta = fs::metadata(volume.join("token")).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn a_name_that_leads_out_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["../x", "/x", "a/../../x", "..x"] {
            assert!(write(dir.path(), &content(&[(bad, "1")]), None).is_err(), "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_kept_for_four_fifths_of_its_life() {
        let tokens = Tokens::default();
        let key = ("u".to_string(), "token".to_string(), String::new());
        tokens.put(key.clone(), "t", Duration::from_secs(1000));
        tokio::time::sleep(Duration::from_secs(799)).await;
        assert_eq!(tokens.get(&key).as_deref(), Some("t"));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(tokens.get(&key), None);
        tokens.put(key.clone(), "t", Duration::from_secs(1000));
        tokens.forget("u");
        assert_eq!(tokens.get(&key), None);
    }

    #[test]
    fn items_pick_keys_and_a_missing_one_is_named() {
        let values = BTreeMap::from([("k".to_string(), b"v".to_vec())]);
        let item = |key: &str| core::KeyToPath {
            key: key.into(),
            path: "p".into(),
            mode: Some(0o600),
        };
        let pick = |items: &[core::KeyToPath], optional| {
            Keys {
                name: "m",
                items: Some(items),
                optional,
                mode: 0o644,
            }
            .pick(values.clone(), "configmap")
        };
        assert_eq!(pick(&[item("k")], false).unwrap()["p"].mode, 0o600);
        assert_eq!(
            pick(&[item("zz")], false).unwrap_err().to_string(),
            "configmap references non-existent config key: zz"
        );
        assert!(pick(&[item("zz")], true).unwrap().is_empty());
    }
}
