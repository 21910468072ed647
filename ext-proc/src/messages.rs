//! gRPC for Envoy's streams, with a buffer that lives no longer than a message.
//!
//! The generated server would keep, for each stream, the buffer of its largest message until the stream ends: where
//! Envoy sends bodies whole, a copy of each request's body for as long as its answer is generated.

use std::{
    convert::Infallible,
    future::{Ready, poll_fn, ready},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use prost::Message as _;
use tonic::{
    Code, Status,
    body::Body,
    codec::{BufferSettings, EncodeBody, SingleMessageCompressionOverride},
    codegen::{Body as _, Service, http},
    server::NamedService,
};
use tonic_prost::ProstEncoder;

use crate::ext_proc::Picker;

/// The one method of the service.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// What stands before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The service that Envoy's filter calls.
#[derive(Clone, Debug)]
pub struct Server {
    picker: Picker,
    most: usize,
}

impl Server {
    /// A server of that picker. Messages have at most so many bytes, either way.
    #[must_use]
    pub const fn new(picker: Picker, most: usize) -> Self {
        Self { picker, most }
    }
}

impl NamedService for Server {
    const NAME: &'static str = "envoy.service.ext_proc.v3.ExternalProcessor";
}

impl Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PROCESS {
            return ready(Ok(Status::unimplemented("no such method").into_http()));
        }
        let answers = self.picker.process(Messages::new(request.into_body(), self.most));
        let body = EncodeBody::new_server(
            ProstEncoder::<ProcessingResponse>::new(BufferSettings::default()),
            answers,
            None,
            SingleMessageCompressionOverride::default(),
            Some(self.most),
        );
        let mut response = http::Response::new(Body::new(body));
        let grpc = http::HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        ready(Ok(response))
    }
}

/// The messages of one stream.
#[derive(Debug)]
pub struct Messages {
    body: Body,
    /// What has come last and is not read yet.
    rest: Bytes,
    /// The beginning of a prefix, or of a message.
    begun: BytesMut,
    /// Length of the message that is coming in.
    length: Option<usize>,
    most: usize,
}

impl Messages {
    /// Those in that body, of at most so many bytes each.
    #[must_use]
    pub fn new(body: Body, most: usize) -> Self {
        Self { body, rest: Bytes::new(), begun: BytesMut::new(), length: None, most }
    }

    /// The next one; `None` at the stream's end. May be dropped and called again.
    ///
    /// # Errors
    /// A stream that was reset, or that is no gRPC, or a message that is too large.
    pub async fn message(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
                // What is no data would be trailers, which say nothing here.
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                // The peer has what it wants, or has gone.
                Some(Err(status)) if status.code() == Code::Cancelled => return Ok(None),
                Some(Err(status)) => return Err(status),
                None if self.length.is_none() && self.begun.is_empty() => return Ok(None),
                None => return Err(Status::internal("the stream ended within a message")),
            }
        }
    }

    /// The message that has come in, if it has; else all of `rest` is read.
    fn take(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        let length = match self.length {
            Some(length) => length,
            None => match self.gather(PREFIX) {
                Some(prefix) => self.begin(&prefix)?,
                None => return Ok(None),
            },
        };
        let Some(bytes) = self.gather(length) else { return Ok(None) };
        self.length = None;
        let message = ProcessingRequest::decode(bytes);
        message.map(Some).map_err(|error| Status::internal(format!("a message that is none: {error}")))
    }

    /// The length of the message behind a prefix.
    fn begin(&mut self, mut prefix: &[u8]) -> Result<usize, Status> {
        if prefix.get_u8() != 0 {
            return Err(Status::unimplemented("a compressed message"));
        }
        let (length, most) = (prefix.get_u32() as usize, self.most);
        if most < length {
            return Err(Status::out_of_range(format!("a message of {length} bytes; the limit is {most}")));
        }
        self.length = Some(length);
        Ok(length)
    }

    /// So many bytes, once they have come. They are copied where they do not come at once, into a buffer of that size.
    fn gather(&mut self, n: usize) -> Option<Bytes> {
        if self.begun.is_empty() && n <= self.rest.len() {
            return Some(self.rest.split_to(n));
        }
        if self.begun.is_empty() {
            self.begun = BytesMut::with_capacity(n);
        }
        let missing = n - self.begun.len();
        self.begun.extend_from_slice(&self.rest.split_to(missing.min(self.rest.len())));
        (self.begun.len() == n).then(|| std::mem::take(&mut self.begun).freeze())
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, processing_request::Request};

    use super::*;

    fn message(size: usize) -> ProcessingRequest {
        let body = HttpBody { body: (0..size).map(|i| i as u8).collect(), ..HttpBody::default() };
        ProcessingRequest { request: Some(Request::RequestBody(body)), ..ProcessingRequest::default() }
    }

    fn framed(message: &ProcessingRequest) -> Vec<u8> {
        let bytes = message.encode_to_vec();
        let length = u32::try_from(bytes.len()).unwrap();
        [&[0][..], &length.to_be_bytes(), &bytes].concat()
    }

    /// The messages in those bytes, which come in chunks of that size, and the error at the end.
    async fn read(bytes: &[u8], size: usize, most: usize) -> (Vec<ProcessingRequest>, Option<Code>) {
        let mut messages = Messages::new(Body::empty(), most);
        let mut found = Vec::new();
        for chunk in bytes.chunks(size) {
            assert!(messages.rest.is_empty(), "all was read");
            messages.rest = Bytes::copy_from_slice(chunk);
            loop {
                match messages.take() {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(status) => return (found, Some(status.code())),
                }
            }
        }
        match messages.message().await {
            Ok(None) => (found, None),
            Ok(Some(_)) => panic!("one was left"),
            Err(status) => (found, Some(status.code())),
        }
    }

    #[tokio::test]
    async fn messages_are_found_however_they_are_cut() {
        let all = [message(0), message(1), message(3_000), ProcessingRequest::default(), message(70)];
        let bytes: Vec<u8> = all.iter().flat_map(framed).collect();
        for size in [1, 2, 7, 100, 1 << 20] {
            assert_eq!(read(&bytes, size, 10_000).await, (all.to_vec(), None), "{size}");
        }
        assert_eq!(read(&bytes, 7, 2_999).await, (all[..2].to_vec(), Some(Code::OutOfRange)));
        for (cut, whole) in [(1, 4), (72, 4), (80, 3), (bytes.len() - 3, 0)] {
            let (found, error) = read(&bytes[..bytes.len() - cut], 50, 10_000).await;
            assert_eq!((found.len(), error), (whole, Some(Code::Internal)), "{cut}");
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_an_error() {
        assert_eq!(read(&[1, 0, 0, 0, 0], 9, 10).await, (Vec::new(), Some(Code::Unimplemented)));
        assert_eq!(read(&[0, 0, 0, 0, 2, 0xff, 0xff], 9, 10).await, (Vec::new(), Some(Code::Internal)));
    }
}
