//! The DER encoding that token keys need: public keys as PKIX and private keys as PKCS#8.

pub const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const INTEGER: u8 = 0x02;

/// The content of the object identifier prime256v1.
pub const PRIME256V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// id-ecPublicKey, prime256v1.
pub const P256: [u8; 19] = [
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];
/// rsaEncryption, NULL.
pub const RSA: [u8; 13] = [
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

/// A public key as `SubjectPublicKeyInfo`: its algorithm, and its bits.
pub fn pkix(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let bits = wrap(BIT_STRING, &[&[0], key].concat());
    let algorithm = wrap(SEQUENCE, algorithm);
    wrap(SEQUENCE, &[algorithm, bits].concat())
}

/// A private key as `PrivateKeyInfo` (PKCS#8, version 0).
pub fn pkcs8(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let version = wrap(INTEGER, &[0]);
    wrap(
        SEQUENCE,
        &[version, wrap(SEQUENCE, algorithm), wrap(OCTET_STRING, key)].concat(),
    )
}

pub fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    let bytes = length.to_be_bytes();
    let significant = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
    if length < 0x80 {
        out.extend(significant.iter().chain((length == 0).then_some(&0)));
    } else {
        // At most eight bytes of length.
        out.push(0x80 | u8::try_from(significant.len()).unwrap_or(8));
        out.extend(significant);
    }
    out.extend(content);
    out
}

pub fn unsigned(number: &[u8]) -> Vec<u8> {
    let negative = number.first().is_some_and(|b| b & 0x80 != 0);
    let padded = [if negative { &[0][..] } else { &[] }, number].concat();
    wrap(INTEGER, &padded)
}
