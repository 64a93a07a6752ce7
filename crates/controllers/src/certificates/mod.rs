//! CertificateSigningRequests: a kubelet's request is approved if the kubelet is allowed to make it and it names that node only; approved
//! requests for Kubernetes' own signers are signed; old ones are deleted.
//!
//! Requests are parsed by [`CertificateRequest::decode`], as everywhere. Certificates are signed by the [`Authority`] of the
//! configuration: it has the keys and the randomness.

pub mod approver;
pub mod cleaner;
pub mod network_agent_approver;
pub mod serving_approver;
pub mod signer;

use std::error::Error;
use std::fmt::Debug;

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::jiff::Timestamp;
use knarr_api::certificates::{AltName, AttributeType, CertificateRequest};
use knarr_api::k8s_openapi;
use knarr_api::object::Shared;
use knarr_apimachinery::time::seconds;

use crate::controller::Context;

const NODES: &str = "system:nodes";
/// The group and the names of nodes' network agents, as in `knarr_client::Component::NetworkAgent`.
const NETWORK_AGENTS: &str = "system:knarr:network-agents";
const NETWORK_AGENT_PREFIX: &str = "system:knarr:network-agent:";

/// The CA that signs: a certificate of one is not accepted where that of another is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ca {
    /// Signs client certificates for the API server and kubelets.
    Client,
    /// Signs kubelets' serving certificates, which only the API server trusts.
    KubeletServing,
}

/// Why an [`Authority`] did not sign.
pub type SignError = Box<dyn Error + Send + Sync>;

/// Why a request is not one that its signer signs, worded as Kubernetes words it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("usages did not match [{expected}]")]
    Usages { expected: String },
    #[error("subject organization is not {0}")]
    Organization(&'static str),
    #[error("subject common name does not begin with system:node:")]
    NotANode,
    #[error("subject common name is not {expected}")]
    CommonName { expected: String },
    #[error("subject has an attribute {0}")]
    Attribute(String),
    #[error("{0} subjectAltNames are not allowed")]
    AltName(&'static str),
    #[error("DNS or IP subjectAltName is required")]
    NoHost,
    #[error("invalid usage for client certificate: {0}")]
    ClientUsage(String),
    #[error("missing required usage for client certificate: client auth")]
    NoClientAuth,
}

/// Signs requests and reads certificates.
pub trait Authority: Debug + Send + Sync {
    /// A PEM certificate of this CA with these usages and at most this validity.
    fn sign(
        &self,
        ca: Ca,
        request: &CertificateRequest,
        usages: &[String],
        seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, SignError>;

    /// When a PEM certificate expires.
    fn expires(&self, certificate: &[u8]) -> Option<Timestamp>;
}

/// The request of the key; `None` if it was deleted, or if an action on it has just failed.
fn request(context: &Context<'_>) -> Option<Shared<CertificateSigningRequest>> {
    let found = context.view.get_as("", &context.key.name);
    found.filter(|_| context.failure.is_none())
}

/// Whether a condition of this type is true.
fn has_condition(csr: &CertificateSigningRequest, type_: &str) -> bool {
    let conditions = csr.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|c| c.type_ == type_ && c.status != "False")
}

fn certificate(csr: &CertificateSigningRequest) -> Option<&[u8]> {
    let bytes = csr.status.as_ref()?.certificate.as_ref()?;
    (!bytes.0.is_empty()).then_some(&*bytes.0)
}

/// Whether a request for this signer is pending.
fn is_pending(csr: &CertificateSigningRequest, signer: &str) -> bool {
    let decided =
        certificate(csr).is_some() || has_condition(csr, "Approved") || has_condition(csr, "Denied");
    !decided && csr.spec.signer_name == signer
}

/// The request with the condition Approved.
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

/// Checks that the usages are these, with or without `key encipherment`, which RSA keys need.
fn check_usages(found: &[String], with: &str) -> Result<(), InvalidRequest> {
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_unstable();
    found.dedup();
    let mut all = [with, "digital signature", "key encipherment"];
    all.sort_unstable();
    let without: Vec<&str> = all.into_iter().filter(|u| *u != "key encipherment").collect();
    if found == all || found == without {
        return Ok(());
    }
    Err(InvalidRequest::Usages {
        expected: all.join(" "),
    })
}

/// Checks what both certificates of a kubelet have.
fn check_node_subject(request: &CertificateRequest) -> Result<(), InvalidRequest> {
    if !request.organizations().eq([NODES]) {
        return Err(InvalidRequest::Organization(NODES));
    }
    has_no_other_attribute(request)
}

/// Checks that the subject consists of a common name and organizations only.
fn has_no_other_attribute(request: &CertificateRequest) -> Result<(), InvalidRequest> {
    let other = request
        .subject()
        .attributes()
        .iter()
        .find(|a| !matches!(a.kind, AttributeType::CommonName | AttributeType::Organization));
    if let Some(other) = other {
        return Err(InvalidRequest::Attribute(other.kind.short_name().to_string()));
    }
    Ok(())
}

fn is_named_as_node(request: &CertificateRequest) -> Result<(), InvalidRequest> {
    let name = request.common_name().strip_prefix("system:node:");
    if name.is_none_or(str::is_empty) {
        return Err(InvalidRequest::NotANode);
    }
    Ok(())
}

/// Kubernetes' name for the kind of an alternative name.
fn alt_name_kind(name: &AltName) -> &'static str {
    match name {
        AltName::Dns(_) => "DNS",
        AltName::Email(_) => "Email",
        AltName::Ip(_) => "IP",
        AltName::Uri(_) => "URI",
    }
}

