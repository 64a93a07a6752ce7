//! A cluster's objects as `knarr why`, `knarr whatif`, `knarr plan` and `knarr net` read them: from the API, or from files
//! that `kubectl get -o json` wrote. Nothing is written.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use clap::Args;
use futures::future::join_all;
use knarr_api::{Kind, Object, registry};
use knarr_client::remote::RemoteApi;
use knarr_client::{Api, Clock, ListOptions, SystemClock};
use knarr_control::topology_domains_kinds::TopologyDomains;
use knarr_scheduler::whatif::Snapshot;
use serde::Deserialize;
use serde_json::Value;
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
static SCHEDULING_KINDS: LazyLock<Vec<&'static Kind>> =
    LazyLock::new(|| KINDS.into_iter().chain([TopologyDomains::kind()]).collect());

/// The objects that scheduling depends on, and these documents.
pub fn scheduling(documents: &[DocumentKind]) -> ObjectSelection<'_> {
    ObjectSelection {
        kinds: &SCHEDULING_KINDS,
        required: REQUIRED,
        only_in: &[],
        documents,
    }
}

/// Which objects a command reads.
pub struct ObjectSelection<'a> {
    pub kinds: &'a [&'a Kind],
    /// How many of the first kinds are required. Of the others those that cannot be listed are left out, with a warning.
    pub required: usize,
    /// Kinds of which only the objects of one namespace are read.
    pub only_in: &'a [(&'a Kind, &'a str)],
    /// What the command reads in addition: a file may have objects of these kinds only.
    pub documents: &'a [DocumentKind],
}

/// A kind whose objects are read as JSON: a custom resource, or metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentKind {
    pub api_version: &'static str,
    pub kind: &'static str,
    /// Where the API has the list of all namespaces.
    pub path: &'static str,
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
        let objects = self.objects(config, kubeconfig_named, &scheduling(&[])).await?;
        let now = SystemClock.now();
        let snapshot = Snapshot::new(config.scheduler.scheduler(), &objects, now);
        Ok(snapshot.with_scale_down_policy(config.scale_down_policy))
    }

    /// All selected objects.
    pub async fn objects(
        &self,
        config: &Config,
        kubeconfig_named: bool,
        selection: &ObjectSelection<'_>,
    ) -> Result<Vec<Arc<Object>>, Failure> {
        let reader = ObjectReader::open(&self.from, config, kubeconfig_named).await?;
        reader.objects(selection).await
    }
}

/// Reads the objects of one cluster, several times if need be.
pub enum ObjectReader {
    Live(RemoteApi),
    Files(Vec<Dump>),
}

/// A file with objects.
pub struct Dump {
    /// As the user named it.
    pub file: String,
    pub text: String,
}

impl ObjectReader {
    /// Without files it is the cluster of the kubeconfig.
    pub async fn open(from: &[PathBuf], config: &Config, kubeconfig_named: bool) -> Result<Self, Failure> {
        if from.is_empty() {
            let api = cluster::remote(&kubeconfig(config, kubeconfig_named)).await?;
            return Ok(ObjectReader::Live(api));
        }
        let dump = |path: &PathBuf| -> Result<Dump, Failure> {
            let text = text(path)?;
            let file = path.display().to_string();
            Ok(Dump { file, text })
        };
        Ok(ObjectReader::Files(
            from.iter().map(dump).collect::<Result<_, _>>()?,
        ))
    }

    /// All selected objects.
    pub async fn objects(&self, selection: &ObjectSelection<'_>) -> Result<Vec<Arc<Object>>, Failure> {
        match self {
            ObjectReader::Live(api) => list_live(api, selection).await,
            ObjectReader::Files(dumps) => {
                let mut all = Vec::new();
                for dump in dumps {
                    all.extend(read(dump, selection)?);
                }
                Ok(all)
            }
        }
    }

