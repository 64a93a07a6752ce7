//! APIServices that name a Service: their group versions as clients see them, and what extension API servers receive.

use std::time::Duration;

use http::StatusCode;
use hyper_util::rt::TokioIo;
use knarr_client::Component;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{ADMIN, Cluster, Credentials, TestResponse, grant};
use crate::extension::Extension;

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAME: &str = "v1.example.com";
const ROOT: &str = "/apis/example.com/v1";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const NS: &str = "/api/v1/namespaces/default";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

async fn service(cluster: &Cluster, port: u16) {
    let service = json!({"metadata": {"name": "api"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}});
    cluster.create(&format!("{NS}/services"), service).await;
}

fn slice(port: u16) -> Value {
    json!({"metadata": {"name": "api-1", "labels": {"kubernetes.io/service-name": "api"}}, "addressType": "IPv4",
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": ["10.244.0.5"], "conditions": {"ready": true}}]})
}

fn api_service(more: Value) -> Value {
    let mut spec = json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
        "service": {"namespace": "default", "name": "api"}});
    knarr_api::patch::merge::apply(&mut spec, &more);
    json!({"metadata": {"name": NAME}, "spec": spec})
}

/// Waits until the APIService's condition has this reason, and returns it.
async fn condition(cluster: &Cluster, reason: &str) -> Value {
    let mut last = Value::Null;
    for _ in 0..300 {
        let object = cluster
            .admin("GET", &format!("{API_SERVICES}/{NAME}"), None)
            .await
            .expect(200);
        last = object["status"]["conditions"][0].clone();
        if last["reason"] == reason {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no condition with reason {reason}, but {last}");
}

/// Waits until the response at a path matches.
async fn until(cluster: &Cluster, path: &str, matches: impl Fn(&TestResponse) -> bool) -> TestResponse {
    for _ in 0..300 {
        let answer = cluster.admin("GET", path, None).await;
        if matches(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} never answers what is wanted");
}

/// A cluster with an extension API server that is available.
async fn aggregated(http2: bool) -> (Cluster, Extension) {
    let cluster = Cluster::start().await;
    let extension = Extension::start(cluster.pki.front_proxy_ca_pem(), cluster.now(), http2).await;
    service(&cluster, extension.port).await;
    cluster.create(SLICES, slice(extension.port)).await;
    let object = api_service(json!({"caBundle": extension.ca}));
    cluster.create(API_SERVICES, object).await;
    condition(&cluster, "Passed").await;
    until(&cluster, ROOT, |answer| answer.code == 200).await;
    (cluster, extension)
}

#[tokio::test]
async fn n1_an_extension_api_server_gets_the_user_from_the_front_proxy() {
    for http2 in [true, false] {
        let (cluster, extension) = aggregated(http2).await;
        let rules = json!([{"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["create"]}]);
        grant(&cluster, "things", "ann", rules).await;
        let credentials = Credentials::token("ann-token")
            .header("x-remote-user", "admin")
            .header("x-remote-group", "system:masters")
            .header("x-remote-extra-a", "b")
            .header("x-forwarded-for", "192.0.2.7")
            .header("x-mine", "1");
        let path = format!("{THINGS}?fieldManager=me&x=a%2Fb");
        let received = cluster
            .ask(&credentials, "POST", &path, Some(json!({"k": "v"})))
            .await
            .expect(200);
        assert_eq!(received["version"], if http2 { "HTTP/2.0" } else { "HTTP/1.1" });
        assert_eq!(
            (&received["method"], &received["path"]),
            (&json!("POST"), &json!(THINGS))
        );
        assert_eq!(received["query"], "fieldManager=me&x=a%2Fb");
        assert_eq!(received["proxy"], "front-proxy-client");
        let headers = &received["headers"];
        assert_eq!(headers["x-remote-user"], json!(["ann"]));
        assert_eq!(headers["x-remote-group"], json!(["dev", "system:authenticated"]));
        assert_eq!(headers["x-mine"], json!(["1"]));
        assert_eq!(headers["x-forwarded-for"], json!(["192.0.2.7, 127.0.0.1"]));
        assert!(headers["audit-id"].is_array());
        for name in ["authorization", "x-remote-extra-a", "x-remote-uid"] {
            assert!(headers[name].is_null(), "{name}: {headers}");
        }
        assert_eq!(received["length"], 9);
        // A client without permission gets a 403 here; the extension API server is not called.
        let denied = cluster
            .ask(
                &Credentials::token("ann-token"),
                "DELETE",
                &format!("{THINGS}/x"),
                None,
            )
            .await;
        assert_eq!(denied.code, 403, "{}", denied.text);
        assert!(extension.last(&format!("{THINGS}/x")).is_null());
        let impersonated = Credentials::token(ADMIN).header("impersonate-user", "ann");
        let received = cluster.ask(&impersonated, "POST", THINGS, None).await.expect(200);
        assert_eq!(received["headers"]["x-remote-user"], json!(["ann"]));
        assert!(received["headers"]["impersonate-user"].is_null());
    }
}

#[tokio::test]
async fn n1_large_bodies_and_watches_stream_through() {
    let (cluster, extension) = aggregated(true).await;
    // Larger than any object of this server's own.
    let large = json!({"data": "x".repeat(8 << 20)});
    let received = cluster.admin("POST", THINGS, Some(large)).await.expect(200);
    assert_eq!(received["length"], (8 << 20) + 11);
    let client = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let state = extension.state.clone();
    let events = client
        .events(&format!("{THINGS}?watch=true"), |events| {
            // Each is received before the next is sent.
            if events.len() < 3 && !events.is_empty() {
                let _ = state
                    .events
                    .send(json!({"type": "MODIFIED", "n": events.len()}).to_string());
            }
            events.len() == 3
        })
        .await;
    let kinds: Vec<&Value> = events.iter().map(|e| &e["type"]).collect();
    assert_eq!(kinds, ["ADDED", "MODIFIED", "MODIFIED"]);
}

#[tokio::test]
async fn n1_a_connection_can_become_another_protocols() {
    let (cluster, extension) = aggregated(true).await;
    let mut client = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let path = format!("{THINGS}/x/console");
    let (code, stream) = client.upgrade(&path).await;
    assert_eq!(code, StatusCode::SWITCHING_PROTOCOLS);
    let mut stream = TokioIo::new(stream.unwrap());
    stream.write_all(b"abcd").await.unwrap();
    let mut buffer = [0; 4];
    stream.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"dcba");
    let received = extension.last(&path);
    assert_eq!(received["proxy"], "front-proxy-client");
    assert_eq!(received["headers"]["x-remote-user"], json!(["admin"]));
    assert!(received["headers"]["authorization"].is_null());
    // An upgrade that the extension API server rejects is returned to the client, too.
    let mut client = cluster.connect(&Credentials::token(ADMIN)).await.unwrap();
    let (code, _) = client.upgrade(THINGS).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn n1_redirects_and_ambiguous_paths_lead_nowhere() {
    let (cluster, extension) = aggregated(true).await;
    let moved = cluster.admin("GET", &format!("{ROOT}/moved"), None).await;
    assert_eq!(
        (moved.code, moved.text.as_str()),
        (
            502,
            "the backend attempted to redirect this request, which is not permitted"
        )
    );
    assert!(!moved.headers.contains_key("location"));
    for path in [
        "/apis/example.com/v1/namespaces/a%2Fthings%2Fx",
        "/apis/example.com/v1/namespaces/a/things/%2e%2e/secrets",
        "/apis/example.com/v1//things",
    ] {
        let before = extension.state.asked.lock().len();
        assert_eq!(cluster.admin("GET", path, None).await.code, 404, "{path}");
        assert_eq!(extension.state.asked.lock().len(), before, "{path}");
    }
}

#[tokio::test]
async fn n1_the_condition_says_what_is_wrong_and_clients_get_a_503() {
    let cluster = Cluster::start().await;
    let extension = Extension::start(cluster.pki.front_proxy_ca_pem(), cluster.now(), true).await;
    // A CA that did not sign its certificate.
    let other = Extension::start(cluster.pki.front_proxy_ca_pem(), cluster.now(), true).await;
    cluster
        .create(API_SERVICES, api_service(json!({"caBundle": other.ca})))
        .await;
    let found = condition(&cluster, "ServiceNotFound").await;
    assert_eq!(found["status"], "False");
    assert_eq!(found["message"], "service/api in \"default\" is not present");
    let rejected = cluster.admin("GET", THINGS, None).await;
    assert_eq!(
        (rejected.code, rejected.text.as_str()),
        (503, "service unavailable\n")
    );
    service(&cluster, extension.port).await;
    condition(&cluster, "EndpointsNotFound").await;
    let mut made = cluster.create(SLICES, slice(extension.port)).await;
    let found = condition(&cluster, "FailedDiscoveryCheck").await;
    let message = found["message"].as_str().unwrap();
    let url = format!("https://10.244.0.5:{}/apis/example.com/v1", extension.port);
    let want =
        format!("failing or missing response from {url}: Get \"{url}\": tls: failed to verify certificate");
    assert!(message.starts_with(&want), "{message}");
    assert_eq!(extension.state.asked.lock().len(), 0);
    made["endpoints"][0]["conditions"]["ready"] = json!(false);
    made = cluster
        .admin("PUT", &format!("{SLICES}/api-1"), Some(made))
        .await
        .expect(200);
    let found = condition(&cluster, "MissingEndpoints").await;
    assert_eq!(
        found["message"],
        "endpointslices for service/api in \"default\" have no addresses with port name \"https\""
    );
    // The right CA, and later none at all.
    made["endpoints"][0]["conditions"]["ready"] = json!(true);
    cluster
        .admin("PUT", &format!("{SLICES}/api-1"), Some(made))
        .await
        .expect(200);
    let merge = Credentials::token(ADMIN).header("content-type", "application/merge-patch+json");
    let path = format!("{API_SERVICES}/{NAME}");
    for spec in [
        json!({"caBundle": extension.ca}),
        json!({"caBundle": null, "insecureSkipTLSVerify": true}),
    ] {
        let patch = json!({ "spec": spec });
        cluster.ask(&merge, "PATCH", &path, Some(patch)).await.expect(200);
        let found = condition(&cluster, "Passed").await;
        assert_eq!(found["message"], "all checks passed");
        until(&cluster, THINGS, |answer| answer.code == 200).await;
    }
    // An APIService without a Service is served by this server again.
    let patch = json!({"spec": {"service": null, "insecureSkipTLSVerify": null}});
    cluster.ask(&merge, "PATCH", &path, Some(patch)).await.expect(200);
    let found = condition(&cluster, "Local").await;
    assert_eq!(found["message"], "Local APIServices are always available");
    assert_eq!(cluster.admin("GET", THINGS, None).await.code, 404);
}

#[tokio::test]
async fn n1_discovery_and_openapi_show_all_servers() {
    let (cluster, extension) = aggregated(true).await;
    let groups = cluster.admin("GET", "/apis", None).await.expect(200);
    let names = |groups: &Value| -> Vec<String> {
        let groups = groups["groups"].as_array().unwrap().iter();
        groups.map(|g| g["name"].as_str().unwrap().to_string()).collect()
    };
    assert!(names(&groups).contains(&"example.com".to_string()));
    let group = cluster.admin("GET", "/apis/example.com", None).await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "example.com/v1");
    let version = cluster.admin("GET", ROOT, None).await.expect(200);
    assert_eq!(version["mine"], true);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let whole = Credentials::token(ADMIN).header("accept", accept);
    let of_group = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        let mut found = items.filter(|i| i["metadata"]["name"] == "example.com");
        found.next().cloned().unwrap_or_default()["versions"][0].clone()
    };
    let mut entry = Value::Null;
    for _ in 0..300 {
        let list = cluster.ask(&whole, "GET", "/apis", None).await.expect(200);
        entry = of_group(&list);
        if entry["freshness"] == "Current" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(entry["freshness"], "Current");
    assert_eq!(entry["resources"][0]["resource"], "things");
    let document = until(&cluster, "/openapi/v2", |answer| {
        answer
            .text
            .contains("/apis/example.com/v1/namespaces/{namespace}/things")
    })
    .await
    .body;
    assert_eq!(
        document["definitions"]["com.example.v1.Thing"]["description"],
        "a thing"
    );
    assert_ne!(
        document["paths"]["/api/v1/pods"]["get"]["responses"]["200"]["schema"]["$ref"],
        "#/definitions/com.example.v1.Thing"
    );
    let index = until(&cluster, "/openapi/v3", |answer| {
        answer.text.contains("apis/example.com/v1")
    })
    .await;
    let index: Value = serde_json::from_str(&index.text).unwrap();
    assert_eq!(
        index["paths"]["apis/example.com/v1"]["serverRelativeURL"],
        "/openapi/v3/apis/example.com/v1?hash=AB"
    );
    assert_ne!(
        index["paths"]["apis/apps/v1"]["serverRelativeURL"],
        "/openapi/v3/apis/apps/v1?hash=CD"
    );
    let v3 = "/openapi/v3/apis/example.com/v1?hash=AB";
    let document = cluster.admin("GET", v3, None).await.expect(200);
    assert_eq!(document["openapi"], "3.0.0");
    // Without the APIService nothing of it is left.
    cluster
        .admin("DELETE", &format!("{API_SERVICES}/{NAME}"), None)
        .await
        .expect(200);
    until(&cluster, ROOT, |answer| answer.code == 404).await;
    let groups = cluster.admin("GET", "/apis", None).await.expect(200);
    assert!(!names(&groups).contains(&"example.com".to_string()));
    assert_eq!(cluster.admin("GET", "/apis/example.com", None).await.code, 404);
    let document = cluster.admin("GET", "/openapi/v2", None).await;
    assert!(!document.text.contains("com.example.v1.Thing"));
    drop(extension);
}

#[tokio::test]
async fn n1_components_read_and_empty_what_extension_api_servers_have() {
    let (cluster, extension) = aggregated(true).await;
    for name in ["a", "b"] {
        let thing = json!({"metadata": {"name": name}});
        extension
            .state
            .things
            .lock()
            .insert(format!("{THINGS}/{name}"), thing);
    }
    let other = "/apis/example.com/v1/namespaces/other/things";
    let thing = json!({"metadata": {"name": "c"}});
    extension.state.things.lock().insert(format!("{other}/c"), thing);
    let api = cluster.server.api(&Component::Controller("namespace-controller"));
    let list = api.get_raw(THINGS).await.unwrap();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        extension.last(THINGS)["headers"]["x-remote-user"],
        json!(["system:serviceaccount:kube-system:namespace-controller"])
    );
    let mut emptied = api.delete_extension_contents("default").await;
    for _ in 0..300 {
        if emptied.is_ok() {
            break;
        }
        // Its discovery was not downloaded yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
        emptied = api.delete_extension_contents("default").await;
    }
    emptied.unwrap();
    let left: Vec<String> = extension.state.things.lock().keys().cloned().collect();
    assert_eq!(left, [format!("{other}/c")]);
    assert!(
        api.get_raw("/apis/none.example.com/v1/x")
            .await
            .unwrap_err()
            .is_not_found()
    );
    let bob = cluster.server.api_as("bob", [""; 0]);
    assert_eq!(bob.get_raw(THINGS).await.unwrap_err().code(), 403);
}
