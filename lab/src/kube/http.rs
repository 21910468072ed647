//! The API over HTTP.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    faults::{gone, status},
    selector,
    store::{Happened, Kind, Store},
};

/// How often a watch is told up to where it has seen everything, where it asked for that. Servers do so about once a minute.
const BOOKMARKS: Duration = Duration::from_millis(200);

/// For how long a watch stays open whose client does not say ("timeoutSeconds").
const LONGEST: u64 = 300;

pub(super) fn routes(store: Arc<Store>) -> Router {
    let pods =
        async |State(store): State<Arc<Store>>, Path(namespace): Path<String>, Query(query): Query<Asked>| {
            answer(store, Kind::Pod, namespace, query)
        };
    let pools =
        async |State(store): State<Arc<Store>>, Path(namespace): Path<String>, Query(query): Query<Asked>| {
            answer(store, Kind::Pool, namespace, query)
        };
    Router::new()
        .route("/api/v1/namespaces/{namespace}/pods", get(pods))
        .route("/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools", get(pools))
        .fallback(async || {
            failure(404, &status(404, "NotFound", "the server could not find the requested resource"))
        })
        .with_state(store)
}

/// Parameters of a list or a watch.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Asked {
    watch: String,
    label_selector: String,
    field_selector: String,
    resource_version: String,
    limit: Option<usize>,
    r#continue: String,
    timeout_seconds: Option<u64>,
    allow_watch_bookmarks: String,
    send_initial_events: String,
}

fn is_true(it: &str) -> bool {
    it == "true" || it == "1"
}

fn failure(code: u16, status: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (code, Json(status.clone())).into_response();
    if code == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}

fn answer(store: Arc<Store>, kind: Kind, namespace: String, asked: Asked) -> Response {
    if let Some(refusal) = store.refusal() {
        return failure(refusal.code(), &refusal.status());
    }
    if let Err(why) = selector::matches(&Value::Null, &asked.label_selector, &asked.field_selector) {
        return failure(400, &status(400, "BadRequest", &why));
    }
    if is_true(&asked.send_initial_events) {
        return failure(422, &status(422, "Invalid", "sendInitialEvents is not known here"));
    }
    if is_true(&asked.watch) {
        watch(store, kind, namespace, asked)
    } else {
        list(&store, kind, &namespace, &asked)
    }
}

/// A list, whole or in pages ("Retrieving large results sets in chunks"): a page's `continue` names the version and the place
/// where the next one begins; one that is too old is answered by 410.
fn list(store: &Store, kind: Kind, namespace: &str, asked: &Asked) -> Response {
    let (version, objects) = store.list(kind, namespace);
    let (version, start) = match asked.r#continue.split_once('-') {
        Some((then, start)) => (then.parse().unwrap_or(0), start.parse().unwrap_or(0)),
        None => (version, 0),
    };
    if !asked.r#continue.is_empty() && store.since(version).is_none_or(|(_, later)| !later.is_empty()) {
        return failure(410, &gone());
    }
    let fits = |it: &Value| selector::matches(it, &asked.label_selector, &asked.field_selector) == Ok(true);
    let fitting: Vec<_> = objects.into_iter().filter(fits).collect();
    let end = asked.limit.filter(|it| 0 < *it).map_or(fitting.len(), |it| (start + it).min(fitting.len()));
    let more = if end < fitting.len() { format!("{version}-{end}") } else { String::new() };
    let (api_version, list_kind) = kind.list_kind();
    let items = fitting.get(start..end).unwrap_or_default();
    Json(json!({
        "apiVersion": api_version,
        "kind": list_kind,
        "metadata": {"resourceVersion": version.to_string(), "continue": more},
        "items": items,
    }))
    .into_response()
}

/// A watch from a resource version on ("Efficient detection of changes"): one that is too old is answered by 410. Events are
/// JSON objects, one in a line.
fn watch(store: Arc<Store>, kind: Kind, namespace: String, asked: Asked) -> Response {
    let version = asked.resource_version.parse().unwrap_or(0);
    if store.since(version).is_none() {
        return failure(410, &gone());
    }
    let (lines, stream) = mpsc::channel(64);
    tokio::spawn(Watch { store, kind, namespace, asked, lines }.run(version));
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(stream)));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

