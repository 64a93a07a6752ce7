//! SPDY/3 header blocks: name/value pairs, compressed with one zlib stream per direction of a connection.
//!
//! Every block of a connection must pass through here in the order of the wire, also those of rejected streams: a block
//! can only be inflated after all blocks before it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::DICTIONARY;

/// The largest header block, opened or packed: streams carry a handful of short headers. Keeps a small
/// block that opens to gigabytes from being opened.
pub(super) const MAX_BLOCK_BYTES: usize = 16 * 1024;

/// Names are lower case on the wire; lookups ignore case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        Headers(
            pairs
                .into_iter()
                .map(|(n, v)| (n.to_ascii_lowercase(), v.to_string()))
                .collect(),
        )
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("header block of more than {MAX_BLOCK_BYTES} bytes")]
    TooLarge,
    #[error("header block is not the zlib stream that SPDY/3 requires: {0}")]
    Zlib(String),
    #[error("header block ends in the middle of a header")]
    Truncated,
    #[error("header block holds text that is not UTF-8")]
    NotText,
}

/// The sending half.
pub(super) struct HeaderEncoder(Compress);

impl HeaderEncoder {
    pub(super) fn new() -> Result<Self, HeaderError> {
        let mut zlib = Compress::new(Compression::default(), true);
        zlib.set_dictionary(DICTIONARY)
            .map_err(|e| HeaderError::Zlib(e.to_string()))?;
        Ok(HeaderEncoder(zlib))
    }

    pub(super) fn pack(&mut self, headers: &Headers) -> Result<Bytes, HeaderError> {
        let mut plain = BytesMut::new();
        plain.put_u32(headers.0.len() as u32);
        for text in headers.0.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(text.len() as u32);
            plain.put_slice(text.as_bytes());
        }
        if plain.len() > MAX_BLOCK_BYTES {
            return Err(HeaderError::TooLarge);
        }
        let mut packed = Vec::with_capacity(plain.len() + 64);
        let mut rest = &plain[..];
        loop {
            let before = self.0.total_in();
            let status = self
                .0
                .compress_vec(rest, &mut packed, FlushCompress::Sync)
                .map_err(|e| HeaderError::Zlib(e.to_string()))?;
            rest = &rest[(self.0.total_in() - before) as usize..];
            // Unused output means that the flush is complete.
            if rest.is_empty() && packed.len() < packed.capacity() {
                return Ok(packed.into());
            }
            if status == Status::StreamEnd {
                return Err(HeaderError::Zlib("stream ended".into()));
            }
            packed.reserve(1024);
        }
    }
}

/// The receiving half.
pub(super) struct HeaderDecoder(Decompress);

impl HeaderDecoder {
    pub(super) fn new() -> Self {
        HeaderDecoder(Decompress::new(true))
    }

    pub(super) fn open(&mut self, block: &[u8]) -> Result<Headers, HeaderError> {
        let mut plain = Vec::with_capacity(1024);
        let mut rest = block;
        loop {
            let (in_before, out_before) = (self.0.total_in(), plain.len());
            let result = self.0.decompress_vec(rest, &mut plain, FlushDecompress::Sync);
            rest = &rest[(self.0.total_in() - in_before) as usize..];
            match result {
                Ok(Status::StreamEnd) => break,
                Ok(_) => {}
                Err(e) if e.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(DICTIONARY)
                        .map_err(|e| HeaderError::Zlib(e.to_string()))?;
                    continue;
                }
                Err(e) => return Err(HeaderError::Zlib(e.to_string())),
            }
            if plain.len() > MAX_BLOCK_BYTES {
                return Err(HeaderError::TooLarge);
            }
            if plain.len() == plain.capacity() {
                plain.reserve(1024);
                continue;
            }
            let stuck = plain.len() == out_before && self.0.total_in() == in_before;
            if rest.is_empty() || stuck {
                break;
            }
        }
        parse(plain.into())
    }
}

fn parse(mut plain: Bytes) -> Result<Headers, HeaderError> {
    let text = |plain: &mut Bytes| {
        let length = number(plain)?;
        if plain.remaining() < length {
            return Err(HeaderError::Truncated);
        }
        String::from_utf8(plain.split_to(length).into()).map_err(|_| HeaderError::NotText)
    };
    let count = number(&mut plain)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut plain)?;
        headers.push((name, text(&mut plain)?));
    }
    Ok(Headers(headers))
}

fn number(plain: &mut Bytes) -> Result<usize, HeaderError> {
    plain
        .try_get_u32()
        .map(|n| n as usize)
        .map_err(|_| HeaderError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_drafts() {
        let (mut a, mut b) = (1u32, 0u32);
        for byte in DICTIONARY {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!((DICTIONARY.len(), b << 16 | a), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn blocks_of_one_connection_open_in_order() {
        let (mut packer, mut opener) = (HeaderEncoder::new().unwrap(), HeaderDecoder::new());
        for n in 0..200 {
            let n = n.to_string();
            let headers = Headers::from_iter([("streamType", "stdin"), ("requestID", &n)]);
            let block = packer.pack(&headers).unwrap();
            let opened = opener.open(&block).unwrap();
            assert_eq!(opened, headers);
            assert_eq!(opened.get("streamtype"), Some("stdin"));
        }
        assert_eq!(
            opener.open(&packer.pack(&Headers::default()).unwrap()),
            Ok(Headers::default())
        );
    }

    #[test]
    fn a_large_block_is_read_and_one_over_the_limit_is_rejected() {
        let (mut packer, mut opener) = (HeaderEncoder::new().unwrap(), HeaderDecoder::new());
        let long: String = (0..MAX_BLOCK_BYTES - 100)
            .map(|n| char::from(b'a' + (n * n % 26) as u8))
            .collect();
        let headers = Headers::from_iter([("x", long.as_str())]);
        assert_eq!(opener.open(&packer.pack(&headers).unwrap()), Ok(headers));
        let longer = "a".repeat(MAX_BLOCK_BYTES);
        assert_eq!(
            packer.pack(&Headers::from_iter([("x", longer.as_str())])),
            Err(HeaderError::TooLarge)
        );
    }

    #[test]
    fn a_block_that_inflates_beyond_the_limit_is_rejected() {
        let mut zlib = Compress::new(Compression::best(), true);
        zlib.set_dictionary(DICTIONARY).unwrap();
        let mut bomb = Vec::with_capacity(1 << 20);
        zlib.compress_vec(&vec![0; 1 << 20], &mut bomb, FlushCompress::Sync)
            .unwrap();
        assert!(bomb.len() < 4096, "{}", bomb.len());
        assert_eq!(HeaderDecoder::new().open(&bomb), Err(HeaderError::TooLarge));
    }

    proptest::proptest! {
        #[test]
        fn no_block_makes_the_opener_panic(block: Vec<u8>) {
            let _ = HeaderDecoder::new().open(&block);
            let _ = parse(block.into());
        }
    }
}
