//! How objects are deleted (SPEC T1; `rest.BeforeDelete` and `registry.Store.Delete`): at once, with a grace period, or when their finalizers
//! are removed.
//!
//! A plan is decided here; the API server carries it out. Kinds with a plan of their own have it in their file (Namespace,
//! CustomResourceDefinition).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::deletion::Propagation;
use knarr_apimachinery::time::seconds;

use super::Strategy;

/// The finalizers of the garbage collector.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// A request to delete an object, whose preconditions hold.
#[derive(Clone, Copy, Debug)]
pub struct DeletionRequest {
    pub now: Timestamp,
    /// `None`: the object's own grace period.
    pub grace_period_seconds: Option<i64>,
    /// The deprecated `orphanDependents`.
    pub orphan_dependents: Option<bool>,
    /// `None`: the kind's own default.
    pub propagation: Option<Propagation>,
}

impl DeletionRequest {
    /// The requested grace period; a negative one is one second.
    fn grace_seconds(&self) -> Option<i64> {
        self.grace_period_seconds.map(|s| if s < 0 { 1 } else { s })
    }
}

/// What a deletion does to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionPlan {
    /// Nothing: it is being deleted already, and this request changes nothing about that.
    Pending,
    /// The marked object is written; then it is deleted if `then_remove`.
    Mark { then_remove: bool },
    /// It is deleted.
    Remove,
}

/// The plan for a kind without rules of its own. `marked` is a copy of `object`, and gets the marks.
pub(crate) fn plan<T: Strategy>(object: &T, marked: &mut T, request: &DeletionRequest) -> DeletionPlan {
    let grace_seconds = object.deletion_grace_seconds(request.grace_seconds());
    let rules = KindRules {
        grace_seconds,
        orphans_by_default: T::ORPHANS_BY_DEFAULT,
    };
    plan_metadata(object.metadata(), marked.metadata_mut(), request, rules)
}

/// What differs between kinds.
#[derive(Clone, Copy, Default)]
pub(crate) struct KindRules {
    /// See [`Strategy::deletion_grace_seconds`].
    pub grace_seconds: Option<i64>,
    /// See [`Strategy::ORPHANS_BY_DEFAULT`].
    pub orphans_by_default: bool,
}

/// The plan by an object's metadata. `marked` is a copy of it, and gets the marks.
pub(crate) fn plan_metadata(
    meta: &ObjectMeta,
    marked: &mut ObjectMeta,
    request: &DeletionRequest,
    rules: KindRules,
) -> DeletionPlan {
    let mut deadline = None;
    if let Some(first) = rules.grace_seconds {
        match graceful(meta, request, first) {
            Graceful::Deadline(at, grace) => deadline = Some((at, grace)),
            Graceful::Over => {}
            Graceful::Unchanged => return DeletionPlan::Pending,
        }
    }
    let old_finalizers = meta.finalizers.as_deref().unwrap_or_default();
    let finalizers = with_garbage_collection(old_finalizers, request, rules.orphans_by_default);
    let changed =
        finalizers.len() != old_finalizers.len() || finalizers.iter().any(|f| !old_finalizers.contains(f));
    let held = if changed {
        !finalizers.is_empty()
    } else {
        !old_finalizers.is_empty()
    };
    if changed {
        marked.finalizers = (!finalizers.is_empty()).then_some(finalizers);
    }
    let first = meta.deletion_timestamp.is_none();
    match deadline {
        Some((at, grace)) => {
            marked.deletion_timestamp = Some(seconds(at));
            marked.deletion_grace_period_seconds = Some(grace);
            if first {
                increment_generation(marked);
            }
            DeletionPlan::Mark {
                then_remove: grace == 0 && !held,
            }
        }
        None if held => {
            if first {
                increment_generation(marked);
                marked.deletion_timestamp = Some(seconds(request.now));
            } else if !changed && meta.deletion_grace_period_seconds == Some(0) {
                return DeletionPlan::Pending;
            }
            marked.deletion_grace_period_seconds = Some(0);
            DeletionPlan::Mark { then_remove: false }
        }
        None => DeletionPlan::Remove,
    }
}

