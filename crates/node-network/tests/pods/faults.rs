//! Failures: agents that are killed, records or links that are missing, malformed configurations.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use knarr_node_network::pods::{PodName, Sandbox};
use serde_json::json;

use crate::Case;
use crate::agent::Agent;
use crate::node::{Node, Pod, network};
use crate::traffic::{serve, tcp};

pub const CASES: &[Case] = &[
    (
        "n1_pods_go_on_while_the_agent_is_away_and_it_takes_them_over",
        restart,
    ),
    (
        "n1_a_record_without_a_link_keeps_its_address_until_del",
        record_without_link,
    ),
    (
        "n1_a_link_without_a_record_keeps_its_address",
        link_without_record,
    ),
    ("n1_an_add_that_was_interrupted_is_repeated", interrupted),
    (
        "n1_an_agent_killed_between_dels_answer_and_the_links_deletion_finishes_it_at_its_start",
        removal_interrupted,
    ),
    (
        "n1_agents_killed_after_dels_leave_no_link_and_no_address",
        killed_after_delete,
    ),
    (
        "n1_routes_and_table_that_others_removed_come_back",
        removed_by_others,
    ),
    ("n1_malformed_requests_have_cni_errors", malformed),
    (
        "n1_gc_releases_what_the_runtime_does_not_have",
        garbage_collection,
    ),
    (
        "n1_agents_killed_at_any_moment_lose_no_pod_and_no_address",
        killed,
    ),
    ("n1_del_succeeds_when_the_namespace_is_deleted", namespace_deleted),
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn restart() {
    let mut node = Node::started();
    let _outside = node.outside();
    let pod = Pod::new(1);
    let address = node.add(&pod).addresses()[0];
    serve(&pod.namespace, "pod", 80);
    node.kill();
    assert!(tcp(&node.namespace, address, 80).is_ok());
    node.start();
    assert_eq!(node.pods.namespace_of(address).as_deref(), Some("shop"));
    node.cni("CHECK", &pod, &node.config()).done();
    let other = Pod::new(2);
    assert_ne!(node.add(&other).addresses()[0], address);
    assert_eq!(node.add(&pod).failure().0, 4, "it is attached already");
    node.delete(&pod).done();
    node.until_removed(&pod.id);
    assert_eq!(node.links(), [other.host_interface()]);
}

fn record_without_link() {
    let mut node = Node::new(Some(network(&["10.244.1.0/30"])));
    node.start();
    let (a, b) = (Pod::new(1), Pod::new(2));
    node.add(&a).done();
    node.kill();
    node.namespace
        .command(&format!("ip link del {}", a.host_interface()));
    node.start();
    assert_eq!(node.cni("CHECK", &a, &node.config()).failure().0, 105);
    assert_eq!(node.add(&b).failure().0, 101, "its sandbox may still live");
    assert_eq!(node.reconcile(Vec::new()), 0, "it may be too young to be listed");
    node.delete(&a).done();
    node.add(&b).done();
}

fn link_without_record() {
    let mut node = Node::new(Some(network(&["10.244.1.0/30"])));
    let _outside = node.outside();
    node.start();
    let (a, b) = (Pod::new(1), Pod::new(2));
    let address = node.add(&a).addresses()[0];
    node.kill();
    std::fs::remove_dir_all(node.records()).unwrap();
    node.start();
    assert_eq!(node.add(&b).failure().0, 101);
    assert_eq!(node.pods.list()[0].addresses, [address]);
    assert_eq!(node.pods.namespace_of(address), None);
    let pod = PodName {
        namespace: "shop".into(),
        name: "pod-1".into(),
        uid: None,
    };
    let listed = Sandbox {
        id: a.id.clone(),
        pod: Some(pod),
    };
    assert_eq!(node.reconcile(vec![listed]), 0);
    assert_eq!(node.pods.namespace_of(address).as_deref(), Some("shop"));
    serve(&a.namespace, "a", 80);
    assert!(tcp(&node.namespace, address, 80).is_ok());
    node.delete(&a).done();
    node.until_removed(&a.id);
    assert!(node.links().is_empty());
    node.add(&b).done();
}

fn interrupted() {
    let mut node = Node::started();
    let pod = Pod::new(1);
    node.add(&pod).done();
    node.kill();
    // As if the agent had been killed between the routes and the record that says so.
    let record = node.records().join(format!("{}.json", pod.id));
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, text.replace("\"isReady\":true", "\"isReady\":false")).unwrap();
    node.start();
    assert!(node.pods.list().is_empty());
    assert!(
        node.links().is_empty(),
        "it is not among the pods, so no packet passes"
    );
    assert!(!node.namespace.command("ip route show").contains("10.244.1.2"));
    assert_eq!(
        node.add(&pod).addresses(),
        [ip("10.244.1.3"), ip("fd00:244:0:1::3")]
    );
    assert_eq!(node.links().len(), 1);
}

