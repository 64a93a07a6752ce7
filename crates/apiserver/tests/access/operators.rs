//! Requests of cert-manager, the Prometheus operator, KEDA, Crossplane and Argo CD, where they are more than reading and
//! writing objects. Each response was compared with kube-apiserver v1.36.2's for the operators' own definitions;
//! the definitions here are short ones with the same constructs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials};
use crate::forms::{Forms, expect_code};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// Waits until the response at `path` matches.
async fn until(to: &mut Forms, path: &str, is: impl Fn(u16, &Value) -> bool) -> Value {
    let limit = Duration::from_secs(60);
    let waited = tokio::time::timeout(limit, async {
        loop {
            let answer = to.json.send("GET", path, None).await;
            if is(answer.code, &answer.body) {
                return answer.body;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{path} never answers so"))
}

async fn define(to: &mut Forms, definition: Value) {
    let name = definition["metadata"]["name"].as_str().unwrap();
    let path = format!("{DEFINITIONS}/{name}?fieldManager=installer&force=true");
    expect_code(&mut to.apply, 201, "PATCH", &path, Some(definition.clone())).await;
    let (group, version) = (
        &definition["spec"]["group"],
        &definition["spec"]["versions"][0]["name"],
    );
    let resource = definition["spec"]["names"]["plural"].as_str().unwrap();
    let path = format!(
        "/apis/{}/{}/{resource}",
        group.as_str().unwrap(),
        version.as_str().unwrap()
    );
    until(to, &path, |code, _| code == 200).await;
}

fn definition(group: &str, kind: &str, versions: &[Value]) -> Value {
    let singular = kind.to_lowercase();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{singular}s.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": versions,
            "names": {"plural": format!("{singular}s"), "singular": singular, "kind": kind, "listKind": format!("{kind}List")}}})
}

fn conditions() -> Value {
    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "required": ["type", "status"], "properties": {
            "type": {"type": "string"}, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"}}}})
}

/// Like the Prometheus operator's: limits, patterns, int-or-string, a claim template, scale, columns.
fn prometheus() -> Value {
    let schema = json!({"type": "object", "required": ["metadata", "spec"], "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer", "format": "int32"}, "shards": {"type": "integer", "minimum": 0, "maximum": 64.5},
            "scrapeInterval": {"type": "string", "default": "30s", "pattern": "^(0|([0-9]+)(ms|s|m|h|d))$"},
            "port": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true},
            "hostAliases": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["ip"],
                "items": {"type": "object", "required": ["ip"], "properties": {"ip": {"type": "string"},
                    "hostnames": {"type": "array", "items": {"type": "string"}}}}},
            "storage": {"type": "object", "properties": {"volumeClaimTemplate": {"type": "object", "properties": {
                "metadata": {"type": "object", "properties": {"name": {"type": "string"},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}}}}},
            "x-kubernetes-validations": [{"rule": "!has(self.shards) || self.shards <= 8", "message": "at most 8 shards"}]},
        "status": {"type": "object", "properties": {"conditions": conditions(), "replicas": {"type": "integer"},
            "selector": {"type": "string"}}}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [
            {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas", "description": "The number of desired replicas"},
            {"name": "Available", "type": "string", "jsonPath": ".status.conditions[?(@.type == 'Available')].status"}],
        "selectableFields": [{"jsonPath": ".spec.scrapeInterval"}],
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}}});
    definition("monitoring.example.com", "Prometheus", &[version])
}

const PROMETHEUSES: &str = "/apis/monitoring.example.com/v1/namespaces/default/prometheuss";

