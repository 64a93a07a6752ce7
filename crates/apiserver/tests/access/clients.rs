//! Requests of well-known clients, where their own tests do not cover them: Helm 4 (server-side apply, migrating releases of
//! Helm 3), Argo CD, and operators built with controller-runtime.

use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials};
use crate::forms::{Forms, expect_code};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn deployment(image: &str, replicas: i64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "demo", "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": "default"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "demo"}},
            "template": {"metadata": {"labels": {"app": "demo"}},
                "spec": {"containers": [{"name": "demo", "image": image}]}}}})
}

fn release(revision: u32, status: &str) -> Value {
    json!({"metadata": {"name": format!("sh.helm.release.v1.demo.v{revision}"),
            "labels": {"owner": "helm", "name": "demo", "status": status, "version": revision.to_string()}},
        "type": "helm.sh/release.v1", "data": {"release": "SDRzSUFBQUFBQUFD"}})
}

/// The field managers of an object, each with its operation.
fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let described = entries.iter().map(|m| {
        let subresource = m["subresource"]
            .as_str()
            .map(|s| format!("/{s}"))
            .unwrap_or_default();
        format!(
            "{} {}{subresource}",
            m["manager"].as_str().unwrap(),
            m["operation"].as_str().unwrap()
        )
    });
    let mut described: Vec<String> = described.collect();
    described.sort();
    described
}

/// Helm 3 made a release; Helm 4 migrates its fields, applies, conflicts with another manager's field, and forces.
#[tokio::test]
async fn helm_4_takes_over_a_release_of_helm_3() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let one = format!("{DEPLOYMENTS}/demo");
    expect_code(&mut to.json, 201, "POST", SECRETS, Some(release(1, "deployed"))).await;
    let by_three = format!("{DEPLOYMENTS}?fieldManager=helm&fieldValidation=Strict");
    expect_code(&mut to.json, 201, "POST", &by_three, Some(deployment("img:1", 1))).await;

    // The upgrade begins by creating a record of it, whose name is unique.
    expect_code(
        &mut to.json,
        201,
        "POST",
        SECRETS,
        Some(release(2, "pending-upgrade")),
    )
    .await;
    let second = expect_code(
        &mut to.json,
        409,
        "POST",
        SECRETS,
        Some(release(2, "pending-upgrade")),
    )
    .await;
    assert_eq!(second["reason"], "AlreadyExists");
    let pending =
        format!("{SECRETS}?labelSelector=name%3Ddemo%2Cowner%3Dhelm%2Cstatus+in+(pending-upgrade,deployed)");
    let found = expect_code(&mut to.json, 200, "GET", &pending, None).await;
    assert_eq!(found["items"].as_array().map(Vec::len), Some(2));

    // Migration: the fields that `helm` owns by Update become owned by Apply, if there was no write in between.
    let now = expect_code(&mut to.json, 200, "GET", &one, None).await;
    assert_eq!(managers(&now), ["helm Update"]);
    let mut taken = now["metadata"]["managedFields"].clone();
    taken[0]["operation"] = json!("Apply");
    let take = |version: &Value| {
        Some(
            json!([{"op": "replace", "path": "/metadata/managedFields", "value": taken},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version}]),
        )
    };
    let late = expect_code(&mut to.operations, 409, "PATCH", &one, take(&json!("1"))).await;
    assert_eq!(late["reason"], "Conflict");
    let version = &now["metadata"]["resourceVersion"];
    let upgraded = expect_code(&mut to.operations, 200, "PATCH", &one, take(version)).await;
    assert_eq!(managers(&upgraded), ["helm Apply"]);
    assert_eq!(upgraded["metadata"]["generation"], 1);

    // Fields that are no longer applied are removed.
    let apply = format!("{one}?fieldManager=helm&force=false&fieldValidation=Strict");
    let mut next = deployment("img:2", 1);
    let annotations = next["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("meta.helm.sh/release-name");
    let dry = format!("{apply}&dryRun=All");
    let tried = expect_code(&mut to.apply, 200, "PATCH", &dry, Some(next.clone())).await;
    let there = expect_code(&mut to.json, 200, "GET", &one, None).await;
    assert_eq!(
        tried["metadata"]["resourceVersion"],
        there["metadata"]["resourceVersion"]
    );
    let applied = expect_code(&mut to.apply, 200, "PATCH", &apply, Some(next.clone())).await;
    assert_eq!(
        applied["spec"]["template"]["spec"]["containers"][0]["image"],
        "img:2"
    );
    let left = applied["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(
        left.keys().collect::<Vec<_>>(),
        ["meta.helm.sh/release-namespace"]
    );
    assert_eq!(managers(&applied), ["helm Apply"]);

    // An autoscaler sets the replicas; Helm gets a conflict, and applies again with force.
    let scale = json!({"spec": {"replicas": 3}});
    let path = format!("{one}/scale?fieldManager=hpa");
    expect_code(&mut to.merge, 200, "PATCH", &path, Some(scale)).await;
    let rejected = expect_code(&mut to.apply, 409, "PATCH", &apply, Some(deployment("img:2", 1))).await;
    assert_eq!(rejected["reason"], "Conflict");
    let causes = rejected["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{rejected}");
    assert_eq!(
        (&causes[0]["reason"], &causes[0]["field"]),
        (&json!("FieldManagerConflict"), &json!(".spec.replicas"))
    );
    let force = format!("{one}?fieldManager=helm&force=true");
    let forced = expect_code(&mut to.apply, 200, "PATCH", &force, Some(deployment("img:2", 1))).await;
    assert_eq!(
        (&forced["spec"]["replicas"], managers(&forced)),
        (&json!(1), vec!["helm Apply".to_string()])
    );

    // An error in a chart is reported with its field path, and changes nothing.
    let mut wrong = deployment("img:3", 1);
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = json!("x");
    let rejected = expect_code(&mut to.apply, 500, "PATCH", &apply, Some(wrong)).await;
    let said = "failed to create typed patch object (/demo; apps/v1, Kind=Deployment): \
        .spec.template.spec.containers[name=\"demo\"].imagee: field not declared in schema";
    assert_eq!(rejected["message"], said);

    for (revision, status) in [(1, "superseded"), (2, "deployed")] {
        let path = format!("{SECRETS}/sh.helm.release.v1.demo.v{revision}");
        expect_code(&mut to.json, 200, "PUT", &path, Some(release(revision, status))).await;
    }
    let deployed = format!("{SECRETS}?labelSelector=name%3Ddemo%2Cowner%3Dhelm%2Cstatus%3Ddeployed");
    let found = expect_code(&mut to.json, 200, "GET", &deployed, None).await;
    assert_eq!(found["items"][0]["metadata"]["labels"]["version"], "2");
}

