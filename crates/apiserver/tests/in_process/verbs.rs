//! Requests of components in this process are authorized with the same attributes as requests over HTTP (SPEC A2).

use http::Method;
use knarr_api::registry::{self, ALL};
use knarr_apiserver::authz::{Attributes, Authorizer};
use knarr_apiserver::request::RequestInfo;
use knarr_apiserver::{Options, User};
use knarr_client::Api;
use parking_lot::Mutex;
use serde_json::Value;

use super::*;

/// Records the requests and their users, and denies them.
#[derive(Default)]
struct DenyingRecorder(Mutex<Vec<String>>);

fn text(a: &Attributes<'_>) -> String {
    let (path, fields, labels) = (a.path, a.field_selector, a.label_selector);
    let parts = [
        a.verb,
        a.group,
        a.resource,
        a.subresource,
        a.namespace,
        a.name,
        fields,
        labels,
    ];
    format!("{} {path:?}", parts.join("|"))
}

impl Authorizer for DenyingRecorder {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool {
        if user.name == "tester" {
            self.0.lock().push(text(request));
        }
        user.name != "tester"
    }
}

async fn denied() -> (Cluster, Arc<dyn Api>, Arc<DenyingRecorder>) {
    let denier = Arc::<DenyingRecorder>::default();
    let options = Options {
        authorizer: Some(denier.clone()),
        ..Options::default()
    };
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let cluster = server_with(store, options).await;
    let api = cluster.server.api_as("tester", ["test"]);
    (cluster, api, denier)
}

/// The attributes of a request over HTTP.
fn over_http(method: &Method, path: &str, watch: bool, selectors: (&str, &str)) -> String {
    let info = RequestInfo::parse(method, path, watch);
    let selectors = knarr_apiserver::authz::Selectors {
        fields: selectors.0,
        labels: selectors.1,
    };
    text(&Attributes::of(&info, selectors))
}

#[tokio::test]
async fn a2_a_component_in_this_process_is_asked_as_a_client_over_http_is() {
    let (_cluster, api, denier) = denied().await;
    for kind in ALL.iter().copied().filter(|k| k.is_stored()) {
        let root = match kind.group() {
            "" => format!("/api/{}", kind.version()),
            group => format!("/apis/{group}/{}", kind.version()),
        };
        let namespace = if kind.namespaced() { "a" } else { "" };
        let all = match namespace {
            "" => format!("{root}/{}", kind.plural()),
            of => format!("{root}/namespaces/{of}/{}", kind.plural()),
        };
        let one = format!("{all}/x");
        let object = || {
            let mut meta = json!({"name": "x"});
            if kind.namespaced() {
                meta["namespace"] = "a".into();
            }
            let text = json!({"metadata": meta}).to_string();
            kind.ops.decode(text.as_bytes()).unwrap().object
        };
        let chosen = "metadata.name=x";
        let list = |fields: &str| ListOptions {
            namespace: namespace.into(),
            field_selector: fields.into(),
            label_selector: "a=b".into(),
            ..ListOptions::default()
        };
        let watch = WatchOptions {
            namespace: namespace.into(),
            field_selector: chosen.into(),
            ..WatchOptions::default()
        };
        let merge = || Patch::Merge(json!({}));
        let no = ("", "");
        let answers = [
            (
                api.get(kind, namespace, "x").await.err(),
                over_http(&Method::GET, &one, false, no),
            ),
            (
                api.list(kind, list("")).await.err(),
                over_http(&Method::GET, &all, false, ("", "a=b")),
            ),
            (
                api.list(kind, list(chosen)).await.err(),
                over_http(&Method::GET, &all, false, (chosen, "a=b")),
            ),
            (
                api.watch(kind, watch).await.err(),
                over_http(&Method::GET, &all, true, (chosen, "")),
            ),
            (
                api.create(kind, object()).await.err(),
                over_http(&Method::POST, &all, false, no),
            ),
            (
                api.update(kind, object(), "").await.err(),
                over_http(&Method::PUT, &one, false, no),
            ),
            (
                api.patch(kind, namespace, "x", "", merge()).await.err(),
                over_http(&Method::PATCH, &one, false, no),
            ),
            (
                api.delete(kind, namespace, "x", DeleteOptions::default())
                    .await
                    .err(),
                over_http(&Method::DELETE, &one, false, no),
            ),
        ];
        let asked = std::mem::take(&mut *denier.0.lock());
        for ((error, expected), asked) in answers.into_iter().zip(&asked) {
            assert_eq!(error.map(|e| e.code()), Some(403), "{expected}");
            assert_eq!(*asked, expected);
        }
        assert_eq!(asked.len(), 8, "{}: {asked:?}", kind.plural());
        for sub in kind.subresources {
            let path = format!("{one}/{}", sub.name);
            let expected = if sub.verbs.contains(&"patch") && sub.name != "proxy" {
                let error = api.patch(kind, namespace, "x", sub.name, merge()).await.err();
                assert_eq!(error.map(|e| e.code()), Some(403), "{path}");
                over_http(&Method::PATCH, &path, false, no)
            } else if sub.verbs == ["create"] {
                let made = api.create_subresource(kind, namespace, "x", sub.name, Value::Null);
                assert_eq!(made.await.err().map(|e| e.code()), Some(403), "{path}");
                over_http(&Method::POST, &path, false, no)
            } else {
                continue;
            };
            assert_eq!(std::mem::take(&mut *denier.0.lock()), [expected]);
        }
    }
}

