//! Pods whose server tells of each request it gets, as the suite's echo server does.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    HeaderMap, Request, Response,
    body::Incoming,
    header::{HeaderName, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::json;
use tokio::net::TcpListener;

/// Some pods that serve on the same ports, each with an address of its own on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    pub(crate) ips: Vec<String>,
    pub(crate) ports: Vec<u16>,
}

impl Pods {
    /// Starts three, at `127.<a>.<b>.1` to `.3`, with that many ports. They end with the test.
    pub(crate) async fn start(net: &str, ports: usize) -> Self {
        let ips: Vec<String> = (1..=3).map(|it| format!("127.{net}.{it}")).collect();
        let mut taken = Vec::new();
        while taken.len() < ports {
            // One that all of them have free.
            let first = TcpListener::bind((ips[0].as_str(), 0)).await.unwrap();
            let port = first.local_addr().unwrap().port();
            let mut listeners = vec![first];
            for ip in &ips[1..] {
                listeners.extend(TcpListener::bind((ip.as_str(), port)).await.ok());
            }
            if listeners.len() == ips.len() {
                listeners.into_iter().for_each(serve);
                taken.push(port);
            }
        }
        Self { ips, ports: taken }
    }

    /// All that there is to pick.
    pub(crate) fn endpoints(&self) -> Vec<SocketAddr> {
        let all = self.ips.iter().flat_map(|ip| self.ports.iter().map(move |port| format!("{ip}:{port}")));
        all.map(|it| it.parse().unwrap()).collect()
    }
}

fn serve(listener: TcpListener) {
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(address, request));
                // In HTTP/1.1, or in HTTP/2 where the gateway begins so.
                drop(
                    auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await,
                );
            });
        }
    });
}

async fn answer(
    address: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|it| it.to_bytes()).unwrap_or_default();
    let told = json!({
        "ip": address.ip().to_string(),
        "port": address.port(),
        "version": format!("{:?}", head.version),
        "headers": head.headers.keys().map(|it| it.as_str()).collect::<Vec<_>>(),
        "body": String::from_utf8_lossy(&body),
    });
    let mut response = Response::new(Full::from(told.to_string()));
    let wanted = asked(&head.headers);
    response.headers_mut().extend(wanted);
    Ok(response)
}

/// The headers that the request asks for: `name:value` each, separated by commas.
fn asked(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let words = headers.get_all("x-echo-set-header").iter().filter_map(|it| it.to_str().ok());
    let pairs = words.flat_map(|it| it.split(',')).filter_map(|it| it.split_once(':'));
    pairs.map(|(name, value)| (name.trim().parse().unwrap(), value.trim().parse().unwrap())).collect()
}
