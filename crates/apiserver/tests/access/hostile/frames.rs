//! HTTP/2 by hand: complete frames, and halves of them, that no client library would send.

use tokio::io::{AsyncRead, AsyncReadExt};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const PROTOCOL_ERROR: u32 = 1;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const COMPRESSION_ERROR: u32 = 9;
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// Largest payload that may be sent without agreement.
pub const PAYLOAD_MAX: usize = 16 * 1024;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The preface and settings: new streams have a window of so many bytes.
pub fn hello(window: u32) -> Vec<u8> {
    let initial_window_size = [&[0, 4], window.to_be_bytes().as_slice()].concat();
    [PREFACE, &frame(SETTINGS, 0, 0, &initial_window_size)].concat()
}

/// A literal HPACK string.
fn string(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match text.len() {
        n @ ..127 => out.push(n as u8),
        n => {
            out.push(127);
            let mut rest = n - 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            out.push(rest as u8);
        }
    }
    out.extend_from_slice(text);
    out
}

/// A header that is in neither table.
pub fn header(name: &str, value: &[u8]) -> Vec<u8> {
    [vec![0], string(name.as_bytes()), string(value)].concat()
}

/// The header fields of a request.
pub fn head(method: &str, path: &str, token: &str) -> Vec<u8> {
    [
        header(":method", method.as_bytes()),
        header(":scheme", b"https"),
        header(":path", path.as_bytes()),
        header(":authority", b"localhost"),
        header("authorization", format!("Bearer {token}").as_bytes()),
    ]
    .concat()
}

/// A header block in as many frames as necessary.
pub fn request(stream: u32, head: &[u8], flags: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let pieces = head.len().div_ceil(PAYLOAD_MAX).max(1);
    for (n, piece) in head.chunks(PAYLOAD_MAX).enumerate() {
        let (kind, first) = if n == 0 {
            (HEADERS, flags)
        } else {
            (CONTINUATION, 0)
        };
        let last = if n + 1 == pieces { END_HEADERS } else { 0 };
        out.extend(frame(kind, first | last, stream, piece));
    }
    out
}

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of a GOAWAY or RST_STREAM.
    pub fn error_code(&self) -> Option<u32> {
        let from = match self.kind {
            GOAWAY => 4,
            RST_STREAM => 0,
            _ => return None,
        };
        Some(u32::from_be_bytes(
            self.payload.get(from..from + 4)?.try_into().ok()?,
        ))
    }

    /// Whether the frame begins a response with this status.
    pub fn is_status(&self, code: u16) -> bool {
        // The first field: an entry of the static table, or its name and a literal, Huffman-coded or not.
        let indexed = match code {
            200 => &[0x88][..],
            400 => &[0x8c],
            404 => &[0x8d],
            500 => &[0x8e],
            _ => &[],
        };
        let digits = code.to_string();
        let plain = [&[0x48, digits.len() as u8], digits.as_bytes()].concat();
        let coded = huffman(&digits);
        let coded = [&[0x48, 0x80 | coded.len() as u8], coded.as_slice()].concat();
        self.kind == HEADERS
            && [indexed, &plain, &coded]
                .iter()
                .any(|start| !start.is_empty() && self.payload.starts_with(start))
    }
}

/// Digits in HPACK's Huffman code: 0 to 2 have five bits, the others six.
fn huffman(digits: &str) -> Vec<u8> {
    let mut bits = String::new();
    for digit in digits.bytes().map(|b| b - b'0') {
        match digit {
            0..=2 => bits += &format!("{digit:05b}"),
            _ => bits += &format!("{:06b}", 0x16 + digit),
        }
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    let byte = |eight: &[u8]| u8::from_str_radix(std::str::from_utf8(eight).unwrap(), 2).unwrap();
    bits.as_bytes().chunks(8).map(byte).collect()
}

/// The next frame; `None` when the connection is closed.
pub async fn next(stream: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind, flags, payload })
}
