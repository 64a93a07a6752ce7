//! Kubernetes: "Resource Quotas" and "Limit Ranges". Nothing is created that exceeds a ResourceQuota, however many
//! servers admit at once, except for what was in progress when the quota controller counted; a container has the
//! defaults of its LimitRange, and no more than it allows; and at rest a quota's status says exactly what exists.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::metering::{Limit, Quota, requested_cpu};
use crate::world::{Observation, World};

/// A server without faults knows a quota or a range by then.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// The name of all API servers among the components that are free of faults or not.
pub(crate) const SERVERS: &str = "servers";
/// What was charged before a limit was lowered is stored by then.
const IN_FLIGHT: SignedDuration = SignedDuration::from_secs(60);
/// A count of the controller that missed what was in progress is corrected by the next:
/// `--resource-quota-sync-period` (5 min) later, and a minute.
const COUNTED_AGAIN: SignedDuration = SignedDuration::from_mins(6);

/// Whether all servers know what was stored before that time.
fn is_known(since: Timestamp, world: &World) -> bool {
    world.each_was_well(|name| name == SERVERS, since..world.now, KNOWN_AFTER)
}

fn highest(limit: &Limit, world: &World) -> i64 {
    let lately = limit
        .before
        .filter(|(_, at)| world.now.duration_since(*at) < IN_FLIGHT);
    lately.map_or(limit.hard, |(before, _)| limit.hard.max(before))
}

/// How much the quota's usage may be too low by what was charged and not stored yet when the controller counted.
/// v1.36's `syncResourceQuota` has this race: it counts the informers' objects and writes them to the version of the
/// quota that has the charge.
fn missed(quota: &Quota, name: &str, now: Timestamp) -> i64 {
    let count = quota.counts.get(name);
    let count = count.filter(|count| now.duration_since(count.at) < COUNTED_AGAIN);
    count.map_or(0, |count| count.missed)
}

/// An object that raises an amount is stored.
fn added(key: &str, world: &World) -> Result<(), Finding> {
    let metering = &world.metering;
    for (quota, of) in &metering.quotas {
        for name in &metering.added {
            let Some(limit) = of.limits.get(name) else {
                continue;
            };
            if !is_known(limit.since, world) {
                continue;
            }
            let (total, hard) = (metering.total(name, world.now), highest(limit, world));
            if total > hard + missed(of, name, world.now) {
                return Err(Finding(format!(
                    "{key} is stored, and {name} is {total} by then, in thousandths, of which quota {quota} allows {hard}"
                )));
            }
        }
    }
    Ok(())
}

/// A quota is charged.
fn charged(world: &World) -> Result<(), Finding> {
    let metering = &world.metering;
    for (quota, of) in &metering.quotas {
        for (name, was) in &of.raised {
            let (Some(limit), Some(used)) = (of.limits.get(name), of.used.get(name)) else {
                continue;
            };
            // What exists has to be counted, also where it exceeds the limit.
            // A controller whose clock is behind counts pods past their grace period as well.
            if *used > limit.hard && *used > metering.total(name, Timestamp::MIN) {
                return Err(Finding(format!(
                    "quota {quota} is charged for {name}: {used} instead of {was}, in thousandths, and its limit is {}",
                    limit.hard
                )));
            }
        }
    }
    Ok(())
}

fn created(key: &str, world: &World) -> Result<(), Finding> {
    let metering = &world.metering;
    let Some(pod) = &metering.created else {
        return Ok(());
    };
    let requested = requested_cpu(pod);
    for (range, of) in &metering.ranges {
        if !is_known(of.since, world) {
            continue;
        }
        if of.gives && requested.is_none() {
            return Err(Finding(format!(
                "{key} is stored without the request that LimitRange {range} gives"
            )));
        }
        if let (Some(most), Some(requested)) = (of.most, requested)
            && requested > most
        {
            return Err(Finding(format!(
                "{key} is stored with a request of {requested}m CPU, LimitRange {range} allows {most}m"
            )));
        }
    }
    Ok(())
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Metered { key } = seen else {
        return Ok(());
    };
    added(key, world)?;
    charged(world)?;
    created(key, world)
}

