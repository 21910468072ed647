//! From a body's bytes to its prompts and their blocks: what workers do for a decision, and what `kvpick tokenize`
//! shows. [`begin`] takes time, and so does [`Pending::finish`]; keep them off the I/O threads. Between the two another
//! server may have to be asked, which takes none.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use kvpick_core::{
    among,
    outcome::Reason,
    parity::Made,
    pick::{self, Chains},
    prompts::{Prompt, PromptError, Prompter},
    remote::{self, Failure},
    request::{Api, Request, json},
    world::Plan,
};

use crate::{
    models::Models,
    remote::{Remote, Told},
    shared::Shared,
};

/// Says who serves a model, and how they name blocks.
pub trait Serving {
    /// Who may serve that model or adapter, and how they name the blocks of a request for it.
    fn plan(&self, model: Option<&str>) -> Plan;
    /// The base models behind that name, as the operator calls them; see [`kvpick_core::world::World::base_models`].
    fn base_models(&self, model: &str) -> Vec<String>;
    /// Where the candidates of a plan serve.
    fn addresses(&self, plan: &Plan) -> Vec<SocketAddr>;
    /// Whether prompts made here of such requests have been seen not to be the engines'.
    fn is_distrusted(&self, model: Option<&str>, api: Api) -> bool;
}

/// The replicas that a gateway lets be picked for a request.
#[derive(Clone, Debug)]
pub struct Among {
    /// All that is known.
    pub shared: Arc<Shared>,
    /// Which of them.
    pub among: Arc<among::Among>,
}

impl Among {
    /// Whether the gateway's list leaves none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.among.is_listed() && self.plan(None).none_allowed
    }
}

impl Serving for Among {
    fn plan(&self, model: Option<&str>) -> Plan {
        self.shared.world().plan_among(model, &self.among)
    }

    fn base_models(&self, model: &str) -> Vec<String> {
        self.shared.world().base_models(model)
    }

    fn addresses(&self, plan: &Plan) -> Vec<SocketAddr> {
        let world = self.shared.world();
        plan.candidates.iter().filter_map(|it| Some(world.replicas.get(*it)?.spec.name.address)).collect()
    }

    fn is_distrusted(&self, model: Option<&str>, api: Api) -> bool {
        self.shared.is_distrusted(model, api)
    }
}

/// Who made a prompt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Maker {
    /// This server.
    Local,
    /// Another one.
    Remote,
}

/// What has become of a body.
#[derive(Debug)]
pub struct Prepared {
    /// Who may serve it.
    pub plan: Plan,
    /// The model or adapter asked for; `None` where none is named.
    pub model: Option<String>,
    /// The prompts, or why they are not known.
    pub prompts: Result<Vec<Prompt>, Reason>,
    /// Who made them, or was the last to try.
    pub maker: Maker,
    /// What came of asking another server, as a label; `None` where that was not needed.
    pub asked: Option<&'static str>,
    /// Whether vLLM looks into its cache for this request.
    pub reads_cache: bool,
    /// The blocks of the prompts, in each way in which they are named; empty where there are no prompts.
    pub chains: Chains,
    /// How the prompts were made, where it was done here.
    pub made: Option<Made>,
}

impl Prepared {
    /// A request of which no prompt is known, for that reason.
    #[must_use]
    pub fn bare(serving: &impl Serving, model: Option<String>, reason: Reason) -> Self {
        let plan = serving.plan(model.as_deref());
        Self::without_prompts(plan, model, reason, Maker::Local)
    }

    fn without_prompts(plan: Plan, model: Option<String>, reason: Reason, maker: Maker) -> Self {
        let chains = Chains::new();
        Self { plan, model, prompts: Err(reason), maker, asked: None, reads_cache: false, chains, made: None }
    }
}

/// How far a body has come without another server.
#[derive(Debug)]
pub enum Step {
    /// To the end.
    Done(Prepared),
    /// Another server is to be asked for the prompts.
    Ask(Box<Pending>),
}

/// A request whose prompts are to come from another server.
#[derive(Debug)]
pub struct Pending {
    request: Request,
    body: Bytes,
    plan: Plan,
    replicas: Vec<SocketAddr>,
    remote: Arc<Remote>,
    /// What was made of it here, where that was tried.
    local: Option<Result<Vec<Prompt>, PromptError>>,
    /// Has the memo for what is made of its ids.
    prompter: Option<Arc<Prompter>>,
}

