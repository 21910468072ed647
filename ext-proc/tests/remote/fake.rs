//! A server that answers as it is told to, and a model of a few words.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What is done with a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answered, and the connection kept.
    Answer(u16, String),
    /// Answered with 200, and the connection closed without a word about it.
    AnswerAndClose(String),
    /// Nothing.
    Silent,
    /// A byte of the answer now and then.
    Drip,
    /// An answer without end, as fast as it goes.
    Endless,
    /// The connection is closed.
    Hangup,
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    /// In lower case but for values.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// The server.
pub(crate) struct Fake {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    count: watch::Receiver<usize>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts it; `act` says what to do with a request to a path.
    pub(crate) async fn start(act: impl Fn(&str) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::<AtomicUsize>::default());
        let (counter, count) = watch::channel(0);
        let (act, counter) = (Arc::new(act), Arc::new(counter));
        let (list, number) = (Arc::clone(&seen), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                number.fetch_add(1, Ordering::Relaxed);
                let (act, list, counter) = (Arc::clone(&act), Arc::clone(&list), Arc::clone(&counter));
                tokio::spawn(async move { serve(stream, &*act, &list, &counter).await });
            }
        });
        Self { address, seen, count, connections, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits until so many requests have come.
    pub(crate) async fn until_seen(&self, wanted: usize) {
        let mut count = self.count.clone();
        let seen = count.wait_for(|it| wanted <= *it);
        tokio::time::timeout(Duration::from_secs(20), seen).await.expect("no request came").unwrap();
    }
}

async fn serve(
    mut stream: TcpStream,
    act: &(impl Fn(&str) -> Act + ?Sized),
    list: &Mutex<Vec<Seen>>,
    counter: &watch::Sender<usize>,
) -> Option<()> {
    loop {
        let seen = read(&mut stream).await?;
        let act = act(&seen.path);
        list.lock().unwrap().push(seen);
        counter.send_modify(|it| *it += 1);
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        match act {
            Act::Answer(status, body) => answer(&mut stream, status, &body).await?,
            Act::AnswerAndClose(body) => {
                answer(&mut stream, 200, &body).await?;
                return None;
            }
            Act::Silent => return std::future::pending().await,
            Act::Hangup => return None,
            Act::Drip => {
                stream.write_all(chunked.as_bytes()).await.ok()?;
                loop {
                    stream.write_all(b"1\r\n \r\n").await.ok()?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Act::Endless => {
                stream.write_all(chunked.as_bytes()).await.ok()?;
                let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
                loop {
                    stream.write_all(chunk.as_bytes()).await.ok()?;
                }
            }
        }
    }
}

async fn answer(stream: &mut TcpStream, status: u16, body: &str) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nlocation: /elsewhere\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(body.as_bytes()).await.ok()
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length =
        head.lines().find_map(|it| it.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
    let mut body = bytes.split_off(end);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    let path = head.split(' ').nth(1).unwrap().to_owned();
    Some(Seen { path, head, body })
}

/// An answer of 200.
pub(crate) fn json(body: &Value) -> Act {
    Act::Answer(200, body.to_string())
}

/// A rendered chat, as of vLLM 0.32.
pub(crate) fn rendered(ids: &[u32], features: &Value) -> Value {
    json!({
        "request_id": "chatcmpl-1", "token_ids": ids, "token_offsets": null, "features": features,
        "content_parts": null, "sampling_params": {"temperature": 1.0}, "model": "m", "stream": false,
        "cache_salt": null, "priority": 0, "kv_transfer_params": null,
    })
}

/// Writes a model of a few words, with that template.
pub(crate) fn write_model(folder: &Path, template: Option<&str>) {
    let words = ["[UNK]", "hello", "one"];
    let vocabulary: serde_json::Map<_, _> =
        words.iter().zip(0..).map(|(it, id)| ((*it).to_owned(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
        "truncation": null, "padding": null, "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    if let Some(template) = template {
        fs::write(folder.join("chat_template.jinja"), template).unwrap();
    }
}
