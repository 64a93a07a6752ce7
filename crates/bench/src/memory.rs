//! Memory that comes back: resident memory of `knarr up` idle, with ten thousand Services and EndpointSlices, with custom resources of many
//! definitions, and after all of it is deleted. At each stage the memory is divided into what objects hold and what the allocator holds.

mod reading;

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use http::Request;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::calibration::Basis;
use crate::process::{Knarr, LIMIT, Result, Setup};
use crate::report::{Report, Target};
use reading::Reading;

/// Services, and as many EndpointSlices.
const SERVICES: usize = 10_000;
/// So many of them are created and deleted first: what is initialized when it is first used does not grow with the objects.
const FEW: usize = 100;
/// Endpoints of each slice.
const ENDPOINTS: usize = 5;
/// CustomResourceDefinitions, each with [`OBJECTS`] custom resources.
const DEFINITIONS: usize = 40;
const OBJECTS: usize = 50;
/// Requests in progress at once.
const AT_ONCE: usize = 32;
/// Before memory is read: what is only needed during changes may go.
const REST: Duration = Duration::from_secs(20);
/// How long after a deletion memory must be back. The watch cache keeps changes for 75 to 90 s: these are in it.
const BACK: Duration = Duration::from_secs(60);
/// After that, until the watch cache keeps no change of a deletion any more, also of IPAddresses, which are deleted after their Services.
const FORGOTTEN: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "default";
const DEFINITIONS_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The measurement, with a node whose service proxy and controllers have the same objects.
pub async fn report(setup: &Setup) -> Result<Report> {
    let mut report = Report::new(
        "memory",
        format!(
            "`knarr up`, resident MB of its process: idle; {SERVICES} Services and as many EndpointSlices of {ENDPOINTS} endpoints; \
             these deleted; {DEFINITIONS} CustomResourceDefinitions with {OBJECTS} objects each, read as OpenAPI, deleted"
        ),
    );
    let mut cluster = Knarr::start_with("up", setup)?;
    let client = cluster.ready(Instant::now()).await?;
    tokio::time::sleep(REST).await;
    let mut stages = Stages::default();
    let idle = stages.read("idle", &cluster, &client).await?.resident;
    report
        .record("idle", idle, "MB", Basis::None)
        .target(Target::AtMost(60.0))
        .kubernetes(576.0);

    let few: Vec<(String, Value)> = (0..FEW).flat_map(service).collect();
    let paths = few.iter().map(|(collection, object)| path(collection, object));
    let paths = paths.collect();
    create_all(&client, few).await?;
    delete_all(&client, paths).await?;
    stages
        .read_after(REST, "after a hundred, deleted", &cluster, &client)
        .await?;

    let objects: Vec<(String, Value)> = (0..SERVICES).flat_map(service).collect();
    create_all(&client, objects).await?;
    tokio::time::sleep(REST).await;
    let full = "with Services and EndpointSlices";
    let reading = stages.read(full, &cluster, &client).await?;
    let mut encoded = 0;
    let mut paths = Vec::new();
    for collection in &collections() {
        for item in &list(&client, collection).await? {
            encoded += item.to_string().len();
            paths.push(path(collection, item));
        }
    }
    report.record(full, reading.resident, "MB", Basis::None);
    report
        .record(
            "an object over its JSON",
            ((reading.resident - idle) * 1e6 - encoded as f64) / paths.len() as f64 / 1e3,
            "KB",
            Basis::None,
        )
        .target(Target::AtMost(4.0));
    delete_all(&client, paths).await?;
    let after = "a minute after their deletion";
    let back = stages.read_after(BACK, after, &cluster, &client).await?;
    record_back(&mut report, idle, back, [after, "of idle"]);
    let later = "without their changes";
    let back = stages.read_after(FORGOTTEN, later, &cluster, &client).await?;
    record_held(&mut report, back, later);

    custom_resources(&client).await?;
    let after = "a minute after custom resources";
    let back = stages.read_after(BACK, after, &cluster, &client).await?;
    record_back(
        &mut report,
        idle,
        back,
        [after, "of idle, after custom resources"],
    );
    let later = "without changes of custom resources";
    let back = stages.read_after(FORGOTTEN, later, &cluster, &client).await?;
    record_held(&mut report, back, later);
    eprintln!("\n{}", reading::table(&stages.0));
    Ok(report)
}

