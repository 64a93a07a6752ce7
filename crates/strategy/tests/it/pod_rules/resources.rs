//! Requests and limits: huge pages, and the quality of service that follows.

use serde_json::{Value, json};

use super::{assert_accepted, assert_rejected, container, pod};

#[test]
fn l4_huge_pages_come_whole_and_are_not_overcommitted() {
    let resources =
        |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    let at = "spec.containers[0].resources";
    let huge = |amount: &str| json!({"cpu": "1", "hugepages-2Mi": amount});
    assert_rejected(&[
        (
            container(resources(json!({}), json!({"hugepages-2Mi": "4Mi"}))),
            &[&format!("{at}: Forbidden: HugePages require cpu or memory")],
        ),
        (
            container(resources(huge("2Mi"), huge("4Mi"))),
            &[&format!(
                "{at}.requests: Invalid value: \"2Mi\": must be equal to hugepages-2Mi limit of 4Mi"
            )],
        ),
        (
            container(resources(huge("2Mi"), json!({"cpu": "1"}))),
            &[&format!(
                "{at}.limits: Required value: Limit must be set for non overcommitable resources"
            )],
        ),
        (
            container(resources(json!({}), huge("3Mi"))),
            &[
                &format!(
                    "{at}.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                ),
                &format!(
                    "{at}.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                ),
            ],
        ),
        (
            json!({
                "resources": {"requests": huge("2Mi"), "limits": huge("2Mi")},
                "containers": [
                    {"name": "a", "image": "i:1", "resources": {"requests": huge("2Mi"), "limits": huge("2Mi")}},
                    {"name": "b", "image": "i:1", "resources": {"requests": huge("2Mi"), "limits": huge("2Mi")}},
                ],
            }),
            &[
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
                "spec.resources.requests[hugepages-2Mi]: Invalid value: \"2Mi\": must be greater than or equal to aggregate container requests of 4Mi",
                "spec.resources.limits[hugepages-2Mi]: Invalid value: \"2Mi\": must be greater than or equal to aggregate container limits of 4Mi",
            ],
        ),
    ]);
    assert_accepted(&[
        container(resources(json!({}), huge("4Mi"))),
        json!({"resources": {"requests": huge("4Mi"), "limits": huge("4Mi")}}),
        // The API does not validate the medium; the node reports an unsupported one.
        json!({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}}, {"name": "w", "emptyDir": {"medium": "Tape"}}]}),
    ]);
}

#[test]
fn quality_of_service_follows_requests_and_limits() {
    let resources = |r: Value| container(json!({"resources": r}));
    for (spec, want) in [
        (json!({}), "BestEffort"),
        (
            resources(json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
            "Guaranteed",
        ),
        (resources(json!({"limits": {"cpu": "1"}})), "Burstable"),
        (resources(json!({"requests": {"cpu": "1"}})), "Burstable"),
        (resources(json!({"requests": {"cpu": "0"}})), "BestEffort"),
        (
            resources(json!({"limits": {"example.com/gpu": "1"}})),
            "BestEffort",
        ),
        (
            resources(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
            "Burstable",
        ),
        (json!({"resources": {"requests": {"cpu": "1"}}}), "Burstable"),
    ] {
        let status = pod(spec.clone()).status.unwrap();
        assert_eq!(status.qos_class.as_deref(), Some(want), "{spec}");
    }
}
