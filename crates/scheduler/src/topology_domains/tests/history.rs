//! Random histories of nodes, pods and declarations: verdicts that are updated equal verdicts that are computed from scratch.

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Node {
        n: usize,
        zone: usize,
    },
    NodeDeleted(usize),
    Pod {
        n: usize,
    },
    /// The state of each zone: not in the object, absent or with nodes, lost, lost and declared.
    Domains(Vec<u8>),
    Deleted,
}

const ZONES: [&str; 4] = ["a", "b", "c", "d"];

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..5_usize, 0..4_usize).prop_map(|(n, zone)| Event::Node { n, zone }),
        1 => (0..5_usize).prop_map(Event::NodeDeleted),
        4 => (0..5_usize).prop_map(|n| Event::Pod { n }),
        3 => proptest::collection::vec(0..4_u8, 4).prop_map(Event::Domains),
        1 => Just(Event::Deleted),
    ]
}

fn apply(scheduler: &mut Scheduler, at: usize, event: &Event) {
    match event {
        Event::Node { n, zone } => {
            let name = format!("n{n}");
            scheduler.node_changed(&name, Some(node(&name, ZONES[*zone])), NOW);
        }
        Event::NodeDeleted(n) => scheduler.node_changed(&format!("n{n}"), None, NOW),
        Event::Pod { n } => {
            let pod = pod(&format!("p{at}"), &format!("n{n}"));
            scheduler.pod_changed(None, Some(&pod), NOW);
        }
        Event::Domains(states) => {
            let domains = states.iter().zip(ZONES).filter_map(|(state, zone)| match state {
                0 => None,
                1 => Some(domain(zone, &json!({}))),
                2 => Some(lost(zone, &json!([]))),
                _ => Some(lost(zone, &json!([{}]))),
            });
            let object = declared("zones", OLD, &json!(domains.collect::<Vec<Value>>()));
            scheduler.topology_domains_changed("zones", Some(&object), NOW);
        }
        Event::Deleted => scheduler.topology_domains_changed("zones", None, NOW),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn b3_updated_verdicts_equal_those_from_scratch(
        events in proptest::collection::vec(event(), 1..25),
        min_domains in 1..4_i64,
    ) {
        let one = pending(&json!([zones(&json!({"minDomains": min_domains}))]), &Value::Null);
        let mut scheduler = Scheduler::default();
        for at in 0..events.len() {
            apply(&mut scheduler, at, &events[at]);
            let mut fresh = Scheduler::default();
            for (at, event) in events[..=at].iter().enumerate() {
                apply(&mut fresh, at, event);
            }
            let rejections = |scheduler: &mut Scheduler| {
                let info = scheduler.info(&one);
                scheduler.explain(&info).nodes
            };
            prop_assert_eq!(rejections(&mut scheduler), rejections(&mut fresh), "after event {}", at);
        }
    }
}
