//! An operator as its author would write it with kube-rs: a CustomResourceDefinition of Rust types, a controller with a
//! finalizer, dependents by server-side apply, a status; and the cluster around it: garbage collection with all three
//! propagation policies, conflicts over the scale, validation rules, deletion of a namespace and of the definition.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace as KubeNamespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, PropagationPolicy,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::crd::CustomResourceExt;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Client, CustomResource, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Outcome;
use crate::cluster::{LIMIT, Namespace, Scenario, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[("an_operator_reconciles_custom_resources", lifecycle)];

const FINALIZER: &str = "e2e.knarr.io/farewell";
const DEFINITION: &str = "greetings.e2e.knarr.io";

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "e2e.knarr.io",
    version = "v1",
    kind = "Greeting",
    plural = "greetings",
    namespaced,
    status = "GreetingStatus",
    scale(spec_replicas_path = ".spec.copies", status_replicas_path = ".status.ready"),
    validation = Rule::new("self.spec.copies <= 5").message("at most five copies"),
    validation = Rule::new("self.spec.text == oldSelf.spec.text").message("the text stays"),
    printcolumn(name = "Copies", type_ = "integer", json_path = ".spec.copies")
)]
struct GreetingSpec {
    text: String,
    copies: i32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, JsonSchema)]
struct GreetingStatus {
    ready: i32,
}

fn lifecycle(ns: &Namespace) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(program(ns))
}

/// The operator runs in the background and is stopped at the end.
async fn program(ns: &Namespace<'_>) -> Outcome {
    let kubeconfig = Kubeconfig::read_from(ns.cluster.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .patch(
            DEFINITION,
            &PatchParams::apply("operator"),
            &Patch::Apply(Greeting::crd()),
        )
        .await?;
    let established = await_condition(definitions.clone(), DEFINITION, conditions::is_crd_established());
    timeout(LIMIT, established).await??;

    let operator = tokio::spawn(operate(client.clone()));
    let outcome = story(ns, client).await;
    let alive = !operator.is_finished();
    operator.abort();
    outcome?;
    same(&format!("alive: {alive}"), "alive: true")?;

    // With the definition all its custom resources are deleted; no finalizer holds them any more.
    let crd = definitions.get(DEFINITION).await?;
    definitions.delete(DEFINITION, &DeleteParams::default()).await?;
    let uid = crd.uid().unwrap_or_default();
    let deleted = await_condition(definitions, DEFINITION, conditions::is_deleted(&uid));
    timeout(LIMIT, deleted).await??;
    Ok(())
}

async fn operate(client: Client) {
    let greetings: Api<Greeting> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::all(client.clone());
    let running = Controller::new(greetings, watcher::Config::default())
        .owns(maps, watcher::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(200)),
            Arc::new(client),
        );
    running.for_each(|_| std::future::ready(())).await;
}

async fn reconcile(
    greeting: Arc<Greeting>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let namespace = greeting.namespace().unwrap_or_default();
    let greetings: Api<Greeting> = Api::namespaced((*client).clone(), &namespace);
    finalizer(&greetings, FINALIZER, greeting, |event| async {
        match event {
            Event::Apply(greeting) => greet(&client, &namespace, &greeting).await,
            Event::Cleanup(greeting) => farewell(&client, &namespace, &greeting).await,
        }
    })
    .await
}

/// One ConfigMap for each copy, and their number in the status.
async fn greet(client: &Client, namespace: &str, greeting: &Greeting) -> Result<Action, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mine = PatchParams::apply("greeter").force();
    for n in 0..greeting.spec.copies {
        let name = format!("{}-{n}", greeting.name_any());
        let owner: Option<OwnerReference> = greeting.controller_owner_ref(&());
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                owner_references: owner.map(|o| vec![o]),
                labels: Some(BTreeMap::from([("of".to_string(), greeting.name_any())])),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([("text".to_string(), greeting.spec.text.clone())])),
            ..ConfigMap::default()
        };
        maps.patch(&name, &mine, &Patch::Apply(map)).await?;
    }
    let greetings: Api<Greeting> = Api::namespaced(client.clone(), namespace);
    let status = json!({"apiVersion": "e2e.knarr.io/v1", "kind": "Greeting", "status": {"ready": greeting.spec.copies}});
    greetings
        .patch_status(&greeting.name_any(), &mine, &Patch::Apply(status))
        .await?;
    Ok(Action::await_change())
}

