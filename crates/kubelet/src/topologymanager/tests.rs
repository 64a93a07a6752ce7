//! Tables of the topology manager, after v1.36's tests.

use std::cmp::Ordering;

use super::*;

const DISTANCES: [[u64; 4]; 4] = [
    [10, 11, 12, 12],
    [11, 10, 12, 12],
    [12, 12, 10, 11],
    [12, 12, 11, 10],
];

fn topology(nodes: usize) -> Distances {
    let row = |of: &[u64; 4]| (0..).zip(of.iter().copied().take(nodes)).collect();
    (0..).zip(DISTANCES.iter().take(nodes).map(row)).collect()
}

fn manager(policy: Policy, prefer_closest: bool, nodes: usize) -> TopologyManager {
    let options = Options {
        prefer_closest,
        ..Options::default()
    };
    TopologyManager::new(policy, options, topology(nodes)).unwrap()
}

fn mask(nodes: &[u32]) -> NumaMask {
    NumaMask::of(nodes.iter().copied()).unwrap()
}

/// `[(nodes, preferred)]`; no nodes: any.
fn hints(of: &[(&[u32], bool)]) -> ProviderHints {
    let hint = |(nodes, is_preferred): &(&[u32], bool)| Hint {
        affinity: (!nodes.is_empty()).then(|| mask(nodes)),
        is_preferred: *is_preferred,
    };
    BTreeMap::from([("resource".into(), Some(of.iter().map(hint).collect()))])
}

type Row<'a> = (&'a [&'a [(&'a [u32], bool)]], &'a [u32], bool);

fn check(manager: &TopologyManager, rows: &[Row]) {
    for (providers, nodes, is_preferred) in rows {
        let given: Vec<_> = providers.iter().map(|of| hints(of)).collect();
        let expected = Hint {
            affinity: (!nodes.is_empty()).then(|| mask(nodes)),
            is_preferred: *is_preferred,
        };
        let admitted = *is_preferred || manager.policy == Policy::BestEffort;
        let policy = manager.policy;
        assert_eq!(
            manager.merge(&given),
            (expected, admitted),
            "{policy:?} {providers:?}"
        );
    }
}

#[test]
fn l4_hints_that_share_a_numa_node_are_merged_into_the_narrowest() {
    let rows: &[Row] = &[
        (&[&[(&[0], true)], &[(&[0], true)]], &[0], true),
        (&[&[(&[0], true), (&[1], true)], &[(&[1], true)]], &[1], true),
        (
            &[&[(&[0], true), (&[1], true)], &[(&[0], true), (&[0, 1], false)]],
            &[0],
            true,
        ),
        (&[&[(&[], true)]], &[0, 1, 2, 3], true),
        (&[&[(&[], false)]], &[0, 1, 2, 3], false),
        (&[&[]], &[0, 1, 2, 3], false),
        (&[&[(&[0], true)], &[(&[1], true)]], &[0, 1, 2, 3], false),
        (&[&[(&[0], true)], &[(&[0], false)]], &[0], false),
        (&[&[(&[0, 1], true)], &[(&[0], true)]], &[0], false),
        // Preferred beats narrower.
        (&[&[(&[1], false), (&[0, 1], true)]], &[0, 1], true),
        // Not preferred: as many NUMA nodes as the resource that needs most.
        (
            &[
                &[(&[0, 1], true), (&[0, 2], false)],
                &[(&[0], false), (&[0, 1, 2, 3], false)],
            ],
            &[0, 1],
            false,
        ),
    ];
    for policy in [Policy::BestEffort, Policy::Restricted] {
        check(&manager(policy, false, 4), rows);
    }
}

#[test]
fn l4_single_numa_node_admits_preferred_hints_of_one_node_only() {
    let rows: &[Row] = &[
        (&[&[(&[0], true), (&[1], true)], &[(&[1], true)]], &[1], true),
        (&[&[(&[0], true), (&[0, 1], false)]], &[0], true),
        (&[&[(&[0, 1], true)]], &[], false),
        (&[&[(&[], true)]], &[], true),
        (&[&[(&[0], false)]], &[], false),
        (&[&[(&[0], true)], &[(&[1], true)]], &[], false),
    ];
    check(&manager(Policy::SingleNumaNode, false, 2), rows);
}

#[test]
fn l4_providers_without_hints_have_no_preference() {
    let all = Hint {
        affinity: Some(mask(&[0, 1])),
        is_preferred: true,
    };
    let none: ProviderHints = BTreeMap::from([("resource".into(), None)]);
    let given: [&[ProviderHints]; 3] = [&[], &[BTreeMap::new()], &[none]];
    for providers in given {
        let merged = manager(Policy::Restricted, false, 2).merge(providers);
        assert_eq!(merged, (all, true));
    }
    let merged = manager(Policy::None, false, 2).merge(&[hints(&[])]);
    assert_eq!(merged, (Hint::default(), true));
}

