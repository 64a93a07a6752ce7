//! How long ADD takes, from the start of the plugin to its exit, compared with the reference plugins. Ignored; run with
//! `--ignored --nocapture`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Case;
use crate::node::{Node, Pod};

pub const CASES: &[Case] = &[("add_compared_with_the_reference_plugins", add)];

const PODS: usize = 40;
const REFERENCE: &str = "/usr/lib/cni";

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn reference(node: &Node, pod: &Pod, plugin: &str, command: &str, config: &Value) -> Value {
    let (config, plugin) = (config.to_string(), Path::new(REFERENCE).join(plugin));
    let environment = [
        ("CNI_COMMAND".to_string(), command.to_string()),
        ("CNI_CONTAINERID".into(), pod.id.clone()),
        ("CNI_NETNS".into(), pod.namespace.path().display().to_string()),
        ("CNI_IFNAME".into(), "eth0".into()),
        ("CNI_PATH".into(), REFERENCE.into()),
        ("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into()),
    ];
    node.namespace.run(move || {
        let mut child = Command::new(plugin)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        serde_json::from_str(&text).unwrap_or_default()
    })
}

fn add() {
    let node = Node::started();
    let ipam = node.directory.path().join("ipam");
    let loopback = json!({ "cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback" });
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "reference", "type": "bridge", "bridge": "cni-ref",
        "isGateway": true, "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.245.0.0/24" }]], "dataDir": ipam },
    });
    let (mut ours, mut theirs, mut ours_del, mut theirs_del) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut ours_alone, mut nothing) = (Vec::new(), Vec::new());
    for number in 0..PODS {
        let pod = Pod::new(number);
        let start = Instant::now();
        node.plugin("loopback", "ADD", &pod, &loopback).done();
        let before = start.elapsed();
        node.add(&pod).done();
        ours.push(start.elapsed());
        ours_alone.push(start.elapsed() - before);
        let start = Instant::now();
        node.cni("VERSION", &pod, &node.config()).done();
        nothing.push(start.elapsed());
        let start = Instant::now();
        node.plugin("loopback", "DEL", &pod, &loopback).done();
        node.delete(&pod).done();
        ours_del.push(start.elapsed());

        let pod = Pod::new(PODS + number);
        let start = Instant::now();
        reference(&node, &pod, "loopback", "ADD", &loopback);
        let result = reference(&node, &pod, "bridge", "ADD", &bridge);
        let mut portmap = json!({
            "cniVersion": "1.0.0", "name": "reference", "type": "portmap", "snat": true, "prevResult": result,
        });
        portmap["runtimeConfig"] = json!({ "portMappings": [] });
        reference(&node, &pod, "portmap", "ADD", &portmap);
        theirs.push(start.elapsed());
        let start = Instant::now();
        reference(&node, &pod, "portmap", "DEL", &portmap);
        reference(&node, &pod, "bridge", "DEL", &bridge);
        reference(&node, &pod, "loopback", "DEL", &loopback);
        theirs_del.push(start.elapsed());
    }
    eprintln!("ADD, median of {PODS} (loopback included):");
    eprintln!("  knarr-cni:          {:?}", median(ours));
    eprintln!("    without loopback: {:?}", median(ours_alone));
    eprintln!("    VERSION alone:    {:?}", median(nothing));
    eprintln!("  bridge and portmap: {:?}", median(theirs));
    eprintln!("DEL:");
    eprintln!("  knarr-cni:          {:?}", median(ours_del));
    eprintln!("  bridge and portmap: {:?}", median(theirs_del));
}
