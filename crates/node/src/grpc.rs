//! gRPC calls with messages as bytes.
//!
//! tonic's code of a call, with its streams and buffers, is compiled for each pair of message types. With [`BytesCodec`] that is done
//! once for all of them; prost's encoder and decoder are what remains of each type.

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A request message, with its method and its answer type.
pub trait Call: Message + Default + 'static {
    const PATH: &'static str;
    type Answer: Message + Default + 'static;
}

/// Declares which method takes a request, and its answer.
macro_rules! methods {
    ($($request:ty, $path:literal => $answer:ty;)*) => {$(
        impl $crate::grpc::Call for $request {
            const PATH: &'static str = $path;
            type Answer = $answer;
        }
    )*};
}
pub(crate) use methods;

/// Reads a message; the error is the one that tonic's codec for prost has.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}

/// Passes messages on as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = BytesCodec;
    type Decoder = BytesCodec;

    fn encoder(&mut self) -> BytesCodec {
        BytesCodec
    }

    fn decoder(&mut self) -> BytesCodec {
        BytesCodec
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(message.len());
        out.put_slice(&message);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = message.remaining();
        Ok(Some(message.copy_to_bytes(length)))
    }
}