/// What the request does to the grace period of a kind with graceful deletion.
enum Graceful {
    /// It ends at this time; the grace period in seconds.
    Deadline(Timestamp, i64),
    /// It is zero already.
    Over,
    /// It is not shorter than the one that runs.
    Unchanged,
}

/// `first` is the grace period in seconds if the object is not being deleted yet.
fn graceful(meta: &ObjectMeta, request: &DeletionRequest, first: i64) -> Graceful {
    let Some(deadline) = &meta.deletion_timestamp else {
        return Graceful::Deadline(after(request.now, first), first);
    };
    let current = meta.deletion_grace_period_seconds.unwrap_or(0);
    if current == 0 {
        return Graceful::Over;
    }
    match request.grace_seconds() {
        Some(shorter) if shorter < current => {
            let at = after(deadline.0, shorter - current);
            if at < request.now {
                // The kubelet finishes a graceful deletion.
                return Graceful::Deadline(request.now, i64::from(shorter != 0));
            }
            Graceful::Deadline(at, shorter)
        }
        _ => Graceful::Unchanged,
    }
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    let latest = if seconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    time.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(latest)
}

fn increment_generation(meta: &mut ObjectMeta) {
    if let Some(generation) = meta.generation.filter(|g| *g > 0) {
        meta.generation = Some(generation + 1);
    }
}

/// The garbage collector's finalizers by the request, the object and its kind, after the other finalizers.
fn with_garbage_collection(
    old: &[String],
    request: &DeletionRequest,
    orphans_by_default: bool,
) -> Vec<String> {
    let has = |f: &str| old.iter().any(|o| o == f);
    let (orphan, foreground) = match (request.orphan_dependents, request.propagation) {
        (Some(orphan), _) => (orphan, false),
        (None, Some(policy)) => (policy == Propagation::Orphan, policy == Propagation::Foreground),
        (None, None) if has(ORPHAN) => (true, false),
        (None, None) if has(FOREGROUND) => (false, true),
        (None, None) => (orphans_by_default, false),
    };
    let others = old.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned();
    let enabled = [(orphan, ORPHAN), (foreground, FOREGROUND)].into_iter();
    others
        .chain(enabled.filter(|(on, _)| *on).map(|(_, f)| f.to_string()))
        .collect()
}

