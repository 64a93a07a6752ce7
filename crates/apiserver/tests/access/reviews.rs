//! Responses of the review kinds.

use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials, grant};

const GROUP: &str = "/apis/authorization.k8s.io/v1";

async fn review(cluster: &Cluster, kind: &str, spec: Value) -> (u16, Value) {
    let path = match kind {
        "localsubjectaccessreviews" => format!("{GROUP}/namespaces/a/{kind}"),
        _ => format!("{GROUP}/{kind}"),
    };
    let answer = cluster.admin("POST", &path, Some(json!({"spec": spec}))).await;
    let found = match answer.code {
        201 => answer.body["status"].clone(),
        _ => answer.body["details"]["causes"].clone(),
    };
    (answer.code, found)
}

#[tokio::test]
async fn subject_access_reviews_answer_as_for_the_subject() {
    let cluster = Cluster::start().await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    grant(&cluster, "pods", "ann", rules).await;
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "a"});
    let allowed = json!({"allowed": true, "reason":
        "RBAC: allowed by ClusterRoleBinding \"pods\" of ClusterRole \"pods\" to User \"ann\""});
    for kind in ["subjectaccessreviews", "localsubjectaccessreviews"] {
        let ask = |user: &str, resource: &Value| {
            review(
                &cluster,
                kind,
                json!({"user": user, "resourceAttributes": resource}),
            )
        };
        assert_eq!(ask("ann", &pods).await, (201, allowed.clone()), "{kind}");
        assert_eq!(
            ask("bob", &pods).await,
            (201, json!({"allowed": false})),
            "{kind}"
        );
    }
    let group = json!({"groups": ["system:masters"], "resourceAttributes": pods});
    assert_eq!(
        review(&cluster, "subjectaccessreviews", group).await,
        (201, json!({"allowed": true}))
    );
    let path = json!({"user": "x", "groups": ["system:authenticated"],
        "nonResourceAttributes": {"path": "/version", "verb": "get"}});
    let (code, status) = review(&cluster, "subjectaccessreviews", path.clone()).await;
    assert_eq!((code, &status["allowed"]), (201, &json!(true)));
    let (code, causes) = review(&cluster, "localsubjectaccessreviews", path).await;
    assert_eq!(
        (code, &causes[0]["field"]),
        (422, &json!("spec.nonResourceAttributes"))
    );
}

#[tokio::test]
async fn selectors_count_where_a_node_is_asked_about() {
    let cluster = Cluster::start().await;
    let ask = |selector: Value| {
        let resource = json!({"verb": "list", "resource": "pods", "fieldSelector": selector});
        let spec =
            json!({"user": "system:node:n1", "groups": ["system:nodes"], "resourceAttributes": resource});
        review(&cluster, "subjectaccessreviews", spec)
    };
    let required = |operator: &str, values: Value| json!({"requirements": [{"key": "spec.nodeName", "operator": operator, "values": values}]});
    for (selector, allowed) in [
        (json!({"rawSelector": "spec.nodeName=n1"}), true),
        (json!({"rawSelector": "spec.nodeName=n2"}), false),
        (json!({"rawSelector": "spec.nodeName!=n1"}), false),
        (required("In", json!(["n1"])), true),
        (required("In", json!(["n1", "n2"])), false),
        (required("NotIn", json!(["n1"])), false),
    ] {
        let (code, status) = ask(selector.clone()).await;
        assert_eq!(
            (code, &status["allowed"]),
            (201, &json!(allowed)),
            "{selector}: {status}"
        );
    }
    let (_, status) = ask(required("In", json!(["n1", "n2"]))).await;
    assert_eq!(
        status["evaluationError"],
        "spec.resourceAttributes.fieldSelector ignored due to parse error"
    );
    for (selector, field) in [
        (json!({}), "spec.resourceAttributes.fieldSelector.requirements"),
        (
            required("In", json!([])),
            "spec.resourceAttributes.fieldSelector.requirements[0].values",
        ),
        (
            required("Exists", json!(["x"])),
            "spec.resourceAttributes.fieldSelector.requirements[0].values",
        ),
        (
            json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]}),
            "spec.resourceAttributes.fieldSelector.rawSelector",
        ),
    ] {
        let (code, causes) = ask(selector.clone()).await;
        assert_eq!((code, &causes[0]["field"]), (422, &json!(field)), "{selector}");
    }
}

#[tokio::test]
async fn a_users_rules_are_listed() {
    let cluster = Cluster::start().await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"], "verbs": ["get"]}]);
    grant(&cluster, "pods", "ann", rules).await;
    let ann = Credentials::token("ann-token");
    let path = format!("{GROUP}/selfsubjectrulesreviews");
    let ask = |namespace: &str| {
        let body = json!({"spec": {"namespace": namespace}});
        let (cluster, ann, path) = (&cluster, &ann, &path);
        async move { cluster.ask(ann, "POST", path, Some(body)).await }
    };
    assert_eq!(ask("").await.code, 400);
    let status = ask("a").await.expect(201)["status"].clone();
    assert_eq!(status["incomplete"], false);
    let resources = status["resourceRules"].as_array().unwrap();
    let wanted = json!({"apiGroups": [""], "resourceNames": ["p"], "resources": ["pods"], "verbs": ["get"]});
    assert!(resources.contains(&wanted), "{status}");
    let urls = status["nonResourceRules"].as_array().unwrap();
    assert!(urls.iter().any(|r| r["nonResourceURLs"][0] == "/api"), "{status}");
    let node = Credentials::token("n1-token");
    let body = json!({"spec": {"namespace": "a"}});
    let status = cluster.ask(&node, "POST", &path, Some(body)).await.expect(201)["status"].clone();
    assert_eq!(status["incomplete"], true);
}
