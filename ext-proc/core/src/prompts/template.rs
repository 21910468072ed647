//! A model's chat templates, compiled once, and how one is rendered.

use std::{collections::BTreeMap, sync::Arc};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior,
    syntax::SyntaxConfig,
    value::{Kwargs, Rest, Value},
};

use super::{
    ContentFormat, LocalTime, PromptError, Settings,
    build::{HALF_PAIR, field, object, text},
    messages::Form,
    python::{
        compare, filters, globals, items, kept, methods, objects, operators, print, sequences, texts, time,
        tojson, value,
    },
    rewrite, source,
};
use crate::request::json::{Json, Object};

/// Work that one rendering may do, in the engine's unit: an instruction, or 64 bytes made. A chat of ten thousand
/// short messages fits; all of it is spent within a few tenths of a second.
const FUEL: u64 = 2_000_000;

/// Longest text taken from a template, in bytes: more than any model can read.
pub(super) const LONGEST_TEXT: usize = 16 << 20;

/// Name of the template that is used where no other one fits better.
pub(super) const DEFAULT: &str = "default";

/// Name of the template that goes before it where a request has tools.
const TOOL_USE: &str = "tool_use";

/// Name of the template of a model's processor of media, which goes first where a request has no tools. No file can
/// have it.
pub(super) const PROCESSOR: &str = "processor/chat_template";

/// What transformers appends to the message that is to be continued, to find its end in the rendered text.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A model's templates.
pub(super) struct Templates {
    env: Environment<'static>,
    named: BTreeMap<String, Template>,
    content_format: ContentFormat,
}

/// What is known of a template from its text.
#[derive(Clone, Debug)]
pub(super) struct Template {
    text: Arc<str>,
    form: Form,
    knows_developer: bool,
    /// Whether it marks what a model said for training, which plain Jinja does not know.
    has_generation_tag: bool,
    /// Why it does not compile, if it does not.
    broken: Option<String>,
    /// Name under which the environment has it compiled.
    compiled: Option<String>,
}

impl Templates {
    /// Compiles `named`, pairs of name and text. One that does not compile says so when it is used.
    pub(super) fn new(named: &[(String, String)], settings: &Settings) -> Self {
        let mut templates = Self {
            env: environment(settings.clock.clone()),
            named: BTreeMap::new(),
            content_format: settings.content_format,
        };
        for (name, text) in named {
            let mut template = templates.described(text);
            if template.broken.is_some() {
                templates.named.insert(name.clone(), template);
                continue;
            }
            match templates.env.add_template_owned(name.clone(), template.text.to_string()) {
                Ok(()) => template.compiled = Some(name.clone()),
                Err(error) => template.broken = Some(message(&error)),
            }
            templates.named.insert(name.clone(), template);
        }
        templates
    }

    /// Why one of the model's templates does not compile, if one does not.
    pub(super) fn problem(&self) -> Option<&str> {
        self.named.values().find_map(|it| it.broken.as_deref())
    }

    /// The model's template for a chat, with or without tools.
    pub(super) fn choose(&self, has_tools: bool) -> Result<Template, PromptError> {
        let first = self.named.get(if has_tools { TOOL_USE } else { PROCESSOR });
        first.or_else(|| self.named.get(DEFAULT)).cloned().ok_or(PromptError::NoTemplate)
    }

    /// Whether a template, with tools or without, refuses system messages that are not the first, as vLLM finds out at
    /// its start: by rendering one in plain Jinja, without the functions that transformers adds.
    pub(super) fn want_system_first(&self) -> bool {
        let env = jinja();
        let message = |role: &str| {
            value::from_json(&Json::Object(object([("role", text(role)), ("content", text("t"))])))
        };
        let messages: Vec<Value> = ["system", "user", "system", "user"].into_iter().map(message).collect();
        let variables = minijinja::context! { messages, add_generation_prompt => false };
        let refuses = |template: &Template| {
            template.has_generation_tag
                || template.broken.is_some()
                || env.render_str(&template.text, &variables).is_err()
        };
        let chosen = [false, true].map(|has_tools| self.choose(has_tools));
        chosen.iter().any(|template| template.as_ref().map_or(true, &refuses))
    }

    /// A template that came with a request.
    pub(super) fn described(&self, text: &str) -> Template {
        let rewritten = rewrite::rewritten(&source::prepared(text));
        Template {
            form: match self.content_format {
                ContentFormat::Auto if source::wants_parts(text) => Form::Parts,
                ContentFormat::OpenAi => Form::Parts,
                ContentFormat::Auto | ContentFormat::String => Form::Text,
            },
            knows_developer: source::knows_developer(text),
            has_generation_tag: source::has_generation_tag(text),
            text: rewritten.as_deref().unwrap_or_default().into(),
            broken: rewritten.err().map(|problem| format!("syntax error: {problem}")),
            compiled: None,
        }
    }

