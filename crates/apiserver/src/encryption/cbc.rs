//! AES in CBC mode (`aescbc`): a random initialization vector, and the value with PKCS#7 padding.
//!
//! Such a value is not authenticated. Kubernetes keeps the provider for existing configurations and stores, and so does
//! knarr; use `aesgcm` or `secretbox` for new ones.

use aes_gcm::aes::{Aes128, Aes192, Aes256};
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{
    BlockCipher, BlockDecryptMut, BlockEncryptMut, BlockSizeUser, InnerIvInit, KeyInit, consts::U16,
};
use cbc::{Decryptor, Encryptor};

/// The block size of AES, which is also the size of the initialization vector.
pub(super) const BLOCK_BYTES: usize = 16;

pub(super) enum AesCbc {
    Aes128(Box<Aes128>),
    Aes192(Box<Aes192>),
    Aes256(Box<Aes256>),
}

impl AesCbc {
    /// With a key of 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Option<Self> {
        Some(match key.len() {
            16 => AesCbc::Aes128(Box::new(Aes128::new_from_slice(key).ok()?)),
            24 => AesCbc::Aes192(Box::new(Aes192::new_from_slice(key).ok()?)),
            32 => AesCbc::Aes256(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }

    /// `first` (the initialization vector) must be unpredictable and never repeat.
    pub fn seal(&self, first: [u8; BLOCK_BYTES], value: &[u8]) -> Vec<u8> {
        let sealed = match self {
            AesCbc::Aes128(c) => encrypt(&**c, &first, value),
            AesCbc::Aes192(c) => encrypt(&**c, &first, value),
            AesCbc::Aes256(c) => encrypt(&**c, &first, value),
        };
        [&first, &sealed[..]].concat()
    }

    pub fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (first, sealed) = sealed.split_first_chunk::<BLOCK_BYTES>()?;
        match self {
            AesCbc::Aes128(c) => decrypt(&**c, first, sealed),
            AesCbc::Aes192(c) => decrypt(&**c, first, sealed),
            AesCbc::Aes256(c) => decrypt(&**c, first, sealed),
        }
    }
}

fn encrypt<C>(cipher: &C, first: &[u8; BLOCK_BYTES], value: &[u8]) -> Vec<u8>
where
    C: BlockEncryptMut + BlockCipher + BlockSizeUser<BlockSize = U16> + Clone,
{
    Encryptor::inner_iv_init(cipher.clone(), first.into()).encrypt_padded_vec_mut::<Pkcs7>(value)
}

fn decrypt<C>(cipher: &C, first: &[u8; BLOCK_BYTES], sealed: &[u8]) -> Option<Vec<u8>>
where
    C: BlockDecryptMut + BlockCipher + BlockSizeUser<BlockSize = U16> + Clone,
{
    Decryptor::inner_iv_init(cipher.clone(), first.into())
        .decrypt_padded_vec_mut::<Pkcs7>(sealed)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    }

    /// NIST SP 800-38A, F.2: the first block with each key length. The rest is padding.
    #[test]
    fn values_are_as_the_standard_has_them() {
        let first = hex("000102030405060708090a0b0c0d0e0f");
        let value = hex("6bc1bee22e409f96e93d7e117393172a");
        for (key, block) in [
            (
                "2b7e151628aed2a6abf7158809cf4f3c",
                "7649abac8119b246cee98e9b12e9197d",
            ),
            (
                "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
                "4f021db243bc633d7178183a9fa071e8",
            ),
            (
                "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
                "f58c4c04d6e5f1ba779eabfb5f7bfbd6",
            ),
        ] {
            let cipher = AesCbc::new(&hex(key)).unwrap();
            let sealed = cipher.seal(first.clone().try_into().unwrap(), &value);
            assert_eq!(sealed.len(), 3 * BLOCK_BYTES);
            assert_eq!(sealed[..BLOCK_BYTES], first);
            assert_eq!(sealed[BLOCK_BYTES..2 * BLOCK_BYTES], hex(block), "{key}");
            assert_eq!(cipher.open(&sealed).as_ref(), Some(&value), "{key}");
        }
    }

    #[test]
    fn values_of_every_length_come_back_and_halves_do_not() {
        let cipher = AesCbc::new(&[7; 32]).unwrap();
        for length in 0..50 {
            let value = vec![b'v'; length];
            let sealed = cipher.seal([9; BLOCK_BYTES], &value);
            assert_eq!(cipher.open(&sealed).as_ref(), Some(&value));
            assert_eq!(cipher.open(&sealed[..sealed.len() - 1]), None, "{length}");
            // Only the initialization vector.
            assert_eq!(cipher.open(&sealed[..BLOCK_BYTES]), None, "{length}");
        }
        assert!(AesCbc::new(&[0; 20]).is_none());
    }
}