fn kubelet_client(request: &CertificateRequest, usages: &[String]) -> Result<(), InvalidRequest> {
    check_node_subject(request)?;
    if let Some(name) = request.alt_names().first() {
        return Err(InvalidRequest::AltName(alt_name_kind(name)));
    }
    is_named_as_node(request)?;
    check_usages(usages, "client auth")
}

/// Checks a node's request for its network agent: a client certificate whose common name ends with the node's name.
fn network_agent_client(
    request: &CertificateRequest,
    usages: &[String],
    node: &str,
) -> Result<(), InvalidRequest> {
    if !request.organizations().eq([NETWORK_AGENTS]) {
        return Err(InvalidRequest::Organization(NETWORK_AGENTS));
    }
    if request.common_name().strip_prefix(NETWORK_AGENT_PREFIX) != Some(node) {
        return Err(InvalidRequest::CommonName {
            expected: format!("{NETWORK_AGENT_PREFIX}{node}"),
        });
    }
    has_no_other_attribute(request)?;
    if let Some(name) = request.alt_names().first() {
        return Err(InvalidRequest::AltName(alt_name_kind(name)));
    }
    check_usages(usages, "client auth")
}

fn kubelet_serving(request: &CertificateRequest, usages: &[String]) -> Result<(), InvalidRequest> {
    check_node_subject(request)?;
    let names = request.alt_names();
    let is_host = |name: &&AltName| matches!(name, AltName::Dns(_) | AltName::Ip(_));
    if !names.iter().any(|name| is_host(&name)) {
        return Err(InvalidRequest::NoHost);
    }
    if let Some(other) = names.iter().find(|name| !is_host(name)) {
        return Err(InvalidRequest::AltName(alt_name_kind(other)));
    }
    check_usages(usages, "server auth")?;
    is_named_as_node(request)
}

fn client(usages: &[String]) -> Result<(), InvalidRequest> {
    const ALLOWED: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|u| !ALLOWED.contains(&u.as_str())) {
        return Err(InvalidRequest::ClientUsage(other.clone()));
    }
    if !usages.iter().any(|u| u == "client auth") {
        return Err(InvalidRequest::NoClientAuth);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    use der::asn1::ObjectIdentifier;
    use der::{Encode, Tag};
    use knarr_api::certificates::der::{bit_string, context, element, sequence};
    use knarr_api::certificates::subject_alt_name;
    use rcgen::{KeyPair, PublicKeyData, SigningKey};

    /// Certificates are JSON here: `{"ca": …, "subject": …, "ends": seconds}`.
    #[derive(Debug)]
    pub struct Fake;

    impl Authority for Fake {
        fn sign(
            &self,
            ca: Ca,
            request: &CertificateRequest,
            usages: &[String],
            seconds: Option<i32>,
            now: Timestamp,
        ) -> Result<String, SignError> {
            let ends = now.as_second() + i64::from(seconds.unwrap_or(3600));
            let subject = request.common_name();
            let ca = format!("{ca:?}");
            Ok(serde_json::json!({"ca": ca, "subject": subject, "ends": ends, "usages": usages}).to_string())
        }

        fn expires(&self, certificate: &[u8]) -> Option<Timestamp> {
            let value: serde_json::Value = serde_json::from_slice(certificate).ok()?;
            Timestamp::from_second(value["ends"].as_i64()?).ok()
        }
    }

    /// A PEM request for the certificate that this JSON describes.
    fn pem(requested: &serde_json::Value) -> Result<Vec<u8>, der::Error> {
        let list = |key: &str| {
            let items = requested[key].as_array().into_iter().flatten();
            items
                .filter_map(|v| v.as_str().map(str::to_string))
                .collect::<Vec<_>>()
        };
        let mut rdns = Vec::new();
        let names = list("o").into_iter().map(|o| ("2.5.4.10", o));
        let names = names.chain(list("ou").into_iter().map(|ou| ("2.5.4.11", ou)));
        let common = requested["cn"].as_str().map(|cn| ("2.5.4.3", cn.to_string()));
        for (oid, value) in names.chain(common) {
            let oid = ObjectIdentifier::new_unwrap(oid).to_der()?;
            let value = element(Tag::Utf8String, &[value.as_bytes()])?;
            rdns.extend(element(Tag::Set, &[&sequence(&[&oid, &value])?])?);
        }
        let mut alt_names: Vec<AltName> = list("dns").into_iter().map(AltName::Dns).collect();
        alt_names.extend(
            list("ip")
                .iter()
                .filter_map(|ip| Some(AltName::Ip(ip.parse().ok()?))),
        );
        alt_names.extend(list("email").into_iter().map(AltName::Email));
        alt_names.extend(list("uri").into_iter().map(AltName::Uri));
        let mut attributes = Vec::new();
        if !alt_names.is_empty() {
            let oid = |text| ObjectIdentifier::new_unwrap(text).to_der();
            let value = element(Tag::OctetString, &[&subject_alt_name(&alt_names)?])?;
            let extensions = sequence(&[&sequence(&[&oid("2.5.29.17")?, &value])?])?;
            let values = element(Tag::Set, &[&extensions])?;
            attributes = sequence(&[&oid("1.2.840.113549.1.9.14")?, &values])?;
        }
        let key = KeyPair::generate().map_err(|_| Tag::BitString.value_error())?;
        let info = sequence(&[
            &element(Tag::Integer, &[&[0]])?,
            &sequence(&[&rdns])?,
            &key.subject_public_key_info(),
            &element(context(0, true), &[&attributes])?,
        ])?;
        let signature = key.sign(&info).map_err(|_| Tag::BitString.value_error())?;
        let algorithm = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2").to_der()?;
        let request = sequence(&[&info, &sequence(&[&algorithm])?, &bit_string(&signature)?])?;
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(request);
        let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
        Ok(pem.into_bytes())
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
        csr.spec.request.0 = pem(&request).unwrap();
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
