//! The least that an ext_proc server can do: it lets everything go on, and gives bodies back where that is its task. What
//! kvpick's own work costs is measured beside it.
//!
//! `echo --addresses-file FILE` listens at a port of its own choice on loopback, and writes it down there.
#![expect(clippy::unwrap_used, reason = "an example may panic")]

use std::{collections::BTreeMap, net::SocketAddr, path::Path, pin::Pin};

use envoy_types::pb::envoy::{
    extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
    service::ext_proc::v3::{
        BodyMutation, BodyResponse, CommonResponse, HeadersResponse, HttpBody, ProcessingRequest,
        ProcessingResponse, StreamedBodyResponse, TrailersResponse,
        body_mutation::Mutation,
        external_processor_server::{ExternalProcessor, ExternalProcessorServer},
        processing_request::Request as Asked,
        processing_response::Response as Answered,
    },
};
use futures::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

struct Echo;

type Answers = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for Echo {
    type ProcessStream = Answers;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let mut modes = (false, false);
        let answers = request.into_inner().filter_map(move |message| {
            std::future::ready(message.ok().map(|message| Ok(answer(message, &mut modes))))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// `modes`: whether bodies of the request, and of the answer, are to be given back.
fn answer(message: ProcessingRequest, modes: &mut (bool, bool)) -> ProcessingResponse {
    if let Some(config) = message.protocol_config {
        let gives_back = |it| it == BodySendMode::FullDuplexStreamed;
        *modes = (gives_back(config.request_body_mode()), gives_back(config.response_body_mode()));
    }
    let response = message.request.map(|asked| match asked {
        Asked::RequestHeaders(_) => Answered::RequestHeaders(HeadersResponse::default()),
        Asked::ResponseHeaders(_) => Answered::ResponseHeaders(HeadersResponse::default()),
        Asked::RequestBody(body) => Answered::RequestBody(back(body, modes.0)),
        Asked::ResponseBody(body) => Answered::ResponseBody(back(body, modes.1)),
        Asked::RequestTrailers(_) => Answered::RequestTrailers(TrailersResponse::default()),
        Asked::ResponseTrailers(_) => Answered::ResponseTrailers(TrailersResponse::default()),
    });
    ProcessingResponse { response, ..ProcessingResponse::default() }
}

fn back(body: HttpBody, gives_back: bool) -> BodyResponse {
    let HttpBody { body, end_of_stream, .. } = body;
    let streamed = StreamedBodyResponse { body, end_of_stream, ..StreamedBodyResponse::default() };
    let mutation = BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) };
    let common = CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() };
    BodyResponse { response: gives_back.then_some(common) }
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ["--addresses-file", file] = args[1..].iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("usage: echo --addresses-file FILE");
    };
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let incoming = TcpIncoming::bind(any).unwrap().with_nodelay(Some(true));
    let addresses = BTreeMap::from([("ext_proc".to_owned(), incoming.local_addr().unwrap())]);
    kvpick_service::addresses::write(Path::new(file), &addresses).unwrap();
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ExternalProcessorServer<Echo>>().await;
    let server = tonic::transport::Server::builder().add_service(health_service);
    server.add_service(ExternalProcessorServer::new(Echo)).serve_with_incoming(incoming).await.unwrap();
}
