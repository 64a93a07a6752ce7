//! Which Services get which addresses.

use serde_json::{Value, json};

use super::*;
use crate::world::{World, at, lines};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str, labels: Value, addresses: &[(&str, &str)]) -> Node {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|(type_, address)| json!({"type": type_, "address": address}))
        .collect();
    from(json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn plain(name: &str, address: &str) -> Node {
    node(name, json!({}), &[("InternalIP", address), ("Hostname", name)])
}

fn service(name: &str, second: i64, with: Value) -> Service {
    let mut spec = json!({
        "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "protocol": "TCP"}],
    });
    for (key, value) in with.as_object().unwrap() {
        spec[key] = value.clone();
    }
    from(json!({
        "metadata": {"namespace": "d", "name": name, "creationTimestamp": at(second).to_string()},
        "spec": spec,
    }))
}

fn controller() -> ServiceLoadBalancer {
    ServiceLoadBalancer {
        config: Config::default(),
    }
}

/// Runs the controller until nothing is left to do; the events on the way.
fn settle(world: &mut World) -> Vec<String> {
    let mut events = Vec::new();
    for _ in 0..3 {
        let actions = world.run(&controller(), ("", "nodes"), at(100));
        if actions.is_empty() {
            return events;
        }
        world.take(&actions);
        let lines = lines(&actions).into_iter();
        events.extend(lines.filter(|l| l.starts_with("event")));
    }
    panic!("it never settles");
}

fn shown(world: &World, name: &str) -> String {
    let view: &dyn View = world;
    let service = view.get_as::<Service>("d", name).unwrap();
    let addresses: Vec<String> = addresses_of(&service).iter().map(IpAddr::to_string).collect();
    let condition = condition(&service).map(|c| format!("{} {}", c.reason, c.message));
    format!(
        "{} | {}",
        addresses.join(" "),
        condition.unwrap_or_default().trim()
    )
}

#[test]
fn n2_a_load_balancer_service_gets_the_ready_nodes_addresses() {
    let mut world = World::default();
    world.put(plain("a", "192.0.2.1"));
    world.put(plain("b", "192.0.2.2"));
    let mut lost = plain("c", "192.0.2.3");
    lost.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = "Unknown".into();
    world.put(lost);
    let excluded = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
    world.put(node("d", excluded, &[("InternalIP", "192.0.2.4")]));
    world.put(service("web", 1, json!({})));
    world.put(service(
        "other",
        1,
        json!({"loadBalancerClass": "example.com/lb"}),
    ));
    world.put(service(
        "own",
        1,
        json!({"loadBalancerClass": CLASS, "ports": [{"port": 81}]}),
    ));
    let events = settle(&mut world);
    assert_eq!(
        events,
        [
            "event EnsuringLoadBalancer: Ensuring load balancer",
            "event EnsuredLoadBalancer: Ensured load balancer",
            "event EnsuringLoadBalancer: Ensuring load balancer",
            "event EnsuredLoadBalancer: Ensured load balancer",
        ]
    );
    assert_eq!(shown(&world, "web"), "192.0.2.1 192.0.2.2 | Ensured");
    assert_eq!(shown(&world, "own"), "192.0.2.1 192.0.2.2 | Ensured");
    assert_eq!(shown(&world, "other"), " | ");
    let view: &dyn View = &world;
    let web = view.get_as::<Service>("d", "web").unwrap();
    assert_eq!(ingress(&web)[0].ip_mode.as_deref(), Some("VIP"));

    world.put(plain("c", "192.0.2.3"));
    assert_eq!(
        settle(&mut world),
        [
            "event UpdatedLoadBalancer: Updated load balancer with new hosts",
            "event UpdatedLoadBalancer: Updated load balancer with new hosts",
        ]
    );
    assert_eq!(shown(&world, "web"), "192.0.2.1 192.0.2.2 192.0.2.3 | Ensured");
}

#[test]
fn n2_two_services_do_not_have_one_port_of_one_address() {
    let mut world = World::default();
    world.put(plain("a", "192.0.2.1"));
    world.put(service("second", 2, json!({})));
    world.put(service("first", 1, json!({})));
    world.put(service(
        "udp",
        3,
        json!({"ports": [{"port": 80, "protocol": "UDP"}]}),
    ));
    let events = settle(&mut world);
    assert!(
        events.contains(
            &"event SyncLoadBalancerFailed: Error syncing load balancer: Service d/first has port 80/TCP of 192.0.2.1"
                .to_string()
        ),
        "{events:?}"
    );
    assert_eq!(shown(&world, "first"), "192.0.2.1 | Ensured");
    assert_eq!(
        shown(&world, "second"),
        " | PortConflict Service d/first has port 80/TCP of 192.0.2.1"
    );
    assert_eq!(shown(&world, "udp"), "192.0.2.1 | Ensured");
    // An older Service that becomes a load balancer later does not get it.
    world.put(service("oldest", 0, json!({})));
    settle(&mut world);
    assert_eq!(shown(&world, "first"), "192.0.2.1 | Ensured");
    // The first is deleted: the oldest waiting Service is next.
    world.remove(&registry::SERVICE, "d", "first");
    settle(&mut world);
    assert_eq!(shown(&world, "oldest"), "192.0.2.1 | Ensured");
    assert!(shown(&world, "second").contains("Service d/oldest"));

    world.put(service(
        "kubelet",
        5,
        json!({"ports": [{"port": 10250, "protocol": "TCP"}]}),
    ));
    let node_port = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30080, "protocol": "TCP"}]});
    world.put(service("np", 5, node_port));
    world.put(service(
        "high",
        6,
        json!({"ports": [{"port": 30080, "protocol": "TCP"}]}),
    ));
    settle(&mut world);
    assert_eq!(
        shown(&world, "kubelet"),
        " | PortReserved port 10250/TCP is used by the nodes themselves"
    );
    assert_eq!(
        shown(&world, "high"),
        " | PortConflict port 30080/TCP is a node port of Service d/np"
    );
}

