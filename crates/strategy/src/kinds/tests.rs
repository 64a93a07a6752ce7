//! Rules for all kinds: rows fit the columns, defaulting is idempotent, generations count only changes of the spec.

use k8s_openapi::jiff::Timestamp;
use knarr_api::any_object::AnyObject;
use knarr_api::registry::{self, ALL};
use knarr_api::{Kind, Object};
use serde_json::{Value, json};

use crate::KindStrategy;
use crate::Part;

fn decoded(kind: &Kind, value: &Value) -> Box<dyn AnyObject> {
    let bytes = serde_json::to_vec(value).expect("JSON");
    kind.ops.decode(&bytes).expect("an object").object
}

fn shown(object: &dyn AnyObject) -> Value {
    let mut bytes = Vec::new();
    object.encode_into(&mut bytes);
    serde_json::from_slice(&bytes).expect("JSON")
}

#[test]
fn l13_every_row_has_a_cell_for_each_column() {
    for kind in ALL.iter().filter(|k| k.is_stored()) {
        let mut object = decoded(kind, &json!({"metadata": {"name": "x"}}));
        kind.strategy().set_defaults(&mut *object).expect("defaults");
        let cells = kind
            .strategy()
            .row(&*object, Timestamp::UNIX_EPOCH)
            .expect("a row")
            .len();
        // v1.36 sends one cell too many for an IPAddress.
        let extra = usize::from(kind.kind() == "IPAddress");
        assert_eq!(cells, kind.strategy().columns().len() + extra, "{kind:?}");
    }
}

#[test]
fn defaults_are_set_once() {
    for kind in ALL {
        let mut object = decoded(kind, &json!({"metadata": {"name": "x", "namespace": "n"}}));
        kind.strategy().set_defaults(&mut *object).expect("defaults");
        let once = shown(&*object);
        kind.strategy().set_defaults(&mut *object).expect("defaults");
        assert_eq!(shown(&*object), once, "{kind:?}");
    }
}

#[test]
fn a_status_update_changes_neither_spec_nor_generation() {
    for kind in ALL.iter().filter(|k| k.subresource("status").is_some()) {
        let mut old = decoded(kind, &json!({"metadata": {"name": "x", "uid": "u"}}));
        kind.strategy().set_defaults(&mut *old).expect("defaults");
        kind.strategy().prepare_for_create(&mut *old).expect("prepared");
        let mut new = decoded(
            kind,
            &json!({"metadata": {"name": "x", "uid": "u", "generation": 99}}),
        );
        kind.strategy()
            .prepare_for_update(&mut *new, &*old, Part::Status)
            .expect("prepared");
        let (new, old) = (shown(&*new), shown(&*old));
        assert_eq!(new["spec"], old["spec"], "{kind:?}");
    }
}

#[test]
fn workloads_count_changes_of_spec_only() {
    for kind in [
        &registry::DEPLOYMENT,
        &registry::REPLICA_SET,
        &registry::STATEFUL_SET,
        &registry::DAEMON_SET,
        &registry::JOB,
        &registry::CRON_JOB,
    ] {
        let made = json!({"metadata": {"name": "x", "uid": "u"}, "spec": {"schedule": "* * * * *",
            "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}}}});
        let mut old = decoded(kind, &made);
        kind.strategy().set_defaults(&mut *old).expect("defaults");
        kind.strategy().prepare_for_create(&mut *old).expect("prepared");
        assert_eq!(old.metadata().generation, Some(1), "{kind:?}");
        let updated = |change: &dyn Fn(&mut Value)| {
            let mut value = shown(&*old);
            change(&mut value);
            let mut new = decoded(kind, &value);
            kind.strategy().set_defaults(&mut *new).expect("defaults");
            kind.strategy()
                .prepare_for_update(&mut *new, &*old, Part::Main)
                .expect("prepared");
            new.metadata().generation
        };
        let labelled = updated(&|v| v["metadata"]["labels"]["own"] = "1".into());
        assert_eq!(labelled, Some(1), "{kind:?}");
        let field = match kind.kind() {
            "Job" => "parallelism",
            "CronJob" => "startingDeadlineSeconds",
            _ => "minReadySeconds",
        };
        assert_eq!(updated(&|v| v["spec"][field] = 7.into()), Some(2), "{kind:?}");
    }
}

#[test]
fn an_object_round_trips_through_the_store() {
    for kind in ALL.iter().filter(|k| k.is_stored() && k.stored_as().is_none()) {
        // With a selector, which a stored workload always has, and a parent reference, which an IPAddress has.
        let mut given = json!({"metadata": {"name": "x"}});
        if kind.kind() == "IPAddress" {
            given["spec"] = json!({"parentRef": {"resource": "services", "name": "s"}});
        }
        if kind.group() == "apps" {
            given["spec"] = json!({"selector": {"matchLabels": {"a": "b"}}});
        }
        let mut object = decoded(kind, &given);
        kind.strategy().set_defaults(&mut *object).expect("defaults");
        let stored = Object::encode_for_store(&mut *object);
        let mut read = kind.ops.decode(&stored).expect("what was written").object;
        kind.strategy().set_defaults(&mut *read).expect("defaults");
        assert_eq!(shown(&*read), shown(&*object), "{kind:?}");
    }
}