#[test]
fn l4_closer_nodes_win_only_with_the_option() {
    let pairs: &[(&[u32], bool)] = &[(&[0, 2], true), (&[2, 3], true)];
    check(
        &manager(Policy::BestEffort, false, 4),
        &[(&[pairs], &[0, 2], true)],
    );
    check(
        &manager(Policy::BestEffort, true, 4),
        &[(&[pairs], &[2, 3], true)],
    );
}

#[test]
fn l4_hints_compare_as_in_kubernetes() {
    let manager = manager(Policy::BestEffort, false, 4);
    // (needed, current, candidate, whether the candidate replaces it); none is preferred.
    let rows: &[(u32, &[u32], &[u32], bool)] = &[
        (1, &[0, 1], &[0, 1], false),
        (1, &[1, 2], &[0, 1], true),
        (1, &[0, 1], &[1, 2], false),
        (2, &[0, 1], &[0], false),
        (2, &[1, 2], &[0, 1], true),
        (2, &[0, 1], &[1, 2], false),
        (2, &[0], &[0, 1, 2], false),
        (2, &[0], &[0, 1], true),
        (3, &[0], &[1, 2], true),
        (4, &[0, 1], &[1, 2, 3], true),
        (4, &[1, 2, 3], &[0, 1], false),
        (4, &[0, 1, 2], &[1, 2, 3], false),
        (4, &[1, 2, 3], &[0, 1, 2], true),
    ];
    for (needed, current, candidate, replaces) in rows {
        let ordering = manager.compare((mask(candidate), false), (mask(current), false), *needed);
        assert_eq!(
            ordering == Ordering::Less,
            *replaces,
            "{needed} {current:?} {candidate:?}"
        );
    }
}

#[test]
fn l4_many_resources_with_many_hints_are_merged_in_bounded_time() {
    let every: Vec<Hint> = (1_u32..16)
        .map(|bits| Hint {
            affinity: Some(mask(&(0..4).filter(|n| bits & (1 << n) != 0).collect::<Vec<_>>())),
            is_preferred: bits.count_ones() == 1,
        })
        .collect();
    // Fifteen hints each of forty resources: 15^40 combinations.
    let provider = (0..40).map(|n| (format!("r{n}"), Some(every.clone()))).collect();
    let (best, is_admitted) = manager(Policy::Restricted, false, 4).merge(&[provider]);
    assert_eq!((best.affinity, is_admitted), (Some(mask(&[0])), true));
}

#[test]
fn l4_options_are_validated_with_the_kubelet_messages() {
    let parse = |name: &str, value: &str| {
        let given = BTreeMap::from([(name.to_string(), value.to_string())]);
        Options::parse(&given).map_err(|e| e.to_string())
    };
    assert!(parse("prefer-closest-numa-nodes", "T").unwrap().prefer_closest);
    assert_eq!(parse("max-allowable-numa-nodes", "9").unwrap().max_nodes, 9);
    let rows = [
        (
            "unknown",
            "1",
            "unknown Topology Manager Policy option: \"unknown\"",
        ),
        (
            "prefer-closest-numa-nodes",
            "yes",
            "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"yes\": invalid syntax",
        ),
        (
            "max-allowable-numa-nodes",
            "x",
            "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            "max-allowable-numa-nodes",
            "7",
            "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8",
        ),
    ];
    for (name, value, message) in rows {
        assert_eq!(parse(name, value).unwrap_err(), message);
    }
}

#[test]
fn l4_only_single_numa_node_guarantees_alignment() {
    for (name, policy, guarantees) in [
        ("none", Policy::None, false),
        ("best-effort", Policy::BestEffort, false),
        ("restricted", Policy::Restricted, false),
        ("single-numa-node", Policy::SingleNumaNode, true),
    ] {
        assert_eq!((Policy::parse(name), policy.name()), (Some(policy), name));
        assert_eq!(policy.guarantees_alignment(), guarantees, "{name}");
    }
    assert_eq!(Policy::parse("Restricted"), None);
}

#[test]
fn l4_nodes_that_the_options_exclude_are_rejected() {
    let new = |options, nodes| TopologyManager::new(Policy::Restricted, options, nodes).map(drop);
    let many: Distances = (0..9).map(|n| (n, BTreeMap::new())).collect();
    assert_eq!(new(Options::default(), many.clone()), Err(Error::TooManyNodes(8)));
    let closest = Options {
        prefer_closest: true,
        max_nodes: 9,
    };
    assert_eq!(new(closest, many), Err(Error::NoDistances));
    let beyond = BTreeMap::from([(64, BTreeMap::new())]);
    assert_eq!(new(Options::default(), beyond), Err(Error::NodeOutOfRange));
}
