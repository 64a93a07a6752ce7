//! A cluster's objects as `knarr why`, `knarr whatif` and `knarr net` look at them: read from the API, or from files that
//! `kubectl get -o json` wrote. Nothing is ever written.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use futures::future::join_all;
use knarr_api::{Kind, Object, registry};
use knarr_client::{Api, Clock, ListOptions, SystemClock};
use knarr_scheduler::whatif::Picture;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Failure, cluster};
use crate::config::Config;

/// What scheduling looks at. Without the first two there is nothing to say.
const KINDS: [&Kind; 22] = [
    &registry::NODE,
    &registry::POD,
    &registry::NAMESPACE,
    &registry::PRIORITY_CLASS,
    &registry::SERVICE,
    &registry::DEPLOYMENT,
    &registry::REPLICA_SET,
    &registry::STATEFUL_SET,
    &registry::REPLICATION_CONTROLLER,
    &registry::JOB,
    &registry::POD_DISRUPTION_BUDGET,
    &registry::PERSISTENT_VOLUME_CLAIM,
    &registry::PERSISTENT_VOLUME,
    &registry::STORAGE_CLASS,
    &registry::CSI_NODE,
    &registry::CSI_DRIVER,
    &registry::CSI_STORAGE_CAPACITY,
    &registry::VOLUME_ATTACHMENT,
    &registry::RESOURCE_CLAIM,
    &registry::RESOURCE_SLICE,
    &registry::DEVICE_CLASS,
    &registry::DAEMON_SET,
];
const NEEDED: usize = 2;

/// Which objects a question is about.
pub struct Wanted<'a> {
    pub kinds: &'a [&'a Kind],
    /// Without those of the first so many kinds there is no answer; of the others those that cannot be listed are left
    /// out, with a line about it.
    pub needed: usize,
    /// Kinds of which only one namespace's objects matter.
    pub only_in: &'a [(&'a Kind, &'a str)],
}

#[derive(Args, Clone, Debug, Default)]
pub struct Source {
    /// Namespace of what is named.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Look at objects that `kubectl get KINDS -A -o json` wrote, instead of at a live cluster. `-` reads standard input;
    /// given more than once, all files are one cluster.
    #[arg(long, value_name = "FILE")]
    pub from: Vec<PathBuf>,
}

impl Source {
    /// The cluster to imagine things in.
    pub async fn picture(&self, config: &Config, kubeconfig_named: bool) -> Result<Picture, Failure> {
        let wanted = Wanted {
            kinds: &KINDS,
            needed: NEEDED,
            only_in: &[],
        };
        let objects = self.objects(config, kubeconfig_named, &wanted).await?;
        let now = SystemClock.now();
        Ok(Picture::new(config.scheduler.scheduler(), &objects, now))
    }

