//! CertificateSigningRequests: kubelets' are approved when they may ask and ask for what is theirs, approved ones of Kubernetes' own signers are
//! signed, old ones are removed.
//!
//! Certificates are read and signed by an [`Authority`] that is handed in: it has the key and the chance.

pub mod approver;
pub mod cleaner;
pub mod serving_approver;
pub mod signer;

use std::fmt::Debug;

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::object::Shared;
use knarr_api::time::seconds;

use crate::controller::Context;

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// What a request for a certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<String>,
    pub email_addresses: Vec<String>,
    pub uris: Vec<String>,
}

/// Reads requests and certificates, and signs.
pub trait Authority: Debug + Send + Sync {
    /// What a PEM request says; the error says what is wrong with it.
    fn read(&self, request: &[u8]) -> Result<Requested, String>;

    /// A PEM certificate for these usages and at most this time.
    fn sign(
        &self,
        request: &[u8],
        usages: &[String],
        seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, String>;

    /// When a PEM certificate ends.
    fn ends(&self, certificate: &[u8]) -> Option<Timestamp>;
}

/// The request that a controller is asked about; none once it is gone, or if what was decided on it failed.
fn request(context: &Context<'_>) -> Option<Shared<CertificateSigningRequest>> {
    let found = context.view.get_as("", &context.key.name);
    found.filter(|_| context.failure.is_none())
}

/// Whether a condition of this type is true.
fn has(csr: &CertificateSigningRequest, type_: &str) -> bool {
    let conditions = csr.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|c| c.type_ == type_ && c.status != "False")
}

fn certificate(csr: &CertificateSigningRequest) -> Option<&[u8]> {
    let bytes = csr.status.as_ref()?.certificate.as_ref()?;
    (!bytes.0.is_empty()).then_some(&*bytes.0)
}

/// Whether a request of this signer waits for somebody to decide.
fn is_open(csr: &CertificateSigningRequest, signer: &str) -> bool {
    let decided = certificate(csr).is_some() || has(csr, "Approved") || has(csr, "Denied");
    !decided && csr.spec.signer_name == signer
}

/// The request with the word that it is approved.
fn approved(csr: &CertificateSigningRequest, message: &str, now: Timestamp) -> CertificateSigningRequest {
    let mut new = csr.clone();
    let conditions = &mut new.status.get_or_insert_default().conditions;
    conditions
        .get_or_insert_default()
        .push(CertificateSigningRequestCondition {
            type_: "Approved".into(),
            status: "True".into(),
            reason: Some("AutoApproved".into()),
            message: Some(message.into()),
            last_update_time: Some(seconds(now)),
            last_transition_time: Some(seconds(now)),
        });
    new
}

/// The usages are these, with or without `key encipherment`, which RSA keys need.
fn usages_are(found: &[String], with: &str) -> Result<(), String> {
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_unstable();
    found.dedup();
    let mut all = [with, "digital signature", "key encipherment"];
    all.sort_unstable();
    let without: Vec<&str> = all.into_iter().filter(|u| *u != "key encipherment").collect();
    if found == all || found == without {
        return Ok(());
    }
    Err(format!("usages did not match [{}]", all.join(" ")))
}

/// What both certificates of a kubelet have.
fn of_a_node(asked: &Requested) -> Result<(), String> {
    if asked.organizations != ["system:nodes"] {
        return Err("subject organization is not system:nodes".into());
    }
    Ok(())
}

const NOT_A_NODE: &str = "subject common name does not begin with system:node:";

fn kubelet_client(asked: &Requested, usages: &[String]) -> Result<(), String> {
    of_a_node(asked)?;
    for (what, found) in [
        ("DNS", &asked.dns_names),
        ("Email", &asked.email_addresses),
        ("IP", &asked.ip_addresses),
        ("URI", &asked.uris),
    ] {
        if !found.is_empty() {
            return Err(format!("{what} subjectAltNames are not allowed"));
        }
    }
    if !asked.common_name.starts_with("system:node:") {
        return Err(NOT_A_NODE.into());
    }
    usages_are(usages, "client auth")
}

fn kubelet_serving(asked: &Requested, usages: &[String]) -> Result<(), String> {
    of_a_node(asked)?;
    if asked.dns_names.is_empty() && asked.ip_addresses.is_empty() {
        return Err("DNS or IP subjectAltName is required".into());
    }
    for (what, found) in [("Email", &asked.email_addresses), ("URI", &asked.uris)] {
        if !found.is_empty() {
            return Err(format!("{what} subjectAltNames are not allowed"));
        }
    }
    usages_are(usages, "server auth")?;
    if !asked.common_name.starts_with("system:node:") {
        return Err(NOT_A_NODE.into());
    }
    Ok(())
}

fn client(usages: &[String]) -> Result<(), String> {
    const ALLOWED: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|u| !ALLOWED.contains(&u.as_str())) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    if !usages.iter().any(|u| u == "client auth") {
        return Err("missing required usage for client certificate: client auth".into());
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    /// Requests and certificates are JSON here: names, and `{"ends": seconds}`.
    #[derive(Debug)]
    pub struct Fake;

    impl Authority for Fake {
        fn read(&self, request: &[u8]) -> Result<Requested, String> {
            let value: serde_json::Value = serde_json::from_slice(request).map_err(|e| e.to_string())?;
            let list = |key: &str| {
                let items = value[key].as_array().into_iter().flatten();
                items.filter_map(|v| v.as_str().map(str::to_string)).collect()
            };
            Ok(Requested {
                common_name: value["cn"].as_str().unwrap_or("").into(),
                organizations: list("o"),
                dns_names: list("dns"),
                ip_addresses: list("ip"),
                email_addresses: list("email"),
                uris: list("uri"),
            })
        }

        fn sign(
            &self,
            _: &[u8],
            usages: &[String],
            seconds: Option<i32>,
            now: Timestamp,
        ) -> Result<String, String> {
            let ends = now.as_second() + i64::from(seconds.unwrap_or(3600));
            Ok(serde_json::json!({"ends": ends, "usages": usages}).to_string())
        }

        fn ends(&self, certificate: &[u8]) -> Option<Timestamp> {
            let value: serde_json::Value = serde_json::from_slice(certificate).ok()?;
            Timestamp::from_second(value["ends"].as_i64()?).ok()
        }
    }

    pub fn csr(
        name: &str,
        signer: &str,
        usages: &[&str],
        request: serde_json::Value,
    ) -> CertificateSigningRequest {
        let mut csr: CertificateSigningRequest = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name},
            "spec": {"request": "", "signerName": signer, "usages": usages,
                "username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers"]},
        }))
        .unwrap();
        csr.spec.request.0 = request.to_string().into_bytes();
        csr
    }

    pub fn decide(csr: &mut CertificateSigningRequest, type_: &str, at: Timestamp) {
        let condition = k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition {
            type_: type_.into(),
            status: "True".into(),
            last_update_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at)),
            ..Default::default()
        };
        let status = csr.status.get_or_insert_default();
        status.conditions.get_or_insert_default().push(condition);
    }
}