/// A definition as in charts: its schema is long.
fn definition(descriptions: usize) -> Value {
    let fields: serde_json::Map<String, Value> = (0..descriptions)
        .map(|i| {
            (
                format!("field{i}"),
                json!({"type": "string", "description": "long ".repeat(1000)}),
            )
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": fields},
                    "status": {"type": "object", "properties": {"observedGeneration": {"type": "integer"},
                        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                            "items": {"type": "object", "required": ["type", "status"], "properties": {
                                "type": {"type": "string"}, "status": {"type": "string"},
                                "reason": {"type": "string"}}}}}}}}}}]}})
}

/// Waits until the kind is served.
async fn served(to: &mut Forms, path: &str) {
    for n in 0.. {
        if to.json.send("GET", path, None).await.code == 200 {
            return;
        }
        assert!(n < 6000, "{path} is never served");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// A dry run, a sync by apply with a definition of a megabyte, a cache filled by pages and a watch that continues from
/// their revision, and a pruning.
#[tokio::test]
async fn argo_cd_syncs_an_application() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let by = "fieldManager=argocd-controller&force=true";
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    let large = definition(200);
    assert!(large.to_string().len() > 1_000_000);
    let made = expect_code(
        &mut to.apply,
        201,
        "PATCH",
        &format!("{crd}?{by}"),
        Some(large.clone()),
    )
    .await;
    assert_eq!(made["metadata"]["generation"], 1);
    served(&mut to, WIDGETS).await;
    let again = expect_code(&mut to.apply, 200, "PATCH", &format!("{crd}?{by}"), Some(large)).await;
    assert_eq!(again["metadata"]["generation"], 1);

    let one = format!("{DEPLOYMENTS}/demo");
    let wanted = deployment("img:1", 1);
    // The predicted object, before and after the object exists.
    let dry = format!("{one}?{by}&dryRun=All");
    let predicted = expect_code(&mut to.apply, 201, "PATCH", &dry, Some(wanted.clone())).await;
    expect_code(&mut to.json, 404, "GET", &one, None).await;
    let live = expect_code(
        &mut to.apply,
        201,
        "PATCH",
        &format!("{one}?{by}"),
        Some(wanted.clone()),
    )
    .await;
    assert_eq!(predicted["spec"], live["spec"]);
    let edit = Some(
        json!({"spec": {"template": {"spec": {"containers": [{"name": "demo", "image": "img:evil"}]}}}}),
    );
    expect_code(
        &mut to.strategic,
        200,
        "PATCH",
        &format!("{one}?fieldManager=kubectl-edit"),
        edit,
    )
    .await;
    let predicted = expect_code(&mut to.apply, 200, "PATCH", &dry, Some(wanted.clone())).await;
    assert_eq!(predicted["spec"], live["spec"]);
    let drifted = expect_code(&mut to.json, 200, "GET", &one, None).await;
    assert_ne!(drifted["spec"], live["spec"]);
    let healed = expect_code(&mut to.apply, 200, "PATCH", &format!("{one}?{by}"), Some(wanted)).await;
    assert_eq!(healed["spec"], live["spec"]);
    assert_eq!(managers(&healed), ["argocd-controller Apply"]);

    // The cache: pages of one revision, then the changes since.
    for name in ["a", "b", "c", "d", "e"] {
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": name, "annotations": {"argocd.argoproj.io/tracking-id": format!("app:{name}")}}});
        expect_code(
            &mut to.apply,
            201,
            "PATCH",
            &format!("{WIDGETS}/{name}?{by}"),
            Some(widget),
        )
        .await;
    }
    let (mut names, mut next) = (Vec::new(), String::new());
    let all = "/apis/example.com/v1/widgets";
    let revision = loop {
        let page = expect_code(
            &mut to.json,
            200,
            "GET",
            &format!("{all}?limit=2&resourceVersion=&continue={next}"),
            None,
        )
        .await;
        let items = page["items"].as_array().unwrap();
        names.extend(
            items
                .iter()
                .map(|i| i["metadata"]["name"].as_str().unwrap().to_string()),
        );
        match page["metadata"]["continue"].as_str() {
            Some(more) if !more.is_empty() => next = more.to_string(),
            _ => break page["metadata"]["resourceVersion"].as_str().unwrap().to_string(),
        }
    };
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let foreground = Some(json!({"propagationPolicy": "Foreground"}));
    let held = expect_code(&mut to.json, 200, "DELETE", &format!("{WIDGETS}/a"), foreground).await;
    assert_eq!(held["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    expect_code(&mut to.json, 200, "DELETE", &format!("{WIDGETS}/b"), None).await;
    let watch =
        format!("{all}?watch=true&allowWatchBookmarks=true&resourceVersion={revision}&timeoutSeconds=300");
    let watcher = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let events = watcher
        .events(&watch, |events| events.iter().any(|e| e["type"] == "DELETED"))
        .await;
    let types: Vec<_> = events
        .iter()
        .map(|e| (&e["type"], &e["object"]["metadata"]["name"]))
        .collect();
    assert_eq!(
        types,
        [
            (&json!("MODIFIED"), &json!("a")),
            (&json!("DELETED"), &json!("b"))
        ]
    );
}

/// Finalizers and status with optimistic locking, owners, events, a leader's Lease, and caches of metadata only.
#[tokio::test]
async fn an_operator_of_controller_runtime_reconciles() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    expect_code(&mut to.json, 201, "POST", crds, Some(definition(1))).await;
    served(&mut to, WIDGETS).await;
    let one = format!("{WIDGETS}/w");
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let made = expect_code(&mut to.json, 201, "POST", WIDGETS, Some(widget)).await;
    let locked = |object: &Value, mut patch: Value| {
        patch["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        Some(patch)
    };

    // The finalizer first; a writer with an older resourceVersion gets a conflict.
    let held = json!({"metadata": {"finalizers": ["example.com/f"]}});
    let held = expect_code(&mut to.merge, 200, "PATCH", &one, locked(&made, held)).await;
    assert_eq!(held["metadata"]["generation"], 1);
    let condition = |status: &str| json!({"status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": status, "reason": "R"}]}});
    let status = format!("{one}/status");
    let stale = expect_code(
        &mut to.merge,
        409,
        "PATCH",
        &status,
        locked(&made, condition("True")),
    )
    .await;
    assert_eq!(stale["reason"], "Conflict");
    let said = "the object has been modified; please apply your changes to the latest version and try again";
    assert!(stale["message"].as_str().unwrap().ends_with(said), "{stale}");
    let ready = expect_code(
        &mut to.merge,
        200,
        "PATCH",
        &status,
        locked(&held, condition("True")),
    )
    .await;
    assert_eq!(
        (&ready["metadata"]["generation"], &ready["spec"]["size"]),
        (&json!(1), &json!(1))
    );
    // No change, no write.
    let same = expect_code(
        &mut to.merge,
        200,
        "PATCH",
        &status,
        locked(&ready, condition("True")),
    )
    .await;
    assert_eq!(
        same["metadata"]["resourceVersion"],
        ready["metadata"]["resourceVersion"]
    );
    // Each manager of the status by apply has conditions of its own.
    let mut apply = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    apply["status"] = json!({"conditions": [{"type": "Synced", "status": "True"}]});
    let path = format!("{status}?fieldManager=syncer&force=true");
    let synced = expect_code(&mut to.apply, 200, "PATCH", &path, Some(apply.clone())).await;
    assert_eq!(synced["status"]["conditions"].as_array().map(Vec::len), Some(2));
    apply["status"] = json!({});
    let synced = expect_code(&mut to.apply, 200, "PATCH", &path, Some(apply)).await;
    assert_eq!(synced["status"]["conditions"][0]["type"], "Ready");
    assert_eq!(synced["status"]["conditions"].as_array().map(Vec::len), Some(1));

    // The objects that it owns.
    let owner = |controller: bool, uid: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": uid,
            "controller": controller, "blockOwnerDeletion": true})
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let map = |owners: Value| Some(json!({"metadata": {"generateName": "w-", "ownerReferences": owners}}));
    let child = expect_code(&mut to.json, 201, "POST", maps, map(json!([owner(true, uid)]))).await;
    assert!(child["metadata"]["name"].as_str().unwrap().starts_with("w-"));
    let two = expect_code(
        &mut to.json,
        422,
        "POST",
        maps,
        map(json!([owner(true, uid), owner(true, "other")])),
    )
    .await;
    let said = two["message"].as_str().unwrap();
    assert!(
        said.contains("Only one reference can have Controller set to true"),
        "{said}"
    );

    // Caches of metadata only, by a watch that begins with the existing objects.
    let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let credentials = Credentials::token(ADMIN).header("accept", partial);
    let watch = format!(
        "{maps}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let watcher = cluster.connect(&credentials).await.unwrap();
    let events = watcher
        .events(&watch, |events| events.iter().any(|e| e["type"] == "BOOKMARK"))
        .await;
    let mine = events
        .iter()
        .find(|e| e["object"]["metadata"]["name"] == child["metadata"]["name"]);
    let mine = mine.unwrap();
    assert_eq!(
        (&mine["type"], &mine["object"]["kind"]),
        (&json!("ADDED"), &json!("PartialObjectMetadata"))
    );
    let ends = &events.last().unwrap()["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"];
    assert_eq!(ends, "true", "{events:?}");

    // Reported as an event, and then again as a series.
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "w.1", "namespace": "default"}, "eventTime": "2027-01-15T08:00:00.123456Z",
        "reportingController": "example.com/operator", "reportingInstance": "operator-0", "action": "Reconcile",
        "reason": "Synced", "type": "Normal", "note": "n", "regarding": {"apiVersion": "example.com/v1",
            "kind": "Widget", "name": "w", "namespace": "default", "uid": uid}});
    expect_code(&mut to.json, 201, "POST", events, Some(event)).await;
    let series = Some(json!({"series": {"count": 2, "lastObservedTime": "2027-01-15T08:00:01.000000Z"}}));
    let again = expect_code(&mut to.strategic, 200, "PATCH", &format!("{events}/w.1"), series).await;
    assert_eq!(again["series"]["count"], 2);
    let regarding = format!(
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dw%2CinvolvedObject.uid%3D{uid}"
    );
    let found = expect_code(&mut to.json, 200, "GET", &regarding, None).await;
    assert_eq!(found["items"][0]["series"]["count"], 2);

    // The deletion: marked, no new finalizers, deleted with the last finalizer.
    let foreground = json!({"propagationPolicy": "Background", "preconditions": {"uid": uid}});
    let marked = expect_code(&mut to.json, 200, "DELETE", &one, Some(foreground)).await;
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["generation"], 2);
    let more = Some(json!({"metadata": {"finalizers": ["example.com/f", "example.com/g"]}}));
    let rejected = expect_code(&mut to.merge, 422, "PATCH", &one, more).await;
    let said = rejected["message"].as_str().unwrap();
    assert!(
        said.contains("no new finalizers can be added if the object is being deleted"),
        "{said}"
    );
    let none = json!({"metadata": {"finalizers": null}});
    expect_code(&mut to.merge, 200, "PATCH", &one, locked(&marked, none)).await;
    expect_code(&mut to.json, 404, "GET", &one, None).await;
}

