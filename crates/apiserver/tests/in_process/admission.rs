//! Admission policies and webhooks, on a server over the memory store; webhooks over TLS on loopback.

use std::time::Duration;

use base64::Engine;
use knarr_api::Kind;
use knarr_api::registry::{
    MUTATING_ADMISSION_POLICY, MUTATING_ADMISSION_POLICY_BINDING, MUTATING_WEBHOOK_CONFIGURATION, SERVICE,
    VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING, VALIDATING_WEBHOOK_CONFIGURATION,
};
use rcgen::IsCa;
use serde_json::Value;

use super::hooks::{hook, hooks, rules};
use super::*;

fn decode(kind: &Kind, value: &Value) -> Box<dyn knarr_api::AnyObject> {
    kind.ops.decode(value.to_string().as_bytes()).unwrap().object
}

async fn create(c: &Cluster, kind: &Kind, value: Value) -> Result<Value, (u16, String)> {
    let made = c.api.create(kind, decode(kind, &value)).await;
    made.map(|o| serde_json::from_slice(o.json()).unwrap())
        .map_err(|e| (e.code(), e.message().to_string()))
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": data})
}

async fn policy(c: &Cluster, name: &str, spec: Value, binding: Value) {
    let mut whole =
        json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules(json!(["*"]))}});
    knarr_api::patch::merge::apply(&mut whole, &spec);
    let made = json!({"metadata": {"name": name}, "spec": whole});
    create(c, &VALIDATING_ADMISSION_POLICY, made).await.unwrap();
    let mut bound = json!({"policyName": name, "validationActions": ["Deny"]});
    knarr_api::patch::merge::apply(&mut bound, &binding);
    let made = json!({"metadata": {"name": format!("{name}-b")}, "spec": bound});
    create(c, &VALIDATING_ADMISSION_POLICY_BINDING, made)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn policies_get_the_binding_of_a_component_and_may_change_it() {
    let c = cluster().await;
    let rule = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["*"],
        "resources": ["pods/binding"]}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = c.api.create(&POD, decode(&POD, &pod)).await.unwrap();
    let pod: Pod = pod.to_typed().unwrap();
    policy(
        &c,
        "not-n1",
        json!({"matchConstraints": {"resourceRules": rule},
            "validations": [{"expression": "object.target.name != 'n1'", "message": "not n1"}]}),
        json!({}),
    )
    .await;
    let denied = c.api.bind(&pod, &"n1".into()).await.unwrap_err();
    assert!(denied.message().ends_with("denied request: not n1"), "{denied}");
    let mutation = "[JSONPatch{op: 'replace', path: '/target/name', value: 'n3'}]";
    let made = json!({"metadata": {"name": "to-n3"}, "spec": {
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": rule},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": mutation}}]}});
    create(&c, &MUTATING_ADMISSION_POLICY, made).await.unwrap();
    let made = json!({"metadata": {"name": "to-n3-b"}, "spec": {"policyName": "to-n3"}});
    create(&c, &MUTATING_ADMISSION_POLICY_BINDING, made)
        .await
        .unwrap();
    c.api.bind(&pod, &"n1".into()).await.unwrap();
    let bound = c.api.get(&POD, "default", "p").await.unwrap();
    assert_eq!(bound.field("spec.nodeName").unwrap(), "n3");
}

