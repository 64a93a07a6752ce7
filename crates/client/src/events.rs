//! Records core/v1 Events about objects: repeated events are counted, too many are dropped.
//!
//! [`EventCorrelator`] decides as client-go's EventCorrelator: a repeated event raises `count`; more than ten different messages of
//! one reason within ten minutes become one "(combined from similar events)"; an object may have a burst of 25 events and then one
//! every five minutes. [`EventRecorder`] writes in the background: recording never blocks and never fails. An event that cannot be
//! written is lost, with a line in the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::text;
use knarr_api::registry::{self, Registered};
use knarr_api::{AnyObject, Kind, Object};
use knarr_apimachinery::time::seconds;
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::api::{Api, Patch};
use crate::clock::Clock;

/// Events that wait to be written; further ones are dropped (client-go's broadcaster keeps 1000).
const QUEUE: usize = 1000;
/// Entries of each LRU cache of the correlator (client-go: 4096).
const LRU_ENTRIES: usize = 4096;
/// How many entries a cache may have beyond that. The least recently used are found by visiting all entries, which is done once for so many
/// insertions: nine visits for each instead of 4096.
const LRU_SLACK: usize = LRU_ENTRIES / 8;
/// Different messages of similar events before they are combined, and within which time.
const AGGREGATE_MAX_MESSAGES: usize = 10;
const AGGREGATE_INTERVAL_SECONDS: f64 = 600.0;
/// The token bucket of each source and object.
const BURST: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;
/// Between the fields of a key. No field contains it.
const SEPARATOR: &str = "\0";
/// The namespace of events about cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

/// The ObjectReference for an event about `object`.
pub fn reference(object: &Object) -> ObjectReference {
    reference_to(object.kind(), object.typed())
}

/// The same for a value that is not an [`Object`] yet.
pub fn reference_to(kind: &Kind, object: &dyn AnyObject) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(kind.api_version()),
        kind: Some(kind.kind().to_string()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// A write of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum EventWrite {
    Create(Event),
    /// The event exists: its count is raised. If it was deleted meanwhile it is created again.
    Patch(Event),
}

/// By what events are found: their fields as one text, which the caches share. A cache has thousands of entries, and keeps them.
struct EventKeys {
    /// Of the events of one source about one object.
    spam: Arc<str>,
    /// Of the similar ones among them: of one field, type and reason.
    aggregation: Arc<str>,
}

impl EventKeys {
    fn of(event: &Event) -> Self {
        let about = &event.involved_object;
        let (component, instance) = event
            .source
            .as_ref()
            .map_or(("", ""), |source| (text(&source.component), text(&source.host)));
        let of_object = [
            component,
            instance,
            text(&about.kind),
            text(&about.namespace),
            text(&about.name),
            text(&about.uid),
            text(&about.api_version),
        ];
        let similar = [text(&about.field_path), text(&event.type_), text(&event.reason)];
        EventKeys {
            spam: of_object.join(SEPARATOR).into(),
            aggregation: [&of_object[..], &similar[..]].concat().join(SEPARATOR).into(),
        }
    }
}

struct AggregateRecord {
    /// In order, each once.
    messages: Vec<String>,
    last: Timestamp,
    used: u64,
}

struct LoggedEvent {
    name: String,
    count: i32,
    first: Timestamp,
    used: u64,
}

struct SpamRecord {
    tokens: f64,
    filled: Timestamp,
    used: u64,
}

/// Decides how an event is written, or that it is dropped. See the module.
#[derive(Default)]
pub struct EventCorrelator {
    aggregates: BTreeMap<Arc<str>, AggregateRecord>,
    /// By aggregation key and message.
    written: BTreeMap<(Arc<str>, String), LoggedEvent>,
    spam_records: BTreeMap<Arc<str>, SpamRecord>,
    used: u64,
    last_nanos: i128,
}

fn seconds_between(earlier: Timestamp, later: Timestamp) -> f64 {
    later.duration_since(earlier).as_secs_f64()
}

/// Removes the least recently used entries of a cache that is full. No two entries were used at the same time.
fn bound<K: Ord, V>(map: &mut BTreeMap<K, V>, used: fn(&V) -> u64) {
    if map.len() <= LRU_ENTRIES + LRU_SLACK {
        return;
    }
    let excess = map.len() - LRU_ENTRIES;
    let mut times: Vec<u64> = map.values().map(used).collect();
    let (_, first_kept, _) = times.select_nth_unstable(excess);
    let first_kept = *first_kept;
    map.retain(|_, entry| used(entry) >= first_kept);
}

