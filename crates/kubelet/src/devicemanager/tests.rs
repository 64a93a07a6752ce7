//! Tables of the device manager, after v1.36's tests.

use serde_json::json;

use super::*;

const GPU: &str = "example.com/gpu";

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn pod(uid: &str) -> Pod {
    let asks = |n: &str| json!({"limits": {GPU: n}, "requests": {GPU: n}});
    serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": {
        "initContainers": [
            {"name": "i", "resources": asks("2")},
            {"name": "s", "restartPolicy": "Always", "resources": asks("1")},
        ],
        "containers": [{"name": "a", "resources": asks("2")}, {"name": "b", "resources": asks("1")}],
    }}))
    .unwrap()
}

fn devices(all: &[(&str, bool)]) -> BTreeMap<String, Device> {
    let device = |is_healthy| Device {
        is_healthy,
        numa_nodes: vec![],
    };
    all.iter().map(|(id, ok)| (id.to_string(), device(*ok))).collect()
}

fn manager(all: &[(&str, bool)]) -> DeviceManager {
    let mut manager = DeviceManager::default();
    manager.registered(GPU, PluginOptions::default());
    manager.reported(GPU, devices(all));
    manager
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| id.to_string()).collect()
}

fn request<'a>(pod: &'a Pod, container: &'a str, count: usize) -> Request<'a> {
    Request {
        pod,
        container,
        resource: GPU,
        count,
        affinity: None,
    }
}

fn allocate(manager: &mut DeviceManager, pod: &Pod, container: &str, count: usize) -> BTreeSet<String> {
    let request = request(pod, container, count);
    let Ok(Choice::Allocate(chosen)) = manager.choose(&request, None) else {
        panic!("nothing is chosen for {container}");
    };
    manager.assign(&request, Allocation::default());
    chosen
}

#[test]
fn l4_no_device_is_assigned_to_two_pods() {
    let mut manager = manager(&[("d1", true), ("d2", true), ("d3", false)]);
    let (first, second) = (pod("1"), pod("2"));
    assert_eq!(
        manager.choose(&request(&first, "a", 1), None),
        Ok(Choice::Allocate(set(&["d1"])))
    );
    // The plugin's response has not arrived.
    assert_eq!(allocate(&mut manager, &second, "a", 1), set(&["d2"]));
    let third = pod("3");
    let error = manager.choose(&request(&third, "a", 1), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0"
    );
    manager.release_reserved(&request(&first, "a", 1));
    assert_eq!(allocate(&mut manager, &third, "a", 1), set(&["d1"]));
    assert!(manager.release(&"2".into()));
    assert_eq!(allocate(&mut manager, &first, "a", 1), set(&["d2"]));
}

#[test]
fn l4_devices_of_init_containers_are_used_again_and_those_of_sidecars_are_not() {
    let mut manager = manager(&[("d1", true), ("d2", true), ("d3", true), ("d4", true)]);
    let pod = pod("1");
    assert_eq!(allocate(&mut manager, &pod, "i", 2), set(&["d1", "d2"]));
    assert_eq!(allocate(&mut manager, &pod, "s", 1), set(&["d1"]));
    assert_eq!(allocate(&mut manager, &pod, "a", 2), set(&["d2", "d3"]));
    assert_eq!(allocate(&mut manager, &pod, "b", 1), set(&["d4"]));
}