/// Stored objects are pruned; the status is applied; the scale is written by others; lists and tables are read.
#[tokio::test]
async fn the_prometheus_operator_reconciles_what_its_users_write() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    define(&mut to, prometheus()).await;
    let object = |name: &str, spec: Value| {
        Some(
            json!({"apiVersion": "monitoring.example.com/v1", "kind": "Prometheus", "metadata": {"name": name}, "spec": spec}),
        )
    };
    let spec = json!({"replicas": 2, "port": "web", "unknown": 1, "storage": {"volumeClaimTemplate":
        {"metadata": {"name": "db", "uid": "pruned", "labels": {"a": "b"}}}}});
    let made = expect_code(&mut to.json, 201, "POST", PROMETHEUSES, object("k8s", spec)).await;
    assert_eq!(
        made["spec"],
        json!({"replicas": 2, "port": "web", "scrapeInterval": "30s", "storage": {"volumeClaimTemplate":
            {"metadata": {"name": "db", "labels": {"a": "b"}}}}})
    );
    let wrong = json!({"shards": 9, "scrapeInterval": "1", "hostAliases": [{"ip": "1"}, {"ip": "1"}]});
    let rejected = expect_code(&mut to.json, 422, "POST", PROMETHEUSES, object("wrong", wrong)).await;
    let said = rejected["message"].as_str().unwrap();
    for part in [
        "spec.scrapeInterval: Invalid value: \"1\": spec.scrapeInterval in body should match",
        "spec.hostAliases[1]: Duplicate value: {\"ip\":\"1\"}",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let shards = expect_code(
        &mut to.json,
        422,
        "POST",
        PROMETHEUSES,
        object("shards", json!({"shards": 9})),
    )
    .await;
    assert!(
        shards["message"].as_str().unwrap().contains("at most 8 shards"),
        "{shards}"
    );

    // Status by apply, each manager with its own conditions.
    let one = format!("{PROMETHEUSES}/k8s");
    let status = |conditions: Value| {
        Some(
            json!({"apiVersion": "monitoring.example.com/v1", "kind": "Prometheus",
            "metadata": {"name": "k8s", "namespace": "default"},
            "status": {"conditions": conditions, "replicas": 2, "selector": "app=k8s"}}),
        )
    };
    let path = format!("{one}/status?fieldManager=PrometheusOperator&force=true");
    let both = json!([{"type": "Available", "status": "False", "observedGeneration": 1},
        {"type": "Reconciled", "status": "True", "observedGeneration": 1}]);
    expect_code(&mut to.apply, 200, "PATCH", &path, status(both)).await;
    let fewer = json!([{"type": "Available", "status": "True", "observedGeneration": 1}]);
    let applied = expect_code(&mut to.apply, 200, "PATCH", &path, status(fewer)).await;
    assert_eq!(applied["status"]["conditions"].as_array().map(Vec::len), Some(1));
    assert_eq!(applied["metadata"]["generation"], 1);

    let scale = expect_code(&mut to.json, 200, "GET", &format!("{one}/scale"), None).await;
    assert_eq!(scale["status"], json!({"replicas": 2, "selector": "app=k8s"}));
    let more = Some(json!({"spec": {"replicas": 4}}));
    expect_code(&mut to.merge, 200, "PATCH", &format!("{one}/scale"), more).await;
    let scaled = expect_code(&mut to.json, 200, "GET", &one, None).await;
    assert_eq!(
        (&scaled["spec"]["replicas"], &scaled["metadata"]["generation"]),
        (&json!(4), &json!(2))
    );

    // Lists of custom resources are unstructured: each item has its type, and `continue` is always present.
    for path in [PROMETHEUSES.to_string(), format!("{PROMETHEUSES}?pretty=true")] {
        let list = expect_code(&mut to.json, 200, "GET", &path, None).await;
        assert_eq!(
            (&list["kind"], &list["metadata"]["continue"]),
            (&json!("PrometheusList"), &json!(""))
        );
        assert_eq!(
            (&list["items"][0]["kind"], &list["items"][0]["apiVersion"]),
            (&json!("Prometheus"), &json!("monitoring.example.com/v1"))
        );
    }
    let maps = expect_code(&mut to.json, 200, "GET", CONFIG_MAPS, None).await;
    assert!(maps["metadata"].get("continue").is_none(), "{maps}");
    let found = format!("{PROMETHEUSES}?fieldSelector=spec.scrapeInterval%3D30s");
    let found = expect_code(&mut to.json, 200, "GET", &found, None).await;
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
    let mut tables = cluster
        .connect(&Credentials::token(ADMIN).header("accept", TABLE))
        .await
        .unwrap();
    let table = expect_code(&mut tables, 200, "GET", PROMETHEUSES, None).await;
    let columns = table["columnDefinitions"].as_array().unwrap();
    let described: Vec<&str> = columns[1..]
        .iter()
        .map(|column| column["description"].as_str().unwrap())
        .collect();
    assert_eq!(
        described,
        [
            "The number of desired replicas",
            "Custom resource definition column (in JSONPath format): .status.conditions[?(@.type == 'Available')].status"
        ]
    );
    assert_eq!(table["rows"][0]["cells"], json!(["k8s", 4, "True"]));
}

