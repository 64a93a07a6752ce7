//! Which fencings are started, how many, and what their statuses report.

use super::*;

fn fencing(name: &str, node: &str, status: Value) -> NodeFencing {
    NodeFencing {
        metadata: serde_json::from_value(json!({"name": name})).unwrap(),
        spec: serde_json::from_value(json!({"nodeName": node, "automatic": true})).unwrap(),
        status: serde_json::from_value(status).unwrap(),
    }
}

fn started(phase: &str, second: i64) -> Value {
    json!({"phase": phase, "startTime": Time(at(second))})
}

/// Phase and message of a fencing after one sync.
fn after_a_sync(world: &mut World, name: &str, second: i64) -> (Phase, String) {
    let decision = Fencing::new(Allowed::default()).sync(world, at(second));
    decision.actions.iter().for_each(|list| world.take(list));
    let view: &dyn View = world;
    let object = view.get(NodeFencing::kind(), "", name).unwrap();
    let status = NodeFencing::of(&object).unwrap().status;
    (status.phase, status.message)
}

/// n1 and n2 are lost, and only the limit on the number of fencings keeps both from being fenced.
fn two_lost(max_per_hour: usize) -> World {
    let mut policy = one_agent();
    policy["maxPerHour"] = max_per_hour.into();
    policy["maxConcurrent"] = 9.into();
    policy["maxLostPercent"] = 100.into();
    let mut world = world(policy);
    world.put(node("n2", "Unknown", 0));
    world
}

#[test]
fn s6_fencings_of_the_last_hour_count_whatever_their_result_and_older_ones_do_not() {
    for (begun, second, phase) in [
        (started("Returned", 0), 3599, Phase::Pending),
        (started("Returned", 0), 3600, Phase::Fencing),
        (started("Fenced", 0), 3599, Phase::Pending),
        (started("Fenced", 0), 3600, Phase::Fencing),
    ] {
        let mut world = two_lost(1);
        world.put_custom(&fencing("a", "n1", begun.clone()));
        world.put_custom(&fencing("b", "n2", json!({"phase": "Pending"})));
        let (found, message) = after_a_sync(&mut world, "b", second);
        assert_eq!(found, phase, "{begun} {second}: {message}");
        let waits = message.contains("1 fencings were started in the last hour");
        assert_eq!(waits, phase == Phase::Pending, "{message}");
    }
}

#[test]
fn s6_a_fencing_is_cancelled_while_another_of_its_node_is_under_way() {
    for (of, phase) in [("n1", Phase::Cancelled), ("n2", Phase::Fencing)] {
        let mut world = two_lost(9);
        world.put_custom(&fencing("a", of, started("Fenced", 0)));
        world.put_custom(&fencing("b", "n1", json!({"phase": "Pending"})));
        let (found, message) = after_a_sync(&mut world, "b", 100);
        assert_eq!(found, phase, "{of}");
        assert_eq!(
            message == "NodeFencing a already fences the node",
            of == "n1",
            "{message}"
        );
    }
}

#[test]
fn s6_a_node_whose_last_fencing_is_over_is_fenced_again_under_a_name_of_its_own() {
    for (phase, created) in [("Returned", true), ("Cancelled", true), ("Fenced", false)] {
        let mut world = world(one_agent());
        world.put_custom(&fencing("old", "n1", started(phase, 0)));
        let decision = Fencing::new(Allowed::default()).sync(&world, at(60));
        let lines: Vec<String> = decision.actions.iter().flat_map(|list| lines(list)).collect();
        let create = format!("create nodefencings n1-{}", at(60).as_second());
        assert_eq!(lines.contains(&create), created, "{phase}: {lines:?}");
    }
}

#[test]
fn s6_a_policy_is_for_the_nodes_it_selects_and_a_selector_that_is_invalid_selects_none() {
    for (selector, fenced) in [
        (Value::Null, true),
        (json!({"matchLabels": {"zone": "a"}}), true),
        (json!({"matchLabels": {"zone": "b"}}), false),
        (
            json!({"matchExpressions": [{"key": "zone", "operator": "Near"}]}),
            false,
        ),
    ] {
        let mut policy = one_agent();
        if !selector.is_null() {
            policy["nodeSelector"] = selector.clone();
        }
        let mut world = world(policy);
        let mut n1 = node("n1", "Unknown", 0);
        n1.metadata.labels = Some(BTreeMap::from([("zone".to_string(), "a".to_string())]));
        world.put(n1);
        let mut story = Story::new(world);
        story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
        assert_eq!(story.phase().is_some(), fenced, "{selector}");
    }
}

#[test]
fn s6_the_message_of_a_failure_stays_while_the_next_attempt_is_blocked() {
    let mut story = Story::new(world(one_agent()));
    story.settle(60, |_| "fails");
    let failed = story.the_fencing().unwrap().status.message;
    story.world.put(node("n2", "Unknown", 70));
    story.settle(400, |_| "fails");
    let fencing = story.the_fencing().unwrap();
    assert_eq!(
        (fencing.status.phase, fencing.status.message),
        (Phase::Failed, failed)
    );
}

#[test]
fn s6_the_condition_changes_only_with_the_evidence() {
    let mut story = Story::new(world(one_agent()));
    let since = |story: &Story| {
        let conditions = story.the_fencing().unwrap().status.conditions;
        (conditions[0].status.clone(), conditions[0].last_transition_time.0)
    };
    story.settle(60, |_| "fails");
    assert_eq!(since(&story), ("False".to_string(), at(60)));
    story.settle(360, |_| "fails");
    assert_eq!(since(&story), ("False".to_string(), at(60)));
    story.settle(700, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(since(&story), ("True".to_string(), at(700)));
}

#[test]
fn s6_results_of_an_attempt_are_dropped_even_if_its_end_by_another_controller_was_not_seen() {
    let reboot = json!({"levels": [{"action": "reboot", "agents": [{"agent": "fence_a", "retries": 0}]}]});
    let mut story = Story::new(world(reboot));
    let mut reboot = None;
    for second in 60..64 {
        let decision = story.fencing.sync(&story.world, at(second));
        decision.actions.iter().for_each(|list| story.world.take(list));
        reboot = reboot.or(decision.runs.into_iter().find(|run| run.action == "reboot"));
    }
    story
        .fencing
        .record_result(&reboot.unwrap(), result("ok"), at(64));
    // Another controller has finished that attempt and started the next.
    let mut next = story.the_fencing().unwrap();
    next.status.start_time = Some(Time(at(400)));
    story.world.put_custom(&next);
    let decision = story.fencing.sync(&story.world, at(401));
    decision.actions.iter().for_each(|list| story.world.take(list));
    assert_eq!(story.phase(), Some(Phase::Fencing));
    assert_eq!(decision.runs.len(), 1, "the agent is run again");
}
