//! Certificates in PEM.

/// Characters in a line of PEM.
const PEM_LINE: usize = 64;

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(…)")
    }
}

/// A certificate's DER as PEM.
pub fn pem(certificate_der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate_der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}
