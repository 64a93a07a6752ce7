//! Why a certificate request is rejected.

/// The longest request in PEM. One with an RSA key of 16384 bits has 6 KiB; the rest is for names.
pub const MAX_REQUEST_BYTES: usize = 32 * 1024;

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    // As kube-apiserver words it.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
    #[error("must be one PEM block with nothing but whitespace around it and no headers")]
    NotOneBlock,
    #[error("must have at most {MAX_REQUEST_BYTES} bytes")]
    TooLong,
    #[error("is not a certificate request in DER: {0}")]
    NotDer(der::Error),
    #[error("has an unknown version")]
    Version,
    #[error("the signature is not that of the request's key")]
    Signature,
    #[error("the signature algorithm is not supported")]
    SignatureAlgorithm,
    #[error("several extension requests, or one extension requested several times")]
    DuplicateExtension,
    #[error("the subject has a relative distinguished name that is not exactly one attribute")]
    MultiValuedName,
    #[error("the subject has several common names")]
    SeveralCommonNames,
    #[error("the subject has an attribute {0}, which cannot be signed")]
    UnknownAttribute(String),
    #[error("the subject's {attribute} is a {found}; expected UTF8String, PrintableString or IA5String")]
    StringType { attribute: &'static str, found: String },
    #[error("the subject's {0} is empty, not valid UTF-8 or has control characters")]
    AttributeText(&'static str),
    #[error("the list of subject alternative names is empty")]
    EmptyAltNames,
    #[error("a subject alternative name is not a DNS name, IP address, email address or URI")]
    AltNameType,
    #[error("a subject alternative name is not visible ASCII")]
    AltNameText,
    #[error(
        "a subject alternative name is not an IPv4 or IPv6 address, or is an IPv4 address mapped to IPv6"
    )]
    AltNameAddress,
    #[error("requests the certificate of a CA")]
    Ca,
    #[error("requests the extension {0}, which cannot be signed")]
    UnknownExtension(String),
}

impl RequestError {
    /// Whether the request may be well-formed but asks for what knarr's signers cannot sign. Other signers may.
    pub fn is_unsupported(&self) -> bool {
        use RequestError as E;
        match self {
            E::NotPem
            | E::NotOneBlock
            | E::TooLong
            | E::NotDer(_)
            | E::Version
            | E::Signature
            | E::DuplicateExtension
            | E::SeveralCommonNames => false,
            E::SignatureAlgorithm
            | E::MultiValuedName
            | E::UnknownAttribute(_)
            | E::StringType { .. }
            | E::AttributeText(_)
            | E::EmptyAltNames
            | E::AltNameType
            | E::AltNameText
            | E::AltNameAddress
            | E::Ca
            | E::UnknownExtension(_) => true,
        }
    }
}

impl From<der::Error> for RequestError {
    fn from(error: der::Error) -> Self {
        RequestError::NotDer(error)
    }
}