impl EventCorrelator {
    /// `event` has everything but name, count and times. `None`: the object has too many events, and this one is dropped.
    pub fn correlate(&mut self, mut event: Event, now: Timestamp) -> Option<EventWrite> {
        self.used += 1;
        let used = self.used;
        let keys = EventKeys::of(&event);
        let message = event.message.clone().unwrap_or_default();

        let aggregates = self
            .aggregates
            .entry(keys.aggregation.clone())
            .or_insert_with(|| AggregateRecord {
                messages: Vec::new(),
                last: now,
                used,
            });
        if seconds_between(aggregates.last, now) > AGGREGATE_INTERVAL_SECONDS {
            aggregates.messages.clear();
        }
        aggregates.last = now;
        aggregates.used = used;
        if let Err(at) = aggregates.messages.binary_search(&message) {
            aggregates.messages.insert(at, message.clone());
        }
        let combined = aggregates.messages.len() >= AGGREGATE_MAX_MESSAGES;
        if combined {
            // That there were many is all that has to be remembered.
            aggregates.messages.pop();
            event.message = Some(format!("(combined from similar events): {message}"));
        }
        bound(&mut self.aggregates, |c| c.used);

        if !self.take_token(keys.spam, now) {
            return None;
        }

        // All combined events are one event, whatever their messages.
        let key = (keys.aggregation, if combined { String::new() } else { message });
        let known = self.written.get_mut(&key);
        let again = known.is_some();
        let (name, count, first) = match known {
            Some(written) => {
                written.count = written.count.saturating_add(1);
                written.used = used;
                (written.name.clone(), written.count, written.first)
            }
            None => {
                let name = self.new_name(event.involved_object.name.as_deref().unwrap_or(""), now);
                let written = LoggedEvent {
                    name: name.clone(),
                    count: 1,
                    first: now,
                    used,
                };
                self.written.insert(key, written);
                bound(&mut self.written, |w| w.used);
                (name, 1, now)
            }
        };
        event.metadata.name = Some(name);
        event.count = Some(count);
        event.first_timestamp = Some(seconds(first));
        event.last_timestamp = Some(seconds(now));
        Some(if again {
            EventWrite::Patch(event)
        } else {
            EventWrite::Create(event)
        })
    }

    /// A unique event name: `name.` and the time in hexadecimal nanoseconds.
    fn new_name(&mut self, name: &str, now: Timestamp) -> String {
        self.last_nanos = now.as_nanosecond().max(self.last_nanos + 1);
        format!("{name}.{:x}", self.last_nanos)
    }

    fn take_token(&mut self, key: Arc<str>, now: Timestamp) -> bool {
        let used = self.used;
        let bucket = self.spam_records.entry(key).or_insert(SpamRecord {
            tokens: BURST,
            filled: now,
            used,
        });
        let refill = seconds_between(bucket.filled, now).max(0.0) * REFILL_PER_SECOND;
        bucket.tokens = (bucket.tokens + refill).min(BURST);
        bucket.filled = now;
        bucket.used = used;
        let granted = bucket.tokens >= 1.0;
        if granted {
            bucket.tokens -= 1.0;
        }
        bound(&mut self.spam_records, |b| b.used);
        granted
    }
}

struct PendingEvent {
    component: String,
    about: ObjectReference,
    annotations: BTreeMap<String, String>,
    type_: EventType,
    reason: String,
    message: String,
}

/// Records events under one component's name. Cheap to clone; see the module.
#[derive(Clone)]
pub struct EventRecorder {
    api: Arc<dyn Api>,
    component: String,
    queue: mpsc::Sender<(Arc<dyn Api>, PendingEvent)>,
}

impl EventRecorder {
    /// Begins the background task, which ends with the last recorder. `component` such as `deployment-controller`;
    /// `host` is the node's name for a kubelet, else empty. Needs a tokio runtime.
    pub fn new(api: Arc<dyn Api>, component: &str, host: &str, clock: Arc<dyn Clock>) -> Self {
        let (queue, recorded) = mpsc::channel(QUEUE);
        tokio::spawn(write_all(host.to_string(), clock, recorded));
        EventRecorder {
            api,
            component: component.to_string(),
            queue,
        }
    }

