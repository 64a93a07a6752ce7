//! One change after the other: what is in force, what it costs, and what is denied until it is known.

use serde_json::json;

use super::simulation::{Kernel, Nodes};
use super::world::{Connection, World, config, labels};
use crate::catalog::Protocol;
use crate::policy::{Attachment, MAX_PEERS_PER_NAMESPACE, PodKey, Policies, Problem};

fn connection(world: &World, from: (&str, &str), to: (&str, &str)) -> Connection {
    Connection {
        from: world.pod(from.0, from.1).addresses[0],
        to: world.pod(to.0, to.1).addresses[0],
        protocol: Protocol::Tcp,
        port: 80,
    }
}

#[test]
fn n6_a_pod_is_isolated_until_it_is_known_and_released() {
    let world = World::grid();
    let mut policies = Policies::new(config(), 0);
    let mut kernel = Kernel::of(&mut policies);
    let [own, peer] = [world.pod("x", "a"), world.pod("z", "a")];
    let out = connection(&world, ("x", "a"), ("z", "a"));
    policies.attach(own.attachment());
    let step = |policies: &mut Policies, kernel: &mut Kernel, expected| {
        kernel.apply(policies.take_change());
        assert_eq!(kernel.forwards(&out), expected);
    };
    step(&mut policies, &mut kernel, false);
    policies.apply_pod(&peer.object());
    // Released, but the object that is known is an earlier pod's of this name.
    let mut earlier = own.object();
    earlier.metadata.uid = Some("earlier".into());
    policies.apply_pod(&earlier);
    policies.release(&own.attachment().sandbox);
    step(&mut policies, &mut kernel, false);
    policies.apply_pod(&own.object());
    step(&mut policies, &mut kernel, true);
    policies.remove_pod("x", "a");
    step(&mut policies, &mut kernel, false);
    policies.detach(&own.attachment().sandbox);
    step(&mut policies, &mut kernel, true);
    assert_eq!(
        policies.ruleset(),
        Policies::new(config(), 0).ruleset(),
        "nothing is left"
    );
}

#[test]
fn n6_a_mirror_pod_is_the_static_pod_whose_uid_it_names() {
    let world = World::grid();
    let pod = world.pod("x", "a");
    let mut mirror = pod.object();
    mirror.metadata.uid = Some("mirror".into());
    let uid = pod.attachment().uid.unwrap().to_string();
    mirror.metadata.annotations = Some(labels(&[("kubernetes.io/config.mirror", &uid)]));
    let mut policies = Policies::new(config(), 0);
    policies.attach(pod.attachment());
    policies.release(&pod.attachment().sandbox);
    policies.apply_pod(&mirror);
    let kernel = Kernel::of(&mut policies);
    assert!(kernel.forwards(&connection(&world, ("x", "a"), ("z", "a"))));
}

#[test]
fn n6_a_peer_is_one_element_in_each_set_and_pods_share_groups() {
    let mut world = World::grid();
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}]});
    for namespace in ["x", "y", "z"] {
        for n in 0..20 {
            world.put_policy(namespace, &format!("p{n}"), spec.clone());
        }
    }
    let mut nodes = Nodes::of(&world);
    let counts = nodes.agents[0].counts();
    assert_eq!((counts.groups, counts.sets), (1, 1));
    assert_eq!(
        (counts.policies, counts.local_pods, counts.isolated_pods),
        (60, 5, 5)
    );
    let mut new = world.pod("y", "a").clone();
    new.name = "new".into();
    new.addresses = vec!["10.0.1.99".parse().unwrap()];
    nodes.agents[0].apply_pod(&new.object());
    let change = nodes.agents[0].take_change();
    assert_eq!(change.operations.len(), 1);
    assert!(change.sets.is_empty() && change.chains.is_empty());
    nodes.agents[0].apply_pod(&new.object());
    assert!(nodes.agents[0].take_change().is_empty());
    // It finishes: its address may be another's.
    let mut finished = new.object();
    finished.status.as_mut().unwrap().phase = Some("Succeeded".into());
    nodes.agents[0].apply_pod(&finished);
    assert_eq!(nodes.agents[0].take_change().operations.len(), 1);
}