    /// Renders `messages` with `variables`. With `continues` the text ends where the last message does.
    pub(super) fn render(
        &self,
        template: &Template,
        mut messages: Vec<Json>,
        variables: Object,
        continues: bool,
    ) -> Result<String, PromptError> {
        if let Some(broken) = &template.broken {
            return Err(PromptError::Template(broken.clone()));
        }
        let continued = if continues { Some(tag_last(&mut messages)?) } else { None };
        let mut variables = variables;
        variables.retain(|name, value| value.is_all_text() || template.text.contains(name));
        if !messages.iter().chain(variables.values()).all(Json::is_all_text) {
            return Err(field("messages", HALF_PAIR));
        }
        variables.insert("messages".into(), Json::Array(messages));
        let variables = value::from_json(&Json::Object(variables));
        let rendered = match &template.compiled {
            Some(name) => self.env.get_template(name).and_then(|compiled| compiled.render(variables)),
            None => self.env.render_named_str("request", &template.text, variables),
        };
        let text = rendered.map_err(|error| PromptError::Template(message(&error)))?;
        if text.len() > LONGEST_TEXT {
            return Err(PromptError::Template(format!("prints more than {LONGEST_TEXT} bytes")));
        }
        match continued {
            Some(message) => cut_at_tag(text, &message),
            None => Ok(text),
        }
    }
}

impl Template {
    /// How messages are to be brought to it.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Whether it has a developer role of its own.
    pub(super) fn knows_developer(&self) -> bool {
        self.knows_developer
    }
}

/// Jinja as transformers sets it up for chat templates.
fn environment(clock: Option<Arc<dyn Fn() -> LocalTime + Send + Sync>>) -> Environment<'static> {
    let mut env = jinja();
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: &str| match &clock {
        Some(clock) => Ok(time::strftime(format, clock())),
        None => {
            Err(Error::new(ErrorKind::InvalidOperation, "prints the date, and no clock was given for it"))
        }
    });
    env
}

/// Jinja with its own filters, tests and functions.
fn jinja() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    env.set_syntax(syntax.build().expect("the default marks differ from one another"));
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_debug(false);
    env.set_formatter(|out, _, value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&print::str(value)?)?,
        }
        Ok(())
    });
    minijinja_contrib::add_to_environment(&mut env);
    env.set_unknown_method_callback(methods::call);
    add_operators(&mut env);
    add_filters(&mut env);
    env.add_function("dict", globals::dict);
    env.add_function("cycler", globals::cycler);
    env.add_function("joiner", objects::joiner);
    env.add_function("range", objects::range);
    env.add_test("sequence", filters::is_sequence);
    env.add_test("iterable", filters::is_iterable);
    env.add_test("mapping", filters::is_mapping);
    env.add_test("callable", filters::is_callable);
    env.add_test("number", filters::is_number);
    env.add_test("integer", filters::is_integer);
    env.add_test("lower", |value: &Value| texts::is_in_case(value, "islower"));
    env.add_test("upper", |value: &Value| texts::is_in_case(value, "isupper"));
    // They are there, but print something else than Jinja's, or are no part of it.
    for filter in ["bool", "chain", "lines", "pluralize", "split", "zip"] {
        env.remove_filter(filter);
    }
    for test in ["startingwith", "endingwith", "int"] {
        env.remove_test(test);
    }
    env.remove_global("debug");
    env.add_function("lipsum", || -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "lipsum is not supported"))
    });
    env
}

/// What expressions are rewritten to.
fn add_operators(env: &mut Environment<'_>) {
    use rewrite::names;
    env.add_filter(names::ADD, operators::add);
    env.add_filter(names::SUB, operators::sub);
    env.add_filter(names::MUL, operators::mul);
    env.add_filter(names::DIV, operators::div);
    env.add_filter(names::FLOOR_DIV, operators::floor_div);
    env.add_filter(names::MOD, operators::modulo);
    env.add_filter(names::POW, operators::pow);
    env.add_filter(names::NEG, operators::neg);
    env.add_filter(names::POS, operators::pos);
    env.add_filter(names::CONCAT, operators::concat);
    env.add_filter(names::ATTR, items::attr);
    env.add_filter(names::ITEM, items::item);
    env.add_filter(names::SLICE, items::slice);
    env.add_filter(names::LOOP, items::looped);
    env.add_filter(names::GIVEN, items::given);
    env.add_filter(names::KEPT, kept::kept);
    env.add_filter(names::KEY, kept::key);
    env.add_filter(
        names::EQ,
        |state: &mut State<'_, '_>, left: &Value, right: &Value| -> Result<bool, Error> {
            state.consume_fuel(left.len().unwrap_or_default() as u64 / 16)?;
            kept::compared(state, left)?;
            compare::equals(left, right)
        },
    );
    for (name, sign) in [(names::LT, "<"), (names::LE, "<="), (names::GT, ">"), (names::GE, ">=")] {
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>, left: &Value, right: &Value| -> Result<bool, Error> {
                kept::compared(state, left)?;
                compare::holds(sign, left, right)
            },
        );
    }
    env.add_filter(names::IN, |state: &mut State<'_, '_>, item: &Value, of: &Value| {
        compare::contains(state, of, item)
    });
}

