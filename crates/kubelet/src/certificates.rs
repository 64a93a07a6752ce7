//! A node's certificates: their contents, and when they are rotated.
//!
//! The client certificate authenticates the node to the API server (`kubernetes.io/kube-apiserver-client-kubelet`), the
//! serving certificate authenticates the kubelet's port (`kubernetes.io/kubelet-serving`). Both are rotated when 70 to
//! 90 % of their lifetime has passed, each node at another moment, and at once when the node's name or addresses change or
//! the certificate has expired.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::certificates::{CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER};
use knarr_api::k8s_openapi;

/// The part of a certificate's lifetime after which it may be rotated …
const EARLIEST: f64 = 0.7;
/// … and the width of the interval in which it is.
const SPREAD: f64 = 0.2;
/// The wait after a first failed request; it doubles with each further one.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
/// The longest wait: a server that is available again gets a request within it.
const PAUSE_MAX: SignedDuration = SignedDuration::from_secs(60);

/// The contents of a certificate signing request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateTemplate {
    pub signer: &'static str,
    pub usages: [&'static str; 2],
    pub common_name: String,
    pub organization: &'static str,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<String>,
}

/// The kubelet's client certificate.
pub fn client(node: &str) -> CertificateTemplate {
    CertificateTemplate {
        signer: KUBELET_CLIENT_SIGNER,
        usages: ["digital signature", "client auth"],
        common_name: format!("system:node:{node}"),
        organization: "system:nodes",
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
    }
}

/// The client certificate of the node's network agent, which has rights that a kubelet does not have.
pub fn network_agent(node: &str) -> CertificateTemplate {
    CertificateTemplate {
        signer: CLIENT_SIGNER,
        usages: ["digital signature", "client auth"],
        common_name: format!("system:knarr:network-agent:{node}"),
        organization: "system:knarr:network-agents",
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
    }
}

/// The kubelet's serving certificate, for the node's name and these addresses.
pub fn serving(node: &str, addresses: &[String]) -> CertificateTemplate {
    let mut ip_addresses = addresses.to_vec();
    ip_addresses.sort();
    ip_addresses.dedup();
    CertificateTemplate {
        signer: KUBELET_SERVING_SIGNER,
        usages: ["digital signature", "server auth"],
        dns_names: vec![node.to_string()],
        ip_addresses,
        ..client(node)
    }
}

/// The properties of a node's certificate that its rotation depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentCertificate {
    pub common_name: String,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<String>,
    pub from: Timestamp,
    pub until: Timestamp,
    /// When the node received it. Signers backdate certificates a little, so that one with a lifetime of minutes would be
    /// old when it is issued: its lifetime counts from here.
    pub obtained: Timestamp,
}

impl CurrentCertificate {
    /// Whether it is valid now.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.from <= now && now <= self.until
    }

    /// Whether it has the template's name and all its addresses.
    pub fn matches(&self, template: &CertificateTemplate) -> bool {
        let all =
            |template: &[String], current: &[String]| template.iter().all(|name| current.contains(name));
        self.common_name == template.common_name
            && all(&template.dns_names, &self.dns_names)
            && all(&template.ip_addresses, &self.ip_addresses)
    }

    /// When to request the next one. `chance` is from 0 to 1 and drawn once for each certificate.
    fn renewal(&self, chance: f64) -> Timestamp {
        let begins = self.from.max(self.obtained).min(self.until);
        let life = self.until.duration_since(begins).as_secs_f64();
        let part = EARLIEST + SPREAD * chance.clamp(0.0, 1.0);
        SignedDuration::try_from_secs_f64(life * part).map_or(begins, |after| begins + after)
    }
}

/// Whether to request a certificate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationDecision {
    Request,
    /// Decide again after this time.
    Wait(SignedDuration),
}

/// Whether to request a certificate now. `failed` is the number of consecutive failed requests, and the time of the last.
pub fn decide_rotation(
    current: Option<&CurrentCertificate>,
    template: &CertificateTemplate,
    chance: f64,
    failed: Option<(u32, Timestamp)>,
    now: Timestamp,
) -> RotationDecision {
    let fits = current.filter(|h| h.matches(template) && h.is_valid(now));
    let due = fits.map_or(now, |h| h.renewal(chance));
    let may = failed.map_or(now, |(times, at)| at + pause(times));
    match due.max(may).duration_since(now) {
        left if left.is_positive() => RotationDecision::Wait(left),
        _ => RotationDecision::Request,
    }
}

/// The wait after this many failures.
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

    fn current(template: &CertificateTemplate, from: i64, obtained: i64, until: i64) -> CurrentCertificate {
        CurrentCertificate {
            common_name: template.common_name.clone(),
            dns_names: template.dns_names.clone(),
            ip_addresses: template.ip_addresses.clone(),
            from: at(from),
            until: at(until),
            obtained: at(obtained),
        }
    }

    #[test]
    fn a_certificate_is_renewed_between_70_and_90_percent_of_its_time() {
        let template = client("n");
        let wait = |s| RotationDecision::Wait(SignedDuration::from_secs(s));
        let year = || Some(current(&template, 0, 0, 1000));
        let dated_back = || Some(current(&template, -300, 0, 60));
        for (what, current, chance, failed, now, expected) in [
            ("none", None, 0.0, None, 0, RotationDecision::Request),
            ("fresh", year(), 0.0, None, 0, wait(700)),
            ("fresh, late", year(), 1.0, None, 0, wait(900)),
            ("a moment before", year(), 0.5, None, 799, wait(1)),
            ("its moment", year(), 0.5, None, 800, RotationDecision::Request),
            ("expired", year(), 1.0, None, 1001, RotationDecision::Request),
            ("not yet begun", year(), 1.0, None, -1, RotationDecision::Request),
            ("dated back", dated_back(), 0.0, None, 0, wait(42)),
            (
                "dated back, late",
                dated_back(),
                1.0,
                None,
                54,
                RotationDecision::Request,
            ),
            ("failed once", year(), 0.0, Some((1, at(700))), 700, wait(1)),
            (
                "failed once, later",
                year(),
                0.0,
                Some((1, at(700))),
                701,
                RotationDecision::Request,
            ),
            ("failed thrice", None, 0.0, Some((3, at(10))), 10, wait(4)),
            ("failed often", None, 0.0, Some((99, at(10))), 10, wait(60)),
            ("failed, not due", year(), 0.0, Some((1, at(0))), 600, wait(100)),
            (
                "a chance that is none",
                year(),
                f64::NAN,
                None,
                0,
                RotationDecision::Request,
            ),
        ] {
            let found = decide_rotation(current.as_ref(), &template, chance, failed, at(now));
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn another_name_or_address_is_requested_at_once() {
        let addresses = |a: &[&str]| a.iter().map(|s| (*s).to_string()).collect::<Vec<_>>();
        let had = serving("n", &addresses(&["10.0.0.1", "10.0.0.2"]));
        let current = current(&had, 0, 0, 1000);
        for (template, asks) in [
            (
                serving("n", &addresses(&["10.0.0.2", "10.0.0.1", "10.0.0.1"])),
                false,
            ),
            (serving("n", &addresses(&["10.0.0.1"])), false),
            (serving("n", &addresses(&["10.0.0.3"])), true),
            (serving("m", &addresses(&["10.0.0.1"])), true),
            (client("n"), false),
            (client("m"), true),
        ] {
            let found = decide_rotation(Some(&current), &template, 0.0, None, at(1));
            assert_eq!(found == RotationDecision::Request, asks, "{template:?}");
        }
    }
}
