//! How does one gRPC stream go? Frames out, the picker's answers in, and the status at its end.

use bytes::{Buf as _, Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use prost::Message as _;
use tonic::codegen::http::{HeaderMap, Request};

use super::connection::Connections;
use super::exchange::Failure;
use crate::extproc::proto::envoy::service::ext_proc::v3::ProcessingResponse;

const METHOD: &str = "http://picker/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// A frame's own head: the flag for compression and the message's length.
const FRAME_HEAD_BYTES: usize = 5;

/// One open stream.
pub(super) struct Stream {
    sending: SendStream<Bytes>,
    receiving: Receiving,
    buffer: BytesMut,
}

enum Receiving {
    /// The picker has not yet said a word.
    Headers(ResponseFuture),
    Messages(RecvStream),
}

impl Stream {
    /// Opens a stream with the first messages on it.
    pub(super) async fn open(connections: &Connections, frames: Bytes) -> Result<Self, Failure> {
        let mut sender = connections.next().await?;
        let request = Request::post(METHOD)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|_invalid| Failure::Protocol)?;
        let (response, mut sending) = sender.send_request(request, false)?;
        sending.send_data(frames, false)?;
        Ok(Self {
            sending,
            receiving: Receiving::Headers(response),
            buffer: BytesMut::new(),
        })
    }

    pub(super) fn send(&mut self, frames: Bytes) -> Result<(), Failure> {
        Ok(self.sending.send_data(frames, false)?)
    }

    /// The next answer.
    ///
    /// # Errors
    /// When the stream ended or broke instead.
    pub(super) async fn answer(&mut self) -> Result<ProcessingResponse, Failure> {
        loop {
            if let Some(message) = self.take_message()? {
                return ProcessingResponse::decode(message).map_err(|_| Failure::Protocol);
            }
            if !self.fill().await? {
                return Err(self.status().await?.err().unwrap_or(Failure::EndedEarly));
            }
        }
    }

    /// Half-closes, and waits for the picker to end the stream in good order.
    pub(super) async fn finish(mut self) -> Result<(), Failure> {
        self.sending.send_data(Bytes::new(), true)?;
        while self.fill().await? {}
        if !self.buffer.is_empty() {
            return Err(Failure::Protocol);
        }
        self.status().await?
    }

    /// Reads on; false at the end.
    async fn fill(&mut self) -> Result<bool, Failure> {
        if let Receiving::Headers(response) = &mut self.receiving {
            let response = response.await?;
            if !response.status().is_success() {
                return Err(Failure::HttpStatus(response.status().as_u16()));
            }
            if let Some(failed) = grpc_failure(response.headers()) {
                return Err(failed);
            }
            self.receiving = Receiving::Messages(response.into_body());
        }
        let Receiving::Messages(messages) = &mut self.receiving else {
            return Ok(false);
        };
        let Some(data) = messages.data().await else {
            return Ok(false);
        };
        let data = data?;
        messages.flow_control().release_capacity(data.len())?;
        self.buffer.extend_from_slice(&data);
        Ok(true)
    }

    /// What the trailers say.
    async fn status(&mut self) -> Result<Result<(), Failure>, Failure> {
        let Receiving::Messages(messages) = &mut self.receiving else {
            return Ok(Ok(()));
        };
        let trailers = messages.trailers().await?.unwrap_or_default();
        Ok(grpc_failure(&trailers).map_or(Ok(()), Err))
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some((&compressed, rest)) = self.buffer.split_first() else {
            return Ok(None);
        };
        let Some(length) = rest.first_chunk::<4>() else {
            return Ok(None);
        };
        if compressed != 0 {
            return Err(Failure::Protocol);
        }
        let length = u32::from_be_bytes(*length) as usize;
        if self.buffer.len() < FRAME_HEAD_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEAD_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

fn grpc_failure(headers: &HeaderMap) -> Option<Failure> {
    let status = headers.get("grpc-status")?.to_str().ok()?;
    (status != "0").then(|| Failure::GrpcStatus(status.to_owned()))
}