/// The published schemas, which clients validate by, match the definition.
#[tokio::test]
async fn published_schemas_of_custom_resources_say_what_their_definitions_say() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    define(&mut to, prometheus()).await;
    let path = "/openapi/v3/apis/monitoring.example.com/v1";
    let document = until(&mut to, path, |code, _| code == 200).await;
    let schemas = &document["components"]["schemas"];
    let prometheus = &schemas["com.example.monitoring.v1.Prometheus"];
    assert_eq!(prometheus["required"], json!(["metadata", "spec"]));
    let shards = &prometheus["properties"]["spec"]["properties"]["shards"];
    assert_eq!(
        shards.to_string(),
        r#"{"maximum":64.5,"minimum":0,"type":"integer"}"#
    );
    let selectable = json!([{"fieldPath": "spec.scrapeInterval"}]);
    for name in ["Prometheus", "PrometheusList"] {
        let found = &schemas[format!("com.example.monitoring.v1.{name}")]["x-kubernetes-selectable-fields"];
        assert_eq!(*found, selectable, "{name}");
    }
}

/// Like Crossplane's: two versions with different defaults, conversion None, embedded resources.
fn composition() -> Value {
    let version = |name: &str, storage: bool, more: Value| {
        let mut fields = json!({"input": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true}});
        for (field, schema) in more.as_object().unwrap() {
            fields[field] = schema.clone();
        }
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": fields},
                "status": {"type": "object", "properties": {"conditions": conditions()}}}}}})
    };
    let policy = json!({"type": "string", "enum": ["Background", "Foreground"]});
    let mut with_default = policy.clone();
    with_default["default"] = "Background".into();
    definition(
        "crossplane.example.com",
        "Composition",
        &[
            version("v2", false, json!({"deletePolicy": policy})),
            version("v1", true, json!({"deletePolicy": with_default})),
        ],
    )
}

#[tokio::test]
async fn crossplane_applies_definitions_and_resources_in_several_versions() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    define(&mut to, composition()).await;
    let all = "/apis/crossplane.example.com/v2/namespaces/default/compositions";
    let input = json!({"apiVersion": "x/v1", "kind": "Input", "metadata": {"name": "i"}, "a": [1, null]});
    let config = |spec: Value| {
        Some(
            json!({"apiVersion": "crossplane.example.com/v2", "kind": "Composition", "metadata": {"name": "c"}, "spec": spec}),
        )
    };
    let path = |manager: &str| format!("{all}/c?fieldManager={manager}");
    // Stored objects have the storage version's defaults, though no manager owns them.
    let made = expect_code(
        &mut to.apply,
        201,
        "PATCH",
        &path("a"),
        config(json!({"input": input})),
    )
    .await;
    assert_eq!(made["spec"]["deletePolicy"], "Background");
    assert_eq!(made["spec"]["input"]["a"], json!([1, null]));
    assert_eq!(made["spec"]["input"]["metadata"], json!({"name": "i"}));
    let managed = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert!(managed.get("f:deletePolicy").is_none(), "{managed}");
    let other = config(json!({"input": {"apiVersion": "x/v1", "kind": "Input", "a": [2]}}));
    let rejected = expect_code(&mut to.apply, 409, "PATCH", &path("b"), other.clone()).await;
    assert_eq!(rejected["details"]["causes"][0]["field"], ".spec.input.a");
    let forced = format!("{}&force=true", path("b"));
    let forced = expect_code(&mut to.apply, 200, "PATCH", &forced, other).await;
    assert_eq!(forced["spec"]["input"]["a"], json!([2]));

    // The warning about a finalizer without a path names the field, not its index.
    let held = Some(json!({"metadata": {"finalizers": ["composite.crossplane.example.com"]}}));
    let answer = to.merge.send("PATCH", &format!("{all}/c"), held).await;
    assert_eq!(answer.code, 200, "{}", answer.text);
    let warning = answer.headers["warning"].to_str().unwrap();
    assert!(
        warning.starts_with("299 - \"metadata.finalizers: \\\"composite.crossplane.example.com\\\": prefer"),
        "{warning}"
    );
}