#[test]
fn n6_labels_of_pods_and_namespaces_change() {
    let mut world = World::grid();
    let peers = json!([{"namespaceSelector": {"matchLabels": {"team": "red"}}, "podSelector": {"matchLabels": {"pod": "a"}}}]);
    world.put_policy(
        "x",
        "p",
        json!({"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": [{"from": peers}]}),
    );
    let mut nodes = Nodes::of(&world);
    let mut step = |world: &World| {
        for agent in &mut nodes.agents {
            for namespace in world.namespaces.keys() {
                agent.apply_namespace(&world.namespace_object(namespace));
            }
            for pod in world.pods.values() {
                agent.apply_pod(&pod.object());
            }
        }
        nodes.sync();
        nodes.check(world);
        nodes.check_contents(world);
    };
    step(&world);
    world
        .namespaces
        .get_mut("y")
        .unwrap()
        .insert("team".into(), "red".into());
    step(&world);
    world
        .namespaces
        .get_mut("y")
        .unwrap()
        .insert("team".into(), "blue".into());
    world
        .namespaces
        .get_mut("z")
        .unwrap()
        .insert("team".into(), "red".into());
    step(&world);
    // A peer gets and loses the label, and so does a pod that is isolated.
    for (namespace, name, value) in [("z", "b", "a"), ("z", "a", "b"), ("x", "b", "a"), ("x", "a", "c")] {
        let mut pod = world.pod(namespace, name).clone();
        pod.labels.insert("pod".into(), value.into());
        world.put_pod(pod);
        step(&world);
    }
}

#[test]
fn n6_an_address_belongs_to_the_pod_that_got_it_last() {
    let mut world = World::grid();
    let peers = json!([{"podSelector": {"matchLabels": {"role": "client"}}}]);
    world.put_policy("x", "p", json!({"podSelector": {}, "ingress": [{"from": peers}]}));
    let mut policies = world.load(0);
    let mut kernel = Kernel::of(&mut policies);
    let mut client = world.pod("x", "b").clone();
    client.labels = labels(&[("role", "client")]);
    client.addresses = vec!["10.0.9.9".parse().unwrap()];
    let mut other = world.pod("z", "b").clone();
    other.addresses = client.addresses.clone();
    let into = Connection {
        from: client.addresses[0],
        ..connection(&world, ("z", "b"), ("x", "a"))
    };
    let mut step = |policies: &mut Policies, expected| {
        kernel.apply(policies.take_change());
        assert_eq!(kernel.forwards(&into), expected);
    };
    policies.apply_pod(&client.object());
    step(&mut policies, true);
    policies.apply_pod(&other.object());
    step(&mut policies, false);
    // The first one is seen again; it has got nothing new.
    client.labels.insert("more".into(), "labels".into());
    policies.apply_pod(&client.object());
    step(&mut policies, false);
    policies.remove_pod("z", "b");
    step(&mut policies, true);
    policies.remove_pod("x", "b");
    step(&mut policies, false);
}

#[test]
fn n6_policies_beyond_the_limits_isolate_and_other_namespaces_do_not_notice() {
    let mut world = World::grid();
    world.put_policy(
        "y",
        "fine",
        json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}),
    );
    let mut policies = world.load(1);
    let mut kernel = Kernel::of(&mut policies);
    let many = |from: usize, count: usize| {
        let peers =
            (from..from + count).map(|n| json!({"podSelector": {"matchLabels": {"n": n.to_string()}}}));
        json!({"podSelector": {}, "ingress": [{"from": peers.collect::<Vec<_>>()}]})
    };
    let mut hostile = World::default();
    for n in 0..30 {
        let policy = hostile.put_policy("x", &format!("p{n:02}"), many(n * 1000, 1000));
        policies.apply_policy(&policy);
    }
    kernel.apply(policies.take_change());
    // x/b is isolated: a rule of the last policies would let y/a in, but there is none that fits.
    let all = hostile.put_policy(
        "x",
        "p99",
        json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    );
    policies.apply_policy(&all);
    kernel.apply(policies.take_change());
    assert!(!kernel.forwards(&connection(&world, ("z", "a"), ("x", "b"))));
    assert!(kernel.forwards(&connection(&world, ("y", "b"), ("y", "a"))));
    assert!(!kernel.forwards(&connection(&world, ("z", "b"), ("y", "a"))));
    let problems = policies.problems();
    assert!(
        problems
            .iter()
            .any(|(_, problem)| *problem == Problem::NamespaceLimit)
    );
    assert!(
        problems
            .iter()
            .any(|(_, problem)| matches!(problem, Problem::PodLimit { .. }))
    );
    assert!(problems.iter().all(|(policy, _)| &*policy.namespace == "x"));
    assert!(kernel.0.sets.len() < 20 && kernel.0.chains.len() < 5);
    let kept: usize = 30 * 1000 * 3;
    assert!(kept > MAX_PEERS_PER_NAMESPACE);
    // What did not fit is taken in when there is room.
    let reduced = policies.reduced_policies();
    assert!(!reduced.is_empty());
    for n in 0..30 {
        policies.remove_policy("x", &format!("p{n:02}"));
    }
    policies.apply_policy(&all);
    kernel.apply(policies.take_change());
    assert!(kernel.forwards(&connection(&world, ("z", "a"), ("x", "b"))));
    assert!(policies.problems().is_empty());
}