fn removal_interrupted() {
    let mut node = Node::new(Some(network(&["10.244.1.0/30"])));
    node.start();
    let (a, b) = (Pod::new(1), Pod::new(2));
    node.add(&a).done();
    node.kill();
    // As DEL leaves it when it answers.
    node.namespace
        .command(&format!("ip link set {} down", a.host_interface()));
    let path = node.records().join(format!("{}.json", a.id));
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["isReady"] = false.into();
    record["isRemoving"] = true.into();
    std::fs::write(&path, record.to_string()).unwrap();
    node.start();
    node.delete(&a).done();
    assert_eq!(node.add(&b).addresses(), [ip("10.244.1.2")], "there is no other");
    node.until_removed(&a.id);
    assert_eq!(node.links(), [b.host_interface()]);
}

fn killed_after_delete() {
    const PODS: usize = 8;
    let node = Node::new(None);
    for round in 0..6 {
        let mut agent = Agent::start(&node);
        let pods: Vec<Pod> = (0..PODS).map(|n| Pod::new(round * PODS + n)).collect();
        for pod in &pods {
            node.add(pod).done();
        }
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| node.delete(pod).done());
            }
        });
        agent.kill();
        let mut agent = Agent::start(&node);
        for pod in &pods {
            node.until_removed(&pod.id);
        }
        assert!(node.links().is_empty());
        assert_eq!(std::fs::read_dir(node.records()).unwrap().count(), 1, ".last");
        agent.kill();
    }
}

