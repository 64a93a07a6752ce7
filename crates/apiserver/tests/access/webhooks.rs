//! Webhook configurations, step by step as in Kubernetes' conformance tests: configurations are updated,
//! patched, listed and deleted and take effect at once; objects that webhooks change are defaulted and pruned like those of
//! clients. The webhook's certificate is self-signed, as in Helm charts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, IsCa};
use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials, TestResponse};
use crate::hooks::{WebhookServer, hook, hooks};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Like Kubernetes' own test webhook: what it denies, and what it adds step by step.
fn answer(path: &str, request: &Value) -> Value {
    let object = &request["object"];
    let patch = |patch: Value| json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())});
    let has = |key: &str| object["data"][key] == "yes";
    match path {
        "/deny" => json!({"allowed": false, "status": {"message": "this webhook denies all requests"}}),
        "/deny-configmaps" if has("webhook-e2e-test") => {
            json!({"allowed": false, "status": {"reason": "the configmap contains unwanted key and value"}})
        }
        "/stage-1" if has("mutation-start") => {
            patch(json!([{"op": "add", "path": "/data/mutation-stage-1", "value": "yes"}]))
        }
        "/stage-2" if has("mutation-stage-1") => {
            patch(json!([{"op": "add", "path": "/data/mutation-stage-2", "value": "yes"}]))
        }
        "/pods" => patch(json!([{"op": "add", "path": "/spec/initContainers", "value": [
                {"image": "webhook-added-image", "name": "webhook-added-init-container", "resources": {}}]}])),
        _ => json!({"allowed": true}),
    }
}

async fn webhook() -> WebhookServer {
    hooks(answer, IsCa::Ca(BasicConstraints::Unconstrained)).await
}

fn for_resource(group: &str, version: &str, resource: &str) -> Value {
    json!({"rules": [{"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": [resource]}]})
}

/// Creates a ConfigMap that both kinds of webhooks match, and deletes it again if it was created.
async fn tried(cluster: &Cluster, name: &str) -> TestResponse {
    let map =
        json!({"metadata": {"name": name}, "data": {"mutation-start": "yes", "webhook-e2e-test": "yes"}});
    let answer = cluster.admin("POST", MAPS, Some(map)).await;
    if answer.code == 201 {
        let path = format!("{MAPS}/{name}");
        cluster.admin("DELETE", &path, None).await.expect(200);
    }
    answer
}

