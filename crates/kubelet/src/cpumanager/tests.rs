//! Tables of the CPU manager, after v1.36's tests of CPU assignment.

use super::*;

/// A node with this many CPUs: the core, socket, NUMA node and cache of each by its number.
pub(super) fn topology(cpus: u32, of: impl Fn(u32) -> [u32; 4]) -> CpuTopology {
    let cpu = |n| {
        let [core, socket, numa_node, uncore_cache] = of(n);
        let cpu = Cpu {
            core,
            socket,
            numa_node,
            uncore_cache,
        };
        (n, cpu)
    };
    CpuTopology::new((0..cpus).map(cpu).collect())
}

pub(super) fn single_socket_ht() -> CpuTopology {
    topology(8, |n| [n % 4, 0, 0, 0])
}

pub(super) fn dual_socket_ht() -> CpuTopology {
    topology(12, |n| [n % 6, n % 2, n % 2, n % 2])
}

pub(super) fn dual_socket_multi_numa_ht() -> CpuTopology {
    topology(80, |n| [n % 40, n % 40 / 20, n % 40 / 10, 0])
}

/// `0-3,7`.
pub(super) fn set(of: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    of.split(',').filter(|p| !p.is_empty()).flat_map(range).collect()
}

fn check(topology: &CpuTopology, sorting: Sorting, uncore: bool, rows: &[(&str, usize, &str)]) {
    for (available, count, taken) in rows {
        let result = take_packed(topology, &set(available), *count, sorting, uncore);
        assert_eq!(result, Ok(set(taken)), "{count} of {available}");
    }
}

#[test]
fn l4_cpus_are_taken_by_whole_groups_first() {
    let packed = Sorting::Packed;
    check(
        &single_socket_ht(),
        packed,
        false,
        &[
            ("0-7", 0, ""),
            ("0-7", 1, "0"),
            ("1,3,5-7", 1, "6"),
            ("0-7", 2, "0,4"),
            ("0-7", 8, "0-7"),
            ("0-3,6", 2, "2,6"),
        ],
    );
    check(
        &dual_socket_ht(),
        packed,
        false,
        &[
            ("0-11", 6, "0,2,4,6,8,10"),
            ("1-5,7-11", 1, "2"),
            ("0-11", 8, "0,6,2,8,4,10,1,7"),
        ],
    );
    check(
        &dual_socket_multi_numa_ht(),
        packed,
        false,
        &[
            ("0-79", 40, "0-19,40-59"),
            ("0-79", 20, "0-9,40-49"),
            ("10-39,50-79", 20, "10-19,50-59"),
            ("0-79", 60, "0-29,40-69"),
            ("1-39,41-79", 60, "10-39,50-79"),
            ("0-79", 64, "0-29,40-69,30,31,70,71"),
            ("10-39,50-79", 40, "20-39,60-79"),
        ],
    );
    // A NUMA node of two sockets; above, a socket has two NUMA nodes.
    let multi_socket = topology(80, |n| [n % 40, n % 40 / 10, n % 40 / 20, 0]);
    check(
        &multi_socket,
        packed,
        false,
        &[("10-39,50-79", 40, "20-39,60-79")],
    );
}

#[test]
fn l4_cpus_are_spread_over_cores_with_the_option() {
    let spread = Sorting::Spread;
    check(&single_socket_ht(), spread, false, &[("0-7", 3, "0-2")]);
    check(
        &dual_socket_ht(),
        spread,
        false,
        &[
            ("0-11", 2, "0,2"),
            ("0-11", 6, "0,2,4,6,8,10"),
            ("0-11", 8, "0,2,4,6,8,10,1,3"),
        ],
    );
    check(&dual_socket_multi_numa_ht(), spread, false, &[("0-79", 8, "0-7")]);
}

#[test]
fn l4_cpus_are_taken_from_one_uncore_cache_with_the_option() {
    let no_smt = topology(16, |n| [n, 0, 0, n / 4]);
    let dual = topology(16, |n| [n, n / 8, 0, n / 4]);
    let smt = topology(16, |n| [n % 8, 0, 0, n % 8 / 4]);
    let packed = Sorting::Packed;
    check(&no_smt, packed, true, &[("1-15", 10, "1,2,4-11")]);
    check(
        &dual,
        packed,
        true,
        &[("0-15", 4, "0-3"), ("2-15", 6, "2-7"), ("8-15", 4, "8-11")],
    );
    check(
        &smt,
        packed,
        true,
        &[
            ("2-3,10-11,4-7,12-15", 6, "4-6,12-14"),
            ("1-7,9-15", 10, "4-7,12-15,1,9"),
            // One thread of the last core is left, if both are free.
            ("0-6,8-14", 3, "4,5,12"),
            ("0-6,8-11,13,14", 3, "4,5,13"),
        ],
    );
    // Only core 1 has two threads, CPUs 0 and 1: on average a core has one, and a core's threads are not separated.
    let hybrid = topology(6, |n| [n.max(1), 0, 0, n.min(2) / 2]);
    check(&hybrid, packed, true, &[("0-5", 1, "2")]);
}

#[test]
fn l4_more_cpus_than_are_available_are_an_error() {
    let error = take_packed(&single_socket_ht(), &set("0,2,4,6"), 5, Sorting::Packed, false).unwrap_err();
    let message = "not enough cpus available to satisfy request: requested=5, available=4";
    assert_eq!(error.to_string(), message);
}

fn check_distributed(topology: &CpuTopology, rows: &[(&str, usize, usize, &str)]) {
    for (available, count, group, taken) in rows {
        let result = take_distributed(topology, &set(available), *count, *group, Sorting::Packed);
        assert_eq!(
            result,
            Ok(set(taken)),
            "{count} of {available} in groups of {group}"
        );
    }
}

