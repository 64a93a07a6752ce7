//! How a node registers its Node object.

use k8s_openapi::api::core::v1::Node;
use knarr_strategy::KindStrategy;

use super::*;

fn configuration(more: &[(&str, Value)]) -> KubeletConfiguration {
    let mut document = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"});
    for (name, value) in more {
        document[*name] = value.clone();
    }
    let mut read = knarr_kubelet::configuration::read(&document).unwrap();
    read.node_labels = knarr_kubelet::configuration::registration::labels("disk=ssd,rack=7").unwrap();
    read
}

#[tokio::test(start_paused = true)]
async fn a_node_is_registered_with_its_labels_taints_and_cloud_id() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet_with(
        configuration(&[
            (
                "registerWithTaints",
                json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]),
            ),
            ("providerID", json!("cloud://7")),
        ]),
        None,
    );
    sleep(Duration::from_secs(1)).await;
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    let labels = node.metadata.labels.clone().unwrap();
    assert_eq!((labels["disk"].as_str(), labels["rack"].as_str()), ("ssd", "7"));
    let spec = node.spec.clone().unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some("cloud://7"));
    assert_eq!(spec.taints.unwrap()[0].key, "dedicated");
    // Later changes of the taints by others are kept.
    let mut untainted = (*node).clone();
    untainted.spec.as_mut().unwrap().taints = None;
    world.api.update_as(untainted).await.unwrap();
    cancel.cancel();
    kubelet.wait().await;
    let (_kubelet, _cancel) = world.kubelet_with(configuration(&[]), None);
    sleep(Duration::from_secs(1)).await;
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    assert_eq!(node.spec.as_ref().unwrap().taints, None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_register_itself_waits_for_its_registration() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet_with(configuration(&[("registerNode", json!(false))]), None);
    sleep(Duration::from_secs(60)).await;
    assert!(world.api.get_as::<Node>("", "n1").await.is_err());
    let made: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    world.api.create_as(made).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    let conditions = node.status.clone().unwrap().conditions.unwrap();
    assert!(
        conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True")
    );
}

/// A value not in canonical form would seem to change at every heartbeat, and be written at each.
#[tokio::test(start_paused = true)]
async fn s4_the_node_status_equals_what_the_api_returns() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(1)).await;
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    let kind = Node::kind_of();
    let mut decoded = kind
        .ops
        .decode(&serde_json::to_vec(&*node).unwrap())
        .unwrap()
        .object;
    kind.strategy().set_defaults(&mut *decoded).unwrap();
    let decoded: &Node = decoded.as_any().downcast_ref().unwrap();
    assert_eq!(decoded.status, node.status);
}