/// Parses, renders, tokenizes and hashes, as far as that is to be done here. `model` stands for the one that the body
/// names, where it is given.
#[must_use]
pub fn begin(serving: &impl Serving, models: &Models, api: Api, body: Bytes, model: Option<&str>) -> Step {
    let mut request = match Request::parse(api, &body) {
        Ok(request) => request,
        Err(error) => {
            tracing::info!(%error, "a body that is no request; its replica will say so");
            let model = model.map(str::to_owned).or_else(|| json::model_of(&body));
            return Step::Done(Prepared::bare(serving, model, Reason::of(error.label())));
        }
    };
    if let Some(model) = model {
        request.model = Some(model.to_owned());
    }
    let model = request.model.as_deref();
    let plan = serving.plan(model);
    if !plan.model_known {
        return Step::Done(Prepared::without_prompts(
            plan,
            request.model,
            Reason::UNKNOWN_MODEL,
            Maker::Local,
        ));
    }
    let entry = models.asked_for(model).or_else(|| {
        // An adapter has its base model's tokenizer.
        serving.base_models(model?).iter().find_map(|it| models.get(it))
    });
    let remote = entry.and_then(|it| it.remote.as_ref());
    let loaded = entry.and_then(|it| it.loaded.as_ref()).filter(|_| remote.is_none_or(|it| !it.is_only()));
    let prompter = loaded.map(|it| &it.prompter);
    if prompter.is_none()
        && remote.is_some()
        && let Some(prompts) = remote::known(&request)
    {
        return Step::Done(finished(prompter, plan, request, Ok(prompts), Maker::Local));
    }
    let local = prompter.map(|it| it.prompts(&request));
    match remote {
        Some(remote) if is_wanted(local.as_ref()) || serving.is_distrusted(model, api) => {
            let (replicas, remote) = (serving.addresses(&plan), Arc::clone(remote));
            Step::Ask(Box::new(Pending {
                request,
                body,
                plan,
                replicas,
                remote,
                local,
                prompter: prompter.cloned(),
            }))
        }
        Some(_) | None => Step::Done(finished(prompter, plan, request, alone(local), Maker::Local)),
    }
}

/// Whether another server is to be asked, by what was made here. What no engine would take it would not take either.
fn is_wanted(local: Option<&Result<Vec<Prompt>, PromptError>>) -> bool {
    match local {
        None => true,
        Some(Ok(prompts)) => prompts.iter().any(|it| it.is_cut),
        Some(Err(error)) => match error {
            PromptError::Media(_)
            | PromptError::Template(_)
            | PromptError::UntrustedTemplate
            | PromptError::NoTemplate
            | PromptError::Tokenizer(_)
            | PromptError::OwnCode(_) => true,
            PromptError::NoMessages
            | PromptError::Field { .. }
            | PromptError::Stateful
            | PromptError::Empty => false,
        },
    }
}

/// What was made here, with no other server to help.
fn alone(local: Option<Result<Vec<Prompt>, PromptError>>) -> Result<Vec<Prompt>, Reason> {
    match local {
        None => Err(Reason::NO_TOKENIZER),
        Some(Ok(prompts)) => Ok(prompts),
        Some(Err(error)) => {
            tracing::info!(%error, "no tokens for this request");
            Err(Reason::from(&error))
        }
    }
}

fn finished(
    prompter: Option<&Arc<Prompter>>,
    plan: Plan,
    request: Request,
    prompts: Result<Vec<Prompt>, Reason>,
    maker: Maker,
) -> Prepared {
    match prompts {
        Ok(prompts) => {
            let (memo, salt) = (prompter.and_then(|it| it.memo()), request.cache_salt.as_deref());
            let chains = pick::chain_with(memo, plan.namings.clone(), &prompts, salt);
            let made = (maker == Maker::Local).then(|| made(&request));
            let (model, reads_cache) = (request.model, request.reads_cache);
            Prepared { plan, model, prompts: Ok(prompts), maker, asked: None, reads_cache, chains, made }
        }
        Err(reason) => Prepared::without_prompts(plan, request.model, reason, maker),
    }
}

impl Pending {
    /// Who is to be asked.
    #[must_use]
    pub const fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Asks; comes back by `deadline`.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(&self, deadline: Instant) -> Result<Told, Failure> {
        self.remote.ask(&self.request, &self.body, &self.replicas, deadline).await
    }

    /// Reads what was told, and hashes it. Where that is nothing, what was made here stands.
    #[must_use]
    pub fn finish(self, told: Result<Told, Failure>) -> Prepared {
        let told = told.and_then(Told::read);
        let asked = Some(told.as_ref().err().map_or("ok", Failure::label));
        Prepared { asked, ..self.with(told) }
    }

    fn with(self, told: Result<Vec<Prompt>, Failure>) -> Prepared {
        let Self { request, plan, local, prompter, .. } = self;
        let prompter = prompter.as_ref();
        let failure = match told {
            Ok(prompts) => return finished(prompter, plan, request, Ok(prompts), Maker::Remote),
            Err(failure) => failure,
        };
        tracing::info!(%failure, "no prompt of a remote source");
        match local {
            Some(Ok(prompts)) if !matches!(failure, Failure::Refused { .. }) => {
                finished(prompter, plan, request, Ok(prompts), Maker::Local)
            }
            Some(Err(error)) if failure.is_unasked() => {
                finished(prompter, plan, request, Err(Reason::from(&error)), Maker::Local)
            }
            _ => finished(prompter, plan, request, Err(Reason::from(&failure)), Maker::Remote),
        }
    }
}

fn made(request: &Request) -> Made {
    // An answer that is made in the background is promised before anything is computed.
    let in_background = request.body().get("background").is_some_and(json::Json::is_true);
    Made {
        api: request.api,
        salted: request.cache_salt.is_some(),
        answers_early: request.stream || in_background,
    }
}
