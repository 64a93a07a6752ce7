//! Policies evaluated for requests, without a server.

use knarr_api::registry::CONFIG_MAP;
use knarr_cel::Decision;
use serde_json::json;

use super::*;

struct Reader;

impl Authorizer for Reader {
    fn decide(&self, attributes: &AttributesRecord) -> Decision {
        Decision {
            allowed: attributes.verb == "get",
            reason: String::new(),
        }
    }
}

fn input<'a>(object: &'a Value, request: &'a Value, params: Option<&'a Value>) -> Input<'a> {
    Input {
        object: Some(object),
        old: None,
        request,
        params,
        namespace: None,
        authorizer: Arc::new(Reader),
        request_resource: AttributesRecord {
            resource: "configmaps".into(),
            ..AttributesRecord::default()
        },
    }
}

fn denials(spec: Value) -> Vec<String> {
    let spec: admission::ValidatingAdmissionPolicySpec = serde_json::from_value(spec).unwrap();
    let object = json!({"metadata": {"name": "m"}, "data": {"n": "5"}});
    let params = json!({"data": {"max": "3"}});
    let request = json!({"operation": "CREATE", "userInfo": {"username": "jane"}});
    let result = ValidatingPolicy::read(&spec).validate(&input(&object, &request, Some(&params)));
    let denials = result
        .denials
        .iter()
        .map(|d| format!("{} {}: {}", d.index, d.reason, d.message));
    let annotations = result.annotations.iter().map(|(k, v)| format!("{k}={v}"));
    denials
        .chain(annotations)
        .chain(result.annotation_errors.clone())
        .collect()
}

#[test]
fn a_policy_denies_with_the_message_of_the_failed_validation() {
    let holds = |more: Value| {
        let mut spec = json!({"failurePolicy": "Fail", "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [{"name": "n", "expression": "int(object.data.n)"}, {"name": "twice", "expression": "variables.n * 2"}],
            "validations": [{"expression": "variables.n <= int(params.data.max)"}]});
        knarr_api::patch::merge::apply(&mut spec, &more);
        denials(spec)
    };
    let one = |more: Value| {
        let mut validation = json!({"expression": "false"});
        knarr_api::patch::merge::apply(&mut validation, &more);
        holds(json!({"validations": [validation]}))
    };
    for (found, want) in [
        (
            holds(json!({})),
            "0 Invalid: failed expression: variables.n <= int(params.data.max)",
        ),
        (one(json!({"expression": "variables.twice == 10"})), ""),
        (
            one(json!({"message": " no ", "reason": "Forbidden"})),
            "0 Forbidden: no",
        ),
        (
            one(json!({"message": "no", "messageExpression": "'twice is ' + string(variables.twice)"})),
            "0 Invalid: twice is 10",
        ),
        (
            one(json!({"message": "no", "messageExpression": "'a\\nb'"})),
            "0 Invalid: no",
        ),
        (
            one(json!({"message": "no", "messageExpression": "object.missing"})),
            "0 Invalid: no",
        ),
        (
            one(json!({"expression": "object.missing == 1"})),
            "0 : expression 'object.missing == 1' resulted in error: no such key: missing",
        ),
        (
            one(
                json!({"expression": "authorizer.requestResource.check('get').allowed() && \
                !authorizer.group('apps').resource('deployments').check('delete').allowed()"}),
            ),
            "",
        ),
        (
            one(json!({"expression": "request.userInfo.username == 'jane' && oldObject == null"})),
            "",
        ),
        (
            holds(json!({"matchConditions": [{"name": "c", "expression": "false"}]})),
            "",
        ),
        (
            holds(json!({"matchConditions": [{"name": "c", "expression": "object.x"}]})),
            "0 : expression 'object.x' resulted in error: no such key: x",
        ),
        (
            holds(
                json!({"matchConditions": [{"name": "c", "expression": "object.x"}, {"name": "d", "expression": "false"}]}),
            ),
            "",
        ),
        (
            holds(
                json!({"failurePolicy": "Ignore", "matchConditions": [{"name": "c", "expression": "object.x"}]}),
            ),
            "",
        ),
        (
            holds(json!({"validations": [], "auditAnnotations": [
                {"key": "n", "valueExpression": "'n is ' + object.data.n"}, {"key": "none", "valueExpression": "null"}]})),
            "n=n is 5",
        ),
    ] {
        assert_eq!(found.join("; "), want);
    }
}

#[test]
fn a_mutation_changes_only_the_fields_it_names() {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"n": "5"}});
    let mutated = |mutations: Value| {
        let spec = json!({"mutations": mutations, "matchConditions": [{"name": "c", "expression": "has(object.data)"}]});
        let spec: admission::MutatingAdmissionPolicySpec = serde_json::from_value(spec).unwrap();
        let request = Value::Null;
        MutatingPolicy::read(&spec).mutate(&CONFIG_MAP, &input(&object, &request, None))
    };
    let apply =
        |text: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}});
    let patch = |text: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
    let made = mutated(json!([
        apply("Object{metadata: Object.metadata{labels: {'c': object.data.n}}}"),
        patch(
            "[JSONPatch{op: 'test', path: '/metadata/labels/c', value: '5'}, JSONPatch{op: 'remove', path: '/data/n'}]"
        ),
    ]));
    let made = made.unwrap().unwrap();
    assert_eq!(made["metadata"]["labels"], json!({"a": "b", "c": "5"}));
    assert_eq!(made["data"], json!({}));
    for (mutation, why) in [
        (apply("1"), "error applying patch: must evaluate to Object"),
        (
            apply("Object{nothing: 1}"),
            "error applying patch: .nothing: field not declared in schema",
        ),
        (
            apply("object.x"),
            "expression 'object.x' resulted in error: no such key: x",
        ),
    ] {
        assert_eq!(mutated(json!([mutation])).unwrap_err().to_string(), why);
    }
}

#[test]
fn expressions_that_cost_too_much_deny() {
    // Sorting costs the square of the number of items.
    let dear = "lists.range(1500).sort().size() > 0";
    let found = denials(
        json!({"failurePolicy": "Fail", "validations": [{"expression": dear}, {"expression": "false"}]}),
    )
    .join("; ");
    assert_eq!(
        found,
        format!(
            "0 : expression '{dear}' resulted in error: operation cancelled: actual cost limit exceeded; \
             1 Invalid: failed expression: false"
        )
    );
    let mut all = vec![json!({"expression": "lists.range(600).sort().size() > 0"}); 15];
    all.push(json!({"expression": "false"}));
    let found = denials(json!({"failurePolicy": "Fail", "validations": all})).join("; ");
    assert!(
        found.ends_with(
            ": validation failed due to running out of cost budget, no further validation rules will be run"
        ),
        "{found}"
    );
    assert_eq!(
        found.matches("; ").count(),
        0,
        "nothing else is evaluated: {found}"
    );
}