/// Whether an update removes the last finalizer of an object that is being deleted and whose grace period is over.
pub(crate) fn removes_last_finalizer(new: &ObjectMeta, old: &ObjectMeta) -> bool {
    let has_finalizers = |meta: &ObjectMeta| meta.finalizers.as_ref().is_some_and(|f| !f.is_empty());
    if new.deletion_timestamp.is_none() || has_finalizers(new) {
        return false;
    }
    let graceless = new.deletion_grace_period_seconds.unwrap_or(0) == 0;
    graceless && (has_finalizers(old) || old.deletion_grace_period_seconds == Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn request(grace_period_seconds: Option<i64>) -> DeletionRequest {
        DeletionRequest {
            now: at(100),
            grace_period_seconds,
            orphan_dependents: None,
            propagation: None,
        }
    }

    /// An object with these finalizers that is deleted until this second with this grace period.
    fn meta(finalizers: &[&str], deleted: Option<(i64, i64)>) -> ObjectMeta {
        ObjectMeta {
            finalizers: (!finalizers.is_empty())
                .then(|| finalizers.iter().map(ToString::to_string).collect()),
            deletion_timestamp: deleted.map(|(until, _)| seconds(at(until))),
            deletion_grace_period_seconds: deleted.map(|(_, grace)| grace),
            generation: Some(1),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn t1_a_grace_period_is_only_shortened_and_ends_at_the_earliest_now() {
        let mark = |until, grace, then_remove| Some((DeletionPlan::Mark { then_remove }, until, grace));
        for (deleted, requested, first, expected) in [
            (None, None, 30, mark(130, 30, false)),
            (None, Some(0), 0, mark(100, 0, true)),
            (Some((130, 30)), None, 30, None),
            (Some((130, 30)), Some(30), 30, None),
            (Some((130, 30)), Some(10), 10, mark(110, 10, false)),
            (Some((105, 30)), Some(10), 10, mark(100, 1, false)),
            (Some((105, 30)), Some(0), 0, mark(100, 0, true)),
            (Some((130, 30)), Some(-5), 1, mark(101, 1, false)),
        ] {
            let old = meta(&[], deleted);
            let mut marked = old.clone();
            let rules = KindRules {
                grace_seconds: Some(first),
                ..KindRules::default()
            };
            let plan = plan_metadata(&old, &mut marked, &request(requested), rules);
            match expected {
                None => assert_eq!((plan, &marked), (DeletionPlan::Pending, &old)),
                Some((expected, until, grace)) => {
                    assert_eq!(plan, expected, "{deleted:?} {requested:?}");
                    let first = i64::from(deleted.is_none());
                    let mut expected = meta(&[], Some((until, grace)));
                    expected.generation = Some(1 + first);
                    assert_eq!(marked, expected, "{deleted:?} {requested:?}");
                }
            }
        }
        let mut marked = meta(&[], None);
        let rules = KindRules {
            grace_seconds: Some(i64::MAX),
            ..KindRules::default()
        };
        plan_metadata(&meta(&[], None), &mut marked, &request(Some(i64::MAX)), rules);
        assert_eq!(marked.deletion_timestamp, Some(seconds(Timestamp::MAX)));
    }

    #[test]
    fn t1_finalizers_hold_an_object_and_follow_the_propagation_policy() {
        let (held, removed) = (DeletionPlan::Mark { then_remove: false }, DeletionPlan::Remove);
        for (finalizers, deleted, propagation, orphans, plan, after) in [
            (vec![], None, None, false, removed, vec![]),
            (vec!["a"], None, None, false, held, vec!["a"]),
            (
                vec!["a"],
                Some((100, 0)),
                None,
                false,
                DeletionPlan::Pending,
                vec!["a"],
            ),
            (vec![], None, None, true, held, vec![ORPHAN]),
            (vec![], None, Some(Propagation::Background), true, removed, vec![]),
            (
                vec![FOREGROUND, "a"],
                None,
                Some(Propagation::Orphan),
                false,
                held,
                vec!["a", ORPHAN],
            ),
            (vec![ORPHAN], None, None, false, held, vec![ORPHAN]),
            (
                vec![FOREGROUND],
                Some((100, 0)),
                Some(Propagation::Background),
                false,
                removed,
                vec![],
            ),
        ] {
            let old = meta(&finalizers, deleted);
            let mut marked = old.clone();
            let request = DeletionRequest {
                propagation,
                ..request(None)
            };
            let rules = KindRules {
                orphans_by_default: orphans,
                ..KindRules::default()
            };
            let found = plan_metadata(&old, &mut marked, &request, rules);
            assert_eq!(found, plan, "{finalizers:?} {propagation:?}");
            assert_eq!(
                marked.finalizers.unwrap_or_default(),
                after,
                "{finalizers:?} {propagation:?}"
            );
        }
    }

    #[test]
    fn t1_the_last_finalizer_completes_a_deletion_whose_grace_period_is_over() {
        for (new, old, expected) in [
            (meta(&[], Some((100, 0))), meta(&["a"], Some((100, 0))), true),
            (meta(&[], Some((100, 0))), meta(&[], Some((100, 0))), true),
            (
                meta(&["b"], Some((100, 0))),
                meta(&["a", "b"], Some((100, 0))),
                false,
            ),
            (meta(&[], Some((130, 30))), meta(&["a"], Some((130, 30))), false),
            (meta(&[], None), meta(&["a"], None), false),
        ] {
            assert_eq!(removes_last_finalizer(&new, &old), expected, "{new:?}");
        }
    }
}