#[test]
fn n2_with_local_traffic_policy_only_nodes_with_ready_endpoints_serve() {
    let slice = |ready: &[(&str, bool)]| -> EndpointSlice {
        let endpoints: Vec<Value> = ready
            .iter()
            .map(|(node, ready)| {
                json!({"addresses": ["10.0.0.1"], "nodeName": node, "conditions": {"ready": ready}})
            })
            .collect();
        from(json!({
            "metadata": {"namespace": "d", "name": "web-1", "labels": {SERVICE_NAME: "web"}},
            "addressType": "IPv4", "endpoints": endpoints,
        }))
    };
    let mut world = World::default();
    world.put(plain("a", "192.0.2.1"));
    world.put(plain("b", "192.0.2.2"));
    world.put(service("web", 1, json!({"externalTrafficPolicy": "Local"})));
    settle(&mut world);
    assert_eq!(shown(&world, "web"), "192.0.2.1 192.0.2.2 | Ensured");
    let old = world.put(slice(&[("a", false), ("b", true)]));
    settle(&mut world);
    assert_eq!(shown(&world, "web"), "192.0.2.2 | Ensured");

    let keys = |world: &World, old: &Object, new: &Object| {
        let changed = ObjectChange {
            kind: &registry::ENDPOINT_SLICE,
            old: Some(old),
            new: Some(new),
        };
        controller().keys(world, changed).len()
    };
    let new = world.put(slice(&[("a", true), ("b", true)]));
    assert_eq!(keys(&world, &old, &new), 1);
    assert_eq!(keys(&world, &new, &new), 0);
    world.put(service("web", 1, json!({})));
    assert_eq!(keys(&world, &old, &new), 0);
}