    /// The same task under another component's name, its events written by that component's user.
    pub fn acting_as(&self, api: Arc<dyn Api>, component: &str) -> Self {
        EventRecorder {
            api,
            component: component.to_string(),
            queue: self.queue.clone(),
        }
    }

    /// Records an event.
    pub fn event(&self, about: &ObjectReference, type_: EventType, reason: &str, message: impl Into<String>) {
        self.annotated_event(about, BTreeMap::new(), type_, reason, message);
    }

    /// With annotations on the event itself.
    pub fn annotated_event(
        &self,
        about: &ObjectReference,
        annotations: BTreeMap<String, String>,
        type_: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let recorded = PendingEvent {
            component: self.component.clone(),
            about: about.clone(),
            annotations,
            type_,
            reason: reason.to_string(),
            message: message.into(),
        };
        if self.queue.try_send((self.api.clone(), recorded)).is_err() {
            debug!(reason, "event dropped: too many wait to be written");
        }
    }
}

async fn write_all(
    host: String,
    clock: Arc<dyn Clock>,
    mut queue: mpsc::Receiver<(Arc<dyn Api>, PendingEvent)>,
) {
    let mut correlator = EventCorrelator::default();
    while let Some((api, recorded)) = queue.recv().await {
        let event = new_event(recorded, &host);
        if let Some(write) = correlator.correlate(event, clock.now())
            && let Err(error) = write_one(&*api, write).await
        {
            // A terminating namespace rejects new events (403).
            if error.code() == 403 {
                debug!(%error, "event not recorded");
            } else {
                warn!(%error, "event not recorded");
            }
        }
    }
}

fn new_event(recorded: PendingEvent, host: &str) -> Event {
    let PendingEvent {
        component,
        about,
        annotations,
        type_,
        reason,
        message,
    } = recorded;
    let namespace = about.namespace.clone().filter(|n| !n.is_empty());
    let host = (!host.is_empty()).then(|| host.to_string());
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace.unwrap_or_else(|| CLUSTER_NAMESPACE.to_string())),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        involved_object: about,
        type_: Some(type_.as_str().to_string()),
        reason: Some(reason),
        message: Some(message),
        source: Some(EventSource {
            component: Some(component.clone()),
            host: host.clone(),
        }),
        reporting_component: Some(component),
        reporting_instance: Some(host.unwrap_or_default()),
        ..Event::default()
    }
}