fn add_filters(env: &mut Environment<'_>) {
    env.add_filter("tojson", tojson::tojson);
    env.add_filter("string", filters::string);
    env.add_filter("join", filters::join);
    env.add_filter("default", filters::default);
    env.add_filter("d", filters::default);
    env.add_filter("int", filters::int);
    env.add_filter("float", filters::float);
    env.add_filter("sort", filters::sort);
    env.add_filter("unique", filters::unique);
    env.add_filter("min", filters::min);
    env.add_filter("max", filters::max);
    env.add_filter("dictsort", filters::dictsort);
    env.add_filter("trim", texts::trim);
    env.add_filter("upper", texts::upper);
    env.add_filter("lower", texts::lower);
    env.add_filter("title", texts::title);
    env.add_filter("capitalize", texts::capitalize);
    env.add_filter("replace", texts::replace);
    env.add_filter("format", texts::format);
    env.add_filter("indent", texts::indent);
    env.add_filter("truncate", texts::truncate);
    env.add_filter("center", texts::center);
    env.add_filter("wordcount", texts::wordcount);
    env.add_filter("wordwrap", texts::wordwrap);
    env.add_filter("urlencode", texts::urlencode);
    env.add_filter("escape", texts::escape);
    env.add_filter("e", texts::escape);
    env.add_filter("forceescape", texts::forceescape);
    env.add_filter("safe", texts::safe);
    env.add_filter("filesizeformat", texts::filesizeformat);
    env.add_filter("pprint", texts::pprint);
    env.add_filter("xmlattr", texts::xmlattr);
    env.add_filter("items", sequences::items);
    env.add_filter("reverse", sequences::reverse);
    env.add_filter("sum", sequences::sum);
    env.add_filter("attr", sequences::attr);
    env.add_filter("round", sequences::round);
    env.add_filter("abs", sequences::abs);
    env.add_filter("_map", minijinja::filters::map);
    env.add_filter("_select", minijinja::filters::select);
    env.add_filter("_reject", minijinja::filters::reject);
    env.add_filter("_selectattr", minijinja::filters::selectattr);
    env.add_filter("_rejectattr", minijinja::filters::rejectattr);
    env.add_filter("_batch", minijinja::filters::batch);
    env.add_filter("_slices", minijinja::filters::slice);
    env.add_filter("_groupby", minijinja::filters::groupby);
    for (name, engines) in sequences::GENERATORS {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<Value>, names: Kwargs| {
            sequences::generator(state, engines, args, names)
        });
    }
    env.add_filter("groupby", sequences::groupby);
}

/// Puts the tag behind the last message's text; answers the text.
fn tag_last(messages: &mut [Json]) -> Result<String, PromptError> {
    let nothing = || PromptError::Field {
        field: "continue_final_message".into(),
        problem: "the last message has no text to continue",
    };
    let Some(Json::Object(last)) = messages.last_mut() else { return Err(nothing()) };
    let text = match last.get_mut("content") {
        Some(Json::String(text)) => text,
        Some(Json::Array(parts)) => {
            let text = parts.iter_mut().rev().find_map(|part| match part {
                Json::Object(part) => part.get_mut("text"),
                _ => None,
            });
            match text {
                Some(Json::String(text)) => text,
                _ => return Err(nothing()),
            }
        }
        _ => return Err(nothing()),
    };
    let before = text.clone();
    text.push_str(CONTINUE_TAG);
    Ok(before)
}

/// What stands before the tag; where the template trimmed the tag's space, it would have trimmed the message's too.
fn cut_at_tag(mut text: String, message: &str) -> Result<String, PromptError> {
    let tag = CONTINUE_TAG.trim_end();
    let at = text.rfind(tag).filter(|_| text.contains(message.trim_matches(methods::is_space)));
    let at = at.ok_or_else(|| PromptError::Field {
        field: "continue_final_message".into(),
        problem: "the template does not print the last message as it is",
    })?;
    let spaced = text[at..].starts_with(CONTINUE_TAG);
    text.truncate(at);
    if !spaced {
        text.truncate(text.trim_end_matches(methods::is_space).len());
    }
    Ok(text)
}

/// An error's own words, short enough for a log.
fn message(error: &Error) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