#[test]
fn families_pools_external_addresses_and_load_balancer_ip() {
    let dual = [
        ("InternalIP", "192.0.2.1"),
        ("InternalIP", "2001:db8::1"),
        ("InternalIP", "127.0.0.1"),
    ];
    // Labels and addresses of node a (b is plain), the Service, what it gets.
    type Row<'a> = (Value, &'a [(&'a str, &'a str)], Value, &'a str);
    let table: [Row<'_>; 8] = [
        (
            json!({}),
            &dual,
            json!({"ipFamilies": ["IPv6"]}),
            "2001:db8::1 | Ensured",
        ),
        (
            json!({}),
            &dual,
            json!({"ipFamilies": ["IPv6", "IPv4"]}),
            "2001:db8::1 192.0.2.1 192.0.2.2 | Ensured",
        ),
        (
            json!({}),
            &[("InternalIP", "192.0.2.1"), ("ExternalIP", "198.51.100.1")],
            json!({}),
            "198.51.100.1 | Ensured",
        ),
        (
            json!({ENABLED_LABEL: "true"}),
            &dual,
            json!({}),
            "192.0.2.1 | Ensured",
        ),
        (
            json!({ENABLED_LABEL: "false"}),
            &dual,
            json!({}),
            "192.0.2.2 | Ensured",
        ),
        (
            json!({}),
            &dual,
            json!({"loadBalancerIP": "192.0.2.2"}),
            "192.0.2.2 | Ensured",
        ),
        (
            json!({}),
            &dual,
            json!({"loadBalancerIP": "192.0.2.9"}),
            " | AddressNotAvailable loadBalancerIP 192.0.2.9 is no address of an available node",
        ),
        (
            json!({}),
            &[("InternalIP", "192.0.2.1")],
            json!({"ipFamilies": ["IPv6"]}),
            " | NoNodes no available node has an address of the Service's IP families",
        ),
    ];
    for (labels, addresses, with, found) in table {
        let mut world = World::default();
        world.put(node("a", labels, addresses));
        world.put(plain("b", "192.0.2.2"));
        world.put(service("web", 1, with.clone()));
        settle(&mut world);
        assert_eq!(shown(&world, "web"), found, "{with}");
    }
    let mut world = World::default();
    world.put(node("a", json!({nodes::POOL: "edge"}), &dual));
    world.put(plain("b", "192.0.2.2"));
    let mut pooled = service("web", 1, json!({}));
    pooled.metadata.labels = Some([(nodes::POOL.to_string(), "edge".to_string())].into());
    world.put(pooled);
    settle(&mut world);
    assert_eq!(shown(&world, "web"), "192.0.2.1 | Ensured");
}

const ENABLED_LABEL: &str = nodes::ENABLED;

#[test]
fn addresses_are_kept_while_no_node_is_ready_and_the_condition_is_removed_with_the_type() {
    let mut world = World::default();
    world.put(plain("a", "192.0.2.1"));
    world.put(service("web", 1, json!({})));
    settle(&mut world);
    let mut lost = plain("a", "192.0.2.1");
    lost.status.as_mut().unwrap().conditions = None;
    world.put(lost);
    assert_eq!(settle(&mut world), [""; 0]);
    assert_eq!(shown(&world, "web"), "192.0.2.1 | Ensured");

    let view: &dyn View = &world;
    let mut plain = (*view.get_as::<Service>("d", "web").unwrap()).clone();
    plain.spec.as_mut().unwrap().type_ = Some("ClusterIP".into());
    plain.status.as_mut().unwrap().load_balancer = None;
    world.put(plain);
    settle(&mut world);
    assert_eq!(shown(&world, "web"), " | ");
}

#[test]
fn a_service_stays_until_its_load_balancer_is_released() {
    let mut world = World::default();
    world.put(plain("a", "192.0.2.1"));
    world.put(service("web", 1, json!({})));
    settle(&mut world);
    let get = |world: &World| {
        let view: &dyn View = world;
        (*view.get_as::<Service>("d", "web").unwrap()).clone()
    };
    assert_eq!(get(&world).metadata.finalizers, Some(vec![FINALIZER.to_string()]));
    let mut deleted = get(&world);
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(50)));
    world.put(deleted);
    let events = settle(&mut world);
    assert_eq!(
        events,
        [
            "event DeletingLoadBalancer: Deleting load balancer",
            "event DeletedLoadBalancer: Deleted load balancer"
        ]
    );
    assert_eq!(get(&world).metadata.finalizers, Some(vec![]));
    // Another load balancer's Service keeps its own finalizer.
    let class = json!({"loadBalancerClass": "example.com/other"});
    let mut other = service("web", 1, class);
    other.metadata.finalizers = Some(vec![FINALIZER.to_string()]);
    world.put(other);
    assert_eq!(settle(&mut world), [""; 0]);
    assert_eq!(get(&world).metadata.finalizers, Some(vec![FINALIZER.to_string()]));
}
