//! Events are deleted some time after they were last written: an hour, unless it is configured.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use knarr_api::registry::EVENT;
use knarr_apiserver::Options;
use tokio::time::sleep;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn event(name: &str, last_timestamp: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "reason": "Started", "type": "Normal", "lastTimestamp": last_timestamp,
    }))
    .unwrap()
}

async fn names(api: &dyn Api) -> Vec<String> {
    let list = api.list(&EVENT, ListOptions::default()).await.unwrap();
    list.items.iter().map(|event| event.name().to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_event_is_deleted_an_hour_after_its_last_write() {
    let c = cluster().await;
    c.api.create_as(config_map("kept", "1")).await.unwrap();
    for name in ["once", "again"] {
        c.api
            .create_as(event(name, "2099-01-01T00:00:00Z"))
            .await
            .unwrap();
    }
    sleep(30 * MINUTE).await;
    let patch = Patch::Merge(json!({"count": 2}));
    c.api.patch(&EVENT, "default", "again", "", patch).await.unwrap();
    sleep(29 * MINUTE).await;
    assert_eq!(names(&*c.api).await, ["again", "once"]);
    sleep(4 * MINUTE).await;
    assert_eq!(names(&*c.api).await, ["again"]);
    sleep(30 * MINUTE).await;
    assert!(names(&*c.api).await.is_empty());
    c.api.get(&CONFIG_MAP, "default", "kept").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_is_kept_for_the_configured_time() {
    const SECOND: Duration = Duration::from_secs(1);
    // TTL, a time when the Event is kept, a time when it is deleted
    for (ttl, kept, deleted) in [
        (Some(SECOND), SECOND / 2, Some(4 * SECOND)),
        (Some(10 * MINUTE), 9 * MINUTE, Some(11 * MINUTE)),
        (Some(180 * MINUTE), 179 * MINUTE, Some(183 * MINUTE)),
        (None, 183 * MINUTE, None),
    ] {
        let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
        let options = Options {
            event_ttl: ttl,
            ..Options::default()
        };
        let c = server_with(store, options).await;
        c.api.create_as(event("e", "2099-01-01T00:00:00Z")).await.unwrap();
        sleep(kept).await;
        assert_eq!(names(&*c.api).await, ["e"], "{ttl:?}");
        let Some(deleted) = deleted else { continue };
        sleep(deleted - kept).await;
        assert!(names(&*c.api).await.is_empty(), "{ttl:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_starts_deletes_the_events_that_are_old_by_all_their_times() {
    let c = cluster().await;
    let of_creation = c.clock.now().to_string();
    c.api.create_as(event("old", &of_creation)).await.unwrap();
    c.api
        .create_as(event("seen-since", "2099-01-01T00:00:00Z"))
        .await
        .unwrap();
    for (hours, expected) in [(0, &["old", "seen-since"][..]), (2, &["seen-since"][..])] {
        let later = server_over(c.store.clone()).await;
        later.clock.0.fetch_add(hours * 3600, Ordering::Relaxed);
        sleep(3 * MINUTE).await;
        assert_eq!(names(&*later.api).await, expected, "{hours} hours later");
    }
}
