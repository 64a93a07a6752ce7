//! Schemas of CustomResourceDefinitions, and custom resources that they validate (the input: a schema and, after a separator,
//! an object).

use knarr_api::custom::shape;
use knarr_api::registry;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_cel::structural::Schema;
use knarr_strategy::custom::{cel, definition, validation};
use serde_json::{Value, json};

use crate::{PART, Target, objects};

pub const TARGET: Target = Target {
    name: "schemas",
    check: |data| {
        let mut parts = data.splitn(2, |byte| *byte == PART);
        let Some(Ok(schema)) = parts.next().map(serde_json::from_slice::<Value>) else {
            return;
        };
        let mut errors = ErrorList::new();
        definition::check_schema(&schema, &Path::new("spec"), true, &mut errors);
        // A definition that another version stored may have a schema that this one rejects; it must not cause a panic.
        let read = Schema::read(&schema);
        if let Some(Ok(mut value)) = parts.next().map(serde_json::from_slice::<Value>) {
            shape::prune(&mut value, &read, true, "", &mut Vec::new());
            let once = value.clone();
            shape::prune(&mut value, &read, true, "", &mut Vec::new());
            assert_eq!(value, once, "pruning twice differs from once");
            shape::default(&mut value, &read);
            let once = value.clone();
            shape::default(&mut value, &read);
            assert_eq!(value, once, "defaulting twice differs from once");
            let mut errors = ErrorList::new();
            validation::validate(&value, &read, "", &mut errors);
            validation::check_lists(&value, &read, "", &mut errors);
            cel::validate(&value, None, &read, "", &mut errors);
            cel::validate(&value, Some(&value), &read, "", &mut errors);
        }
        check_definition(&schema);
    },
    seeds: || {
        [
            r#"{"type":"object","properties":{"spec":{"type":"object","required":["a"],"properties":{"a":{"type":"integer","minimum":1,"maximum":5,"default":3},"s":{"type":"string","pattern":"^a+$","maxLength":9,"format":"date-time","enum":["a","b"]},"l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"]}},"x-kubernetes-validations":[{"rule":"self.a > 0","message":"no","messageExpression":"'n'+'o'","fieldPath":".a"}]}}}"#,
            r#"{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"i":{"x-kubernetes-int-or-string":true},"e":{"type":"object","x-kubernetes-embedded-resource":true,"nullable":true},"m":{"type":"object","additionalProperties":{"type":"number","multipleOf":0.5}},"o":{"type":"string","oneOf":[{"minLength":3},{"maxLength":1}],"not":{"enum":["z"]},"anyOf":[{"pattern":"a"}],"allOf":[{"format":"ipv4"}]}}}"#,
        ]
        .into_iter()
        .flat_map(|schema| {
            [
                r#"{"spec":{"a":7,"s":"aaa","l":[{"k":"1"},{"k":"1"}]}}"#,
                r#"{"i":"5%","e":null,"m":{"x":1.5,"y":"z"},"o":"zz","spec":{"a":null}}"#,
            ]
            .map(|value| [schema.as_bytes(), &[PART], value.as_bytes()].concat())
        })
        .collect()
    },
};

/// Runs [`objects::check_lifecycle`] on a CustomResourceDefinition with this schema.
fn check_definition(schema: &Value) {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let json = serde_json::to_vec(&crd).expect("a value is JSON");
    let kind =
        registry::by_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition").expect("it is built in");
    if let Ok(decoded) = kind.ops.decode(&json) {
        objects::check_lifecycle(kind, decoded.object);
    }
}