#[test]
fn n6_the_pods_that_are_known_are_those_of_the_api() {
    let world = World::grid();
    let mut policies = world.load(0);
    let of_world = world.pods.keys();
    let of_world: Vec<PodKey> = of_world
        .map(|(namespace, name)| PodKey::new(namespace, name))
        .collect();
    let known: Vec<PodKey> = policies.pod_keys().cloned().collect();
    assert_eq!(
        known, of_world,
        "without the one that has the addresses of cluster DNS"
    );
    assert_eq!(policies.counts().pods, of_world.len());
    let key = PodKey::new("x", "a");
    for (uid, expected) in [(None, true), (Some("uid-a"), true), (Some("earlier"), false)] {
        assert_eq!(policies.knows_pod(&key, uid), expected, "{uid:?}");
    }
    policies.remove_pod("x", "a");
    assert!(!policies.knows_pod(&key, None));
}

#[test]
fn n6_a_selector_of_namespaces_does_not_match_a_deleted_one() {
    let mut world = World::grid();
    let peers = json!([{"namespaceSelector": {"matchLabels": {"ns": "y"}}}]);
    world.put_policy("x", "p", json!({"podSelector": {}, "ingress": [{"from": peers}]}));
    let mut policies = world.load(0);
    let mut kernel = Kernel::of(&mut policies);
    let into = connection(&world, ("y", "a"), ("x", "a"));
    assert!(kernel.forwards(&into));
    policies.remove_namespace("y");
    kernel.apply(policies.take_change());
    assert!(!kernel.forwards(&into));
    assert!(policies.namespace_names().all(|name| name != "y"));
}

#[test]
fn n6_an_address_of_two_sandboxes_stays_isolated_when_the_earlier_one_is_removed() {
    let world = World::grid();
    let own = world.pod("x", "a").attachment();
    let out = connection(&world, ("x", "a"), ("z", "a"));
    let mut policies = Policies::new(config(), 0);
    let mut kernel = Kernel::of(&mut policies);
    policies.attach(own.clone());
    policies.attach(Attachment {
        sandbox: "next".into(),
        ..own.clone()
    });
    policies.detach(&own.sandbox);
    kernel.apply(policies.take_change());
    assert!(!kernel.forwards(&out));
    policies.detach("next");
    kernel.apply(policies.take_change());
    assert!(kernel.forwards(&out));
}

#[test]
fn n6_pods_of_other_nodes_are_needed_while_a_rule_has_pods_as_peers() {
    let mut world = World::grid();
    let mut policies = world.load(0);
    for (peers, is_needed) in [
        (json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]), false),
        (json!([{"podSelector": {}}]), true),
        (json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]), false),
    ] {
        let spec = json!({"podSelector": {}, "ingress": [{"from": peers}]});
        let policy = world.put_policy("x", "p", spec);
        policies.apply_policy(&policy);
        policies.take_change();
        assert_eq!(policies.needs_pods(), is_needed, "{peers}");
    }
}

#[test]
fn n6_a_policy_that_is_written_again_counts_once_and_fits_if_it_is_as_large_as_the_limit() {
    let mut world = World::default();
    let mut with_values = |count: usize| {
        let values: Vec<String> = (0..count).map(|n| format!("v{n}")).collect();
        let peer = json!({"matchExpressions": [{"key": "n", "operator": "In", "values": values}]});
        let rules = json!([{"from": [{"podSelector": peer}]}]);
        world.put_policy("x", "p", json!({"podSelector": {}, "ingress": rules}))
    };
    // The rule, its peer and the requirement count as well.
    let fitting = with_values(MAX_PEERS_PER_NAMESPACE - 3);
    let larger = with_values(MAX_PEERS_PER_NAMESPACE - 2);
    let mut policies = Policies::new(config(), 0);
    for (policy, fits) in [
        (&fitting, true),
        (&fitting, true),
        (&larger, false),
        (&fitting, true),
    ] {
        policies.apply_policy(policy);
        assert_eq!(policies.reduced_policies().is_empty(), fits);
    }
}
