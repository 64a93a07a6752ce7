//! A fenced node is switched on again, and trusted when it is Ready.

use super::*;

#[test]
fn s6_a_fenced_node_is_unfenced_by_its_agents_and_trusted_when_it_is_ready() {
    let mut story = Story::new(world(one_agent()));
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    story.settle(60, good);
    story.world.remove(&registry::POD, "a", "p");
    story.settle(80, good);
    let message = story.the_fencing().unwrap().status.message;
    assert!(message.contains("switch the node on again"), "{message}");
    story.runs.clear();
    // A user has switched it on.
    let mut back = story.ready_since(100);
    // Its kubelet has to terminate the former pods first.
    story.world.put(stateful("p", "n1"));
    story.world.put(back.clone());
    story.settle(110, good);
    assert!(story.runs.is_empty() && story.phase() == Some(Phase::Fenced));
    story.world.remove(&registry::POD, "a", "p");
    back.status.as_mut().unwrap().volumes_in_use = Some(vec!["exclusive.knarr.io/v".into()]);
    story.world.put(back.clone());
    story.settle(120, good);
    assert_eq!(story.runs, ["fence_a on"]);
    assert!(
        story.is_tainted() && story.phase() == Some(Phase::Returning),
        "it still uses a volume"
    );
    back.status.as_mut().unwrap().volumes_in_use = None;
    story.world.put(back);
    story.settle(130, good);
    assert_eq!(story.phase(), Some(Phase::Returned));
    assert!(!story.is_tainted());
}

#[test]
fn s6_volumes_attached_after_unfencing_do_not_delay_the_end() {
    let mut policy = one_agent();
    policy["automaticReturn"] = true.into();
    let mut story = Story::new(world(policy));
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    story.settle(60, good);
    story.world.remove(&registry::POD, "a", "p");
    story.settle(80, good);
    assert_eq!(story.phase(), Some(Phase::Returning));
    // Its taint was removed by a controller that exited before it wrote the phase, and the node has a volume again.
    let mut back = node("n1", "True", 90);
    back.spec = Some(Default::default());
    back.status.as_mut().unwrap().volumes_in_use = Some(vec!["exclusive.knarr.io/v".into()]);
    story.world.put(back);
    story.fencing = Fencing::default();
    story.settle(100, good);
    story.settle(110, good);
    assert_eq!(story.phase(), Some(Phase::Returned));
}

#[test]
fn s6_a_node_that_does_not_come_up_is_switched_on_again() {
    let mut policy = one_agent();
    policy["automaticReturn"] = true.into();
    policy["retrySeconds"] = 30.into();
    let mut story = Story::new(world(policy));
    // Its `on` succeeds, but the node does not report.
    let lies = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    story.settle(60, lies);
    story.world.remove(&registry::POD, "a", "p");
    let mut ons = Vec::new();
    for second in (80..200).step_by(10) {
        story.runs.clear();
        story.settle(second, lies);
        ons.extend(story.runs.iter().map(|run| format!("{second}: {run}")));
    }
    let expected = [80, 110, 140, 170].map(|second| format!("{second}: fence_a on"));
    assert_eq!(ons, expected);
    assert!(story.is_tainted() && story.phase() == Some(Phase::Returning));
    // If it has reported since, no agent is run again.
    let back = story.ready_since(195);
    story.world.put(back);
    story.runs.clear();
    story.settle(196, lies);
    story.settle(205, lies);
    assert_eq!(story.phase(), Some(Phase::Returning));
    story.settle(206, lies);
    assert_eq!(story.phase(), Some(Phase::Returned));
    assert!(story.runs.is_empty() && !story.is_tainted());
}

#[test]
fn s6_the_status_from_before_a_node_was_switched_off_does_not_count_as_its_return() {
    let mut world = world(one_agent());
    let mut well = node("n1", "True", 50);
    well.metadata.annotations = Some(BTreeMap::from([(
        FENCE_ANNOTATION.to_string(),
        "a test".to_string(),
    )]));
    world.put(well);
    world.remove(&registry::POD, "a", "p");
    let mut story = Story::new(world);
    story.settle(60, |run| if run.action == "status" { "off" } else { "ok" });
    assert_eq!(story.runs, ["fence_a off", "fence_a status"]);
    assert!(story.is_tainted() && story.phase() == Some(Phase::Fenced));
}

#[test]
fn s6_a_controller_whose_clock_was_ahead_does_not_delay_unfencing() {
    let mut policy = one_agent();
    policy["automaticReturn"] = true.into();
    let mut story = Story::new(world(policy));
    let good = |run: &Run| if run.action == "status" { "off" } else { "ok" };
    // Fenced, and unfencing failed, by a clock that is hours ahead of the next controller's.
    story.settle(9000, good);
    story.world.remove(&registry::POD, "a", "p");
    story.settle(9010, |_| "fails");
    assert_eq!(story.phase(), Some(Phase::Fenced));
    let back = story.ready_since(100);
    story.world.put(back);
    story.settle(110, good);
    story.settle(120, good);
    assert_eq!(story.phase(), Some(Phase::Returned));
    assert!(!story.is_tainted());
}
