//! Requests for X.509 certificates (PKCS #10) and what certificates are built from.
//!
//! There is one reader, [`CertificateRequest::decode`]. API validation, admission, the approvers and the signer all work
//! with the value that it returns, and a certificate is built from that value, never copied from the request. What the
//! value cannot represent exactly is rejected with a reason (SPEC A1).

pub mod bundle;
pub mod der;
mod error;
mod name;
mod request;
#[cfg(test)]
mod tests;

pub use error::{MAX_REQUEST_BYTES, RequestError};
pub use name::{AltName, AttributeType, StringType, Subject, SubjectAttribute, subject_alt_name};
pub use request::CertificateRequest;

/// The signer of client certificates for the API server.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The signer of kubelets' client certificates.
pub const KUBELET_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of kubelets' serving certificates.
pub const KUBELET_SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// The key of `spec.extra` under which the API server records where a request for a kubelet's serving certificate came from: an IP
/// address, or [`IN_PROCESS`]. Whatever the requester's own attributes say under this key is replaced.
pub const REMOTE_ADDRESS: &str = "certificates.knarr.io/remote-address";
/// The node in the API server's own process made the request.
pub const IN_PROCESS: &str = "in-process";
