//! Plain routes and VXLAN.

use std::process::Command;

use knarr_api::registry::NODE;
use knarr_client::{Api, DeleteOptions};
use knarr_node_network::routes::remove_all;

use crate::lab::{Agent, Lab, NODES, api, config, eventually, run, within};

#[test]
fn n7_pods_of_all_nodes_reach_each_other_with_the_largest_packets_through_restarts() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let lab = Lab::build("p");
    let (runtime, api) = api();
    let running = NODES.map(|(name, ..)| Agent::start(&lab, config(name), api.clone()));
    // 1 and 2 are on one network; 3 is behind the router, by VXLAN over IPv4.
    for (from, to, largest, v6) in [
        (1, 2, 1500, false),
        (1, 3, 1450, false),
        (3, 2, 1450, false),
        (2, 3, 1450, true),
        (3, 1, 1450, true),
    ] {
        eventually(&format!("a ping from {from} to {to} (IPv6: {v6})"), || {
            lab.pings(from, to, 100, v6)
        });
        assert!(
            lab.pings(from, to, largest, v6),
            "{from} to {to}: {largest} bytes"
        );
        assert!(
            !lab.pings(from, to, largest + 1, v6),
            "{from} to {to}: {} bytes",
            largest + 1
        );
    }
    // An address of our own that no pod has is rejected at once, not sent to the default route and back.
    let own = lab.netns("a");
    let route = Command::new("ip")
        .args(["-n", &own, "route", "get", "10.92.1.77"])
        .output()
        .unwrap();
    assert!(
        !route.status.success(),
        "{}",
        String::from_utf8_lossy(&route.stdout)
    );
    // If another program removes that, it is set again, and counted.
    let set = || running[0].status.get().unreachable.set;
    let count = set();
    run(&format!("ip -n {own} route del unreachable 10.92.1.0/24"));
    eventually("the unreachable route", || set() > count);
    // A route that another program removes is added again.
    run(&format!("ip -n {own} route del 10.92.2.0/24"));
    eventually("the route that was removed", || lab.pings(1, 2, 100, false));

    // The agents restart under a stream of packets: none is lost, and what the kernel has stays as it is.
    let before = run(&format!("ip -n {own} -d route show"));
    let mut ping = Command::new("ip");
    ping.args([
        "netns",
        "exec",
        &own,
        "ping",
        "-i",
        "0.01",
        "-c",
        "150",
        "-I",
        "10.92.1.5",
        "10.92.3.5",
    ]);
    let ping = ping.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(running);
    let running = NODES.map(|(name, ..)| Agent::start(&lab, config(name), api.clone()));
    let pinged = ping.wait_with_output().unwrap();
    let pinged = String::from_utf8_lossy(&pinged.stdout);
    assert!(pinged.contains(" 0% packet loss"), "{pinged}");
    assert_eq!(run(&format!("ip -n {own} -d route show")), before);

    // A node is deleted: its route is removed, the others stay.
    let deleted = api.delete(&NODE, "", "b", DeleteOptions::default());
    runtime.block_on(deleted).unwrap();
    eventually("the route to go", || {
        !run(&format!("ip -n {own} route show")).contains("10.92.2.0/24")
    });
    assert!(lab.pings(1, 3, 100, false));
    drop(running);

    within(lab.netns("a"), || async {
        remove_all(&config("a")).await.unwrap()
    });
    let left = run(&format!("ip -n {own} -d addr show")) + &run(&format!("ip -n {own} route show"));
    assert!(!left.contains("knarr") && !left.contains("10.92.3.0"), "{left}");
    assert!(!run(&format!("ip netns exec {own} nft list tables")).contains("knarr"));
}
