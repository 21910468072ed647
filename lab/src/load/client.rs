//! One streamed request, and what came of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is known of a request after its end.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// Session and turn, both from 0.
    pub session: u32,
    /// See `session`.
    pub turn: u32,
    /// HTTP status; `None` where no answer came.
    pub status: Option<u16>,
    /// From sending to the first piece of text, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// From sending to the end, in milliseconds.
    pub total_ms: f64,
    /// As the engine counts them.
    pub prompt_tokens: u64,
    /// Of those, found in the engine's cache.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Response headers that say who answered and why: `x-lab-engine`, and those that begin with `x-kvpick-`.
    pub headers: BTreeMap<String, String>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl Record {
    /// The engine that answered, as it calls itself.
    #[must_use]
    pub fn engine(&self) -> Option<&str> {
        self.headers.get(ENGINE_HEADER).map(String::as_str)
    }
}

/// Sends requests to one OpenAI URL. Cheap to clone; connections are kept.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// A client of the server at `base`, as `http://127.0.0.1:8080`. Requests end after `timeout` at the latest.
    ///
    /// # Errors
    ///
    /// Where the system has no resources for one.
    pub fn new(base: &str, timeout: Duration) -> reqwest::Result<Self> {
        // What is measured must not go through a proxy of the machine that measures.
        let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).timeout(timeout).build()?;
        Ok(Self { http, url: format!("{}/v1/chat/completions", base.trim_end_matches('/')) })
    }

    /// Sends a chat that asks for a stream with usage, and reads the answer to its end. Returns the answer's text.
    pub async fn chat(&self, body: &Value) -> (Record, String) {
        let start = Instant::now();
        let mut record = Record::default();
        let mut reader = Reader::default();
        let outcome = self.exchange(body, start, &mut record, &mut reader).await;
        record.total_ms = milliseconds(start);
        record.error = outcome.err();
        (record, reader.text)
    }

    async fn exchange(
        &self,
        body: &Value,
        start: Instant,
        record: &mut Record,
        reader: &mut Reader,
    ) -> Result<(), String> {
        let response = self.http.post(&self.url).json(body).send().await.map_err(describe)?;
        record.status = Some(response.status().as_u16());
        record.headers = response
            .headers()
            .iter()
            .filter(|(name, _)| name.as_str() == ENGINE_HEADER || name.as_str().starts_with(PICKER_HEADERS))
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        if !response.status().is_success() {
            let status = response.status();
            let text = response.text().await.unwrap_or_default();
            let text: String = text.chars().take(MAX_ERROR_CHARS).collect();
            return Err(format!("status {status}: {text}"));
        }
        let mut stream = response.bytes_stream();
        while let Some(bytes) = stream.next().await {
            reader.read(&bytes.map_err(describe)?)?;
            if record.ttft_ms.is_none() && !reader.text.is_empty() {
                record.ttft_ms = Some(milliseconds(start));
            }
        }
        let count = |pointer: &str| reader.usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        record.prompt_tokens = count("/prompt_tokens");
        record.cached_tokens = count("/prompt_tokens_details/cached_tokens");
        record.completion_tokens = count("/completion_tokens");
        if !reader.done {
            return Err("the stream ended before [DONE]".to_owned());
        }
        if record.prompt_tokens == 0 {
            return Err("the stream had no usage".to_owned());
        }
        Ok(())
    }
}

/// Reads the server-sent events of a chat.
#[derive(Debug, Default)]
struct Reader {
    /// Bytes of a line that is not complete.
    line: Vec<u8>,
    text: String,
    usage: Value,
    done: bool,
}

impl Reader {
    fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some(data) = line.strip_prefix(b"data: ") {
                self.event(data.trim_ascii_end())?;
            }
        }
        Ok(())
    }

    fn event(&mut self, data: &[u8]) -> Result<(), String> {
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value =
            serde_json::from_slice(data).map_err(|error| format!("an event is not JSON: {error}"))?;
        if let Some(error) = event.get("error") {
            return Err(format!("the stream carries an error: {error}"));
        }
        if let Some(text) = event.pointer("/choices/0/delta/content").and_then(Value::as_str) {
            self.text.push_str(text);
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.usage = usage.clone();
        }
        Ok(())
    }
}

/// The innermost cause says what happened; the outer ones repeat the URL.
fn describe(error: reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// Says which engine answered.
const ENGINE_HEADER: &str = "x-lab-engine";

/// What a picker says of its decision.
const PICKER_HEADERS: &str = "x-kvpick-";

/// Of an error's body, as much as a person reads.
const MAX_ERROR_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ": a comment\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\" gr\u{fc}n\"}}],\"usage\":null}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn reads_events_however_they_are_cut() {
        for size in [1, 2, 3, 7, 1000] {
            let mut reader = Reader::default();
            STREAM.as_bytes().chunks(size).for_each(|bytes| reader.read(bytes).unwrap());
            assert_eq!((reader.text.as_str(), reader.done), (" gr\u{fc}n", true));
            assert_eq!(reader.usage["prompt_tokens"], 7);
        }
    }

    #[test]
    fn an_error_in_the_stream_is_one() {
        let error = Reader::default().read(b"data: {\"error\":{\"message\":\"no\"}}\n").unwrap_err();
        assert!(error.contains("\"no\""), "{error}");
    }
}