/// Creates a ConfigMap, which shows that the finalizer ran.
async fn farewell(client: &Client, namespace: &str, greeting: &Greeting) -> Result<Action, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let note = json!({"metadata": {"name": format!("farewell-{}", greeting.name_any())}});
    let note = serde_json::from_value(note).map_err(kube::Error::SerdeError)?;
    match maps.create(&PostParams::default(), &note).await {
        // It ran before, or its namespace is terminating, too.
        Err(kube::Error::Api(e)) if matches!(e.code, 403 | 409) => {}
        other => drop(other?),
    }
    Ok(Action::await_change())
}

fn greeting(name: &str, copies: i32) -> Greeting {
    Greeting::new(
        name,
        GreetingSpec {
            text: "ahoy".into(),
            copies,
        },
    )
}

async fn story(ns: &Namespace<'_>, client: Client) -> Outcome {
    let greetings: Api<Greeting> = Api::namespaced(client.clone(), &ns.name);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &ns.name);
    let post = PostParams::default();

    // Validation rules, with the messages that users see.
    let rejected = error(greetings.create(&post, &greeting("hi", 6)).await);
    same(
        &rejected,
        "422 Greeting.e2e.knarr.io \"hi\" is invalid: <nil>: Invalid value: at most five copies",
    )?;
    greetings.create(&post, &greeting("hi", 2)).await?;
    let copies = |of: &'static str| {
        let maps = maps.clone();
        move || {
            let maps = maps.clone();
            async move {
                Ok(maps
                    .list(&ListParams::default().labels(&format!("of={of}")))
                    .await?
                    .items)
            }
        }
    };
    eventually("two copies", copies("hi"), |maps| maps.len() == 2).await?;
    let ready = || async { Ok(greetings.get("hi").await?.status.unwrap_or_default().ready) };
    eventually("the status", ready, |n| *n == 2).await?;
    let other = Patch::Merge(json!({"spec": {"text": "bye"}}));
    let rejected = error(greetings.patch("hi", &PatchParams::default(), &other).await);
    same(
        &rejected,
        "422 Greeting.e2e.knarr.io \"hi\" is invalid: <nil>: Invalid value: the text stays",
    )?;

    // The scale has a field manager, and other managers do not overwrite its fields without force.
    let scale = |n: i32| {
        Patch::Apply(
            json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "hi"}, "spec": {"replicas": n}}),
        )
    };
    let scaler = PatchParams::apply("scaler");
    let rejected = error(greetings.patch_scale("hi", &scaler, &scale(3)).await);
    same(
        &rejected,
        "409 Apply failed with 1 conflict: conflict with \"unknown\" using autoscaling/v1: .spec.replicas",
    )?;
    greetings
        .patch_scale("hi", &scaler.clone().force(), &scale(3))
        .await?;
    eventually("three copies", copies("hi"), |maps| maps.len() == 3).await?;
    let config = json!({"apiVersion": "e2e.knarr.io/v1", "kind": "Greeting", "metadata": {"name": "hi"}, "spec": {"copies": 1}});
    let rejected = error(
        greetings
            .patch("hi", &PatchParams::apply("user"), &Patch::Apply(config))
            .await,
    );
    same(
        &rejected,
        "409 Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\": .spec.copies",
    )?;
    let hi = greetings.get("hi").await?;
    let owners = |subresource: &str| {
        let all = hi.metadata.managed_fields.iter().flatten();
        let of = all.filter(|e| e.subresource.as_deref().unwrap_or("") == subresource);
        let entries: Vec<Value> = of
            .map(|e| {
                json!([
                    e.manager,
                    e.operation,
                    e.api_version,
                    e.fields_v1.as_ref().map(|f| &f.0)
                ])
            })
            .collect();
        Value::from(entries).to_string()
    };
    same(
        &owners("scale"),
        &json!([["scaler", "Apply", "e2e.knarr.io/v1", {"f:spec": {"f:copies": {}}}]]).to_string(),
    )?;
    same(
        &owners("status"),
        &json!([["greeter", "Apply", "e2e.knarr.io/v1", {"f:status": {"f:ready": {}}}]]).to_string(),
    )?;

    // In the foreground: the dependents first, then the object, and its finalizer ran.
    remove(&greetings, "hi", PropagationPolicy::Foreground).await?;
    eventually("no copies", copies("hi"), Vec::is_empty).await?;
    maps.get("farewell-hi").await?;

    // In the background: the object first.
    greetings.create(&post, &greeting("back", 1)).await?;
    eventually("a copy", copies("back"), |maps| maps.len() == 1).await?;
    remove(&greetings, "back", PropagationPolicy::Background).await?;
    eventually("no copy", copies("back"), Vec::is_empty).await?;

    // Orphans stay, without an owner. The operator does not apply this one: its apply may arrive after the owner reference was
    // removed, and add it again.
    let lost = greetings.create(&post, &greeting("lost", 0)).await?;
    let orphan = ConfigMap {
        metadata: ObjectMeta {
            name: Some("lost-0".into()),
            owner_references: lost.controller_owner_ref(&()).map(|o| vec![o]),
            labels: Some(BTreeMap::from([("of".to_string(), "lost".to_string())])),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    maps.create(&post, &orphan).await?;
    remove(&greetings, "lost", PropagationPolicy::Orphan).await?;
    let orphan = copies("lost")().await?.pop().ok_or("the orphan was deleted")?;
    same(&format!("{:?}", orphan.owner_references()), "[]")?;

    // A custom resource is deleted with its owner, a built-in object.
    let owner = maps.get("farewell-hi").await?;
    let mut owned = greeting("owned", 0);
    owned.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    greetings.create(&post, &owned).await?;
    maps.delete(&owner.name_any(), &DeleteParams::default()).await?;
    let there = || async { Ok(greetings.get_opt("owned").await?.is_some()) };
    eventually("the dependent to be deleted", there, |there| !there).await?;

    // All objects of a namespace are deleted with it.
    let namespaces: Api<KubeNamespace> = Api::all(client.clone());
    let name = format!("{}-x", ns.name);
    let made = json!({"metadata": {"name": name}});
    namespaces.create(&post, &serde_json::from_value(made)?).await?;
    let inside: Api<Greeting> = Api::namespaced(client, &name);
    inside.create(&post, &greeting("in", 1)).await?;
    namespaces.delete(&name, &DeleteParams::default()).await?;
    let there = || async { Ok(namespaces.get_opt(&name).await?.is_some()) };
    eventually("the namespace to be deleted", there, |there| !there).await
}

async fn remove(greetings: &Api<Greeting>, name: &str, how: PropagationPolicy) -> Outcome {
    let params = DeleteParams {
        propagation_policy: Some(how),
        ..DeleteParams::default()
    };
    greetings.delete(name, &params).await?;
    let there = || async { Ok(greetings.get_opt(name).await?.is_some()) };
    eventually(&format!("{name} to be deleted"), there, |there| !there).await
}

/// The code and message of an error.
fn error<T>(result: kube::Result<T>) -> String {
    match result {
        Err(kube::Error::Api(status)) => format!("{} {}", status.code, status.message),
        Err(other) => other.to_string(),
        Ok(_) => "accepted".into(),
    }
}

/// Polls until the condition holds, at most [`LIMIT`].
async fn eventually<T, F>(what: &str, mut read: impl FnMut() -> F, holds: impl Fn(&T) -> bool) -> Outcome
where
    F: Future<Output = Result<T, libtest_mimic::Failed>>,
{
    let polling = async {
        while !holds(&read().await?) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    match timeout(LIMIT, polling).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("waited {} s for {what}", LIMIT.as_secs()).into()),
    }
}
