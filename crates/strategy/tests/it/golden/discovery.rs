//! Compares whole discovery documents with the recorded ones.

use knarr_api::registry::ServedKinds;
use knarr_openapi::discovery;
use serde_json::Value;

use super::{Scenario, scenarios};

/// Sorts the lists of resources, whose order is not specified.
fn ordered(mut document: Value) -> Value {
    if let Some(resources) = document.get_mut("resources").and_then(Value::as_array_mut) {
        resources.sort_by_key(|r| r["name"].as_str().unwrap_or_default().to_string());
    }
    // The address differs between servers.
    if let Some(address) = document.pointer_mut("/serverAddressByClientCIDRs/0/serverAddress") {
        *address = "{any}".into();
    }
    document
}

/// Our document for a recorded path; `None` if the path is not a discovery path.
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
        (["api"], true) => Some(Some(discovery::aggregated(&ServedKinds::default(), true))),
        (["apis"], true) => Some(Some(discovery::aggregated(&ServedKinds::default(), false))),
        (["api"], false) => Some(Some(discovery::api_versions("192.0.2.1:6443"))),
        (["apis"], false) => Some(Some(discovery::group_list(&ServedKinds::default()))),
        (["api", version], false) => Some(discovery::resource_list(&ServedKinds::default(), "", version)),
        (["apis", group], false) => Some(discovery::group(&ServedKinds::default(), group)),
        (["apis", group, version], false) => {
            Some(discovery::resource_list(&ServedKinds::default(), group, version))
        }
        _ => None,
    }
}

#[test]
fn discovery_documents_are_as_recorded() {
    let mut compared = 0;
    for scenario in scenarios("discovery") {
        let Some(document) = document(&scenario) else {
            continue;
        };
        let step = &scenario.steps[0];
        let recorded = (step.status == 200).then(|| ordered(step.response.clone()));
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
    let ours = knarr_openapi::v3_paths(&ServedKinds::default());
    assert_eq!(recorded.response["paths"], Value::from(ours));
}
