//! CertificateSigningRequest: its selectable fields.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::api_type::ApiType;

impl ApiType for CertificateSigningRequest {
    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.signerName"];

    fn field(&self, path: &str) -> String {
        match path {
            "spec.signerName" => self.spec.signer_name.clone(),
            _ => String::new(),
        }
    }
}