#[tokio::test(start_paused = true)]
async fn a_policy_denies_with_its_binding_and_parameters() {
    let c = cluster().await;
    create(&c, &CONFIG_MAP, map("limits", json!({"max": "3"})))
        .await
        .unwrap();
    policy(
        &c,
        "size",
        json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConditions": [{"name": "sized", "expression": "object != null && has(object.data) && 'n' in object.data"}],
            "variables": [{"name": "n", "expression": "int(object.data.n)"}],
            "validations": [{"expression": "variables.n <= int(params.data.max)",
                "messageExpression": "'n must be at most ' + params.data.max + ' in ' + namespaceObject.metadata.name"}]}),
        json!({"paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}}),
    )
    .await;
    create(&c, &CONFIG_MAP, map("small", json!({"n": "3"})))
        .await
        .unwrap();
    let (code, message) = create(&c, &CONFIG_MAP, map("large", json!({"n": "4"})))
        .await
        .unwrap_err();
    assert_eq!(code, 422);
    assert_eq!(
        message,
        "configmaps \"large\" is forbidden: ValidatingAdmissionPolicy 'size' with binding 'size-b' denied request: \
         n must be at most 3 in default"
    );
    // As in Kubernetes' storage, the resourceVersion is checked after admission.
    let mut versioned = map("versioned", json!({"n": "4"}));
    versioned["metadata"]["resourceVersion"] = "5".into();
    let (code, message) = create(&c, &CONFIG_MAP, versioned.clone()).await.unwrap_err();
    assert!(
        code == 422 && message.ends_with("n must be at most 3 in default"),
        "{message}"
    );
    versioned["data"]["n"] = "3".into();
    let (code, message) = create(&c, &CONFIG_MAP, versioned).await.unwrap_err();
    assert_eq!(
        (code, &*message),
        (500, "resourceVersion should not be set on objects to be created")
    );
    let grown = c
        .api
        .patch(
            &CONFIG_MAP,
            "default",
            "small",
            "",
            Patch::Merge(json!({"data": {"n": "x"}})),
        )
        .await
        .unwrap_err();
    assert!(
        grown.message().contains(
            "'size' with binding 'size-b' denied request: expression 'variables.n <= int(params.data.max)' resulted in \
             error: composited variable \"n\" fails to evaluate: "
        ),
        "{}",
        grown.message()
    );
    c.api
        .delete(&CONFIG_MAP, "default", "limits", DeleteOptions::default())
        .await
        .unwrap();
    let (_, message) = create(&c, &CONFIG_MAP, map("late", json!({"n": "1"})))
        .await
        .unwrap_err();
    assert!(
        message.ends_with(
            "denied request: failed to configure binding: no params found for policy binding with `Deny` \
             parameterNotFoundAction"
        ),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_validates_deletions_and_uses_the_authorizer() {
    let c = cluster().await;
    policy(
        &c,
        "keep",
        json!({"matchConstraints": {"resourceRules": rules(json!(["DELETE"]))},
            "validations": [{"expression": "oldObject.metadata.name != 'kept' && object == null", "message": "it stays", "reason": "Forbidden"},
                {"expression": "authorizer.group('').resource('pods').namespace('default').check('get').allowed()"}]}),
        json!({}),
    )
    .await;
    for name in ["kept", "other"] {
        create(&c, &CONFIG_MAP, map(name, json!({}))).await.unwrap();
    }
    let delete = |name: &'static str| {
        c.api
            .delete(&CONFIG_MAP, "default", name, DeleteOptions::default())
    };
    let rejected = delete("kept").await.unwrap_err();
    assert_eq!((rejected.code(), rejected.reason()), (403, "Forbidden"));
    assert!(
        rejected.message().ends_with("denied request: it stays"),
        "{rejected}"
    );
    delete("other").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_invalid_policy_is_rejected_with_the_field_that_is_wrong() {
    let c = cluster().await;
    let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules(json!(["*"]))},
        "variables": [{"name": "y", "expression": "1"}],
        "validations": [{"expression": "object.x == params.y"}, {"expression": "variables.z", "reason": "No"},
            {"expression": "object.x + 1", "messageExpression": "variables.y"}]});
    let made = json!({"metadata": {"name": "wrong"}, "spec": spec});
    let (code, message) = create(&c, &VALIDATING_ADMISSION_POLICY, made).await.unwrap_err();
    assert_eq!(code, 422);
    for part in [
        "spec.validations[0].expression: Invalid value: \"object.x == params.y\": compilation failed: ERROR: <input>:1:13: \
         undeclared reference to 'params' (in container '')",
        "spec.validations[1].expression: Invalid value: \"variables.z\": compilation failed: ERROR: <input>:1:10: undefined \
         field 'z'",
        "spec.validations[1].reason: Unsupported value: \"No\"",
        "spec.validations[2].expression: Invalid value: \"object.x + 1\": must evaluate to bool but got int",
        "spec.validations[2].messageExpression: Invalid value: \"variables.y\": must evaluate to string but got int",
    ] {
        assert!(message.contains(part), "{part}\nis missing in {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_with_invalid_match_conditions_is_rejected() {
    let c = cluster().await;
    for kind in [&VALIDATING_WEBHOOK_CONFIGURATION, &MUTATING_WEBHOOK_CONFIGURATION] {
        for (name, condition, why) in [
            (
                "good",
                json!({"name": "c", "expression": "object.metadata.name == 'x'"}),
                "",
            ),
            (
                "syntax",
                json!({"name": "c", "expression": "... [] bad expression"}),
                "webhooks[0].matchConditions[0].expression: Invalid value: \"... [] bad expression\": compilation failed: ",
            ),
            (
                "params",
                json!({"name": "c", "expression": "params.x == 1"}),
                "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')",
            ),
            (
                "nameless",
                json!({"name": "", "expression": "true"}),
                "webhooks[0].matchConditions[0].name: Required value",
            ),
        ] {
            let hook = json!({"name": "hook.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "rules": rules(json!(["CREATE"])), "clientConfig": {"url": "https://127.0.0.1:1/"},
                "matchConditions": [condition]});
            let made = create(&c, kind, json!({"metadata": {"name": name}, "webhooks": [hook]})).await;
            match (made, why) {
                (Ok(_), "") => {}
                (Err((422, message)), why) if !why.is_empty() => assert!(message.contains(why), "{message}"),
                (made, _) => panic!("{kind:?} {name}: {made:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mutating_policy_changes_what_is_written() {
    let c = cluster().await;
    let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": rules(json!(["CREATE"]))},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
            "Object{metadata: Object.metadata{labels: {'by': request.userInfo.username.replace(':', '.')}}}"}}]});
    let made = json!({"metadata": {"name": "label"}, "spec": spec});
    create(&c, &MUTATING_ADMISSION_POLICY, made).await.unwrap();
    let made = json!({"metadata": {"name": "label-b"}, "spec": {"policyName": "label"}});
    create(&c, &MUTATING_ADMISSION_POLICY_BINDING, made)
        .await
        .unwrap();
    let made = create(&c, &CONFIG_MAP, map("m", json!({"k": "v"})))
        .await
        .unwrap();
    assert!(made["metadata"]["labels"]["by"].is_string(), "{made}");
    assert_eq!(made["data"], json!({"k": "v"}));
}

