//! The names and service accounts of the controllers, and the kinds that they watch.
//!
//! Names are in events that users see, service accounts have the ClusterRoles `system:controller:…`, and the caches have only
//! watched kinds: `registrations.txt` has a line for each controller, `name as account: kinds`.

use crate::{Config, all, sweeps};

/// Only controllers of whole namespaces watch more kinds than this.
const FEW: usize = 10;

fn line(name: &str, account: &str, watches: &[&'static knarr_api::Kind]) -> String {
    let kinds: Vec<&str> = watches.iter().map(|kind| kind.plural()).collect();
    let kinds = if kinds.len() > FEW {
        "many".into()
    } else {
        kinds.join(" ")
    };
    format!("{name} as {account}: {kinds}\n")
}

#[test]
fn a4_every_controller_acts_under_its_name_and_account_and_watches_its_kinds() {
    let config = Config {
        root_ca: Some("pem".into()),
        cluster_dns: vec!["192.0.2.10".parse().unwrap()],
        ..Config::default()
    };
    let mut found = String::new();
    for controller in all(&config) {
        found += &line(controller.name(), controller.account(), &controller.watches());
    }
    for sweep in sweeps(&config) {
        found += &line(sweep.name(), sweep.account(), &sweep.watches());
        assert!(!sweep.period().is_zero(), "{}", sweep.name());
    }
    assert_eq!(found, include_str!("registrations.txt"));
}
