//! Sets of all shapes in the kernel, each test in a network namespace of its own; `nft` is the other reader.

#![allow(clippy::unwrap_used)] // a test may panic; clippy knows that only inside test functions

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use knarr_nftables::{
    Batch, Conntrack, Data, Element, Errno, Error, Family, Nftables, Operation, Set, Verdict, script,
};
use serde_json::{Value, json};

/// Runs in a thread, and so in a network namespace, of its own.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        run("ip", &["link", "set", "lo", "up"]);
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn run(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(output.status.success(), "{command} {arguments:?}: {words}");
    String::from_utf8(output.stdout).unwrap()
}

fn set(nftables: &mut Nftables, family: Family, name: &str) -> Arc<Set> {
    let sets = nftables.sets(family, "t").unwrap();
    sets.into_iter().find(|set| *set.name == *name).unwrap()
}

/// What `nft -j list` has for a set of the table `t`: its elements.
fn listed(family: Family, kind: &str, name: &str) -> BTreeSet<String> {
    let text = run("nft", &["-j", "list", kind, family.name(), "t", name]);
    let all: Value = serde_json::from_str(&text).unwrap();
    let found = all["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|o| o.get(kind));
    let elements = found.unwrap()["elem"].as_array().cloned().unwrap_or_default();
    elements.iter().map(ToString::to_string).collect()
}

fn texts(values: &[Value]) -> BTreeSet<String> {
    values.iter().map(ToString::to_string).collect()
}

fn dumped(nftables: &mut Nftables, set: &Set) -> Vec<(Vec<u8>, Vec<u8>, String)> {
    let elements = nftables.elements(set).unwrap();
    let mut all: Vec<_> = elements
        .iter()
        .map(|e| {
            let end = e.key_end.unwrap_or(e.key);
            (e.key.to_vec(), end.to_vec(), format!("{:?}", e.data))
        })
        .collect();
    all.sort();
    all
}

/// Adds, reads as nft and as itself, deletes.
fn check(family: Family, declaration: &str, elements: &[Element<'_>], expected: &[Value]) {
    let kind = declaration.split(' ').next().unwrap();
    script::run(&format!(
        "add table {family} t\nadd chain {family} t c\nadd {}",
        declaration.replacen(' ', &format!(" {family} t s "), 1)
    ))
    .unwrap();
    let mut nftables = Nftables::open().unwrap();
    let set = set(&mut nftables, family, "s");
    let mut batch = Batch::new();
    for element in elements {
        batch.create(&set, *element).unwrap();
    }
    nftables.commit(&batch).unwrap();
    assert_eq!(listed(family, kind, "s"), texts(expected), "{declaration}");
    let mut wanted: Vec<_> = elements
        .iter()
        .map(|e| {
            let end = e.key_end.unwrap_or(e.key);
            (e.key.to_vec(), end.to_vec(), format!("{:?}", e.data))
        })
        .collect();
    wanted.sort();
    assert_eq!(dumped(&mut nftables, &set), wanted, "{declaration}");
    let mut batch = Batch::new();
    for element in elements {
        batch.add(&set, *element).unwrap();
    }
    nftables.commit(&batch).unwrap();
    let mut batch = Batch::new();
    for element in elements {
        batch.delete(&set, *element).unwrap();
    }
    nftables.commit(&batch).unwrap();
    assert!(nftables.elements(&set).unwrap().is_empty(), "{declaration}");
    let mut batch = Batch::new();
    batch.delete_table(family, "t");
    nftables.commit(&batch).unwrap();
    assert_eq!(nftables.tables().unwrap(), []);
}

fn v6(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[0] = 0xfd;
    address[15] = last;
    address
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn n3_sets_and_maps_of_single_keys_are_what_nft_lists() {
    in_namespace(|| {
        check(
            Family::Ip,
            "set { type ipv4_addr; }",
            &[Element::key(&[10, 0, 0, 1]), Element::key(&[10, 0, 0, 2])],
            &[json!("10.0.0.1"), json!("10.0.0.2")],
        );
        // A single field of 2 bytes is padded where it is handed in.
        check(
            Family::Inet,
            "map { type inet_service : verdict; }",
            &[
                Element::key(&[0, 80, 0, 0]).with(Data::Verdict(Verdict::Goto("c"))),
                Element::key(&[0, 81, 0, 0]).with(Data::Verdict(Verdict::Drop)),
                Element::key(&[0, 82, 0, 0]).with(Data::Verdict(Verdict::Accept)),
                Element::key(&[0, 83, 0, 0]).with(Data::Verdict(Verdict::Jump("c"))),
            ],
            &[
                json!([80, {"goto": {"target": "c"}}]),
                json!([81, {"drop": null}]),
                json!([82, {"accept": null}]),
                json!([83, {"jump": {"target": "c"}}]),
            ],
        );
        let key = |last| join(&[&v6(last), &[6, 0, 0, 0], &[0, 80, 0, 0]]);
        let value = join(&[&v6(9), &[31, 144, 0, 0]]);
        let (first, second) = (key(1), key(2));
        check(
            Family::Ip6,
            "map { type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }",
            &[
                Element::key(&first).with(Data::Value(&value)),
                Element::key(&second).with(Data::Value(&value)),
            ],
            &[
                json!([{"concat": ["fd00::1", "tcp", 80]}, {"concat": ["fd00::9", 8080]}]),
                json!([{"concat": ["fd00::2", "tcp", 80]}, {"concat": ["fd00::9", 8080]}]),
            ],
        );
        check(
            Family::Ip,
            "map { typeof ip daddr : meta mark; }",
            &[Element::key(&[10, 0, 0, 1]).with(Data::Value(&7u32.to_ne_bytes()))],
            &[json!(["10.0.0.1", 7])],
        );
    });
}

#[test]
fn n3_interval_sets_are_what_nft_lists() {
    in_namespace(|| {
        check(
            Family::Ip,
            "set { type ipv4_addr; flags interval; }",
            &[
                Element::range(&[0, 0, 0, 0], &[0, 255, 255, 255]),
                Element::range(&[10, 0, 0, 0], &[10, 0, 0, 255]),
                Element::key(&[10, 0, 1, 0]),
                Element::range(&[10, 0, 2, 1], &[10, 0, 2, 9]),
                Element::range(&[240, 0, 0, 0], &[255, 255, 255, 255]),
            ],
            &[
                json!({"prefix": {"addr": "0.0.0.0", "len": 8}}),
                json!({"prefix": {"addr": "10.0.0.0", "len": 24}}),
                json!("10.0.1.0"),
                json!({"range": ["10.0.2.1", "10.0.2.9"]}),
                json!({"prefix": {"addr": "240.0.0.0", "len": 4}}),
            ],
        );
        let last = [0xff; 16];
        let start = join(&[&[0xfe], &[0; 15]]);
        check(
            Family::Ip6,
            "map { type ipv6_addr : verdict; flags interval; }",
            &[
                Element::range(&v6(0), &v6(15)).with(Data::Verdict(Verdict::Accept)),
                Element::range(&start, &last).with(Data::Verdict(Verdict::Goto("c"))),
            ],
            &[
                json!([{"prefix": {"addr": "fd00::", "len": 124}}, {"accept": null}]),
                json!([{"prefix": {"addr": "fe00::", "len": 7}}, {"goto": {"target": "c"}}]),
            ],
        );
        let start = join(&[&v6(0), &[17, 0, 0, 0], &[0, 80, 0, 0]]);
        let end = join(&[&v6(15), &[17, 0, 0, 0], &[0, 90, 0, 0]]);
        let single = join(&[&v6(1), &[6, 0, 0, 0], &[0, 53, 0, 0]]);
        check(
            Family::Inet,
            "set { type ipv6_addr . inet_proto . inet_service; flags interval; }",
            &[Element::range(&start, &end), Element::key(&single)],
            &[
                json!({"concat": [{"prefix": {"addr": "fd00::", "len": 124}}, "udp", {"range": [80, 90]}]}),
                json!({"concat": ["fd00::1", "tcp", 53]}),
            ],
        );
        check(
            Family::Inet,
            "map { type ipv4_addr . inet_service : verdict; flags interval; }",
            &[
                Element::range(&[10, 0, 0, 0, 0, 1, 0, 0], &[10, 0, 0, 255, 0, 9, 0, 0])
                    .with(Data::Verdict(Verdict::Drop)),
            ],
            &[
                json!([{"concat": [{"prefix": {"addr": "10.0.0.0", "len": 24}}, {"range": [1, 9]}]}, {"drop": null}]),
            ],
        );
    });
}

#[test]
fn n3_an_element_is_removed_after_its_timeout() {
    in_namespace(|| {
        script::run("add table ip t\nadd set ip t s { type ipv4_addr; flags timeout; }").unwrap();
        let mut nftables = Nftables::open().unwrap();
        let set = set(&mut nftables, Family::Ip, "s");
        let mut batch = Batch::new();
        let element = Element {
            timeout: Some(Duration::from_secs(3600)),
            ..Element::key(&[10, 0, 0, 1])
        };
        batch.add(&set, element).unwrap();
        nftables.commit(&batch).unwrap();
        let elements = nftables.elements(&set).unwrap();
        assert_eq!(elements.iter().collect::<Vec<_>>(), [element]);
        assert!(run("nft", &["list", "table", "ip", "t"]).contains("timeout 1h"));
    });
}

#[test]
fn n3_a_rejected_batch_does_nothing_and_names_the_element() {
    in_namespace(|| {
        script::run("add table ip t\nadd map ip t s { type ipv4_addr : inet_service; }\nadd table ip other")
            .unwrap();
        let mut nftables = Nftables::open().unwrap();
        let set = set(&mut nftables, Family::Ip, "s");
        let element = |last: u8| [10, 0, 0, last];
        let port = Data::Value(&[0, 80, 0, 0]);
        let mut batch = Batch::new();
        for last in 1..=9 {
            batch
                .create(&set, Element::key(&element(last)).with(port))
                .unwrap();
        }
        for last in [3, 77, 4] {
            batch.delete(&set, Element::key(&element(last))).unwrap();
        }
        let generation = nftables.generation().unwrap();
        let error = nftables.commit(&batch).unwrap_err();
        assert!(error.is_not_found() && !error.is_already_exists());
        let Error::Rejected(rejections) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(rejections[0].operation, Operation::DeleteElements);
        assert_eq!(rejections[0].key.as_deref(), Some(&element(77)[..]));
        assert_eq!(
            error.to_string(),
            "the kernel rejects a batch: cannot delete elements of ip t s at 0a00004d: No such file or directory"
        );
        assert!(nftables.elements(&set).unwrap().is_empty());
        assert_eq!(nftables.generation().unwrap(), generation);

        let mut batch = Batch::new();
        batch.create(&set, Element::key(&element(1)).with(port)).unwrap();
        nftables.commit(&batch).unwrap();
        assert_eq!(nftables.generation().unwrap(), generation + 1);
        let error = nftables.commit(&batch).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EEXIST));
        // Other data under the same key is no addition …
        let other = Element::key(&[10, 0, 0, 1]).with(Data::Value(&[0, 81, 0, 0]));
        let mut batch = Batch::new();
        batch.add(&set, other).unwrap();
        let error = nftables.commit(&batch).unwrap_err();
        assert!(error.is_already_exists(), "{error}");
        // … but a deletion and an addition, at one moment.
        let mut batch = Batch::new();
        batch.delete(&set, Element::key(&element(1))).unwrap();
        batch.create(&set, other).unwrap();
        nftables.commit(&batch).unwrap();
        assert_eq!(
            nftables.elements(&set).unwrap().iter().collect::<Vec<_>>(),
            [other]
        );

        // A set that is not there any more.
        let mut batch = Batch::new();
        batch.delete_table(Family::Ip, "t");
        nftables.commit(&batch).unwrap();
        assert!(nftables.commit(&batch).unwrap_err().is_not_found());
        let mut batch = Batch::new();
        batch.add(&set, other).unwrap();
        assert!(nftables.commit(&batch).unwrap_err().is_not_found());
        assert!(nftables.elements(&set).unwrap_err().is_not_found());
        assert_eq!(nftables.sets(Family::Ip, "t").unwrap(), []);
        assert_eq!(nftables.tables().unwrap(), [(Family::Ip, "other".to_string())]);
    });
}

#[test]
fn n3_a_large_batch_is_one_commit_and_a_dump_shows_it_whole_while_others_commit() {
    const ELEMENTS: u32 = 60_000;
    in_namespace(|| {
        script::run("add table ip t\nadd map ip t s { type ipv4_addr . inet_service : verdict; }\nadd set ip t busy { type ipv4_addr; }\nadd chain ip t a-chain-with-a-long-name")
            .unwrap();
        let mut nftables = Nftables::open().unwrap();
        let map = set(&mut nftables, Family::Ip, "s");
        let key = |n: u32| join(&[&n.to_be_bytes(), &[0, 80, 0, 0]]);
        let mut batch = Batch::new();
        for n in 0..ELEMENTS {
            let verdict = Data::Verdict(Verdict::Goto("a-chain-with-a-long-name"));
            batch.create(&map, Element::key(&key(n)).with(verdict)).unwrap();
        }
        assert!(batch.is_full());
        nftables.commit(&batch).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = set(&mut nftables, Family::Ip, "busy");
        // A socket belongs to the namespace it was opened in, whichever thread uses it.
        let mut other = Nftables::open().unwrap();
        let writer = std::thread::spawn(move || {
            let mut commits = 0;
            while stopped
                .recv_timeout(Duration::from_millis(3))
                .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                let mut batch = Batch::new();
                batch.flush(&busy);
                batch.create(&busy, Element::key(&[10, 0, 0, 1])).unwrap();
                other.commit(&batch).unwrap();
                commits += 1;
            }
            commits
        });
        for _ in 0..3 {
            match nftables.elements(&map) {
                Ok(elements) => {
                    let keys: BTreeSet<&[u8]> = elements.iter().map(|e| e.key).collect();
                    assert_eq!(
                        (elements.len(), keys.len()),
                        (ELEMENTS as usize, ELEMENTS as usize)
                    );
                }
                Err(Error::Interrupted { .. }) => (),
                Err(error) => panic!("{error:?}"),
            }
        }
        drop(stop);
        assert!(writer.join().unwrap() > 0);
        let mut batch = Batch::new();
        for n in 0..ELEMENTS {
            batch.delete(&map, Element::key(&key(n))).unwrap();
        }
        batch
            .create(&map, Element::key(&key(7)).with(Data::Verdict(Verdict::Drop)))
            .unwrap();
        nftables.commit(&batch).unwrap();
        assert_eq!(nftables.elements(&map).unwrap().len(), 1);
        let mut batch = Batch::new();
        batch.flush(&map);
        nftables.commit(&batch).unwrap();
        assert!(nftables.elements(&map).unwrap().is_empty());
    });
}

