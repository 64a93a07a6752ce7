//! SPDY/3 frames as bytes: what each begins with, and what a control frame carries.
//!
//! Nothing here waits or keeps state: a frame is read from and written to a buffer. Header blocks stay
//! compressed (`headers` opens them), data stays with the reader, which passes it on piece by piece.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Every frame begins with this many bytes.
pub(super) const HEAD_BYTES: usize = 8;

/// A frame's length has 24 bits.
pub(super) const MAX_LENGTH: usize = (1 << 24) - 1;

const VERSION: u16 = 3;
const CONTROL_BIT: u32 = 1 << 31;
const STREAM_ID: u32 = CONTROL_BIT - 1;

const FLAG_FIN: u8 = 0x01;
const FLAG_UNIDIRECTIONAL: u8 = 0x02;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// Why a stream is reset (RST_STREAM's status codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    ProtocolError,
    RefusedStream,
    Cancel,
    InternalError,
    /// A code of the protocol that only peers send.
    Other(u32),
}

impl Reset {
    pub(super) fn code(self) -> u32 {
        match self {
            Reset::ProtocolError => 1,
            Reset::RefusedStream => 3,
            Reset::Cancel => 5,
            Reset::InternalError => 6,
            Reset::Other(code) => code,
        }
    }

    pub(super) fn from_code(code: u32) -> Self {
        match code {
            1 => Reset::ProtocolError,
            3 => Reset::RefusedStream,
            5 => Reset::Cancel,
            6 => Reset::InternalError,
            other => Reset::Other(other),
        }
    }
}

/// What the peer sent is not SPDY/3.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("SPDY version {0}, expected 3")]
    Version(u16),
    #[error("control frame of type {kind} with {length} bytes, expected {expected}")]
    Length {
        kind: u16,
        length: usize,
        expected: &'static str,
    },
}

/// The first eight bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Data { stream: u32, fin: bool, length: usize },
    Control { kind: u16, flags: u8, length: usize },
}

impl Head {
    pub(super) fn parse(bytes: [u8; HEAD_BYTES]) -> Result<Self, Malformed> {
        let mut bytes = &bytes[..];
        let first = bytes.get_u32();
        let second = bytes.get_u32();
        let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
        if first & CONTROL_BIT == 0 {
            return Ok(Head::Data {
                stream: first,
                fin: flags & FLAG_FIN != 0,
                length,
            });
        }
        let version = ((first & STREAM_ID) >> 16) as u16;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        Ok(Head::Control {
            kind: (first & 0xffff) as u16,
            flags,
            length,
        })
    }
}

/// A control frame. `block` is a compressed header block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    SynStream {
        stream: u32,
        fin: bool,
        unidirectional: bool,
        block: Bytes,
    },
    SynReply {
        stream: u32,
        fin: bool,
        block: Bytes,
    },
    RstStream {
        stream: u32,
        reset: Reset,
    },
    Ping(u32),
    GoAway {
        last_stream: u32,
        status: u32,
    },
    Headers {
        stream: u32,
        fin: bool,
        block: Bytes,
    },
    /// SETTINGS, WINDOW_UPDATE and unknown frames are ignored.
    Ignored(u16),
}

