//! What others write at the node's object, and pods that come right after it.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;

impl World {
    async fn edit_node(&self, edit: impl FnMut(&mut Node) + Send) {
        self.api.edit::<Node>("", "n1", "", edit).await.unwrap();
    }

    async fn reason(&self, name: &str) -> Option<String> {
        self.pod(name).await?.status?.reason
    }
}

fn down() -> Taint {
    Taint {
        key: "node.kubernetes.io/out-of-service".into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    }
}

/// The scheduler acts on the node's object at once. A kubelet that knows only the object of its last heartbeat rejects
/// every pod for ten seconds, and their controllers create them again and again.
#[tokio::test(start_paused = true)]
async fn l1_what_others_write_at_the_node_decides_about_the_next_pod() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(1)).await;
    for round in ["a", "b"] {
        world
            .edit_node(|node| node.spec.get_or_insert_default().taints = Some(vec![down()]))
            .await;
        world.create(&format!("{round}-rejected")).await;
        sleep(Duration::from_secs(1)).await;
        let reason = world.reason(&format!("{round}-rejected")).await;
        assert_eq!(reason.as_deref(), Some("TaintToleration"));
        world
            .edit_node(|node| node.spec.get_or_insert_default().taints = None)
            .await;
        world.create(&format!("{round}-taken")).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(
            world.phase(&format!("{round}-taken")).await.as_deref(),
            Some("Running")
        );
    }
}

/// Even when the watch of the node lags: a rejection for its labels is decided on the current object.
#[tokio::test(start_paused = true)]
async fn l1_before_a_pod_is_rejected_for_the_nodes_labels_they_are_read_again() {
    let world = World::new();
    world.api.intercept(|request| {
        let deaf = request.verb == "watch" && request.kind == Node::kind_of().clone();
        deaf.then(|| Error::unavailable("nodes cannot be watched"))
    });
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(1)).await;
    let on_ssd = json!({"nodeSelector": {"disk": "ssd"}});
    world.create_with("early", on_ssd.clone()).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.reason("early").await.as_deref(), Some("NodeAffinity"));
    world
        .edit_node(|node| {
            let labels = node.metadata.labels.get_or_insert_default();
            labels.insert("disk".into(), "ssd".into());
        })
        .await;
    world.create_with("late", on_ssd).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.phase("late").await.as_deref(), Some("Running"));
}

/// Deleted, it is registered again, also where the watch missed it; its status is never written from the deleted
/// object.
#[tokio::test(start_paused = true)]
async fn s5_a_node_object_that_was_deleted_comes_back_whole() {
    for deaf in [false, true] {
        let world = World::new();
        world.api.intercept(move |request| {
            let deaf = deaf && request.verb == "watch" && request.kind == Node::kind_of().clone();
            deaf.then(|| Error::unavailable("nodes cannot be watched"))
        });
        let (_kubelet, _cancel) = world.kubelet_on_nothing();
        sleep(Duration::from_secs(60)).await;
        let first = world.api.get_as::<Node>("", "n1").await.unwrap();
        let options = DeleteOptions::default();
        world
            .api
            .delete(Node::kind_of(), "", "n1", options)
            .await
            .unwrap();
        sleep(Duration::from_secs(60)).await;
        let again = world.api.get_as::<Node>("", "n1").await.unwrap();
        assert_ne!(first.metadata.uid, again.metadata.uid);
        assert_eq!(
            first.status.as_ref().map(|s| &s.allocatable),
            again.status.as_ref().map(|s| &s.allocatable),
            "deaf: {deaf}"
        );
    }
}

/// Kubernetes: "Advertise Extended Resources for a Node".
#[tokio::test(start_paused = true)]
async fn an_administrators_resources_stay_and_are_given_to_pods() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(1)).await;
    let amount = |of: &str| Quantity(of.into());
    world
        .api
        .edit::<Node>("", "n1", "status", |node| {
            let status = node.status.get_or_insert_default();
            for (name, of) in [("example.com/dongle", "4"), ("cpu", "1000")] {
                let capacity = status.capacity.get_or_insert_default();
                capacity.insert(name.into(), amount(of));
            }
        })
        .await
        .unwrap();
    // Its status is written again at the latest after five minutes.
    sleep(Duration::from_secs(301)).await;
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    let status = node.status.clone().unwrap();
    for list in [status.capacity.unwrap(), status.allocatable.unwrap()] {
        assert_eq!(list["example.com/dongle"], amount("4"), "{list:?}");
        assert_ne!(
            list["cpu"],
            amount("1000"),
            "the kubelet's own fields are restored"
        );
    }
}