/// One of several operators leads; one that renews a Lease that another has acquired gets a conflict.
#[tokio::test]
async fn leaders_elect_each_other_by_a_lease() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let one = format!("{leases}/operator");
    let lease = |holder: &str, transitions: u32| {
        json!({"metadata": {"name": "operator", "namespace": "default", "creationTimestamp": null},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
                "acquireTime": "2027-01-15T08:00:00.000001Z", "renewTime": "2027-01-15T08:00:00.000001Z"}})
    };
    expect_code(&mut to.json, 404, "GET", &one, None).await;
    let first = expect_code(&mut to.json, 201, "POST", leases, Some(lease("a", 0))).await;
    assert_eq!(first["spec"]["renewTime"], "2027-01-15T08:00:00.000001Z");
    let late = expect_code(&mut to.json, 409, "POST", leases, Some(lease("b", 0))).await;
    assert_eq!(late["reason"], "AlreadyExists");
    let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
    let taken_from = |seen: &Value, holder: &str, transitions: u32| {
        let mut next = lease(holder, transitions);
        next["metadata"]["resourceVersion"] = version(seen);
        Some(next)
    };
    let taken = expect_code(&mut to.json, 200, "PUT", &one, taken_from(&first, "b", 1)).await;
    assert_eq!(taken["spec"]["holderIdentity"], "b");
    let late = expect_code(&mut to.json, 409, "PUT", &one, taken_from(&first, "a", 0)).await;
    assert_eq!(late["reason"], "Conflict");
    let renewed = expect_code(&mut to.json, 200, "PUT", &one, taken_from(&taken, "b", 1)).await;
    assert_eq!(
        version(&renewed),
        version(&taken),
        "the same again is written once"
    );
    // Released: the Lease has no holder.
    let mut free = json!({"metadata": {"name": "operator"}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1,
        "leaseTransitions": 1, "renewTime": "2027-01-15T08:00:02.000000Z", "acquireTime": "2027-01-15T08:00:02.000000Z"}});
    free["metadata"]["resourceVersion"] = version(&renewed);
    let free = expect_code(&mut to.json, 200, "PUT", &one, Some(free)).await;
    assert_eq!(free["spec"]["holderIdentity"], "");
}
