//! Admission policies get subresource requests like all other requests.

use serde_json::{Value, json};

use crate::cluster::{Cluster, Credentials, grant};

const NS: &str = "/api/v1/namespaces/default";
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// Creates a policy and its binding. It denies the requests that its rule matches, with the expression's message.
async fn policy(cluster: &Cluster, name: &str, rule: Value, says: &str) {
    let mut whole =
        json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]});
    knarr_api::patch::merge::apply(&mut whole, &rule);
    let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [whole]},
        "validations": [{"expression": "false", "messageExpression": says}]});
    let made = json!({"metadata": {"name": name}, "spec": spec});
    cluster
        .create(&format!("{GROUP}/validatingadmissionpolicies"), made)
        .await;
    let made =
        json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    cluster
        .create(&format!("{GROUP}/validatingadmissionpolicybindings"), made)
        .await;
}

async fn objects(cluster: &Cluster) {
    let account = json!({"metadata": {"name": "robot"}});
    cluster.create(&format!("{NS}/serviceaccounts"), account).await;
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
    let spec = json!({"serviceAccountName": "robot", "containers": [container]});
    let pod = json!({"metadata": {"name": "p"}, "spec": spec});
    cluster.create(&format!("{NS}/pods"), pod).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
    let deployment = json!({"metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    cluster.create(deployments, deployment).await;
    cluster
        .create("/api/v1/nodes", json!({"metadata": {"name": "n1"}}))
        .await;
}

#[tokio::test]
async fn every_subresource_is_admitted_with_its_own_kind() {
    let cluster = Cluster::start().await;
    objects(&cluster).await;
    let says = "request.operation + ' ' + request.resource.resource + '/' + request.subResource + '=' + \
        request.requestSubResource + ' ' + request.name + ' ' + request.kind.group + '/' + request.kind.version + ' ' + \
        request.kind.kind + ' ' + object.kind + ' ' + (request.options == null ? '-' : request.options.kind)";
    policy(&cluster, "no", json!({}), says).await;
    let pod = format!("{NS}/pods/p");
    let merge =
        Credentials::token(crate::cluster::ADMIN).header("content-type", "application/merge-patch+json");
    let scale = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    let resize = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
    let strategic = Credentials::token(crate::cluster::ADMIN)
        .header("content-type", "application/strategic-merge-patch+json");
    let admin = Credentials::token(crate::cluster::ADMIN);
    for (credentials, method, path, body, message) in [
        (
            &admin,
            "POST",
            format!("{pod}/binding"),
            Some(binding.clone()),
            "CREATE pods/binding=binding p /v1 Binding Binding CreateOptions",
        ),
        (
            &admin,
            "POST",
            format!("{NS}/bindings"),
            Some(binding),
            "CREATE pods/binding=binding p /v1 Binding Binding CreateOptions",
        ),
        (
            &admin,
            "POST",
            format!("{pod}/eviction"),
            Some(eviction),
            "CREATE pods/eviction=eviction p policy/v1 Eviction Eviction CreateOptions",
        ),
        (
            &admin,
            "POST",
            format!("{NS}/serviceaccounts/robot/token"),
            Some(json!({})),
            "CREATE serviceaccounts/token=token robot authentication.k8s.io/v1 TokenRequest TokenRequest CreateOptions",
        ),
        (
            &admin,
            "POST",
            format!("{pod}/exec?command=sh"),
            None,
            "CONNECT pods/exec=exec p /v1 PodExecOptions PodExecOptions -",
        ),
        (
            &admin,
            "GET",
            format!("{pod}/attach?stdin=true"),
            None,
            "CONNECT pods/attach=attach p /v1 PodAttachOptions PodAttachOptions -",
        ),
        (
            &admin,
            "POST",
            format!("{pod}/portforward"),
            None,
            "CONNECT pods/portforward=portforward p /v1 PodPortForwardOptions PodPortForwardOptions -",
        ),
        (
            &admin,
            "GET",
            format!("{NS}/pods/p:80/proxy/x"),
            None,
            "CONNECT pods/proxy=proxy p:80 /v1 PodProxyOptions PodProxyOptions -",
        ),
        (
            &admin,
            "DELETE",
            format!("{NS}/services/s/proxy/x"),
            None,
            "CONNECT services/proxy=proxy s /v1 ServiceProxyOptions ServiceProxyOptions -",
        ),
        (
            &admin,
            "GET",
            "/api/v1/nodes/n1/proxy/".into(),
            None,
            "CONNECT nodes/proxy=proxy n1 /v1 NodeProxyOptions NodeProxyOptions -",
        ),
        (
            &merge,
            "PATCH",
            scale.into(),
            Some(json!({"spec": {"replicas": 3}})),
            "UPDATE deployments/scale=scale d autoscaling/v1 Scale Scale UpdateOptions",
        ),
        (
            &merge,
            "PATCH",
            format!("{pod}/status"),
            Some(json!({"status": {"message": "m"}})),
            "UPDATE pods/status=status p /v1 Pod Pod UpdateOptions",
        ),
        (
            &strategic,
            "PATCH",
            format!("{pod}/ephemeralcontainers"),
            Some(debug),
            "UPDATE pods/ephemeralcontainers=ephemeralcontainers p /v1 Pod Pod UpdateOptions",
        ),
        (
            &strategic,
            "PATCH",
            format!("{pod}/resize"),
            Some(resize),
            "UPDATE pods/resize=resize p /v1 Pod Pod UpdateOptions",
        ),
    ] {
        let answer = cluster.ask(credentials, method, &path, body).await;
        let by = format!("ValidatingAdmissionPolicy 'no' with binding 'no' denied request: {message}");
        assert_eq!(answer.code, 422, "{method} {path}: {}", answer.text);
        assert!(
            answer.message().ends_with(&by),
            "{method} {path}: {}",
            answer.message()
        );
    }
    let scaled = cluster.admin("GET", scale, None).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 2, "nothing was changed");
}

#[tokio::test]
async fn a_rule_about_some_subresources_is_about_no_others() {
    let cluster = Cluster::start().await;
    objects(&cluster).await;
    let connects = json!({"operations": ["CONNECT"], "resources": ["pods/attach"]});
    policy(
        &cluster,
        "no-attach",
        connects,
        "'attaching to pod is not allowed'",
    )
    .await;
    policy(
        &cluster,
        "no-scale",
        json!({"resources": ["*/scale"]}),
        "'to ' + string(object.spec.replicas) + ' from ' + string(oldObject.spec.replicas)",
    )
    .await;
    let shell = json!({"operations": ["CONNECT"], "resources": ["pods/exec"]});
    policy(
        &cluster,
        "exec",
        shell,
        "object.container + (object.stdin ? ' stdin ' : ' ') + object.command[1] + (has(object.tty) ? ' tty' : '')",
    )
    .await;
    let pod = format!("{NS}/pods/p");
    let denied = |answer: crate::cluster::TestResponse| {
        assert_eq!(answer.code, 422, "{}", answer.text);
        answer
            .message()
            .rsplit("denied request: ")
            .next()
            .unwrap()
            .to_string()
    };
    let attach = cluster
        .admin("POST", &format!("{pod}/attach?stdin=1"), None)
        .await;
    assert_eq!(denied(attach), "attaching to pod is not allowed");
    let path = format!("{pod}/exec?container=c&stdin=true&tty=false&command=sh&command=-c");
    assert_eq!(denied(cluster.admin("POST", &path, None).await), "c stdin -c");
    // No policy matches port-forwarding: the error is that the pod has no node.
    let forward = cluster
        .admin("POST", &format!("{pod}/portforward?ports=80"), None)
        .await;
    assert_eq!(
        (forward.code, forward.message()),
        (400, "pod p does not have a host assigned")
    );
    let scale = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    let new = json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": 5}});
    assert_eq!(
        denied(cluster.admin("PUT", scale, Some(new)).await),
        "to 5 from 2"
    );
    // The replicas are the Deployment's own field, too.
    let merge =
        Credentials::token(crate::cluster::ADMIN).header("content-type", "application/merge-patch+json");
    let deployment = "/apis/apps/v1/namespaces/default/deployments/d";
    let more = json!({"spec": {"replicas": 4}});
    cluster
        .ask(&merge, "PATCH", deployment, Some(more))
        .await
        .expect(200);
}

#[tokio::test]
async fn the_write_of_a_binding_or_an_eviction_is_not_admitted_again() {
    let cluster = Cluster::start().await;
    objects(&cluster).await;
    // A user that may bind and evict need not be allowed to change or delete pods.
    let writes = json!({"operations": ["UPDATE", "DELETE"], "resources": ["pods", "pods/status"]});
    policy(&cluster, "no-writes", writes, "'pods stay as they are'").await;
    let pod = format!("{NS}/pods/p");
    let answer = cluster.admin("DELETE", &pod, None).await;
    assert_eq!(answer.code, 422, "{}", answer.text);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    cluster.create(&format!("{pod}/binding"), binding).await;
    let found = cluster.admin("GET", &pod, None).await.expect(200);
    assert_eq!(found["spec"]["nodeName"], "n1");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    cluster.create(&format!("{pod}/eviction"), eviction).await;
    let found = cluster.admin("GET", &pod, None).await.expect(200);
    assert!(found["metadata"]["deletionTimestamp"].is_string(), "{found}");
}

#[tokio::test]
async fn mutating_policies_change_a_scale_and_exec_options() {
    let cluster = Cluster::start().await;
    objects(&cluster).await;
    for (name, rule, patch) in [
        (
            "at-most-three",
            json!({"operations": ["UPDATE"], "apiGroups": ["apps"], "resources": ["deployments/scale"]}),
            "[JSONPatch{op: 'replace', path: '/spec/replicas', value: 3}]",
        ),
        (
            "other-container",
            json!({"operations": ["CONNECT"], "apiGroups": [""], "resources": ["pods/attach"]}),
            "[JSONPatch{op: 'add', path: '/container', value: 'other'}]",
        ),
    ] {
        let mut whole = json!({"apiVersions": ["*"]});
        knarr_api::patch::merge::apply(&mut whole, &rule);
        let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [whole]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]});
        let made = json!({"metadata": {"name": name}, "spec": spec});
        cluster
            .create(&format!("{GROUP}/mutatingadmissionpolicies"), made)
            .await;
        let made = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
        cluster
            .create(&format!("{GROUP}/mutatingadmissionpolicybindings"), made)
            .await;
    }
    let merge =
        Credentials::token(crate::cluster::ADMIN).header("content-type", "application/merge-patch+json");
    let scale = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    let more = json!({"spec": {"replicas": 9}});
    let scaled = cluster.ask(&merge, "PATCH", scale, Some(more)).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    let answer = cluster.admin("POST", &format!("{NS}/pods/p/attach"), None).await;
    assert_eq!(answer.message(), "container other is not valid for pod p");
}

