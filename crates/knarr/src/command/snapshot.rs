//! A cluster's objects as `knarr why`, `knarr whatif` and `knarr net` read them: from the API, or from files that
//! `kubectl get -o json` wrote. Nothing is written.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use futures::future::join_all;
use knarr_api::{Kind, Object, registry};
use knarr_client::{Api, Clock, ListOptions, SystemClock};
use knarr_control::topology_domains_kinds::TopologyDomains;
use knarr_scheduler::whatif::Snapshot;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Failure, cluster};
use crate::config::Config;

/// The kinds that scheduling depends on. The first two are required.
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
const REQUIRED: usize = 2;

/// The same, and knarr's own.
fn kinds() -> Vec<&'static Kind> {
    KINDS.into_iter().chain([TopologyDomains::kind()]).collect()
}

/// Which objects a command reads.
pub struct ObjectSelection<'a> {
    pub kinds: &'a [&'a Kind],
    /// How many of the first kinds are required. Of the others those that cannot be listed are left out, with a warning.
    pub required: usize,
    /// Kinds of which only the objects of one namespace are read.
    pub only_in: &'a [(&'a Kind, &'a str)],
}

#[derive(Args, Clone, Debug, Default)]
pub struct Source {
    /// Namespace of the named object.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Read the objects from a file that `kubectl get KINDS -A -o json` wrote, instead of from the live cluster. `-` reads
    /// standard input; if given more than once, the objects of all files form one cluster.
    #[arg(long, value_name = "FILE")]
    pub from: Vec<PathBuf>,
}

impl Source {
    /// The snapshot that scheduling is computed on.
    pub async fn snapshot(&self, config: &Config, kubeconfig_named: bool) -> Result<Snapshot, Failure> {
        let kinds = kinds();
        let selection = ObjectSelection {
            kinds: &kinds,
            required: REQUIRED,
            only_in: &[],
        };
        let objects = self.objects(config, kubeconfig_named, &selection).await?;
        let now = SystemClock.now();
        Ok(Snapshot::new(config.scheduler.scheduler(), &objects, now))
    }

    /// All selected objects.
    pub async fn objects(
        &self,
        config: &Config,
        kubeconfig_named: bool,
        selection: &ObjectSelection<'_>,
    ) -> Result<Vec<Arc<Object>>, Failure> {
        if self.from.is_empty() {
            return list_live(config, kubeconfig_named, selection).await;
        }
        let mut all = Vec::new();
        for file in &self.from {
            all.extend(read(&file.display().to_string(), &text(file)?, selection.kinds)?);
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

async fn list_live(
    config: &Config,
    kubeconfig_named: bool,
    selection: &ObjectSelection<'_>,
) -> Result<Vec<Arc<Object>>, Failure> {
    let kinds = selection.kinds;
    let api = cluster::remote(&kubeconfig(config, kubeconfig_named)).await?;
    let lists = kinds.iter().map(|kind| {
        let only_in = selection.only_in.iter().find(|(of, _)| of == kind);
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
            Err(error) if i < selection.required => {
                let what = format!("cannot list {} from {}", kind.plural(), api.server());
                return Err(Failure::new(what).because(error));
            }
            // Another Kubernetes does not have knarr's kinds.
            Err(error) if error.is_not_found() && kind.ops.custom().is_some() => {}
            Err(error) => eprintln!(
                "knarr: warning: cannot list {}, they are left out: {error}",
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

/// An object, or a list of them: the content is decoded when the kind is known.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// All objects of a text. An object that cannot be decoded is skipped, with a warning; a text that is not JSON is an error.
fn read(file: &str, text: &str, kinds: &[&Kind]) -> Result<Vec<Arc<Object>>, Failure> {
    let mut all = Vec::new();
    let documents = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    for document in documents {
        let document = document.map_err(|e| Failure::new(format!("{file} is not valid JSON")).because(e))?;
        read_document(file, document, None, kinds, &mut all)?;
    }
    if all.is_empty() {
        return Err(Failure::new(format!(
            "{file} has no objects: expected the output of `kubectl get nodes,pods,… -A -o json`"
        )));
    }
    Ok(all)
}

/// `of`: apiVersion and kind of the items of a list, for items that have none themselves.
fn read_document(
    file: &str,
    document: &RawValue,
    of: Option<(&str, &str)>,
    kinds: &[&Kind],
    all: &mut Vec<Arc<Object>>,
) -> Result<(), Failure> {
    let header: Document = serde_json::from_str(document.get())
        .map_err(|e| Failure::new(format!("{file} has a JSON document that is not an object")).because(e))?;
    if let Some(items) = header.items {
        let of = header
            .kind
            .strip_suffix("List")
            .map(|kind| (&*header.api_version, kind));
        for item in items {
            read_document(file, item, of, kinds, all)?;
        }
        return Ok(());
    }
    let (api_version, kind) = match of {
        Some(of) if header.kind.is_empty() => of,
        _ => (&*header.api_version, &*header.kind),
    };
    // A dump may have objects of other kinds than the selected ones.
    let is_named = |k: &&&Kind| k.kind() == kind && k.api_version() == api_version;
    let named: Option<&Kind> = registry::by_kind(api_version, kind).filter(|k| kinds.contains(k));
    let Some(kind) = named.or_else(|| kinds.iter().find(is_named).copied()) else {
        return Ok(());
    };
    match kind.ops.decode(document.get().as_bytes()) {
        Ok(decoded) => all.push(Arc::new(Object::from_typed(kind, decoded.object))),
        Err(error) => eprintln!("knarr: warning: {file}: skipping a {}: {error}", kind.kind()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let objects = read("dump", text, &kinds()).unwrap_or_default();
        let name = |o: &Arc<Object>| format!("{}/{}", o.kind().kind(), o.name());
        objects.iter().map(name).collect()
    }

    #[test]
    fn b2_a_dump_is_a_list_or_lists_or_objects_and_invalid_objects_are_skipped() {
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
            "items without apiVersion and kind have those of their list"
        );
    }

    #[test]
    fn b3_a_dump_may_have_topology_domains() {
        let domains = r#"{"apiVersion":"placement.knarr.io/v1alpha1","kind":"TopologyDomains","metadata":{"name":"z"},
            "spec":{"topologyKey":"zone"}}"#;
        let objects = read("dump", domains, &kinds()).unwrap();
        assert_eq!(objects.len(), 1);
        let read = TopologyDomains::of(&objects[0]).unwrap();
        assert_eq!(read.spec.topology_key, "zone");
        let newer = domains.replace("v1alpha1", "v1");
        assert!(
            super::read("dump", &newer, &kinds()).is_err(),
            "another version is another kind"
        );
    }

    #[test]
    fn b2_an_empty_dump_or_one_that_is_not_json_is_an_error_with_what_was_expected() {
        let error = |text| read("dump", text, &kinds()).map(|_| ()).unwrap_err().to_string();
        assert!(
            error("nodes: []").starts_with("dump is not valid JSON"),
            "{}",
            error("nodes: []")
        );
        let empty = r#"{"apiVersion":"v1","kind":"List","items":[]}"#;
        assert!(
            error(empty).contains("kubectl get nodes,pods"),
            "{}",
            error(empty)
        );
    }
}