/// At rest: whether every quota says what exists.
pub(crate) fn at_rest(world: &World) -> Result<(), Finding> {
    let metering = &world.metering;
    for (quota, of) in &metering.quotas {
        for (name, expected) in &of.expected {
            let hard = of.limits.get(name).map(|limit| limit.hard);
            if hard != Some(*expected) {
                return Err(Finding(format!(
                    "quota {quota} enforces {hard:?} of {name}, its spec says {expected}"
                )));
            }
            let (used, total) = (of.used.get(name).copied(), metering.total(name, world.now));
            if used != Some(total) {
                return Err(Finding(format!(
                    "quota {quota} says that {used:?} of {name} are used, in thousandths, and {total} are"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    /// A cluster with these keys, each written so many seconds after the beginning.
    fn world(written: &[(i64, &str, Option<Value>)]) -> World {
        world_counted(written, None)
    }

    /// The same; the quota controller made the write of that index.
    fn world_counted(written: &[(i64, &str, Option<Value>)], counted: Option<usize>) -> World {
        let began: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut world = World {
            now: NOW.parse().unwrap(),
            ..World::default()
        };
        world.well_since.insert(SERVERS.into(), Some(began));
        for (index, (after, path, value)) in written.iter().enumerate() {
            world.metering.for_component = counted == Some(index);
            let value = value.as_ref().map(Value::to_string);
            let at = began + SignedDuration::from_secs(*after);
            let counts = world
                .metering
                .take_in(path, value.as_deref().map(str::as_bytes), at);
            assert!(counts, "{path}");
        }
        world
    }

    fn quota(hard: &str, used: &str) -> Option<Value> {
        let of = |amount: &str| json!({"configmaps": amount});
        Some(json!({
            "metadata": {"name": "q", "namespace": "metered", "uid": "u"},
            "spec": {"hard": of(hard)},
            "status": {"hard": of(hard), "used": of(used)},
        }))
    }

    fn pod(cpu: Option<&str>, phase: &str) -> Option<Value> {
        let requests = cpu.map_or(json!({}), |cpu| json!({"cpu": cpu}));
        Some(json!({
            "metadata": {"name": "p", "namespace": "metered", "uid": "p"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": {"phase": phase},
        }))
    }

    const QUOTA: &str = "core/resourcequotas/metered/q";

    fn map(name: &str) -> String {
        format!("core/configmaps/metered/{name}")
    }

    fn is_broken(world: &World) -> bool {
        check(&Observation::Metered { key: "key" }, world).is_err()
    }

    #[test]
    fn what_a_quota_has_no_room_for_is_seen_when_it_is_stored() {
        let there = Some(json!({"metadata": {}}));
        let (a, b) = (map("a"), map("b"));
        for (quota_at, lowered_at, expect) in [(0, None, true), (598, None, false), (0, Some(595), false)] {
            let first = if lowered_at.is_some() { "2" } else { "1" };
            let mut written = vec![(quota_at, QUOTA, quota(first, "1")), (591, &*a, there.clone())];
            written.extend(lowered_at.map(|at| (at, QUOTA, quota("1", "2"))));
            written.push((600, &*b, there.clone()));
            assert_eq!(is_broken(&world(&written)), expect, "{quota_at} {lowered_at:?}");
        }
        let room = [
            (0, QUOTA, quota("2", "1")),
            (591, &*a, there.clone()),
            (600, &*b, there),
        ];
        assert!(!is_broken(&world(&room)));
    }

    #[test]
    fn what_was_in_flight_when_the_controller_counted_is_excused_until_it_counts_again() {
        let there = Some(json!({"metadata": {}}));
        let (a, b) = (map("a"), map("b"));
        for (counted_at, expect) in [(300, false), (100, true)] {
            let written = [
                (0, QUOTA, quota("1", "1")),
                (counted_at, QUOTA, quota("1", "0")),
                (598, QUOTA, quota("1", "1")),
                (599, &*a, there.clone()),
                (600, &*b, there.clone()),
            ];
            assert_eq!(
                is_broken(&world_counted(&written, Some(1))),
                expect,
                "{counted_at}"
            );
            // A charge that is taken back excuses nothing.
            assert!(is_broken(&world(&written)), "{counted_at}");
        }
    }

    #[test]
    fn a_charge_beyond_the_limit_is_seen_and_a_count_of_what_is_there_is_not() {
        let there = Some(json!({"metadata": {}}));
        let (a, b) = (map("a"), map("b"));
        let charged = [(0, QUOTA, quota("1", "1")), (600, QUOTA, quota("1", "2"))];
        assert!(is_broken(&world(&charged)));
        let counted = [
            (0, &*a, there.clone()),
            (0, &*b, there),
            (0, QUOTA, quota("1", "0")),
            (600, QUOTA, quota("1", "2")),
        ];
        assert!(!is_broken(&world(&counted)));
    }

    #[test]
    fn at_rest_a_quota_that_says_too_little_or_too_much_is_seen() {
        let there = Some(json!({"metadata": {}}));
        let a = map("a");
        for (used, expect) in [("0", true), ("1", false), ("2", true)] {
            let written = [(0, &*a, there.clone()), (1, QUOTA, quota("3", used))];
            assert_eq!(at_rest(&world(&written)).is_err(), expect, "{used}");
        }
        // Terminated pods count no more.
        let pods = |used: &str| {
            let mut quota = quota("3", "0").unwrap();
            quota["spec"]["hard"] = json!({"pods": "3"});
            quota["status"] = json!({"hard": {"pods": "3"}, "used": {"pods": used}});
            Some(quota)
        };
        for (phase, used, expect) in [
            ("Running", "1", false),
            ("Succeeded", "1", true),
            ("Failed", "0", false),
        ] {
            let written = [
                (0, "core/pods/metered/p", pod(None, phase)),
                (1, QUOTA, pods(used)),
            ];
            assert_eq!(at_rest(&world(&written)).is_err(), expect, "{phase} {used}");
        }
    }

    #[test]
    fn a_container_that_requests_nothing_or_too_much_for_its_range_is_seen() {
        let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{
            "type": "Container", "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "500m"},
        }]}});
        for (cpu, known_since, expect) in [
            (Some("500m"), 0, false),
            (Some("501m"), 0, true),
            (None, 0, true),
            (None, 598, false),
        ] {
            let written = [
                (known_since, "core/limitranges/metered/r", Some(range.clone())),
                (600, "core/pods/metered/p", pod(cpu, "Pending")),
            ];
            assert_eq!(is_broken(&world(&written)), expect, "{cpu:?} {known_since}");
        }
    }
}