#[tokio::test]
async fn nothing_is_created_in_a_terminating_namespace() {
    let cluster = Cluster::start().await;
    cluster
        .create(
            "/api/v1/namespaces",
            json!({"metadata": {"name": "old"}, "spec": {"finalizers": ["kubernetes"]}}),
        )
        .await;
    let account = json!({"metadata": {"name": "robot"}});
    cluster
        .create("/api/v1/namespaces/old/serviceaccounts", account)
        .await;
    cluster
        .admin("DELETE", "/api/v1/namespaces/old", None)
        .await
        .expect(200);
    let token = "/api/v1/namespaces/old/serviceaccounts/robot/token";
    let answer = cluster.admin("POST", token, Some(json!({}))).await;
    assert_eq!(
        (answer.code, answer.message()),
        (
            403,
            "serviceaccounts \"robot\" is forbidden: unable to create new content in namespace old because it is being \
             terminated"
        )
    );
}

#[tokio::test]
async fn get_on_exec_alone_runs_no_command_over_a_websocket() {
    let cluster = Cluster::start().await;
    objects(&cluster).await;
    let path = format!("{NS}/pods/p/exec?command=sh");
    let ann = Credentials::token("ann-token");
    let may = |verb: &str| json!([{"apiGroups": [""], "resources": ["pods/exec"], "verbs": [verb]}]);
    grant(&cluster, "reads", "ann", may("get")).await;
    assert_eq!(cluster.ask(&ann, "GET", &path, None).await.code, 403);
    grant(&cluster, "enters", "ann", may("create")).await;
    let answer = cluster.ask(&ann, "GET", &path, None).await;
    assert_eq!(answer.message(), "pod p does not have a host assigned");
}
