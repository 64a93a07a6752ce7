//! Updates that change nothing, or as little as a time of managed fields does.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_update_is_written_if_it_changes_more_than_the_times_of_managed_fields() {
    let c = cluster().await;
    c.api.create_as(config_map("a", "1")).await.unwrap();
    let put = async |value: &str| {
        c.clock.0.fetch_add(60, Ordering::Relaxed);
        c.api.update_as(config_map("a", value)).await.unwrap();
        let stored = c.api.get(&CONFIG_MAP, "default", "a").await.unwrap();
        let json: Value = serde_json::from_slice(stored.json()).unwrap();
        assert_eq!(json["data"]["k"], value);
        let typed = stored.get::<ConfigMap>().unwrap();
        assert_eq!(typed.data.as_ref().unwrap()["k"], value);
        stored.revision()
    };
    let mut last = put("1").await;
    // Of the same length as before, longer, shorter.
    for value in ["2", "22", "3"] {
        let written = put(value).await;
        assert!(written > last, "{value}");
        assert_eq!(put(value).await, written, "{value}");
        last = written;
    }
}