    /// All objects that are wanted.
    pub async fn objects(
        &self,
        config: &Config,
        kubeconfig_named: bool,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Arc<Object>>, Failure> {
        if self.from.is_empty() {
            return live(config, kubeconfig_named, wanted).await;
        }
        let mut all = Vec::new();
        for file in &self.from {
            all.extend(read(&file.display().to_string(), &text(file)?, wanted.kinds)?);
        }
        Ok(all)
    }
}

/// The kubeconfig that a flag or the environment names for knarr, else the one kubectl would use, else knarr's own.
fn kubeconfig(config: &Config, named: bool) -> PathBuf {
    let kubectls = env::var_os("KUBECONFIG").filter(|_| !named);
    let first = kubectls.and_then(|paths| env::split_paths(&paths).find(|p| p.exists()));
    first.unwrap_or_else(|| config.kubeconfig.clone())
}

async fn live(
    config: &Config,
    kubeconfig_named: bool,
    wanted: &Wanted<'_>,
) -> Result<Vec<Arc<Object>>, Failure> {
    let kinds = wanted.kinds;
    let api = cluster::remote(&kubeconfig(config, kubeconfig_named)).await?;
    let lists = kinds.iter().map(|kind| {
        let only_in = wanted.only_in.iter().find(|(of, _)| of == kind);
        let options = ListOptions {
            namespace: only_in.map_or_else(String::new, |(_, namespace)| (*namespace).into()),
            ..ListOptions::default()
        };
        api.list(kind, options)
    });
    let mut all = Vec::new();
    for (i, (kind, list)) in kinds.iter().zip(join_all(lists).await).enumerate() {
        match list {
            Ok(list) => all.extend(list.items),
            Err(error) if i < wanted.needed => {
                let what = format!("cannot list {} at {}", kind.plural(), api.server());
                return Err(Failure::new(what).because(error));
            }
            Err(error) => eprintln!(
                "knarr: the answer leaves {} out, which cannot be listed: {error}",
                kind.plural()
            ),
        }
    }
    Ok(all)
}

fn text(file: &Path) -> Result<String, Failure> {
    let cannot = |e| Failure::new(format!("cannot read {}", file.display())).because(e);
    if file.as_os_str() != "-" {
        return std::fs::read_to_string(file).map_err(cannot);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}

/// An object, or a list of them: what is in it is read when it is known what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// All objects of a text. One that cannot be read is passed over, with a line about it; a text that is no JSON is not.
fn read(file: &str, text: &str, kinds: &[&Kind]) -> Result<Vec<Arc<Object>>, Failure> {
    let mut all = Vec::new();
    let documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    for document in documents {
        let document = document.map_err(|e| Failure::new(format!("{file} is not JSON")).because(e))?;
        read_document(file, document, None, kinds, &mut all)?;
    }
    if all.is_empty() {
        return Err(Failure::new(format!(
            "{file} holds no objects; expected what `kubectl get nodes,pods,… -A -o json` writes"
        )));
    }
    Ok(all)
}

/// `of`: what the list says of its items, for those that do not say it themselves.
fn read_document(
    file: &str,
    document: &RawValue,
    of: Option<(&str, &str)>,
    kinds: &[&Kind],
    all: &mut Vec<Arc<Object>>,
) -> Result<(), Failure> {
    let written: Written = serde_json::from_str(document.get())
        .map_err(|e| Failure::new(format!("{file} holds something that is no object")).because(e))?;
    if let Some(items) = written.items {
        let of = written
            .kind
            .strip_suffix("List")
            .map(|kind| (&*written.api_version, kind));
        for item in items {
            read_document(file, item, of, kinds, all)?;
        }
        return Ok(());
    }
    let (api_version, kind) = match of {
        Some(of) if written.kind.is_empty() => of,
        _ => (&*written.api_version, &*written.kind),
    };
    // Other kinds than those that are asked for may well be in a dump.
    let Some(kind) = registry::by_kind(api_version, kind).filter(|k| kinds.contains(k)) else {
        return Ok(());
    };
    match kind.ops.decode(document.get().as_bytes()) {
        Ok(decoded) => all.push(Arc::new(Object::from_typed(kind, decoded.object))),
        Err(error) => eprintln!("knarr: {file}: a {} is passed over: {error}", kind.kind()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let objects = read("dump", text, &KINDS).unwrap_or_default();
        let name = |o: &Arc<Object>| format!("{}/{}", o.kind().kind(), o.name());
        objects.iter().map(name).collect()
    }

    #[test]
    fn b2_a_dump_is_a_list_or_lists_or_objects_and_what_cannot_be_read_is_passed_over() {
        let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[]}}"#;
        let broken = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":7}}"#;
        let other = r#"{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"t"}}"#;
        let list = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{node},{broken},{other},{pod}]}}"#);
        assert_eq!(names(&list), ["Node/n", "Pod/p"]);
        assert_eq!(
            names(&format!("{node}\n{pod}")),
            ["Node/n", "Pod/p"],
            "one after another"
        );
        let raw = r#"{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n"}}]}"#;
        assert_eq!(
            names(raw),
            ["Node/n"],
            "items that leave it to their list what they are"
        );
    }

    #[test]
    fn b2_a_dump_of_nothing_or_of_no_json_says_what_was_expected() {
        let said = |text| read("dump", text, &KINDS).map(|_| ()).unwrap_err().to_string();
        assert!(
            said("nodes: []").starts_with("dump is not JSON"),
            "{}",
            said("nodes: []")
        );
        let empty = r#"{"apiVersion":"v1","kind":"List","items":[]}"#;
        assert!(said(empty).contains("kubectl get nodes,pods"), "{}", said(empty));
    }
}
