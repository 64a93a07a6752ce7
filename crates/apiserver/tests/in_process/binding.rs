//! Bindings of components in this process.

use super::*;

/// A component binds without a document in between: the pod and the errors are those of a Binding that is one.
#[tokio::test(start_paused = true)]
async fn l2_a_components_binding_does_what_a_document_does() {
    let c = cluster().await;
    let binding = |name: &str, uid: &str, node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": {"a": "b"}},
            "target": {"kind": "Node", "name": node},
        })
    };
    let mut pods = Vec::new();
    for name in ["typed", "document"] {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "img:1"}], "automountServiceAccountToken": false},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pods.push(c.api.create_as(pod).await.unwrap());
    }
    let bind = async |name: &str, uid: &str, node: &str| {
        let body = binding(name, uid, node);
        let answer = match name {
            "typed" => {
                c.api
                    .create_binding(serde_json::from_value(body).unwrap(), None)
                    .await
            }
            name => c
                .api
                .create_subresource(&POD, "default", name, "binding", body)
                .await
                .map(drop),
        };
        answer.map_err(|e| (e.code(), e.message().replace(name, "NAME")))
    };
    let uids = [&pods[0], &pods[1]].map(|pod| pod.object().uid().to_string());
    for (uid_is, node, bound) in [
        (false, "n1", false),
        (true, "", false),
        (true, "n1", true),
        (true, "n2", false),
    ] {
        let uid = |at: usize| if uid_is { uids[at].as_str() } else { "other" };
        let typed = bind("typed", uid(0), node).await;
        let document = bind("document", uid(1), node).await;
        let without_uid = |answer: Result<(), (u16, String)>, uid: &str| {
            answer.map_err(|(code, message)| (code, message.replace(uid, "UID")))
        };
        let (typed, document) = (without_uid(typed, &uids[0]), without_uid(document, &uids[1]));
        assert_eq!(typed, document, "{node}");
        assert_eq!(typed.is_ok(), bound, "{node}: {typed:?}");
    }
    let mut written = Vec::new();
    for name in ["typed", "document"] {
        let pod = c.api.get(&POD, "default", name).await.unwrap();
        let mut json: Value = serde_json::from_slice(pod.json()).unwrap();
        assert_eq!(json["spec"]["nodeName"], "n1");
        assert_eq!(json["metadata"]["annotations"]["a"], "b");
        for field in ["name", "uid", "resourceVersion"] {
            assert!(json["metadata"].as_object_mut().unwrap().remove(field).is_some());
        }
        written.push(json);
    }
    assert_eq!(written[0], written[1]);
}
