//! SubjectAccessReviews give the same decision as the request itself.

use serde_json::{Value, json};

use crate::cluster::{ADMIN, Cluster, Credentials, grant};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

async fn allowed(cluster: &Cluster, attributes: Value) -> bool {
    let mut spec = attributes;
    spec["user"] = json!("ann");
    let answer = cluster
        .ask(
            &Credentials::token(ADMIN),
            "POST",
            REVIEWS,
            Some(json!({"spec": spec})),
        )
        .await;
    answer.expect(201)["status"]["allowed"] == true
}

#[tokio::test]
async fn a2_a_resource_without_a_name_is_no_path() {
    let cluster = Cluster::start().await;
    let paths = json!([{"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    grant(&cluster, "paths", "ann", paths).await;
    let resource = |resource: &str| json!({"resourceAttributes": {"verb": "get", "resource": resource}});
    assert!(!allowed(&cluster, resource("")).await);
    assert!(!allowed(&cluster, resource("pods")).await);
    let path = |path: &str| json!({"nonResourceAttributes": {"verb": "get", "path": path}});
    assert!(allowed(&cluster, path("")).await);
    assert!(allowed(&cluster, path("/metrics")).await);
    let resources = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get"]}]);
    grant(&cluster, "resources", "ann", resources).await;
    assert!(allowed(&cluster, resource("")).await);
}

/// A node may watch what it selects by label, and only that request.
#[tokio::test]
async fn a2_selectors_of_a_review_count_as_those_of_a_request() {
    let cluster = Cluster::start().await;
    let node = json!({"user": "system:node:n1", "groups": ["system:nodes"]});
    let volumes = |selector: Value| {
        let mut spec = node.clone();
        spec["resourceAttributes"] =
            json!({"verb": "list", "resource": "persistentvolumes", "labelSelector": selector});
        json!({"spec": spec})
    };
    let own = json!({"key": "knarr.io/node", "operator": "In", "values": ["n1"]});
    let both = json!({"key": "knarr.io/node", "operator": "In", "values": ["n1", "n2"]});
    let other = json!({"key": "knarr.io/node", "operator": "NotIn", "values": ["n1"]});
    for (selector, expected) in [
        (json!({"requirements": [own]}), true),
        (json!({"requirements": [both]}), false),
        (json!({"requirements": [other]}), false),
        (json!({"rawSelector": "knarr.io/node=n1"}), true),
        (json!({"rawSelector": "knarr.io/node in (n1),a=b"}), true),
        (json!({"rawSelector": "knarr.io/node=n2"}), false),
        (json!({"rawSelector": "knarr.io/node"}), false),
        (json!({"rawSelector": "knarr.io/node!=n1"}), false),
    ] {
        let review = volumes(selector.clone());
        let answer = cluster.create(REVIEWS, review).await;
        assert_eq!(answer["status"]["allowed"], expected, "{selector}");
    }
}