#[test]
fn n3_flows_to_a_service_are_deleted_and_others_stay() {
    in_namespace(|| {
        script::run(
            "table inet t {\n\
             chain o { type nat hook output priority -100; ip daddr 10.9.0.1 udp dport 53 dnat ip to 127.0.0.1:5353; ip6 daddr fd00::9 udp dport 53 dnat ip6 to [::1]:5353; }\n\
             }",
        )
        .unwrap();
        run("ip", &["route", "add", "local", "10.9.0.1", "dev", "lo"]);
        run("ip", &["-6", "route", "add", "local", "fd00::9", "dev", "lo"]);
        let _v4 = UdpSocket::bind("127.0.0.1:5353").unwrap();
        let _v6 = UdpSocket::bind("[::1]:5353").unwrap();
        for (family, service, endpoint, other) in [
            (Family::Ip, "10.9.0.1:53", "127.0.0.1:5353", "127.0.0.1:7777"),
            (Family::Ip6, "[fd00::9]:53", "[::1]:5353", "[::1]:7777"),
        ] {
            let any = if family == Family::Ip {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let clients: Vec<UdpSocket> = (0..700).map(|_| UdpSocket::bind(any).unwrap()).collect();
            for client in &clients {
                client.send_to(b"x", service).unwrap();
            }
            clients[0].send_to(b"x", other).unwrap();
            let mut conntrack = Conntrack::open().unwrap();
            let mut seen = Vec::new();
            let deleted = conntrack
                .delete(family, 17, |flow| {
                    seen.push(*flow);
                    flow.original.destination == service.parse().unwrap()
                        && flow.reply.source == endpoint.parse().unwrap()
                })
                .unwrap();
            assert_eq!((deleted, seen.len()), (700, 701));
            let mut left = 0;
            conntrack
                .delete(family, 17, |flow| {
                    assert_eq!(flow.original.destination, other.parse().unwrap());
                    left += 1;
                    false
                })
                .unwrap();
            assert_eq!(left, 1);
            assert_eq!(
                conntrack.delete(family, 6, |_| true).unwrap(),
                0,
                "of another protocol"
            );
        }
    });
}

#[test]
fn nft_says_what_is_wrong_with_a_script() {
    in_namespace(|| {
        let error = script::run("add rule ip none c accept\n").unwrap_err();
        assert!(error.to_string().contains("No such file or directory"), "{error}");
        let error = script::run("nonsense\n").unwrap_err();
        assert!(error.to_string().contains("syntax error"), "{error}");
    });
}