impl Control {
    pub(super) fn parse(kind: u16, flags: u8, mut body: Bytes) -> Result<Self, Malformed> {
        let length = body.len();
        let need = |at_least: usize, exact: bool, expected: &'static str| {
            if length < at_least || (exact && length != at_least) {
                return Err(Malformed::Length {
                    kind,
                    length,
                    expected,
                });
            }
            Ok(())
        };
        let fin = flags & FLAG_FIN != 0;
        Ok(match kind {
            SYN_STREAM => {
                need(10, false, "at least 10")?;
                let stream = body.get_u32() & STREAM_ID;
                body.advance(6); // associated stream, priority, credential slot: of no use to us
                let unidirectional = flags & FLAG_UNIDIRECTIONAL != 0;
                Control::SynStream {
                    stream,
                    fin,
                    unidirectional,
                    block: body,
                }
            }
            SYN_REPLY => {
                need(4, false, "at least 4")?;
                Control::SynReply {
                    stream: body.get_u32() & STREAM_ID,
                    fin,
                    block: body,
                }
            }
            RST_STREAM => {
                need(8, true, "8")?;
                let stream = body.get_u32() & STREAM_ID;
                Control::RstStream {
                    stream,
                    reset: Reset::from_code(body.get_u32()),
                }
            }
            PING => {
                need(4, true, "4")?;
                Control::Ping(body.get_u32())
            }
            GOAWAY => {
                need(8, true, "8")?;
                let last_stream = body.get_u32() & STREAM_ID;
                Control::GoAway {
                    last_stream,
                    status: body.get_u32(),
                }
            }
            HEADERS => {
                need(4, false, "at least 4")?;
                Control::Headers {
                    stream: body.get_u32() & STREAM_ID,
                    fin,
                    block: body,
                }
            }
            SETTINGS | WINDOW_UPDATE => Control::Ignored(kind),
            unknown => Control::Ignored(unknown),
        })
    }

    /// Appends the frame. A header block is at most `headers::MAX_BLOCK_BYTES`, so every length fits 24 bits.
    pub(super) fn write(&self, out: &mut BytesMut) {
        let (kind, flags, length) = match self {
            Control::SynStream {
                fin,
                unidirectional,
                block,
                ..
            } => (
                SYN_STREAM,
                flag(*fin, FLAG_FIN) | flag(*unidirectional, FLAG_UNIDIRECTIONAL),
                10 + block.len(),
            ),
            Control::SynReply { fin, block, .. } => (SYN_REPLY, flag(*fin, FLAG_FIN), 4 + block.len()),
            Control::RstStream { .. } => (RST_STREAM, 0, 8),
            Control::Ping(_) => (PING, 0, 4),
            Control::GoAway { .. } => (GOAWAY, 0, 8),
            Control::Headers { fin, block, .. } => (HEADERS, flag(*fin, FLAG_FIN), 4 + block.len()),
            Control::Ignored(kind) => (*kind, 0, 0),
        };
        debug_assert!(length <= MAX_LENGTH);
        out.put_u32(CONTROL_BIT | u32::from(VERSION) << 16 | u32::from(kind));
        out.put_u32(u32::from(flags) << 24 | length as u32);
        match self {
            Control::SynStream { stream, block, .. } => {
                out.put_u32(*stream);
                out.put_bytes(0, 6);
                out.put_slice(block);
            }
            Control::SynReply { stream, block, .. } | Control::Headers { stream, block, .. } => {
                out.put_u32(*stream);
                out.put_slice(block);
            }
            Control::RstStream { stream, reset } => {
                out.put_u32(*stream);
                out.put_u32(reset.code());
            }
            Control::Ping(id) => out.put_u32(*id),
            Control::GoAway { last_stream, status } => {
                out.put_u32(*last_stream);
                out.put_u32(*status);
            }
            Control::Ignored(_) => {}
        }
    }
}

/// Appends what comes before a data frame's payload of `length` bytes, at most [`MAX_LENGTH`].
pub(super) fn write_data_head(out: &mut BytesMut, stream: u32, fin: bool, length: usize) {
    debug_assert!(length <= MAX_LENGTH);
    out.put_u32(stream & STREAM_ID);
    out.put_u32(u32::from(flag(fin, FLAG_FIN)) << 24 | length as u32);
}

fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: Bytes) -> Result<Control, Malformed> {
        let head = bytes.split_to(HEAD_BYTES);
        match Head::parse(head[..].try_into().unwrap())? {
            Head::Control { kind, flags, length } => {
                assert_eq!(length, bytes.len());
                Control::parse(kind, flags, bytes)
            }
            data => panic!("a control frame read as {data:?}"),
        }
    }

    #[test]
    fn control_frames_read_back_as_written() {
        let block = Bytes::from_static(b"block");
        for frame in [
            Control::SynStream {
                stream: 1,
                fin: false,
                unidirectional: false,
                block: block.clone(),
            },
            Control::SynStream {
                stream: 3,
                fin: true,
                unidirectional: true,
                block: block.clone(),
            },
            Control::SynReply {
                stream: 5,
                fin: false,
                block: block.clone(),
            },
            Control::Headers {
                stream: 7,
                fin: true,
                block,
            },
            Control::RstStream {
                stream: 9,
                reset: Reset::Cancel,
            },
            Control::RstStream {
                stream: 9,
                reset: Reset::Other(11),
            },
            Control::Ping(77),
            Control::GoAway {
                last_stream: 9,
                status: 0,
            },
        ] {
            let mut out = BytesMut::new();
            frame.write(&mut out);
            assert_eq!(read(out.freeze()), Ok(frame));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_draft() {
        let mut out = BytesMut::new();
        Control::Ping(1).write(&mut out);
        assert_eq!(&out[..], [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]);
        let mut out = BytesMut::new();
        write_data_head(&mut out, 3, true, 5);
        assert_eq!(&out[..], [0, 0, 0, 3, 1, 0, 0, 5]);
    }

    #[test]
    fn a_frame_of_another_version_or_length_is_rejected() {
        assert_eq!(
            Head::parse([0x80, 2, 0, 6, 0, 0, 0, 4]),
            Err(Malformed::Version(2))
        );
        for (kind, length) in [
            (SYN_STREAM, 9),
            (SYN_REPLY, 3),
            (RST_STREAM, 9),
            (PING, 5),
            (GOAWAY, 4),
            (HEADERS, 0),
        ] {
            let first_error = Control::parse(kind, 0, Bytes::from(vec![0; length]));
            assert!(
                matches!(first_error, Err(Malformed::Length { .. })),
                "type {kind}: {first_error:?}"
            );
        }
    }

    #[test]
    fn unknown_frames_are_ignored() {
        for kind in [SETTINGS, WINDOW_UPDATE, 99] {
            assert_eq!(
                Control::parse(kind, 0, Bytes::from_static(b"123")),
                Ok(Control::Ignored(kind))
            );
        }
    }
}