fn patched(path: &str, request: &Value) -> Value {
    let encode = |patch: Value| base64::engine::general_purpose::STANDARD.encode(patch.to_string());
    let allow = json!({"allowed": true});
    match path {
        "/label" => {
            let patch = json!([{"op": "add", "path": "/data/seen", "value": request["operation"]}]);
            json!({"allowed": true, "patchType": "JSONPatch", "patch": encode(patch), "warnings": ["seen by the webhook"]})
        }
        "/count" => {
            let before = request["object"]["data"]["count"]
                .as_str()
                .unwrap_or("")
                .to_string();
            let patch = json!([{"op": "add", "path": "/data/count", "value": format!("{before}+")}]);
            json!({"allowed": true, "patchType": "JSONPatch", "patch": encode(patch)})
        }
        "/broken" => json!({"allowed": true, "patchType": "JSONPatch", "patch": "!"}),
        "/other" => json!({"allowed": true, "uid": "other"}),
        "/deny" => {
            json!({"allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": "not today"}})
        }
        "/silent" => json!({"allowed": false}),
        _ => allow,
    }
}

/// Real time: connections are made.
#[tokio::test]
async fn a_mutating_webhook_changes_what_is_written_and_is_reinvoked_by_its_policy() {
    let c = cluster().await;
    let server = hooks(patched, IsCa::NoCa).await;
    let again = json!({"name": "count.example.com", "reinvocationPolicy": "IfNeeded"});
    let configuration = json!({"metadata": {"name": "m"}, "webhooks": [
        hook(&server, "/count", again),
        hook(&server, "/label", json!({"objectSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}}))]});
    create(&c, &MUTATING_WEBHOOK_CONFIGURATION, configuration)
        .await
        .unwrap();
    let made = create(&c, &CONFIG_MAP, map("m", json!({"k": "v"})))
        .await
        .unwrap();
    assert_eq!(made["data"], json!({"k": "v", "seen": "CREATE", "count": "++"}));
    let mut skipped = map("s", json!({"k": "v"}));
    skipped["metadata"]["labels"] = json!({"skip": ""});
    let made = create(&c, &CONFIG_MAP, skipped).await.unwrap();
    assert_eq!(made["data"], json!({"k": "v", "count": "+"}));
    let asked = server.asked.lock().clone();
    assert_eq!(asked.len(), 4);
    let first = &asked[0];
    assert_eq!(
        first["resource"],
        json!({"group": "", "version": "v1", "resource": "configmaps"})
    );
    assert_eq!(
        (&first["namespace"], &first["name"]),
        (&json!("default"), &json!("m"))
    );
    assert_eq!(first["oldObject"], Value::Null);
    assert_eq!(first["options"]["kind"], "CreateOptions");
}

#[tokio::test]
async fn a_validating_webhook_denies_with_its_message_and_its_failures_are_reported() {
    let c = cluster().await;
    let server = hooks(patched, IsCa::NoCa).await;
    let url = |path: &str| format!("https://127.0.0.1:{}{path}?timeout=30s", server.port);
    let internal = |why: &str| {
        let said = format!("Internal error occurred: failed calling webhook \"hook.example.com\": {why}");
        Err((500, said))
    };
    let expressions =
        json!({"matchConditions": [{"name": "c", "expression": "object.metadata.name == 'other'"}]});
    let nowhere =
        json!({"clientConfig": {"url": null, "service": {"namespace": "default", "name": "nowhere"}}});
    for (what, hook, want) in [
        ("lets pass", hook(&server, "/allow", json!({})), Ok(())),
        (
            "denies",
            hook(&server, "/deny", json!({})),
            Err((
                403,
                "admission webhook \"hook.example.com\" denied the request: not today".to_string(),
            )),
        ),
        (
            "denies without a word",
            hook(&server, "/silent", json!({})),
            Err((
                400,
                "admission webhook \"hook.example.com\" denied the request without explanation".to_string(),
            )),
        ),
        ("is not meant", hook(&server, "/deny", expressions), Ok(())),
        (
            "is no webhook",
            hook(&server, "/missing", json!({})),
            internal("failed to call webhook: the server could not find the requested resource"),
        ),
        (
            "may fail",
            hook(&server, "/missing", json!({"failurePolicy": "Ignore"})),
            Ok(()),
        ),
        (
            "answers for another UID",
            hook(&server, "/other", json!({})),
            internal("received invalid webhook response: expected response.uid="),
        ),
        (
            "changes what it may not",
            hook(&server, "/label", json!({})),
            internal("received invalid webhook response: validating webhook may not return response.patch"),
        ),
        (
            "takes too long",
            hook(&server, "/hang", json!({"timeoutSeconds": 1})),
            internal(&format!(
                "failed to call webhook: Post {:?}: context deadline exceeded",
                url("/hang").replace("30s", "1s")
            )),
        ),
        (
            "is not there",
            hook(&server, "/", nowhere),
            internal("failed to call webhook: service \"nowhere\" not found"),
        ),
        (
            "is not trusted",
            hook(
                &server,
                "/",
                json!({"clientConfig": {"caBundle": hooks(patched, IsCa::NoCa).await.ca.clone()}}),
            ),
            internal(&format!(
                "failed to call webhook: Post {:?}: tls: failed to verify certificate: ",
                url("/")
            )),
        ),
    ] {
        let configuration = json!({"metadata": {"name": "v"}, "webhooks": [hook]});
        create(&c, &VALIDATING_WEBHOOK_CONFIGURATION, configuration)
            .await
            .unwrap();
        let found = create(&c, &CONFIG_MAP, map("m", json!({}))).await.map(drop);
        match (&found, &want) {
            (Err((code, message)), Err((wanted, begins))) => {
                assert!(
                    code == wanted && message.starts_with(begins),
                    "{what}: {code} {message}"
                );
            }
            _ => assert_eq!(found, want, "{what}"),
        }
        let none = DeleteOptions::default;
        if found.is_ok() {
            c.api.delete(&CONFIG_MAP, "default", "m", none()).await.unwrap();
        }
        c.api
            .delete(&VALIDATING_WEBHOOK_CONFIGURATION, "", "v", none())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_update_that_loses_against_a_deletion_is_answered_404() {
    let c = cluster().await;
    let server = hooks(patched, IsCa::NoCa).await;
    // It delays the update while the object is deleted.
    let holding = json!({"timeoutSeconds": 1, "failurePolicy": "Ignore", "rules": rules(json!(["UPDATE"]))});
    let configuration = json!({"metadata": {"name": "v"}, "webhooks": [hook(&server, "/hang", holding)]});
    create(&c, &VALIDATING_WEBHOOK_CONFIGURATION, configuration)
        .await
        .unwrap();
    let mut made = create(&c, &CONFIG_MAP, map("m", json!({}))).await.unwrap();
    made["data"] = json!({"a": "b"});
    let update = c.api.update(&CONFIG_MAP, decode(&CONFIG_MAP, &made), "");
    let delete = async {
        while server.asked.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let deleted = c
            .api
            .delete(&CONFIG_MAP, "default", "m", DeleteOptions::default());
        deleted.await.unwrap();
    };
    let (updated, ()) = tokio::join!(update, delete);
    assert_eq!(updated.unwrap_err().code(), 404);
}

#[tokio::test]
async fn a_webhook_is_reached_through_its_service() {
    let c = cluster().await;
    let server = hooks(patched, IsCa::NoCa).await;
    // Endpoints may not be on loopback; a table in the module's own tests shows which of them is chosen.
    let service = json!({"metadata": {"name": "hook", "namespace": "default"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    create(&c, &SERVICE, service).await.unwrap();
    let service = json!({"namespace": "default", "name": "hook", "path": "/deny", "port": server.port});
    let through = json!({"clientConfig": {"url": null, "service": service}});
    let configuration = json!({"metadata": {"name": "v"}, "webhooks": [hook(&server, "", through)]});
    create(&c, &VALIDATING_WEBHOOK_CONFIGURATION, configuration)
        .await
        .unwrap();
    let asked = tokio::time::timeout(
        Duration::from_secs(60),
        create(&c, &CONFIG_MAP, map("m", json!({}))),
    );
    let (code, message) = asked.await.unwrap().unwrap_err();
    assert_eq!(
        (code, message.as_str()),
        (
            403,
            "admission webhook \"hook.example.com\" denied the request: not today"
        )
    );
}