struct Watch {
    store: Arc<Store>,
    kind: Kind,
    namespace: String,
    asked: Asked,
    lines: mpsc::Sender<Result<Bytes, std::io::Error>>,
}

/// The watch can't go on.
struct Ended;

impl Watch {
    async fn run(self, mut version: u64) {
        let (mut news, mut generation) = self.store.begin_watch();
        generation.mark_unchanged();
        let seconds = self.asked.timeout_seconds.unwrap_or(LONGEST).min(LONGEST);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut bookmarks = tokio::time::interval(BOOKMARKS);
        loop {
            let is_silent = self.store.faults().silent;
            if !is_silent && self.tell(&mut version).await.is_err() {
                return;
            }
            tokio::select! {
                changed = news.changed() => if changed.is_err() { return },
                // As a server does that ends, or whose connection is lost.
                _ = generation.changed() => return,
                () = tokio::time::sleep_until(end), if !is_silent => return,
                _ = bookmarks.tick(), if !is_silent => if self.bookmark(version).await.is_err() { return },
                () = self.lines.closed() => return,
            }
        }
    }

    /// Tells what happened since.
    async fn tell(&self, version: &mut u64) -> Result<(), Ended> {
        let Some((latest, happened)) = self.store.since(*version) else {
            // Only an error tells of it, in the middle of a watch.
            self.say(&json!({"type": "ERROR", "object": gone()})).await?;
            return Err(Ended);
        };
        for it in happened.iter().filter(|it| it.kind == self.kind) {
            let Some(event) = self.event(it) else { continue };
            let (cut, is_gone) = self.store.take_once();
            if is_gone {
                self.say(&json!({"type": "ERROR", "object": gone()})).await?;
                return Err(Ended);
            }
            if cut {
                let line = event.to_string();
                self.send(line.as_bytes()[..line.len() / 2].to_vec().into()).await?;
                let lost = std::io::Error::other("as the test wants it");
                drop(self.lines.send(Err(lost)).await);
                return Err(Ended);
            }
            self.say(&event).await?;
            if self.store.faults().twice {
                self.say(&event).await?;
            }
        }
        *version = latest;
        Ok(())
    }

    /// An object that comes to fit a selector is added, and one that no longer does is deleted, as far as the watch is told.
    fn event(&self, it: &Happened) -> Option<Value> {
        let fits = |object: &&Value| {
            object["metadata"]["namespace"] == self.namespace.as_str()
                && selector::matches(object, &self.asked.label_selector, &self.asked.field_selector)
                    == Ok(true)
        };
        let (before, after) = (it.before.as_ref().filter(fits), it.after.as_ref().filter(fits));
        let (kind, object) = match (before, after) {
            (None, Some(after)) => ("ADDED", after.clone()),
            (Some(_), Some(after)) => ("MODIFIED", after.clone()),
            (Some(before), None) => {
                // The last state, with the version of the deletion.
                let mut last = before.clone();
                last["metadata"]["resourceVersion"] = json!(it.version.to_string());
                ("DELETED", last)
            }
            (None, None) => return None,
        };
        Some(json!({"type": kind, "object": object}))
    }

    /// An object with nothing but the version up to which all was told ("Watch bookmarks").
    async fn bookmark(&self, version: u64) -> Result<(), Ended> {
        if !is_true(&self.asked.allow_watch_bookmarks) || self.store.faults().no_bookmarks {
            return Ok(());
        }
        let (api_version, list_kind) = self.kind.list_kind();
        let kind = list_kind.trim_end_matches("List");
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"resourceVersion": version.to_string()}});
        self.say(&json!({"type": "BOOKMARK", "object": object})).await
    }

    async fn say(&self, event: &Value) -> Result<(), Ended> {
        let line = format!("{event}\n");
        let Some(piece) = self.store.faults().trickle else { return self.send(line.into()).await };
        for piece in line.as_bytes().chunks(piece.max(1)) {
            self.send(Bytes::copy_from_slice(piece)).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Ended> {
        self.lines.send(Ok(bytes)).await.map_err(|_| Ended)
    }
}