#[test]
fn l4_cpus_are_distributed_evenly_over_numa_nodes_with_the_option() {
    check_distributed(
        &dual_socket_ht(),
        &[("1-5,7-11", 1, 1, "1"), ("1-5,7-11", 1, 2, "2")],
    );
    check_distributed(
        &dual_socket_multi_numa_ht(),
        &[
            ("0-79", 40, 1, "0-19,40-59"),
            ("0-79", 26, 1, "0-6,10-16,40-45,50-55"),
            ("0-79", 26, 2, "0-6,10-15,40-46,50-55"),
            ("0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
            ("0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
            (
                "0-8,10-18,20-39,40-48,50-58,60-79",
                62,
                1,
                "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
            ),
            (
                "0-8,10-18,20-39,40-48,50-58,60-79",
                62,
                2,
                "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
            ),
            (
                "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
                34,
                1,
                "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
            ),
        ],
    );
    let large = topology(256, |n| [n % 128, n % 128 / 64, n % 128 / 16, 0]);
    let available = "0,128,30,31,158,159,43-47,171-175,62,63,190,191,75-79,203-207,94,96,222,223,101-111,229-239,126,127,254,255";
    let taken = "43-47,75-79,96,101-105,171-174,203-206,229-232";
    check_distributed(&large, &[(available, 28, 1, taken)]);
    // The remainder comes from the NUMA node with the most free CPUs only.
    let three_nodes = topology(42, |n| [n, 0, n / 14, 0]);
    check_distributed(&three_nodes, &[("0-11,14-26,28-41", 28, 1, "0-8,14-22,28-37")]);
}

#[test]
fn l4_cpus_of_more_than_twelve_numa_nodes_are_packed() {
    for (nodes, taken) in [(12, "0-2,4-6"), (13, "0-5")] {
        let cpus = nodes * 4;
        let of_four = topology(cpus, |n| [n, 0, n / 4, 0]);
        let all = format!("0-{}", cpus - 1);
        check_distributed(&of_four, &[(all.as_str(), 6, 1, taken)]);
    }
}

#[test]
fn l4_the_balance_is_the_standard_deviation_in_thousandths() {
    for (free, balance) in [
        (&[4, 4][..], "0"),
        (&[2, 4, 4, 4, 5, 5, 7, 9], "2"),
        (&[0, 1, 1], "0.471"),
    ] {
        let free: BTreeMap<u32, usize> = (0..).zip(free.iter().copied()).collect();
        let deviation = super::distribution::deviation(&free);
        assert_eq!(deviation.to_string(), balance, "{free:?}");
    }
}

#[test]
fn l4_sets_of_cpus_are_read_and_written_as_the_kernel_does() {
    for (text, written) in [
        ("", ""),
        ("0", "0"),
        ("3,1-2,0", "0-3"),
        ("0-1,3,5-7", "0-1,3,5-7"),
        ("65535", "65535"),
    ] {
        assert_eq!(cpuset::format(&cpuset::parse(text).unwrap()), written, "{text}");
    }
    for (text, error) in [
        ("1.3", "strconv.Atoi: parsing \"1.3\": invalid syntax"),
        ("1,", "strconv.Atoi: parsing \"\": invalid syntax"),
        ("3-1", "invalid range \"3-1\" (3 > 1)"),
        ("65536", "strconv.Atoi: parsing \"65536\": value out of range"),
        (
            "0-4294967295",
            "strconv.Atoi: parsing \"4294967295\": value out of range",
        ),
    ] {
        assert_eq!(cpuset::parse(text).unwrap_err().to_string(), error);
    }
}

pub(super) fn options(text: &str) -> Result<Options, OptionError> {
    let given = text.split(',').filter_map(|o| o.split_once('='));
    let given = given
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let gates = Gates {
        alpha: true,
        beta: true,
    };
    Options::parse(&given, gates)
}

#[test]
fn l4_options_are_rejected_with_the_kubelets_messages() {
    let given = BTreeMap::from([("align-by-socket".to_string(), "true".to_string())]);
    let error = Options::parse(&given, Gates::default()).unwrap_err();
    let message =
        "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided";
    assert_eq!(error.to_string(), message);
    for (given, message) in [
        ("other=1", "unknown CPU Manager Policy option: \"other\""),
        (
            "full-pcpus-only=maybe",
            "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        (
            "full-pcpus-only=true,distribute-cpus-across-cores=true",
            "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
        ),
        (
            "prefer-align-cpus-by-uncorecache=true,distribute-cpus-across-numa=true",
            "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at \
             the same time",
        ),
    ] {
        assert_eq!(options(given).unwrap_err().to_string(), message);
    }
    for alone in [
        "full-pcpus-only",
        "distribute-cpus-across-numa",
        "align-by-socket",
        "distribute-cpus-across-cores",
        "strict-cpu-reservation",
        "prefer-align-cpus-by-uncorecache",
    ] {
        assert!(options(&format!("{alone}=true")).is_ok(), "{alone}");
    }
    let aligned = options("align-by-socket=true").unwrap();
    assert!(aligned.validate(&dual_socket_multi_numa_ht(), false).is_ok());
    assert!(aligned.validate(&dual_socket_ht(), false).is_ok());
    assert_eq!(
        aligned.validate(&dual_socket_multi_numa_ht(), true),
        Err(OptionError::SingleNumaNode)
    );
    let more_sockets = topology(16, |n| [n, n / 8, 0, n / 4]);
    assert_eq!(
        aligned.validate(&more_sockets, false),
        Err(OptionError::MoreSockets)
    );
}
