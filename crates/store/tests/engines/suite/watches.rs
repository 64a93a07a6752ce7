//! What watches of every engine have to do.

use std::sync::Arc;

use knarr_store::{KeyRange, Revision, Store, WatchItem};

use super::{all, commit, delete, delete_op, events, next, put, put_op};

pub async fn a_watch_delivers_the_changes_after_its_start(store: Arc<dyn Store>) {
    let s = &*store;
    put(s, "a", "before").await;
    let mut watch = s.watch(KeyRange::prefix("a"), 0).await.unwrap();
    put(s, "b", "not mine").await;
    put(s, "a", "1").await;
    commit(
        s,
        vec![],
        vec![put_op("a/1", "x"), put_op("c", "x"), delete_op("a")],
    )
    .await;
    put(s, "a", "2").await;
    assert_eq!(
        events(&mut watch, 4).await,
        ["4:a=1", "5:a/1=x", "5:a=-", "6:a=2"]
    );
}

pub async fn a_watch_begins_at_any_kept_revision(store: Arc<dyn Store>) {
    let s = &*store;
    let history = ["2:a=1", "3:a=2", "3:b=1", "4:a=-", "5:a=3", "6:b=-"];
    put(s, "a", "1").await;
    commit(s, vec![], vec![put_op("a", "2"), put_op("b", "1")]).await;
    delete(s, "a").await;
    put(s, "a", "3").await;
    delete(s, "b").await;
    for from in 1..=8 {
        let mut watch = s.watch(all(), from).await.unwrap();
        let expected: Vec<&str> = history
            .into_iter()
            .filter(|event| event[..1].parse::<Revision>().unwrap() >= from)
            .collect();
        assert_eq!(events(&mut watch, expected.len()).await, expected, "from {from}");
    }
    let mut one = s.watch(KeyRange::one("b"), 1).await.unwrap();
    assert_eq!(events(&mut one, 2).await, ["3:b=1", "6:b=-"]);
}

pub async fn a_watch_waits_for_a_revision_to_come(store: Arc<dyn Store>) {
    let s = &*store;
    let mut watch = s.watch(all(), 4).await.unwrap();
    for i in 2..=5 {
        put(s, "a", format!("{i}")).await;
    }
    assert_eq!(events(&mut watch, 2).await, ["4:a=4", "5:a=5"]);
}

/// With writers at work, so that the past joins the present while that moves.
pub async fn watches_miss_nothing_and_repeat_nothing(store: Arc<dyn Store>) {
    const WRITERS: usize = 8;
    const WRITES: usize = 150;
    let writer = |w: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            for i in 0..WRITES {
                put(&*store, format!("{}/{w}", i % 3), format!("{i}")).await;
            }
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let mut watchers = Vec::new();
    for n in 0..6 {
        let now = store.revision().await.unwrap();
        let from = if n % 2 == 0 { 1 } else { now };
        let mut watch = store.watch(all(), from.max(1)).await.unwrap();
        watchers.push(tokio::spawn(async move {
            let (mut received, last) = (Vec::new(), (WRITERS * WRITES + 1) as Revision);
            while received.last() != Some(&last) {
                match next(&mut watch).await {
                    Some(Ok(WatchItem::Events(events))) => {
                        received.extend(events.iter().map(|e| e.kv.mod_revision))
                    }
                    Some(Ok(WatchItem::Progress(_))) => {}
                    other => panic!("{other:?}"),
                }
            }
            (from.max(2), received)
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for watcher in watchers {
        let (from, received) = watcher.await.unwrap();
        assert_eq!(
            received,
            (from..=(WRITERS * WRITES + 1) as Revision).collect::<Vec<_>>()
        );
    }
}

pub async fn a_dropped_watch_does_not_affect_others(store: Arc<dyn Store>) {
    let s = &*store;
    let dropped = s.watch(all(), 0).await.unwrap();
    let mut kept = s.watch(all(), 0).await.unwrap();
    drop(dropped);
    put(s, "a", "1").await;
    put(s, "a", "2").await;
    assert_eq!(events(&mut kept, 2).await, ["2:a=1", "3:a=2"]);
}
