//! Makes gRPC clients written in Go acceptable: those that dial a unix socket by its path send the path,
//! percent-encoded, as `:authority` (`%2Fvar%2Flib%2F…`), which our HTTP/2 server rejects as malformed. Nothing here
//! uses the authority, so each `%` in it is read as `-`: in HPACK's code both have six bits (RFC 7541, appendix B), and
//! nothing else changes.
//!
//! Only the first fragment of a header block is read, and what cannot be read is passed on as it is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE_BYTES: usize = 24;
const FRAME_BYTES: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// A frame larger than this is passed on unread: the server does not allow it.
const HEADERS_BYTES: usize = 16 * 1024;
const READ_BYTES: usize = 8 * 1024;
/// `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;

/// A connection with rewritten authorities.
pub struct ReadableAuthority<S> {
    inner: S,
    /// Received, and not known to be whole.
    pending: Vec<u8>,
    /// To be read from here.
    out: Vec<u8>,
    /// Of what follows, this much is passed on as it is.
    passed: usize,
    is_finished: bool,
}

impl<S> ReadableAuthority<S> {
    pub fn new(inner: S) -> Self {
        ReadableAuthority {
            inner,
            pending: Vec::new(),
            out: Vec::new(),
            passed: PREFACE_BYTES,
            is_finished: false,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        loop {
            let passed = self.passed.min(self.pending.len());
            self.out.extend(self.pending.drain(..passed));
            self.passed -= passed;
            let Some(&[a, b, c, kind, flags, ..]) = self.pending.get(..FRAME_BYTES) else {
                return;
            };
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if kind != HEADERS || length > HEADERS_BYTES {
                self.passed = FRAME_BYTES + length;
                continue;
            }
            let Some(payload) = self.pending.get_mut(FRAME_BYTES..FRAME_BYTES + length) else {
                return;
            };
            rewrite(payload, flags);
            self.passed = FRAME_BYTES + length;
        }
    }
}

/// The payload of a HEADERS frame. None of it is read beyond what cannot be read.
fn rewrite(payload: &mut [u8], flags: u8) -> Option<()> {
    let padding = if flags & PADDED != 0 {
        usize::from(*payload.first()?)
    } else {
        0
    };
    let begin = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().checked_sub(padding)?;
    let block = payload.get_mut(begin..end)?;
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            // A new size of the table.
            0x20..0x40 => (5, false),
            _ => (4, true),
        };
        let name = integer(block, &mut at, prefix)?;
        if !is_literal {
            continue;
        }
        if name == 0 {
            string(block, &mut at)?;
        }
        let (value, is_huffman) = string(block, &mut at)?;
        if name == AUTHORITY {
            let value = block.get_mut(value)?;
            match is_huffman {
                true => rewrite_huffman(value),
                false => value.iter_mut().filter(|b| **b == b'%').for_each(|b| *b = b'-'),
            }
        }
    }
    Some(())
}

fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let most = (1usize << prefix) - 1;
    let mut value = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = *block.get(*at)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn string(block: &[u8], at: &mut usize) -> Option<(std::ops::Range<usize>, bool)> {
    let is_huffman = *block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let range = *at..at.checked_add(length)?;
    *at = range.end;
    (range.end <= block.len()).then_some((range, is_huffman))
}

/// Walks symbol by symbol: the length of a code follows from its first bits. No path has symbols of more than 8 bits.
fn rewrite_huffman(value: &mut [u8]) {
    const PERCENT: usize = 0b01_0101;
    let bits = value.len() * 8;
    let mut at = 0;
    let read = |value: &[u8], at: usize, count: usize| {
        let bit = |i: usize| usize::from(value[i / 8] >> (7 - i % 8) & 1);
        (at + count <= bits).then(|| (at..at + count).fold(0, |code, i| code << 1 | bit(i)))
    };
    loop {
        if matches!(read(value, at, 5), Some(0..=9)) {
            at += 5;
            continue;
        }
        if let Some(code @ 20..=45) = read(value, at, 6) {
            if code == PERCENT {
                // 010101 becomes 010110, which is `-`.
                for i in [at + 4, at + 5] {
                    value[i / 8] ^= 1 << (7 - i % 8);
                }
            }
            at += 6;
            continue;
        }
        match (read(value, at, 7), read(value, at, 8)) {
            (Some(92..=123), _) => at += 7,
            (_, Some(248..=253)) => at += 8,
            _ => return,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadableAuthority<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.out.is_empty() && !self.is_finished {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                self.is_finished = true;
                self.out = std::mem::take(&mut self.pending);
            } else {
                self.take(read.filled());
            }
        }
        let count = buf.remaining().min(self.out.len());
        buf.put_slice(&self.out[..count]);
        self.out.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadableAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, 4, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    /// What comes out, however the bytes arrive.
    fn read(sent: &[u8], at_a_time: usize) -> Vec<u8> {
        let mut connection = ReadableAuthority::new(());
        sent.chunks(at_a_time).for_each(|bytes| connection.take(bytes));
        assert!(connection.pending.is_empty());
        connection.out
    }

    #[test]
    fn l4_a_socket_path_in_the_authority_is_read_as_a_name() {
        // `%2Fa` in the code: 010101 00010 1100010 00011, then ones.
        let huffman = [0b0101_0100, 0b0101_1000, 0b1000_0111];
        let read_as = [0b0101_1000, 0b0101_1000, 0b1000_0111];
        for (value, want) in [
            ([&[0x83][..], &huffman].concat(), [&[0x83][..], &read_as].concat()),
            (b"\x04%2Fa".to_vec(), b"\x04-2Fa".to_vec()),
        ] {
            // :method POST, :authority, and a literal of another name that is left alone.
            let block = |value: &[u8]| [&[0x83, 0x41], value, b"\x40\x01x\x01%"].concat();
            let sent = |value: &[u8]| {
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
                [
                    preface,
                    frame(4, b"%"),
                    frame(1, &block(value)),
                    frame(0, b"\x41\x01%"),
                ]
                .concat()
            };
            for at_a_time in [1, 7, 1000] {
                assert_eq!(read(&sent(&value), at_a_time), sent(&want));
            }
        }
    }

    #[test]
    fn l4_what_cannot_be_read_is_passed_on() {
        for payload in [
            &b""[..],
            b"\xff\xff\xff\xff\xff",
            b"\x41\x7f",
            b"\x41\x83\xff\xff\xff",
            b"\x41\x05%",
        ] {
            let mut sent = vec![b' '; PREFACE_BYTES];
            sent.extend(frame(1, payload));
            assert_eq!(read(&sent, 3), sent);
        }
    }
}
