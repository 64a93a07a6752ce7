//! Random policies and changes against the reference.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::simulation::Nodes;
use super::world::World;

fn selector(key: &'static str, values: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        select(values).prop_map(move |value| json!({"matchLabels": {key: value}})),
        (select(vec!["In", "NotIn"]), vec(select(values), 1..3)).prop_map(move |(operator, values)| {
            json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
        }),
        select(vec!["Exists", "DoesNotExist"])
            .prop_map(|operator| json!({"matchExpressions": [{"key": "extra", "operator": operator}]})),
    ]
}

fn pods() -> impl Strategy<Value = Value> {
    selector("pod", &["a", "b", "c"])
}

fn namespaces() -> impl Strategy<Value = Value> {
    selector("ns", &["x", "y", "z"])
}

fn block() -> impl Strategy<Value = Value> {
    let v4 = (
        select(vec![
            "10.0.0.0/16",
            "0.0.0.0/0",
            "10.0.0.0/23",
            "10.0.2.0/29",
            "192.0.2.0/24",
        ]),
        vec(
            select(vec![
                "10.0.0.0/24",
                "10.0.1.1/32",
                "10.0.2.2/31",
                "192.0.2.1/32",
                "10.0.0.2/32",
            ]),
            0..3,
        ),
    );
    let v6 = (
        select(vec!["::/0", "fd00::/64", "fd00::1:0/112", "2001:db8::/32"]),
        vec(
            select(vec!["fd00::1:1/128", "fd00::2:0/112", "2001:db8:1::/48"]),
            0..3,
        ),
    );
    let of = |(cidr, except): (&str, Vec<&str>)| json!({"ipBlock": {"cidr": cidr, "except": except}});
    prop_oneof![v4.prop_map(of), v6.prop_map(of)]
}

fn peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        pods().prop_map(|p| json!({"podSelector": p})),
        namespaces().prop_map(|n| json!({"namespaceSelector": n})),
        (namespaces(), pods()).prop_map(|(n, p)| json!({"namespaceSelector": n, "podSelector": p})),
        block(),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(vec!["TCP", "UDP", "SCTP"]).prop_map(|protocol| json!({"protocol": protocol})),
        (select(vec![80, 81, 8080]), select(vec!["TCP", "UDP"]))
            .prop_map(|(port, protocol)| json!({"protocol": protocol, "port": port})),
        (
            select(vec![(80, 81), (1, 80), (81, 65535)]),
            select(vec!["TCP", "UDP"])
        )
            .prop_map(|((port, end), protocol)| json!({"protocol": protocol, "port": port, "endPort": end})),
        select(vec![
            ("serve-80-tcp", "TCP"),
            ("serve-81-udp", "UDP"),
            ("moves", "TCP"),
            ("none", "TCP")
        ])
        .prop_map(|(name, protocol)| json!({"protocol": protocol, "port": name})),
    ]
}

fn rules(peers: &'static str) -> impl Strategy<Value = Vec<Value>> {
    let rule = (vec(peer(), 0..3), vec(port(), 0..3));
    vec(
        rule.prop_map(move |(of, ports)| json!({peers: of, "ports": ports})),
        0..3,
    )
}

fn policy() -> impl Strategy<Value = Value> {
    let types = option::of(select(vec![
        vec!["Ingress"],
        vec!["Egress"],
        vec!["Ingress", "Egress"],
    ]));
    (pods(), rules("from"), rules("to"), types).prop_map(|(pods, ingress, egress, types)| {
        json!({"podSelector": pods, "ingress": ingress, "egress": egress, "policyTypes": types})
    })
}

#[derive(Clone, Debug)]
enum Step {
    Policy(&'static str, u8, Option<Value>),
    Label(&'static str, &'static str, &'static str, &'static str),
    NamespaceLabel(&'static str, &'static str),
    NamedPort(&'static str, &'static str, u16),
    Restart(usize),
    Remove(&'static str, &'static str),
}

fn step() -> impl Strategy<Value = Step> {
    let namespace = || select(vec!["x", "y", "z"]);
    let name = || select(vec!["a", "b", "c"]);
    prop_oneof![
        4 => (namespace(), 0..3_u8, option::weighted(0.8, policy())).prop_map(|(ns, n, p)| Step::Policy(ns, n, p)),
        1 => (namespace(), name(), select(vec!["pod", "extra"]), name()).prop_map(|(ns, n, k, v)| Step::Label(ns, n, k, v)),
        1 => (namespace(), namespace()).prop_map(|(ns, v)| Step::NamespaceLabel(ns, v)),
        1 => (namespace(), name(), select(vec![80, 81])).prop_map(|(ns, n, p)| Step::NamedPort(ns, n, p)),
        1 => (0..2_usize).prop_map(Step::Restart),
        1 => (namespace(), name()).prop_map(|(ns, n)| Step::Remove(ns, n)),
    ]
}

fn change(world: &mut World, nodes: &mut Nodes, step: Step) {
    match step {
        Step::Policy(namespace, n, Some(spec)) => {
            let policy = world.put_policy(namespace, &format!("p{n}"), spec);
            nodes
                .agents
                .iter_mut()
                .for_each(|agent| agent.apply_policy(&policy));
        }
        Step::Policy(namespace, n, None) => {
            let name = format!("p{n}");
            world.policies.remove(&(namespace.to_string(), name.clone()));
            nodes
                .agents
                .iter_mut()
                .for_each(|agent| agent.remove_policy(namespace, &name));
        }
        Step::Label(namespace, name, key, value) => {
            change_pod(world, nodes, namespace, name, |pod| {
                pod.labels.insert(key.into(), value.into());
            });
        }
        Step::NamedPort(namespace, name, number) => change_pod(world, nodes, namespace, name, |pod| {
            pod.ports.retain(|(name, ..)| name != "moves");
            pod.ports
                .push(("moves".into(), crate::catalog::Protocol::Tcp, number));
        }),
        Step::NamespaceLabel(namespace, value) => {
            world
                .namespaces
                .get_mut(namespace)
                .unwrap()
                .insert("ns".into(), value.into());
            let object = world.namespace_object(namespace);
            nodes
                .agents
                .iter_mut()
                .for_each(|agent| agent.apply_namespace(&object));
        }
        Step::Restart(node) => {
            let mut agent = world.load(node);
            nodes.kernels[node] = super::simulation::Kernel::of(&mut agent);
            nodes.agents[node] = agent;
        }
        Step::Remove(namespace, name) => {
            if let Some(pod) = world.pods.remove(&(namespace.to_string(), name.to_string())) {
                for agent in &mut nodes.agents {
                    agent.detach(&pod.attachment().sandbox);
                    agent.remove_pod(namespace, name);
                }
            }
        }
    }
}

fn change_pod(
    world: &mut World,
    nodes: &mut Nodes,
    namespace: &str,
    name: &str,
    change: impl FnOnce(&mut super::world::TestPod),
) {
    if let Some(pod) = world.pods.get_mut(&(namespace.to_string(), name.to_string())) {
        change(pod);
        let object = pod.object();
        nodes.agents.iter_mut().for_each(|agent| agent.apply_pod(&object));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn n6_the_kernel_lets_pass_what_the_api_allows(steps in vec(step(), 1..10)) {
        let mut world = World::grid();
        let mut nodes = Nodes::of(&world);
        for step in steps {
            change(&mut world, &mut nodes, step);
            nodes.sync();
        }
        nodes.check(&world);
        nodes.check_contents(&world);
    }
}
