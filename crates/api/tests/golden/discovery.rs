//! Discovery documents, held whole against the recorded ones.

use knarr_api::discovery;
use knarr_api::registry::Served;
use serde_json::Value;

use super::{Scenario, scenarios};

/// Lists of resources are sets: their order is no promise.
fn ordered(mut document: Value) -> Value {
    if let Some(resources) = document.get_mut("resources").and_then(Value::as_array_mut) {
        resources.sort_by_key(|r| r["name"].as_str().unwrap_or_default().to_string());
    }
    // Each server's own.
    if let Some(address) = document.pointer_mut("/serverAddressByClientCIDRs/0/serverAddress") {
        *address = "{any}".into();
    }
    document
}

/// The document for a recorded path, `None` where the path is another room's.
fn document(scenario: &Scenario) -> Option<Option<Value>> {
    let [step] = scenario.steps.as_slice() else {
        return None;
    };
    if step.request["method"] != "GET" || step.path().contains('{') {
        return None;
    }
    let segments: Vec<&str> = step.path().trim_matches('/').split('/').collect();
    let aggregated = match step.header("Accept") {
        "" => false,
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" => true,
        _ => return None,
    };
    match (segments.as_slice(), aggregated) {
        (["api"], true) => Some(Some(discovery::aggregated(&Served::default(), true))),
        (["apis"], true) => Some(Some(discovery::aggregated(&Served::default(), false))),
        (["api"], false) => Some(Some(discovery::api_versions("192.0.2.1:6443"))),
        (["apis"], false) => Some(Some(discovery::group_list(&Served::default()))),
        (["api", version], false) => Some(discovery::resource_list(&Served::default(), "", version)),
        (["apis", group], false) => Some(discovery::group(&Served::default(), group)),
        (["apis", group, version], false) => {
            Some(discovery::resource_list(&Served::default(), group, version))
        }
        _ => None,
    }
}

#[test]
fn every_recorded_discovery_document_is_ours() {
    let mut compared = 0;
    for scenario in scenarios("discovery") {
        let Some(document) = document(&scenario) else {
            continue;
        };
        let step = &scenario.steps[0];
        let recorded = (step.status == 200).then(|| ordered(step.answer.clone()));
        assert_eq!(
            document.map(ordered),
            recorded,
            "{} {}",
            scenario.id,
            scenario.title
        );
        compared += 1;
    }
    assert!(compared >= 18, "only {compared} documents compared");
}

#[test]
fn the_openapi_index_lists_the_recorded_paths() {
    let recorded = scenarios("discovery")
        .into_iter()
        .flat_map(|scenario| scenario.steps)
        .find(|step| step.path() == "/openapi/v3")
        .expect("a recorded index");
    let ours = knarr_api::openapi::v3_paths(&Served::default());
    assert_eq!(recorded.answer["paths"], Value::from(ours));
}
