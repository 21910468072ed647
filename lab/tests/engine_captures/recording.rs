//! A recorded engine: how it was set up, what it was asked, what it published.

use std::{num::NonZeroU32, ops::Range, path::PathBuf, sync::Arc};

use kvpick_agent_core::{
    decode::{Batch, Event},
    recording::Line,
};
use kvpick_lab::engine::{
    announce::Adapter,
    attention::Attention,
    scheduler::{Limits, NewRequest, Totals},
    version::Version,
    wire::{Encoder, HashForm},
};
use kvpick_proto::naming::{Algorithm, BlockKey, Hasher};
use serde_json::Value;

/// One recording.
pub(crate) struct Recording {
    pub(crate) limits: Limits,
    pub(crate) encoder: Encoder,
    pub(crate) hasher: Hasher,
    /// In the order in which it happened.
    pub(crate) happenings: Vec<Happening>,
    pub(crate) frames: Vec<Frame>,
    metrics: String,
}

/// What was done to the engine.
pub(crate) enum Happening {
    /// Requests that ran together; one by itself is the usual case.
    Asked(Vec<Asked>),
    /// The prefix cache was reset, while idle.
    Reset,
    /// The engine was stopped and started again.
    Restarted,
}

/// One HTTP request.
pub(crate) struct Asked {
    pub(crate) name: String,
    /// What the engine made of it: one request for each prompt and sample.
    pub(crate) requests: Vec<NewRequest>,
    /// The client left after that many tokens.
    pub(crate) left_after: Option<usize>,
    /// The frames that came while it ran.
    pub(crate) frames: Range<usize>,
}

/// One published batch.
pub(crate) struct Frame {
    pub(crate) line: Line,
    pub(crate) payload: Vec<u8>,
    pub(crate) batch: Batch,
}

impl Recording {
    pub(crate) fn load(name: &str) -> Self {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/captures")).join(name);
        let read = |file: &str| {
            std::fs::read_to_string(folder.join(file))
                .unwrap_or_else(|error| panic!("{name}/{file}: {error}"))
        };
        let lines = |file: &str| -> Vec<Value> {
            read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let meta: Value = serde_json::from_str(&read("meta.json")).unwrap();
        let frames: Vec<Frame> = read("frames.jsonl").lines().map(frame).collect();
        let limits = limits(&meta);
        let happenings = happenings(&meta, &lines("requests.jsonl"), &frames);
        let algorithm = Algorithm::from_name(meta["algo"].as_str().unwrap()).unwrap();
        let root = meta["pythonhashseed"].as_str().unwrap();
        let hashes = if meta["int_block_hashes"] == true { HashForm::Int } else { HashForm::Bytes };
        Self {
            limits,
            encoder: Encoder {
                encoding: limits.version.encoding(),
                hashes,
                block_size: limits.block_size.get(),
                rank: 0,
            },
            hasher: Hasher::with_root(algorithm, root, limits.version.extra_keys()),
            happenings,
            frames,
            metrics: read("metrics.prom"),
        }
    }

    /// What the engine had counted in the end.
    pub(crate) fn totals(&self) -> Totals {
        let counter = |name: &str| {
            let line = self.metrics.lines().find(|line| line.starts_with(&format!("vllm:{name}_total{{")));
            let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name}"));
            value.parse::<f64>().unwrap() as u64
        };
        Totals {
            prefix_queries: counter("prefix_cache_queries"),
            prefix_hits: counter("prefix_cache_hits"),
            generated: counter("generation_tokens"),
            preemptions: counter("num_preemptions"),
        }
    }

    /// The engine's own hit in blocks: all before the first prompt block that it stored in those frames; where it
    /// stored none, as many as a hit can have.
    pub(crate) fn hit(&self, hashes: &[BlockKey], prompt_len: usize, frames: Range<usize>) -> usize {
        let events = self.frames[frames].iter().flat_map(|frame| &frame.batch.events);
        let stored: Vec<BlockKey> = events
            .filter_map(|event| match event {
                Event::Stored(stored) if self.is_full(stored.group) => Some(&stored.keys),
                _ => None,
            })
            .flatten()
            .copied()
            .collect();
        let most = (prompt_len - 1) / self.limits.block_size.get() as usize;
        hashes.iter().position(|hash| stored.contains(hash)).unwrap_or(most)
    }

    /// The request, or the first of several together, while which that frame came.
    pub(crate) fn name_of(&self, frame: usize) -> String {
        let asked = self.happenings.iter().filter_map(|it| match it {
            Happening::Asked(together) => together.first(),
            Happening::Reset | Happening::Restarted => None,
        });
        let mut asked = asked.filter(|it| it.frames.contains(&frame));
        asked.next().map_or_else(|| format!("frame {frame}"), |it| it.name.clone())
    }

    /// Whether all layers of that group attend to all tokens.
    fn is_full(&self, group: Option<u32>) -> bool {
        group.is_none_or(|group| match self.limits.attention {
            Attention::Full => group == 0,
            Attention::Hybrid { .. } => group == 1,
        })
    }
}

fn frame(text: &str) -> Frame {
    let line = Line::parse(text).unwrap();
    let payload = line.frames[2].clone();
    Frame { batch: Batch::decode(&payload).unwrap(), line, payload }
}

