//! Requests a certificate: a new key, a CertificateSigningRequest, and the wait until it is approved or denied.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::registry::Registered;
use knarr_apimachinery::Error;
use knarr_client::{Api, TypedApi, WatchEvent, WatchOptions};
use knarr_kubelet::certificates::CertificateTemplate;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};

use super::{FileError, Identity};

/// How long a request waits for its certificate before another is made, as kubelets wait.
const DECISION_LIMIT: Duration = Duration::from_secs(15 * 60);
/// After this time a warning is logged that the request may need manual approval.
const REMIND: Duration = Duration::from_secs(10);
/// Pause before a broken watch is restarted.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the key or the request cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the request cannot be sent: {}", .0.message())]
    Send(Error),
    #[error("the request {name} was {what}: {why}")]
    Denied {
        name: String,
        what: &'static str,
        why: String,
    },
    #[error("the request {0} was neither approved nor denied; `kubectl certificate approve {0}` approves it")]
    Undecided(String),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Makes a key and has it signed.
pub async fn ask(api: &dyn Api, template: &CertificateTemplate) -> Result<Identity, RequestError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let pem = pem(template, &key)?;
    let request = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("csr-".into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: template.signer.into(),
            usages: Some(template.usages.map(str::to_string).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let created = api.create_as(request).await.map_err(RequestError::Send)?;
    let name = created.metadata.name.clone().unwrap_or_default();
    tracing::info!(
        request = name,
        signer = template.signer,
        "requested a certificate"
    );
    let decided = tokio::time::timeout(DECISION_LIMIT, decision(api, &name)).await;
    let certificate_pem = decided.map_err(|_| RequestError::Undecided(name))??;
    Ok(Identity {
        certificate_pem,
        key_pem: key.serialize_pem(),
    })
}

fn pem(template: &CertificateTemplate, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, template.organization);
    subject.push(DnType::CommonName, template.common_name.as_str());
    params.distinguished_name = subject;
    for name in &template.dns_names {
        params
            .subject_alt_names
            .push(SanType::DnsName(name.as_str().try_into()?));
    }
    for address in &template.ip_addresses {
        // A name that is not an IP address cannot be requested as one.
        let address = address.parse().map_err(|_| rcgen::Error::InvalidNameType)?;
        params.subject_alt_names.push(SanType::IpAddress(address));
    }
    params.serialize_request(key)?.pem()
}

/// The certificate, once the request is decided.
async fn decision(api: &dyn Api, name: &str) -> Result<String, RequestError> {
    let mut reminder = Box::pin(tokio::time::sleep(REMIND));
    loop {
        let options = WatchOptions {
            field_selector: format!("metadata.name={name}"),
            ..WatchOptions::default()
        };
        let mut events = match api.watch(CertificateSigningRequest::kind_of(), options).await {
            Ok(events) => events,
            Err(e) if e.is_forbidden() => return Err(RequestError::Send(e)),
            Err(error) => {
                tracing::warn!(%error, request = name, "cannot watch the CertificateSigningRequest yet");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = &mut reminder => {
                    tracing::info!("waiting for the approval of {name}: `kubectl certificate approve {name}` gives it");
                    reminder.as_mut().reset(tokio::time::Instant::now() + DECISION_LIMIT);
                    continue;
                }
            };
            let object = match event {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => object,
                Some(Ok(WatchEvent::Deleted(_))) => return Err(denied(name, "deleted", "by another client")),
                Some(Ok(WatchEvent::Bookmark(_))) => continue,
                Some(Err(error)) => {
                    tracing::debug!(%error, request = name, "the watch of the request ended");
                    break;
                }
                None => break,
            };
            if let Some(request) = object.get::<CertificateSigningRequest>()
                && let Some(decided) = decided(request, name)
            {
                return decided;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn denied(name: &str, what: &'static str, why: &str) -> RequestError {
    RequestError::Denied {
        name: name.to_string(),
        what,
        why: why.to_string(),
    }
}

fn decided(request: &CertificateSigningRequest, name: &str) -> Option<Result<String, RequestError>> {
    let status = request.status.as_ref()?;
    for (type_, what) in [("Denied", "denied"), ("Failed", "not signed")] {
        let conditions = status.conditions.iter().flatten();
        if let Some(condition) = conditions
            .into_iter()
            .find(|c| c.type_ == type_ && c.status != "False")
        {
            let why = condition.message.as_deref().or(condition.reason.as_deref());
            return Some(Err(denied(name, what, why.unwrap_or("no reason was given"))));
        }
    }
    let certificate = status.certificate.as_ref().filter(|c| !c.0.is_empty())?;
    let text = String::from_utf8(certificate.0.clone());
    Some(text.map_err(|e| FileError::Unreadable(e.to_string()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_denial_counts_before_a_certificate() {
        let condition =
            |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "Because"});
        for (status, expected) in [
            (json!({}), None),
            (json!({"conditions": [condition("Approved", "True")]}), None),
            (
                json!({"conditions": [condition("Denied", "False")], "certificate": "YQ=="}),
                Some("a"),
            ),
            (
                json!({"conditions": [condition("Denied", "True")], "certificate": "YQ=="}),
                Some("the request r was denied: Because"),
            ),
            (
                json!({"conditions": [condition("Failed", "True")]}),
                Some("the request r was not signed: Because"),
            ),
        ] {
            let request: CertificateSigningRequest = serde_json::from_value(
                json!({"metadata": {}, "spec": {"request": "", "signerName": "s"}, "status": status}),
            )
            .unwrap();
            let found = decided(&request, "r").map(|d| d.unwrap_or_else(|e| e.to_string()));
            assert_eq!(found.as_deref(), expected, "{status}");
        }
    }
}
