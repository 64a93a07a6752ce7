//! A table changed from its current to its desired content.

use std::collections::BTreeMap;

use knarr_network::nft::{Data, Elements, Key, Verdict};
use knarr_nftables::{Family, Nftables, script};
use knarr_node_network::table::{Comparison, Table};

use crate::in_namespace;

const SKELETON: &str = "table ip t {\n\
    map plain { type ipv4_addr : inet_service; }\n\
    map verdicts { type inet_service : verdict; }\n\
    set ranges { type ipv4_addr; flags interval; }\n\
    set concatenated { type ipv4_addr . inet_service; flags interval; }\n\
    set others { type ipv4_addr; elements = { 10.0.0.1 } }\n\
    chain c { }\n\
}\n";
const SETS: [&str; 4] = ["plain", "verdicts", "ranges", "concatenated"];

fn range(start: &[u8], end: &[u8]) -> Key {
    Key {
        start: start.into(),
        end: Some(end.into()),
    }
}

fn port(number: u8) -> Option<Data> {
    Some(Data::Value([0, number, 0, 0].into()))
}

/// The elements that the batch changes.
fn bring(nftables: &mut Nftables, expected: &BTreeMap<&str, Elements>) -> usize {
    let table = Table::read(nftables, Family::Ip, "t").unwrap();
    let mut comparison = Comparison::read(nftables, &table, &SETS).unwrap();
    for (set, elements) in expected {
        for (key, data) in elements {
            comparison.want(set, key, data.as_ref()).unwrap();
        }
    }
    let batch = comparison.batch().unwrap();
    nftables.commit(&batch).unwrap();
    for set in SETS {
        let elements = table.elements(nftables, set).unwrap();
        let mut expected = expected.get(set).cloned().unwrap_or_default();
        // What is a range of one is read as one.
        expected = expected
            .into_iter()
            .map(|(key, data)| {
                let end = key.end.filter(|end| *end != key.start);
                (Key { end, ..key }, data)
            })
            .collect();
        assert_eq!(elements, expected, "{set}");
    }
    batch.elements()
}

#[test]
fn n3_only_the_difference_is_written_and_other_sets_are_left_alone() {
    in_namespace(|| {
        script::run(SKELETON).unwrap();
        let mut nftables = Nftables::open().unwrap();
        let plain = |pairs: &[(u8, u8)]| -> Elements {
            let pairs = pairs.iter();
            pairs
                .map(|(last, to)| (Key::exact([10, 0, 0, *last]), port(*to)))
                .collect()
        };
        let goto = Some(Data::Verdict(Verdict::Goto("c".into())));
        let mut expected = BTreeMap::from([
            ("plain", plain(&[(1, 1), (2, 2), (3, 3)])),
            ("verdicts", BTreeMap::from([(Key::exact([0, 80, 0, 0]), goto)])),
            (
                "ranges",
                BTreeMap::from([
                    (range(&[10, 0, 0, 0], &[10, 0, 0, 255]), None),
                    (range(&[10, 0, 1, 0], &[10, 0, 1, 0]), None),
                ]),
            ),
            (
                "concatenated",
                BTreeMap::from([(
                    range(&[10, 0, 0, 0, 0, 1, 0, 0], &[10, 0, 0, 9, 0, 1, 0, 0]),
                    None,
                )]),
            ),
        ]);
        assert_eq!(bring(&mut nftables, &expected), 7);
        let generation = nftables.generation().unwrap();
        assert_eq!(bring(&mut nftables, &expected), 0);
        assert_eq!(nftables.generation().unwrap(), generation, "nothing is committed");
        // One is removed, one is added, one has other data; a range grows.
        expected.insert("plain", plain(&[(1, 1), (2, 9), (4, 4)]));
        expected.insert(
            "ranges",
            BTreeMap::from([(range(&[10, 0, 0, 0], &[10, 0, 1, 255]), None)]),
        );
        assert_eq!(bring(&mut nftables, &expected), 4 + 3);
        assert_eq!(bring(&mut nftables, &BTreeMap::new()), 6);
        let table = Table::read(&mut nftables, Family::Ip, "t").unwrap();
        assert_eq!(table.elements(&mut nftables, "others").unwrap().len(), 1);
        let error = Comparison::read(&mut nftables, &table, &["absent"])
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "the table ip t has no set absent");
    });
}