fn limits(meta: &Value) -> Limits {
    let command: Vec<&str> = meta["cmd"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let flag = |name: &str| -> usize {
        let at = command.iter().position(|it| *it == name).unwrap_or_else(|| panic!("no {name}"));
        command[at + 1].parse().unwrap()
    };
    let version = match meta["vllm"].as_str().unwrap() {
        it if it.starts_with("0.16.") => Version::V0_16,
        it if it.starts_with("0.32.") => Version::V0_32,
        it => panic!("no recording of {it} is known here"),
    };
    // "4 layers: sliding(64), full, sliding(64), full"
    let window = meta["hybrid"].as_str().map(|layers| {
        let from = layers.split("sliding(").nth(1).unwrap();
        from.split(')').next().unwrap().parse().unwrap()
    });
    Limits {
        block_size: NonZeroU32::new(flag("--block-size") as u32).unwrap(),
        num_blocks: flag("--num-gpu-blocks-override") as u32,
        max_num_batched_tokens: flag("--max-num-batched-tokens"),
        max_num_seqs: flag("--max-num-seqs"),
        max_model_len: flag("--max-model-len"),
        attention: window.map_or(Attention::Full, |window| Attention::Hybrid { window }),
        version,
    }
}

fn happenings(meta: &Value, lines: &[Value], frames: &[Frame]) -> Vec<Happening> {
    let mut timed: Vec<(f64, Happening)> = Vec::new();
    for mark in meta["marks"].as_array().unwrap() {
        let happening = match mark["name"].as_str().unwrap() {
            "reset_prefix_cache" => Happening::Reset,
            "engine-restarted" => Happening::Restarted,
            _ => continue,
        };
        timed.push((mark["t"].as_f64().unwrap(), happening));
    }
    let mut last_prompt = Vec::new();
    let mut burst = None;
    for line in lines.iter().filter(|line| line["status"] == 200) {
        let asked = asked(meta, line, frames, &last_prompt);
        last_prompt.clone_from(&asked.requests[0].prompt);
        let group = line["group"].as_str();
        match timed.last_mut() {
            Some((_, Happening::Asked(together))) if group.is_some() && group == burst => {
                together.push(asked)
            }
            _ => timed.push((line["t_start"].as_f64().unwrap(), Happening::Asked(vec![asked]))),
        }
        burst = group;
    }
    timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    timed.into_iter().map(|(_, happening)| happening).collect()
}

fn asked(meta: &Value, line: &Value, frames: &[Frame], last_prompt: &[u32]) -> Asked {
    let index = |i: usize| line["frames"][i].as_u64().unwrap() as usize;
    let range = index(0)..index(1);
    let body = &line["request"];
    let lists = |name: &str| -> Vec<Vec<u32>> { serde_json::from_value(line[name].clone()).unwrap() };
    let (mut prompts, mut answers) = (lists("server_prompt_token_ids"), lists("output_token_ids"));
    if prompts.is_empty() {
        prompts.push(untold_prompt(line, &frames[range.clone()], last_prompt));
        answers.push(Vec::new());
    }
    // The recording has a prompt for each sample.
    assert_eq!(prompts.len(), answers.len());
    let max_tokens =
        body["max_tokens"].as_u64().or_else(|| body["max_output_tokens"].as_u64()).unwrap() as u32;
    let left_after = answers.iter().map(Vec::len).find(|len| 0 < *len && *len < max_tokens as usize);
    let requests = prompts.into_iter().zip(answers).map(|(prompt, answer)| NewRequest {
        salt: body["cache_salt"].as_str().map(str::to_owned),
        adapter: adapter(meta, body["model"].as_str().unwrap()),
        session: body["session_id"].as_str().map(Arc::from),
        reports_hit: body["vllm_xargs"]["kv_cache_report_mode"] == "full",
        max_tokens: Some(max_tokens),
        answer,
        ..NewRequest::new(prompt)
    });
    Asked {
        name: line["name"].as_str().unwrap().to_owned(),
        requests: requests.collect(),
        left_after,
        frames: range,
    }
}

/// The prompt of a request to a route that does not tell it: the tokens that it stored, or where it stored none those
/// of the request before, which said the same; then as many unknown ones as complete its length, too few for a block.
fn untold_prompt(line: &Value, frames: &[Frame], last_prompt: &[u32]) -> Vec<u32> {
    let length = line["response"]["usage"]["input_tokens"].as_u64().unwrap() as usize;
    let stored = frames.iter().flat_map(|frame| &frame.batch.events).find_map(|event| match event {
        Event::Stored(stored) if stored.parent.is_none() => Some(&stored.tokens),
        _ => None,
    });
    let mut prompt = stored.map_or(last_prompt, Vec::as_slice).to_vec();
    prompt.resize(length, 0);
    prompt
}

/// Adapters are numbered in the order in which the command names them, which is that of their names.
fn adapter(meta: &Value, model: &str) -> Option<Arc<Adapter>> {
    let adapters = meta["lora"].as_object()?;
    let at = adapters.keys().position(|name| name == model)?;
    let path = adapters[model].as_str().unwrap().to_owned();
    Some(Arc::new(Adapter { id: at as u32 + 1, name: model.to_owned(), path }))
}
