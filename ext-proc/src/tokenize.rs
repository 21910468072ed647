//! `kvpick tokenize`: shows of requests, a JSON line each, what a decision would know of their prompts.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    net::SocketAddr,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use kvpick_core::{
    outcome::Reason,
    pick::Naming,
    prompts::Prompt,
    request::{Api, json},
    world::{Plan, World},
};
use kvpick_proto::naming::{Algorithm, BlockKey, DEFAULT_ROOT, Domain, ExtraKeyShape};
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    config::Config,
    models::Models,
    prepare::{self, Maker, Prepared, Serving, Step},
};

/// How blocks are named. An agent's `/status` says what an engine does.
#[derive(Clone, Debug, clap::Args)]
pub struct NamingArgs {
    /// How a block is hashed: vLLM's `--prefix-caching-hash-algo`.
    #[arg(long, default_value = Algorithm::Sha256Cbor.name(), value_parser = algorithms())]
    algorithm: Algorithm,
    /// The string whose hash is the parent of a first block: the engine's `PYTHONHASHSEED`, or vLLM's own.
    #[arg(long, default_value = DEFAULT_ROOT)]
    root: String,
    /// Tokens in a hashed block.
    #[arg(long, default_value = "16")]
    block_size: NonZeroU32,
    /// In which form adapters and salts are hashed.
    #[arg(long, value_enum, default_value_t = ExtraKeys::Tagged)]
    extra_keys: ExtraKeys,
    /// An adapter and where the engine loaded it from (`root` of its card in `/v1/models`); once for each. Its base model
    /// is the one that a replica lists beside it, else the only one of the configuration.
    #[arg(long = "adapter", value_name = "NAME=PATH", value_parser = adapter)]
    adapters: Vec<(String, String)>,
}

/// See [`ExtraKeyShape`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExtraKeys {
    /// Before vLLM 0.19.
    Bare,
    /// From vLLM 0.19 on.
    #[value(alias = "bare_with_offset")]
    BareWithOffset,
    /// From vLLM 0.31 on.
    Tagged,
}

impl From<ExtraKeys> for ExtraKeyShape {
    fn from(it: ExtraKeys) -> Self {
        match it {
            ExtraKeys::Bare => Self::Bare,
            ExtraKeys::BareWithOffset => Self::BareWithOffset,
            ExtraKeys::Tagged => Self::Tagged,
        }
    }
}

fn algorithms() -> impl clap::builder::TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name))
        .try_map(|name| Algorithm::from_name(&name).ok_or("no such algorithm"))
}

fn adapter(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.to_owned())),
        Some(_) | None => Err("want the adapter's name and its path, as sql=/adapters/sql"),
    }
}

/// Replicas of the configuration, all of which name blocks as the flags say.
struct Flagged {
    world: World,
    listed: Vec<String>,
    only: Option<String>,
    domain: Domain,
    adapters: BTreeMap<String, String>,
}

impl Flagged {
    fn new(config: &Config, args: NamingArgs) -> Self {
        let NamingArgs { algorithm, root, block_size, extra_keys, adapters } = args;
        let (specs, memory) = (config.replica_specs(), config.memory.into());
        let world = World::new(config.server.clone(), specs, &memory, config.score.into(), 0, Instant::now());
        let names = config.models.iter().flat_map(|it| std::iter::once(&it.name).chain(&it.aliases));
        let only = match config.models.as_slice() {
            [model] => Some(model.name.clone()),
            _ => None,
        };
        Self {
            world,
            listed: names.cloned().collect(),
            only,
            domain: Domain { algorithm, root, block_size, extra_keys: extra_keys.into() },
            adapters: adapters.into_iter().collect(),
        }
    }
}

impl Serving for Flagged {
    fn plan(&self, model: Option<&str>) -> Plan {
        let mut plan = self.world.plan(model);
        let adapter = model.and_then(|it| self.adapters.get_key_value(it));
        // Agents would tell of adapters, and of models that an engine serves under more names.
        plan.model_known |=
            adapter.is_some() || model.is_some_and(|model| self.listed.iter().any(|it| it == model));
        let adapter = adapter.map(|(name, path)| (name.clone(), path.clone()));
        plan.namings = vec![Naming { domain: self.domain.clone(), adapter }];
        plan
    }

    fn base_models(&self, model: &str) -> Vec<String> {
        let mut bases = self.world.base_models(model);
        bases.extend(self.only.iter().filter(|_| self.adapters.contains_key(model)).cloned());
        bases
    }

    fn addresses(&self, plan: &Plan) -> Vec<SocketAddr> {
        plan.candidates.iter().map(|it| self.world.replicas[*it].spec.name.address).collect()
    }

    fn is_distrusted(&self, _model: Option<&str>, _api: Api) -> bool {
        false
    }
}

/// Longer than any model's `remote.timeout_ms`, which is what counts here.
const PATIENCE: Duration = Duration::from_secs(120);

/// A line of input.
struct Line {
    model: Option<String>,
    path: String,
    body: Vec<u8>,
}

