//! Graceful node shutdown (SPEC T9).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use knarr_node::kubelet::shutdown::{Progress, Request};
use knarr_node::runtime::fake::{ContainerEvent, StopBehavior};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::*;

fn configuration() -> KubeletConfiguration {
    knarr_kubelet::configuration::read(&json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s",
    }))
    .unwrap()
}

/// All progress, to the last message.
async fn all(mut progress: mpsc::UnboundedReceiver<Progress>) -> Vec<Progress> {
    let mut said = Vec::new();
    while let Some(next) = progress.recv().await {
        let last = next.is_last();
        said.push(next);
        if last {
            break;
        }
    }
    said
}

async fn ready(world: &World) -> (String, String) {
    let node = world.api.get_as::<Node>("", "n1").await.unwrap();
    let conditions = node.status.clone().unwrap().conditions.unwrap();
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
    (ready.status, ready.message.unwrap())
}

#[tokio::test(start_paused = true)]
async fn t9_pods_end_by_priority_within_the_nodes_budget_and_none_are_taken_meanwhile() {
    let world = World::new();
    world
        .runtime
        .set_stop_behavior("slow", StopBehavior::Lingers(Duration::from_secs(8)));
    world.runtime.set_stop_behavior("deaf", StopBehavior::Ignores);
    let (began, clock) = (world.clock.now(), world.clock.clone());
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let log = seen.clone();
    world.runtime.observe(move |container, happening| {
        let second = clock.now().duration_since(began).as_secs();
        let what = match happening {
            ContainerEvent::Started => return,
            ContainerEvent::TermSent => "asked",
            ContainerEvent::Ended(_) => "ended",
        };
        log.lock().insert((container.name.clone(), what), second);
    });
    let (kubelet, cancel) = world.kubelet_with(configuration(), None);
    world.create("slow").await;
    world
        .create_with("deaf", json!({"terminationGracePeriodSeconds": 600}))
        .await;
    world
        .create_with("vital", json!({"priority": 2_000_001_000}))
        .await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.runtime.running().len(), 3);
    assert_eq!(ready(&world).await.0, "True");

    let first = tokio::spawn(all(kubelet.shutdown().ask(Request::Shutdown)));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        ready(&world).await,
        ("False".into(), "node is shutting down".into())
    );
    world.create("late").await;
    // A second request gets the same progress.
    let second = all(kubelet.shutdown().ask(Request::Shutdown)).await;
    let said = first.await.unwrap();
    assert_eq!(said, second);
    let group = |priority, seconds, pods| Progress::Group {
        priority,
        seconds,
        pods,
    };
    let want = [
        Progress::Begun { max_seconds: 30 },
        group(0, 20, 2),
        group(2_000_000_000, 10, 1),
        Progress::Done { left: 0 },
    ];
    assert_eq!(said, want);

    let seen = seen.lock().clone();
    let at = |name: &str, what| seen[&(name.to_string(), what)];
    assert_eq!((at("slow", "asked"), at("slow", "ended")), (1, 9));
    assert_eq!((at("deaf", "asked"), at("deaf", "ended")), (1, 21), "killed");
    assert_eq!(at("vital", "asked"), 21, "not before the others have ended");
    for (name, reason, message) in [
        (
            "slow",
            "Terminated",
            "Pod was terminated in response to imminent node shutdown.",
        ),
        (
            "deaf",
            "Terminated",
            "Pod was terminated in response to imminent node shutdown.",
        ),
        (
            "vital",
            "Terminated",
            "Pod was terminated in response to imminent node shutdown.",
        ),
        (
            "late",
            "NodeShutdown",
            "Pod was rejected: Pod was rejected as the node is shutting down.",
        ),
    ] {
        let status = world.pod(name).await.unwrap().status.unwrap();
        let shown = (
            status.phase.as_deref(),
            status.reason.as_deref(),
            status.message.as_deref(),
        );
        assert_eq!(shown, (Some("Failed"), Some(reason), Some(message)), "{name}");
        let conditions = status.conditions.unwrap_or_default();
        let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget");
        let because = target.and_then(|c| c.reason.as_deref());
        assert_eq!(
            because,
            (name != "late").then_some("TerminationByKubelet"),
            "{name}"
        );
    }
    assert!(world.runtime.running().is_empty());
    let events = world.events("n1").await;
    assert!(
        events.contains(&"NodeShutdown Shutdown manager detected shutdown event".to_string()),
        "{events:?}"
    );

    // The shutdown is cancelled.
    let cancelled = all(kubelet.shutdown().ask(Request::Cancel)).await;
    assert_eq!(cancelled, [Progress::Cancelled]);
    world.create("later").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(ready(&world).await.0, "True");
    assert_eq!(world.phase("later").await.as_deref(), Some("Running"));
    assert_eq!(world.phase("slow").await.as_deref(), Some("Failed"));
    cancel.cancel();
    kubelet.wait().await;
}

#[tokio::test(start_paused = true)]
async fn t9_stopping_a_kubelet_terminates_no_pod_and_one_without_a_budget_reports_what_is_missing() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet();
    world.create("a").await;
    sleep(Duration::from_secs(1)).await;
    for request in [Request::Shutdown, Request::Cancel] {
        let said = all(kubelet.shutdown().ask(request)).await;
        assert!(matches!(said[..], [Progress::Rejected { .. }]), "{said:?}");
    }
    let requests = kubelet.shutdown();
    cancel.cancel();
    kubelet.wait().await;
    assert_eq!(world.runtime.running().len(), 1);
    assert_eq!(all(requests.ask(Request::Shutdown)).await, []);
}

#[tokio::test(start_paused = true)]
async fn t9_an_unreachable_api_delays_a_shutdown_for_seconds_only() {
    let world = World::new();
    let (kubelet, _cancel) = world.kubelet_with(configuration(), None);
    world.create("a").await;
    sleep(Duration::from_secs(1)).await;
    world
        .api
        .intercept(|_| Some(Error::unavailable("there is no way to the server")));
    let begin = tokio::time::Instant::now();
    let said = all(kubelet.shutdown().ask(Request::Shutdown)).await;
    assert_eq!(said.last(), Some(&Progress::Done { left: 0 }));
    assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
    assert!(world.runtime.running().is_empty());
}
