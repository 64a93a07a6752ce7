//! Bundles of certificate authorities, as fields named `caBundle` have them.

use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

const CERTIFICATE: &str = "CERTIFICATE";
const BEGIN: &[u8] = b"-----BEGIN ";

/// Why a PEM bundle has no certificate authority in it; `None` if it has one. As client-go's transport reads it: blocks of other
/// types, and certificates next to a good one that do not parse, are passed over.
pub fn unusable(bundle: &[u8]) -> Option<String> {
    let mut why = None;
    let mut certificates = 0;
    for block in Pem::iter_from_buffer(bundle) {
        let Ok(block) = block else { break };
        if block.label != CERTIFICATE {
            continue;
        }
        certificates += 1;
        match X509Certificate::from_der(&block.contents) {
            Ok(_) => return None,
            Err(error) => {
                why.get_or_insert_with(|| format!("failed to parse certificate: {error}"));
            }
        }
    }
    let has_blocks = bundle.windows(BEGIN.len()).any(|at| at == BEGIN);
    let why = why.unwrap_or_else(|| match has_blocks && certificates == 0 {
        true => "no valid certificate authority data seen".into(),
        false => "unable to parse bytes as PEM block".into(),
    });
    Some(format!("unable to load root certificates: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_usable_if_one_certificate_in_it_is() {
        let good = include_str!("../../../apiserver/tests/keys/ec.crt.pem");
        let broken = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n";
        for usable in [
            good.to_string(),
            format!("an authority:\n{good}"),
            format!("{broken}{key}{good}"),
        ] {
            assert_eq!(unusable(usable.as_bytes()), None, "{usable}");
        }
        for (bundle, why) in [
            (" \n", "unable to parse bytes as PEM block"),
            ("hello", "unable to parse bytes as PEM block"),
            (key, "no valid certificate authority data seen"),
            (broken, "failed to parse certificate: "),
        ] {
            let found = unusable(bundle.as_bytes()).unwrap_or_default();
            assert!(
                found.starts_with(&format!("unable to load root certificates: {why}")),
                "{bundle}: {found}"
            );
        }
    }
}
