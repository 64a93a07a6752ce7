//! A node's two certificates: what it asks for, and when it asks again.
//!
//! One names the node to the API server (`kubernetes.io/kube-apiserver-client-kubelet`), the other its port to the
//! API server and users (`kubernetes.io/kubelet-serving`). Both are asked for anew when 70 to 90 % of their time is over,
//! each node at another moment, and at once when the node is called otherwise or the certificate has ended.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

/// Signer of clients of the API server that are kubelets.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of all other clients of the API server.
pub const API_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Signer of kubelets' ports.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// The part of a certificate's time after which it may be renewed …
const EARLIEST: f64 = 0.7;
/// … and how much later it may be.
const SPREAD: f64 = 0.2;
/// The pause after a first failure; it doubles with each further one.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// The longest pause: a server that comes back is found within it.
const PAUSE_MAX: SignedDuration = SignedDuration::from_secs(60);

/// What a node asks to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub signer: &'static str,
    pub usages: [&'static str; 2],
    pub common_name: String,
    pub organization: &'static str,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<String>,
}

/// By which the API server knows the node.
pub fn client(node: &str) -> Wanted {
    Wanted {
        signer: CLIENT_SIGNER,
        usages: ["digital signature", "client auth"],
        common_name: format!("system:node:{node}"),
        organization: "system:nodes",
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
    }
}

/// By which the API server knows the node's network agent, which reads what no kubelet may.
pub fn network_agent(node: &str) -> Wanted {
    Wanted {
        signer: API_CLIENT_SIGNER,
        usages: ["digital signature", "client auth"],
        common_name: format!("system:knarr:network-agent:{node}"),
        organization: "system:knarr:network-agents",
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
    }
}

/// By which the node's port is known, under the node's name and these addresses.
pub fn serving(node: &str, addresses: &[String]) -> Wanted {
    let mut ip_addresses = addresses.to_vec();
    ip_addresses.sort();
    ip_addresses.dedup();
    Wanted {
        signer: SERVING_SIGNER,
        usages: ["digital signature", "server auth"],
        dns_names: vec![node.to_string()],
        ip_addresses,
        ..client(node)
    }
}

/// A certificate that a node has, as far as it matters when to ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub common_name: String,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<String>,
    pub from: Timestamp,
    pub until: Timestamp,
    /// When the node got it. Signers date certificates back a little, by which one that lasts but minutes would be old
    /// at its birth: its time begins here.
    pub obtained: Timestamp,
}

impl Held {
    /// Whether it counts at this moment.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.from <= now && now <= self.until
    }

    /// Whether it is for all that is wanted.
    pub fn is_for(&self, wanted: &Wanted) -> bool {
        let all = |wanted: &[String], held: &[String]| wanted.iter().all(|name| held.contains(name));
        self.common_name == wanted.common_name
            && all(&wanted.dns_names, &self.dns_names)
            && all(&wanted.ip_addresses, &self.ip_addresses)
    }

    /// When to ask for the next one. `chance` is from 0 to 1 and drawn once a certificate.
    fn renewal(&self, chance: f64) -> Timestamp {
        let begins = self.from.max(self.obtained).min(self.until);
        let life = self.until.duration_since(begins).as_secs_f64();
        let part = EARLIEST + SPREAD * chance.clamp(0.0, 1.0);
        SignedDuration::try_from_secs_f64(life * part).map_or(begins, |after| begins + after)
    }
}

/// What to do about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Ask,
    /// Look again after this time.
    Wait(SignedDuration),
}

/// Whether to ask now. `failed` is how often in a row asking has failed, and when it last did.
pub fn next(
    held: Option<&Held>,
    wanted: &Wanted,
    chance: f64,
    failed: Option<(u32, Timestamp)>,
    now: Timestamp,
) -> Next {
    let fits = held.filter(|h| h.is_for(wanted) && h.counts(now));
    let due = fits.map_or(now, |h| h.renewal(chance));
    let may = failed.map_or(now, |(times, at)| at + pause(times));
    match due.max(may).duration_since(now) {
        left if left.is_positive() => Next::Wait(left),
        _ => Next::Ask,
    }
}

/// How long to pause after so many failures.
fn pause(times: u32) -> SignedDuration {
    let factor = 2_i32.checked_pow(times.saturating_sub(1)).unwrap_or(i32::MAX);
    PAUSE.checked_mul(factor).unwrap_or(PAUSE_MAX).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn held(wanted: &Wanted, from: i64, obtained: i64, until: i64) -> Held {
        Held {
            common_name: wanted.common_name.clone(),
            dns_names: wanted.dns_names.clone(),
            ip_addresses: wanted.ip_addresses.clone(),
            from: at(from),
            until: at(until),
            obtained: at(obtained),
        }
    }

    #[test]
    fn a_certificate_is_renewed_between_70_and_90_percent_of_its_time() {
        let wanted = client("n");
        let wait = |s| Next::Wait(SignedDuration::from_secs(s));
        let year = || Some(held(&wanted, 0, 0, 1000));
        let dated_back = || Some(held(&wanted, -300, 0, 60));
        for (what, held, chance, failed, now, expected) in [
            ("none", None, 0.0, None, 0, Next::Ask),
            ("fresh", year(), 0.0, None, 0, wait(700)),
            ("fresh, late", year(), 1.0, None, 0, wait(900)),
            ("a moment before", year(), 0.5, None, 799, wait(1)),
            ("its moment", year(), 0.5, None, 800, Next::Ask),
            ("ended", year(), 1.0, None, 1001, Next::Ask),
            ("not yet begun", year(), 1.0, None, -1, Next::Ask),
            ("dated back", dated_back(), 0.0, None, 0, wait(42)),
            ("dated back, late", dated_back(), 1.0, None, 54, Next::Ask),
            ("failed once", year(), 0.0, Some((1, at(700))), 700, wait(1)),
            (
                "failed once, later",
                year(),
                0.0,
                Some((1, at(700))),
                701,
                Next::Ask,
            ),
            ("failed thrice", None, 0.0, Some((3, at(10))), 10, wait(4)),
            ("failed often", None, 0.0, Some((99, at(10))), 10, wait(60)),
            ("failed, not due", year(), 0.0, Some((1, at(0))), 600, wait(100)),
            ("a chance that is none", year(), f64::NAN, None, 0, Next::Ask),
        ] {
            let found = next(held.as_ref(), &wanted, chance, failed, at(now));
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn another_name_or_address_is_asked_for_at_once() {
        let addresses = |a: &[&str]| a.iter().map(|s| (*s).to_string()).collect::<Vec<_>>();
        let had = serving("n", &addresses(&["10.0.0.1", "10.0.0.2"]));
        let held = held(&had, 0, 0, 1000);
        for (wanted, asks) in [
            (
                serving("n", &addresses(&["10.0.0.2", "10.0.0.1", "10.0.0.1"])),
                false,
            ),
            (serving("n", &addresses(&["10.0.0.1"])), false),
            (serving("n", &addresses(&["10.0.0.3"])), true),
            (serving("m", &addresses(&["10.0.0.1"])), true),
        ] {
            let found = next(Some(&held), &wanted, 0.0, None, at(1));
            assert_eq!(found == Next::Ask, asks, "{wanted:?}");
        }
    }
}