#[tokio::test]
async fn a2_a_binding_of_a_component_is_authorized_as_one_over_http() {
    let (_cluster, api, denier) = denied().await;
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "x", "namespace": "a"}})).unwrap();
    let error = api.bind(&pod, &"n1".into()).await.unwrap_err();
    assert_eq!(error.code(), 403);
    let expected = over_http(
        &Method::POST,
        "/api/v1/namespaces/a/pods/x/binding",
        false,
        ("", ""),
    );
    assert_eq!(std::mem::take(&mut *denier.0.lock()), [expected]);
}

/// A kind outside its scope gets a 404, and no authorizer is called.
#[tokio::test]
async fn a2_a_component_in_this_process_reaches_no_kind_outside_its_scope() {
    let (_cluster, api, denier) = denied().await;
    let in_a = ListOptions {
        namespace: "a".into(),
        ..ListOptions::default()
    };
    let none = DeleteOptions::default;
    for error in [
        api.get(&registry::NAMESPACE, "a", "a").await.err(),
        api.list(&registry::NAMESPACE, in_a.clone()).await.err(),
        api.list(&registry::NODE, in_a).await.err(),
        api.delete(&registry::NAMESPACE, "a", "b", none()).await.err(),
        api.get(&registry::POD, "", "x").await.err(),
        api.delete(&registry::POD, "", "x", none()).await.err(),
        api.patch(&registry::POD, "", "x", "status", Patch::Merge(json!({})))
            .await
            .err(),
        api.patch(&registry::POD, "a", "x", "nothing", Patch::Merge(json!({})))
            .await
            .err(),
    ] {
        assert_eq!(error.map(|e| e.code()), Some(404));
    }
    assert_eq!(*denier.0.lock(), Vec::<String>::new());
}

/// An update that creates requires both permissions, in this process too.
#[tokio::test]
async fn a2_an_update_in_this_process_that_creates_asks_for_create() {
    struct Updates;
    impl Authorizer for Updates {
        fn allows(&self, user: &User, request: &Attributes<'_>) -> bool {
            user.name != "tester" || request.verb == "update"
        }
    }
    let options = Options {
        authorizer: Some(Arc::new(Updates)),
        ..Options::default()
    };
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let cluster = server_with(store, options).await;
    let lease = || {
        let text = br#"{"metadata":{"name":"x","namespace":"default"}}"#;
        registry::LEASE.ops.decode(text).unwrap().object
    };
    let api = cluster.server.api_as("tester", ["test"]);
    let error = api.update(&registry::LEASE, lease(), "").await.unwrap_err();
    assert_eq!(
        error.message(),
        "leases.coordination.k8s.io \"x\" is forbidden: User \"tester\" cannot create resource \"leases\" in API group \
\"coordination.k8s.io\" in the namespace \"default\""
    );
    let made = cluster.api.update(&registry::LEASE, lease(), "").await.unwrap();
    let again = made.typed().clone_box();
    api.update(&registry::LEASE, again, "").await.unwrap();
}
