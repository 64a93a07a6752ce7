//! The boundaries of limits and requests: usage up to them is allowed.

use super::*;

fn case(memory: u64, disk: [u64; 3]) -> Case {
    Case {
        name: "p",
        priority: 0,
        request: 1024,
        memory,
        processes: 0,
        disk,
    }
}

#[test]
fn t8_local_storage_up_to_its_limit_is_allowed_and_a_limit_of_zero_is_none() {
    let exceeded = |spec: Json, disk: [u64; 3]| {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "p"}, "spec": spec})).unwrap();
        local_storage::exceeded(&pod, &stats(&case(0, disk)), Disks::default()).is_some()
    };
    let limited = |limits: &[(&str, &str)]| -> Json {
        let containers = limits.iter().map(
            |(name, limit)| json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}}),
        );
        json!({"containers": containers.collect::<Vec<_>>()})
    };
    let volume =
        |limit: &str| json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": limit}}]});
    let (one, two) = (limited(&[("c", "1Ki")]), limited(&[("c", "1Ki"), ("d", "1Ki")]));
    for (spec, disk, over) in [
        // The pod's sum, the container's own.
        (one.clone(), [500, 500, 24], false),
        (one, [500, 500, 25], true),
        (two.clone(), [512, 512, 0], false),
        (two, [512, 513, 0], true),
        (volume("0"), [0, 0, 5000], false),
        (volume("-1"), [0, 0, 5000], false),
    ] {
        assert_eq!(exceeded(spec.clone(), disk), over, "{spec} {disk:?}");
    }
}

#[test]
fn t8_the_message_names_only_containers_over_their_request_of_memory_or_of_layer_and_logs() {
    let blamed = |signal: Signal, case: &Case| {
        let threshold = Threshold {
            signal,
            ..threshold::defaults().remove(0)
        };
        let observed = seen(&[(signal, 1)], 0);
        let eviction = message::node_pressure(&pod(case), Some(&stats(case)), &[threshold], &observed);
        eviction.annotations["offending_containers"].clone()
    };
    for (memory, disk, of_memory, of_disk) in [
        (1024, [512, 512, 9000], "", ""),
        (1025, [512, 513, 0], "c", "c"),
        (0, [1025, 0, 0], "", "c"),
    ] {
        let case = case(memory, disk);
        assert_eq!(blamed(Signal::MemoryAvailable, &case), of_memory, "{memory}");
        assert_eq!(blamed(Signal::NodeFsAvailable, &case), of_disk, "{disk:?}");
    }
}

#[test]
fn t8_amounts_of_memory_and_disk_are_written_in_powers_of_1024_and_numbers_in_thousands() {
    for (signal, notation) in [
        (Signal::MemoryAvailable, Notation::BinarySi),
        (Signal::ImageFsAvailable, Notation::BinarySi),
        (Signal::NodeFsInodesFree, Notation::DecimalSi),
        (Signal::PidAvailable, Notation::DecimalSi),
    ] {
        assert_eq!(signal.notation(), notation, "{}", signal.name());
    }
    let reclaim = json!({"memory.available": "5%"});
    let mut errors = ErrorList::new();
    parse(
        &fields(json!({}), json!({}), json!({}), reclaim),
        false,
        &mut errors,
    );
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn t8_where_images_are_apart_from_layers_no_pod_is_counted_for_them() {
    let split = Disks {
        dedicated_image_fs: true,
        split_container_fs: true,
    };
    let (little, much) = (case(0, [2000, 0, 0]), case(0, [9000, 0, 0]));
    let named = |name: &'static str, case: &Case| Case {
        name,
        priority: 0,
        request: 1024,
        memory: 0,
        processes: 0,
        disk: case.disk,
    };
    let cases = [named("little", &little), named("much", &much)];
    let pods: Vec<Pod> = cases.iter().map(pod).collect();
    let summary = Summary {
        pods: cases.iter().map(stats).collect(),
        ..Summary::default()
    };
    let ranked = |signal: Signal| -> Vec<String> {
        let pods: Vec<&Pod> = pods.iter().collect();
        let ranked = ranking::rank(signal, split, &pods, &summary);
        ranked.iter().map(|p| p.metadata.uid.clone().unwrap()).collect()
    };
    assert_eq!(ranked(Signal::ImageFsAvailable), ["little", "much"], "unchanged");
    assert_eq!(ranked(Signal::NodeFsAvailable), ["much", "little"]);
}