/// The bundle that its injector writes last must not be broken once the kind is served.
#[tokio::test]
async fn cert_manager_injects_bundles() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let bundle = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let (good, bad) = (bundle(cluster.pki.ca_pem()), bundle("no bundle"));
    define(&mut to, composition()).await;
    let one = format!("{DEFINITIONS}/compositions.crossplane.example.com");
    let webhook = |bundle: &str| {
        Some(
            json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "a", "namespace": "b"}, "caBundle": bundle}}}}}),
        )
    };
    until(&mut to, &one, |_, body| {
        let conditions = body["status"]["conditions"].as_array();
        conditions.is_some_and(|all| {
            all.iter()
                .any(|c| c["type"] == "Established" && c["status"] == "True")
        })
    })
    .await;
    let rejected = expect_code(&mut to.merge, 422, "PATCH", &one, webhook(&bad)).await;
    assert_eq!(
        rejected["message"],
        format!(
            "CustomResourceDefinition.apiextensions.k8s.io \"compositions.crossplane.example.com\" is invalid: \
             spec.conversion.webhookClientConfig.caBundle: Invalid value: {bad:?}: unable to load root certificates: \
             unable to parse bytes as PEM block"
        )
    );
    expect_code(&mut to.merge, 200, "PATCH", &one, webhook(&good)).await;
    // By apply, as the injector does: nothing but the bundle.
    let mut config = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "compositions.crossplane.example.com"}});
    config["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = good.as_str().into();
    let path = format!("{one}?fieldManager=cert-manager-cainjector&force=true");
    let applied = expect_code(&mut to.apply, 200, "PATCH", &path, Some(config)).await;
    let service = &applied["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["name"];
    assert_eq!(service, "a");

    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hook = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "w.example.com", "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"}}]});
    expect_code(
        &mut to.json,
        201,
        "POST",
        &format!("{hooks}?fieldManager=helm"),
        Some(hook),
    )
    .await;
    let config = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "w"}, "webhooks": [{"name": "w.example.com", "clientConfig": {"caBundle": good}}]});
    let path = format!("{hooks}/w?fieldManager=cert-manager-cainjector&force=true");
    let applied = expect_code(&mut to.apply, 200, "PATCH", &path, Some(config)).await;
    assert_eq!(
        (
            &applied["webhooks"][0]["clientConfig"]["url"],
            &applied["webhooks"][0]["clientConfig"]["caBundle"]
        ),
        (&json!("https://127.0.0.1:1/"), &json!(good))
    );
}

/// Its metrics come from an extension API server that does not run yet.
#[tokio::test]
async fn keda_registers_metrics_before_they_are_served() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let service = json!({"metadata": {"name": "v1beta1.external.metrics.k8s.io"}, "spec": {
        "group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
        "service": {"name": "keda-operator-metrics-apiserver", "namespace": "keda"}}});
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    expect_code(&mut to.json, 201, "POST", services, Some(service)).await;
    until(&mut to, "/apis/external.metrics.k8s.io/v1beta1", |code, _| {
        code == 503
    })
    .await;
    let one = format!("{services}/v1beta1.external.metrics.k8s.io");
    let object = until(&mut to, &one, |_, body| {
        body["status"]["conditions"][0]["reason"].is_string()
    })
    .await;
    assert_eq!(object["status"]["conditions"][0]["reason"], "ServiceNotFound");
    let group = expect_code(&mut to.json, 200, "GET", "/apis/external.metrics.k8s.io", None).await;
    assert_eq!(group["preferredVersion"]["version"], "v1beta1");
}

/// Events that client-go's two recorders send: empty fields have no manager.
#[tokio::test]
async fn empty_fields_of_events_have_no_manager() {
    let cluster = Cluster::start().await;
    let mut to = Forms::to(&cluster).await;
    let owned = |event: &Value| -> Vec<String> {
        let fields = event["metadata"]["managedFields"][0]["fieldsV1"]
            .as_object()
            .unwrap();
        fields.keys().cloned().collect()
    };
    let old = json!({"metadata": {"name": "old"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "R", "message": "m", "type": "Normal"});
    let old = expect_code(
        &mut to.json,
        201,
        "POST",
        "/api/v1/namespaces/default/events",
        Some(old),
    )
    .await;
    assert_eq!(
        owned(&old),
        ["f:involvedObject", "f:message", "f:reason", "f:type"]
    );
    let new = json!({"metadata": {"name": "new"}, "eventTime": "2027-01-15T08:00:00.000001Z", "action": "A", "reason": "R",
        "reportingController": "example.com/o", "reportingInstance": "o-0", "type": "Normal",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let new = expect_code(&mut to.json, 201, "POST", events, Some(new)).await;
    assert_eq!(
        owned(&new),
        [
            "f:action",
            "f:eventTime",
            "f:reason",
            "f:regarding",
            "f:reportingController",
            "f:reportingInstance",
            "f:type"
        ]
    );
}