/// What was read at each stage.
#[derive(Default)]
struct Stages(Vec<(&'static str, Reading)>);

impl Stages {
    async fn read(&mut self, stage: &'static str, cluster: &Knarr, client: &kube::Client) -> Result<Reading> {
        let reading = Reading::now(cluster, client).await?;
        self.0.push((stage, reading));
        Ok(reading)
    }

    async fn read_after(
        &mut self,
        wait: Duration,
        stage: &'static str,
        cluster: &Knarr,
        client: &kube::Client,
    ) -> Result<Reading> {
        tokio::time::sleep(wait).await;
        self.read(stage, cluster, client).await
    }
}

/// Records memory that must be back under the first name, and its ratio to idle memory under the second.
fn record_back(report: &mut Report, idle: f64, back: Reading, [after, of_idle]: [&str; 2]) {
    record_held(report, back, after);
    report
        .record(of_idle, back.resident / idle, "x", Basis::None)
        .target(Target::AtMost(1.3));
}

/// Records resident memory, and how much of it the program holds.
fn record_held(report: &mut Report, reading: Reading, stage: &str) {
    report.record(stage, reading.resident, "MB", Basis::None);
    report.record(
        format!("{stage}: held by objects"),
        reading.metrics.allocated,
        "MB",
        Basis::None,
    );
}

/// The collections of EndpointSlices and Services.
fn collections() -> [String; 2] {
    [
        format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        format!("/api/v1/namespaces/{NAMESPACE}/services"),
    ]
}

fn path(collection: &str, object: &Value) -> String {
    format!(
        "{collection}/{}",
        object["metadata"]["name"].as_str().unwrap_or("")
    )
}

/// A Service without a selector and its EndpointSlice, each with the collection that it is created in.
fn service(n: usize) -> [(String, Value); 2] {
    let [slices, services] = collections();
    let name = format!("memory-{n:05}");
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|e| {
            json!({
                "addresses": [format!("10.{}.{}.{}", 200 + e, n / 250, 1 + n % 250)],
                "conditions": {"ready": true}, "nodeName": format!("node-{e}"),
            })
        })
        .collect();
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    [
        (
            services,
            json!({"metadata": {"name": name}, "spec": {"ports": ports}}),
        ),
        (
            slices,
            json!({
                "metadata": {"name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
            }),
        ),
    ]
}

async fn create_all(client: &kube::Client, objects: Vec<(String, Value)>) -> Result<()> {
    let requests = objects.into_iter().map(|(collection, object)| async move {
        let request = Request::post(collection)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        client.request::<Value>(request).await?;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    futures::stream::iter(requests)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn list(client: &kube::Client, collection: &str) -> Result<Vec<Value>> {
    let mut list: Value = client.request(Request::get(collection).body(Vec::new())?).await?;
    Ok(match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    })
}

async fn delete_all(client: &kube::Client, paths: Vec<String>) -> Result<()> {
    let requests = paths.into_iter().map(|path| async move {
        match client
            .request::<Value>(Request::delete(path).body(Vec::new())?)
            .await
        {
            // A Service's slices may be deleted by their controller.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            result => result.map(drop),
        }
        .map_err(Box::<dyn std::error::Error>::from)
    });
    futures::stream::iter(requests)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Creates definitions and objects of them, reads the published OpenAPI, and deletes the definitions, which deletes the objects.
async fn custom_resources(client: &kube::Client) -> Result<()> {
    let definitions = (0..DEFINITIONS).map(|n| (DEFINITIONS_PATH.to_string(), definition(n)));
    create_all(client, definitions.collect()).await?;
    let begin = Instant::now();
    for n in 0..DEFINITIONS {
        while !is_established(client, n).await? {
            if begin.elapsed() > LIMIT {
                return Err(format!("definition {n} is not established").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let objects = (0..DEFINITIONS * OBJECTS).map(|i| {
        let n = i % DEFINITIONS;
        let object = json!({
            "apiVersion": format!("{}/v1", group(n)), "kind": "Thing",
            "metadata": {"name": format!("thing-{i}")},
            "spec": {"replicas": i, "settings": {"a": "1", "b": "2"}},
        });
        (
            format!("/apis/{}/v1/namespaces/{NAMESPACE}/things", group(n)),
            object,
        )
    });
    create_all(client, objects.collect()).await?;
    for path in ["/openapi/v2", "/openapi/v3/api/v1"] {
        client.request_text(Request::get(path).body(Vec::new())?).await?;
    }
    let paths = (0..DEFINITIONS).map(|n| format!("{DEFINITIONS_PATH}/things.{}", group(n)));
    delete_all(client, paths.collect()).await?;
    let begin = Instant::now();
    while !list(client, DEFINITIONS_PATH)
        .await?
        .iter()
        .all(|d| d["spec"]["group"].as_str().is_none_or(|g| !g.ends_with(GROUPS)))
    {
        if begin.elapsed() > LIMIT {
            return Err("the definitions are not deleted".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

const GROUPS: &str = ".memory.example.com";

fn group(n: usize) -> String {
    format!("g{n}{GROUPS}")
}

fn definition(n: usize) -> Value {
    let settings = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let spec =
        json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "settings": settings}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{}", group(n))},
        "spec": {
            "group": group(n), "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

async fn is_established(client: &kube::Client, n: usize) -> Result<bool> {
    let path = format!("{DEFINITIONS_PATH}/things.{}", group(n));
    let definition: Value = client.request(Request::get(path).body(Vec::new())?).await?;
    let conditions = definition["status"]["conditions"].as_array();
    Ok(conditions
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Established" && c["status"] == "True"))
}
