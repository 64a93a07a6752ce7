//! Each rule with values that it accepts and values that it rejects, with Kubernetes' messages.

use super::*;

fn fine(rule: fn(&str) -> Vec<String>, values: &[&str]) {
    for value in values {
        assert_eq!(rule(value), Vec::<String>::new(), "{value:?}");
    }
}

fn rejected(rule: fn(&str) -> Vec<String>, values: &[(&str, &[&str])]) {
    for (value, messages) in values {
        let got = rule(value);
        assert_eq!(got.len(), messages.len(), "{value:?}: {got:?}");
        for (got, want) in got.iter().zip(*messages) {
            assert!(
                got.starts_with(want),
                "{value:?}: {got:?} does not start with {want:?}"
            );
        }
    }
}

#[test]
fn subdomains_are_lower_case_labels_joined_by_dots() {
    fine(dns1123_subdomain, &["a", "a-b.c", "1.2.3", &"a".repeat(253)]);
    rejected(
        dns1123_subdomain,
        &[
            ("", &["a lowercase RFC 1123 subdomain must"]),
            ("a..b", &["a lowercase RFC 1123 subdomain must"]),
            ("A", &["a lowercase RFC 1123 subdomain must"]),
            ("a-", &["a lowercase RFC 1123 subdomain must"]),
            (&"a".repeat(254), &["must be no more than 253 characters"]),
        ],
    );
}

#[test]
fn labels_have_no_dots() {
    fine(dns1123_label, &["a", "0a-b"]);
    rejected(
        dns1123_label,
        &[
            ("a.b", &["must not contain dots"]),
            ("a_b", &["a lowercase RFC 1123 label must"]),
            (&"a".repeat(64), &["must be no more than 63 characters"]),
        ],
    );
    fine(dns1035_label, &["a1"]);
    rejected(dns1035_label, &[("1a", &["a DNS-1035 label must"])]);
}

#[test]
fn label_keys_have_an_optional_prefix() {
    fine(qualified_name, &["a", "A.b_c-d", "example.com/A", "a/b"]);
    rejected(
        qualified_name,
        &[
            ("", &["name part must be non-empty", "name part must consist of"]),
            ("/a", &["prefix part must be non-empty"]),
            ("A/b", &["prefix part a lowercase RFC 1123 subdomain"]),
            ("a/b/c", &["a valid label key must consist of"]),
            (&"k".repeat(64), &["name part must be no more than 63 bytes"]),
        ],
    );
    fine(label_value, &["", "a", "A_b.c"]);
    rejected(
        label_value,
        &[("a b", &["a valid label must be an empty string"])],
    );
}

#[test]
fn ports_have_a_letter() {
    fine(port_name, &["http", "a-1"]);
    rejected(
        port_name,
        &[
            ("80", &["must contain at least one letter"]),
            ("a--b", &["must not contain consecutive hyphens"]),
            ("-a", &["must not begin or end with a hyphen"]),
            (
                "A_B",
                &[
                    "must contain only alpha-numeric",
                    "must contain at least one letter",
                ],
            ),
        ],
    );
}

#[test]
fn ip_addresses_are_strict() {
    fine(ip_address, &["10.0.0.1", "::1", "FE80::1"]);
    rejected(
        ip_address,
        &[
            ("010.0.0.1", &["must not have leading 0s"]),
            ("::ffff:1.2.3.4", &["must not be an IPv4-mapped"]),
            ("x", &["must be a valid IP address"]),
            ("1.2.3", &["must be a valid IP address"]),
        ],
    );
}

#[test]
fn other_rules() {
    fine(env_var_name, &["A", "a.b-c", "1 a"]);
    rejected(
        env_var_name,
        &[
            ("a=b", &["a valid environment variable name"]),
            ("é", &["a valid"]),
        ],
    );
    fine(config_map_key, &["a", ".a", "a..b"]);
    rejected(
        config_map_key,
        &[
            ("..", &["must not be '..'"]),
            ("..a", &["must not start with '..'"]),
        ],
    );
    fine(percent, &["0%", "100%"]);
    rejected(
        percent,
        &[("%", &["a valid percent"]), ("1", &["a valid percent"])],
    );
    fine(path_segment, &["a", "a:b"]);
    rejected(
        path_segment,
        &[
            (".", &["may not be"]),
            ("a/%", &["may not contain '/'", "may not contain '%'"]),
        ],
    );
    fine(c_identifier, &["_a1"]);
    rejected(c_identifier, &[("1a", &["a valid C identifier"])]);
    fine(wildcard_dns1123_subdomain, &["*.a.b"]);
    rejected(wildcard_dns1123_subdomain, &[("*", &["a wildcard DNS-1123"])]);
}

#[test]
fn the_dash_of_a_generate_name_is_not_the_end_of_the_name() {
    assert_eq!(generated("web-", dns1123_subdomain), Vec::<String>::new());
    assert_eq!(generated("A_", dns1123_subdomain).len(), 1);
    assert_eq!(
        generated("é-", dns1123_subdomain),
        Vec::<String>::new(),
        "the last rune before the dash is replaced"
    );
}