/// Why a line is not one.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("not JSON: {problem} at column {column}")]
    NotJson { problem: String, column: usize },
    #[error("want a JSON object with `model`, `path` and `body`")]
    NotAnObject,
    #[error("{field}: {problem}")]
    Field { field: &'static str, problem: &'static str },
}

impl Line {
    fn parse(bytes: &[u8]) -> Result<Self, LineError> {
        let line: Value = serde_json::from_slice(bytes).map_err(|error| {
            let text = error.to_string();
            let problem = text.split(" at line ").next().unwrap_or_default().to_owned();
            LineError::NotJson { problem, column: error.column() }
        })?;
        let Value::Object(mut line) = line else { return Err(LineError::NotAnObject) };
        let mut text = |field| match line.remove(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(LineError::Field { field, problem: "want a string" }),
        };
        let model = text("model")?.filter(|it| !it.is_empty());
        let missing = |field, problem| LineError::Field { field, problem };
        let path = text("path")?
            .ok_or_else(|| missing("path", "missing; the path of the request, as /v1/chat/completions"))?;
        let body = match (text("body")?, text("body_hex")?) {
            (Some(body), None) => body.into_bytes(),
            (None, Some(digits)) => from_hex(&digits)
                .ok_or_else(|| missing("body_hex", "want two hexadecimal digits for each byte"))?,
            (Some(_), Some(_)) => return Err(missing("body_hex", "is given beside body; keep one")),
            (None, None) => return Err(missing("body", "missing; the request's body, as a string")),
        };
        Ok(Self { model, path, body })
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => {
                let value = |digit: u8| char::from(digit).to_digit(16);
                u8::try_from(value(*high)? << 4 | value(*low)?).ok()
            }
            _ => None,
        })
        .collect()
}

/// A line of output.
#[derive(Serialize)]
struct Answer<'a> {
    source: &'static str,
    reason: &'static str,
    prompts: Vec<&'a [u32]>,
    blocks: Vec<Vec<String>>,
}

/// Answers each line of `input` on `output`, in order, until either ends. A line that is no request is told of on
/// `errors`; blank ones are passed over. Returns how many were none.
///
/// # Errors
/// What reading or writing failed of, but for a reader of the output that has gone.
pub fn run(
    config: &Config,
    models: &Models,
    args: NamingArgs,
    mut input: impl BufRead,
    mut output: impl Write,
    mut errors: impl Write,
) -> io::Result<usize> {
    let serving = Flagged::new(config, args);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut bytes, mut refused) = (Vec::new(), 0);
    for number in 1_usize.. {
        bytes.clear();
        if input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        // What the log says of a prompt is said of this line.
        let _span = tracing::info_span!("input", line = number).entered();
        let line = match Line::parse(bytes.trim_ascii_end()) {
            Ok(line) => line,
            Err(error) => {
                refused += 1;
                writeln!(errors, "line {number}: {error}")?;
                continue;
            }
        };
        let mut answer = answer(&serving, models, &runtime, config.max_body_bytes, line);
        answer.push(b'\n');
        match output.write_all(&answer).and_then(|()| output.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            done => done?,
        }
    }
    Ok(refused)
}

/// Why prompts that are known are not known as a whole.
fn reason(prompts: &[Prompt]) -> Reason {
    if prompts.iter().any(|it| it.is_cut) { Reason::of("media") } else { Reason::OK }
}

/// The line of output. What there may be against a request before its body is read is as `session` and `decide` have it.
fn answer(serving: &Flagged, models: &Models, runtime: &Runtime, most_body: usize, line: Line) -> Vec<u8> {
    let Line { model, path, body } = line;
    let path = path.split('?').next().unwrap_or_default();
    let lack = match body.len() {
        0 => Some(Reason::NO_BODY),
        bytes if most_body < bytes => Some(Reason::BODY_TOO_LARGE),
        _ => None,
    };
    let prepared = match (lack, Api::of_path(path)) {
        (None, Some(api)) => match prepare::begin(serving, models, api, body.into(), model.as_deref()) {
            Step::Done(prepared) => prepared,
            Step::Ask(pending) => {
                let told = runtime.block_on(pending.ask(Instant::now() + PATIENCE));
                pending.finish(told)
            }
        },
        (lack, api) => {
            let reason = lack.filter(|_| api.is_some()).unwrap_or(Reason::OTHER_PATH);
            Prepared::bare(serving, model.or_else(|| json::model_of(&body)), reason)
        }
    };
    let chains = prepared.chains.values().next().map(Vec::as_slice).unwrap_or_default();
    let decimal = |keys: &Vec<BlockKey>| keys.iter().map(|it| it.as_u64().to_string()).collect();
    let answer = Answer {
        source: match prepared.maker {
            Maker::Local => "local",
            Maker::Remote => "remote",
        },
        reason: prepared.prompts.as_deref().map_or_else(|reason| *reason, reason).label(),
        prompts: prepared.prompts.iter().flatten().map(|it| it.ids.as_slice()).collect(),
        blocks: chains.iter().map(decimal).collect(),
    };
    serde_json::to_vec(&answer).expect("plain lists and strings")
}
