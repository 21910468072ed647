//! Engines that tell what reached them, and whose streamed answers go on until they are let go.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::wrappers::ReceiverStream;

/// How a streamed answer ends.
pub(crate) const LAST: &str = "data: [DONE]\n\n";

/// Starts one. Its streamed answers have an event at once, and end when `go_on` says so.
pub(crate) async fn start(go_on: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let go_on = Arc::new(go_on);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let go_on = Arc::clone(&go_on);
            let service = service_fn(move |request| answer(address, (*go_on).clone(), request));
            tokio::spawn(async move {
                let io = TokioIo::new(stream);
                drop(auto::Builder::new(TokioExecutor::new()).serve_connection(io, service).await);
            });
        }
    });
    address
}

async fn answer(
    address: SocketAddr,
    mut go_on: watch::Receiver<bool>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let streams = request.headers().contains_key("x-streams");
    let body = request.collect().await.map(|it| it.to_bytes()).unwrap_or_default();
    let mut response = if streams {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let event = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
            if sender.send(event("data: {}\n\n")).await.is_err() {
                return;
            }
            let may_end = async { go_on.wait_for(|it| *it).await.is_ok() };
            tokio::select! {
                true = may_end => drop(sender.send(event(LAST)).await),
                () = sender.closed() => {}
            }
        });
        Response::new(BodyExt::boxed(StreamBody::new(ReceiverStream::new(receiver))))
    } else {
        Response::new(Full::from(body.clone()).boxed())
    };
    response.headers_mut().insert("x-engine", address.to_string().parse().unwrap());
    response.headers_mut().insert("x-length", body.len().into());
    Ok(response)
}