#[test]
fn l4_a_container_keeps_its_devices_as_long_as_they_are_healthy() {
    let mut manager = manager(&[("d1", true), ("d2", true)]);
    let pod = pod("1");
    allocate(&mut manager, &pod, "a", 1);
    let same = request(&pod, "a", 1);
    assert_eq!(manager.choose(&same, None), Ok(Choice::Nothing));
    let text = |e: Error| e.to_string();
    assert_eq!(
        manager.choose(&request(&pod, "a", 2), None).map_err(text),
        Err(r#"pod "1" container "a" changed request for resource "example.com/gpu" from 1 to 2"#.into())
    );
    let health = |manager: &DeviceManager| {
        let status = manager.resources_status(&"1".into(), "a");
        let devices = status[0].resources.clone().unwrap();
        let health = devices.into_iter().map(|d| (d.resource_id, d.health.unwrap()));
        (status[0].name.clone(), health.collect::<Vec<_>>())
    };
    assert_eq!(
        health(&manager),
        (GPU.into(), vec![("d1".into(), "Healthy".into())])
    );
    assert_eq!(
        manager.reported(GPU, devices(&[("d1", false), ("d2", true)])),
        std::collections::BTreeSet::from([knarr_apimachinery::ids::PodUid::from("1")])
    );
    assert_eq!(health(&manager).1, [("d1".to_string(), "Unhealthy".to_string())]);
    assert_eq!(
        manager.choose(&same, None).map_err(text),
        Err(
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu"
                .into()
        )
    );
    manager.reported(GPU, devices(&[("d1", false)]));
    assert_eq!(
        manager.choose(&same, None).map_err(text),
        Err("no healthy devices present; cannot allocate unhealthy devices example.com/gpu".into())
    );
    let mut none = DeviceManager::default();
    assert_eq!(
        none.choose(&same, None).map_err(text),
        Err("cannot allocate unregistered device example.com/gpu".into())
    );
}

#[test]
fn l4_get_preferred_allocation_is_called_if_the_plugin_supports_it() {
    let mut manager = manager(&[("d1", true), ("d2", true), ("d3", true)]);
    let options = PluginOptions {
        get_preferred_allocation: true,
        ..PluginOptions::default()
    };
    manager.registered(GPU, options);
    let pod = pod("1");
    let devices_request = request(&pod, "a", 2);
    assert_eq!(
        manager.choose(&devices_request, None),
        Ok(Choice::Prefer {
            available: set(&["d1", "d2", "d3"]),
            must_include: set(&[]),
            count: 2
        })
    );
    for (preferred, chosen) in [
        (set(&["d2", "d3"]), set(&["d2", "d3"])),
        (set(&["d3"]), set(&["d1", "d3"])),
        (set(&["d1", "d2", "d3"]), set(&["d1", "d2"])),
        (set(&["x"]), set(&["d1", "d2"])),
        (set(&[]), set(&["d1", "d2"])),
    ] {
        assert_eq!(
            manager.choose(&devices_request, Some(&preferred)),
            Ok(Choice::Allocate(chosen))
        );
        manager.release_reserved(&devices_request);
    }
}

#[test]
fn l4_a_stopped_plugin_leaves_no_capacity_after_the_grace_period() {
    let mut manager = manager(&[("d1", true), ("d2", false)]);
    let counts = |n: usize| BTreeMap::from([(GPU.to_string(), n)]);
    let at = |capacity, allocatable| Capacity {
        capacity: counts(capacity),
        allocatable: counts(allocatable),
        removed: BTreeSet::new(),
    };
    assert_eq!(manager.capacity(now()), at(2, 1));
    manager.stopped(GPU, now());
    assert_eq!(manager.capacity(now() + STOP_GRACE), at(2, 0));
    let later = now() + STOP_GRACE + SignedDuration::from_secs(1);
    let removed = Capacity {
        removed: set(&[GPU]),
        ..Capacity::default()
    };
    assert_eq!(manager.capacity(later), removed);
    assert_eq!(manager.capacity(later), removed, "until it is back");
    manager.registered(GPU, PluginOptions::default());
    assert_eq!(manager.capacity(later), at(0, 0));
    // After a restart the plugin has the same grace period.
    let mut restored = DeviceManager::restored(set(&[GPU]), Assigned::default(), now());
    assert_eq!(restored.capacity(now()), at(0, 0));
    restored.registered(GPU, PluginOptions::default());
    restored.reported(GPU, devices(&[("d1", true)]));
    assert_eq!(restored.capacity(later), at(1, 1));
}

#[test]
fn l4_of_two_conflicting_plugins_the_first_one_wins() {
    let envs = |value: &str| [("VISIBLE".to_string(), value.to_string())].into();
    let node = |host: &str| DeviceNode {
        container_path: "/dev/x".into(),
        host_path: host.into(),
        permissions: "rw".into(),
    };
    let all = [
        Allocation {
            envs: envs("1"),
            devices: vec![node("/dev/x1")],
            cdi_devices: vec!["v.example/c=1".into()],
            ..Allocation::default()
        },
        Allocation {
            envs: envs("2"),
            devices: vec![node("/dev/x2")],
            cdi_devices: vec!["v.example/c=1".into(), "v.example/c=2".into()],
            ..Allocation::default()
        },
    ];
    let options = ContainerOptions::of(all.iter());
    assert_eq!(options.envs, envs("1"));
    assert_eq!(options.devices, [node("/dev/x1")]);
    assert_eq!(options.cdi_devices, ["v.example/c=1", "v.example/c=2"]);
}

#[test]
fn l4_only_resources_of_plugins_are_requests() {
    let manager = manager(&[("d1", true)]);
    let mut pod = pod("1");
    let mut container = pod.spec.as_ref().unwrap().containers[0].clone();
    assert_eq!(manager.requests(&pod, &container), [(GPU.to_string(), 2)]);
    assert!(DeviceManager::default().requests(&pod, &container).is_empty());
    for (of, resource, expected) in [
        ("a", GPU, vec![]),
        ("b", GPU, vec![(GPU.to_string(), 2)]),
        ("a", "example.com/nic", vec![(GPU.to_string(), 2)]),
    ] {
        let claimed = json!({"extendedResourceClaimStatus": {"resourceClaimName": "c",
            "requestMappings": [{"containerName": of, "resourceName": resource, "requestName": "r"}]}});
        pod.status = Some(serde_json::from_value(claimed).unwrap());
        assert_eq!(
            manager.requests(&pod, &container),
            expected,
            "a ResourceClaim provides {resource} of {of}"
        );
    }
    container.resources = serde_json::from_value(json!({"limits": {GPU: "0"}})).unwrap();
    assert!(manager.requests(&pod, &container).is_empty(), "none of it");
}

#[test]
fn l4_a_restart_keeps_the_assigned_devices() {
    let mut before = manager(&[("d1", true), ("d2", false)]);
    assert_eq!(
        before.resources(),
        BTreeMap::from([(GPU.to_string(), set(&["d1"]))])
    );
    let pod = pod("1");
    let one = request(&pod, "a", 1);
    assert_eq!(before.choose(&one, None), Ok(Choice::Allocate(set(&["d1"]))));
    let allocation = Allocation {
        cdi_devices: vec!["v.example/c=1".into()],
        ..Allocation::default()
    };
    before.assign(&one, allocation);
    let options = before.assigned().options(&"1".into(), "a");
    assert_eq!(options.cdi_devices, ["v.example/c=1"]);
    // As if the checkpoint named no resource of a plugin.
    let restored = DeviceManager::restored(BTreeSet::new(), before.assigned().clone(), now());
    assert_eq!(restored.assigned(), before.assigned());
    let container = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(
        restored.requests(&pod, container),
        [(GPU.to_string(), 2)],
        "an assigned resource is one of a plugin"
    );
}

#[test]
fn l4_a_report_names_the_pods_with_devices_whose_health_changed() {
    let mut manager = manager(&[("d1", true), ("d2", true)]);
    allocate(&mut manager, &pod("1"), "a", 1);
    for (report, expected) in [
        (vec![("d1", true), ("d2", true)], vec![]),
        (vec![("d1", true), ("d2", false)], vec![]),
        (vec![("d1", false), ("d2", false)], vec!["1"]),
        (vec![("d2", true)], vec![]),
        (vec![("d1", true)], vec!["1"]),
    ] {
        let changed = manager.reported(GPU, devices(&report));
        let changed: Vec<&str> = changed.iter().map(PodUid::as_str).collect();
        assert_eq!(changed, expected, "{report:?}");
    }
}

#[test]
fn l4_devices_of_pods_that_are_gone_are_free() {
    let mut manager = manager(&[("d1", true), ("d2", true)]);
    let (first, second, third) = (pod("1"), pod("2"), pod("3"));
    for (pod, id) in [(&first, "d1"), (&second, "d2")] {
        assert_eq!(
            manager.choose(&request(pod, "a", 1), None),
            Ok(Choice::Allocate(set(&[id])))
        );
    }
    assert!(!manager.release(&"2".into()), "its Allocate call is in flight");
    assert_eq!(allocate(&mut manager, &third, "a", 1), set(&["d2"]));
    manager.assign(&request(&first, "a", 1), Allocation::default());
    let counts = |n: usize| BTreeMap::from([(GPU.to_string(), n)]);
    assert_eq!(manager.least_allocatable(&"1".into()), counts(2));
    assert_eq!(manager.least_allocatable(&"2".into()), BTreeMap::new());
    assert!(manager.retain_pods(|uid| uid != "3"));
    assert!(!manager.retain_pods(|uid| uid != "3"), "it is gone already");
    assert_eq!(manager.least_allocatable(&"1".into()), counts(1));
    assert_eq!(manager.least_allocatable(&"3".into()), BTreeMap::new());
    assert_eq!(allocate(&mut manager, &second, "a", 1), set(&["d2"]));
}

#[test]
fn l4_pre_start_container_gets_the_devices_if_the_plugin_requires_the_call() {
    let mut manager = manager(&[("d1", true), ("d2", true)]);
    allocate(&mut manager, &pod("1"), "a", 2);
    let pre_start = |manager: &DeviceManager, container: &str, resource: &str| {
        let devices = manager.pre_start(&"1".into(), container, resource);
        devices.map_err(|e| e.to_string())
    };
    assert_eq!(pre_start(&manager, "a", GPU), Ok(None));
    let options = PluginOptions {
        pre_start_required: true,
        ..PluginOptions::default()
    };
    manager.registered(GPU, options);
    for (container, resource, expected) in [
        ("a", GPU, Ok(Some(vec!["d1".to_string(), "d2".to_string()]))),
        (
            "b",
            GPU,
            Err("no devices found allocated in local cache for pod 1, container b, resource example.com/gpu"),
        ),
        (
            "a",
            "example.com/nic",
            Err("endpoint not found in cache for a registered resource: example.com/nic"),
        ),
    ] {
        assert_eq!(
            pre_start(&manager, container, resource),
            expected.map_err(String::from)
        );
    }
}

/// Devices by their NUMA nodes: `("0", &[0])`.
fn manager_with_topology(all: &[(&str, &[i64])]) -> DeviceManager {
    let mut manager = DeviceManager::default();
    manager.registered(GPU, PluginOptions::default());
    let device = |(id, nodes): &(&str, &[i64])| {
        let device = Device {
            is_healthy: true,
            numa_nodes: nodes.to_vec(),
        };
        (id.to_string(), device)
    };
    manager.reported(GPU, all.iter().map(device).collect());
    manager
}

/// `01` preferred, `01?` not: the nodes of each hint. None: no preference.
fn hints(of: &crate::topologymanager::ProviderHints) -> Option<Vec<String>> {
    let hints = of.get(GPU)?.as_ref()?;
    let hint = |hint: &crate::topologymanager::Hint| {
        let nodes: String = hint.affinity.unwrap().nodes().map(|n| n.to_string()).collect();
        if hint.is_preferred { nodes } else { nodes + "?" }
    };
    Some(hints.iter().map(hint).collect())
}

#[test]
fn l4_hints_name_the_numa_nodes_with_enough_devices() {
    let numa_nodes = BTreeSet::from([0, 1]);
    let one = |count: &str| -> Pod {
        let asks = json!({"limits": {GPU: count}, "requests": {GPU: count}});
        let spec = json!({"containers": [{"name": "a", "resources": asks}]});
        serde_json::from_value(json!({"metadata": {"uid": "p"}, "spec": spec})).unwrap()
    };
    let both: [(&str, &[i64]); 4] = [("0", &[0]), ("1", &[1]), ("2", &[0]), ("3", &[1])];
    for (all, count, expected) in [
        (&[("0", &[][..]), ("1", &[][..])][..], "1", None),
        (
            &[("0", &[0][..]), ("1", &[1][..])][..],
            "1",
            Some(vec!["0", "1", "01?"]),
        ),
        (&[("0", &[0][..]), ("1", &[1][..])][..], "2", Some(vec!["01"])),
        (&[("0", &[0][..]), ("1", &[1][..])][..], "3", Some(vec![])),
        (&both[..], "2", Some(vec!["0", "1", "01?"])),
        (&both[..], "3", Some(vec!["01"])),
        (&[("0", &[0, 1][..])][..], "1", Some(vec!["0", "1", "01?"])),
        // Only NUMA nodes with devices are considered, and only existing ones.
        (&[("0", &[1][..]), ("1", &[7][..])][..], "1", Some(vec!["1"])),
    ] {
        let manager = manager_with_topology(all);
        let pod = one(count);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let expected = expected.map(|of| of.into_iter().map(String::from).collect::<Vec<_>>());
        assert_eq!(
            hints(&manager.hints(&pod, container, &numa_nodes)),
            expected,
            "{count} of {all:?}"
        );
        assert_eq!(
            hints(&manager.pod_hints(&pod, &numa_nodes)),
            expected,
            "{count} of {all:?}"
        );
    }
    let mut manager = manager_with_topology(&both);
    let pod = one("1");
    let container = &pod.spec.as_ref().unwrap().containers[0];
    allocate(&mut manager, &pod, "a", 1);
    let assigned = hints(&manager.hints(&pod, container, &numa_nodes));
    assert_eq!(assigned, Some(vec!["0".into(), "01?".into()]), "as assigned");
    let more = one("2");
    let container = &more.spec.as_ref().unwrap().containers[0];
    assert_eq!(
        hints(&manager.hints(&more, container, &numa_nodes)),
        Some(Vec::new())
    );
}

#[test]
fn l4_hints_include_the_numa_nodes_of_reused_devices() {
    let all: [(&str, &[i64]); 4] = [("0", &[0]), ("1", &[1]), ("2", &[0]), ("3", &[1])];
    let mut manager = manager_with_topology(&all);
    let pod = pod("p");
    assert_eq!(allocate(&mut manager, &pod, "i", 1), set(&["0"]));
    let sidecar = &pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[1];
    assert_eq!(
        hints(&manager.hints(&pod, sidecar, &BTreeSet::from([0, 1]))),
        Some(vec!["0".to_string(), "01?".to_string()])
    );
}

#[test]
fn l4_devices_on_the_numa_nodes_of_the_affinity_are_chosen_first() {
    let all: [(&str, &[i64]); 5] = [("a", &[]), ("b", &[0]), ("c", &[1]), ("d", &[1]), ("e", &[0])];
    let pod = pod("p");
    let choose = |manager: &mut DeviceManager, count: usize, affinity: &[u32]| {
        let mut request = request(&pod, "a", count);
        request.affinity = NumaMask::of(affinity.iter().copied());
        manager.choose(&request, None)
    };
    for (affinity, count, chosen) in [
        (&[1][..], 1, &["c"][..]),
        (&[1], 2, &["c", "d"]),
        (&[1], 3, &["b", "c", "d"]),
        (&[1], 5, &["a", "b", "c", "d", "e"]),
        (&[0, 1], 3, &["b", "c", "d"]),
    ] {
        let choice = choose(&mut manager_with_topology(&all), count, affinity);
        assert_eq!(
            choice,
            Ok(Choice::Allocate(set(chosen))),
            "{count} near {affinity:?}"
        );
    }
    let mut devices_request = manager_with_topology(&all);
    devices_request.registered(
        GPU,
        PluginOptions {
            get_preferred_allocation: true,
            ..PluginOptions::default()
        },
    );
    let only_near = Choice::Prefer {
        available: set(&["c", "d"]),
        must_include: set(&[]),
        count: 1,
    };
    assert_eq!(choose(&mut devices_request, 1, &[1]), Ok(only_near));
    assert_eq!(
        choose(&mut devices_request, 2, &[1]),
        Ok(Choice::Allocate(set(&["c", "d"])))
    );
    let others = Choice::Prefer {
        available: set(&["a", "b", "c", "d", "e"]),
        must_include: set(&["c", "d"]),
        count: 3,
    };
    // Those two are reserved by now.
    devices_request.release_reserved(&request(&pod, "a", 2));
    assert_eq!(choose(&mut devices_request, 3, &[1]), Ok(others));
}
