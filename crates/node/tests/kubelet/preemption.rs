//! Critical pods and the room that is made for them.

use super::*;

fn asks(container: &str, cpu: &str, priority: i32) -> Value {
    let resources = json!({"requests": {"cpu": cpu}});
    let container =
        json!({"name": container, "image": "app", "imagePullPolicy": "IfNotPresent", "resources": resources});
    json!({"containers": [container], "priority": priority})
}

const CRITICAL: i32 = 2_000_000_000;

#[tokio::test(start_paused = true)]
async fn t8_a_critical_pod_is_admitted_once_its_victims_have_terminated() {
    let world = World::new();
    // Two CPUs.
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(1)).await;
    world.create_with("small", asks("small", "300m", 0)).await;
    world.runtime.ignore_term("big");
    world.create_with("big", asks("big", "1500m", 0)).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.runtime.running().len(), 2);
    world
        .create_with("critical", asks("critical", "1", CRITICAL))
        .await;
    world
        .create_with("impatient", asks("impatient", "1", CRITICAL))
        .await;
    sleep(Duration::from_secs(10)).await;
    // Its grace period is its own, and its successor waits for its end.
    assert_eq!(world.phase("big").await.as_deref(), Some("Running"));
    assert_eq!(world.phase("critical").await.as_deref(), Some("Pending"));
    assert_eq!(world.runtime.running().len(), 2);
    // A pod deleted while it waits leaves nothing behind.
    world.delete("impatient").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.phase("impatient").await, None);
    sleep(Duration::from_secs(25)).await;
    assert_eq!(world.phase("critical").await.as_deref(), Some("Running"));
    assert_eq!(world.phase("small").await.as_deref(), Some("Running"));
    let status = world.pod("big").await.unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Preempting"));
    let message = "Preempted in order to admit critical pod";
    assert_eq!(status.message.as_deref(), Some(message));
    let mut conditions = status.conditions.iter().flatten();
    let target = conditions.find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(
        target.message.as_deref(),
        Some("Pod was preempted by Kubelet to accommodate a critical pod.")
    );
    let event = format!("Preempting {message}");
    let events = world.events("big").await;
    assert_eq!(events.iter().filter(|e| **e == event).count(), 1, "{events:?}");
    // A pod that is not critical is rejected, and preempts none.
    world.create_with("late", asks("late", "1", 1000)).await;
    sleep(Duration::from_secs(2)).await;
    let status = world.pod("late").await.unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(world.runtime.running().len(), 2);
}

fn cpu_of(pod: &Pod) -> (String, String, bool) {
    let status = pod.status.as_ref().unwrap();
    let allocated = status.allocated_resources.as_ref().unwrap()["cpu"].0.clone();
    let asked = pod.spec.as_ref().unwrap().containers[0]
        .resources
        .as_ref()
        .unwrap();
    let asked = asked.requests.as_ref().unwrap()["cpu"].0.clone();
    let mut conditions = status.conditions.iter().flatten();
    (
        asked,
        allocated,
        conditions.any(|c| c.type_ == "PodResizePending"),
    )
}

#[tokio::test(start_paused = true)]
async fn l4_of_two_resizes_that_do_not_fit_together_one_is_made() {
    let world = World::new();
    // Two CPUs.
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(1)).await;
    for name in ["a", "b"] {
        world.create_with(name, asks(name, "800m", 0)).await;
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.runtime.running().len(), 2);
    for name in ["a", "b"] {
        let mut pod = world.pod(name).await.unwrap();
        pod.metadata.generation = Some(pod.metadata.generation.unwrap_or(0) + 1);
        let resources = serde_json::from_value(json!({"requests": {"cpu": "1100m"}})).unwrap();
        pod.spec.as_mut().unwrap().containers[0].resources = resources;
        world.api.update_as(pod).await.unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    let mut got = Vec::new();
    for name in ["a", "b"] {
        got.push(cpu_of(&world.pod(name).await.unwrap()));
    }
    got.sort();
    let text = |allocated: &str, waits| ("1100m".to_string(), allocated.to_string(), waits);
    assert_eq!(got, [text("1100m", false), text("800m", true)]);
    // A pod that is new counts what they have, too.
    world.create_with("c", asks("c", "100m", 0)).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.phase("c").await.as_deref(), Some("Running"));
    // And the other has its turn.
    let bigger = if cpu_of(&world.pod("a").await.unwrap()).2 {
        "b"
    } else {
        "a"
    };
    world.delete(bigger).await;
    sleep(Duration::from_secs(60)).await;
    let left = if bigger == "a" { "b" } else { "a" };
    assert_eq!(cpu_of(&world.pod(left).await.unwrap()), text("1100m", false));
}