fn removed_by_others() {
    let mut node = Node::started();
    let _outside = node.outside();
    let pod = Pod::new(1);
    let address = node.add(&pod).addresses()[0];
    serve(&pod.namespace, "pod", 80);
    node.namespace.command("nft flush ruleset");
    node.namespace.command(&format!("ip route del {address}"));
    node.kill();
    node.start();
    assert!(node.tables().contains("knarr-pods"));
    assert!(tcp(&node.namespace, address, 80).is_ok());
    // While it runs, too.
    node.namespace.command("nft flush ruleset");
    let ports = json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
    node.add_with(&Pod::new(2), ports).done();
    assert!(node.tables().contains("knarr-pods"));
    node.namespace.command("nft flush ruleset");
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !node.tables().contains("knarr-pods") {
        assert!(std::time::Instant::now() < end, "the table does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    let rules = node.namespace.command("nft list table inet knarr-pods");
    assert!(rules.contains("tcp . 8080"), "{rules}");
}

fn malformed() {
    let node = Node::started();
    let pod = Pod::new(1);
    let mut config = node.config();
    let version = node.cni("VERSION", &pod, &config);
    assert_eq!(version.json["supportedVersions"], json!(["1.0.0", "1.1.0"]));
    config["cniVersion"] = "0.4.0".into();
    assert_eq!(node.add_failure(&pod, &config), 1);
    assert_eq!(node.cni("DANCE", &pod, &node.config()).failure().0, 4);
    let ports = |ports: serde_json::Value| node.add_with(&pod, json!({ "portMappings": ports })).failure();
    assert_eq!(
        ports(json!([{ "hostPort": 70000, "containerPort": 80 }])),
        (
            7,
            "portMappings.hostPort: 70000 is not a port, expected 1 to 65535".into()
        )
    );
    assert_eq!(
        ports(json!([{ "hostPort": 80, "containerPort": 80, "protocol": "dccp" }])).0,
        7
    );
    assert_eq!(
        ports(json!([{ "hostPort": 80, "containerPort": 80, "hostIP": "nowhere" }])).0,
        7
    );
    let environment = |id: &str, name: &str, netns: &str| {
        let variables = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", id),
            ("CNI_IFNAME", name),
            ("CNI_NETNS", netns),
        ];
        node.run_plugin("knarr-cni", &variables, &node.config().to_string())
            .failure()
    };
    assert_eq!(environment("../../etc", "eth0", "/none").0, 4);
    assert_eq!(environment("a", "a/b", "/none").0, 4);
    assert_eq!(environment("a", "eth0", "").0, 4);
    assert_eq!(environment("a", "eth0", "/none").0, 3);
    assert_eq!(environment("a", "eth0", "/dev/null").0, 103);
    let own = node.namespace.path();
    let (code, message) = environment("a", "eth0", own.to_str().unwrap());
    assert!(
        code == 103 && message.contains("own network namespace"),
        "{message}"
    );
    for text in ["", "{", "[]", "{\"cniVersion\":\"1.0.0\"}"] {
        let variables = [("CNI_COMMAND", "ADD")];
        let answer = node.run_plugin("knarr-cni", &variables, text);
        assert!(!answer.is_success && answer.json["code"].is_u64(), "{text}");
    }
    assert!(node.links().is_empty());
    assert!(node.pods.list().is_empty());
}

fn garbage_collection() {
    let node = Node::started();
    let (a, b) = (Pod::new(1), Pod::new(2));
    node.add(&a).done();
    node.add(&b).done();
    let mut config = node.config();
    config["cniVersion"] = "1.1.0".into();
    config["cni.dev/valid-attachments"] = json!([{ "containerID": b.id, "ifname": "eth0" }]);
    node.cni("GC", &a, &config).done();
    node.until_removed(&a.id);
    assert_eq!(node.links(), [b.host_interface()]);
}

fn killed() {
    const PODS: usize = 8;
    let node = Node::new(None);
    for round in 0..12 {
        let mut agent = Agent::start(&node);
        let pods: Vec<Pod> = (0..PODS).map(|n| Pod::new(round * PODS + n)).collect();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let adding: Vec<_> = pods.iter().map(|pod| scope.spawn(|| node.add(pod))).collect();
            std::thread::sleep(Duration::from_millis(4 * round as u64));
            agent.kill();
            adding.into_iter().map(|pod| pod.join().unwrap()).collect()
        });
        let mut agent = Agent::start(&node);
        let mut addresses = BTreeSet::new();
        for (pod, answer) in pods.iter().zip(&answers) {
            let of = if answer.is_success {
                node.cni("CHECK", pod, &node.config()).done();
                answer.addresses()
            } else {
                assert_eq!(answer.failure().0, 11, "{}", answer.json);
                // As containerd does after a failure.
                node.delete(pod).done();
                node.add(pod).addresses()
            };
            addresses.extend(of);
        }
        assert_eq!(addresses.len(), 2 * PODS);
        assert_eq!(node.links().len(), PODS);
        for pod in &pods {
            node.delete(pod).done();
        }
        for pod in &pods {
            node.until_removed(&pod.id);
        }
        assert!(node.links().is_empty());
        assert_eq!(std::fs::read_dir(node.records()).unwrap().count(), 1, ".last");
        agent.kill();
    }
}

fn namespace_deleted() {
    let node = Node::started();
    let pod = Pod::new(1);
    node.add(&pod).done();
    let Pod { namespace, id, .. } = pod;
    drop(namespace);
    let variables = [
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", id.as_str()),
        ("CNI_IFNAME", "eth0"),
    ];
    node.run_plugin("knarr-cni", &variables, &node.config().to_string())
        .done();
    node.until_removed(&id);
    assert!(node.links().is_empty());
    assert!(node.pods.list().is_empty());
}

impl Node {
    fn add_failure(&self, pod: &Pod, config: &serde_json::Value) -> u64 {
        self.cni("ADD", pod, config).failure().0
    }
}