    /// All objects of a kind as they are; none if the API does not serve the kind.
    pub async fn documents(&self, kind: &DocumentKind) -> Result<Vec<Value>, Failure> {
        let dumps = match self {
            ObjectReader::Files(dumps) => dumps,
            ObjectReader::Live(api) => {
                return match api.get_raw(kind.path).await {
                    Ok(list) => Ok(list
                        .get("items")
                        .and_then(Value::as_array)
                        .cloned()
                        .unwrap_or_default()),
                    Err(error) if error.code() == 404 => Ok(Vec::new()),
                    Err(error) => {
                        let what = format!("cannot read {} from {}", kind.path, api.server());
                        Err(Failure::new(what).because(error))
                    }
                };
            }
        };
        let mut all = Vec::new();
        for dump in dumps {
            for_each(dump, &mut |found| {
                if found.is(kind) {
                    let value = serde_json::from_str::<Value>(found.json.get());
                    all.push(value.map_err(|e| not_json(dump, e))?);
                }
                Ok(())
            })?;
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

async fn list_live(api: &RemoteApi, selection: &ObjectSelection<'_>) -> Result<Vec<Arc<Object>>, Failure> {
    let kinds = selection.kinds;
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

/// The content of a file; `-` is standard input.
pub fn text(file: &Path) -> Result<String, Failure> {
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

/// An object of a file, before its content is decoded.
struct Found<'a> {
    api_version: &'a str,
    kind: &'a str,
    json: &'a RawValue,
}

impl Found<'_> {
    fn is(&self, kind: &DocumentKind) -> bool {
        self.api_version == kind.api_version && self.kind == kind.kind
    }
}

/// All selected objects of a file. An object that cannot be decoded is skipped, with a warning; a text that is not JSON is an
/// error.
fn read(dump: &Dump, selection: &ObjectSelection<'_>) -> Result<Vec<Arc<Object>>, Failure> {
    let file = &dump.file;
    let mut all = Vec::new();
    let mut documents = 0;
    for_each(dump, &mut |found| {
        documents += usize::from(selection.documents.iter().any(|kind| found.is(kind)));
        // A file may have objects of other kinds than the selected ones.
        let is_found = |kind: &&&Kind| kind.kind() == found.kind && kind.api_version() == found.api_version;
        let kind = registry::by_kind(found.api_version, found.kind).filter(|k| selection.kinds.contains(k));
        let Some(kind) = kind.or_else(|| selection.kinds.iter().find(is_found).copied()) else {
            return Ok(());
        };
        match kind.ops.decode(found.json.get().as_bytes()) {
            Ok(decoded) => all.push(Arc::new(Object::from_typed(kind, decoded.object))),
            Err(error) => eprintln!("knarr: warning: {file}: skipping a {}: {error}", kind.kind()),
        }
        Ok(())
    })?;
    if all.is_empty() && documents == 0 {
        return Err(Failure::new(format!(
            "{file} has no objects: expected the output of `kubectl get nodes,pods,… -A -o json`"
        )));
    }
    Ok(all)
}

fn not_json(dump: &Dump, error: serde_json::Error) -> Failure {
    Failure::new(format!("{} is not valid JSON", dump.file)).because(error)
}

/// Calls a function with each object of a file, those of lists included.
fn for_each(dump: &Dump, each: &mut dyn FnMut(&Found<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
    let documents = serde_json::Deserializer::from_str(&dump.text).into_iter::<&RawValue>();
    for document in documents {
        for_each_of(dump, document.map_err(|e| not_json(dump, e))?, None, each)?;
    }
    Ok(())
}

/// `of`: apiVersion and kind of the items of a list, for items that have none themselves.
fn for_each_of(
    dump: &Dump,
    document: &RawValue,
    of: Option<(&str, &str)>,
    each: &mut dyn FnMut(&Found<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let header: Document = serde_json::from_str(document.get()).map_err(|e| {
        Failure::new(format!("{} has a JSON document that is not an object", dump.file)).because(e)
    })?;
    if let Some(items) = header.items {
        let of = header
            .kind
            .strip_suffix("List")
            .map(|kind| (&*header.api_version, kind));
        for item in items {
            for_each_of(dump, item, of, each)?;
        }
        return Ok(());
    }
    let (api_version, kind) = match of {
        Some(of) if header.kind.is_empty() => of,
        _ => (&*header.api_version, &*header.kind),
    };
    each(&Found {
        api_version,
        kind,
        json: document,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: DocumentKind = DocumentKind {
        api_version: "metrics.k8s.io/v1beta1",
        kind: "NodeMetrics",
        path: "",
    };

    fn dump(text: &str) -> Dump {
        Dump {
            file: "dump".into(),
            text: text.into(),
        }
    }

    fn names(text: &str) -> Vec<String> {
        let objects = read(&dump(text), &scheduling(&[])).unwrap_or_default();
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
        let objects = read(&dump(domains), &scheduling(&[])).unwrap();
        assert_eq!(objects.len(), 1);
        let read = TopologyDomains::of(&objects[0]).unwrap();
        assert_eq!(read.spec.topology_key, "zone");
        let newer = domains.replace("v1alpha1", "v1");
        assert!(
            super::read(&dump(&newer), &scheduling(&[])).is_err(),
            "another version is another kind"
        );
    }

    #[test]
    fn b2_an_empty_dump_or_one_that_is_not_json_is_an_error_with_what_was_expected() {
        let error = |text| {
            let read = read(&dump(text), &scheduling(&[]));
            read.map(|_| ()).unwrap_err().to_string()
        };
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

    #[tokio::test]
    async fn b3_documents_of_other_kinds_are_read_as_they_are_and_may_have_a_file_of_their_own() {
        let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
        let metrics = r#"{"apiVersion":"metrics.k8s.io/v1beta1","kind":"NodeMetricsList","items":[{"metadata":{"name":"n"},"usage":{"cpu":"1"}}]}"#;
        let selection = scheduling(&[METRICS]);
        let reader = ObjectReader::Files(vec![dump(node), dump(metrics)]);
        assert_eq!(reader.objects(&selection).await.unwrap().len(), 1);
        let found = reader.documents(&METRICS).await.unwrap();
        let usages: Vec<&Value> = found.iter().map(|found| &found["usage"]["cpu"]).collect();
        assert_eq!(usages, ["1"]);
        assert!(
            reader.objects(&scheduling(&[])).await.is_err(),
            "the second file has nothing that is read"
        );
    }
}
