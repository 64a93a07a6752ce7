//! What every engine has to do, as functions of a store.

mod watches;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_store::{
    Compare, Error, Event, KeyRange, KeyValue, MAX_TXN_BYTES, Op, Range, Revision, Store, Txn, TxnResult,
    Watch, WatchItem,
};

pub use self::watches::*;

/// Long enough for a noisy machine; nothing waits that long when it works.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn key(key: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(key.as_ref())
}

pub fn put_op(k: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Op {
    Op::Put {
        key: key(k),
        value: key(value),
    }
}

fn delete_op(k: &str) -> Op {
    Op::Delete { key: key(k) }
}

fn is(k: &str, is: Revision) -> Compare {
    Compare::ModRevision { key: key(k), is }
}

pub async fn commit(store: &dyn Store, compares: Vec<Compare>, ops: Vec<Op>) -> Revision {
    match store.txn(Txn { compares, ops }).await {
        Ok(TxnResult::Committed { revision }) => revision,
        other => panic!("not committed: {other:?}"),
    }
}

pub async fn put(store: &dyn Store, k: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Revision {
    commit(store, vec![], vec![put_op(k, value)]).await
}

async fn delete(store: &dyn Store, k: &str) -> Revision {
    commit(store, vec![], vec![delete_op(k)]).await
}

pub async fn get(store: &dyn Store, k: impl AsRef<[u8]>) -> Option<KeyValue> {
    let range = Range {
        keys: KeyRange::one(key(k)),
        ..Range::default()
    };
    store.range(range).await.unwrap().kvs.pop()
}

fn text(bytes: &Bytes) -> String {
    bytes.escape_ascii().to_string()
}

/// `a=1 b=2`, or the error.
async fn read(store: &dyn Store, keys: KeyRange, at: Option<Revision>) -> String {
    match store
        .range(Range {
            keys,
            at,
            ..Range::default()
        })
        .await
    {
        Ok(found) => {
            let pairs = found
                .kvs
                .iter()
                .map(|kv| format!("{}={}", text(&kv.key), text(&kv.value)));
            pairs.collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

/// `3:a=1` for a write, `5:a=-` for a deletion.
pub fn render(event: &Event) -> String {
    let now = if event.deleted {
        "-".into()
    } else {
        text(&event.kv.value)
    };
    format!("{}:{}={now}", event.kv.mod_revision, text(&event.kv.key))
}

pub async fn next(watch: &mut Watch) -> Option<Result<WatchItem, Error>> {
    tokio::time::timeout(TIMEOUT, watch.next())
        .await
        .expect("the watch delivered nothing")
}

/// The next `n` events; the items they came in must be whole transactions.
pub async fn events(watch: &mut Watch, n: usize) -> Vec<String> {
    let mut received: Vec<String> = Vec::new();
    let mut last = 0;
    while received.len() < n {
        match next(watch).await {
            Some(Ok(WatchItem::Events(events))) => {
                let first = events.first().expect("an item without events").kv.mod_revision;
                assert!(first > last, "half a transaction, or out of order");
                assert!(events.is_sorted_by_key(|event| event.kv.mod_revision));
                last = events.last().unwrap().kv.mod_revision;
                received.extend(events.iter().map(render));
            }
            Some(Ok(WatchItem::Progress(_))) => {}
            other => panic!("{other:?} after {received:?}"),
        }
    }
    received
}

fn all() -> KeyRange {
    KeyRange::prefix("")
}

pub async fn an_empty_store_is_at_revision_1_and_counts_changes(store: Arc<dyn Store>) {
    let s = &*store;
    assert_eq!(s.revision().await.unwrap(), 1);
    assert_eq!(read(s, all(), None).await, "");
    assert_eq!(put(s, "a", "1").await, 2);
    assert_eq!(
        commit(
            s,
            vec![],
            vec![put_op("a", "2"), put_op("b", "1"), delete_op("c")]
        )
        .await,
        3
    );
    assert_eq!(
        delete(s, "nothing").await,
        3,
        "what changes nothing costs no revision"
    );
    assert_eq!(commit(s, vec![], vec![]).await, 3);
    assert_eq!(put(s, "a", "2").await, 4, "the same value again is a change");
    assert_eq!(s.revision().await.unwrap(), 4);
}

pub async fn pairs_carry_their_history(store: Arc<dyn Store>) {
    let s = &*store;
    put(s, "a", "1").await;
    put(s, "a", "2").await;
    let numbers = |kv: KeyValue| (kv.create_revision, kv.mod_revision, kv.version);
    assert_eq!(get(s, "a").await.map(numbers), Some((2, 3, 2)));
    delete(s, "a").await;
    assert_eq!(get(s, "a").await, None);
    put(s, "a", "").await;
    assert_eq!(get(s, "a").await.map(numbers), Some((5, 5, 1)));
}

pub async fn comparisons_decide_all_or_nothing(store: Arc<dyn Store>) {
    let s = &*store;
    assert_eq!(commit(s, vec![is("a", 0)], vec![put_op("a", "1")]).await, 2);
    put(s, "b", "1").await;
    let rejected = |compares: Vec<Compare>| async {
        let txn = Txn {
            compares,
            ops: vec![put_op("a", "x"), put_op("z", "x")],
        };
        match s.txn(txn).await.unwrap() {
            TxnResult::Failed { revision, current } => {
                let current = current.iter().map(|kv| match kv {
                    Some(kv) => format!("{}={}@{}", text(&kv.key), text(&kv.value), kv.mod_revision),
                    None => "-".into(),
                });
                (revision, current.collect::<Vec<_>>().join(" "))
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rejected(vec![is("a", 0)]).await, (3, "a=1@2".into()));
    assert_eq!(
        rejected(vec![is("a", 2), is("b", 2), is("c", 0)]).await,
        (3, "a=1@2 b=1@3 -".into())
    );
    assert_eq!(rejected(vec![is("c", 3)]).await, (3, "-".into()));
    assert_eq!(read(s, all(), None).await, "a=1 b=1");
    assert_eq!(
        commit(s, vec![is("a", 2), is("b", 3), is("c", 0)], vec![delete_op("a")]).await,
        4
    );
    assert_eq!(rejected(vec![is("a", 2)]).await, (4, "-".into()));
    assert_eq!(commit(s, vec![is("a", 0)], vec![put_op("a", "2")]).await, 5);
}

pub async fn a_key_is_written_and_deleted_with_two_changes(store: Arc<dyn Store>) {
    let s = &*store;
    put(s, "a", "1").await;
    put(s, "lease", "1").await;
    let mut watch = s.watch(all(), 4).await.unwrap();
    let write = |compares: Vec<Compare>| async move {
        let txn = Txn {
            compares,
            ops: vec![put_op("a", "2")],
        };
        let result = s.txn_and_delete(txn, key("a")).await.unwrap();
        match result.txn {
            TxnResult::Committed { revision } => (Some(revision), result.deleted),
            TxnResult::Failed { .. } => (None, result.deleted),
        }
    };
    for conditions in [vec![is("a", 3)], vec![is("a", 2), is("lease", 2)]] {
        assert_eq!(write(conditions).await, (None, None), "neither of both");
    }
    assert_eq!(read(s, all(), None).await, "a=1 lease=1");
    let conditions = vec![is("a", 2), is("lease", 3)];
    assert_eq!(write(conditions).await, (Some(4), Some(5)));
    assert_eq!(read(s, all(), None).await, "lease=1");
    assert_eq!(read(s, all(), Some(4)).await, "a=2 lease=1");
    // Also a key that did not exist before.
    assert_eq!(write(vec![is("a", 0)]).await, (Some(6), Some(7)));
    assert_eq!(events(&mut watch, 4).await, ["4:a=2", "5:a=-", "6:a=2", "7:a=-"]);
    let malformed = Txn {
        compares: vec![],
        ops: vec![put_op("", "1")],
    };
    assert!(matches!(
        s.txn_and_delete(malformed, key("a")).await,
        Err(Error::BadTxn(_))
    ));
}

pub async fn malformed_transactions_are_rejected(store: Arc<dyn Store>) {
    let s = &*store;
    let bad = [
        vec![put_op("a", "1"), put_op("a", "2")],
        vec![put_op("a", "1"), delete_op("a")],
        vec![put_op("", "1")],
        vec![put_op("a", vec![0; MAX_TXN_BYTES + 1])],
    ];
    for ops in bad {
        let outcome = s
            .txn(Txn {
                compares: vec![],
                ops,
            })
            .await;
        assert!(matches!(outcome, Err(Error::BadTxn(_))), "{outcome:?}");
    }
    assert_eq!(s.revision().await.unwrap(), 1);
}

pub async fn ranges_are_in_byte_order_and_half_open(store: Arc<dyn Store>) {
    let s = &*store;
    for k in ["b", "a/2", "a/1", "a", "a0", "c"] {
        put(s, k, "").await;
    }
    put(s, b"a/\xff", "").await;
    let between = |start: &str, end: &str| KeyRange {
        start: key(start),
        end: Some(key(end)),
    };
    let table = [
        (KeyRange::one("a"), "a="),
        (KeyRange::one("a/"), ""),
        (KeyRange::prefix("a/"), r"a/1= a/2= a/\xff="),
        (between("a", "b"), r"a= a/1= a/2= a/\xff= a0="),
        (between("a/2", "a/2"), ""),
        (between("b", "a"), ""),
        (between("a/2", ""), r"a/2= a/\xff= a0= b= c="),
        (all(), r"a= a/1= a/2= a/\xff= a0= b= c="),
    ];
    for (keys, expected) in table {
        assert_eq!(read(s, keys.clone(), None).await, expected, "{keys:?}");
    }
}

pub async fn limits_cut_and_counts_do_not(store: Arc<dyn Store>) {
    let s = &*store;
    for i in 0..5 {
        put(s, format!("a/{i}"), "v").await;
    }
    let page = |limit, count_only, start: &str| {
        let keys = KeyRange {
            start: key(start),
            end: Some(key("b")),
        };
        s.range(Range {
            keys,
            limit,
            count_only,
            at: None,
        })
    };
    for (limit, start, expected) in [
        (0, "a", (5, false, 5)),
        (2, "a", (2, true, 5)),
        (2, "a/3", (2, false, 2)),
        (5, "a", (5, false, 5)),
    ] {
        let found = page(limit, false, start).await.unwrap();
        assert_eq!(
            (found.kvs.len(), found.more, found.count),
            expected,
            "limit {limit} from {start}"
        );
        assert_eq!(found.revision, 6);
    }
    let counted = page(0, true, "a").await.unwrap();
    assert_eq!((counted.kvs.len(), counted.count), (0, 5));
}

pub async fn old_revisions_can_be_read(store: Arc<dyn Store>) {
    let s = &*store;
    put(s, "a", "1").await;
    commit(s, vec![], vec![put_op("a", "2"), put_op("b", "1")]).await;
    delete(s, "a").await;
    put(s, "a", "3").await;
    let mut seen = Vec::new();
    for revision in 1..=5 {
        seen.push(read(s, all(), Some(revision)).await);
    }
    assert_eq!(seen, ["", "a=1", "a=2 b=1", "b=1", "a=3 b=1"]);
    let future = s
        .range(Range {
            keys: all(),
            at: Some(6),
            ..Range::default()
        })
        .await;
    assert!(
        matches!(
            future,
            Err(Error::FutureRevision {
                requested: 6,
                newest: 5
            })
        ),
        "{future:?}"
    );
}

pub async fn pages_of_one_revision_stay_consistent(store: Arc<dyn Store>) {
    let s = &*store;
    for i in 0..6 {
        put(s, format!("{i}"), "old").await;
    }
    let at = s.revision().await.unwrap();
    let mut seen = Vec::new();
    let mut start = key("");
    loop {
        let keys = KeyRange {
            start: start.clone(),
            end: Some(Bytes::new()),
        };
        let page = s
            .range(Range {
                keys,
                at: Some(at),
                limit: 2,
                count_only: false,
            })
            .await
            .unwrap();
        seen.extend(page.kvs.iter().map(|kv| text(&kv.key) + &text(&kv.value)));
        put(s, "0a", "new").await;
        delete(s, "5").await;
        put(s, "3", "new").await;
        let Some(last) = page.kvs.last().filter(|_| page.more) else {
            break;
        };
        start = [&last.key[..], b"\0"].concat().into();
    }
    assert_eq!(seen, ["0old", "1old", "2old", "3old", "4old", "5old"]);
}

pub async fn concurrent_increments_lose_none(store: Arc<dyn Store>) {
    const WRITERS: u64 = 8;
    const WRITES: u64 = 25;
    let increment = |_| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..WRITES {
                loop {
                    let now = get(&*store, "n").await;
                    let (seen, n) =
                        now.map_or((0, 0), |kv| (kv.mod_revision, text(&kv.value).parse().unwrap()));
                    let ops = vec![put_op("n", format!("{}", n + 1u64))];
                    match store
                        .txn(Txn {
                            compares: vec![is("n", seen)],
                            ops,
                        })
                        .await
                        .unwrap()
                    {
                        TxnResult::Committed { .. } => break,
                        TxnResult::Failed { current, .. } => {
                            assert_ne!(current[0].as_ref().unwrap().mod_revision, seen)
                        }
                    }
                }
            }
        })
    };
    for writer in (0..WRITERS).map(increment).collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let n = get(&*store, "n").await.unwrap();
    assert_eq!(
        (text(&n.value), n.version),
        ((WRITERS * WRITES).to_string(), WRITERS * WRITES)
    );
}

pub async fn compaction_forgets_the_past_only(store: Arc<dyn Store>) {
    let s = &*store;
    put(s, "a", "1").await; // 2
    put(s, "b", "1").await; // 3
    put(s, "a", "2").await; // 4
    delete(s, "b").await; // 5
    put(s, "a", "3").await; // 6
    let mut watch = s.watch(all(), 6).await.unwrap();
    s.compact(5).await.unwrap();
    assert_eq!(read(s, all(), Some(5)).await, "a=2");
    assert_eq!(read(s, all(), Some(6)).await, "a=3");
    assert_eq!(read(s, all(), None).await, "a=3");
    for revision in 1..4 {
        let read = s
            .range(Range {
                keys: all(),
                at: Some(revision),
                ..Range::default()
            })
            .await;
        assert!(
            matches!(read, Err(Error::Compacted { oldest: 5, requested }) if requested == revision),
            "{read:?}"
        );
        let watch = s.watch(all(), revision).await.map(|_| ());
        assert!(
            matches!(watch, Err(Error::Compacted { oldest: 5, .. })),
            "{watch:?}"
        );
    }
    let mut late = s.watch(all(), 5).await.unwrap();
    assert_eq!(events(&mut late, 2).await, ["5:b=-", "6:a=3"]);
    assert_eq!(
        events(&mut watch, 1).await,
        ["6:a=3"],
        "a running watch continues"
    );
    s.compact(3).await.unwrap();
    assert_eq!(
        read(s, all(), Some(5)).await,
        "a=2",
        "compacting further back does nothing"
    );
    let future = s.compact(99).await;
    assert!(
        matches!(
            future,
            Err(Error::FutureRevision {
                requested: 99,
                newest: 6
            })
        ),
        "{future:?}"
    );
    s.compact(6).await.unwrap();
    assert_eq!(put(s, "b", "2").await, 7);
    assert_eq!(get(s, "b").await.unwrap().version, 1);
    assert_eq!(events(&mut watch, 1).await, ["7:b=2"]);
}

/// Random transactions against a model of what a store is.
pub async fn a_long_history_equals_the_model(store: Arc<dyn Store>) {
    let s = &*store;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = move |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    let mut model: Vec<BTreeMap<String, String>> = vec![BTreeMap::new(); 2];
    let mut watch = s.watch(all(), 1).await.unwrap();
    let mut expected = Vec::new();
    for i in 0..300 {
        let mut now = model.last().unwrap().clone();
        let revision = model.len() as Revision;
        let (mut ops, mut changed) = (Vec::new(), false);
        for k in 0..8 {
            let k = format!("k{k}");
            match draw(10) {
                0 => {
                    ops.push(delete_op(&k));
                    if now.remove(&k).is_some() {
                        expected.push(format!("{revision}:{k}=-"));
                        changed = true;
                    }
                }
                1 | 2 => {
                    let value = format!("{i}");
                    ops.push(put_op(&k, &value));
                    expected.push(format!("{revision}:{k}={value}"));
                    now.insert(k.clone(), value);
                    changed = true;
                }
                _ => {}
            }
        }
        let committed = commit(s, vec![], ops).await;
        if changed {
            assert_eq!(committed, revision);
            model.push(now);
        }
    }
    assert_eq!(events(&mut watch, expected.len()).await, expected);
    for oldest in [0, model.len() / 2, model.len() - 1] {
        s.compact(oldest as Revision).await.unwrap();
        for (revision, pairs) in model.iter().enumerate().skip(oldest.max(1)) {
            let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
            assert_eq!(
                read(s, all(), Some(revision as Revision)).await,
                pairs.join(" "),
                "at {revision}"
            );
        }
    }
}

/// One test of the suite.
pub type Law = fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes one test function of each law, for one engine.
#[macro_export]
macro_rules! laws {
    ($with:path) => {
        $crate::laws!(@ $with:
            an_empty_store_is_at_revision_1_and_counts_changes
            pairs_carry_their_history
            comparisons_decide_all_or_nothing
            a_key_is_written_and_deleted_with_two_changes
            malformed_transactions_are_rejected
            ranges_are_in_byte_order_and_half_open
            limits_cut_and_counts_do_not
            old_revisions_can_be_read
            pages_of_one_revision_stay_consistent
            a_watch_delivers_the_changes_after_its_start
            a_watch_begins_at_any_kept_revision
            a_watch_waits_for_a_revision_to_come
            watches_miss_nothing_and_repeat_nothing
            concurrent_increments_lose_none
            compaction_forgets_the_past_only
            a_dropped_watch_does_not_affect_others
            a_long_history_equals_the_model
        );
    };
    (@ $with:path: $($law:ident)*) => {
        $(
            #[tokio::test]
            async fn $law() {
                $with(|store| Box::pin($crate::suite::$law(store))).await;
            }
        )*
    };
}
