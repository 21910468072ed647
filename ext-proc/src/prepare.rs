//! From a body's bytes to its prompts and their blocks: what a worker does for a decision, and what `kvpick tokenize`
//! shows. Takes time; keep it off the I/O threads.

use kvpick_core::{
    outcome::Reason,
    parity::Made,
    pick::{self, Chains},
    prompts::Prompt,
    request::{Api, Request, json},
    world::Plan,
};

use crate::{models::Models, shared::Shared};

/// Says who serves a model, and how they name blocks.
pub trait Serving {
    /// Who may serve that model or adapter, and how they name the blocks of a request for it.
    fn plan(&self, model: Option<&str>) -> Plan;
    /// The base models behind that name, as the operator calls them; see [`kvpick_core::world::World::base_models`].
    fn base_models(&self, model: &str) -> Vec<String>;
}

impl Serving for Shared {
    fn plan(&self, model: Option<&str>) -> Plan {
        self.world().plan(model)
    }

    fn base_models(&self, model: &str) -> Vec<String> {
        self.world().base_models(model)
    }
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
        Self { plan, model, prompts: Err(reason), reads_cache: false, chains: Chains::new(), made: None }
    }
}

/// Parses, renders, tokenizes and hashes. `model` stands for the one that the body names, where it is given; `models` is
/// `None` until they are loaded.
#[must_use]
pub fn prepare(
    serving: &impl Serving,
    models: Option<&Models>,
    api: Api,
    body: &[u8],
    model: Option<&str>,
) -> Prepared {
    let mut request = match Request::parse(api, body) {
        Ok(request) => request,
        Err(error) => {
            tracing::info!(%error, "a body that is no request; its replica will say so");
            let model = model.map(str::to_owned).or_else(|| json::model_of(body));
            return Prepared::bare(serving, model, Reason::of(error.label()));
        }
    };
    if let Some(model) = model {
        request.model = Some(model.to_owned());
    }
    let model = request.model.clone();
    let plan = serving.plan(model.as_deref());
    if !plan.model_known {
        return Prepared::bare(serving, model, Reason::UNKNOWN_MODEL);
    }
    let prompter = models.and_then(|models| {
        models.find(model.as_deref()).or_else(|| {
            // An adapter has its base model's tokenizer.
            let bases = serving.base_models(model.as_deref()?);
            bases.iter().find_map(|it| models.find(Some(it)))
        })
    });
    let Some(prompter) = prompter else { return Prepared::bare(serving, model, Reason::NO_TOKENIZER) };
    let prompts = match prompter.prompts(&request) {
        Ok(prompts) => prompts,
        Err(error) => {
            tracing::info!(%error, "no tokens for this request");
            return Prepared::bare(serving, model, Reason::from(&error));
        }
    };
    let chains = pick::chain(plan.namings.clone(), &prompts, request.cache_salt.as_deref());
    let made = Some(made(&request));
    Prepared { plan, model, prompts: Ok(prompts), reads_cache: request.reads_cache, chains, made }
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