async fn write_one(api: &dyn Api, write: EventWrite) -> knarr_apimachinery::Result<()> {
    let event = match write {
        EventWrite::Create(event) => event,
        EventWrite::Patch(mut event) => {
            let patch = json!({
                "count": event.count,
                "message": event.message,
                "lastTimestamp": event.last_timestamp,
            });
            let namespace = event.metadata.namespace.as_deref().unwrap_or("");
            let name = event.metadata.name.as_deref().unwrap_or("");
            match api
                .patch(&registry::EVENT, namespace, name, "", Patch::Merge(patch))
                .await
            {
                Err(error) if error.is_not_found() => {
                    event.metadata.resource_version = None;
                    event
                }
                result => return result.map(drop),
            }
        }
    };
    api.create(&registry::EVENT, event.into_object()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn event(message: &str) -> Event {
        new_event(
            PendingEvent {
                component: "test".into(),
                annotations: BTreeMap::new(),
                about: ObjectReference {
                    kind: Some("Pod".into()),
                    namespace: Some("default".into()),
                    name: Some("web".into()),
                    uid: Some("1".into()),
                    ..ObjectReference::default()
                },
                type_: EventType::Normal,
                reason: "Pulled".into(),
                message: message.into(),
            },
            "",
        )
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn the_same_event_again_raises_the_count_of_the_first() {
        let mut correlator = EventCorrelator::default();
        let Some(EventWrite::Create(first)) = correlator.correlate(event("a"), at(0)) else {
            panic!("the first is created");
        };
        let Some(EventWrite::Patch(second)) = correlator.correlate(event("a"), at(5)) else {
            panic!("the second is counted");
        };
        assert_eq!(first.metadata.name, second.metadata.name);
        assert_eq!(first.metadata.name.as_deref(), Some("web.17979cfe362a0000"));
        assert_eq!((first.count, second.count), (Some(1), Some(2)));
        assert_eq!(second.first_timestamp, Some(seconds(at(0))));
        assert_eq!(second.last_timestamp, Some(seconds(at(5))));
    }

    #[test]
    fn different_events_at_the_same_moment_get_different_names() {
        let mut correlator = EventCorrelator::default();
        let names: BTreeSet<_> = ["a", "b", "c"]
            .into_iter()
            .filter_map(|m| correlator.correlate(event(m), at(0)))
            .map(|w| match w {
                EventWrite::Create(e) | EventWrite::Patch(e) => e.metadata.name,
            })
            .collect();
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn many_messages_of_one_reason_become_one_event() {
        let mut correlator = EventCorrelator::default();
        for n in 0..9 {
            let write = correlator.correlate(event(&format!("message {n}")), at(n));
            assert!(
                matches!(write, Some(EventWrite::Create(_))),
                "message {n}: {write:?}"
            );
        }
        let Some(EventWrite::Create(combined)) = correlator.correlate(event("message 9"), at(9)) else {
            panic!("the combined event is new");
        };
        assert_eq!(
            combined.message.as_deref(),
            Some("(combined from similar events): message 9")
        );
        let Some(EventWrite::Patch(again)) = correlator.correlate(event("message 10"), at(10)) else {
            panic!("the next one counts");
        };
        assert_eq!(again.metadata.name, combined.metadata.name);
        // Quiet for ten minutes: single again.
        let write = correlator.correlate(event("message 11"), at(700));
        assert!(matches!(write, Some(EventWrite::Create(e)) if e.message.as_deref() == Some("message 11")));
    }

    #[test]
    fn a_full_cache_loses_the_entries_that_were_not_used_for_the_longest_time() {
        let mut correlator = EventCorrelator::default();
        let event_about = |number: usize| {
            let mut event = event("a");
            event.involved_object.name = Some(format!("web-{number}"));
            event
        };
        for number in 0..2 * LRU_ENTRIES {
            // The first object has an event now and then.
            if number % 1000 == 1 {
                correlator.correlate(event_about(0), at(0));
            }
            let write = correlator.correlate(event_about(number), at(0));
            assert!(matches!(write, Some(EventWrite::Create(_))), "{number}");
            let entries = [
                correlator.aggregates.len(),
                correlator.written.len(),
                correlator.spam_records.len(),
            ];
            let all = (number + 1).min(LRU_ENTRIES);
            assert!(
                entries
                    .iter()
                    .all(|n| (all..=LRU_ENTRIES + LRU_SLACK).contains(n)),
                "{number}: {entries:?}"
            );
        }
        for (number, is_known) in [(0, true), (1, false), (2 * LRU_ENTRIES - 1, true)] {
            let write = correlator.correlate(event_about(number), at(1));
            assert_eq!(matches!(write, Some(EventWrite::Patch(_))), is_known, "{number}");
        }
    }

    #[test]
    fn an_object_has_25_events_and_then_one_every_five_minutes() {
        let mut correlator = EventCorrelator::default();
        let written = |c: &mut EventCorrelator, second| c.correlate(event("a"), at(second)).is_some();
        assert_eq!((0..40).filter(|_| written(&mut correlator, 0)).count(), 25);
        assert!(!written(&mut correlator, 290));
        assert!(written(&mut correlator, 301));
        assert!(!written(&mut correlator, 302));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_event_is_one_object_whose_count_is_raised_and_is_created_again_if_it_was_deleted() {
        use crate::api::{DeleteOptions, ListOptions};
        use crate::{clock::TokioClock, fake::FakeApi};

        let clock = Arc::new(TokioClock::new(at(0)));
        let api = Arc::new(FakeApi::new(clock.clone()));
        let recorder = EventRecorder::new(api.clone(), "kubelet", "n1", clock);
        let about = event("").involved_object;
        let list = async || {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let list = api.list(&registry::EVENT, ListOptions::default()).await.unwrap();
            let events: Vec<Event> = list.items.iter().filter_map(|e| e.to_typed()).collect();
            events
        };
        for count in 1..=3 {
            recorder.event(&about, EventType::Warning, "BackOff", "again");
            let events = list().await;
            assert_eq!(events.len(), 1);
            assert_eq!(events[0].count, Some(count));
            assert_eq!(events[0].source.as_ref().unwrap().host.as_deref(), Some("n1"));
        }
        let name = list().await[0].metadata.name.clone().unwrap();
        api.delete(&registry::EVENT, "default", &name, DeleteOptions::default())
            .await
            .unwrap();
        recorder.event(&about, EventType::Warning, "BackOff", "again");
        assert_eq!(list().await[0].count, Some(4));
    }
}
