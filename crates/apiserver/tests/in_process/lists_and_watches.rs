//! Lists in pages and watches: which revision each is of, and what a client does that comes too late.

use super::*;

#[tokio::test(start_paused = true)]
async fn pages_of_a_list_are_of_one_revision() {
    let c = cluster().await;
    for name in ["a", "b", "c"] {
        c.api.create_as(config_map(name, "1")).await.unwrap();
    }
    let page = |limit, token: &str| {
        let options = ListOptions {
            namespace: "default".into(),
            limit,
            continue_token: token.into(),
            ..ListOptions::default()
        };
        c.api.list(&CONFIG_MAP, options)
    };
    let first = page(2, "").await.unwrap();
    c.api.create_as(config_map("bb", "late")).await.unwrap();
    c.api.update_as(config_map("c", "changed")).await.unwrap();
    let second = page(2, &first.continue_token).await.unwrap();
    let rest: Vec<_> = second
        .items
        .iter()
        .map(|o| (o.name(), o.get::<ConfigMap>().unwrap().data.clone()))
        .collect();
    let unchanged = Some([("k".to_string(), "1".to_string())].into());
    assert_eq!(rest, [("c", unchanged)]);
    assert_eq!(
        (second.resource_version, second.continue_token.as_str()),
        (first.resource_version, "")
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_revision_is_compacted_continues_at_the_current_one() {
    let c = cluster().await;
    for name in ["a", "b", "c", "d", "e"] {
        c.api.create_as(config_map(name, "1")).await.unwrap();
    }
    let page = |token: &str| {
        let options = ListOptions {
            namespace: "default".into(),
            limit: 2,
            continue_token: token.into(),
            ..ListOptions::default()
        };
        c.api.list(&CONFIG_MAP, options)
    };
    let first = page("").await.unwrap();
    let late = c.api.create_as(config_map("bb", "late")).await.unwrap();
    c.store.compact(late.object().revision()).await.unwrap();
    let error = page(&first.continue_token).await.err().unwrap();
    assert_eq!((error.code(), error.reason()), (410, "Expired"));
    assert!(
        error
            .message()
            .starts_with("The provided continue parameter is too old")
    );
    let token = error.status().metadata.continue_.clone().unwrap();
    let second = page(&token).await.unwrap();
    let names =
        |items: &[Arc<Object>]| -> Vec<String> { items.iter().map(|o| o.name().to_string()).collect() };
    assert_eq!(names(&second.items), ["bb", "c"]);
    assert_ne!(second.resource_version, first.resource_version);
    c.api.create_as(config_map("dd", "later")).await.unwrap();
    // From here on the pages are of one revision again.
    let third = page(&second.continue_token).await.unwrap();
    assert_eq!(names(&third.items), ["d", "e"]);
    assert_eq!(
        (third.resource_version, third.continue_token.as_str()),
        (second.resource_version, "")
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_initial_events_then_a_bookmark_then_changes() {
    let c = cluster().await;
    c.api.create_as(config_map("a", "1")).await.unwrap();
    let options = WatchOptions {
        namespace: "default".into(),
        label_selector: "app=x".into(),
        ..WatchOptions::default()
    };
    let mut labelled = config_map("b", "1");
    labelled.metadata.labels = Some([("app".to_string(), "x".to_string())].into());
    c.api.create_as(labelled).await.unwrap();
    let mut watch = c.api.watch(&CONFIG_MAP, options).await.unwrap();
    let mut received = Vec::new();
    let relabel = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"app": value}}}));
    c.api
        .patch(&CONFIG_MAP, "default", "b", "", relabel("y"))
        .await
        .unwrap();
    c.api
        .patch(&CONFIG_MAP, "default", "a", "", relabel("x"))
        .await
        .unwrap();
    c.api
        .delete(&CONFIG_MAP, "default", "a", DeleteOptions::default())
        .await
        .unwrap();
    while received.len() < 5 {
        received.push(match watch.next().await.unwrap().unwrap() {
            WatchEvent::Added(o) => format!("added {}", o.name()),
            WatchEvent::Modified(o) => format!("modified {}", o.name()),
            WatchEvent::Deleted(o) => format!("deleted {}", o.name()),
            WatchEvent::Bookmark(_) => "bookmark".to_string(),
        });
    }
    assert_eq!(
        received,
        ["added b", "bookmark", "deleted b", "added a", "deleted a"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_where_it_was_and_not_before_history() {
    let c = cluster().await;
    let seen = c.api.create_as(config_map("a", "1")).await.unwrap();
    c.api.update_as(config_map("a", "2")).await.unwrap();
    let from = |after| WatchOptions {
        after: Some(after),
        ..WatchOptions::default()
    };
    let mut watch = c
        .api
        .watch(&CONFIG_MAP, from(seen.object().revision()))
        .await
        .unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Modified(_)))));
    assert!(
        c.api
            .watch(&CONFIG_MAP, from(1))
            .await
            .err()
            .unwrap()
            .is_expired()
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_behind_ends_and_resumes_from_its_revision() {
    const WRITES: u64 = 3000;
    let c = cluster().await;
    let first = c.api.create_as(config_map("a", "0")).await.unwrap();
    let options = |after| WatchOptions {
        after: Some(after),
        ..WatchOptions::default()
    };
    let mut after = first.object().revision();
    let mut watch = c.api.watch(&CONFIG_MAP, options(after)).await.unwrap();
    for n in 1..=WRITES {
        c.api.update_as(config_map("a", &n.to_string())).await.unwrap();
    }
    let (mut received, mut watches) = (0, 1);
    while received < WRITES {
        match watch.next().await {
            Some(Ok(WatchEvent::Modified(object))) => {
                after = object.revision();
                received += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => {
                watch = c.api.watch(&CONFIG_MAP, options(after)).await.unwrap();
                watches += 1;
            }
        }
    }
    assert_eq!(watches, 2, "all of it is remembered");
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_deletion_is_the_object_that_watchers_get() {
    let c = cluster().await;
    let mut watch = c.api.watch(&CONFIG_MAP, WatchOptions::default()).await.unwrap();
    c.api.create_as(config_map("a", "1")).await.unwrap();
    let deleted = c
        .api
        .delete(&CONFIG_MAP, "default", "a", DeleteOptions::default());
    let deleted = deleted.await.unwrap();
    let seen = loop {
        if let WatchEvent::Deleted(object) = watch.next().await.unwrap().unwrap() {
            break object;
        }
    };
    assert_eq!(seen.revision(), deleted.revision());
    assert!(seen.shares_encoding(&deleted), "it is encoded once");
}