#[tokio::test]
async fn configurations_count_as_they_are_now() {
    let cluster = Cluster::start().await;
    let server = webhook().await;
    let denied: fn(&TestResponse) -> bool = |answer| {
        let said = "denied the request: the configmap contains unwanted key and value";
        answer.code == 400 && answer.message().ends_with(said)
    };
    let mutated: fn(&TestResponse) -> bool =
        |answer| answer.code == 201 && answer.body["data"]["mutation-stage-1"] == "yes";
    for (resource, path, acts) in [
        ("validatingwebhookconfigurations", "/deny-configmaps", denied),
        ("mutatingwebhookconfigurations", "/stage-1", mutated),
    ] {
        let all = format!("{GROUP}/{resource}");
        let one = format!("{all}/test");
        let configuration =
            json!({"metadata": {"name": "test"}, "webhooks": [hook(&server, path, json!({}))]});
        cluster.create(&all, configuration).await;
        assert!(acts(&tried(&cluster, "m").await), "{resource}");

        let mut now = cluster.admin("GET", &one, None).await.expect(200);
        now["webhooks"][0]["rules"][0]["operations"] = json!(["UPDATE"]);
        let updated = cluster.admin("PUT", &one, Some(now)).await.expect(200);
        assert_eq!(updated["metadata"]["generation"], 2, "{resource}");
        let found = tried(&cluster, "m").await;
        assert!(found.code == 201 && !acts(&found), "{resource}: {}", found.text);

        let patch = json!([{"op": "replace", "path": "/webhooks/0/rules/0/operations", "value": ["CREATE"]}]);
        let media = Credentials::token(ADMIN).header("content-type", "application/json-patch+json");
        let patched = cluster.ask(&media, "PATCH", &one, Some(patch)).await.expect(200);
        let revision = |o: &Value| {
            o["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        assert!(revision(&patched) > revision(&updated), "{resource}");
        assert!(acts(&tried(&cluster, "m").await), "{resource}");
        cluster.admin("DELETE", &one, None).await.expect(200);

        for n in 0..10 {
            let configuration = json!({"metadata": {"name": format!("test-{n}"), "labels": {"list-test": "x"}},
                "webhooks": [hook(&server, path, json!({}))]});
            cluster.create(&all, configuration).await;
        }
        let chosen = format!("{all}?labelSelector=list-test%3Dx");
        let listed = cluster.admin("GET", &chosen, None).await.expect(200);
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(10), "{resource}");
        assert!(acts(&tried(&cluster, "m").await), "{resource}");
        cluster.admin("DELETE", &chosen, None).await.expect(200);
        let found = tried(&cluster, "m").await;
        assert!(found.code == 201 && !acts(&found), "{resource}: {}", found.text);
    }
}

#[tokio::test]
async fn conditions_are_as_they_were_last_written() {
    let cluster = Cluster::start().await;
    let server = webhook().await;
    let all = format!("{GROUP}/mutatingwebhookconfigurations");
    let but = |name: &str| {
        let expression = format!("object.metadata.name != '{name}'");
        json!({"matchConditions": [{"name": "skip", "expression": expression}]})
    };
    let configuration =
        json!({"metadata": {"name": "test"}, "webhooks": [hook(&server, "/stage-1", but("skip-me"))]});
    let mut made = cluster.create(&all, configuration).await;
    let changed = async |name: &str| {
        let made = tried(&cluster, name).await.expect(201);
        made["data"]["mutation-stage-1"] == "yes"
    };
    assert!(!changed("skip-me").await);
    assert!(changed("other").await);
    made["webhooks"][0]["matchConditions"] = but("other")["matchConditions"].clone();
    let path = format!("{all}/test");
    cluster.admin("PUT", &path, Some(made)).await.expect(200);
    assert!(changed("skip-me").await);
    assert!(!changed("other").await);
    let bad = json!({"matchConditions": [{"name": "bad", "expression": "... [] bad expression"}]});
    let configuration = json!({"metadata": {"name": "bad"}, "webhooks": [hook(&server, "/stage-1", bad)]});
    let rejected = cluster.admin("POST", &all, Some(configuration)).await;
    assert!(
        rejected.code == 422 && rejected.text.contains("compilation failed"),
        "{}",
        rejected.text
    );
}

#[tokio::test]
async fn what_webhooks_change_is_defaulted_and_pruned() {
    let cluster = Cluster::start().await;
    let server = webhook().await;
    let widgets = |name: &str| {
        let mut rules = for_resource("stable.example.com", "*", "widgets");
        rules["name"] = json!(name);
        rules
    };
    let configuration = json!({"metadata": {"name": "test"}, "webhooks": [
        hook(&server, "/pods", for_resource("", "v1", "pods")),
        hook(&server, "/stage-1", json!({"name": "maps.example.com"})),
        hook(&server, "/stage-2", json!({"name": "maps2.example.com"})),
        hook(&server, "/stage-1", widgets("widgets.example.com")),
        hook(&server, "/stage-2", widgets("widgets2.example.com"))]});
    let all = format!("{GROUP}/mutatingwebhookconfigurations");
    cluster.create(&all, configuration).await;
    let map = tried(&cluster, "m").await.expect(201);
    let steps = json!({"mutation-start": "yes", "mutation-stage-1": "yes", "mutation-stage-2": "yes", "webhook-e2e-test": "yes"});
    assert_eq!(map["data"], steps);

    let account = json!({"metadata": {"name": "default"}});
    cluster
        .create("/api/v1/namespaces/default/serviceaccounts", account)
        .await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = cluster.create("/api/v1/namespaces/default/pods", pod).await;
    let added = &pod["spec"]["initContainers"][0];
    let expected = json!({"name": "webhook-added-init-container", "imagePullPolicy": "Always",
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&added[field], value, "{field} of {added}");
    }

    // Two definitions one after another: one accepts any data, the other prunes what its schema does not have.
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let steps = json!({"type": "object", "properties": {
        "mutation-start": {"type": "string"}, "mutation-stage-1": {"type": "string"}}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for (data, pruned) in [(any, false), (steps, true)] {
        let definition = json!({"metadata": {"name": "widgets.stable.example.com"}, "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"data": data}}}}]}});
        cluster.create(definitions, definition).await;
        let widget = json!({"apiVersion": "stable.example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
            "data": {"mutation-start": "yes"}});
        let path = "/apis/stable.example.com/v1/namespaces/default/widgets";
        let mut made = cluster.admin("POST", path, Some(widget.clone())).await;
        for n in 0.. {
            if made.code != 404 {
                break;
            }
            assert!(n < 6000, "the kind is never served: {}", made.text);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            made = cluster.admin("POST", path, Some(widget.clone())).await;
        }
        let mut expected = json!({"mutation-start": "yes", "mutation-stage-1": "yes"});
        if !pruned {
            expected["mutation-stage-2"] = json!("yes");
        }
        assert_eq!(made.expect(201)["data"], expected, "pruned: {pruned}");
        let one = format!("{definitions}/widgets.stable.example.com");
        cluster.admin("DELETE", &one, None).await;
        for n in 0.. {
            if cluster.admin("GET", &one, None).await.code == 404 {
                break;
            }
            assert!(n < 6000, "the definition stays");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn webhooks_get_reviews_and_policies_do_not() {
    let cluster = Cluster::start().await;
    let server = webhook().await;
    let everything =
        json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]);
    let policy = json!({"metadata": {"name": "nothing"}, "spec": {"failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": everything}, "validations": [{"expression": "false"}]}});
    let binding = json!({"metadata": {"name": "nothing"}, "spec": {"policyName": "nothing", "validationActions": ["Deny"]}});
    cluster
        .create(&format!("{GROUP}/validatingadmissionpolicies"), policy)
        .await;
    cluster
        .create(&format!("{GROUP}/validatingadmissionpolicybindings"), binding)
        .await;
    let attributes = json!({"verb": "get", "resource": "pods"});
    let reviews = [
        (
            "authentication.k8s.io",
            "tokenreviews",
            json!({"spec": {"token": "ann-token"}}),
        ),
        ("authentication.k8s.io", "selfsubjectreviews", json!({})),
        (
            "authorization.k8s.io",
            "subjectaccessreviews",
            json!({"spec": {"user": "ann", "resourceAttributes": attributes}}),
        ),
        (
            "authorization.k8s.io",
            "selfsubjectaccessreviews",
            json!({"spec": {"resourceAttributes": attributes}}),
        ),
        (
            "authorization.k8s.io",
            "selfsubjectrulesreviews",
            json!({"spec": {"namespace": "default"}}),
        ),
    ];
    for (group, resource, review) in &reviews {
        let path = format!("/apis/{group}/v1/{resource}");
        cluster
            .admin("POST", &path, Some(review.clone()))
            .await
            .expect(201);
        let configuration = json!({"metadata": {"name": "test"}, "webhooks": [hook(&server, "/deny", for_resource(group, "v1", resource))]});
        let all = format!("{GROUP}/validatingwebhookconfigurations");
        cluster.create(&all, configuration).await;
        let answer = cluster.admin("POST", &path, Some(review.clone())).await;
        let said =
            "admission webhook \"hook.example.com\" denied the request: this webhook denies all requests";
        assert_eq!((answer.code, answer.message()), (400, said), "{resource}");
        cluster
            .admin("DELETE", &format!("{all}/test"), None)
            .await
            .expect(200);
        let asked = server.asked.lock().last().cloned().unwrap();
        assert_eq!(asked["resource"]["resource"], *resource);
        assert_eq!(
            asked["object"]["spec"],
            review.get("spec").cloned().unwrap_or_default(),
            "{asked}"
        );
    }
    // An invalid review is rejected before any webhook is called.
    let empty = json!({"spec": {}});
    let before = server.asked.lock().len();
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    assert_eq!(cluster.admin("POST", path, Some(empty)).await.code, 400);
    assert_eq!(server.asked.lock().len(), before);
}

/// "should mutate custom resource with different stored version": stored as v1, then patched as v2, which is stored by then.
#[tokio::test]
async fn objects_stored_in_another_version_are_mutated_in_the_requested_one() {
    let cluster = Cluster::start().await;
    let server = webhook().await;
    let rules = |name: &str, operations: &[&str]| {
        json!({"name": name, "rules": [{"apiGroups": ["stable.example.com"], "apiVersions": ["v1", "v2"],
            "operations": operations, "resources": ["widgets"]}]})
    };
    let configuration = json!({"metadata": {"name": "test"}, "webhooks": [
        hook(&server, "/stage-1", rules("one.example.com", &["CREATE", "UPDATE"])),
        hook(&server, "/stage-2", rules("two.example.com", &["CREATE"]))]});
    let all = format!("{GROUP}/mutatingwebhookconfigurations");
    cluster.create(&all, configuration).await;
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({"metadata": {"name": "widgets.stable.example.com"}, "spec": {
        "group": "stable.example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [version("v1", true), version("v2", false)]}});
    cluster.create(definitions, definition).await;
    let path = |version: &str| format!("/apis/stable.example.com/{version}/namespaces/default/widgets");
    let widget = json!({"apiVersion": "stable.example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
        "data": {"mutation-start": "yes"}});
    let mut made = cluster.admin("POST", &path("v1"), Some(widget.clone())).await;
    for n in 0.. {
        if made.code != 404 {
            break;
        }
        assert!(n < 6000, "the kind is never served: {}", made.text);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        made = cluster.admin("POST", &path("v1"), Some(widget.clone())).await;
    }
    let all_steps = json!({"mutation-start": "yes", "mutation-stage-1": "yes", "mutation-stage-2": "yes"});
    assert_eq!(made.expect(201)["data"], all_steps);

    let media = |media: &str| Credentials::token(ADMIN).header("content-type", media);
    let patch = json!({"spec": {"versions": [version("v1", false), version("v2", true)]}});
    let one = format!("{definitions}/widgets.stable.example.com");
    let strategic = media("application/strategic-merge-patch+json");
    cluster
        .ask(&strategic, "PATCH", &one, Some(patch))
        .await
        .expect(200);
    let patch = json!([{"op": "add", "path": "/dummy", "value": "test"}]);
    let operations = media("application/json-patch+json");
    let one = format!("{}/w", path("v2"));
    let patched = cluster
        .ask(&operations, "PATCH", &one, Some(patch))
        .await
        .expect(200);
    assert_eq!(patched["apiVersion"], "stable.example.com/v2");
    assert_eq!(
        (&patched["data"], &patched["dummy"]),
        (&all_steps, &json!("test"))
    );
    // Only the first stage matches updates; the request says in which version.
    let patch = json!([{"op": "remove", "path": "/data/mutation-stage-1"}, {"op": "remove", "path": "/data/mutation-stage-2"}]);
    for version in ["v1", "v2"] {
        let one = format!("{}/w", path(version));
        let patched = cluster.ask(&operations, "PATCH", &one, Some(patch.clone())).await;
        let expected = json!({"mutation-start": "yes", "mutation-stage-1": "yes"});
        let patched = match version {
            "v1" => patched.expect(200),
            // The second stage's is not there a second time.
            _ => {
                assert_eq!(patched.code, 422, "{}", patched.text);
                cluster.admin("GET", &one, None).await.expect(200)
            }
        };
        assert_eq!(patched["apiVersion"], format!("stable.example.com/{version}"));
        assert_eq!(patched["data"], expected);
    }
}

#[tokio::test]
async fn a_webhook_is_called_over_the_connection_of_the_last_call() {
    let cluster = Cluster::start().await;
    let hooks = webhook().await;
    let configuration =
        |path: &str| json!({"metadata": {"name": "kept"}, "webhooks": [hook(&hooks, path, json!({}))]});
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    let made = cluster.admin("POST", &path, Some(configuration("/"))).await;
    made.expect(201);
    let connections = || hooks.connections.load(std::sync::atomic::Ordering::SeqCst);
    for n in 0..5 {
        tried(&cluster, &format!("one-{n}")).await.expect(201);
    }
    assert_eq!((hooks.asked.lock().len(), connections()), (5, 1));
    // A connection that the webhook closes is not used again, and costs no call.
    let one = format!("{path}/kept");
    cluster.admin("DELETE", &one, None).await.expect(200);
    let made = cluster.admin("POST", &path, Some(configuration("/close"))).await;
    made.expect(201);
    for n in 0..5 {
        tried(&cluster, &format!("two-{n}")).await.expect(201);
    }
    assert_eq!((hooks.asked.lock().len(), connections()), (10, 6));
}

/// A webhook that converts `host` of v1 to `address` of v2.
fn convert(_: &str, request: &Value) -> Value {
    let to = request["desiredAPIVersion"].as_str().unwrap();
    let (from, into) = match to.ends_with("/v2") {
        true => ("host", "address"),
        false => ("address", "host"),
    };
    let converted = request["objects"].as_array().unwrap().iter().map(|object| {
        let mut object = object.clone();
        object["apiVersion"] = to.into();
        if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
            object["spec"][into] = value;
        }
        object
    });
    json!({"result": {"status": "Success"}, "convertedObjects": converted.collect::<Vec<_>>()})
}

/// Conflicts are found between appliers of versions that only the webhook converts, as in kube-apiserver.
#[tokio::test]
async fn appliers_of_versions_that_a_webhook_converts_conflict() {
    let cluster = Cluster::start().await;
    let hooks = hooks(convert, IsCa::NoCa).await;
    let version = |name: &str, storage: bool, field: &str| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": {field: {"type": "string"}, "port": {"type": "integer"}}}}}}})
    };
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {
            "url": format!("https://127.0.0.1:{}/", hooks.port), "caBundle": hooks.ca}}},
        "versions": [version("v1", true, "host"), version("v2", false, "address")]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.create(definitions, definition).await;
    let all = |version: &str| format!("/apis/example.com/{version}/widgets");
    while cluster.admin("GET", &all("v1"), None).await.code != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let credentials = Credentials::token(ADMIN).header("content-type", "application/apply-patch+yaml");
    let apply = async |version: &str, query: &str, spec: Value| {
        let path = format!("{}/w?{query}", all(version));
        let config = json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget",
            "metadata": {"name": "w"}, "spec": spec});
        cluster.ask(&credentials, "PATCH", &path, Some(config)).await
    };
    apply("v1", "fieldManager=a", json!({"host": "h", "port": 1}))
        .await
        .expect(201);
    let rejected = apply("v2", "fieldManager=b", json!({"address": "g"})).await;
    assert_eq!(
        (rejected.code, rejected.message()),
        (
            409,
            "Apply failed with 1 conflict: conflict with \"a\": .spec.host"
        )
    );
    // The same value is shared, and stays when one of the two no longer applies it.
    apply("v2", "fieldManager=b", json!({"address": "h"}))
        .await
        .expect(200);
    let left = apply("v1", "fieldManager=a", json!({"port": 1}))
        .await
        .expect(200);
    assert_eq!(left["spec"], json!({"host": "h", "port": 1}));
    let removed = apply("v2", "fieldManager=b", json!({})).await.expect(200);
    assert_eq!(removed["spec"], json!({"port": 1}));
    let forced = apply("v2", "fieldManager=b&force=true", json!({"port": 2}))
        .await
        .expect(200);
    assert_eq!(forced["spec"], json!({"port": 2}));
    let managers = forced["metadata"]["managedFields"].as_array().unwrap();
    let managers: Vec<&str> = managers.iter().map(|m| m["manager"].as_str().unwrap()).collect();
    assert_eq!(managers, ["b"], "{forced}");
    let reads = hooks.connections.load(std::sync::atomic::Ordering::SeqCst);
    assert!(reads <= 2, "connections are kept: {reads}");
}
