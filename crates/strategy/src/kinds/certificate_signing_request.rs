//! CertificateSigningRequest: approved through the `approval` subresource, signed through `status`. The request pipeline
//! fills in the requester (`spec.username`, `spec.groups` …).

use std::collections::BTreeSet;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::jiff::Timestamp;
use knarr_api::certificates::CertificateRequest;
use knarr_apimachinery::field::{ErrorList, Path};
use x509_parser::pem::Pem;

use super::checks::{Json, json, text};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

/// Domain of the built-in signers.
const OWN_DOMAIN: &str = "kubernetes.io/";
const MIN_EXPIRATION_SECONDS: i32 = 600;
const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

impl Strategy for CertificateSigningRequest {
    /// `ValidateCertificateRequestName` accepts every name.
    fn validate_name(_name: &str) -> Vec<String> {
        Vec::new()
    }

    fn set_defaults(&mut self) {
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(CertificateSigningRequestStatus::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        self.spec = old.spec.clone();
        match part {
            Part::Main => self.status = old.status.clone(),
            // The signer may not change the approval conditions.
            Part::Status => {
                for of in ["Approved", "Denied"] {
                    let before = conditions(old, of);
                    let after = conditions_mut(self, of);
                    // If a condition was added or removed, validation rejects the update.
                    if before.len() == after.len() {
                        after.into_iter().zip(before).for_each(|(a, b)| a.clone_from(b));
                    }
                }
            }
            // approval
            Part::Other(_) => {
                let conditions = self.status.take().and_then(|s| s.conditions);
                self.status = old.status.clone();
                self.status.get_or_insert_default().conditions = conditions;
            }
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        let read = CertificateRequest::decode(&self.spec.request.0);
        // A request that cannot be parsed here only because it is unsupported (such as an unknown key algorithm) may be accepted by
        // a signer that is not built in.
        if let Err(error) = read
            && (self.spec.signer_name.starts_with(OWN_DOMAIN) || !error.is_unsupported())
        {
            errors.invalid(
                &path.child("request"),
                // Go writes unset bytes as null.
                match self.spec.request.0.is_empty() {
                    true => Json("null".into()),
                    false => json(&self.spec.request),
                },
                error.to_string(),
            );
        }
        let usages = self.spec.usages.as_deref().unwrap_or(&[]);
        let at = path.child("usages");
        if usages.is_empty() {
            errors.required(&at, "");
        }
        let mut seen = BTreeSet::new();
        for (i, usage) in usages.iter().enumerate() {
            if !USAGES.contains(&usage.as_str()) {
                errors.not_supported_in_order(&at.index(i), usage, USAGES);
            }
            if !seen.insert(usage) {
                errors.duplicate(&at.index(i), usage);
            }
        }
        signer(&self.spec.signer_name, &path.child("signerName"), &mut errors);
        if let Some(seconds) = self.spec.expiration_seconds
            && seconds < MIN_EXPIRATION_SECONDS
        {
            errors.invalid(
                &path.child("expirationSeconds"),
                seconds,
                "may not specify a duration less than 600 seconds (10 minutes)",
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        let mut errors = self.validate();
        check_conditions(self, old, &mut errors);
        let path = Path::new("status").child("conditions");
        for of in ["Approved", "Denied", "Failed"] {
            if conditions(self, of).len() < conditions(old, of).len() {
                let detail = format!("updates may not remove a condition of type {of:?}");
                errors.forbidden(&path, detail);
            }
        }
        if !matches!(part, Part::Other(_)) {
            for of in ["Approved", "Denied"] {
                let (new, before) = (conditions(self, of), conditions(old, of));
                if new.len() > before.len() {
                    errors.forbidden(&path, format!("updates may not add a condition of type {of:?}"));
                }
            }
        }
        let (new, before) = (certificate(self), certificate(old));
        if new != before {
            let at = Path::new("status").child("certificate");
            if part != Part::Status {
                errors.forbidden(&at, "updates may not set certificate content");
            } else if !before.is_empty() {
                errors.forbidden(&at, "updates may not modify existing certificate content");
            }
            if let Some(detail) = certificate_error(new)
                && certificate_error(before).is_none()
            {
                errors.invalid(&at, "<certificate data>", detail);
            }
        }
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            table::AGE,
            Column::string("SignerName"),
            Column::string("Requestor"),
            Column::string("RequestedDuration"),
            Column::string("Condition"),
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let duration = self
            .spec
            .expiration_seconds
            .map(|s| table::human_duration(s.into()));
        vec![
            table::name(&self.metadata),
            table::created(&self.metadata, now),
            table::or(Some(&self.spec.signer_name), "<none>").into(),
            text(&self.spec.username).into(),
            table::or(duration.as_deref(), "<none>").into(),
            shown_condition(&self.status.clone().unwrap_or_default()).into(),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}

fn shown_condition(status: &CertificateSigningRequestStatus) -> String {
    let has = |of: &str| status.conditions.iter().flatten().any(|c| c.type_ == of);
    let mut shown = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_string();
    if has("Failed") {
        shown += ",Failed";
    }
    if status.certificate.as_ref().is_some_and(|c| !c.0.is_empty()) {
        shown += ",Issued";
    }
    shown
}

/// Checks a signer name, which has the form `domain/path`.
fn signer(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name == "kubernetes.io/legacy-unknown" {
        return errors.invalid(
            path,
            name,
            "the legacy signerName is not allowed via this API version",
        );
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        return errors.invalid(
            path,
            name,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
    };
    let messages = knarr_apimachinery::names::dns1123_subdomain(domain);
    for message in &messages {
        errors.invalid(path, domain, format!("validating label {domain:?}: {message}"));
    }
    if !domain.contains('.') {
        errors.invalid(
            path,
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    for message in knarr_apimachinery::names::dns1123_subdomain(rest) {
        errors.invalid(path, rest, format!("validating label {rest:?}: {message}"));
    }
}

/// The conditions of one type.
fn conditions<'a>(
    of: &'a CertificateSigningRequest,
    type_: &str,
) -> Vec<&'a CertificateSigningRequestCondition> {
    let all = of.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.filter(|c| c.type_ == type_).collect()
}

fn conditions_mut<'a>(
    of: &'a mut CertificateSigningRequest,
    type_: &str,
) -> Vec<&'a mut CertificateSigningRequestCondition> {
    let all = of
        .status
        .iter_mut()
        .flat_map(|s| s.conditions.iter_mut().flatten());
    all.filter(|c| c.type_ == type_).collect()
}

fn certificate(of: &CertificateSigningRequest) -> &[u8] {
    let certificate = of.status.as_ref().and_then(|s| s.certificate.as_ref());
    certificate.map_or(&[], |c| &c.0)
}

/// The error of `status.certificate` if it is not a PEM bundle of certificates; an empty one is valid.
fn certificate_error(pem: &[u8]) -> Option<String> {
    if pem.is_empty() {
        return None;
    }
    let mut blocks = 0;
    for block in Pem::iter_from_buffer(pem) {
        let Ok(block) = block else { break };
        if block.label != "CERTIFICATE" {
            return Some(format!(
                "only CERTIFICATE PEM blocks are allowed, found {:?}",
                block.label
            ));
        }
        blocks += 1;
        if let Err(detail) = block.parse_x509() {
            return Some(detail.to_string());
        }
    }
    (blocks == 0).then(|| "must contain at least one CERTIFICATE PEM block".into())
}

/// Checks the conditions; an error that the old object has already is tolerated.
fn check_conditions(
    new: &CertificateSigningRequest,
    old: &CertificateSigningRequest,
    errors: &mut ErrorList,
) {
    let path = Path::new("status").child("conditions");
    let all = |of: &CertificateSigningRequest| -> Vec<CertificateSigningRequestCondition> {
        let conditions = of.status.iter().flat_map(|s| s.conditions.iter().flatten());
        conditions.cloned().collect()
    };
    let before = all(old);
    let had_empty = before.iter().any(|c| c.type_.is_empty());
    let had_both = ["Approved", "Denied"]
        .iter()
        .all(|of| !conditions(old, of).is_empty());
    let types: BTreeSet<&str> = before.iter().map(|c| c.type_.as_str()).collect();
    let had_twice = types.len() < before.len();
    let mut seen = BTreeSet::new();
    let conditions = all(new);
    for (i, condition) in conditions.iter().enumerate() {
        let (at, of) = (path.index(i), condition.type_.as_str());
        if of.is_empty() && !had_empty {
            errors.required(&at.child("type"), "");
        }
        let true_if_set = matches!(of, "Approved" | "Denied" | "Failed");
        match condition.status.as_str() {
            "" => errors.required(&at.child("status"), ""),
            "True" => {}
            status if true_if_set => {
                errors.not_supported_in_order(&at.child("status"), status, &["True"]);
            }
            "False" | "Unknown" => {}
            status => {
                errors.not_supported_in_order(&at.child("status"), status, &["False", "True", "Unknown"]);
            }
        }
        let opposite = match of {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(opposite) && !had_both {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.invalid(&path, of, detail);
        }
        if !seen.insert(of) && !had_twice {
            errors.duplicate(&at.child("type"), of);
        }
    }
}
